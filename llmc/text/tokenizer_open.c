// See tokenizer_open.h.
#include "llmc/text/tokenizer_open.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/file.h"
#include "llmc/base/foreign_file.h"
#include "llmc/base/json.h"
#include "llmc/base/path.h"
#include "llmc/text/tokenizer_json.h"
#include "llmc/text/tokenizer_ranks.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// ---------------------------------------------------------------------------------------- settings

// The files that transformers reads next to a tokenizer.json or vocab.json. What they say must be
// what the tokenizer does: a token that it does not have, and a setting that would give other
// tokens, are refused by name. Nothing is taken from them.
static const size_t MAX_SETTINGS_BYTES = (size_t)16 << 20;

// number -1: any.
static bool check_token(const Tokenizer *t, const char *text, int64_t number, Error *err) {
    char shown[64];
    const size_t length = strlen(text);
    const int64_t last = number < 0 ? t->count - 1 : number;
    for (int64_t i = max_i64(0, number); i <= last && i < t->count; i++) {
        const Token *k = &t->tokens[i];
        if (k->length == length && memcmp(t->bytes + k->offset, text, length) == 0) return true;
    }
    vocabulary_show(text, length, shown, sizeof shown);
    if (number >= 0)
        return error_set(err, "\"%s\" has number %lld, but not in the vocabulary", shown,
                         (long long)number);
    return error_set(err, "\"%s\" is not in the vocabulary", shown);
}

static const char save_again[] = "save the tokenizer again as a tokenizer.json that has it";

static bool check_off_flag(const cJSON *object, const char *key, Error *err) {
    const cJSON *item;
    char found[64];
    if (!json_find(object, key, &item, err)) return false;
    if (item && !cJSON_IsNull(item) && !cJSON_IsFalse(item))
        return error_set(err, "\"%s\" is %s, expected false, as GPT-2 has", key,
                         json_describe(item, found, sizeof found));
    return true;
}

// "text", or {"content": "text", "lstrip": ...}; anything else names no token.
static bool check_named(const Tokenizer *t, const cJSON *item, int64_t number, Error *err) {
    const char *text = cJSON_GetStringValue(item);
    if (cJSON_IsObject(item)) {
        text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "content"));
        if (!check_off_flag(item, "lstrip", err) || !check_off_flag(item, "rstrip", err) ||
            !check_off_flag(item, "single_word", err))
            return false;
    }
    if (text && !check_token(t, text, number, err))
        return error_set(err, "%s; %s", err->text, save_again);
    return true;
}

// "bos_token": ..., "additional_special_tokens": [...]
static bool check_special(const Tokenizer *t, const cJSON *root, Error *err) {
    static const char *const keys[] = {"bos_token", "eos_token", "unk_token",  "sep_token",
                                       "pad_token", "cls_token", "mask_token", NULL};
    static const char *const lists[] = {"additional_special_tokens", "extra_special_tokens", NULL};
    for (int i = 0; keys[i]; i++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, keys[i]);
        if (item && !check_named(t, item, -1, err)) return error_prefix(err, "%s", keys[i]);
    }
    for (int i = 0; lists[i]; i++) {
        const cJSON *item, *list = cJSON_GetObjectItemCaseSensitive(root, lists[i]);
        cJSON_ArrayForEach(item, list) {
            if (!check_named(t, item, -1, err)) return error_prefix(err, "%s", lists[i]);
        }
    }
    return true;
}

static bool check_tokenizer_config(const Tokenizer *t, const cJSON *root, Error *err) {
    static const char *const off[] = {"add_prefix_space", "add_bos_token",        "add_eos_token",
                                      "do_lower_case",    "split_special_tokens", NULL};
    const cJSON *item, *added = cJSON_GetObjectItemCaseSensitive(root, "added_tokens_decoder");
    for (int i = 0; off[i]; i++) {
        // says what the template does
        const bool is_template = t->begin >= 0 && strcmp(off[i], "add_bos_token") == 0;
        if (!is_template && !check_off_flag(root, off[i], err)) return false;
    }
    cJSON_ArrayForEach(item, added) {
        char *end;
        const long number = strtol(item->string, &end, 10);
        if (*end || !check_named(t, item, number, err))
            return error_prefix(err, "added_tokens_decoder");
    }
    return check_special(t, root, err);
}

// {"text": number}
static bool check_added(const Tokenizer *t, const cJSON *root, Error *err) {
    const cJSON *item;
    cJSON_ArrayForEach(item, root) {
        int64_t number;
        if (!json_int_value(item, 0, INT32_MAX, &number))
            return error_set(err, "its values are not all numbers");
        if (!check_token(t, item->string, number, err))
            return error_set(err, "%s; %s", err->text, save_again);
    }
    return true;
}

static bool check_settings(const Tokenizer *t, const char *path, Error *err) {
    static const struct {
        const char *name;
        bool (*check)(const Tokenizer *t, const cJSON *root, Error *err);
    } files[] = {{"tokenizer_config.json", check_tokenizer_config},
                 {"special_tokens_map.json", check_special},
                 {"added_tokens.json", check_added}};
    char *directory = path_parent(path);
    bool ok = true;
    for (size_t i = 0; ok && i < sizeof files / sizeof *files; i++) {
        char *file = path_join(directory, files[i].name);
        if (file_exists(file)) {
            cJSON *root = json_parse_file(file, MAX_SETTINGS_BYTES, err);
            ok = root != NULL;
            if (ok && !files[i].check(t, root, err)) ok = error_prefix(err, "%s", file);
            cJSON_Delete(root);
        }
        free(file);
    }
    free(directory);
    return ok;
}

// ------------------------------------------------------------------------------------------- files

static Tokenizer *open_file(const char *path, Error *err) {
    int64_t size;
    size_t n;
    uint32_t magic = 0;
    const int fd = file_open(path, &size, err);
    if (fd < 0) return NULL;
    const bool is_llmc = size >= (int64_t)sizeof magic &&
                         file_read_at(fd, path, 0, &magic, sizeof magic, NULL) &&
                         magic == LLMC_TOKENIZER_MAGIC;

    // Names the kind of file before any complaint about its size: weights are large.
    const bool ok = is_llmc || foreign_file_check_open("a tokenizer", path, fd, true, err);
    close(fd);
    char *text = ok ? file_read_all(path, MAX_TOKENIZER_BYTES, &n, err) : NULL;
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
    if (t) REQUIRE_MEMORY((t->path = strdup(path)) != NULL, "a path");
    if (!t || !is_object || check_settings(t, path, err)) return t;
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
                  "%s: no tokenizer in this directory, expected tokenizer.json, or vocab.json and "
                  "merges.txt, or "
                  "encoder.json and vocab.bpe",
                  path);
    free(file);
    return t;
}

Tokenizer *tokenizer_named(const char *name, Error *err) {
    if (strcmp(name, "bytes") == 0) return tokenizer_bytes(err);
    return tokenizer_open(name, err);
}
