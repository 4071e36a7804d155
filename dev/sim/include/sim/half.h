// What cuda_bf16.h and cuda_fp16.h declare only under nvcc, for both 16-bit types. Included after either of them.
// Every function computes in fp32 and rounds once, as the hardware's documentation says of most of them.
#pragma once

#define SIM_HALF_UNARY(name, expression)                                                                               \
    inline SIM_HALF h##name(SIM_HALF a) {                                                                              \
        const float x = SIM_HALF_TO_FLOAT(a);                                                                          \
        return SIM_HALF_FROM_FLOAT(expression);                                                                        \
    }                                                                                                                  \
    inline SIM_HALF2 h2##name(SIM_HALF2 a) { return {h##name(a.x), h##name(a.y)}; }
#define SIM_HALF_FUNCTIONS                                                                                             \
    inline SIM_HALF __hfma(SIM_HALF a, SIM_HALF b, SIM_HALF c) {                                                       \
        return SIM_HALF_FROM_FLOAT(fmaf(SIM_HALF_TO_FLOAT(a), SIM_HALF_TO_FLOAT(b), SIM_HALF_TO_FLOAT(c)));            \
    }                                                                                                                  \
    inline SIM_HALF2 __hfma2(SIM_HALF2 a, SIM_HALF2 b, SIM_HALF2 c) {                                                  \
        return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};                                                         \
    }                                                                                                                  \
    SIM_HALF_UNARY(exp, expf(x))                                                                                       \
    SIM_HALF_UNARY(exp2, exp2f(x))                                                                                     \
    SIM_HALF_UNARY(log, logf(x))                                                                                       \
    SIM_HALF_UNARY(log2, log2f(x))                                                                                     \
    SIM_HALF_UNARY(sqrt, sqrtf(x))                                                                                     \
    SIM_HALF_UNARY(rsqrt, 1.0f / sqrtf(x))                                                                             \
    SIM_HALF_UNARY(rcp, 1.0f / x)                                                                                      \
    SIM_HALF_UNARY(floor, floorf(x))                                                                                   \
    SIM_HALF_UNARY(ceil, ceilf(x))                                                                                     \
    SIM_HALF_UNARY(trunc, truncf(x))                                                                                   \
    SIM_HALF_UNARY(rint, rintf(x))
