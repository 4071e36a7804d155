// Matrix multiplication for the ops. gemm: any size, fp32 and bf16 on every machine, in cache-sized pieces, on top of
// oneDNN. few_rows_matmul: a left side of a few rows, memory-bound. fp8 on top of bf16.
//
// onednn.c is the only file of the project that uses the library, and it hides the differences between its versions 2
// and 3. It has one matrix multiplication, with primitives cached by shape. It owns the engine, the stream and the
// primitives, but no data except scratch memory that its caller did not provide.
#pragma once
#include "llmc/base/error.h"
#include "llmc/ops.h"
#include "llmc/tensor.h"

// --------------------------------------------------------------------------------------------------- oneDNN (onednn.c)

// A matrix inside a larger array: element (i, j) is data[i * row_stride + j * col_stride]; one stride is 1.
typedef struct {
    void *data;
    DType dtype;
    int64_t row_stride, col_stride;
} Matrix;

typedef struct Onednn Onednn;
Onednn *onednn_create(Error *err);
void onednn_destroy(Onednn *dnn);

const char *onednn_version(void); // "2.6.3", as found at run time

// bf16 multiplications run on bf16 instructions (AVX512-BF16 or AMX). Without them oneDNN either has none (AVX2) or
// emulates at half the speed of fp32 (AVX-512): gemm then widens to fp32.
bool onednn_has_bf16(void);

// Scratch memory for the primitives of the following calls: bytes at p, 64-byte aligned. A primitive that needs more
// gets its own from the heap, and keeps it.
void onednn_set_scratch(Onednn *dnn, void *p, int64_t bytes);

// dst (M,N) = or += a (M,K) @ b (K,N) + bias (N). fp32 sums. a, b and bias (NULL: none) have one dtype, fp32 or bf16;
// dst that dtype or fp32. Same bits from call to call. The library splits K among threads, so other thread counts
// may give other bits.
// Returns false, with nothing done, when the library has no implementation for this case.
bool onednn_matmul(Onednn *dnn, int64_t M, int64_t N, int64_t K, Matrix dst, Matrix a, Matrix b, void *bias,
                   bool accumulate);

// ---------------------------------------------------------------------------------------------------------------- gemm

// t seen as rows of cols elements, and the views that the ops take of it.
Matrix matrix_of(Tensor t, int64_t cols);
Matrix matrix_transposed(Matrix m);
Matrix matrix_at(Matrix m, int64_t i, int64_t j); // the part that starts at element (i, j)

// dst (M,N) = or += a (M,K) @ b (K,N) + bias (N). fp32 sums, rounded once. a, b and bias (NULL: none) have one dtype;
// dst that dtype or fp32, rows contiguous.
void gemm(int64_t M, int64_t N, int64_t K, Matrix dst, Matrix a, Matrix b, void *bias, bool accumulate);

// The scratch that gemm needs to widen bf16 tiles to fp32 (cpu_backend.gemm_tiles).
enum { GEMM_TILE = 256, GEMM_TILES_BYTES = 3 * GEMM_TILE * GEMM_TILE * 4 };

// ------------------------------------------------------------------------------------------------------------ few rows

// The max number of rows for which it is faster than the library. One token of the 124M model in bf16 on 2 threads, ms
// with oneDNN -> with this:
// 1 row 10.4 -> 4.1, 2 8.1 -> 4.3, 8 10.0 -> 6.0, 16 12.5 -> 10.3.
enum { FEW_ROWS = 16 };

// out (M,OC) = residual + in (M,IC) @ weight (OC,IC)^T + bias (OC). residual and bias may be absent. fp32 sums, rounded
// once; a row of out has the same bits whatever M is. One dtype, fp32 or bf16.
void few_rows_matmul(Tensor out, Tensor residual, Tensor in, Tensor weight, Tensor bias);

// --------------------------------------------------------------------------------------------------------- fp8 (fp8.c)

int64_t cpu_fp8_operand_bytes(OpsShape shape); // 0 where the shape has no fp8
