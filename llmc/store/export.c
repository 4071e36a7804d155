// See export.h. Checks what may be exported where, and moves an exported directory into place.
#include "llmc/store/export.h"

#include "llmc/base/atomic_file.h"
#include "llmc/base/directory.h"
#include "llmc/base/file.h"
#include "llmc/base/own_file.h"
#include "llmc/base/path.h"
#include "llmc/base/path_reason.h"
#include "llmc/store/gguf.h"
#include "llmc/store/huggingface.h"
#include "llmc/store/llmc_bin.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct {
    const char *name, *also;
    DType dtype;
    GgufType gguf;
} export_types[EXPORT_TYPES] = {[EXPORT_FP32] = {"fp32", "f32", DTYPE_FP32, GGUF_F32},
                                [EXPORT_FP16] = {"fp16", "f16", DTYPE_FP16, GGUF_F16},
                                [EXPORT_BF16] = {"bf16", "bf16", DTYPE_BF16, GGUF_BF16},
                                [EXPORT_Q8_0] = {"q8_0", "q8_0", DTYPE_COUNT, GGUF_Q8_0}};

const char *export_type_name(ExportType type) { return export_types[type].name; }

ExportType export_type_of(const char *name) {
    int type = 0;
    while (type < EXPORT_TYPES && strcmp(name, export_types[type].name) != 0 &&
           strcmp(name, export_types[type].also) != 0)
        type++;
    return (ExportType)type;
}

// The kind of export, from the name.
static const struct {
    const char *suffix, *what, *magic;
} target_kinds[] = {{".bin", "an llm.c model", LLMC_BIN_MAGIC}, {".gguf", "a GGUF model", GGUF_MAGIC}};
typedef enum { TARGET_LLMC, TARGET_GGUF, TARGET_DIRECTORY } TargetKind;

typedef struct {
    char *path;      // without trailing slashes; for an existing directory its real path
    char *parent;    // the directory it is or will be in
    char *temporary; // where a directory is built: ".tmp-NAME" in parent
    TargetKind kind;
} ExportTarget;

static void target_free(ExportTarget *t) {
    free(t->path);
    free(t->parent);
    free(t->temporary);
}

static bool ends_in(const char *text, const char *suffix) {
    const size_t n = strlen(text), m = strlen(suffix);
    return n >= m && strcmp(text + n - m, suffix) == 0;
}

static ExportTarget target_of(const char *path) {
    ExportTarget t = {.kind = TARGET_LLMC};
    while (t.kind < TARGET_DIRECTORY && !ends_in(path, target_kinds[t.kind].suffix)) t.kind++;
    if (t.kind == TARGET_DIRECTORY) t.path = realpath(path, NULL);
    if (!t.path) t.path = strdup(path); // a file, or a directory that does not exist yet
    REQUIRE_MEMORY(t.path != NULL, "a path");
    for (size_t n = strlen(t.path); n > 1 && t.path[n - 1] == '/'; n--) t.path[n - 1] = '\0';
    const char *name = path_name(t.path);
    char hidden[NAME_MAX + 16];
    snprintf(hidden, sizeof hidden, ".tmp-%.*s", NAME_MAX, name);
    t.parent = path_parent(t.path);
    t.temporary = path_join(t.parent, hidden);
    return t;
}

// ---------------------------------------------------------------------------------------------------- existing targets

static bool is_own_model(const char *directory) {
    return own_directory_is(directory, huggingface_files, HF_FILES, false, NULL);
}

// Tests by writing that the target can be written.
static bool check_writable(const ExportTarget *t, Error *err) {
    if (!directory_check_writable(t->parent, err) || !directory_make(t->parent, err)) return false;
    if (t->kind != TARGET_DIRECTORY) {
        AtomicFile *probe = atomic_file_create(t->path, NULL);
        if (!probe) return error_set(err, "cannot be created: %s", path_reason(t->path, errno).text);
        atomic_file_abandon(probe);
        return true;
    }
    if (is_own_model(t->temporary)) directory_remove(t->temporary, NULL); // leftovers of a killed export
    if (mkdir(t->temporary, 0755) != 0)
        return error_set(err, "cannot make the directory %s: %s", t->temporary, path_reason(t->temporary, errno).text);
    rmdir(t->temporary);
    return true;
}

// Only a directory that an export could have written is replaced. Any other entry in it is named.
static bool check_existing_directory(const ExportTarget *t, const struct stat *st, Error *err) {
    struct stat parent;
    if (!S_ISDIR(st->st_mode))
        return error_set(err, "this is a file; a Hugging Face model is a directory, the name of an llm.c model ends in "
                              ".bin, that of a GGUF model in .gguf");
    if (stat(t->parent, &parent) != 0 || parent.st_dev != st->st_dev || strcmp(t->path, "/") == 0)
        return error_set(err, "this is a mount point, which cannot be replaced; name a directory inside it");
    if (!own_directory_is(t->path, huggingface_files, HF_FILES, true, err))
        return error_set(err, "%s; name another directory", err->text);
    bool has_all = true;
    for (int file = HF_WEIGHTS; file <= HF_CONFIG; file++) {
        char *path = path_join(t->path, huggingface_files[file].name);
        has_all &= file_exists(path);
        free(path);
    }
    return has_all || own_directory_is(t->path, NULL, 0, true, NULL) || // it is empty
           error_set(err, "the directory is neither empty nor an exported model; name another one");
}

