// A small vocabulary of known merges, in every form that tokenizer_open reads: token b < 256 is the
// byte b, then these, then end-of-text.
#pragma once
#include "llmc/text/alphabet.h"
#include "llmc/text/encoder.h"
#include "llmc/text/tokenizer_find.h"
#include "llmc/text/tokenizer_json.h"
#include "llmc/text/tokenizer_open.h"
#include "test/fixture.h"

#include <string.h>

static const struct {
    const char *left, *right;
} toy_merges[] = {
    {"h", "e"},   {"l", "l"}, {"he", "ll"},   {"hell", "o"}, {" ", "w"},   {"o", "r"},
    {" w", "or"}, {"l", "d"}, {" wor", "ld"}, {"a", "a"},    {"aa", "aa"}, {"\n", "\n"},
};
enum {
    TOY_MERGES = sizeof toy_merges / sizeof toy_merges[0],
    TOY_EOT = 256 + TOY_MERGES,
    TOY_VOCAB = TOY_EOT + 1
};

// Bytes in GPT-2's alphabet, in one of a few static buffers.
static inline const char *toy_spell(const char *bytes, size_t n) {
    static char buffers[4][64];
    static unsigned next;
    char *out = buffers[next++ % 4];
    out[alphabet_encode(bytes, n, out)] = '\0';
    return out;
}

// The bytes of token i < TOY_EOT into out; returns how many.
static inline size_t toy_bytes(int i, char out[16]) {
    if (i < 256) return out[0] = (char)i, 1;
    return (size_t)sprintf(out, "%s%s", toy_merges[i - 256].left, toy_merges[i - 256].right);
}

static inline FILE *toy_create(const char *path) {
    FILE *f = fopen(path, "w");
    if (!f) perror(path), abort();
    return f;
}

static inline void toy_close(FILE *f) {
    if (fclose(f) != 0) perror("toy vocabulary"), abort();
}

// {"token": number, ...} as in vocab.json, end-of-text included.
static inline void toy_write_vocab(FILE *f) {
    fprintf(f, "{");
    for (int i = 0; i < TOY_EOT; i++) {
        char bytes[16];
        size_t n = toy_bytes(i, bytes);
        const char *spelled = toy_spell(bytes, n);
        fprintf(f, "\"%s%s\": %d,\n", *spelled == '"' || *spelled == '\\' ? "\\" : "", spelled, i);
    }
    fprintf(f, "\"<|endoftext|>\": %d}", TOY_EOT);
}

static inline void toy_write_vocab_json(const char *path) {
    FILE *f = toy_create(path);
    toy_write_vocab(f);
    toy_close(f);
}

static inline void toy_write_merges(const char *path) {
    FILE *f = toy_create(path);
    fprintf(f, "#version: 0.2\n");
    for (int i = 0; i < TOY_MERGES; i++)
        fprintf(f, "%s %s\n", toy_spell(toy_merges[i].left, strlen(toy_merges[i].left)),
                toy_spell(toy_merges[i].right, strlen(toy_merges[i].right)));
    toy_close(f);
}

// pairs: ["a", "b"] instead of "a b".
static inline void toy_write_json(const char *path, bool pairs) {
    FILE *f = toy_create(path);
    fprintf(f,
            "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null, \"added_tokens\": "
            "[{\"id\": %d, "
            "\"content\": \"<|endoftext|>\", \"single_word\": false, \"lstrip\": false, "
            "\"rstrip\": false, "
            "\"normalized\": false, \"special\": true}],\n\"normalizer\": null, \"pre_tokenizer\": "
            "{\"type\": "
            "\"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": "
            "true},\n"
            "\"post_processor\": null, \"decoder\": {\"type\": \"ByteLevel\"},\n\"model\": "
            "{\"type\": \"BPE\", "
            "\"dropout\": null, \"unk_token\": null, \"continuing_subword_prefix\": \"\", "
            "\"end_of_word_suffix\": "
            "\"\", \"fuse_unk\": false, \"vocab\": ",
            TOY_EOT);

    toy_write_vocab(f);
    fprintf(f, ",\n\"merges\": [");
    for (int i = 0; i < TOY_MERGES; i++)
        fprintf(f, pairs ? "%s[\"%s\", \"%s\"]" : "%s\"%s %s\"", i ? ",\n" : "",
                toy_spell(toy_merges[i].left, strlen(toy_merges[i].left)),
                toy_spell(toy_merges[i].right, strlen(toy_merges[i].right)));
    fprintf(f, "]}}\n");
    toy_close(f);
}

// A line of a tiktoken file.
static inline void write_rank(FILE *f, const char *bytes, size_t n, int rank) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t at = 0; at < n; at += 3) {
        uint32_t bits = 0;
        for (size_t k = 0; k < 3; k++)
            bits = bits << 8 | (at + k < n ? (unsigned char)bytes[at + k] : 0u);
        for (size_t k = 0; k < 4; k++)
            fputc(at + k <= n ? digits[bits >> (18 - 6 * k) & 63] : '=', f);
    }
    fprintf(f, " %d\n", rank);
}

static inline void toy_write_ranks(const char *path) {
    FILE *f = toy_create(path);
    for (int i = 0; i < TOY_EOT; i++) {
        char bytes[16];
        const size_t n = toy_bytes(i, bytes);
        write_rank(f, bytes, n, i);
    }
    toy_close(f);
}

static inline void toy_write_llmc(const char *path, uint32_t version) {
    FILE *f = toy_create(path);
    uint32_t header[256] = {20240328, version, TOY_VOCAB, TOY_EOT};
    if (fwrite(header, sizeof header, 1, f) != 1) perror(path), abort();
    for (int i = 0; i < TOY_VOCAB; i++) {
        char bytes[16] = "<|endoftext|>";
        size_t n = i == TOY_EOT ? strlen(bytes) : toy_bytes(i, bytes);
        fputc((int)n, f);
        if (fwrite(bytes, 1, n, f) != n) perror(path), abort();
    }
    toy_close(f);
}
