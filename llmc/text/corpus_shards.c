// The division of a corpus into training and validation, and the shards of both sides.
//
// The hash that decides on a short document is XXH3 of its bytes. A cut is tried at every start of a line in turn,
// because at some (a line indented by several spaces) the tokenizer would have made another token of the newline.
// A shard is one ShardWriter. Its checksum is computed when it is complete, read back from the page cache, because the
// header, which states the count, is written last. Owns the open shard of each side. Never reads a text.
#include "llmc/base/arithmetic.h"
#include "llmc/base/file.h"
#include "llmc/base/json.h"
#include "llmc/base/path.h"
#include "llmc/data/shards.h"
#include "llmc/text/corpus.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

const char *const corpus_side_names[CORPUS_SIDES] = {"train", "val"};

CorpusSide corpus_side(const char *text, int64_t n, double val_fraction) {
    double uniform = (double)(XXH3_64bits(text, (size_t)n) >> 11) * 0x1p-53; // in [0, 1)
    return uniform < val_fraction ? CORPUS_VAL : CORPUS_TRAIN;
}

int64_t corpus_cut_target(int64_t size, double val_fraction) {
    int64_t tail = (int64_t)((double)size * val_fraction);
    if (corpus_is_one_sided(val_fraction)) return size;
    if (tail < 1) tail = 1;
    if (tail > size - 1) tail = size - 1; // a single byte is for training
    return size - tail;
}

int64_t corpus_cut(const Tokenizer *t, const char *text, int64_t n, int64_t from) {
    if (n - from > CUT_SEARCH) n = from + CUT_SEARCH;
    const char *end = text + n - 1;
    for (const char *at = text + from - 1; (at = memchr(at, '\n', (size_t)(end - at))); at++)
        if (tokenizer_may_cut(t, text, n, at + 1 - text)) return at + 1 - text;
    while (from < n - 1 && ((unsigned char)text[from] & 0xC0) == 0x80) from++; // inside a character
    for (int64_t at = from; at > 0; at--)
        if (tokenizer_may_cut(t, text, n, at)) return at;
    for (int64_t at = from + 1; at < n; at++)
        if (tokenizer_may_cut(t, text, n, at)) return at;
    return from;
}

int64_t corpus_character_end(const char *text, int64_t n) {
    // A character has at most three bytes after its first; a longer run is not UTF-8 and may be cut anywhere.
    for (int64_t at = n - 1; at > 0 && at >= n - 4; at--) {
        unsigned char c = (unsigned char)text[at];
        if (c < 0x80) return n;
        if (c < 0xC0) continue;
        int length = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : 2;
        return at + length <= n ? n : at;
    }
    return n;
}

// -------------------------------------------------------------------------------------------------------------- shards

bool corpus_shard_read(const cJSON *entry, int64_t max_tokens, CorpusShard *shard, Error *err) {
    const char *xxh3;
    if (!cJSON_IsObject(entry)) return error_set(err, "an entry of \"shards\" is not an object");
    if (!json_get_int(entry, "tokens", 0, max_tokens, &shard->tokens, err) ||
        !json_get_int(entry, "bytes", 0, JSON_MAX_INT, &shard->bytes, err) ||
        !json_get_string(entry, "xxh3", &xxh3, err))
        return false;
    shard->xxh3 = strtoull(xxh3, NULL, 16);
    const bool is_hex = strlen(xxh3) == 16 && strspn(xxh3, "0123456789abcdefABCDEF") == 16;
    return is_hex || error_set(err, "\"xxh3\" is \"%.40s\", expected 16 digits", xxh3);
}

char *corpus_shard_path(const char *directory, CorpusSide side, int64_t number) {
    char name[40];
    snprintf(name, sizeof name, "%s_%06" PRId64 ".bin", corpus_side_names[side], number);
    return path_join(directory, name);
}

void corpus_writer_free(CorpusWriter *w) {
    for (CorpusSide side = 0; side < CORPUS_SIDES; side++)
        shard_writer_leave(w->side[side].open), free(w->side[side].shards);
    *w = (CorpusWriter){0};
}

static bool open_shard(CorpusWriter *w, CorpusSide side, Error *err) {
    const Tokenizer *t = w->tokenizer;
    CorpusShards *s = &w->side[side];
    char *path = corpus_shard_path(w->directory, side, s->count);
    s->open = shard_writer_open(path, corpus_token_bytes(t), tokenizer_vocab(t), tokenizer_eot(t), err);
    free(path);
    return s->open != NULL;
}

static bool finish_shard(CorpusWriter *w, CorpusSide side, Error *err) {
    CorpusShards *s = &w->side[side];
    if (!s->open) return true;
    CorpusShard *shards = realloc(s->shards, (size_t)(s->count + 1) * sizeof *shards);
    if (!shards) return error_set(err, "corpus writer: out of memory");
    CorpusShard *shard = &shards[s->count];
    char *path = corpus_shard_path(w->directory, side, s->count);
    s->shards = shards;
    *shard = (CorpusShard){.tokens = s->open_tokens};
    // The checksum is taken from the page cache, where the shard still is.
    const bool ok = shard_writer_commit(s->open, err) && file_checksum(path, &shard->bytes, &shard->xxh3, err);
    s->open = NULL;
    if (ok) s->count++, s->open_tokens = 0;
    free(path);
    return ok;
}

bool corpus_writer_append(CorpusWriter *w, CorpusSide side, const void *tokens, int64_t n, Error *err) {
    CorpusShards *s = &w->side[side];
    for (const char *from = tokens; n > 0;) {
        if (!s->open && !open_shard(w, side, err)) return false;
        const int64_t left = w->shard_tokens - s->open_tokens, taken = min_i64(n, left);
        if (!shard_writer_append(s->open, from, taken, err)) return false;
        from += taken * corpus_token_bytes(w->tokenizer), n -= taken;
        s->open_tokens += taken;
        if (taken == left && !finish_shard(w, side, err)) return false;
    }
    return true;
}

bool corpus_writer_finish(CorpusWriter *w, Error *err) {
    return finish_shard(w, CORPUS_TRAIN, err) && finish_shard(w, CORPUS_VAL, err);
}
