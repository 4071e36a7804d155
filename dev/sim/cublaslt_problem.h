// The objects of the simulated cuBLASLt and the rules for a multiplication: what cublaslt.cpp looks
// up before it searches or runs. Internal to dev/sim.
#pragma once
#include "dev/sim/cublaslt.h"
#include "dev/sim/gemm.h"
#include "dev/sim/runtime.h"
#include <cublasLt.h>
#include <stddef.h>
#include <stdint.h>

namespace sim::lt {

enum Kind : uint32_t { HANDLE = 0x51a0001, OPERATION, LAYOUT, PREFERENCE, ALGORITHM };

struct Handle {
    Kind kind = HANDLE;
};
struct Operation {
    Kind kind = OPERATION;
    cublasComputeType_t compute;
    cudaDataType scale;
    int32_t transa = CUBLAS_OP_N, transb = CUBLAS_OP_N;
    uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    void *bias = nullptr, *aux = nullptr;
    int64_t aux_ld = 0;
    int32_t bias_type = -1, aux_type = -1;
    const float *scale_a = nullptr, *scale_b = nullptr;
    int8_t fast_sums = 0;
    int32_t units = 0; // multiprocessors; 0: all
};
struct Layout {
    Kind kind = LAYOUT;
    cudaDataType type;
    int64_t rows, cols, ld;
    int32_t count = 1; // of matrices in a batch
    int64_t stride = 0;
};
struct Preference {
    Kind kind = PREFERENCE;
    uint64_t workspace = 0;
    uint32_t reduction_mask = CUBLASLT_REDUCTION_SCHEME_MASK;
    uint32_t alignment[4] = {256, 256, 256, 256}; // of A, B, C, D
};
// This is the content of cublasLtMatmulAlgo_t.
struct Algorithm {
    Kind kind;
    SimAlgorithm which;
    uint32_t alignment[4]; // promised at the search
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t), "");

struct Problem {
    const Operation *op;
    const Layout *a, *b, *c, *d;
    int64_t m, n, k;
};

// Prints "sim: cublasLt: ..." and returns the status.
cublasStatus_t fail(cublasStatus_t status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
#define INVALID(...) fail(CUBLAS_STATUS_INVALID_VALUE, __VA_ARGS__)

// The object behind an opaque pointer; ends the program when it is none, or was destroyed.
template <class T, class P> T *object(P opaque) {
    T *x = reinterpret_cast<T *>(opaque);
    if (!x || x->kind != T().kind)
        fatal("cublasLt: %p is not what it should be: %s", (void *)opaque, __PRETTY_FUNCTION__);
    return x;
}

inline bool is_aligned(const void *p, size_t bytes) { return (uintptr_t)p % bytes == 0; }

// Fills *p, and says what is wrong with it.
cublasStatus_t make_problem(Problem *p, cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t a,
                            cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                            cublasLtMatrixLayout_t d);
// The same for the memory behind the operands A, B, C, D and behind bias and aux.
cublasStatus_t check_operands(const Problem &p, const Algorithm &algorithm,
                              const void *const pointers[4], const void *workspace,
                              uint64_t workspace_bytes);

Algorithm unpack(const cublasLtMatmulAlgo_t *algo);
int splits_of(SimAlgorithm which);                                            // parts of k
uint64_t workspace_of(SimAlgorithm which, const Problem &p);                  // bytes
bool fits(SimAlgorithm which, const Problem &p, const uint32_t alignment[4]); // can do this at all
bool is_refused(uint32_t epilogue); // SIM_CUBLASLT_REFUSE names it
// SIM_CUBLASLT_VICES names either
bool has_vice(SimAlgorithm which, uint32_t epilogue, const char *vice);

} // namespace sim::lt
