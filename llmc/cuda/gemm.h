// Matrix products by cuBLASLt: descriptors and an algorithm are found once for each distinct product, measured on first
// use, and remembered here for the process and in the tuning file (tuning.h) for the next one. matmul.c maps the ops
// onto this.
//
// Only algorithms that repeat their bits are used: k in one piece, or split with fp32 parts that are added in a fixed
// order, and then only after two runs on the real operands gave the same bits. And only those that ran, and whose
// results agree: an algorithm that leaves out part of its work is the fastest.
#pragma once
#include "llmc/cuda/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

// What cuBLASLt does to z = op(A) op(B) [+ D] before it stores D (m,n). bias and aux are of D's type.
typedef enum {
    GEMM_PLAIN,         // D = z
    GEMM_BIAS,          // D = z + bias (m)
    GEMM_GELU_AUX_BIAS, // aux (m,n) = z + bias (m), D = gelu(z + bias): gelu of what was not rounded yet
    GEMM_DGELU,         // D = z * gelu'(aux (m,n))
    GEMM_BGRADB,        // D = z, bias (n) = sum over k of op(B): stored, never added to what stood there
} GemmEpilogue;

// One product as cuBLASLt sees it: column-major and contiguous, so that a row-major tensor (rows, cols) is a matrix
// (cols, rows) with leading dimension cols.
typedef struct {
    const char *op;                // for messages
    bool transpose_a, transpose_b; // A is (k,m) in memory instead of (m,k), B is (n,k) instead of (k,n)
    int64_t m, n, k;
    DType in_a, in_b, out; // of A, B and D; A and B differ in fp8 only
    GemmEpilogue epilogue;
    bool accumulate; // D += instead of D =
    const void *a, *b;
    const float *scale_a, *scale_b; // fp8, on the device: what A and B are multiplied by, read when the product runs
    bool fast_sums;                 // fp8: sums may stay in the tensor cores' registers, see fp8_matmul
    void *d, *bias, *aux;
    void *workspace; // 256-byte aligned; its contents are lost
    size_t workspace_bytes;
} Gemm;

typedef struct GemmPlan GemmPlan;

// The plan of a product, found or made. NULL when cuBLASLt has nothing for it. Products that differ only in where
// operands lie, at the same alignment, and in accumulate share a plan. The first call of a plan chooses its algorithm
// by running candidates on the operands of g, which must be valid: D, aux and a bias gradient are overwritten (D not
// when it accumulates). Never under capture.
GemmPlan *gemm_plan(const Gemm *g);

// Launches the product on the compute stream.
void gemm_run(const GemmPlan *plan, const Gemm *g);

// What an epilogue does and what a plain product and a kernel can do as well.
enum { GEMM_MAX_OUTPUTS = 2 };
typedef struct {
    bool (*work)(void *context, int fused); // 0: the plain way, 1: the fused way; both repeatable
    void *context;
    bool (*repeats)(void *context);   // asked first, may be NULL: false is a no
    bool timed;                       // the fused way must be faster too
    bool adds;                        // work adds to its outputs
    Tensor outputs[GEMM_MAX_OUTPUTS]; // lost
    int num_outputs;
} GemmContest;

// Whether the fused way is to be taken. The first call compares the outputs of both ways, and measures. An output
// without data, or no memory to compare: not where time decides.
bool gemm_fuses(GemmPlan *plan, const GemmContest *contest);
bool gemm_is_known(GemmPlan *plan, bool timed); // the next gemm_fuses will run nothing

// Frees the plans and the library handle, forgets the tuning file.
void gemm_shutdown(void);

typedef struct {
    int64_t plans, timed; // plans made; candidates that were timed for them
} GemmCounts;
GemmCounts gemm_counts(void);

#ifdef __cplusplus
}
#endif
