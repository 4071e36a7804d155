// Reading and exporting weights files, see weights_file.h: detects which of the two formats is at a path; writes the
// values of a model piece by piece, in the file's element type, with matrices transposed if the file requires it; reads
// and writes llm.c's .bin models; checks what may be exported where, and moves an exported directory into place.
//
// llm.c's .bin: 256 int32 (magic 20240326; version 3: fp32, 5: bf16; max_T, V, L, NH, C, Vp), then the tensors of
// parameter_specs in that order, blocks inside, without gaps. Rows of padding of wte are 0.
#include "llmc/store/weights_file.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/atomic_file.h"
#include "llmc/base/directory.h"
#include "llmc/base/file.h"
#include "llmc/base/foreign_file.h"
#include "llmc/base/own_file.h"
#include "llmc/base/path.h"
#include "llmc/base/path_reason.h"
#include "llmc/model/model_state.h"
#include "llmc/store/huggingface.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// -------------------------------------------------------------------------------------------------------- llm.c's .bin

enum {
    MODEL_MAGIC = 20240326,
    VERSION_FP32 = 3,
    VERSION_BF16 = 5,
    HEADER_INTS = 256,
    HEADER_BYTES = 1024,
    CONVERT_ELEMENTS = 1 << 14, // elements converted at a time: 32 KB of the stack
};

struct LlmcBin {
    char *path;
    int fd;
    DType dtype;
    ModelConfig config;
    int64_t *offsets; // first byte of each tensor of the parameter table
};

static bool parse_header(LlmcBin *f, const int32_t *header, Error *err) {
    if (header[1] != VERSION_FP32 && header[1] != VERSION_BF16)
        return error_set(err, "%s: llm.c model version %d, expected %d (fp32) or %d (bf16)", f->path, (int)header[1],
                         VERSION_FP32, VERSION_BF16);
    f->dtype = header[1] == VERSION_FP32 ? DTYPE_FP32 : DTYPE_BF16;
    f->config = (ModelConfig){.max_T = header[2], .V = header[3], .L = header[4], .NH = header[5], .C = header[6]};
    if (f->config.V < 1)
        return error_set(err, "%s: vocabulary of %d tokens, expected 1 or more", f->path, (int)header[3]);
    if (!model_config_check(&f->config, err)) return error_prefix(err, "%s", f->path);
    model_config_set_vocab(&f->config, f->config.V);
    if (header[7] == f->config.Vp) return true;
    return error_set(err, "%s: padded vocabulary %d, expected %lld (%d rounded up to a multiple of %d)", f->path,
                     (int)header[7], (long long)f->config.Vp, (int)header[3], VOCAB_PADDING);
}

// Computes the place of each tensor. The ranges of model_config_check keep every product below 2^63.
static bool lay_out(LlmcBin *f, int64_t size, Error *err) {
    int64_t element = (int64_t)dtype_size(f->dtype);
    int64_t expected = HEADER_BYTES + parameter_total(&f->config) * element;
    if (size != expected)
        return error_set(err, "%s: %lld bytes, expected %lld for the shape in its header: %s", f->path, (long long)size,
                         (long long)expected, size < expected ? "truncated" : "bytes after the last tensor");
    int count = parameter_count(&f->config);
    Parameter *table = parameter_table(&f->config);
    f->offsets = malloc((size_t)count * sizeof *f->offsets);
    REQUIRE_MEMORY(f->offsets != NULL, "a weight file of llm.c");
    int64_t offset = HEADER_BYTES;
    for (int i = 0; i < count; i++) {
        f->offsets[i] = offset;
        offset += parameter_numel(&table[i]) * element;
    }
    free(table);
    return true;
}

static bool read_header(LlmcBin *f, int64_t size, Error *err) {
    int32_t header[HEADER_INTS] = {0};
    const size_t bytes = size < HEADER_BYTES ? (size_t)size : (size_t)HEADER_BYTES;
    if (!file_read_at(f->fd, f->path, 0, header, bytes, err)) return false;
    if (header[0] != MODEL_MAGIC)
        return foreign_file_check("a model", f->path, header, bytes, err) &&
               error_set(err, "%s: not an llm.c model: its first word is %d, expected %d", f->path, (int)header[0],
                         MODEL_MAGIC);
    if (size < HEADER_BYTES)
        return error_set(err, "%s: %lld bytes, expected a header of %d: truncated", f->path, (long long)size,
                         HEADER_BYTES);
    return parse_header(f, header, err) && lay_out(f, size, err);
}

