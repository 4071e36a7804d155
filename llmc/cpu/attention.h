// What the two directions of causal attention share: shape, the matrices of one head inside the packed tensors, exp.
// Private to attention*.c; ops.h says what attention computes.
//
// In both directions one task is one head of one sequence, and a thread has scratch for one task. Within a task the
// order of work is fixed, and tasks write to different places: the bits do not depend on the number of threads.
#pragma once
#include "llmc/cpu/cpu.h"
#include "llmc/cpu/tile_matmul.h"

typedef struct {
    int64_t B, T, NH, HS;
    DType dtype;
    float scale; // of the scores: 1 / sqrt(HS)
} AttentionShape;

// Checks that qkv is (B,T,3C), of a type that ops accept, and that C splits into num_heads heads.
AttentionShape attention_shape(const char *op, Tensor qkv, int num_heads);

// The (T,HS) matrix of head h of sequence b in t: in (B,T,C) with part 0 of 1, in (B,T,3C) q, k, v as part 0, 1, 2
// of 3.
MatrixView attention_head(AttentionShape s, Tensor t, int64_t b, int64_t h, int part, int parts);

// Bytes of workspace that one thread needs.
int64_t attention_forward_scratch(int64_t T, int64_t HS, DType dtype);
int64_t attention_backward_scratch(int64_t T, int64_t HS, DType dtype);
int64_t attention_decode_scratch(int64_t T);

// Takes the next `bytes` bytes of base, aligned to 64, and moves *end behind them. With base NULL it only counts.
static inline void *scratch_take(char *base, int64_t *end, int64_t bytes) {
    int64_t offset = cpu_part(end, bytes);
    return base ? base + offset : NULL;
}

// e^x for x <= 0 or barely above, as softmax needs it: two thirds of the instructions of vexp, 3% of the time of
// attention. Relative error 2e-7 + 2e-8 |x| (without fma 2e-7 + 7e-8 |x|): what is far below the maximum is less exact
// and matters less. 0 below -104, so also for -inf; NaN for NaN.
//   x log2(e) = k + r with |r| <= 1/2;  e^x = 2^k 2^r, 2^r by a polynomial fitted to the relative error.
static ALWAYS_INLINE V vexp_nonpositive(V x) {
    const V log2_e = vsplat(0x1.715476p+0f);
    x = vmax(vsplat(-104.0f), x); // in this order of arguments NaN passes through
    V k = vround(x * log2_e);
    V r = vfma(x, log2_e, -k);
    V p = vsplat(0x1.5bba14p-10f);
    p = vfma(p, r, vsplat(0x1.3cea88p-7f));
    p = vfma(p, r, vsplat(0x1.c6b752p-5f));
    p = vfma(p, r, vsplat(0x1.ebf9bcp-3f));
    p = vfma(p, r, vsplat(0x1.62e42ap-1f));
    return vscale_pow2(vfma(p, r, vsplat(1.0f)), k);
}
