// The division of a corpus into training and validation, and the shards of both sides.
//
// Where a document's text goes depends on the document alone, so that a corpus that grows moves none of its older
// documents from one side to the other. The hash is XXH3 of the document's bytes; a cut is tried at every start of a
// line in turn, because at some (a line that is indented by several spaces) the tokenizer would have made another token
// of the newline.
//
// A shard is one ShardWriter; it gets its checksum when it is complete, read back from the page cache, because its
// header, which states the count, is written last. A shard that was completed after the last sync is taken up again
// like an open one. Owns the open shard of each side. Never reads a text.
#include "llmc/text/corpus_internal.h"

#include "llmc/base/atomic_file.h"
#include "llmc/data/shards.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
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

static bool is_inside_character(const char *text, int64_t at) { return ((unsigned char)text[at] & 0xC0) == 0x80; }

int64_t corpus_cut(const Tokenizer *t, const char *text, int64_t n, int64_t from) {
    if (n - from > CUT_SEARCH) n = from + CUT_SEARCH;
    const char *end = text + n - 1;
    for (const char *at = text + from - 1; (at = memchr(at, '\n', (size_t)(end - at))); at++)
        if (tokenizer_may_cut(t, text, n, at + 1 - text)) return at + 1 - text;
    while (from < n - 1 && is_inside_character(text, from)) from++;
    for (int64_t at = from; at > 0; at--)
        if (tokenizer_may_cut(t, text, n, at)) return at;
    for (int64_t at = from + 1; at < n; at++)
        if (tokenizer_may_cut(t, text, n, at)) return at;
    return from;
}

