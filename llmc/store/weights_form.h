// The values of a model's weights in the form of a file: its element type, and matrices transposed
// if it stores them so. Written piece by piece, so that host memory stays small whatever the model.
#pragma once
#include "llmc/model/model.h"
#include "llmc/model/parameters.h"

#include <stdint.h>

typedef struct {
    DType dtype;     // fp32; fp16 and bf16 are rounded to nearest even
    bool transposed; // (out, in) in our tensors, (in, out) in the file
    bool normalized; // each row as weights_normalize_row makes it
} WeightsForm;

// Makes a row of the embedding what embed_norm makes of it: row (cols) divided by its root mean
// square. Returns the factor.
float weights_normalize_row(float *row, int64_t cols);

// Takes the next bytes of the file.
typedef bool WeightsSink(void *file, const void *data, size_t bytes, Error *err);

// Writes tensor `index` to the sink, without rows of padding (p->file_rows rows). False: the sink
// failed, or a finite value is infinite in the file's type.
bool weights_form_write(const Model *model, int index, WeightsForm form, WeightsSink *sink,
                        void *file, Error *err);

// Converts n values of a tensor to fp16 or bf16, rounded to nearest even. False: a finite value
// becomes infinite.
bool weights_to_halves(uint16_t *out, DType dtype, const float *values, int64_t n,
                       const char *tensor, Error *err);

enum {
    WEIGHTS_PIECE_FLOATS = 2 << 20
}; // 8 MiB a piece: amortises the cost of a call, small compared with a model
// Rows of a tensor in a piece. A row has at most d_ff = 262,144 floats, 1 MiB.
static inline int64_t weights_piece_rows(const Parameter *p) {
    return WEIGHTS_PIECE_FLOATS / p->cols;
}

// Rows in the file of part `part` of a tensor that is stored as several, or of the whole tensor.
static inline int64_t weights_part_rows(const Parameter *p, int part) {
    if (p->file_parts > 1) return p->parts[part];
    return p->file_rows;
}

// out[c * out_stride + r] = in[r * in_stride + c] for r < rows, c < cols. Works in tiles of 16 x 16
// floats: a tile is 16 cache lines on both sides, so each line is read and written once.
static inline void weights_transpose(float *out, int64_t out_stride, const float *in,
                                     int64_t in_stride, int64_t rows, int64_t cols) {
    enum { TILE = 16 };
    for (int64_t r0 = 0; r0 < rows; r0 += TILE) {
        int64_t r1 = min_i64(r0 + TILE, rows);
        for (int64_t c0 = 0; c0 < cols; c0 += TILE) {
            int64_t c1 = min_i64(c0 + TILE, cols);
            for (int64_t c = c0; c < c1; c++)
                for (int64_t r = r0; r < r1; r++) out[c * out_stride + r] = in[r * in_stride + c];
        }
    }
}

enum { TRANSPOSE_STRIP = 64 }; // rows of the (in, out) side that are read or written at a time
