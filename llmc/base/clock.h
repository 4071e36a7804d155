// The clock for durations.
#pragma once
#include <time.h>

// Seconds of the monotonic clock; only differences are meaningful.
static inline double now_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
