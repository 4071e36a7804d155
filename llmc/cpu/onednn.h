// oneDNN, and everything that differs between its versions 2 and 3: one matrix multiplication, its primitives cached by
// shape. The only file of the project that knows the library.
// Owns the engine, the stream and the primitives; no data but scratch memory that its caller did not provide.
#pragma once
#include "llmc/base/error.h"
#include "llmc/tensor.h"

// A matrix inside a larger array: element (i, j) stands at data[i * row_stride + j * col_stride]; one stride is 1.
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
// emulates at half the speed of fp32 (AVX-512): gemm.c then widens to fp32.
bool onednn_has_bf16(void);

// Scratch memory for the primitives of the following calls: bytes at p, 64-byte aligned. What needs more gets it from
// the heap, and keeps it there.
void onednn_set_scratch(Onednn *dnn, void *p, int64_t bytes);

// dst (M,N) = or += a (M,K) @ b (K,N) + bias (N). fp32 sums. a, b and bias (NULL: none) have one dtype, fp32 or bf16;
// dst that dtype or fp32. Same bits from call to call. The split of K among threads is the library's: other thread
// counts may give other bits.
// Returns false, with nothing done, when the library has no implementation for this case.
bool onednn_matmul(Onednn *dnn, int64_t M, int64_t N, int64_t K, Matrix dst, Matrix a, Matrix b, void *bias,
                   bool accumulate);
