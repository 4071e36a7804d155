// See export.h: what may be written where, and how a directory gets into place. What stands in the files is
// llmc_bin.c's and huggingface_write.c's business.
#include "llmc/store/export.h"

#include "llmc/base/atomic_file.h"
#include "llmc/store/huggingface.h"
#include "llmc/store/llmc_bin.h"
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
    char *path;      // without slashes at its end; of a directory that exists its real path
    char *parent;    // the directory it is or will be in
    char *temporary; // where a directory is built: ".tmp-NAME" in parent
    bool is_bin;     // an llm.c model, else a Hugging Face directory
} Target;

static void target_free(Target *t) {
    free(t->path);
    free(t->parent);
    free(t->temporary);
}

static bool ends_in(const char *text, const char *suffix) {
    const size_t n = strlen(text), m = strlen(suffix);
    return n >= m && strcmp(text + n - m, suffix) == 0;
}

static Target target_of(const char *path) {
    Target t = {.is_bin = ends_in(path, ".bin")};
    t.path = t.is_bin ? strdup(path) : realpath(path, NULL);
    if (!t.path) t.path = strdup(path); // not there yet
    REQUIRE_MEMORY(t.path != NULL, "a path");
    for (size_t n = strlen(t.path); n > 1 && t.path[n - 1] == '/'; n--) t.path[n - 1] = '\0';
    const char *slash = strrchr(t.path, '/'), *name = slash ? slash + 1 : t.path;
    t.parent = !slash ? strdup(".") : slash == t.path ? strdup("/") : strndup(t.path, (size_t)(slash - t.path));
    char hidden[NAME_MAX + 16];
    snprintf(hidden, sizeof hidden, ".tmp-%.*s", NAME_MAX, name);
    REQUIRE_MEMORY(t.parent != NULL, "a path");
    t.temporary = path_join(t.parent, hidden);
    return t;
}

// ------------------------------------------------------------------------------------------- what stands there already

static bool check_file_target(const Target *t, const struct stat *st, Error *err) {
    if (S_ISDIR(st->st_mode))
        return error_set(err, "this is a directory, and a name in .bin asks for an llm.c model, which is a file");
    return (S_ISREG(st->st_mode) && (st->st_size == 0 || llmc_bin_is_one(t->path))) ||
           error_set(err, "there is a file that is no llm.c model: name another file, or remove it");
}

// Only a directory that an export could have written is replaced. Its other entry, if it has one, is named.
static bool check_entries(const Target *t, Error *err) {
    char **names;
    int count;
    if (!directory_list(t->path, &names, &count, err)) return false;
    bool seen[HF_FILES] = {false}, ok = true;
    for (int i = 0; ok && i < count; i++) {
        int file = 0;
        while (file < HF_FILES && strcmp(names[i], huggingface_file_names[file]) != 0) file++;
        if (file < HF_FILES)
            seen[file] = true;
        else
            ok = error_set(err, "the directory holds %.100s, which is not of an exported model: name another one",
                           names[i]);
    }
    directory_list_free(names, count);
    if (!ok || count == 0 || (seen[HF_WEIGHTS] && seen[HF_CONFIG])) return ok;
    return error_set(err, "the directory is neither empty nor an exported model: name another one");
}

static bool check_directory_target(const Target *t, const struct stat *st, Error *err) {
    struct stat parent;
    if (!S_ISDIR(st->st_mode))
        return error_set(err, "this is a file; a Hugging Face model is a directory, the name of an llm.c model ends in "
                              ".bin");
    if (stat(t->parent, &parent) != 0 || parent.st_dev != st->st_dev || strcmp(t->path, "/") == 0)
        return error_set(err, "other files are mounted here, and the directory is made as a whole: name one inside it");
    return check_entries(t, err);
}

// That the place can be written is shown by writing there.
static bool check_writable(const Target *t, Error *err) {
    if (!directory_check_writable(t->parent, err) || !directory_make(t->parent, err)) return false;
    if (t->is_bin) {
        AtomicFile *probe = atomic_file_create(t->path, NULL);
        if (!probe) return error_set(err, "cannot be created: %s", strerror(errno));
        atomic_file_abandon(probe);
        return true;
    }
    directory_remove(t->temporary, NULL); // what a killed export left
    if (mkdir(t->temporary, 0755) != 0)
        return error_set(err, "cannot make the directory %s: %s", t->temporary, strerror(errno));
    rmdir(t->temporary);
    return true;
}

static bool check_target(const Target *t, DType dtype, Error *err) {
    struct stat st;
    if (*t->path == '\0') return error_set(err, "the path is empty");
    if (t->is_bin && dtype == DTYPE_FP16)
        return error_set(err,
                         "llm.c has no models in fp16: take --export-dtype fp32 or bf16, or a directory, which may "
                         "hold fp16");
    if (ends_in(t->path, ".safetensors"))
        return error_set(err, "name the directory for model.safetensors and config.json, not a file");
    if (stat(t->path, &st) != 0)
        return (lstat(t->path, &st) != 0 || error_set(err, "there is a symbolic link to nothing: remove it")) &&
               check_writable(t, err);
    return (t->is_bin ? check_file_target(t, &st, err) : check_directory_target(t, &st, err)) && check_writable(t, err);
}

bool export_check(const char *path, DType dtype, Error *err) {
    Target t = target_of(path);
    const size_t existing = directory_existing(t.parent);
    const bool ok = check_target(&t, dtype, err) || error_prefix(err, "--export %s", path);
    directory_unmake(t.parent, existing);
    target_free(&t);
    return ok;
}

// ------------------------------------------------------------------------------------------------------------- writing

static bool write_directory(const Target *t, const HuggingFaceModel *m, Error *err) {
    FileFacts facts[HF_FILES];
    const bool made = mkdir(t->temporary, 0755) == 0;
    bool ok = made || error_set(err, "%s: cannot make the directory: %s", t->temporary, strerror(errno));
    ok = ok && huggingface_write(t->temporary, m, facts, err) && directory_commit(t->temporary, t->path, err);
    // The model that was replaced; or what could be written of the new one, and what failed is in err already.
    if (made && file_exists(t->temporary)) directory_remove(t->temporary, NULL);
    return ok;
}

bool export_model(const char *path, const Gpt2 *model, DType dtype, int64_t eot, const Tokenizer *tokenizer,
                  Error *err) {
    const HuggingFaceModel m = {.model = model, .dtype = dtype, .eot = eot, .tokenizer = tokenizer};
    Target t = target_of(path);
    const bool ok = (check_target(&t, dtype, err) || error_prefix(err, "--export %s", path)) &&
                    ((t.is_bin ? llmc_bin_write(t.path, model, dtype, err) : write_directory(&t, &m, err)) ||
                     error_prefix(err, "--export"));
    target_free(&t);
    return ok;
}
