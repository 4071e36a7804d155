// Matrix products by cuBLASLt. Descriptors and an algorithm are found once for each distinct
// product, at its first use, and kept here for the process and in the file of choices for the next
// one. matmul.c maps the ops onto this.
//
// The algorithm is the fastest of the library's candidates where it is timed, else the first;
// tuning.c states what is guaranteed.
#pragma once
#include "llmc/cuda/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

// The epilogues: cuBLASLt applies them to z = alpha op(A) op(B) [+ beta C] before it stores D
// (m,n). bias and aux are of D's type.
typedef enum {
    GEMM_PLAIN,         // D = z
    GEMM_BIAS,          // D = z + bias (m)
    GEMM_GELU_AUX_BIAS, // aux (m,n) = z + bias (m), D = gelu(z + bias): gelu of the unrounded sum
    GEMM_DGELU,         // D = z * gelu'(aux (m,n))
} GemmEpilogue;

// One product as cuBLASLt sees it: column-major and contiguous, so a row-major tensor (rows, cols)
// is a matrix (cols, rows) with leading dimension cols.
typedef struct {
    const char *op; // for messages
    // A is (k,m) in memory instead of (m,k), B is (n,k) instead of (k,n)
    bool transpose_a, transpose_b;
    int64_t m, n, k;
    int64_t stack;         // number of products, operands one after the other; 0: one
    DType in_a, in_b, out; // of A, B and D; A and B differ in fp8 only
    float alpha, beta;     // read when the product runs
    GemmEpilogue epilogue;
    const void *a, *b;
    const void *c; // the addend, of D's type and shape; NULL: none; d: D +=
    // fp8, on the device: factors of A and B, read when the product runs
    const float *scale_a, *scale_b;
    bool fast_sums; // fp8: sums may stay in the tensor cores' registers, see fp8_matmul
    bool timed;     // of a training step: worth a contest of the candidates
    void *d, *aux;
    const void *bias;
    void *workspace; // 256-byte aligned; its contents are lost
    size_t workspace_bytes;
} Gemm;

// Launches the product on the compute stream. False: cuBLASLt does not support it. Products that
// differ only in the addresses of operands, at the same alignment, in alpha and beta and in whether
// D accumulates share a plan. The first of them makes it, and chooses its algorithm by running
// candidates on the operands of g, which must be valid; D and aux are overwritten (not D if it
// accumulates). Never under capture.
bool gemm_run(const Gemm *g);

// Frees the plans and the library handle, closes the file of choices.
void gemm_shutdown(void);

typedef struct {
    int64_t plans, timed; // plans made; candidates that were timed for them
} GemmCounts;
GemmCounts gemm_counts(void);

// The reference for the check of an algorithm, for GEMM_SLICE x GEMM_SLICE elements of D, evenly
// spread from the first to the last row and column: their expected values, by fp32 sums, and their
// actual values; the same of aux if the epilogue writes it, else zeros; and the root of the sum of
// the squares of an element's products, the scale for the error of a sum that cancels. Of a stack
// the first product. values: on the device; launched on the compute stream. g does not accumulate
// in place.
enum { GEMM_SLICE = 8 };
typedef struct {
    float expected, got, expected_aux, got_aux, spread;
} GemmElement;
void cuda_gemm_slice(GemmElement values[GEMM_SLICE * GEMM_SLICE], const Gemm *g);

#ifdef __cplusplus
}
#endif
