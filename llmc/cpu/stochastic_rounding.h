// Stochastic rounding to bf16: a value goes up with a probability equal to the cut-off fraction, so
// that the mean of many roundings is the value. The random bits are a pure function of (seed,
// stream, element), by the scheme of ops.h: eight elements share the 128 bits of one Philox counter
// (llmc/base/arithmetic.h). Gupta et al., "Deep Learning with Limited Numerical Precision", 2015.
#pragma once
#include "llmc/cpu/simd.h"

// Elements whose random bits are made at a time: of LANES counters.
enum { RANDOM_BLOCK = 8 * LANES };

// LANES / 2 counters, a 64-bit lane each: the number of the lane's counter and its four words.
static ALWAYS_INLINE void half_of_counters(uint32_t words[LANES / 2][4], uint64_t seed,
                                           uint64_t stream, uint64_t index) {
    // Counters index, index + 1, .. in an order in which the halves of vunpack put them back one
    // after the other.
#if defined(__AVX512F__)
    const VWide order = {0, 4, 1, 5, 2, 6, 3, 7};
#elif defined(__AVX2__)
    const VWide order = {0, 2, 1, 3};
#else
    const VWide order = {0, 1};
#endif
    // The last bits of index are 0: adding carries nothing into the upper word. The upper halves of
    // lanes are never read.
    VWide c0 = order + (index & 0xFFFFFFFFu), c1 = (VWide){0} + (index >> 32);
    VWide c2 = (VWide){0} + stream, c3 = (VWide){0} + (stream >> 32);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        const VWide p0 = vmul_low(c0, 0xD2511F53u), p2 = vmul_low(c2, 0xCD9E8D57u);
        c0 = p2 >> 32 ^ c1 ^ k0;
        c1 = p2;
        c2 = p0 >> 32 ^ c3 ^ k1;
        c3 = p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    const VWide low = (c0 & 0xFFFFFFFFu) | c1 << 32, high = (c2 & 0xFFFFFFFFu) | c3 << 32;
    vstore_bits(words[0], (VU)vunpack_low(low, high));
    vstore_bits(words[LANES / 4], (VU)vunpack_high(low, high));
}

// 16 random bits for each element of a block: element e has half-word e % 8, lower halves first, of
// philox(seed, stream, index + e / 8). index must be a multiple of LANES. The rounds of several
// counters run in step: one counter at a time took three times as long as the whole of AdamW.
static ALWAYS_INLINE void vrounding_bits(uint32_t words[LANES][4], uint64_t seed, uint64_t stream,
                                         uint64_t index) {
    half_of_counters(words, seed, stream, index);
    half_of_counters(words + LANES / 2, seed, stream, index + LANES / 2);
}

// The bits of the elements from i on (a multiple of LANES), one element per lane.
static ALWAYS_INLINE VU vrounding_bits_at(uint32_t words[LANES][4], int64_t i) {
    // pairs of half-words, lower first, as in memory
    return (VU)vload_bf16((const uint16_t *)words + i) >> 16;
}

// x rounded to bf16 by 16 random bits per lane. Infinity stays unchanged, NaN stays NaN.
static ALWAYS_INLINE V round_stochastically(V x, VU random) {
    VU u = (VU)x;
    // all ones where the magnitude is above infinity's
    VU nan = (VU)((VI)((u & 0x7FFFFFFFu) + 0x7FFFFFu) >> 31);
    return (V)((nan & u) | (~nan & (u + random) & 0xFFFF0000u));
}
