// fp8: the number formats, and the scale of a tensor. Shared by all backends and the tests.
//   e4m3   1 sign, 4 exponent (bias 7), 3 mantissa; largest 448; 0x7F and 0xFF are NaN; no infinity
//   e5m2   1 sign, 5 exponent (bias 15), 2 mantissa; largest 57344; infinity and NaN as in fp16
// Both are exact in bf16, and stay so when they are divided by their scale.
// Micikevicius et al., "FP8 Formats for Deep Learning", 2022.
#pragma once
#include "llmc/base/checked.h"
#include "llmc/tensor.h"
#include <math.h>
#include <stdint.h>

enum { FP8_HISTORY = 16 }; // steps whose largest magnitudes delayed scaling looks at

// The scale of one quantised tensor: on the device, part of the checkpoint. All zeros: nothing was quantised yet.
typedef struct {
    float scale;   // what values are multiplied by
    float inverse; // 1 / scale: what products are multiplied by
    float amax;    // of the last quantisation (current scaling), or of the step so far (delayed): the largest magnitude
    float history[FP8_HISTORY]; // delayed scaling: amax of the steps before, a ring; 0 where there was none yet
    int32_t next;               // where the next one goes
    int32_t format;             // DType of the tensor that this scale is for, as fp8_quantize met it
} Fp8Slot;

static HOST_DEVICE inline float fp8_largest(DType format) { return format == DTYPE_E4M3 ? 448.0f : 57344.0f; }

// The scale for values up to amax: the largest power of two that leaves amax * scale within the format. A power of two,
// so that scaling itself never rounds; within 2^-62 .. 2^62, so that the product of two scales is a normal number. 1
// where amax says nothing: for a tensor of zeros (or of denormal numbers, which some backends take for zeros), and for
// one with inf or nan in it, which the finite check of the step then finds.
static HOST_DEVICE inline bool fp8_amax_is_usable(float amax) { return amax >= 0x1p-126f && isfinite(amax); }
static HOST_DEVICE inline float fp8_scale(float amax, DType format) {
    if (!fp8_amax_is_usable(amax)) return 1.0f;
    const int largest_exponent = format == DTYPE_E4M3 ? 9 : 16; // the largest is 0.875 * 2^9, or * 2^16
    int exponent;                                               // amax = fraction * 2^exponent, fraction in [0.5, 1)
    const float fraction = frexpf(amax, &exponent);
    exponent = largest_exponent - exponent - (fraction > 0.875f);
    return ldexpf(1.0f, exponent > 62 ? 62 : exponent < -62 ? -62 : exponent);
}

static HOST_DEVICE inline void fp8_slot_set_scale(Fp8Slot *s, float scale) {
    s->scale = scale;
    s->inverse = 1.0f / scale;
}

// Whether delayed scaling knows no step before this one: the tensor then gets the scale of its own amax.
static HOST_DEVICE inline bool fp8_slot_is_new(const Fp8Slot *s) { return s->history[0] == 0.0f; }

// Before a tensor whose largest magnitude is amax (NaN counts as more than inf) is rounded to format.
static HOST_DEVICE inline void fp8_slot_record(Fp8Slot *s, float amax, DType format, bool delayed) {
    if (!delayed || fp8_slot_is_new(s)) fp8_slot_set_scale(s, fp8_scale(amax, format));
    if (!delayed || (!isnan(s->amax) && !(amax <= s->amax))) s->amax = amax;
    s->format = (int32_t)format;
}

// The end of a step under delayed scaling: amax enters the history, the scale of the next step is that of the largest
// there with a factor of 2 to spare. A slot that saw nothing, or inf or nan, keeps its history and scale.
static HOST_DEVICE inline void fp8_slot_advance(Fp8Slot *s) {
    const float amax = s->amax;
    s->amax = 0.0f;
    if (!fp8_amax_is_usable(amax)) return;
    s->history[s->next] = amax;
    s->next = (s->next + 1) % FP8_HISTORY;
    float largest = 0.0f;
    for (int i = 0; i < FP8_HISTORY; i++) largest = s->history[i] > largest ? s->history[i] : largest;
    fp8_slot_set_scale(s, 0.5f * fp8_scale(largest, (DType)s->format));
}

// x, already scaled, to the nearest number of the format, ties to even; finite numbers beyond the largest: the largest.
// inf and NaN: NaN, so that the finite check of the step finds them.
static HOST_DEVICE inline uint8_t fp8_encode(float x, DType format) {
    const int mantissa = format == DTYPE_E4M3 ? 3 : 2, bias = format == DTYPE_E4M3 ? 7 : 15;
    const float size = fabsf(x), largest = fp8_largest(format);
    const uint8_t sign = signbit(x) ? 0x80 : 0;
    if (!isfinite(x)) return 0x7F; // NaN in both
    if (size >= largest) return (uint8_t)(sign | (format == DTYPE_E4M3 ? 0x7E : 0x7B));
    const float smallest = ldexpf(1.0f, 1 - bias);
    if (size < smallest) // subnormal: whole multiples of 2^(1 - bias - mantissa)
        return (uint8_t)(sign | (uint8_t)rintf(ldexpf(size, bias - 1 + mantissa)));
    int exponent;
    const float fraction = frexpf(size, &exponent);               // size = fraction * 2^exponent, fraction in [0.5, 1)
    const int units = (int)rintf(ldexpf(fraction, mantissa + 1)); // in [2^mantissa, 2^(mantissa + 1)]
    return (uint8_t)(sign | (((exponent - 1 + bias) << mantissa) + units - (1 << mantissa))); // a carry moves on
}

static HOST_DEVICE inline float fp8_decode(uint8_t code, DType format) {
    const int mantissa = format == DTYPE_E4M3 ? 3 : 2, bias = format == DTYPE_E4M3 ? 7 : 15;
    const int exponent = (code & 0x7F) >> mantissa, units = code & ((1 << mantissa) - 1);
    float size = exponent == 0 ? ldexpf((float)units, 1 - bias - mantissa)
                               : ldexpf((float)(units + (1 << mantissa)), exponent - bias - mantissa);
    if (format == DTYPE_E4M3 && (code & 0x7F) == 0x7F) size = NAN;
    if (format == DTYPE_E5M2 && exponent == 31) size = units ? NAN : INFINITY;
    return code & 0x80 ? -size : size;
}
