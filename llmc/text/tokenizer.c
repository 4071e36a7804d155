// The properties of a Tokenizer, where texts may be cut, and which reader opens a file. See tokenizer.h.
#include "llmc/text/tokenizer.h"

#include "llmc/base/directory.h"
#include "llmc/base/file.h"
#include "llmc/base/foreign_file.h"
#include "llmc/base/path.h"
#include "llmc/text/pieces.h"
#include "llmc/text/tokenizer_json.h"
#include "llmc/text/tokenizer_ranks.h"
#include "llmc/text/tokenizer_settings.h"
#include "llmc/text/vocabulary.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

Tokenizer *tokenizer_bytes(Error *err) {
    Tokenizer *t = vocabulary_new("bytes", err);
    bool ok = t != NULL;
    for (int i = 0; ok && i < BYTE_EOT; i++) ok = vocabulary_add(t, i, &(char){(char)i}, 1, true, err);
    if (ok && vocabulary_add_added(t, BYTE_EOT, END_OF_TEXT, true, false, err) && vocabulary_finish(t, err)) return t;
    tokenizer_free(t);
    return NULL;
}

void tokenizer_free(Tokenizer *t) {
    if (!t) return;
    merge_table_free(&t->merges);
    free(t->name);
    free(t->tokens);
    free(t->bytes);
    free(t->by_bytes);
    free(t->added_tokens);
    free(t->char_table);
    free(t);
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

// ---------------------------------------------------------------------------------------------------------------- cuts

// Tells whether the spelling of a non-special added token may cross m, as far as the n bytes show.
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

// Tells whether m is the beginning of a line after "\r\n". Before a word these are two pieces, at
// the end of a text they are one. The tokens are the same, unless the vocabulary has a token
// "\r\n".
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

// ---------------------------------------------------------------------------------------------------------- opening

// Names the kind of file before any complaint about its size: weights are large.
static bool check_tokenizer_file(const char *path, Error *err) {
    int64_t size;
    const int fd = file_open(path, &size, err);
    if (fd < 0) return false;
    uint32_t magic = 0;
    const bool is_llmc = size >= (int64_t)sizeof magic && file_read_at(fd, path, 0, &magic, sizeof magic, NULL) &&
                         magic == LLMC_TOKENIZER_MAGIC;
    const bool ok = is_llmc || foreign_file_check_open("a tokenizer", path, fd, true, err);
    close(fd);
    return ok;
}

static Tokenizer *open_file(const char *path, Error *err) {
    size_t n;
    char *text = check_tokenizer_file(path, err) ? file_read_all(path, MAX_TOKENIZER_BYTES, &n, err) : NULL;
    if (!text) return NULL;
    uint32_t magic = 0;
    if (n >= sizeof magic) memcpy(&magic, text, sizeof magic);
    const bool is_object = text[strspn(text, " \t\r\n")] == '{';
    Tokenizer *t;
    if (magic == LLMC_TOKENIZER_MAGIC)
        t = tokenizer_read_llmc(path, text, n, err);
    else if (is_object)
        t = tokenizer_read_json(path, text, n, err);
    else
        t = tokenizer_read_ranks(path, text, n, err);
    free(text);
    if (!t || !is_object || tokenizer_check_settings(t, path, err)) return t;
    tokenizer_free(t);
    return NULL;
}

bool tokenizer_is_directory(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

char *tokenizer_file_in(const char *directory) {
    static const char *const names[] = {"tokenizer.json", "vocab.json", "encoder.json"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char *path = path_join(directory, names[i]);
        if (file_exists(path)) return path;
        free(path);
    }
    return NULL;
}

Tokenizer *tokenizer_open(const char *path, Error *err) {
    if (!tokenizer_is_directory(path)) return open_file(path, err);
    char *file = tokenizer_file_in(path);
    Tokenizer *t = file ? open_file(file, err) : NULL;
    if (!file)
        error_set(err,
                  "%s: no tokenizer in this directory, expected tokenizer.json, or vocab.json and merges.txt, or "
                  "encoder.json and vocab.bpe",
                  path);
    free(file);
    return t;
}

Tokenizer *tokenizer_named(const char *name, Error *err) {
    return strcmp(name, "bytes") == 0 ? tokenizer_bytes(err) : tokenizer_open(name, err);
}
