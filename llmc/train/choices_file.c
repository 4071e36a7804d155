// Multiple-choice files: finding, reading and checking them. See choices.h for their form.
// Owns the bytes of every file; a record that was not checked is never handed out. Knows nothing of models.
#include "llmc/train/choices_file.h"

#include "llmc/base/atomic_file.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAGIC = 20240522, VERSION = 1, HEADER_BYTES = 1024, EXAMPLE_BEGIN = 65535 };
// Words of a record before the context's tokens, and the fewest a record may have: contexts and completions of one.
enum { W_BEGIN, W_BYTES, W_INDEX, W_LABEL, W_COMPLETIONS, W_CONTEXT, RECORD_HEAD, RECORD_LEAST = RECORD_HEAD + 5 };
// Far above any benchmark (HellaSwag has 4 MB), far below the memory of any machine.
enum { MOST_BYTES = 1 << 30 };

struct ChoiceSet {
    char *name;
    char *bytes;     // the file
    uint16_t *words; // behind the header
    int64_t *starts; // (count) in words
    int64_t count;
};

const char *choices_name(const ChoiceSet *set) { return set->name; }
int64_t choices_count(const ChoiceSet *set) { return set->count; }

ChoiceExample choices_example(const ChoiceSet *set, int64_t i) {
    const uint16_t *w = set->words + set->starts[i];
    ChoiceExample e = {.label = w[W_LABEL], .completions = w[W_COMPLETIONS]};
    e.context_tokens = w[W_CONTEXT], e.context = w + RECORD_HEAD;
    w = e.context + e.context_tokens;
    for (int k = 0; k < e.completions; k++) {
        e.completion_tokens[k] = *w, e.completion[k] = w + 1;
        w += 1 + *w;
    }
    return e;
}

// ----------------------------------------------------------------------------------------------------------- checking

// What a message says first: the file and the example.
typedef struct {
    const char *path;
    int64_t example;
    Error *err;
} Place;

#define WRONG(place, format, ...)                                                                                      \
    error_set((place)->err, "%s: example %lld: " format, (place)->path, (long long)(place)->example, __VA_ARGS__)

static bool check_head(const uint16_t *w, int64_t words_left, int64_t longest, const Place *at) {
    if (words_left < RECORD_LEAST)
        return WRONG(at, "the file ends here, %lld bytes are left: it is cut; copy or make it again",
                     (long long)words_left * 2);
    if (w[W_BEGIN] != EXAMPLE_BEGIN)
        return WRONG(at, "begins with %d, expected %d: the file is damaged", w[W_BEGIN], EXAMPLE_BEGIN);
    if (w[W_BYTES] % 2 != 0 || w[W_BYTES] < RECORD_LEAST * 2)
        return WRONG(at, "bytes of the record: %d, expected an even number from %d on", w[W_BYTES], RECORD_LEAST * 2);
    if (w[W_BYTES] > words_left * 2)
        return WRONG(at, "bytes of the record: %d, but %lld are left: the file is cut; copy or make it again",
                     w[W_BYTES], (long long)words_left * 2);
    if (w[W_BYTES] > longest)
        return WRONG(at, "bytes of the record: %d, but header field 3 says that the longest has %lld", w[W_BYTES],
                     (long long)longest);
    if (w[W_INDEX] != (at->example & 0xFFFF))
        return WRONG(at, "index: %d, expected %lld", w[W_INDEX], (long long)(at->example & 0xFFFF));
    if (w[W_COMPLETIONS] < 2 || w[W_COMPLETIONS] > CHOICES_MOST)
        return WRONG(at, "number of completions: %d, expected 2 to %d", w[W_COMPLETIONS], CHOICES_MOST);
    if (w[W_LABEL] >= w[W_COMPLETIONS])
        return WRONG(at, "label: %d, expected less than the number of completions, %d", w[W_LABEL], w[W_COMPLETIONS]);
    return true;
}

// One text of the record, a count and that many tokens, at *w; moves *w behind it.
static bool check_tokens(const char *what, const uint16_t **w, const uint16_t *end, int64_t V, const Place *at) {
    const int64_t left = end - *w - 1, n = left < 0 ? 0 : **w;
    if (left < 0 || n > left)
        return WRONG(at, "tokens of the %s: %lld, but the record has room for %lld", what, (long long)n,
                     (long long)(left < 0 ? 0 : left));
    if (n == 0) return WRONG(at, "tokens of the %s: 0, expected at least 1", what);
    for (int64_t i = 1; i <= n; i++)
        if ((*w)[i] >= V)
            return WRONG(at,
                         "token %d in the %s, but the model's vocabulary ends at %lld: the file was made with another "
                         "tokenizer; make it again with the model's",
                         (*w)[i], what, (long long)V - 1);
    *w += 1 + n;
    return true;
}

