// Text to tokens: added tokens are found by their spelling, what lies between them is cut into pieces by the pattern,
// and the bytes of each piece are merged, unless the cache knows what comes out. Owns one thread's cache.
#include "llmc/text/bpe_cache.h"
#include "llmc/text/bpe_pieces.h"
#include "llmc/text/tokenizer_vocabulary.h"

#include <stdlib.h>
#include <string.h>

struct Encoder {
    const Tokenizer *t;
    CacheEntry *cache;
};

Encoder *encoder_create(const Tokenizer *t, Error *err) {
    Encoder *e = calloc(1, sizeof *e);
    if (e) e->cache = aligned_alloc(sizeof *e->cache, CACHE_ENTRIES * sizeof *e->cache);
    if (!e || !e->cache) {
        error_set(err, "%s: out of memory for an encoder", t->name);
        encoder_free(e);
        return NULL;
    }
    memset(e->cache, 0, CACHE_ENTRIES * sizeof *e->cache);
    e->t = t;
    return e;
}

void encoder_free(Encoder *e) {
    if (!e) return;
    free(e->cache);
    free(e);
}

// -------------------------------------------------------------------------------------------------------------- pieces

static int64_t merge_piece(const Tokenizer *t, const char *piece, int64_t n, int32_t *out) {
    int32_t whole = t->whole_pieces ? vocabulary_find(t, piece, (size_t)n) : -1;
    if (whole >= 0) return out[0] = whole, 1;
    for (int64_t i = 0; i < n; i++) out[i] = t->byte_tokens[(unsigned char)piece[i]];
    return merge_tokens(&t->merges, out, n, UINT32_MAX);
}

// readable: how many bytes follow piece in the text.
static inline int64_t encode_piece(Encoder *e, const char *piece, int64_t n, int64_t readable, int32_t *out) {
    if (n > CACHE_PIECE_BYTES) return merge_piece(e->t, piece, n, out);
    PieceKey key = piece_key(piece, n, readable);
    CacheEntry *set = cache_find_set(e->cache, &key);
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
        int64_t length = pieces_next(t->char_table, text + at, n - at);
        count += encode_piece(e, text + at, length, n - at, out + count);
        at += length;
    }
    return count;
}

// -------------------------------------------------------------------------------------------------------- added tokens

// Which added tokens are looked for: first those that a normalizer would not have touched, then the others. There is
// no normalizer, but where two overlap, this order is Hugging Face's.
typedef enum { NOT_NORMALIZED, NORMALIZED, NUM_PASSES } Pass;

// The first place in text where one begins, and of these the longest: its token, or -1.
static int32_t find_added(const Tokenizer *t, Pass pass, bool special, const char *text, int64_t n, int64_t *at) {
    for (*at = 0; *at < n; ++*at) {
        unsigned char first = (unsigned char)text[*at];
        for (int32_t i = t->added_begin[first]; i < t->added_begin[first + 1]; i++) {
            const Token *k = &t->tokens[t->added_tokens[i]];
            if (k->normalized != (pass == NORMALIZED) || (k->special && !special) || k->length > n - *at) continue;
            if (memcmp(t->bytes + k->offset, text + *at, k->length) == 0) return t->added_tokens[i];
        }
    }
    return -1;
}

static int64_t encode_pass(Encoder *e, Pass pass, bool special, const char *text, int64_t n, int32_t *out) {
    if (pass == NUM_PASSES) return encode_plain(e, text, n, out);
    int64_t count = 0, at;
    for (int32_t token; (token = find_added(e->t, pass, special, text, n, &at)) >= 0;) {
        count += encode_pass(e, pass + 1, special, text, at, out + count);
        out[count++] = token;
        at += e->t->tokens[token].length;
        text += at, n -= at;
    }
    return count + encode_pass(e, pass + 1, special, text, n, out + count);
}

int64_t encoder_encode(Encoder *e, const char *text, int64_t n, int32_t *out) {
    if (e->t->all_added_special) return encode_plain(e, text, n, out);
    return encode_pass(e, NOT_NORMALIZED, false, text, n, out);
}

int64_t encoder_encode_special(Encoder *e, const char *text, int64_t n, int32_t *out) {
    return encode_pass(e, NOT_NORMALIZED, true, text, n, out);
}

// ---------------------------------------------------------------------------------------------------------------- cuts

// Might the spelling of an added token that ordinary text may have lie across m, as far as the n bytes tell?
static bool added_across(const Tokenizer *t, const char *text, int64_t n, int64_t m) {
    for (int32_t i = 0; i < t->added_begin[256]; i++) {
        const Token *k = &t->tokens[t->added_tokens[i]];
        for (int64_t before = 1; !k->special && before < k->length && before <= m; before++) {
            int64_t seen = k->length < n - m + before ? k->length : n - m + before;
            if (memcmp(t->bytes + k->offset, text + m - before, (size_t)seen) == 0) return true;
        }
    }
    return false;
}

// Is m the beginning of a line after "\r\n"? Before a word these are two pieces, at the end of a text they are one: the
// same tokens, if there is none of both.
static bool follows_windows_line(const Tokenizer *t, const char *text, int64_t n, int64_t m) {
    return m > 2 && text[m - 2] == '\r' && text[m - 1] == '\n' && pieces_always_cut(t->char_table, text, n, m - 2) &&
           pieces_always_cut(t->char_table, text, n, m - 1) && vocabulary_find(t, "\r\n", 2) < 0;
}

bool tokenizer_may_cut(const Tokenizer *t, const char *text, int64_t n, int64_t m) {
    return ((t->merges.count == 0 && !t->whole_pieces) || pieces_always_cut(t->char_table, text, n, m) ||
            follows_windows_line(t, text, n, m)) &&
           (t->all_added_special || !added_across(t, text, n, m));
}

int64_t tokenizer_safe_cut(const Tokenizer *t, const char *text, int64_t n) {
    if (t->merges.count == 0 && !t->whole_pieces && t->all_added_special) return n;
    int64_t m = n - 1;
    while (m > 0 && !tokenizer_may_cut(t, text, n, m)) m--;
    return m > 0 ? m : 0;
}
