// Matrix multiplications by oneDNN. onednn.c is the only file of the project that uses the library,
// and it hides the differences between its versions 2 and 3. It has one matrix multiplication, with
// primitives cached by shape. It owns the engine, the stream and the primitives, but no data except
// scratch memory that its caller did not provide.
#pragma once
#include "llmc/base/error.h"
#include "llmc/device.h"
#include "llmc/tensor.h"

// A matrix inside a larger array: element (i, j) is data[i * row_stride + j * col_stride]; one
// stride is 1.
typedef struct {
    void *data;
    DType dtype;
    int64_t row_stride, col_stride;
} Matrix;

typedef struct Onednn Onednn;
// limit: the library uses no more instructions than this code (CPU_AUTO: all that the processor
// has), which holds for the rest of the process: the library can be told once. So a run with
// PRETRAIN_CPU=avx2 is what a processor with AVX2 does.
Onednn *onednn_create(CpuCodeChoice limit, Error *err);
void onednn_destroy(Onednn *dnn);

const char *onednn_version(void); // "2.6.3", as found at run time

// The sets of instructions that it uses, as its bits.
unsigned onednn_instructions(void);

// bf16 multiplications run on bf16 instructions (AVX512-BF16 or AMX). Without them oneDNN either
// has none (AVX2) or emulates at half the speed of fp32 (AVX-512): gemm then widens to fp32.
bool onednn_has_bf16(void);

// Scratch memory for the primitives of the following calls: bytes at p, 64-byte aligned. A
// primitive that needs more gets its own from the heap, and keeps it.
void onednn_set_scratch(Onednn *dnn, void *p, int64_t bytes);

// dst (M,N) = or += a (M,K) @ b (K,N) + bias (N). fp32 sums. a, b and bias (NULL: none) have one
// dtype, fp32 or bf16; dst that dtype or fp32. Same bits from call to call. The library splits K
// among threads, so other thread counts may give other bits. Returns false, with nothing done, when
// the library has no implementation for this case.
bool onednn_matmul(Onednn *dnn, int64_t M, int64_t N, int64_t K, Matrix dst, Matrix a, Matrix b,
                   void *bias, bool accumulate);
