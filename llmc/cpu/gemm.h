// Matrix multiplication as the ops need it: any size, fp32 and bf16 on every machine, in pieces that suit the caches.
// Between the ops (matmul.c, head_loss.c) and the library (onednn.h).
#pragma once
#include "llmc/cpu/onednn.h"
#include "llmc/tensor.h"

// t seen as rows of cols elements, and the views that the ops take of it.
Matrix matrix_of(Tensor t, int64_t cols);
Matrix matrix_transposed(Matrix m);
Matrix matrix_at(Matrix m, int64_t i, int64_t j); // the part that starts at element (i, j)

// dst (M,N) = or += a (M,K) @ b (K,N) + bias (N). fp32 sums, rounded once. a, b and bias (NULL: none) have one dtype;
// dst that dtype or fp32, rows contiguous. With accumulate there is no bias.
void gemm(int64_t M, int64_t N, int64_t K, Matrix dst, Matrix a, Matrix b, void *bias, bool accumulate);

// What gemm needs to widen bf16 tiles to fp32 (cpu_backend.gemm_tiles).
enum { GEMM_TILE = 256, GEMM_TILES_BYTES = 3 * GEMM_TILE * GEMM_TILE * 4 };
