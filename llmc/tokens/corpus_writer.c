// Documents -> train and val shards: the dividing rule and two sequences of shards. Owns the open shard of each.
#include "llmc/tokens/corpus_writer.h"

#include "llmc/tokens/shards.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

// One of the two sequences of shards.
typedef struct {
    const char *name;
    ShardWriter *writer; // the open shard; NULL: the next token opens one
    int64_t room;        // tokens that it still takes
    int64_t shards;      // begun so far
    int64_t tokens;
} Side;

struct CorpusWriter {
    CorpusOptions options;
    Side train, val;
    int64_t documents, bytes;
    // The current document.
    Side *side;
    int64_t offset; // bytes of it written
    int64_t cut_at; // validation begins at the first place behind this where a line ends
    int32_t tokens[CORPUS_BLOCK];
    uint16_t narrow[CORPUS_BLOCK];
};

// ----------------------------------------------------------------------------------------------------------- the rule

// Uniform in [0, 1), a function of the text alone.
static double hash_fraction(const char *text, int64_t n) {
    return (double)(XXH3_64bits(text, (size_t)n) >> 11) * 0x1p-53;
}

// The first byte for validation, at least one and at most size - 1 from the end.
static int64_t cut_of(int64_t size, double val_fraction) {
    int64_t tail = (int64_t)((double)size * val_fraction);
    if (tail < 1) tail = 1;
    if (tail > size - 1) tail = size - 1; // a single byte is for training
    return size - tail;
}

// The first place at or behind `from` where a line ends, else where a UTF-8 character ends; below n.
static int64_t cut_position(const char *text, int64_t n, int64_t from) {
    const char *newline = memchr(text + from, '\n', (size_t)(n - 1 - from));
    if (newline) return newline + 1 - text;
    while (from < n - 1 && ((unsigned char)text[from] & 0xC0) == 0x80) from++;
    return from;
}

// ------------------------------------------------------------------------------------------------------------- shards

static bool open_shard(CorpusWriter *w, Side *side, Error *err) {
    const Tokenizer *t = w->options.tokenizer;
    char path[PATH_MAX];
    int length = snprintf(path, sizeof path, "%s/%s_%06" PRId64 ".bin", w->options.directory, side->name, side->shards);
    if (length >= (int)sizeof path) return error_set(err, "%s: the path is too long", w->options.directory);
    side->writer = shard_writer_open(path, sizeof *w->narrow, tokenizer_vocab(t), tokenizer_eot(t), err);
    side->room = w->options.shard_tokens;
    side->shards++;
    return side->writer != NULL;
}

static bool finish_shard(Side *side, Error *err) {
    ShardWriter *writer = side->writer;
    side->writer = NULL;
    return !writer || shard_writer_commit(writer, err);
}

static bool write_tokens(CorpusWriter *w, Side *side, const uint16_t *tokens, int64_t n, Error *err) {
    while (n > 0) {
        if (!side->writer && !open_shard(w, side, err)) return false;
        int64_t taken = n < side->room ? n : side->room;
        if (!shard_writer_append(side->writer, tokens, taken, err)) return false;
        tokens += taken, n -= taken;
        side->room -= taken, side->tokens += taken;
        if (side->room == 0 && !finish_shard(side, err)) return false;
    }
    return true;
}

static bool write_text(CorpusWriter *w, const char *text, int64_t n, Error *err) {
    int64_t count = tokenizer_encode(w->options.tokenizer, text, n, w->tokens);
    for (int64_t i = 0; i < count; i++) w->narrow[i] = (uint16_t)w->tokens[i];
    w->offset += n;
    w->bytes += n;
    return write_tokens(w, w->side, w->narrow, count, err);
}

static bool enter_side(CorpusWriter *w, Side *side, Error *err) {
    const uint16_t eot = (uint16_t)tokenizer_eot(w->options.tokenizer);
    w->side = side;
    return write_tokens(w, side, &eot, 1, err);
}

// ---------------------------------------------------------------------------------------------------------- interface

CorpusWriter *corpus_writer_create(const CorpusOptions *options, Error *err) {
    REQUIRE(options->val_fraction > 0 && options->val_fraction < 1 && options->shard_tokens > 0 &&
                tokenizer_vocab(options->tokenizer) <= 65536,
            "corpus_writer_create: an option is out of range");
    CorpusWriter *w = calloc(1, sizeof *w);
    if (!w) {
        error_set(err, "corpus writer: out of memory");
        return NULL;
    }
    w->options = *options;
    w->train.name = "train", w->val.name = "val";
    return w;
}

bool corpus_writer_begin_document(CorpusWriter *w, const char *text, int64_t n, int64_t size, Error *err) {
    bool is_cut = size > CORPUS_BLOCK || w->options.cut_all;
    bool is_val = !is_cut && hash_fraction(text, n) < w->options.val_fraction;
    w->offset = 0;
    w->cut_at = is_cut ? cut_of(size, w->options.val_fraction) : INT64_MAX;
    w->documents++;
    return enter_side(w, is_val ? &w->val : &w->train, err);
}

bool corpus_writer_add_text(CorpusWriter *w, const char *text, int64_t n, Error *err) {
    REQUIRE(n >= 0 && n <= CORPUS_BLOCK, "corpus_writer_add_text: %lld bytes", (long long)n);
    if (w->side == &w->train && w->offset + n > w->cut_at) {
        int64_t head = cut_position(text, n, w->cut_at - w->offset);
        if (!write_text(w, text, head, err) || !enter_side(w, &w->val, err)) return false;
        text += head, n -= head;
    }
    return write_text(w, text, n, err);
}

bool corpus_writer_commit(CorpusWriter *w, CorpusTotals *totals, Error *err) {
    bool ok = finish_shard(&w->train, err) && finish_shard(&w->val, err);
    if (totals) {
        *totals = (CorpusTotals){
            .documents = w->documents,
            .bytes = w->bytes,
            .train_tokens = w->train.tokens,
            .val_tokens = w->val.tokens,
            .train_shards = w->train.shards,
            .val_shards = w->val.shards,
        };
    }
    corpus_writer_abandon(w);
    return ok;
}

void corpus_writer_abandon(CorpusWriter *w) {
    if (!w) return;
    shard_writer_abandon(w->train.writer);
    shard_writer_abandon(w->val.writer);
    free(w);
}