LlmcBin *llmc_bin_open(const char *path, ModelConfig *config, Error *err) {
    LlmcBin *f = calloc(1, sizeof *f);
    REQUIRE_MEMORY(f && (f->path = strdup(path)), "a weight file of llm.c");
    int64_t size;
    f->fd = file_open(path, &size, err);
    if (f->fd >= 0 && read_header(f, size, err)) {
        *config = f->config;
        return f;
    }
    llmc_bin_close(f);
    return NULL;
}

void llmc_bin_close(LlmcBin *f) {
    if (!f) return;
    if (f->fd >= 0) close(f->fd);
    free(f->offsets);
    free(f->path);
    free(f);
}

bool llmc_bin_read(LlmcBin *f, const Parameter *p, int64_t first_row, int64_t rows, float *out, Error *err) {
    int64_t size = (int64_t)dtype_size(f->dtype), n = rows * p->cols;
    int index = parameter_index(&f->config, (int)(p->spec - parameter_specs), p->block);
    int64_t offset = f->offsets[index] + first_row * p->cols * size;
    if (f->dtype == DTYPE_FP32) return file_read_at(f->fd, f->path, offset, out, (size_t)(n * size), err);
    uint16_t raw[CONVERT_ELEMENTS];
    for (int64_t i = 0; i < n; i += CONVERT_ELEMENTS) {
        int64_t m = n - i < CONVERT_ELEMENTS ? n - i : CONVERT_ELEMENTS;
        if (!file_read_at(f->fd, f->path, offset + i * size, raw, (size_t)(m * size), err)) return false;
        convert_elements(out + i, DTYPE_FP32, raw, f->dtype, m);
    }
    return true;
}

// ------------------------------------------------------------------------------------------------------------- writing

static bool append(void *file, const void *data, size_t bytes, Error *err) {
    return atomic_file_write(file, data, bytes, err);
}

static bool append_padding(AtomicFile *file, const Parameter *p, DType dtype, Error *err) {
    const size_t bytes = (size_t)((p->rows - p->file_rows) * p->cols) * dtype_size(dtype);
    void *zeros = calloc(1, bytes + 1);
    REQUIRE_MEMORY(zeros != NULL, "a weight file of llm.c");
    const bool ok = atomic_file_write(file, zeros, bytes, err);
    free(zeros);
    return ok;
}

bool llmc_bin_write(const char *path, const Model *model, DType dtype, Error *err) {
    REQUIRE(dtype == DTYPE_FP32 || dtype == DTYPE_BF16, "llm.c has no models in %s", dtype_name(dtype));
    const ModelConfig *c = &model_options(model)->config;
    int32_t header[HEADER_INTS] = {MODEL_MAGIC,       dtype == DTYPE_FP32 ? VERSION_FP32 : VERSION_BF16,
                                   (int32_t)c->max_T, (int32_t)c->V,
                                   (int32_t)c->L,     (int32_t)c->NH,
                                   (int32_t)c->C,     (int32_t)c->Vp};
    own_file_mark_header(header);
    AtomicFile *file = atomic_file_create(path, err);
    bool ok = file && atomic_file_write(file, header, sizeof header, err);
    for (int i = 0; ok && i < model_num_tensors(model); i++)
        ok = state_write(model, i, (StateForm){dtype, false}, append, file, err) &&
             append_padding(file, &model_parameters(model)[i], dtype, err);
    if (ok) return own_file_commit(file, path, OWN_FILE_HEADER_MARK, err);
    atomic_file_abandon(file);
    return false;
}

bool llmc_bin_is_one(const char *path) {
    int32_t magic = 0;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    const bool is_one = fd >= 0 && file_size(fd) >= HEADER_BYTES &&
                        file_read_at(fd, path, 0, &magic, sizeof magic, NULL) && magic == MODEL_MAGIC;
    if (fd >= 0) close(fd);
    return is_one;
}

// ---------------------------------------------------------------------------------------------------- files of weights

struct WeightsFile {
    char *path;
    ModelConfig config;
    HuggingFace *directory; // one of the two is set
    LlmcBin *bin;
};

