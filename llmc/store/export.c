// See export.h. Checks what may be exported where, and moves an exported directory into place.
#include "llmc/store/export.h"

#include "llmc/base/atomic_file.h"
#include "llmc/base/directory.h"
#include "llmc/base/file.h"
#include "llmc/base/format.h"
#include "llmc/base/own_file.h"
#include "llmc/base/path.h"
#include "llmc/base/path_reason.h"
#include "llmc/store/gguf.h"
#include "llmc/store/huggingface.h"
#include "llmc/store/llmc_bin.h"
#include "llmc/text/directory_role.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
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
} target_kinds[] = {{".bin", "an llm.c model", LLMC_BIN_MAGIC},
                    {".gguf", "a GGUF model", GGUF_MAGIC}};
typedef enum { TARGET_LLMC, TARGET_GGUF, TARGET_DIRECTORY } TargetKind;

typedef struct {
    char *path;   // without trailing slashes; for an existing directory its real path
    char *parent; // the directory it is or will be in
    TargetKind kind;
} ExportTarget;

static void target_free(ExportTarget *t) {
    free(t->path);
    free(t->parent);
}

static bool ends_in(const char *text, const char *suffix) {
    const size_t n = strlen(text), m = strlen(suffix);
    return n >= m && strcasecmp(text + n - m, suffix) == 0;
}

// Names of single files, which are no directories of Hugging Face, and which nothing here writes.
static bool check_suffix(const char *path, Error *err) {
    static const char *const foreign[] = {
        ".pt",        ".pth", ".ckpt", ".onnx", ".h5",   ".keras",   ".msgpack", ".npz",
        ".npy",       ".pkl", ".pte",  ".ggml", ".ggjt", ".mlmodel", ".tflite",  ".pdparams",
        ".llamafile", ".zip", ".tar",  ".gz",   ".json", NULL};
    if (ends_in(path, ".safetensors"))
        return error_set(err,
                         "name the directory for model.safetensors and config.json, not a file");
    for (int i = 0; foreign[i]; i++)
        if (ends_in(path, foreign[i]))
            return error_set(err,
                             "models are not written as %s; name a directory for a Hugging Face "
                             "model, a file that ends "
                             "in .gguf for llama.cpp or in .bin for llm.c",
                             foreign[i]);
    return true;
}

static ExportTarget target_of(const char *path) {
    ExportTarget t = {.kind = TARGET_LLMC};
    while (t.kind < TARGET_DIRECTORY && !ends_in(path, target_kinds[t.kind].suffix)) t.kind++;
    if (t.kind == TARGET_DIRECTORY) t.path = realpath(path, NULL);
    if (!t.path) t.path = strdup(path); // a file, or a directory that does not exist yet
    REQUIRE_MEMORY(t.path != NULL, "a path");
    for (size_t n = strlen(t.path); n > 1 && t.path[n - 1] == '/'; n--) t.path[n - 1] = '\0';
    t.parent = path_parent(t.path);
    return t;
}

bool export_is_directory(const char *path) {
    ExportTarget t = target_of(path);
    target_free(&t);
    return t.kind == TARGET_DIRECTORY;
}

// -------------------------------------------------------------------------------- existing targets

static bool is_own_model(const char *directory) {
    return huggingface_is_own(directory, NULL, 0, false, NULL);
}

// Opens and locks a directory; -1: it is not there, or a process has it.
static int lock_directory(const char *path, int how) {
    struct stat opened, named;
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return -1;
    // A file system without locks: it may be a process's. It may have been renamed or removed in
    // between.
    if (flock(fd, how) == 0 && fstat(fd, &opened) == 0 && lstat(path, &named) == 0 &&
        opened.st_ino == named.st_ino && opened.st_dev == named.st_dev)
        return fd;
    close(fd);
    return -1;
}

// Makes the directory in which an export is built, .tmp-NAME-PID beside the target, *path,
// malloced. It is locked until the descriptor is closed, so that another process tells it from what
// a killed one has left.
static bool make_temporary(const ExportTarget *t, char **path, int *lock, Error *err) {
    enum { MAX_PID = 1 << 22, MAX_NAMES = 100 };
    int reason = EEXIST;
    *path = NULL;
    *lock = -1;

    for (long i = 0; i < MAX_NAMES && reason == EEXIST; i++) {
        char name[NAME_MAX + 64];
        snprintf(name, sizeof name, ".tmp-%.*s-%ld", NAME_MAX, path_name(t->path),
                 getpid() + i * MAX_PID);
        free(*path);
        *path = path_join(t->parent, name);
        if (mkdir(*path, 0755) != 0) {
            reason = errno;
            continue;
        }
        *lock = lock_directory(*path, LOCK_EX);
        // or one without locks; else it was removed as stale
        if (*lock >= 0 || file_exists(*path)) return true;
    }

    error_set(err, "cannot make the directory %s: %s", *path, path_reason(*path, reason).text);
    free(*path);
    *path = NULL;
    return false;
}

