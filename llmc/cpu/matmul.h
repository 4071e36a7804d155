// Matrix multiplication for the ops: any size, fp32 and bf16 on every machine, in cache-sized
// pieces, on top of oneDNN.
#pragma once
#include "llmc/cpu/onednn.h"

// t seen as rows of cols elements, and the views that the ops take of it.
static inline Matrix matrix_of(Tensor t, int64_t cols) {
    return (Matrix){.data = t.data, .dtype = t.dtype, .row_stride = cols, .col_stride = 1};
}
static inline Matrix matrix_transposed(Matrix m) {
    return (Matrix){
        .data = m.data, .dtype = m.dtype, .row_stride = m.col_stride, .col_stride = m.row_stride};
}
// The part that starts at element (i, j).
static inline Matrix matrix_at(Matrix m, int64_t i, int64_t j) {
    m.data = (char *)m.data + (i * m.row_stride + j * m.col_stride) * (int64_t)dtype_size(m.dtype);
    return m;
}

// dst (M,N) = or += a (M,K) @ b (K,N) + bias (N). fp32 sums, rounded once. a, b and bias (NULL:
// none) have one dtype; dst that dtype or fp32, rows contiguous.
void gemm(int64_t M, int64_t N, int64_t K, Matrix dst, Matrix a, Matrix b, void *bias,
          bool accumulate);