WeightsFile *weights_file_open(const char *path, Error *err) {
    struct stat st;
    if (stat(path, &st) != 0) {
        error_set(err, "%s: cannot open the model: %s", path, path_reason(path, errno).text);
        return NULL;
    }
    WeightsFile *f = calloc(1, sizeof *f);
    REQUIRE_MEMORY(f && (f->path = strdup(path)), "the weights");
    if (S_ISDIR(st.st_mode))
        f->directory = huggingface_open(path, &f->config, err);
    else
        f->bin = llmc_bin_open(path, &f->config, err);
    if (f->directory || f->bin) return f;
    weights_file_close(f);
    return NULL;
}

void weights_file_close(WeightsFile *f) {
    if (!f) return;
    huggingface_close(f->directory);
    llmc_bin_close(f->bin);
    free(f->path);
    free(f);
}

const ModelConfig *weights_file_config(const WeightsFile *f) { return &f->config; }

int64_t weights_file_eot(const WeightsFile *f) { return f->directory ? huggingface_eot(f->directory) : -1; }

bool weights_file_check_rest(WeightsFile *f, Error *err) {
    return !f->directory || huggingface_check_rest(f->directory, err);
}

static bool read_rows(WeightsFile *f, const Parameter *p, int64_t first, int64_t rows, float *out, Error *err) {
    return f->directory ? huggingface_read(f->directory, p, first, rows, out, err)
                        : llmc_bin_read(f->bin, p, first, rows, out, err);
}

// Without a branch, so that the loop becomes vectors: reading 124M takes as long as without it, 0.22 s of one core.
static bool are_finite(const float *values, int64_t n) {
    uint32_t bits, found = 0;
    for (int64_t i = 0; i < n; i++) {
        memcpy(&bits, &values[i], sizeof bits);
        found |= (bits & 0x7F800000u) == 0x7F800000u;
    }
    return !found;
}

// Reads the whole tensor again to count its values that are not finite, and to find the first one in the file's order.
static bool refuse_not_finite(WeightsFile *f, const Parameter *p, Error *err) {
    const bool swap = f->directory && p->spec->transposed;
    int64_t count = 0, first = INT64_MAX;
    float value = 0, *row = malloc((size_t)p->cols * sizeof *row);
    REQUIRE_MEMORY(row != NULL, "a row of weights");
    for (int64_t r = 0; r < p->file_rows && read_rows(f, p, r, 1, row, NULL); r++)
        for (int64_t c = 0; c < p->cols; c++) {
            const int64_t at = swap ? c * p->file_rows + r : r * p->cols + c;
            if (isfinite(row[c])) continue;
            count++;
            if (at < first) first = at, value = row[c];
        }
    free(row);
    const int64_t cols = swap ? p->file_rows : p->cols;
    char place[64];
    snprintf(place, sizeof place, p->rank == 2 ? "[%lld, %lld]" : "[%lld]", (long long)(first / cols),
             (long long)(first % cols));
    return error_set(
        err,
        "%s: tensor %s has %lld of %lld values that are not finite, the first %g at %s: the model diverged, "
        "or overflowed when it was saved as fp16; save it in fp32 or bf16, or take an earlier one",
        f->path, p->name, (long long)count, (long long)(p->file_rows * p->cols), (double)value, place);
}

bool weights_file_read(WeightsFile *f, const Parameter *p, int64_t first_row, int64_t rows, float *out, Error *err) {
    REQUIRE(first_row >= 0 && rows >= 0 && first_row + rows <= p->rows, "rows [%lld, %lld) of %s, which has %lld",
            (long long)first_row, (long long)(first_row + rows), p->name, (long long)p->rows);
    int64_t in_file = p->file_rows - first_row; // rows of padding follow
    if (in_file < 0) in_file = 0;
    if (in_file > rows) in_file = rows;
    memset(out + in_file * p->cols, 0, (size_t)((rows - in_file) * p->cols) * sizeof *out);
    if (in_file == 0) return true;
    return read_rows(f, p, first_row, in_file, out, err) &&
           (are_finite(out, in_file * p->cols) || refuse_not_finite(f, p, err));
}

// --------------------------------------------------------------------------------------------------- values of a model