// Whether the kind of target can hold the model, and what exists there may be replaced.
static bool check_export_target(const ExportTarget *t, ExportType type, const ModelConfig *config,
                                const Tokenizer *tokenizer, Error *err) {
    const bool is_llmc = t->kind == TARGET_LLMC, is_gguf = t->kind == TARGET_GGUF;
    if (is_gguf && !gguf_check(config, tokenizer, err)) return false;
    if (!is_gguf && type == EXPORT_Q8_0)
        return error_set(err, "only GGUF models hold q8_0; name a file that ends in .gguf");
    if (is_llmc && type == EXPORT_FP16)
        return error_set(err,
                         "llm.c has no models in fp16; export PATH:fp32 or PATH:bf16, or to a directory, which may "
                         "hold fp16");
    if (is_llmc && !model_is_gpt2(config))
        return error_set(err, "llm.c's models are GPT-2's blocks, which these are not; name a directory");
    if (is_llmc && config->d_ff != 0)
        return error_set(err, "llm.c's models have no field for d_ff = %lld and always 4 C = %lld; name a directory",
                         (long long)config->d_ff, (long long)(4 * config->C));
    if (*t->path == '\0') return error_set(err, "the path is empty");
    if (ends_in(t->path, ".safetensors"))
        return error_set(err, "name the directory for model.safetensors and config.json, not a file");

    struct stat st;
    const bool exists = stat(t->path, &st) == 0;
    if (!exists && lstat(t->path, &st) == 0) return error_set(err, "this is a dangling symbolic link; remove it");
    if (!exists) return check_writable(t, err);
    if (t->kind == TARGET_DIRECTORY) return check_existing_directory(t, &st, err) && check_writable(t, err);
    const char *suffix = target_kinds[t->kind].suffix, *what = target_kinds[t->kind].what;
    if (S_ISDIR(st.st_mode))
        return error_set(err, "this is a directory, but a name that ends in %s means %s, which is a file", suffix,
                         what);
    const bool is_one = st.st_size == 0 || own_file_is(t->path, target_kinds[t->kind].magic);
    if (!S_ISREG(st.st_mode) || !is_one)
        return error_set(err, "the file there is not %s; name another file, or remove it", what);
    return check_writable(t, err);
}

bool export_check(const char *path, ExportType type, const ModelConfig *config, const Tokenizer *tokenizer,
                  Error *err) {
    ExportTarget t = target_of(path);
    const size_t existing = directory_existing(t.parent);
    const bool ok = check_export_target(&t, type, config, tokenizer, err) || error_prefix(err, "--export %s", path);
    directory_unmake(t.parent, existing);
    target_free(&t);
    return ok;
}

// ------------------------------------------------------------------------------------------------------------- writing

static bool write_directory(const ExportTarget *t, const HuggingFaceModel *m, Error *err) {
    FileFacts facts[HF_FILES];
    const bool made = mkdir(t->temporary, 0755) == 0;
    bool ok = made ||
              error_set(err, "%s: cannot make the directory: %s", t->temporary, path_reason(t->temporary, errno).text);
    ok = ok && huggingface_write(t->temporary, m, facts, err) &&
         (!file_exists(t->path) || is_own_model(t->path) ||
          own_file_move_aside(t->path, "is a model that this program did not write", errno, err)) &&
         directory_commit(t->temporary, t->path, huggingface_files[HF_WEIGHTS].name, err);
    for (int i = 0; ok && i < HF_FILES; i++) { // a replaced model's, where its directory stayed
        char *old = NULL;
        if (facts[i].bytes < 0) old = path_join(t->path, huggingface_files[i].name);
        if (old) unlink(old);
        free(old);
    }
    // Removes the replaced model, or the files written before a failure, which err already describes.
    if (made && file_exists(t->temporary)) directory_remove(t->temporary, NULL);
    return ok;
}

bool export_model(const char *path, const Model *model, ExportType type, int64_t eot, const Tokenizer *tokenizer,
                  Error *err) {
    const HuggingFaceModel m = {.model = model, .dtype = export_types[type].dtype, .eot = eot, .tokenizer = tokenizer};
    ExportTarget t = target_of(path);
    bool written = false;
    const bool ok = check_export_target(&t, type, &model_options(model)->config, tokenizer, err) ||
                    error_prefix(err, "--export %s", path);
    if (ok && t.kind == TARGET_LLMC) written = llmc_bin_write(t.path, model, m.dtype, err);
    if (ok && t.kind == TARGET_GGUF) written = gguf_write(t.path, model, export_types[type].gguf, eot, tokenizer, err);
    if (ok && t.kind == TARGET_DIRECTORY) written = write_directory(&t, &m, err);
    target_free(&t);
    return written || (ok && error_prefix(err, "--export"));
}
