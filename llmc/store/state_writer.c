// See state_writer.h.
#include "llmc/store/state_writer.h"

#include "llmc/base/checked.h"
#include "llmc/store/transpose.h"
#include <math.h>
#include <stdlib.h>

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
