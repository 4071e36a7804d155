// See tokenizer_open.h.
#include "llmc/text/tokenizer_open.h"

#include "llmc/base/file.h"
#include "llmc/base/foreign_file.h"
#include "llmc/base/path.h"
#include "llmc/text/tokenizer_json.h"
#include "llmc/text/tokenizer_ranks.h"
#include "llmc/text/tokenizer_settings.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static Tokenizer *open_file(const char *path, Error *err) {
    int64_t size;
    size_t n;
    uint32_t magic = 0;
    const int fd = file_open(path, &size, err);
    if (fd < 0) return NULL;
    const bool is_llmc = size >= (int64_t)sizeof magic && file_read_at(fd, path, 0, &magic, sizeof magic, NULL) &&
                         magic == LLMC_TOKENIZER_MAGIC;
    // Names the kind of file before any complaint about its size: weights are large.
    const bool ok = is_llmc || foreign_file_check_open("a tokenizer", path, fd, true, err);
    close(fd);
    char *text = NULL;
    if (ok) text = file_read_all(path, MAX_TOKENIZER_BYTES, &n, err);
    if (!text) return NULL;
    const bool is_object = !is_llmc && text[strspn(text, " \t\r\n")] == '{';
    Tokenizer *t;
    if (is_llmc)
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
    Tokenizer *t = NULL;
    if (file) t = open_file(file, err);
    if (!file)
        error_set(err,
                  "%s: no tokenizer in this directory, expected tokenizer.json, or vocab.json and merges.txt, or "
                  "encoder.json and vocab.bpe",
                  path);
    free(file);
    return t;
}

Tokenizer *tokenizer_named(const char *name, Error *err) {
    if (strcmp(name, "bytes") == 0) return tokenizer_bytes(err);
    return tokenizer_open(name, err);
}
