// Integer arithmetic for sizes. checked_*: for those that come from outside (file headers, options), false on overflow.
#pragma once
#include <stdbool.h>
#include <stdint.h>

static inline bool checked_add(int64_t a, int64_t b, int64_t *sum) { return !__builtin_add_overflow(a, b, sum); }
static inline bool checked_mul(int64_t a, int64_t b, int64_t *product) {
    return !__builtin_mul_overflow(a, b, product);
}
static inline int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max_i64(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }
static inline int64_t ceil_div(int64_t n, int64_t d) { return (n + d - 1) / d; }