int64_t corpus_character_end(const char *text, int64_t n) {
    // A character has at most three bytes behind its first; what has more is no UTF-8 and may be cut anywhere.
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

typedef struct {
    ShardWriter *writer; // the open shard; NULL: the next token opens one
    CorpusShards state;
    int64_t shards_room;
} SideWriter;

struct CorpusWriter {
    CorpusWriterOptions options;
    SideWriter side[CORPUS_SIDES];
};

const char *corpus_shard_name(CorpusSide side, int64_t number, char *buf, size_t size) {
    snprintf(buf, size, "%s_%06" PRId64 ".bin", corpus_side_names[side], number);
    return buf;
}

static char *shard_path(const CorpusWriter *w, CorpusSide side, int64_t number) {
    char name[40];
    return path_join(w->options.directory, corpus_shard_name(side, number, name, sizeof name));
}

void corpus_writer_free(CorpusWriter *w) {
    if (!w) return;
    for (CorpusSide side = 0; side < CORPUS_SIDES; side++) {
        shard_writer_leave(w->side[side].writer);
        free(w->side[side].state.shards);
    }
    free(w);
}

const CorpusShards *corpus_writer_shards(const CorpusWriter *w, CorpusSide side) { return &w->side[side].state; }

// -------------------------------------------------------------------------------------------------------------- append

static bool add_shard(SideWriter *s, CorpusShard shard, Error *err) {
    if (s->state.num_shards == s->shards_room) {
        int64_t room = s->shards_room ? 2 * s->shards_room : 16;
        CorpusShard *shards = realloc(s->state.shards, (size_t)room * sizeof *shards);
        if (!shards) return error_set(err, "corpus writer: out of memory");
        s->state.shards = shards, s->shards_room = room;
    }
    s->state.shards[s->state.num_shards++] = shard;
    return true;
}

static bool open_shard(CorpusWriter *w, CorpusSide side, Error *err) {
    const CorpusWriterOptions *o = &w->options;
    char *path = shard_path(w, side, w->side[side].state.num_shards);
    w->side[side].writer = shard_writer_open(path, o->token_bytes, o->vocab, o->eot, err);
    free(path);
    return w->side[side].writer != NULL;
}

static bool finish_shard(CorpusWriter *w, CorpusSide side, Error *err) {
    SideWriter *s = &w->side[side];
    if (!s->writer) return true;
    ShardWriter *writer = s->writer;
    s->writer = NULL;
    CorpusShard shard = {.tokens = s->state.open_tokens};
    char *path = shard_path(w, side, s->state.num_shards);
    // The checksum is taken from the page cache, where the shard still is.
    bool ok = shard_writer_commit(writer, err) && file_checksum(path, &shard.bytes, &shard.xxh3, err) &&
              add_shard(s, shard, err);
    s->state.open_tokens = 0;
    free(path);
    return ok;
}

bool corpus_writer_append(CorpusWriter *w, CorpusSide side, const void *tokens, int64_t n, Error *err) {
    SideWriter *s = &w->side[side];
    for (const char *from = tokens; n > 0;) {
        if (!s->writer && !open_shard(w, side, err)) return false;
        int64_t room = w->options.shard_tokens - s->state.open_tokens, taken = n < room ? n : room;
        if (!shard_writer_append(s->writer, from, taken, err)) return false;
        from += taken * w->options.token_bytes, n -= taken;
        s->state.open_tokens += taken;
        if (taken == room && !finish_shard(w, side, err)) return false;
    }
    return true;
}

bool corpus_writer_sync(CorpusWriter *w, Error *err) {
    for (CorpusSide side = 0; side < CORPUS_SIDES; side++)
        if (w->side[side].writer && !shard_writer_sync(w->side[side].writer, err)) return false;
    return true;
}

bool corpus_writer_finish(CorpusWriter *w, Error *err) {
    return finish_shard(w, CORPUS_TRAIN, err) && finish_shard(w, CORPUS_VAL, err);
}

// ---------------------------------------------------------------------------------------------------------------- open

static bool take_complete(CorpusWriter *w, CorpusSide side, const CorpusShard *shard, Error *err) {
    char *path = shard_path(w, side, w->side[side].state.num_shards);
    struct stat st;
    bool ok = stat(path, &st) == 0 && st.st_size == shard->bytes;
    if (ok)
        ok = add_shard(&w->side[side], *shard, err);
    else
        error_set(err, "%s: is not the %" PRId64 " bytes that were written", path, shard->bytes);
    free(path);
    return ok;
}

// The shard that was open then lies under its final name, if it was completed since, or under NAME.tmp-PID.
static bool take_open(CorpusWriter *w, CorpusSide side, const char *found, int64_t tokens, Error *err) {
    const CorpusWriterOptions *o = &w->options;
    SideWriter *s = &w->side[side];
    char *path = shard_path(w, side, s->state.num_shards), *from = path_join(o->directory, found);
    s->writer = shard_writer_continue(from, path, o->token_bytes, o->vocab, o->eot, tokens, err);
    s->state.open_tokens = tokens;
    free(path), free(from);
    return s->writer != NULL;
}

// Is name this shard, complete or not?
static bool is_shard_file(const char *name, CorpusSide side, int64_t number) {
    char shard[40];
    size_t n = strlen(corpus_shard_name(side, number, shard, sizeof shard));
    return strncmp(name, shard, n) == 0 && (name[n] == '\0' || strncmp(name + n, ".tmp-", 5) == 0);
}

// Sees to one entry of the directory: complete shards stay, the open one is taken, later ones go.
static bool sort_entry(CorpusWriter *w, CorpusSide side, const char *name, const CorpusShards *synced, Error *err) {
    size_t n = strlen(corpus_side_names[side]);
    if (strncmp(name, corpus_side_names[side], n) != 0 || name[n] != '_') return true;
    for (int64_t i = 0; i < synced->num_shards; i++)
        if (is_shard_file(name, side, i)) return true;
    bool is_open = synced->open_tokens > 0 && is_shard_file(name, side, synced->num_shards);
    if (is_open && !w->side[side].writer) return take_open(w, side, name, synced->open_tokens, err);
    char *path = path_join(w->options.directory, name);
    bool ok = unlink(path) == 0 || error_set(err, "%s: cannot remove: %s", path, strerror(errno));
    free(path);
    return ok;
}

static bool take_side(CorpusWriter *w, CorpusSide side, const CorpusShards *synced, Error *err) {
    for (int64_t i = 0; i < synced->num_shards; i++)
        if (!take_complete(w, side, &synced->shards[i], err)) return false;
    struct dirent **list;
    int n = scandir(w->options.directory, &list, NULL, alphasort); // all names before the first is changed
    if (n < 0) return error_set(err, "%s: cannot list the directory: %s", w->options.directory, strerror(errno));
    bool ok = true;
    for (int i = 0; i < n; i++) {
        ok = ok && sort_entry(w, side, list[i]->d_name, synced, err);
        free(list[i]);
    }
    free(list);
    if (ok && synced->open_tokens > 0 && !w->side[side].writer)
        ok = error_set(err, "%s: an unfinished shard is missing", w->options.directory);
    return ok;
}

CorpusWriter *corpus_writer_open(const CorpusWriterOptions *options, const CorpusShards synced[CORPUS_SIDES],
                                 Error *err) {
    REQUIRE(options->shard_tokens > 0, "corpus_writer_open: %lld tokens in a shard", (long long)options->shard_tokens);
    static const CorpusShards nothing = {0};
    CorpusWriter *w = calloc(1, sizeof *w);
    if (!w) {
        error_set(err, "corpus writer: out of memory");
        return NULL;
    }
    w->options = *options;
    for (CorpusSide side = 0; side < CORPUS_SIDES; side++) {
        if (take_side(w, side, synced ? &synced[side] : &nothing, err)) continue;
        corpus_writer_free(w);
        return NULL;
    }
    return w;
}
