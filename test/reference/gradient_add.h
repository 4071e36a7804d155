// Specification of gradient_add for one tensor of n elements, and of the stochastic rounding that
// it shares with optimizer_update. Its own header, because the random bits are part of it: results
// are the device's bits.
#pragma once
#include "llmc/ops.h"

// The 16 random bits of element e: half-word e % 8, lower halves first, of philox(seed, stream,
// index + e / 8).
uint32_t ref_half_word(uint64_t seed, uint64_t stream, uint64_t index, int64_t e);

// x, an fp32 value, rounded to one of its two neighbours in dtype (fp32: to itself): away from zero
// if the part of a step that lies between x and the neighbour towards zero, in 2^-16 of a step, and
// half_word sum to 2^16 or more.
double ref_round_stochastically(double x, DType dtype, uint32_t half_word);

// dst, which holds values of dtype, and src in fp32; the sum is fp32 before it is rounded.
void ref_gradient_add(double *dst, const double *src, int64_t n, bool accumulate, DType dtype,
                      uint64_t seed, int stream, uint32_t micro_steps);
