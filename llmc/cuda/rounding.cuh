// Stochastic rounding: x is rounded up to its upper neighbour with the probability of what is cut off, so that the mean
// of many roundings is x, and small changes add up where rounding to nearest would lose each of them.
// The random bits are a pure function of (seed, stream, counter, element): llmc/base/rng.h. Owns nothing.
// Gupta et al., "Deep Learning with Limited Numerical Precision", 2015.
#pragma once
#include "llmc/base/rng.h"
#include "llmc/cuda/vector.cuh"

// x rounded down or up to a neighbour, up when random / 2^16 is at least what is missing to it in steps of the type.
// random has 16 bits. Infinity and NaN stay what they are.
template <class T> static __device__ __forceinline__ T round_stochastically(float x, uint32_t random);
template <> __device__ __forceinline__ bf16 round_stochastically<bf16>(float x, uint32_t random) {
    if (!isfinite(x)) return __float2bfloat16_rn(x);
    return __float2bfloat16_rn(__uint_as_float((__float_as_uint(x) + random) & 0xFFFF0000u)); // exact
}
// 13 bits are cut off a normal number; below 2^-14 the steps are 2^-24 and more bits go. Beyond the largest: infinity.
template <> __device__ __forceinline__ fp16 round_stochastically<fp16>(float x, uint32_t random) {
    const float size = fabsf(x);
    if (!(size < 65536.0f)) return __float2half_rn(x);
    float rounded;
    if (size < 0x1p-14f)
        rounded = (float)(((uint32_t)(size * 0x1p40f) + random) >> 16) * 0x1p-24f;
    else
        rounded = __uint_as_float((__float_as_uint(size) + (random >> 3)) & 0xFFFFE000u);
    return __float2half_rn(copysignf(rounded, x)); // exact
}

// 16 random bits for each of the elements e .. e + N - 1: half-word e % 8, lower halves first, of
// philox(seed, stream, counter + e / 8). N is 8, 4 or 1, and e a multiple of it.
template <int N>
static __device__ __forceinline__ void rounding_bits(uint32_t (&bits)[N], uint64_t seed, uint64_t stream,
                                                     uint64_t counter, uint64_t e) {
    const Philox random = philox(seed, stream, counter + e / 8);
    if constexpr (N == 8) {
        for (int k = 0; k < N; k++) bits[k] = random.v[k / 2] >> (k % 2 * 16) & 0xFFFFu;
    } else {
        const uint32_t low = e & 4 ? random.v[2] : random.v[0], high = e & 4 ? random.v[3] : random.v[1];
        const uint64_t four = (uint64_t)high << 32 | low; // half-words of the elements e / 4 * 4 .. + 3
        for (int k = 0; k < N; k++) bits[k] = (uint32_t)(four >> ((e + (uint64_t)k) % 4 * 16)) & 0xFFFFu;
    }
}

// x, the elements e .. e + N - 1, rounded stochastically to T; to fp32 they stay what they are.
template <class T, int N>
static __device__ __forceinline__ Vector<T, N> round_vector(const float (&x)[N], uint64_t seed, uint64_t stream,
                                                            uint64_t counter, uint64_t e) {
    if constexpr (sizeof(T) == 4) {
        return from_floats<T, N>(x);
    } else {
        Vector<T, N> rounded;
        uint32_t random[N];
        rounding_bits<N>(random, seed, stream, counter, e);
        for (int k = 0; k < N; k++) rounded.v[k] = round_stochastically<T>(x[k], random[k]);
        return rounded;
    }
}