typedef struct {
    const Model *model;
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

// A value beyond the range of the file's type would be read back as infinity.
static bool check_range(const StateWriter *s, const float *values, int64_t n, Error *err) {
    const uint16_t infinity = s->form.dtype == DTYPE_FP16 ? 0x7C00 : 0x7F80;
    for (int64_t i = 0; i < n; i++)
        if ((s->halves[i] & 0x7FFF) == infinity && !isinf(values[i]))
            return error_set(err, "tensor %s has the value %g, which %s cannot represent; write the model in %s",
                             s->p->name, (double)values[i], dtype_name(s->form.dtype),
                             s->form.dtype == DTYPE_FP16 ? "bf16 or fp32" : "fp32");
    return true;
}

static bool put(const StateWriter *s, const float *values, int64_t n, Error *err) {
    if (s->form.dtype == DTYPE_FP32) return s->sink(s->file, values, (size_t)n * sizeof *values, err);
    convert_elements(s->halves, s->form.dtype, values, DTYPE_FP32, n);
    return check_range(s, values, n, err) && s->sink(s->file, s->halves, (size_t)n * sizeof *s->halves, err);
}

static bool get_rows(const StateWriter *s, int64_t first, int64_t rows, float *out, Error *err) {
    return model_get_weight(s->model, s->index, first, rows, out) ||
           error_set(err, "the state of another process cannot be read");
}

static bool write_plain(const StateWriter *s, Error *err) {
    const Parameter *p = s->p;
    float *piece = allocate(min_i64(STATE_PIECE_FLOATS, p->file_rows * p->cols), sizeof *piece);
    bool ok = true;
    for (int64_t row = 0; ok && row < p->file_rows; row += state_piece_rows(p)) {
        const int64_t n = min_i64(state_piece_rows(p), p->file_rows - row);
        ok = get_rows(s, row, n, piece, err) && put(s, piece, n * p->cols, err);
    }
    free(piece);
    return ok;
}

static bool write_transposed(const StateWriter *s, Error *err) {
    const int64_t out = s->p->rows, in = s->p->cols;
    float *matrix = allocate(out * in, sizeof *matrix), *strip = allocate(TRANSPOSE_STRIP * out, sizeof *strip);
    bool ok = get_rows(s, 0, out, matrix, err);
    for (int64_t c = 0; ok && c < in; c += TRANSPOSE_STRIP) {
        const int64_t n = min_i64(TRANSPOSE_STRIP, in - c);
        transpose(strip, out, matrix + c, in, out, n);
        ok = put(s, strip, n * out, err);
    }
    free(matrix);
    free(strip);
    return ok;
}

bool state_write(const Model *model, int index, StateForm form, StateSink *sink, void *file, Error *err) {
    const Parameter *p = &model_parameters(model)[index];
    StateWriter s = {.model = model, .p = p, .index = index, .form = form, .sink = sink, .file = file};
    const int64_t piece = form.transposed ? TRANSPOSE_STRIP * p->rows : STATE_PIECE_FLOATS;
    s.halves = allocate(form.dtype == DTYPE_FP32 ? 1 : piece, sizeof *s.halves);
    const bool ok = form.transposed ? write_transposed(&s, err) : write_plain(&s, err);
    free(s.halves);
    return ok;
}

// -------------------------------------------------------------------------------------------------------------- export

typedef struct {
    char *path;      // without trailing slashes; for an existing directory its real path
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
    if (!t.path) t.path = strdup(path); // it does not exist yet
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

// ---------------------------------------------------------------------------------------------------- existing targets

static bool check_file_target(const Target *t, const struct stat *st, Error *err) {
    if (S_ISDIR(st->st_mode))
        return error_set(err,
                         "this is a directory, but a name that ends in .bin means an llm.c model, which is a file");
    return (S_ISREG(st->st_mode) && (st->st_size == 0 || llmc_bin_is_one(t->path))) ||
           error_set(err, "the file there is not an llm.c model; name another file, or remove it");
}

// Only a directory that an export could have written is replaced. Any other entry in it is named.
static bool check_entries(const Target *t, Error *err) {
    char **names;
    int count;
    if (!directory_list(t->path, &names, &count, err)) return false;
    bool seen[HF_FILES] = {false}, ok = true;
    for (int i = 0; ok && i < count; i++) {
        int file = 0;
        while (file < HF_FILES && strcmp(names[i], huggingface_files[file].name) != 0) file++;
        if (file < HF_FILES)
            seen[file] = true;
        else
            ok = error_set(err, "the directory has %.100s, which is not part of an exported model; name another one",
                           names[i]);
    }
    directory_list_free(names, count);
    if (!ok || count == 0 || (seen[HF_WEIGHTS] && seen[HF_CONFIG])) return ok;
    return error_set(err, "the directory is neither empty nor an exported model; name another one");
}

static bool check_directory_target(const Target *t, const struct stat *st, Error *err) {
    struct stat parent;
    if (!S_ISDIR(st->st_mode))
        return error_set(err, "this is a file; a Hugging Face model is a directory, the name of an llm.c model ends in "
                              ".bin");
    if (stat(t->parent, &parent) != 0 || parent.st_dev != st->st_dev || strcmp(t->path, "/") == 0)
        return error_set(err, "this is a mount point, which cannot be replaced; name a directory inside it");
    return check_entries(t, err);
}

static bool is_own_model(const char *directory) {
    return own_directory_is(directory, huggingface_files, HF_FILES, false, NULL);
}

// Tests by writing that the target can be written.
static bool check_writable(const Target *t, Error *err) {
    if (!directory_check_writable(t->parent, err) || !directory_make(t->parent, err)) return false;
    if (t->is_bin) {
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

static bool check_target(const Target *t, DType dtype, const ModelConfig *config, Error *err) {
    struct stat st;
    if (*t->path == '\0') return error_set(err, "the path is empty");
    if (t->is_bin && dtype == DTYPE_FP16)
        return error_set(err, "llm.c has no models in fp16; use --export-dtype fp32 or bf16, or a directory, which may "
                              "hold fp16");
    if (t->is_bin && config->d_ff)
        return error_set(err, "llm.c's models have no field for d_ff = %lld and always 4 C = %lld; name a directory",
                         (long long)config->d_ff, (long long)(4 * config->C));
    if (ends_in(t->path, ".safetensors"))
        return error_set(err, "name the directory for model.safetensors and config.json, not a file");
    if (stat(t->path, &st) != 0)
        return (lstat(t->path, &st) != 0 || error_set(err, "this is a dangling symbolic link; remove it")) &&
               check_writable(t, err);
    return (t->is_bin ? check_file_target(t, &st, err) : check_directory_target(t, &st, err)) && check_writable(t, err);
}

bool export_check(const char *path, DType dtype, const ModelConfig *config, Error *err) {
    Target t = target_of(path);
    const size_t existing = directory_existing(t.parent);
    const bool ok = check_target(&t, dtype, config, err) || error_prefix(err, "--export %s", path);
    directory_unmake(t.parent, existing);
    target_free(&t);
    return ok;
}

// ------------------------------------------------------------------------------------------------------------- writing

static bool write_directory(const Target *t, const HuggingFaceModel *m, Error *err) {
    FileFacts facts[HF_FILES];
    const bool made = mkdir(t->temporary, 0755) == 0;
    bool ok = made ||
              error_set(err, "%s: cannot make the directory: %s", t->temporary, path_reason(t->temporary, errno).text);
    ok = ok && huggingface_write(t->temporary, m, facts, err) &&
         (!file_exists(t->path) || is_own_model(t->path) ||
          own_file_move_aside(t->path, "is a model that this program did not write", errno, err)) &&
         directory_commit(t->temporary, t->path, err);
    // Removes the replaced model, or the files written before a failure, which err already describes.
    if (made && file_exists(t->temporary)) directory_remove(t->temporary, NULL);
    return ok;
}

bool export_model(const char *path, const Model *model, DType dtype, int64_t eot, const Tokenizer *tokenizer,
                  Error *err) {
    const HuggingFaceModel m = {.model = model, .dtype = dtype, .eot = eot, .tokenizer = tokenizer};
    Target t = target_of(path);
    const bool ok =
        (check_target(&t, dtype, &model_options(model)->config, err) || error_prefix(err, "--export %s", path)) &&
        ((t.is_bin ? llmc_bin_write(t.path, model, dtype, err) : write_directory(&t, &m, err)) ||
         error_prefix(err, "--export"));
    target_free(&t);
    return ok;
}
