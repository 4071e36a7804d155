// Matmuls of fp8 operands on cuBLASLt, which has them in one form only: both operands with k as their contiguous
// dimension, which is how ops.h asks for all three products of a layer. What is quantised, and when, is decided in
// llmc/model/gpt2_linear.c; the quantisation itself is in fp8_quantize.cu.
//
// Scales: a slot holds what values were multiplied by and the inverse of that; the library reads the inverses on the
// device when the product runs, so no launch depends on them.
//
// Sums: the tensor cores of sm_89 and sm_90 keep about 14 bits of a sum of fp8 products (DeepSeek-AI, "DeepSeek-V3
// Technical Report", 2024, section 3.3.2: errors up to 2% at K = 4096). Without CUBLASLT_MATMUL_DESC_FAST_ACCUM the
// library moves partial sums to fp32 registers every few instructions. Gradients are summed that way: a weight gradient
// has K = B T rows, 65536 of them, and what falls off its sum is the same in every step, a bias and not noise; an input
// gradient adds e5m2 numbers of very different size. The forward pass, with K = C or 4 C, is fast: there the rounding
// of the operands to 4 bits is the larger error. Of the three products only the forward one has two e4m3 operands.
#include "llmc/cuda/matmul.h"
#include <stddef.h>

enum { ALIGNMENT = 16 }; // of cuBLASLt

static void check_aligned(const char *op, Tensor t) {
    REQUIRE((uintptr_t)t.data % ALIGNMENT == 0, "%s: %s is not %d-byte aligned", op, t.name, ALIGNMENT);
}

static const float *inverse_of(Tensor slot) {
    return (const float *)((const char *)slot.data + offsetof(Fp8Slot, inverse));
}

void fp8_matmul(Tensor out, Tensor a, Tensor a_slot, Tensor b, Tensor b_slot, Tensor bias, bool accumulate) {
    const char *op = "fp8_matmul";
    REQUIRE(cuda_backend.facts.supports[DTYPE_E4M3], "%s: %s has no fp8", op, cuda_backend.facts.name);
    const int64_t M = tensor_rows(a), N = tensor_rows(b), K = tensor_cols(a);
    cuda_check_float(op, out);
    check_fp8_matmul(op, out, a, a_slot, b, b_slot, bias, accumulate);
    check_aligned(op, a), check_aligned(op, b), check_aligned(op, out);
    if (bias.data) tensor_check(op, bias, out.dtype, N);
    // Row-major out (M,N) = a (M,K) b (N,K)^T, column-major: out (N,M) = b (K,N)^T a (K,M).
    const Gemm g = {
        .op = op,
        .transpose_a = true,
        .m = N,
        .n = M,
        .k = K,
        .in_a = b.dtype,
        .in_b = a.dtype,
        .out = out.dtype,
        .accumulate = accumulate,
        .a = b.data,
        .b = a.data,
        .d = out.data,
        .scale_a = inverse_of(b_slot),
        .scale_b = inverse_of(a_slot),
        .fast_sums = a.dtype == b.dtype,
    };
    // The library's fp8 epilogues take 16-bit biases only.
    cuda_matmul_bias(g, out, bias, out.dtype != DTYPE_FP32);
}
