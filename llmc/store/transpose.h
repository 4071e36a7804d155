// Matrices between our layout (out, in) and Hugging Face's (in, out). Header-only.
#pragma once
#include <stdint.h>

// out[c * out_stride + r] = in[r * in_stride + c] for r < rows, c < cols. In tiles of 16 x 16 floats: a tile is 16
// cache lines on both sides, so each line is read and written once.
static inline void transpose(float *out, int64_t out_stride, const float *in, int64_t in_stride, int64_t rows,
                             int64_t cols) {
    enum { TILE = 16 };
    for (int64_t r0 = 0; r0 < rows; r0 += TILE) {
        int64_t r1 = r0 + TILE < rows ? r0 + TILE : rows;
        for (int64_t c0 = 0; c0 < cols; c0 += TILE) {
            int64_t c1 = c0 + TILE < cols ? c0 + TILE : cols;
            for (int64_t c = c0; c < c1; c++)
                for (int64_t r = r0; r < r1; r++) out[c * out_stride + r] = in[r * in_stride + c];
        }
    }
}

enum { TRANSPOSE_STRIP = 64 }; // rows of the (in, out) side that are read or written at a time
