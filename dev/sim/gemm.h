// The arithmetic behind the simulated cuBLASLt: D = epilogue(alpha scale_a scale_b op(A) op(B) +
// beta C), column-major, fp32 sums over k in index order; products of fp8 numbers are exact in
// fp32. Knows nothing of streams, descriptors or checks; those are in cublaslt.cpp.
//
// Bits: each element is one chain of multiplications and additions over k (one chain for each part
// when k is split, the parts added in order). Vector code runs over rows only, so the result does
// not depend on the width of vectors. With SIM_NUMERICS=hardware another order, operands rounded to
// TF32 and tensor cores that cut off.
#pragma once
#include <cublasLt.h>
#include <stddef.h>
#include <stdint.h>

namespace sim {

// Bytes of a number: 1, 2 or 4; 0: a type that is not simulated.
inline size_t width(int32_t type) {
    return type == CUDA_R_32F                                 ? 4
           : type == CUDA_R_16BF || type == CUDA_R_16F        ? 2
           : type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2 ? 1
                                                              : 0;
}
inline bool is_fp8(int32_t type) { return width(type) == 1; }

struct GemmMatrix {
    void *data;
    cudaDataType type; // fp32, bf16, fp16; of A and B also e4m3, e5m2
    int64_t ld;        // elements from one column to the next
    bool transposed;
};

struct Gemm {
    int64_t m, n, k;
    GemmMatrix a, b, c, d;
    float alpha, beta;
    cublasLtEpilogue_t epilogue;
    GemmMatrix bias;                // the vector, of length m
    GemmMatrix aux;                 // m x n
    int splits;                     // parts of k
    float *partials;                // (splits, n, m) when splits > 1
    const float *scale_a, *scale_b; // read when it runs; null: 1
    bool fast_sums;                 // of fp8 numbers
    bool tf32;                      // fp32 operands may be rounded to TF32
};

void gemm_run(const Gemm &g);

} // namespace sim
