// Integer arithmetic for sizes, the clock for durations, and HOST_DEVICE, which marks a function of a shared header
// that kernels call as well as the host: nvcc compiles it for both, a C compiler sees nothing. checked_*: for sizes
// that come from outside (file headers, options), false on overflow.
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#ifdef __CUDACC__
#define HOST_DEVICE __host__ __device__
#else
#define HOST_DEVICE
#endif

static inline bool checked_add(int64_t a, int64_t b, int64_t *sum) { return !__builtin_add_overflow(a, b, sum); }
static inline bool checked_mul(int64_t a, int64_t b, int64_t *product) {
    return !__builtin_mul_overflow(a, b, product);
}
static inline int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max_i64(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }
static inline int64_t ceil_div(int64_t n, int64_t d) { return (n + d - 1) / d; }

// Seconds of the monotonic clock; only differences mean anything.
static inline double now_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
