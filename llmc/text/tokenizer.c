// What a Tokenizer says about itself, and which reader opens a file. See tokenizer.h.
#include "llmc/text/tokenizer.h"

#include "llmc/base/atomic_file.h"
#include "llmc/text/tokenizer_vocabulary.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

enum { LLMC_MAGIC = 20240328 };

Tokenizer *tokenizer_bytes(Error *err) {
    Tokenizer *t = vocabulary_new("bytes", err);
    bool ok = t != NULL;
    for (int i = 0; ok && i < BYTE_EOT; i++) ok = vocabulary_add(t, i, &(char){(char)i}, 1, true, err);
    if (ok && vocabulary_add_added(t, BYTE_EOT, END_OF_TEXT, true, false, err) && vocabulary_finish(t, err)) return t;
    tokenizer_free(t);
    return NULL;
}

int64_t tokenizer_vocab(const Tokenizer *t) { return t->count; }
int32_t tokenizer_eot(const Tokenizer *t) { return t->eot; }
const char *tokenizer_name(const Tokenizer *t) { return t->name; }
bool tokenizer_is_special(const Tokenizer *t, int32_t token) {
    return token >= 0 && token < t->count && t->tokens[token].special;
}

const char *tokenizer_decode(const Tokenizer *t, int32_t token, size_t *length) {
    bool known = token >= 0 && token < t->count;
    *length = known ? t->tokens[token].length : 0;
    return known ? t->bytes + t->tokens[token].offset : "";
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
    uint64_t fingerprint = XXH3_64bits_digest(hash);
    XXH3_freeState(hash);
    return fingerprint;
}

// ---------------------------------------------------------------------------------------------------------- opening

// What a file is that is no tokenizer, by its first bytes; NULL if that is not known.
static const char *foreign_file(const char *text, size_t n) {
    static const struct {
        uint32_t magic;
        const char *what;
    } words[] = {
        {20240520, "a token shard (training data for -i or -j)"},
        {20240522, "an evaluation set"},
        {20240326, "an llm.c model"},
        {20240527, "llm.c's optimizer state"},
    };
    uint32_t magic = 0;
    if (n >= sizeof magic) memcpy(&magic, text, sizeof magic);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (magic == words[i].magic) return words[i].what;
    if (n > 9 && text[8] == '{' && text[6] == 0 && text[7] == 0) return "a safetensors file (weights)";
    if (n > 8 && memcmp(text, "#version", 8) == 0)
        return "the merges of a vocabulary: give the vocab.json (or encoder.json) beside it, or their directory";
    if (n > 2 && memcmp(text, "\x1f\x8b", 2) == 0) return "compressed by gzip: unpack it first";
    if (n > 4 && memcmp(text, "\x28\xb5\x2f\xfd", 4) == 0) return "compressed by zstd: unpack it first";
    if (n > 4 && memcmp(text, "PK\x03\x04", 4) == 0) return "a zip archive (or PyTorch's weights)";
    return NULL;
}

static Tokenizer *read_file(const char *path, const char *text, size_t n, Error *err) {
    uint32_t magic = 0;
    if (n >= sizeof magic) memcpy(&magic, text, sizeof magic);
    if (magic == LLMC_MAGIC) return tokenizer_read_llmc(path, text, n, err);
    size_t begin = strspn(text, " \t\r\n");
    if (text[begin] == '{') return tokenizer_read_json(path, text, n, err);
    return tokenizer_read_ranks(path, text, n, err);
}

// Says what a file is before its size is complained of: weights are large.
static bool check_head(const char *path, Error *err) {
    char head[16];
    struct stat st;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) return error_set(err, "%s: not a plain file", path);
    FILE *f = fopen(path, "rbe");
    if (!f) return error_set(err, "%s: cannot open: %s", path, strerror(errno));
    size_t n = fread(head, 1, sizeof head, f);
    fclose(f);
    const char *what = foreign_file(head, n);
    return !what || error_set(err, "%s: not a tokenizer but %s", path, what);
}

static Tokenizer *open_file(const char *path, Error *err) {
    size_t n;
    if (!check_head(path, err)) return NULL;
    char *text = file_read_all(path, MAX_TOKENIZER_BYTES, &n, err);
    if (!text) return NULL;
    Tokenizer *t = read_file(path, text, n, err);
    free(text);
    return t;
}

static Tokenizer *open_directory(const char *path, Error *err) {
    static const char *const names[] = {"tokenizer.json", "vocab.json", "encoder.json"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char *file = path_join(path, names[i]);
        Tokenizer *t = NULL;
        bool exists = file_exists(file);
        if (exists) t = open_file(file, err);
        free(file);
        if (exists) return t;
    }
    error_set(err,
              "%s: no tokenizer in this directory, expected tokenizer.json, or vocab.json and merges.txt, or "
              "encoder.json and vocab.bpe",
              path);
    return NULL;
}

Tokenizer *tokenizer_open(const char *path, Error *err) {
    struct stat st;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) return open_directory(path, err);
    return open_file(path, err);
}
