// See vocabulary.h.
#include "llmc/text/vocabulary.h"
#include "llmc/base/arithmetic.h"
#include "llmc/base/memory.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { SHOWN = 80 }; // bytes of a spelling in a message

const char *vocabulary_show(const char *bytes, size_t length, char *buf, size_t size) {
    size_t used = 0;
    for (size_t i = 0; i < length && used + 5 < size; i++) {
        const unsigned char c = (unsigned char)bytes[i];
        if (c >= 0x20 && c < 0x7F)
            buf[used++] = (char)c;
        else
            used += (size_t)snprintf(buf + used, size - used, "\\x%02x", c);
    }
    buf[used] = '\0';
    return buf;
}

Tokenizer *vocabulary_new(const char *name, ...) {
    Tokenizer *t = memory_zeroed(1, sizeof *t);
    va_list args;
    va_start(args, name);
    REQUIRE_MEMORY(vasprintf(&t->name, name, args) >= 0, "a name");
    va_end(args);
    t->eot = t->begin = -1;
    return t;
}

bool vocabulary_line(const char *text, size_t n, size_t *at, const char **line, size_t *length) {
    if (*at >= n) return false;
    *line = text + *at;
    const char *newline = memchr(*line, '\n', n - *at);
    *length = n - *at;
    if (newline) *length = (size_t)(newline - *line);
    *at += *length + 1;
    if (*length > 0 && (*line)[*length - 1] == '\r') --*length;
    return true;
}

// ---------------------------------------------------------------------------------- bytes -> token

static uint64_t spelling_slot(const Tokenizer *t, const char *bytes, size_t length) {
    return XXH3_64bits(bytes, length) & (uint64_t)(t->by_bytes_capacity - 1);
}

int32_t vocabulary_find(const Tokenizer *t, const char *bytes, size_t length) {
    if (t->by_bytes_capacity == 0 || length > MAX_TOKEN_BYTES) return -1;
    for (uint64_t i = spelling_slot(t, bytes, length);;
         i = (i + 1) & (uint64_t)(t->by_bytes_capacity - 1)) {
        int32_t token = t->by_bytes[i];
        if (token < 0) return -1;
        const Token *known = &t->tokens[token];
        if (known->length == length && memcmp(t->bytes + known->offset, bytes, length) == 0)
            return token;
    }
}

static void index_token(Tokenizer *t, int32_t token) {
    const Token *k = &t->tokens[token];
    uint64_t i = spelling_slot(t, t->bytes + k->offset, k->length);
    while (t->by_bytes[i] >= 0) i = (i + 1) & (uint64_t)(t->by_bytes_capacity - 1);
    t->by_bytes[i] = token;
}

// ------------------------------------------------------------------------------------------ tokens

static bool check_new(const Tokenizer *t, int64_t number, const char *bytes, size_t length,
                      bool ordinary, Error *err) {
    const int32_t same = ordinary ? vocabulary_find(t, bytes, length) : -1;
    bool taken = number >= 0 && number < t->count && t->tokens[number].known;
    if (number >= 0 && number < MAX_TOKENS && length > 0 && length <= MAX_TOKEN_BYTES && !taken &&
        same < 0)
        return true;

    char shown[SHOWN], other[SHOWN];
    vocabulary_show(bytes, length, shown, sizeof shown);
    if (number < 0 || number >= MAX_TOKENS)
        return error_set(err, "\"%s\" has number %lld, expected 0 to %d", shown, (long long)number,
                         MAX_TOKENS - 1);
    if (length == 0) return error_set(err, "token %lld is empty", (long long)number);
    if (length > MAX_TOKEN_BYTES)
        return error_set(err, "token %lld (\"%.20s...\") has %zu bytes, expected at most %d",
                         (long long)number, shown, length, MAX_TOKEN_BYTES);
    if (same >= 0)
        return error_set(err, "\"%s\" is both token %d and token %lld", shown, same,
                         (long long)number);

    const Token *k = &t->tokens[number];
    return error_set(err, "\"%s\" and \"%s\" both have number %lld",
                     vocabulary_show(t->bytes + k->offset, k->length, other, sizeof other), shown,
                     (long long)number);
}

