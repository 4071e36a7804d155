// See encoder.h.
#include "llmc/text/encoder.h"

#include "llmc/base/memory.h"
#include "llmc/text/piece_key.h"
#include "llmc/text/pieces.h"
#include "llmc/text/vocabulary.h"

#include <stdlib.h>
#include <string.h>

// Pieces and their tokens, as they were merged before: text repeats its words. A fixed number of
// entries of one cache line each, two candidates per piece; the older of the two is replaced. Never
// grows.

enum {
    CACHE_PIECE_TOKENS = 7,
    CACHE_ENTRIES =
        1 << 16, // 4 MB. Half of it: 5 to 30% slower on English; twice of it: 5% slower (L2)
};

typedef struct {
    PieceKey key; // all zero: free
    int32_t tokens[CACHE_PIECE_TOKENS];
    int32_t count;
} CacheEntry;

struct Encoder {
    const Tokenizer *t;
    CacheEntry *cache;
};

Encoder *encoder_create(const Tokenizer *t) {
    Encoder *e = memory_zeroed(1, sizeof *e);
    e->t = t;
    e->cache = aligned_alloc(sizeof *e->cache, CACHE_ENTRIES * sizeof *e->cache);
    REQUIRE_MEMORY(e->cache, "an encoder");
    memset(e->cache, 0, CACHE_ENTRIES * sizeof *e->cache);
    return e;
}

void encoder_free(Encoder *e) {
    if (!e) return;
    free(e->cache);
    free(e);
}

// ------------------------------------------------------------------------------------------ pieces

static int64_t merge_piece(const Tokenizer *t, const char *piece, int64_t n, int32_t *out) {
    const int32_t whole = t->whole_pieces ? vocabulary_find(t, piece, (size_t)n) : -1;
    if (whole >= 0) {
        out[0] = whole;
        return 1;
    }
    for (int64_t i = 0; i < n; i++) out[i] = t->byte_tokens[(unsigned char)piece[i]];
    return merge_tokens(&t->merges, out, n, UINT32_MAX, 1);
}

// readable: how many bytes follow piece in the text.
static inline int64_t encode_cached(Encoder *e, const char *piece, int64_t n, int64_t readable,
                                    int32_t *out) {
    if (n > PIECE_KEY_BYTES) return merge_piece(e->t, piece, n, out);
    PieceKey key = piece_key(piece, n, readable);
    CacheEntry *set = &e->cache[piece_hash(&key) & (CACHE_ENTRIES - 2)]; // two candidates
    for (int way = 0; way < 2; way++) {
        if (!piece_key_is(&set[way].key, &key)) continue;
        for (int i = 0; i < set[way].count; i++) out[i] = set[way].tokens[i];
        return set[way].count;
    }
    int64_t count = merge_piece(e->t, piece, n, out);
    if (count > CACHE_PIECE_TOKENS) return count;
    set[1] = set[0];
    set[0] = (CacheEntry){.key = key, .count = (int32_t)count};
    memcpy(set[0].tokens, out, (size_t)count * sizeof *out);
    return count;
}

static int64_t encode_plain(Encoder *e, const char *text, int64_t n, int32_t *out) {
    const Tokenizer *t = e->t;
    int64_t count = 0;
    if (t->merges.count == 0 && !t->whole_pieces) { // bytes
        for (int64_t i = 0; i < n; i++) out[i] = t->byte_tokens[(unsigned char)text[i]];
        return n;
    }
    for (int64_t at = 0; at < n;) {
        int64_t length = pieces_next(t->char_table, t->pattern, text + at, n - at);
        count += encode_cached(e, text + at, length, n - at, out + count);
        at += length;
    }
    return count;
}

// ------------------------------------------------------------------------------------ added tokens

static int64_t encode_pass(Encoder *e, AddedPass pass, bool special, const char *text, int64_t n,
                           int32_t *out) {
    if (pass == NUM_ADDED_PASSES) return encode_plain(e, text, n, out);
    const Spellings *added = e->t->added[pass][special];
    int64_t count = 0, at;
    for (int32_t token; (token = spellings_find(added, text, n, &at)) >= 0;) {
        count += encode_pass(e, pass + 1, special, text, at, out + count);
        out[count++] = token;
        at += e->t->tokens[token].length;
        text += at;
        n -= at;
    }
    return count + encode_pass(e, pass + 1, special, text, n, out + count);
}

int64_t encoder_encode(Encoder *e, const char *text, int64_t n, int32_t *out) {
    if (e->t->all_added_special) return encode_plain(e, text, n, out);
    return encode_pass(e, ADDED_NOT_NORMALIZED, false, text, n, out);
}

int64_t encoder_encode_special(Encoder *e, const char *text, int64_t n, int32_t *out) {
    return encode_pass(e, ADDED_NOT_NORMALIZED, true, text, n, out);
}
