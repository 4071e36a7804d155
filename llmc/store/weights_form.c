// See weights_form.h.
#include "llmc/store/weights_form.h"

#include "llmc/base/arithmetic.h"
#include "llmc/model/model_state.h"

#include <math.h>
#include <stdlib.h>

typedef struct {
    const Model *model;
    const Parameter *p;
    int index;
    WeightsForm form;
    WeightsSink *sink;
    void *file;
    uint16_t *halves; // a piece in 16 bits
} WeightsWriter;

static void *weights_form_allocate(int64_t count, size_t size) {
    void *memory = malloc((size_t)count * size);
    REQUIRE_MEMORY(memory != NULL, "%lld values of a model", (long long)count);
    return memory;
}

bool weights_to_halves(uint16_t *out, DType dtype, const float *values, int64_t n, const char *tensor, Error *err) {
    convert_elements(out, dtype, values, DTYPE_FP32, n);
    // A value beyond the range of the file's type would be read back as infinity.
    const uint16_t infinity = dtype == DTYPE_FP16 ? 0x7C00 : 0x7F80;
    for (int64_t i = 0; i < n; i++)
        if ((out[i] & 0x7FFF) == infinity && !isinf(values[i]))
            return error_set(err, "tensor %s has the value %g, which %s cannot represent; write the model in %s",
                             tensor, (double)values[i], dtype_name(dtype),
                             dtype == DTYPE_FP16 ? "bf16 or fp32" : "fp32");
    return true;
}

static bool put_values(const WeightsWriter *s, const float *values, int64_t n, Error *err) {
    if (s->form.dtype == DTYPE_FP32) return s->sink(s->file, values, (size_t)n * sizeof *values, err);
    return weights_to_halves(s->halves, s->form.dtype, values, n, s->p->name, err) &&
           s->sink(s->file, s->halves, (size_t)n * sizeof *s->halves, err);
}

static bool get_rows(const WeightsWriter *s, int64_t first, int64_t rows, float *out, Error *err) {
    return model_get_weight(s->model, s->index, first, rows, out) ||
           error_set(err, "the state of another process cannot be read");
}

static bool write_plain(const WeightsWriter *s, Error *err) {
    const Parameter *p = s->p;
    float *piece = weights_form_allocate(min_i64(WEIGHTS_PIECE_FLOATS, p->file_rows * p->cols), sizeof *piece);
    bool ok = true;
    for (int64_t row = 0; ok && row < p->file_rows; row += weights_piece_rows(p)) {
        const int64_t n = min_i64(weights_piece_rows(p), p->file_rows - row);
        ok = get_rows(s, row, n, piece, err) && put_values(s, piece, n * p->cols, err);
    }
    free(piece);
    return ok;
}

static bool write_transposed(const WeightsWriter *s, Error *err) {
    const int64_t out = s->p->rows, in = s->p->cols;
    float *matrix = weights_form_allocate(out * in, sizeof *matrix),
          *strip = weights_form_allocate(TRANSPOSE_STRIP * out, sizeof *strip);
    bool ok = get_rows(s, 0, out, matrix, err);
    for (int64_t c = 0; ok && c < in; c += TRANSPOSE_STRIP) {
        const int64_t n = min_i64(TRANSPOSE_STRIP, in - c);
        weights_transpose(strip, out, matrix + c, in, out, n);
        ok = put_values(s, strip, n * out, err);
    }
    free(matrix);
    free(strip);
    return ok;
}

bool weights_form_write(const Model *model, int index, WeightsForm form, WeightsSink *sink, void *file, Error *err) {
    const Parameter *p = &model_parameters(model)[index];
    WeightsWriter s = {.model = model, .p = p, .index = index, .form = form, .sink = sink, .file = file};
    int64_t piece = WEIGHTS_PIECE_FLOATS;
    if (form.transposed) piece = TRANSPOSE_STRIP * p->rows;
    s.halves = weights_form_allocate(form.dtype == DTYPE_FP32 ? 1 : piece, sizeof *s.halves);
    const bool ok = form.transposed ? write_transposed(&s, err) : write_plain(&s, err);
    free(s.halves);
    return ok;
}