static bool check_record(const uint16_t *record, int64_t words_left, int64_t longest, int64_t V, const Place *at) {
    if (!check_head(record, words_left, longest, at)) return false;
    const uint16_t *w = record + W_CONTEXT, *end = record + record[W_BYTES] / 2;
    if (!check_tokens("context", &w, end, V, at)) return false;
    for (int k = 0; k < record[W_COMPLETIONS]; k++) {
        char what[24];
        snprintf(what, sizeof what, "completion %d", k);
        if (!check_tokens(what, &w, end, V, at)) return false;
    }
    return w == end || WRONG(at, "bytes of the record: %d, but its tokens end %lld bytes before", record[W_BYTES],
                             (long long)(end - w) * 2);
}

static bool check_header(const char *path, const int32_t *header, int64_t file_bytes, Error *err) {
    if (header[0] != MAGIC)
        return error_set(err, "%s: not a multiple-choice file: magic number (header field 0) is %d, expected %d", path,
                         header[0], MAGIC);
    if (header[1] != VERSION)
        return error_set(err, "%s: version (header field 1) is %d, expected %d", path, header[1], VERSION);
    const int64_t room = (file_bytes - HEADER_BYTES) / (RECORD_LEAST * 2);
    if (header[2] < 1 || header[2] > room)
        return error_set(err, "%s: number of examples (header field 2) is %d, but the file has room for 1 to %lld",
                         path, header[2], (long long)room);
    return true;
}

// ------------------------------------------------------------------------------------------------------------ opening

static bool check_all(ChoiceSet *set, const char *path, int64_t longest, int64_t words, int64_t V, Error *err) {
    int64_t start = 0;
    for (int64_t i = 0; i < set->count; i++) {
        const Place at = {path, i, err};
        if (!check_record(set->words + start, words - start, longest, V, &at)) return false;
        set->starts[i] = start;
        start += set->words[start + W_BYTES] / 2;
    }
    return start == words || error_set(err, "%s: %lld bytes behind the last of %lld examples (header field 2)", path,
                                       (long long)(words - start) * 2, (long long)set->count);
}

static bool read_set(ChoiceSet *set, const char *path, int64_t V, Error *err) {
    int32_t header[HEADER_BYTES / 4];
    size_t bytes;
    const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    const size_t length = strlen(name), shorter = length > 4 && strcmp(name + length - 4, ".bin") == 0 ? 4 : 0;
    set->name = strndup(name, length - shorter);
    set->bytes = file_read_all(path, MOST_BYTES, &bytes, err);
    if (!set->bytes || !set->name) return set->bytes != NULL && error_set(err, "%s: out of memory", path);
    if (bytes < HEADER_BYTES || bytes % 2 != 0)
        return error_set(err, "%s: not a multiple-choice file, or cut: %zu bytes, expected an even number from %d on",
                         path, bytes, HEADER_BYTES);
    memcpy(header, set->bytes, HEADER_BYTES);
    if (!check_header(path, header, (int64_t)bytes, err)) return false;
    set->words = (uint16_t *)(void *)(set->bytes + HEADER_BYTES);
    set->count = header[2];
    set->starts = malloc((size_t)set->count * sizeof *set->starts);
    if (!set->starts) return error_set(err, "%s: out of memory", path);
    return check_all(set, path, header[3], ((int64_t)bytes - HEADER_BYTES) / 2, V, err);
}

static bool open_paths(ChoiceSets *sets, char **paths, size_t count, int64_t V, Error *err) {
    sets->sets = calloc(count, sizeof(ChoiceSet *));
    if (!sets->sets || count > INT32_MAX) return error_set(err, "%zu multiple-choice files: out of memory", count);
    for (size_t i = 0; i < count; i++) {
        ChoiceSet *set = sets->sets[sets->count++] = calloc(1, sizeof *set);
        if (!set) return error_set(err, "%s: out of memory", paths[i]);
        if (!read_set(set, paths[i], V, err)) return false;
    }
    return true;
}

bool choices_open(ChoiceSets *sets, const char *pattern, int64_t V, Error *err) {
    char **paths;
    int count;
    memset(sets, 0, sizeof *sets);
    if (!files_match(pattern, &paths, &count, err)) return false;
    const bool ok = count > 0 ? open_paths(sets, paths, (size_t)count, V, err)
                              : error_set(err,
                                          "no multiple-choice files match '%s'; data/choices makes them, and data/get "
                                          "fetches HellaSwag",
                                          pattern);
    directory_list_free(paths, count);
    return ok;
}

void choices_close(ChoiceSets *sets) {
    for (int i = 0; i < sets->count; i++) {
        ChoiceSet *set = sets->sets[i];
        if (set) free(set->name), free(set->bytes), free(set->starts);
        free(set);
    }
    free(sets->sets);
    memset(sets, 0, sizeof *sets);
}
