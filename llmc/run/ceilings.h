// What the device at hand reaches: --ceilings, the highest matmul rate over a search of shapes ("maximum achievable
// FLOP/s") and the copy bandwidth, kept in the file of llmc/cuda/tuning.h as a base of MFU (--mfu-base measured); and
// the times of feed-forward layers for --advise d_ff --measure. Matmuls are those of ops.h, as a run calls them. Takes
// device memory while it measures and gives it back.
#pragma once
#include "llmc/base/error.h"
#include "llmc/run/options.h"
#include "llmc/run/planner.h"
#include "llmc/tensor.h"

#include <stdio.h>

typedef struct {
    double search_flops;   // FLOP/s on random data, of the best shape
    double plain_flops;    // of the library's plain product (device_measure_speed)
    double zero_gain;      // by how much the best shape is faster on zeros, 0.1: 10%
    double copy_bandwidth; // bytes/s, read and written
    int64_t M, N, K;       // of the best shape
} Ceiling;

// Measures and keeps them, for each dtype that this device computes in, or the one of --dtype; prints them.
bool ceilings_measure(FILE *out, const Options *options, Error *err);

// The higher of the two: nothing that a run measures at its start is above its ceiling but by noise.
double ceiling_flops(const Ceiling *ceiling);

// What an earlier --ceilings has kept for this device, its libraries and this dtype.
bool ceiling_find(DType dtype, bool tf32, Ceiling *ceiling);

// FLOP/s of each of `count` layers, forward and backward, in rounds over all of them so that whatever else the machine
// does meets all; the medians of all rounds, and of the even and the odd ones.
bool measure_feed_forward(const FeedForward *layers, int count, DType dtype, double *rates, double *const halves[2],
                          Error *err);
