// GELU in its tanh form and its derivative, in fp32, for every kernel that needs them.
//
// 0.5 (1 + tanh(u)) is the logistic function of 2u, so one exp replaces tanh and nothing cancels for negative x:
//   gelu(x)  = x s,                          s  = 1 / (1 + exp(-2u)),   2u  = 2 sqrt(2/pi) (x + 0.044715 x^3)
//   gelu'(x) = s + x s (1 - s) (2u)',                                  (2u)' = 2 sqrt(2/pi) (1 + 3 * 0.044715 x^2)
// __expf and __fdividef are a few instructions around one of the special function unit each; together they err by a few
// ulp where s is not small, by 5e-6 of s where s is 1e-30. Two special functions an element take 0.6 of the time that
// its bytes take on an H200, the hardest case; tanh.approx would be a single one, but errs by 5e-4.
#pragma once
#include "llmc/cuda/kernel.cuh"

#define TWO_SQRT_2_OVER_PI 1.5957691216f
#define GELU_CUBIC         0.044715f

// s above, and s (1 - s). With e = exp(-|2u|), which does not overflow, they are 1 / (1 + e), or e / (1 + e) for
// negative x, and e / (1 + e)^2. Not from 1 - s, which for large x is the error of s, times x^3 in the derivative.
static __device__ __forceinline__ float gelu_gate(float x, float *product) {
    const float two_u = x * (TWO_SQRT_2_OVER_PI * GELU_CUBIC * x * x + TWO_SQRT_2_OVER_PI);
    const float e = __expf(-fabsf(two_u)), r = __fdividef(1.0f, 1.0f + e);
    *product = e * r * r;
    return two_u < 0.0f ? e * r : r;
}

static __device__ __forceinline__ float gelu(float x) {
    float product;
    return x * gelu_gate(x, &product);
}

static __device__ __forceinline__ float gelu_derivative(float x) {
    float product;
    const float s = gelu_gate(x, &product);
    const float slope = 3.0f * TWO_SQRT_2_OVER_PI * GELU_CUBIC * x * x + TWO_SQRT_2_OVER_PI;
    return x * product * slope + s;
}