bool vocabulary_add(Tokenizer *t, int64_t number, const char *bytes, size_t length, bool ordinary,
                    Error *err) {
    if (!check_new(t, number, bytes, length, ordinary, err)) return false;

    if (number >= t->token_capacity) {
        // Pages of zeros that are not touched cost nothing: a file may name a far number.
        const int64_t capacity = max_i64(1024, 2 * number);
        Token *grown = memory_zeroed(capacity, sizeof *grown);
        if (t->count > 0) memcpy(grown, t->tokens, (size_t)t->count * sizeof *grown);
        free(t->tokens);
        t->tokens = grown;
        t->token_capacity = (int32_t)capacity;
    }

    t->bytes = memory_grow(t->bytes, &t->byte_capacity, t->byte_count + (int64_t)length, 1);
    if (ordinary && 2 * (t->ordinary_count + 1) > t->by_bytes_capacity) { // the hash table grows
        t->by_bytes = memory_grow(t->by_bytes, &t->by_bytes_capacity,
                                  max_i64(2 * t->by_bytes_capacity, 1024), sizeof *t->by_bytes);
        memset(t->by_bytes, 0xFF, (size_t)t->by_bytes_capacity * sizeof *t->by_bytes);
        for (int32_t i = 0; i < t->count; i++)
            if (t->tokens[i].ordinary) index_token(t, i);
    }

    memcpy(t->bytes + t->byte_count, bytes, length);
    t->tokens[number] = (Token){.offset = (size_t)t->byte_count,
                                .length = (uint32_t)length,
                                .known = true,
                                .ordinary = ordinary};
    t->byte_count += (int64_t)length;
    if (number >= t->count) t->count = (int32_t)number + 1;
    if (!ordinary) return true;
    t->ordinary_count++;
    index_token(t, (int32_t)number);
    return true;
}

bool vocabulary_add_added(Tokenizer *t, int64_t number, const char *text, bool special,
                          bool normalized, Error *err) {
    size_t length = strlen(text);
    bool known = number >= 0 && number < t->count && t->tokens[number].known;
    if (known) {
        const Token *k = &t->tokens[number];
        if (k->length != length || memcmp(t->bytes + k->offset, text, length) != 0 || k->added)
            return check_new(t, number, text, length, false,
                             err); // names the two that have this number
    } else if (!vocabulary_add(t, number, text, length, false, err)) {
        return false;
    }
    Token *token = &t->tokens[number];
    token->added = true;
    token->special = special;
    token->normalized = normalized;
    if (strcmp(text, END_OF_TEXT) == 0) t->eot = (int32_t)number;
    return true;
}

int32_t vocabulary_find_special(const Tokenizer *t, const char *text) {
    const size_t length = strlen(text);
    for (int32_t i = 0; i < t->count; i++) {
        const Token *k = &t->tokens[i];
        if (k->special && k->length == length && memcmp(t->bytes + k->offset, text, length) == 0)
            return i;
    }
    return -1;
}

// ------------------------------------------------------------------------------------------ merges

bool vocabulary_merge(Tokenizer *t, int32_t left, int32_t right, uint32_t rank, Error *err) {
    const Token *a = &t->tokens[left], *b = &t->tokens[right];
    char both[2 * MAX_TOKEN_BYTES], shown[SHOWN];
    memcpy(both, t->bytes + a->offset, a->length);
    memcpy(both + a->length, t->bytes + b->offset, b->length);
    size_t length = (size_t)a->length + b->length;
    int32_t merged = vocabulary_find(t, both, length);
    if (merged < 0)
        return error_set(err, "together they are \"%s\", which is not a token",
                         vocabulary_show(both, length, shown, sizeof shown));
    const MergeRule *known;
    MergeRule rule = {.pair = merge_pair(left, right), .rank = rank, .merged = merged};
    if (!merge_table_add(&t->merges, rule, &known))
        return error_set(err, "the same two were merged before, by number %u", known->rank);
    return true;
}

// -------------------------------------------------------------------------------------- completion

int64_t vocabulary_merge_bytes(const Tokenizer *t, int32_t token, uint32_t below,
                               int32_t parts[MAX_TOKEN_BYTES]) {
    const Token *k = &t->tokens[token];
    for (uint32_t i = 0; i < k->length; i++)
        parts[i] = t->byte_tokens[(unsigned char)t->bytes[k->offset + i]];
    return merge_tokens(&t->merges, parts, k->length, below, 1);
}

