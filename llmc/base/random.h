// Random numbers, on the host and in kernels. They are counter-based: every value is a pure
// function of (seed, stream, index), so that initial weights, data order, sampling and stochastic
// rounding need no state and are the same for any thread count.
#pragma once
#include "llmc/base/arithmetic.h"
#include <math.h>

// Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC11.
typedef struct {
    uint32_t v[4];
} Philox;

// 128 random bits for counter (stream, index) under key seed.
static HOST_DEVICE inline Philox philox(uint64_t seed, uint64_t stream, uint64_t index) {
    uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32), c2 = (uint32_t)stream,
             c3 = (uint32_t)(stream >> 32);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c0 = n0;
        c1 = (uint32_t)p1;
        c2 = n2;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    Philox out = {{c0, c1, c2, c3}};
    return out;
}

// Uniform in [0, 1), 24 bits.
static inline float philox_uniform(uint32_t bits) { return (float)(bits >> 8) * 0x1p-24f; }

// Two independent standard normals (Box-Muller) from two words: r cos(phi) and r sin(phi) with r =
// sqrt(-2 ln u). These are plain fp32 operations in a stated order, without libm, whose last bits
// depend on its version and on the processor. And they have no branches: a loop over this is vector
// code with the same bits. r is within 1.01 units in the last place, sine and cosine within 1e-7.
// test_parameters checks both.
static inline void philox_normal2(uint32_t a, uint32_t b, float out[2]) {
    // ln u = k ln 2 + ln m, u = m 2^k with m in [sqrt(1/2), sqrt(2)). With f = m - 1 and s = f / (2
    // + f): ln m = 2 atanh(s) = f - s (f - 2 s^2 (1/3 + s^2/5 + s^4/7 + s^6/9)), up to 2^-29 of it.
    union {
        float f;
        uint32_t bits;
    } u = {((float)(int32_t)(a >> 8) + 0.5f) * 0x1p-24f}, sine,
      cosine;                                                // u in (0, 1]: the logarithm is finite
    const int32_t k = (int32_t)(u.bits - 0x3F3504F3u) >> 23; // the bits of sqrt(1/2)
    u.bits -= (uint32_t)k << 23;
    const float f = u.f - 1.0f, s = f / (2.0f + f), s2 = s * s, tail = (1.0f / 7 + s2 / 9.0f);
    const float series = 2.0f * s2 * (1.0f / 3 + s2 * (1.0f / 5 + s2 * tail));
    const float high = 0.693145751953125f, low = 1.42860677e-6f; // ln 2; k high is exact
    const float r = sqrtf(-2.0f * ((float)k * high + ((float)k * low + (f - s * (f - series)))));

    // phi = quarter * pi/2 + x with x in [-pi/4, pi/4), exact in units of 2^-24 of a turn.
    const int32_t turn = (int32_t)(b >> 8), quarter = (turn + (1 << 21)) >> 22;
    const float x = (float)(turn - (quarter << 22)) * (1.57079632679f * 0x1p-22f), x2 = x * x;
    sine.f =
        x + x * x2 * (-1.0f / 6 + x2 * (1.0f / 120 + x2 * (-1.0f / 5040 + x2 * (1.0f / 362880))));
    cosine.f =
        1.0f +
        x2 * (-0.5f +
              x2 * (1.0f / 24 + x2 * (-1.0f / 720 + x2 * (1.0f / 40320 + x2 * (-1.0f / 3628800)))));
    const uint32_t swap = (quarter & 1 ? 0xFFFFFFFFu : 0) & (sine.bits ^ cosine.bits);
    cosine.bits ^= swap ^ ((uint32_t)(quarter + 1) & 2) << 30; // negative in quarters 1 and 2
    sine.bits ^= swap ^ ((uint32_t)quarter & 2) << 30;         // in quarters 2 and 3

    out[0] = r * cosine.f;
    out[1] = r * sine.f;
}

// The streams in use: one number each, so that no two purposes share random bits.
enum {
    STREAM_INIT = 1,
    STREAM_SHUFFLE = 2,
    STREAM_SAMPLE = 3,
    STREAM_ROUNDING = 4,
    STREAM_GRADIENT = 1 << 24
};
