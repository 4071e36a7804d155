// The properties of a Tokenizer, and where texts may be cut. See tokenizer.h.
#include "llmc/text/tokenizer.h"

#include "llmc/base/arithmetic.h"
#include "llmc/text/pieces.h"
#include "llmc/text/vocabulary.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

Tokenizer *tokenizer_bytes(Error *err) {
    Tokenizer *t = vocabulary_new("bytes");
    bool ok = true;
    for (int i = 0; ok && i < BYTE_EOT; i++)
        ok = vocabulary_add(t, i, &(char){(char)i}, 1, true, err);
    if (ok && vocabulary_add_added(t, BYTE_EOT, END_OF_TEXT, true, false, err) &&
        vocabulary_finish(t, err))
        return t;
    tokenizer_free(t);
    return NULL;
}

void tokenizer_free(Tokenizer *t) {
    if (!t) return;
    merge_table_free(&t->merges);
    free(t->name);
    free(t->path);
    free(t->tokens);
    free(t->bytes);
    free(t->by_bytes);
    for (int i = 0; i < NUM_ADDED_PASSES; i++) {
        spellings_free(t->added[i][false]);
        spellings_free(t->added[i][true]);
    }
    free(t->char_table);
    free(t);
}

int64_t tokenizer_vocab(const Tokenizer *t) { return t->count; }
int32_t tokenizer_eot(const Tokenizer *t) { return t->eot; }
int32_t tokenizer_begin(const Tokenizer *t) {
    if (t->begin >= 0) return t->begin;
    return t->eot;
}
const char *tokenizer_name(const Tokenizer *t) { return t->name; }
const char *tokenizer_path(const Tokenizer *t) {
    if (t->path) return t->path;
    return "";
}
const char *tokenizer_pre(const Tokenizer *t) { return pattern_facts[t->pattern].pre; }
bool tokenizer_expects_nfc(const Tokenizer *t) { return t->expects_nfc; }
bool tokenizer_is_special(const Tokenizer *t, int32_t token) {
    return token >= 0 && token < t->count && t->tokens[token].special;
}

const char *tokenizer_decode(const Tokenizer *t, int32_t token, size_t *length) {
    *length = 0;
    if (token < 0 || token >= t->count) return "";
    *length = t->tokens[token].length;
    return t->bytes + t->tokens[token].offset;
}

uint64_t tokenizer_fingerprint(const Tokenizer *t) {
    XXH3_state_t *hash = XXH3_createState();
    REQUIRE_MEMORY(hash, "a hash");
    XXH3_64bits_reset(hash);
    for (int32_t i = 0; i < t->count; i++) {
        size_t length;
        const char *bytes = tokenizer_decode(t, i, &length);
        uint32_t head[2] = {(uint32_t)i, (uint32_t)length};
        XXH3_64bits_update(hash, head, sizeof head);
        XXH3_64bits_update(hash, bytes, length);
    }
    if (t->pattern != PATTERN_GPT2) XXH3_64bits_update(hash, &t->pattern, sizeof t->pattern);
    uint64_t fingerprint = XXH3_64bits_digest(hash);
    XXH3_freeState(hash);
    return fingerprint;
}

// -------------------------------------------------------------------------------------------- cuts

// Tells whether the spelling of a non-special added token may cross m, as far as the n bytes show.
static bool added_across(TokenizerCuts *c, int64_t m) {
    const int64_t window = m / SPELLINGS_WINDOW;
    if (window != c->window) {
        const int64_t low = window * SPELLINGS_WINDOW, high = min_i64(low + SPELLINGS_WINDOW, c->n);
        c->window = window;
        memset(c->crossed, 0, sizeof c->crossed);
        for (int pass = 0; pass < NUM_ADDED_PASSES; pass++) {
            const Spellings *added = c->tokenizer->added[pass][false];
            if (added) spellings_mark_crossed(added, c->text, c->n, low, high, c->crossed);
        }
    }
    return c->crossed[m % SPELLINGS_WINDOW];
}

TokenizerCuts tokenizer_cuts(const Tokenizer *t, const char *text, int64_t n) {
    return (TokenizerCuts){.tokenizer = t, .text = text, .n = n, .window = -1};
}

static bool pieces_may_cut(const Tokenizer *t, const char *text, int64_t n, int64_t m) {
    if ((t->merges.count == 0 && !t->whole_pieces) ||
        pieces_always_cut(t->char_table, t->pattern, text, n, m))
        return true;
    // A line begins after "\r\n". Before a word these are two pieces, at the end of a text they are
    // one. The tokens are the same, unless the vocabulary has a token "\r\n".
    return m > 2 && text[m - 2] == '\r' && text[m - 1] == '\n' &&
           pieces_always_cut(t->char_table, t->pattern, text, n, m - 2) &&
           pieces_always_cut(t->char_table, t->pattern, text, n, m - 1) &&
           vocabulary_find(t, "\r\n", 2) < 0;
}

bool tokenizer_may_cut(TokenizerCuts *c, int64_t m) {
    if (!pieces_may_cut(c->tokenizer, c->text, c->n, m)) return false;
    return c->tokenizer->all_added_special || !added_across(c, m);
}

int64_t tokenizer_safe_cut(const Tokenizer *t, const char *text, int64_t n) {
    if (t->merges.count == 0 && !t->whole_pieces && t->all_added_special) return n;
    TokenizerCuts cuts = tokenizer_cuts(t, text, n);
    int64_t m = n - 1;
    while (m > 0 && !tokenizer_may_cut(&cuts, m)) m--;
    return max_i64(m, 0);
}
