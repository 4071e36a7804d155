// Arithmetic of sizes that every layer uses, and the mark of functions that kernels share with the
// host.
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

// Marks a function in a shared header: nvcc compiles it for host and device; for a C compiler it is
// empty.
#ifdef __CUDACC__
#define HOST_DEVICE __host__ __device__
#else
#define HOST_DEVICE
#endif

// For sizes that come from outside (file headers, options): false on overflow.
static inline bool checked_add(int64_t a, int64_t b, int64_t *sum) {
    return !__builtin_add_overflow(a, b, sum);
}
static inline bool checked_mul(int64_t a, int64_t b, int64_t *product) {
    return !__builtin_mul_overflow(a, b, product);
}

static inline int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max_i64(int64_t a, int64_t b) { return a > b ? a : b; }
static inline size_t min_size(size_t a, size_t b) { return a < b ? a : b; }
static inline size_t max_size(size_t a, size_t b) { return a > b ? a : b; }
static inline int64_t positive_or(int64_t n, int64_t otherwise) { return n > 0 ? n : otherwise; }
static inline int64_t round_up(int64_t n, int64_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}
static inline int64_t ceil_div(int64_t n, int64_t d) { return (n + d - 1) / d; }

static inline int arithmetic_ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
// Sorts x; of an even number the mean of the two in the middle. n > 0.
static inline double median_of(double *x, int64_t n) {
    qsort(x, (size_t)n, sizeof *x, arithmetic_ascending);
    return 0.5 * (x[(n - 1) / 2] + x[n / 2]);
}