// Whether a name is one of make_temporary, or of an earlier version's export to this target.
static bool is_temporary_directory(const ExportTarget *t, const char *name) {
    const size_t n = strlen(".tmp-");
    if (strncmp(name, ".tmp-", n) != 0) return false;
    const char *pid = strrchr(name + n, '-');
    return strcmp(name + n, path_name(t->path)) == 0 ||
           (pid && pid[1] && pid[1 + strspn(pid + 1, "0123456789")] == '\0');
}

// Removes what exports that were killed have left beside the target, whatever their own targets
// were.
static void remove_stale_exports(const ExportTarget *t) {
    char **names;
    int count;
    if (!directory_list(t->parent, &names, &count, NULL)) return;

    for (int i = 0; i < count; i++) {
        char *path = path_join(t->parent, names[i]), *end = strstr(path_name(path), ".tmp-");
        if (is_temporary_directory(t, names[i])) {
            const int lock = lock_directory(path, LOCK_EX | LOCK_NB);
            if (lock >= 0 && is_own_model(path)) directory_remove(path, NULL);
            if (lock >= 0) close(lock);
        }
        for (TargetKind kind = TARGET_LLMC; end && kind < TARGET_DIRECTORY; kind++) {
            if (end == path_name(path) || !own_file_is(path, target_kinds[kind].magic)) continue;
            *end = '\0';
            if (ends_in(path, target_kinds[kind].suffix)) atomic_file_clean(path);
            *end = '.';
        }
        free(path);
    }

    directory_list_free(names, count);
}

// Checks the directories above the target that the export will make. They are not made for the
// check: removing them again would take them from another export, which has just made sure of them.
static bool check_new_parents(const ExportTarget *t, Error *err) {
    const size_t existing = directory_existing(t->parent);
    char *above = strndup(t->parent, existing);
    REQUIRE_MEMORY(above, "a path");
    const char *directory = above;
    if (existing == 0) directory = ".";
    if (existing == 0 && *t->parent == '/') directory = "/";
    bool ok = directory_check_writable(directory, err);
    for (const char *name = t->path + existing; ok && *name; name += strcspn(name, "/")) {
        name += strspn(name, "/");
        if (strcspn(name, "/") > NAME_MAX)
            ok = error_set(err, "cannot be created: %s", strerror(ENAMETOOLONG));
    }
    free(above);
    return ok;
}

// Tests by writing that the target can be written.
static bool check_writable(const ExportTarget *t, Error *err) {
    if (!file_exists(t->parent)) return check_new_parents(t, err);
    if (!directory_check_writable(t->parent, err)) return false;
    if (t->kind != TARGET_DIRECTORY) {
        AtomicFile *probe = atomic_file_create(t->path, NULL);
        if (!probe)
            return error_set(err, "cannot be created: %s", path_reason(t->path, errno).text);
        atomic_file_abandon(probe);
        return true;
    }
    char *temporary;
    int lock;
    if (!make_temporary(t, &temporary, &lock, err)) return false;
    rmdir(temporary);
    free(temporary);
    if (lock >= 0) close(lock);
    return true;
}

