// See tokenizer_ranks.h.
#include "llmc/text/tokenizer_ranks.h"

#include "llmc/text/tokenizer.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { LLMC_HEADER_BYTES = 1024, GPT2_EOT = 50256, P50K_RANKS = 50280 };

static Tokenizer *finish_ranks(Tokenizer *t, const char *path, bool ok, Error *err) {
    const int32_t same = ok ? vocabulary_find(t, END_OF_TEXT, strlen(END_OF_TEXT)) : -1;
    if (same >= 0)
        ok = error_set(err, "\"%s\" is both token %d and token %d", END_OF_TEXT, same, t->eot);
    if (ok) ok = vocabulary_finish(t, err);
    t->whole_pieces = t->by_rank = true;

    // All merges: any two tokens that together make a token, lowest first.
    for (int32_t token = 0; ok && token < t->count; token++) {
        const Token *k = &t->tokens[token];
        const char *bytes = t->bytes + k->offset;
        for (uint32_t cut = 1; ok && k->ordinary && cut < k->length; cut++) {
            int32_t left = vocabulary_find(t, bytes, cut), right = -1;
            if (left >= 0) right = vocabulary_find(t, bytes + cut, k->length - cut);
            if (right >= 0) ok = vocabulary_merge(t, left, right, (uint32_t)token, err);
        }
    }

    if (ok) return t;
    error_prefix(err, "%s", path);
    tokenizer_free(t);
    return NULL;
}

// ----------------------------------------------------------------------------- tiktoken rank files

// n characters, a multiple of four, padded with "="; out has space for 3 n / 4. -1: not base64.
static int base64_decode(const char *text, size_t n, char *out) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    int length = 0;
    if (n == 0 || n % 4 != 0) return -1;
    size_t filling = text[n - 1] == '=';
    if (filling > 0 && text[n - 2] == '=') filling = 2;
    for (size_t at = 0; at < n; at += 4) {
        uint32_t bits = 0;
        for (size_t i = at; i < at + 4; i++) {
            const char *digit = digits;
            if (i < n - filling) digit = memchr(digits, text[i], sizeof digits - 1);
            if (!digit) return -1;
            bits = bits << 6 | (uint32_t)(digit - digits);
        }
        for (int i = 2; i >= 0; i--) out[length++] = (char)(bits >> (8 * i));
    }
    return length - (int)filling;
}

// "base64 rank", n bytes.
static bool read_rank(Tokenizer *t, const char *line, size_t n, Error *err) {
    char bytes[MAX_TOKEN_BYTES + 4], shown[64];
    const char *space = memchr(line, ' ', n);
    const size_t encoded = space ? (size_t)(space - line) : n;
    if (encoded > MAX_TOKEN_BYTES / 3 * 4)
        return error_set(err, "longer than a token of %d bytes", MAX_TOKEN_BYTES);
    int length = -1;
    char *end = NULL;
    int64_t rank = 0;
    if (space && isdigit((unsigned char)space[1])) {
        length = base64_decode(line, encoded, bytes);
        rank = strtoll(space + 1, &end, 10);
    }
    if (length < 0 || end != line + n)
        return error_set(err, "\"%s\", expected base64, a space and a rank, as in a tiktoken file",
                         vocabulary_show(line, n, shown, sizeof shown));
    return vocabulary_add(t, rank, bytes, (size_t)length, true, err);
}

static bool read_rank_lines(Tokenizer *t, const char *text, size_t n, Error *err) {
    // Files of this many ranks are cut into pieces by other patterns than GPT-2's.
    static const struct {
        int64_t ranks;
        const char *name;
    } others[] = {{100256, "cl100k_base"},
                  {199998, "o200k_base"},
                  {200000, "o200k_base"},
                  {128000, "Llama 3's"},
                  {151643, "Qwen's"}};

    const char *line;
    size_t at = 0, length;
    for (unsigned number = 1; vocabulary_line(text, n, &at, &line, &length); number++)
        if (length > 0 && !read_rank(t, line, length, err))
            return error_prefix(err, "line %u", number);

    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (t->ordinary_count == others[i].ranks)
            return error_set(
                err,
                "%lld ranks: this is %s, whose pattern is not GPT-2's; expected gpt2, r50k_base or "
                "p50k_base, or ranks of your own",
                (long long)t->ordinary_count, others[i].name);
    if (t->count <= 0) return error_set(err, "empty, expected a tokenizer");
    return true;
}

Tokenizer *tokenizer_read_ranks(const char *path, const char *text, size_t bytes, Error *err) {
    Tokenizer *t = vocabulary_new("byte-level BPE of %s", path);
    bool ok = read_rank_lines(t, text, bytes, err);
    // p50k_base keeps GPT-2's end-of-text and continues after it; otherwise it is the number after
    // the last rank.
    int64_t eot = t->count;
    if (ok && t->ordinary_count == P50K_RANKS && !t->tokens[GPT2_EOT].known) eot = GPT2_EOT;
    if (ok) ok = vocabulary_add_added(t, eot, END_OF_TEXT, true, false, err);
    return finish_ranks(t, path, ok, err);
}

// ------------------------------------------------------------------------------------------- llm.c

static bool read_llmc_tokens(Tokenizer *t, const char *text, size_t n, Error *err) {
    uint32_t header[4];
    if (n < LLMC_HEADER_BYTES)
        return error_set(err, "%zu bytes, expected a header of %d: truncated", n,
                         LLMC_HEADER_BYTES);

    memcpy(header, text, sizeof header);
    if (header[1] != 1 && header[1] != 2)
        return error_set(err, "header: llm.c tokenizer version %u, expected 1 or 2", header[1]);

    const int64_t tokens = header[2];
    int64_t eot = GPT2_EOT;
    if (header[1] != 1) eot = header[3]; // version 1 has no field for it: always GPT-2's

    if (tokens < 257 || tokens > MAX_TOKENS)
        return error_set(err, "header: %lld tokens, expected 257 to %d", (long long)tokens,
                         MAX_TOKENS);
    if (eot >= tokens)
        return error_set(err, "header: end-of-text is %lld, expected a number below %lld",
                         (long long)eot, (long long)tokens);

    size_t at = LLMC_HEADER_BYTES;
    for (int64_t i = 0; i < tokens; i++) {
        const size_t length = at < n ? (unsigned char)text[at] : 0;
        if (at >= n || length > n - at - 1)
            return error_set(err, "token %lld of %lld at byte %zu: the file ends there",
                             (long long)i, (long long)tokens, at);

        // The file may spell end-of-text in any way: it never results from a text.
        bool ok;
        if (i == eot)
            ok = vocabulary_add_added(t, i, END_OF_TEXT, true, false, err);
        else
            ok = vocabulary_add(t, i, text + at + 1, length, true, err);
        if (!ok) return error_prefix(err, "byte %zu", at);
        at += 1 + length;
    }

    if (at != n)
        return error_set(err, "%zu bytes after the last of %lld tokens", n - at, (long long)tokens);
    return true;
}

Tokenizer *tokenizer_read_llmc(const char *path, const char *text, size_t bytes, Error *err) {
    Tokenizer *t = vocabulary_new("byte-level BPE of %s", path);
    return finish_ranks(t, path, read_llmc_tokens(t, text, bytes, err), err);
}