bool vocabulary_check_merges(const Tokenizer *t, Error *err) {
    // of the first merge that makes a token
    uint32_t *rank = memory_new(t->count + 1, sizeof *rank);
    for (int32_t i = 0; i <= t->count; i++) rank[i] = UINT32_MAX;
    for (int64_t i = 0; i < t->merges.capacity; i++) {
        const MergeRule *m = &t->merges.slots[i];
        if (m->pair != MERGE_NO_PAIR && m->rank < rank[m->merged]) rank[m->merged] = m->rank;
    }

    int32_t missing = 0, first = -1;
    uint32_t below = UINT32_MAX; // the first rank of a merge that makes a later token
    for (int32_t i = t->count - 1; i >= 0; i--) {
        const Token *k = &t->tokens[i];
        const char *spelled = t->bytes + k->offset, last = spelled[k->length - 1];
        // <s>, [PAD]: a vocab.json does not mark them as special.
        const bool is_special =
            (*spelled == '<' && last == '>') || (*spelled == '[' && last == ']');
        // NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): all count + 1 are set
        // above
        const bool made = rank[i] < UINT32_MAX;
        if (rank[i] < below) below = rank[i];
        if (made || !k->ordinary || k->added || k->length == 1 || is_special) continue;

        // If the merges of the tokens before it leave two parts, one more would make it; else only
        // a whole piece becomes it.
        int32_t parts[MAX_TOKEN_BYTES];
        if (t->whole_pieces && vocabulary_merge_bytes(t, i, below, parts) != 2) continue;
        missing++;
        first = i;
    }

    free(rank);
    if (missing == 0) return true;
    char shown[SHOWN];
    const Token *k = &t->tokens[first];
    return error_set(err,
                     "no merge makes %d of the %d tokens, such as \"%s\" (token %d): the merges "
                     "are truncated, or belong "
                     "to another vocabulary",
                     missing, t->count,
                     vocabulary_show(t->bytes + k->offset, k->length, shown, sizeof shown), first);
}

static void index_added(Tokenizer *t) {
    Spelling *list = memory_new(t->count, sizeof *list);
    for (int pass = 0; pass < NUM_ADDED_PASSES; pass++)
        for (int with_special = 0; with_special < 2; with_special++) {
            int64_t n = 0;
            for (int32_t i = 0; i < t->count; i++) {
                const Token *k = &t->tokens[i];
                if (!k->added || k->normalized != (pass == ADDED_NORMALIZED) ||
                    (k->special && !with_special))
                    continue;
                list[n++] = (Spelling){t->bytes + k->offset, (int32_t)k->length, i};
            }
            t->added[pass][with_special] = spellings_new(list, n);
        }
    free(list);
    t->all_added_special =
        !t->added[ADDED_NOT_NORMALIZED][false] && !t->added[ADDED_NORMALIZED][false];
}

bool vocabulary_finish(Tokenizer *t, Error *err) {
    int32_t eot = vocabulary_find(t, END_OF_TEXT, strlen(END_OF_TEXT));
    if (t->eot < 0 && eot >= 0) { // a vocab.json does not mark special tokens
        t->tokens[eot].added = t->tokens[eot].special = true;
        t->eot = eot;
    }
    if (t->eot < 0) t->eot = vocabulary_find_special(t, "<|end_of_text|>"); // Llama 3's
    if (t->eot < 0) t->eot = vocabulary_find_special(t, "</s>");            // BLOOM's

    for (int32_t i = 0; i < t->count; i++)
        if (!t->tokens[i].known)
            return error_set(err, "no token has number %d, expected each of 0 to %d once", i,
                             t->count - 1);
    for (int byte = 0; byte < 256; byte++) {
        t->byte_tokens[byte] = vocabulary_find(t, &(char){(char)byte}, 1);
        if (t->byte_tokens[byte] < 0)
            return error_set(
                err, "no token for the byte 0x%02x: not a byte-level vocabulary, which has all 256",
                (unsigned)byte);
    }

    index_added(t);
    t->char_table = char_kinds_table(err);
    return t->char_table != NULL;
}