// Only a directory that an export could have written is replaced. Any other entry in it is named.
static bool check_existing_directory(const ExportTarget *t, const struct stat *st, Error *err) {
    struct stat parent;
    if (!S_ISDIR(st->st_mode))
        return error_set(err, "this is a file; a Hugging Face model is a directory, the name of an "
                              "llm.c model ends in "
                              ".bin, that of a GGUF model in .gguf");
    if (stat(t->parent, &parent) != 0 || parent.st_dev != st->st_dev || strcmp(t->path, "/") == 0)
        return error_set(
            err, "this is a mount point, which cannot be replaced; name a directory inside it");

    OwnFileKind names[HF_FILES];
    for (int file = 0; file < HF_FILES; file++)
        names[file] = (OwnFileKind){huggingface_file_name(file), ""};
    if (!own_directory_is(t->path, names, HF_FILES, true, err))
        return error_set(err, "%s; name another directory", err->text);

    bool has_all = true;
    for (int file = HF_WEIGHTS; file <= HF_CONFIG; file++) {
        char *path = path_join(t->path, huggingface_file_name(file));
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
        return error_set(err, "llm.c has no models in fp16; export PATH:fp32 or PATH:bf16, or to a "
                              "directory, which may "
                              "hold fp16");
    if (is_llmc && !model_is_gpt2(config))
        return error_set(
            err, "llm.c's models are GPT-2's blocks, which these are not; name a directory");
    if (is_llmc && config->d_ff != 0)
        return error_set(
            err,
            "llm.c's models have no field for d_ff = %lld and always 4 C = %lld; name a directory",
            (long long)config->d_ff, (long long)(4 * config->C));
    if (*t->path == '\0') return error_set(err, "the path is empty");
    remove_stale_exports(t);
    if (!check_suffix(t->path, err)) return false;

    struct stat st;
    const bool exists = stat(t->path, &st) == 0;
    if (t->kind != TARGET_DIRECTORY && !directory_check_role(t->path, err)) return false;
    if (!exists && lstat(t->path, &st) == 0)
        return error_set(err, "this is a dangling symbolic link; remove it");
    if (!exists) return check_writable(t, err);
    if (t->kind == TARGET_DIRECTORY) {
        if (!check_existing_directory(t, &st, err)) return false;
        return check_writable(t, err);
    }
    const char *suffix = target_kinds[t->kind].suffix, *what = target_kinds[t->kind].what;
    if (S_ISDIR(st.st_mode))
        return error_set(
            err, "this is a directory, but a name that ends in %s means %s, which is a file",
            suffix, what);
    const bool is_one = st.st_size == 0 || own_file_is(t->path, target_kinds[t->kind].magic);
    if (!S_ISREG(st.st_mode) || !is_one)
        return error_set(err, "the file there is not %s; name another file, or remove it", what);
    return check_writable(t, err);
}

bool export_check(const char *path, ExportType type, const ModelConfig *config,
                  const Tokenizer *tokenizer, Error *err) {
    ExportTarget t = target_of(path);
    const bool ok = check_export_target(&t, type, config, tokenizer, err) ||
                    error_prefix(err, "--export %s", path);
    target_free(&t);
    return ok;
}

// ----------------------------------------------------------------------------------------- writing

static bool write_directory(const ExportTarget *t, const HuggingFaceModel *m, Error *err) {
    FileFacts facts[HF_FILES];
    char *temporary;
    int lock;
    struct stat before, after;
    if (!make_temporary(t, &temporary, &lock, err)) return false;
    bool ok =
        huggingface_write(temporary, m, facts, err) &&
        (!file_exists(t->path) || is_own_model(t->path) ||
         own_file_move_aside(t->path, "is a model that this program did not write", errno, err));
    bool has_stayed = ok && stat(t->path, &before) == 0;
    if (ok) ok = directory_commit(temporary, t->path, huggingface_file_name(HF_WEIGHTS), err);

    // A replaced model's files, where its directory stayed (directory_commit).
    has_stayed = has_stayed && ok && stat(t->path, &after) == 0 && before.st_ino == after.st_ino;
    for (int i = 0; has_stayed && i < HF_FILES; i++) {
        char *old = facts[i].bytes < 0 ? path_join(t->path, huggingface_file_name(i)) : NULL;
        if (old) unlink(old);
        free(old);
    }
    // Removes the replaced model, or the files written before a failure, which err already
    // describes.
    if (file_exists(temporary)) directory_remove(temporary, NULL);
    if (lock >= 0) close(lock);
    free(temporary);
    return ok;
}

static bool write_target(const ExportTarget *t, const HuggingFaceModel *m, ExportType type,
                         Error *err) {
    if (t->kind == TARGET_LLMC) return llmc_bin_write(t->path, m->model, m->dtype, err);
    if (t->kind == TARGET_GGUF) return gguf_write(t->path, m, export_types[type].gguf, err);
    return write_directory(t, m, err);
}

bool export_model(const char *path, const HuggingFaceModel *model, ExportType type, Error *err) {
    HuggingFaceModel m = *model;
    ExportTarget t = target_of(path);
    m.dtype = export_types[type].dtype;
    bool written = false;
    const bool ok =
        check_export_target(&t, type, &model_options(m.model)->config, m.tokenizer, err) ||
        error_prefix(err, "--export %s", path);
    if (ok && directory_make(t.parent, err)) written = write_target(&t, &m, type, err);
    target_free(&t);
    if (ok && !written) error_prefix(err, "--export");
    return written;
}

char *export_warnings(const char *path, const HuggingFaceModel *m) {
    const ModelExtras *extras = huggingface_extras(m);
    ExportTarget t = target_of(path);
    int32_t ends[MAX_END_TOKENS];
    const int num_ends = huggingface_ends(m, ends);
    char *text = NULL;
    size_t bytes;
    FILE *out = text_open(&text, &bytes);

    if (t.kind == TARGET_GGUF && !m->tokenizer)
        fputs("it has no vocabulary, which llama.cpp's servers need; name the model's tokenizer "
              "with --tokenizer\n",
              out);
    if (t.kind == TARGET_GGUF && num_ends > GGUF_ENDS)
        fprintf(out, "it has %d of the %d tokens that end a text\n", GGUF_ENDS, num_ends);
    if (t.kind == TARGET_LLMC && num_ends > 1)
        fprintf(out, "it has none of the %d tokens that end a text\n", num_ends);

    // llama.cpp's file has the tokens, their kinds and the chat template; llm.c's has the weights
    // and their shape.
    char *template = model_extras_chat_template(extras);
    const char *comma = "left out of it: ";
    for (int i = 0; i < EXTRA_FILES; i++) {
        bool is_lost = t.kind == TARGET_LLMC;
        if (i == EXTRA_TOKENIZER_CONFIG && !template) is_lost = false;
        if (i == EXTRA_GENERATION_CONFIG && t.kind == TARGET_GGUF) is_lost = true;
        if (!is_lost || !extras->files[i].text) continue;
        fprintf(out, "%s%s", comma, extra_file_names[i]);
        comma = ", ";
    }

    free(template);
    fclose(out);
    target_free(&t);
    return text;
}
