// See llmc_bin.h.
#include "llmc/store/llmc_bin.h"

#include "llmc/base/atomic_file.h"
#include "llmc/base/file.h"
#include "llmc/base/foreign_file.h"
#include "llmc/base/own_file.h"
#include "llmc/model/model_state.h"
#include "llmc/store/weights_form.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

// Reads the header, and computes the place of each tensor: the ranges of model_config_check keep
// products below 2^63.
static bool read_llmc_header(LlmcBin *f, int64_t size, Error *err) {
    int32_t header[HEADER_INTS] = {0};
    const size_t bytes = (size_t)min_i64(size, HEADER_BYTES);
    if (!file_read_at(f->fd, f->path, 0, header, bytes, err)) return false;
    if (header[0] != MODEL_MAGIC)
        return foreign_file_check("a model", f->path, header, bytes, err) &&
               error_set(err, "%s: not an llm.c model: its first word is %d, expected %d", f->path,
                         (int)header[0], MODEL_MAGIC);
    if (size < HEADER_BYTES)
        return error_set(err, "%s: %lld bytes, expected a header of %d: truncated", f->path,
                         (long long)size, HEADER_BYTES);
    if (header[1] != VERSION_FP32 && header[1] != VERSION_BF16)
        return error_set(err, "%s: llm.c model version %d, expected %d (fp32) or %d (bf16)",
                         f->path, (int)header[1], VERSION_FP32, VERSION_BF16);
    f->dtype = DTYPE_BF16;
    if (header[1] == VERSION_FP32) f->dtype = DTYPE_FP32;
    f->config = (ModelConfig){
        .max_T = header[2], .V = header[3], .L = header[4], .NH = header[5], .C = header[6]};
    if (f->config.V < 1)
        return error_set(err, "%s: vocabulary of %d tokens, expected 1 or more", f->path,
                         (int)header[3]);
    if (!model_config_check(&f->config, err)) return error_prefix(err, "%s", f->path);
    model_config_set_vocab(&f->config, f->config.V);
    if (header[7] != f->config.Vp)
        return error_set(
            err, "%s: padded vocabulary %d, expected %lld (%d rounded up to a multiple of %d)",
            f->path, (int)header[7], (long long)f->config.Vp, (int)header[3], VOCAB_PADDING);

    const int64_t element = (int64_t)dtype_size(f->dtype);
    const int64_t expected = HEADER_BYTES + parameter_total(&f->config) * element;
    const char *difference = size < expected ? "truncated" : "bytes after the last tensor";
    if (size != expected)
        return error_set(err, "%s: %lld bytes, expected %lld for the shape in its header: %s",
                         f->path, (long long)size, (long long)expected, difference);
    const int count = parameter_count(&f->config);
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

LlmcBin *llmc_bin_open(const char *path, ModelConfig *config, Error *err) {
    LlmcBin *f = calloc(1, sizeof *f);
    REQUIRE_MEMORY(f && (f->path = strdup(path)), "a weight file of llm.c");
    int64_t size;
    f->fd = file_open(path, &size, err);
    if (f->fd >= 0 && read_llmc_header(f, size, err)) {
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

bool llmc_bin_read(LlmcBin *f, const Parameter *p, int64_t first_row, int64_t rows, float *out,
                   Error *err) {
    int64_t size = (int64_t)dtype_size(f->dtype), n = rows * p->cols;
    int index = parameter_index(&f->config, (int)(p->spec - parameter_specs), p->block);
    int64_t offset = f->offsets[index] + first_row * p->cols * size;
    if (f->dtype == DTYPE_FP32)
        return file_read_at(f->fd, f->path, offset, out, (size_t)(n * size), err);
    uint16_t raw[CONVERT_ELEMENTS];
    for (int64_t i = 0; i < n; i += CONVERT_ELEMENTS) {
        int64_t m = min_i64(n - i, CONVERT_ELEMENTS);
        if (!file_read_at(f->fd, f->path, offset + i * size, raw, (size_t)(m * size), err))
            return false;
        convert_elements(out + i, DTYPE_FP32, raw, f->dtype, m);
    }
    return true;
}

// ----------------------------------------------------------------------------------------- writing

static bool llmc_bin_append(void *file, const void *data, size_t bytes, Error *err) {
    return atomic_file_write(file, data, bytes, err);
}

bool llmc_bin_write(const char *path, const Model *model, DType dtype, Error *err) {
    REQUIRE(dtype == DTYPE_FP32 || dtype == DTYPE_BF16, "llm.c has no models in %s",
            dtype_name(dtype));
    const ModelConfig *c = &model_options(model)->config;
    int32_t header[HEADER_INTS] = {MODEL_MAGIC,   VERSION_BF16,  (int32_t)c->max_T,
                                   (int32_t)c->V, (int32_t)c->L, (int32_t)c->NH,
                                   (int32_t)c->C, (int32_t)c->Vp};
    if (dtype == DTYPE_FP32) header[1] = VERSION_FP32;
    own_file_mark_header(header);

    AtomicFile *file = atomic_file_create(path, err);
    if (!file) return false;
    bool ok = atomic_file_write(file, header, sizeof header, err);

    for (int i = 0; ok && i < model_num_tensors(model); i++) {
        const Parameter *p = &model_parameters(model)[i];
        const size_t padding = (size_t)((p->rows - p->file_rows) * p->cols) * dtype_size(dtype);
        void *zeros = calloc(1, padding + 1);
        REQUIRE_MEMORY(zeros != NULL, "a weight file of llm.c");
        ok = weights_form_write(model, i, (WeightsForm){.dtype = dtype}, llmc_bin_append, file,
                                err) &&
             atomic_file_write(file, zeros, padding, err);
        free(zeros);
    }

    if (ok) return own_file_commit(file, path, OWN_FILE_HEADER_MARK, err);
    atomic_file_abandon(file);
    return false;
}
