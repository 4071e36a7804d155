// See weights_file.h: which of the two formats is at a path and what both have in common; the values of a model in the
// form of a file, piece by piece, in the file's element type, with matrices turned where the file wants them so; what
// may be exported where, and how a directory gets into place.
#include "llmc/store/weights_file.h"

#include "llmc/base/atomic_file.h"
#include "llmc/base/checked.h"
#include "llmc/store/huggingface.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct WeightsFile {
    ModelConfig config;
    HuggingFace *directory; // one of the two
    LlmcBin *bin;
};

WeightsFile *weights_file_open(const char *path, Error *err) {
    struct stat st;
    if (stat(path, &st) != 0) {
        error_set(err, "%s: cannot open the model: %s", path, strerror(errno));
        return NULL;
    }
    WeightsFile *f = calloc(1, sizeof *f);
    REQUIRE_MEMORY(f != NULL, "the weights");
    if (S_ISDIR(st.st_mode))
        f->directory = huggingface_open(path, &f->config, err);
    else
        f->bin = llmc_bin_open(path, &f->config, err);
    if (f->directory || f->bin) return f;
    free(f);
    return NULL;
}

void weights_file_close(WeightsFile *f) {
    if (!f) return;
    huggingface_close(f->directory);
    llmc_bin_close(f->bin);
    free(f);
}

const ModelConfig *weights_file_config(const WeightsFile *f) { return &f->config; }

int64_t weights_file_eot(const WeightsFile *f) { return f->directory ? huggingface_eot(f->directory) : -1; }

bool weights_file_read(WeightsFile *f, const Parameter *p, int64_t first_row, int64_t rows, float *out, Error *err) {
    REQUIRE(first_row >= 0 && rows >= 0 && first_row + rows <= p->rows, "rows [%lld, %lld) of %s, which has %lld",
            (long long)first_row, (long long)(first_row + rows), p->name, (long long)p->rows);
    int64_t in_file = p->file_rows - first_row; // rows of padding follow
    if (in_file < 0) in_file = 0;
    if (in_file > rows) in_file = rows;
    memset(out + in_file * p->cols, 0, (size_t)((rows - in_file) * p->cols) * sizeof *out);
    if (in_file == 0) return true;
    if (f->directory) return huggingface_read(f->directory, p, first_row, in_file, out, err);
    return llmc_bin_read(f->bin, p, first_row, in_file, out, err);
}

// --------------------------------------------------------------------------------------------------- values of a model

typedef struct {
    const Gpt2 *model;
    const Parameter *p;
    int index;
    StateForm form;
    StateSink *sink;
    void *file;
    uint16_t *halves; // a piece in 16 bits
} StateWriter;

static void *allocate(int64_t count, size_t size) {
    void *memory = malloc((size_t)count * size);
    REQUIRE_MEMORY(memory != NULL, "%lld values of a model", (long long)count);
    return memory;
}

// A value that the file's type cannot hold would come back as infinity.
static bool check_range(const StateWriter *s, const float *values, int64_t n, Error *err) {
    const uint16_t infinity = s->form.dtype == DTYPE_FP16 ? 0x7C00 : 0x7F80;
    for (int64_t i = 0; i < n; i++)
        if ((s->halves[i] & 0x7FFF) == infinity && !isinf(values[i]))
            return error_set(err, "tensor %s holds %g, which %s cannot hold: write the model in %s", s->p->name,
                             (double)values[i], dtype_name(s->form.dtype),
                             s->form.dtype == DTYPE_FP16 ? "bf16 or fp32" : "fp32");
    return true;
}

static bool put(const StateWriter *s, const float *values, int64_t n, Error *err) {
    if (s->form.dtype == DTYPE_FP32) return s->sink(s->file, values, (size_t)n * sizeof *values, err);
    convert_elements(s->halves, s->form.dtype, values, DTYPE_FP32, n);
    return check_range(s, values, n, err) && s->sink(s->file, s->halves, (size_t)n * sizeof *s->halves, err);
}

static bool write_plain(const StateWriter *s, Error *err) {
    const Parameter *p = s->p;
    float *piece = allocate(min_i64(STATE_PIECE_FLOATS, p->file_rows * p->cols), sizeof *piece);
    bool ok = true;
    for (int64_t row = 0; ok && row < p->file_rows; row += state_piece_rows(p)) {
        const int64_t n = min_i64(state_piece_rows(p), p->file_rows - row);
        gpt2_get_weight(s->model, s->index, row, n, piece);
        ok = put(s, piece, n * p->cols, err);
    }
    free(piece);
    return ok;
}

static bool write_transposed(const StateWriter *s, Error *err) {
    const int64_t out = s->p->rows, in = s->p->cols;
    float *matrix = allocate(out * in, sizeof *matrix), *strip = allocate(TRANSPOSE_STRIP * out, sizeof *strip);
    gpt2_get_weight(s->model, s->index, 0, out, matrix);
    bool ok = true;
    for (int64_t c = 0; ok && c < in; c += TRANSPOSE_STRIP) {
        const int64_t n = min_i64(TRANSPOSE_STRIP, in - c);
        transpose(strip, out, matrix + c, in, out, n);
        ok = put(s, strip, n * out, err);
    }
    free(matrix);
    free(strip);
    return ok;
}

bool state_write(const Gpt2 *model, int index, StateForm form, StateSink *sink, void *file, Error *err) {
    const Parameter *p = &gpt2_parameters(model)[index];
    StateWriter s = {.model = model, .p = p, .index = index, .form = form, .sink = sink, .file = file};
    const int64_t piece = form.transposed ? TRANSPOSE_STRIP * p->rows : STATE_PIECE_FLOATS;
    s.halves = allocate(form.dtype == DTYPE_FP32 ? 1 : piece, sizeof *s.halves);
    const bool ok = form.transposed ? write_transposed(&s, err) : write_plain(&s, err);
    free(s.halves);
    return ok;
}

// -------------------------------------------------------------------------------------------------------------- export

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
