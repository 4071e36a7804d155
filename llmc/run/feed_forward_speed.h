// Times feed-forward layers on the device at hand, for --advise d_ff --measure. Matmuls are those of ops.h, as a run
// calls them. Takes device memory while it measures and gives it back.
#pragma once
#include "llmc/base/error.h"
#include "llmc/plan/plan.h"
#include "llmc/tensor.h"

// FLOP/s of each of `count` layers, forward and backward, in rounds over all of them so that whatever else the machine
// does meets all; the medians of all rounds, and of the even and the odd ones.
bool measure_feed_forward(const FeedForward *layers, int count, DType dtype, double *rates, double *const halves[2],
                          Error *err);
