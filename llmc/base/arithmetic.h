// Arithmetic that every layer uses, on the host and, where marked HOST_DEVICE, in kernels: sizes, random numbers, and
// the clock for durations.
#pragma once
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

// Marks a function in a shared header: nvcc compiles it for host and device; for a C compiler it is empty.
#ifdef __CUDACC__
#define HOST_DEVICE __host__ __device__
#else
#define HOST_DEVICE
#endif

// For sizes that come from outside (file headers, options): false on overflow.
static inline bool checked_add(int64_t a, int64_t b, int64_t *sum) { return !__builtin_add_overflow(a, b, sum); }
static inline bool checked_mul(int64_t a, int64_t b, int64_t *product) {
    return !__builtin_mul_overflow(a, b, product);
}

static inline int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max_i64(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }
static inline int64_t ceil_div(int64_t n, int64_t d) { return (n + d - 1) / d; }

// Seconds of the monotonic clock; only differences are meaningful.
static inline double now_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// ------------------------------------------------------------------------------------------------------ random numbers

// Counter-based: every value is a pure function of (seed, stream, index), so that initial weights, data order, sampling
// and stochastic rounding need no state and are the same for any thread count.
// Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC11.
typedef struct {
    uint32_t v[4];
} Philox;

// 128 random bits for counter (stream, index) under key seed.
static HOST_DEVICE inline Philox philox(uint64_t seed, uint64_t stream, uint64_t index) {
    uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32), c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1, c3 = (uint32_t)p0, c0 = n0, c2 = n2;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    Philox out = {{c0, c1, c2, c3}};
    return out;
}

// Uniform in [0, 1), 24 bits.
static inline float philox_uniform(uint32_t bits) { return (float)(bits >> 8) * 0x1p-24f; }

// Two independent standard normals (Box-Muller) from two words.
static inline void philox_normal2(uint32_t a, uint32_t b, float out[2]) {
    float u = ((float)(a >> 8) + 0.5f) * 0x1p-24f; // in (0, 1): the logarithm is finite
    float r = sqrtf(-2.0f * logf(u)), phi = 6.28318530718f * philox_uniform(b);
    out[0] = r * cosf(phi), out[1] = r * sinf(phi);
}

// The streams in use: one number each, so that no two purposes share random bits.
enum { STREAM_INIT = 1, STREAM_SHUFFLE = 2, STREAM_SAMPLE = 3, STREAM_ROUNDING = 4, STREAM_GRADIENT = 1 << 24 };
