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

bool weights_to_halves(uint16_t *out, DType dtype, const float *values, int64_t n,
                       const char *tensor, Error *err) {
    convert_elements(out, dtype, values, DTYPE_FP32, n);
    // A value beyond the range of the file's type would be read back as infinity.
    uint16_t infinity = 0x7F80;
    const char *wider = "fp32";
    if (dtype == DTYPE_FP16) {
        infinity = 0x7C00;
        wider = "bf16 or fp32";
    }
    for (int64_t i = 0; i < n; i++)
        if ((out[i] & 0x7FFF) == infinity && !isinf(values[i]))
            return error_set(
                err, "tensor %s has the value %g, which %s cannot represent; write the model in %s",
                tensor, (double)values[i], dtype_name(dtype), wider);
    return true;
}

float weights_normalize_row(float *row, int64_t cols) {
    double squares = 0.0;
    for (int64_t i = 0; i < cols; i++) squares += (double)row[i] * (double)row[i];
    const double rstd = 1.0 / sqrt(squares / (double)cols + (double)EMBED_NORM_EPS);
    for (int64_t i = 0; i < cols; i++) row[i] = (float)(row[i] * rstd);
    return (float)rstd;
}

static bool put_values(const WeightsWriter *s, const float *values, int64_t n, Error *err) {
    if (s->form.dtype == DTYPE_FP32)
        return s->sink(s->file, values, (size_t)n * sizeof *values, err);
    return weights_to_halves(s->halves, s->form.dtype, values, n, s->p->name, err) &&
           s->sink(s->file, s->halves, (size_t)n * sizeof *s->halves, err);
}

bool weights_form_write(const Model *model, int index, WeightsForm form, WeightsSink *sink,
                        void *file, Error *err) {
    const Parameter *p = &model_parameters(model)[index];
    WeightsWriter s = {
        .model = model, .p = p, .index = index, .form = form, .sink = sink, .file = file};
    int64_t count = min_i64(WEIGHTS_PIECE_FLOATS, p->file_rows * p->cols), halves = 1;
    if (form.transposed) count = TRANSPOSE_STRIP * p->rows;
    if (form.dtype != DTYPE_FP32) halves = count;
    const int64_t whole = form.transposed ? p->rows * p->cols : 1;

    float *piece = malloc((size_t)count * sizeof *piece),
          *matrix = malloc((size_t)whole * sizeof *matrix);
    s.halves = malloc((size_t)halves * sizeof *s.halves);
    REQUIRE_MEMORY(piece && matrix && s.halves, "the values of %s", p->name);

    bool ok = true;
    if (form.transposed) {
        ok = model_get_weight(model, index, 0, p->rows, matrix, err);
        for (int64_t c = 0; ok && c < p->cols; c += TRANSPOSE_STRIP) {
            const int64_t n = min_i64(TRANSPOSE_STRIP, p->cols - c);
            weights_transpose(piece, p->rows, matrix + c, p->cols, p->rows, n);
            ok = put_values(&s, piece, n * p->rows, err);
        }
    } else {
        for (int64_t row = 0; ok && row < p->file_rows; row += weights_piece_rows(p)) {
            const int64_t n = min_i64(weights_piece_rows(p), p->file_rows - row);
            ok = model_get_weight(model, index, row, n, piece, err);
            for (int64_t r = 0; ok && form.normalized && r < n; r++)
                weights_normalize_row(piece + r * p->cols, p->cols);
            if (ok) ok = put_values(&s, piece, n * p->cols, err);
        }
    }

    free(matrix);
    free(piece);
    free(s.halves);
    return ok;
}
