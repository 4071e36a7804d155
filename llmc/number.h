// The number formats: their limits, fp8, and the 8-bit numbers of optimizer states. All backends
// and the tests share this code. It uses plain fp32 operations in a stated order and never adds
// anything to a product, so fma makes no difference, and codes and scales are the same everywhere.
#pragma once
#include "llmc/base/arithmetic.h"
#include "llmc/tensor.h"
#include <math.h>
#include <stdint.h>

// --------------------------------------------------------------------------- limits of the formats

// The smallest and largest normal magnitude of a format, as the bits of floats without their sign.
// They are bits because as integers they have the same order as the numbers, and compare exactly
// even where the processor treats small numbers as 0.
typedef struct {
    uint32_t smallest, largest;
} FormatLimits;

enum { FLOAT_MAGNITUDE = 0x7FFFFFFF, FLOAT_INFINITY = 0x7F800000 };

static HOST_DEVICE inline FormatLimits format_limits(DType format) {
    FormatLimits limits = {0x00800000u, 0x7F7FFFFFu}; // fp32: 2^-126 .. (2 - 2^-23) 2^127
    switch (format) {
    case DTYPE_BF16:
        limits.largest = 0x7F7F0000u; // (2 - 2^-7) 2^127
        break;
    case DTYPE_FP16:
        limits.smallest = 0x38800000u; // 2^-14
        limits.largest = 0x477FE000u;  // 65504
        break;
    case DTYPE_E4M3:
        limits.smallest = 0x3C800000u; // 2^-6
        limits.largest = 0x43E00000u;  // 448
        break;
    case DTYPE_E5M2:
        limits.smallest = 0x38800000u; // 2^-14
        limits.largest = 0x47600000u;  // 57344
        break;
    default:
        break;
    }
    return limits;
}

// The statistics of a tensor that --numerics-every counts, on the device and on the host. One
// TensorStats sums several tensors of a class (all blocks, all micro-steps).
typedef struct {
    double count; // elements
    double sumsq; // of the finite elements
    double zero;  // elements that are 0
    // not 0, and smaller in magnitude than the smallest normal number of the format
    double underflow;
    double overflow; // larger in magnitude than the largest number of the format, or inf, or nan
    float amax;      // largest finite magnitude
    float unused;    // keeps the size a multiple of 8
} TensorStats;

// --------------------------------------------------------------------------------------------- fp8

// The formats, and the scale of a tensor.
//   e4m3   1 sign, 4 exponent (bias 7), 3 mantissa; largest 448; 0x7F and 0xFF are NaN; no infinity
//   e5m2   1 sign, 5 exponent (bias 15), 2 mantissa; largest 57344; infinity and NaN as in fp16
// Both are exact in bf16, and remain exact when they are divided by their scale. Micikevicius et
// al., "FP8 Formats for Deep Learning", 2022.

// The scale of one quantised tensor, on the device. cuBLASLt reads `inverse`, at multiples of 16
// bytes only.
typedef struct {
    float inverse; // 1 / scale: products are multiplied by it
    float scale;   // values are multiplied by it
    float amax;    // the largest magnitude
    float unused;
} Fp8Slot;

static HOST_DEVICE inline float fp8_largest(DType format) {
    return format == DTYPE_E4M3 ? 448.0f : 57344.0f;
}

// The bits of the mantissa, the bias of the exponent, and the code of the largest number.
typedef struct {
    int mantissa, bias, largest;
} Fp8Layout;

static HOST_DEVICE inline Fp8Layout fp8_layout(DType format) {
    const Fp8Layout e4m3 = {3, 7, 0x7E}, e5m2 = {2, 15, 0x7B};
    return format == DTYPE_E4M3 ? e4m3 : e5m2;
}

// The scale for values up to amax: the largest power of two that keeps amax * scale within the
// format. It is a power of two, so that scaling itself never rounds, and within 2^-62 .. 2^62, so
// that the product of two scales is a normal number. It is 1 if amax is not usable: for a tensor of
// zeros (or of denormal numbers, which some backends treat as zeros), and for a tensor with inf or
// nan, which the finite check of the step then finds.
static HOST_DEVICE inline float fp8_scale(float amax, DType format) {
    if (!(amax >= 0x1p-126f && isfinite(amax))) return 1.0f;
    // the largest is 0.875 * 2^9, or * 2^16
    const int largest_exponent = format == DTYPE_E4M3 ? 9 : 16;
    int exponent; // amax = fraction * 2^exponent, fraction in [0.5, 1)
    const float fraction = frexpf(amax, &exponent);
    exponent = largest_exponent - exponent - (fraction > 0.875f);
    if (exponent > 62) exponent = 62;
    if (exponent < -62) exponent = -62;
    return ldexpf(1.0f, exponent);
}

// Call before rounding a tensor whose largest magnitude is amax to format (NaN counts as more than
// inf).
static HOST_DEVICE inline void fp8_slot_record(Fp8Slot *s, float amax, DType format) {
    s->amax = amax;
    s->scale = fp8_scale(amax, format);
    s->inverse = 1.0f / s->scale;
}

// Rounds x, already scaled, to the nearest number of the format, ties to even. Finite numbers
// beyond the largest become the largest. inf and NaN become NaN, so that the finite check of the
// step finds them.
static HOST_DEVICE inline uint8_t fp8_encode(float x, DType format) {
    const Fp8Layout layout = fp8_layout(format);
    const int mantissa = layout.mantissa, bias = layout.bias;
    const float size = fabsf(x);
    const uint8_t sign = signbit(x) ? 0x80 : 0;
    if (!isfinite(x)) return 0x7F; // NaN in both
    if (size >= fp8_largest(format)) return (uint8_t)(sign | layout.largest);
    const float smallest = ldexpf(1.0f, 1 - bias);
    if (size < smallest) // subnormal: whole multiples of 2^(1 - bias - mantissa)
        return (uint8_t)(sign | (uint8_t)rintf(ldexpf(size, bias - 1 + mantissa)));
    int exponent;
    // size = fraction * 2^exponent, fraction in [0.5, 1)
    const float fraction = frexpf(size, &exponent);
    // in [2^mantissa, 2^(mantissa + 1)]
    const int units = (int)rintf(ldexpf(fraction, mantissa + 1));
    // a carry moves on
    return (uint8_t)(sign | (((exponent - 1 + bias) << mantissa) + units - (1 << mantissa)));
}

static HOST_DEVICE inline float fp8_decode(uint8_t code, DType format) {
    const Fp8Layout layout = fp8_layout(format);
    const int mantissa = layout.mantissa, bias = layout.bias;
    const int exponent = (code & 0x7F) >> mantissa, units = code & ((1 << mantissa) - 1);
    float size = ldexpf((float)units, 1 - bias - mantissa); // subnormal
    if (exponent > 0) size = ldexpf((float)(units + (1 << mantissa)), exponent - bias - mantissa);
    if (format == DTYPE_E4M3 && (code & 0x7F) == 0x7F) size = NAN;
    if (format == DTYPE_E5M2 && exponent == 31) size = units ? NAN : INFINITY;
    if (code & 0x80) return -size;
    return size;
}

// -------------------------------------------------------------------------- 8-bit optimizer states

// Dynamic quantisation. A code represents a number in [-1, 1] (signed) or [0, 1] (unsigned). That
// number times the scale of its block, the largest magnitude in the block, is the state. The step
// between neighbours grows with the magnitude: there are seven decades, each divided into twice as
// many cells as the one below, so that large values keep two digits and small values are not lost.
// A number is rounded to the nearest one that has a code. Dettmers, Lewis, Shleifer, Zettlemoyer,
// "8-bit Optimizers via Block-wise Quantization", 2021 (its dynamic map).
enum { DYNAMIC8_DECADES = 7, DYNAMIC8_ZERO_SIGNED = 127 };

// 10^(decade - 7), the beginning of a decade, 1e-7 .. 1e-1. A decade ends where the next one
// begins, the last at 1.
static HOST_DEVICE inline float dynamic8_decade_begin(int decade) {
    const float begins[DYNAMIC8_DECADES + 1] = {1e-7f, 1e-6f, 1e-5f, 1e-4f,
                                                1e-3f, 1e-2f, 1e-1f, 1.0f};
    return begins[decade];
}
static HOST_DEVICE inline float dynamic8_decade_width(int decade) {
    return 0.9f * dynamic8_decade_begin(decade + 1); // 9 begin, without the rounding error of begin
}

// The number of cell `cell` of the `cells` equal cells of a decade, which is its middle. A decade
// begins at 1/9 of its width.
static HOST_DEVICE inline float dynamic8_middle(int decade, int cell, int cells) {
    return (((float)cell + 0.5f) / (float)cells + 1.0f / 9.0f) * dynamic8_decade_width(decade);
}

// The magnitude of code p: 0 is 0; 1 .. 127 with cells = 2^decade in each decade (signed:
// first_cells = 1), or 1 .. 254 with 2^(decade + 1) (unsigned: first_cells = 2); the code after the
// last one is 1.
static HOST_DEVICE inline float dynamic8_magnitude(int p, int first_cells) {
    int cells = first_cells, decade = 0, begin = 1;
    if (p == 0) return 0.0f;
    for (; decade < DYNAMIC8_DECADES && p >= begin + cells; decade++) {
        begin += cells;
        cells *= 2;
    }
    if (decade == DYNAMIC8_DECADES) return 1.0f;
    return dynamic8_middle(decade, p - begin, cells);
}

// The midpoint between the first number of a decade and the number before it; values above it are
// rounded into the decade. Decade DYNAMIC8_DECADES is the code of 1.
static HOST_DEVICE inline float dynamic8_border(int decade, int first_cells) {
    const int cells = first_cells << decade;
    const float below = decade == 0 ? 0.0f : dynamic8_middle(decade - 1, cells / 2 - 1, cells / 2);
    return 0.5f * (below + (decade == DYNAMIC8_DECADES ? 1.0f : dynamic8_middle(decade, 0, cells)));
}

// The code of magnitude x in [0, 1]; NaN becomes 0.
static HOST_DEVICE inline int dynamic8_code(float x, int first_cells) {
    if (!(x > dynamic8_border(0, first_cells))) return 0;
    if (x > dynamic8_border(DYNAMIC8_DECADES, first_cells)) return 127 * first_cells + 1;
    int decade = 0;
    for (int d = 1; d < DYNAMIC8_DECADES; d++) decade += x > dynamic8_border(d, first_cells);
    const int cells = first_cells << decade;
    const int cell =
        (int)((x - dynamic8_decade_begin(decade)) * ((float)cells / dynamic8_decade_width(decade)));
    // the last cell extends to the border
    return cells - (first_cells - 1) + (cell < cells ? cell : cells - 1);
}

// Signed: codes 0 .. 255 in the order of their numbers, 127 is 0, 255 is 1; -1 has no code and
// becomes the largest magnitude below it.
static HOST_DEVICE inline float dynamic8_decode_signed(uint8_t code) {
    const int p = (int)code - DYNAMIC8_ZERO_SIGNED;
    if (p < 0) return -dynamic8_magnitude(-p, 1);
    return dynamic8_magnitude(p, 1);
}
static HOST_DEVICE inline uint8_t dynamic8_encode_signed(float x) {
    if (!(x < 0.0f)) return (uint8_t)(DYNAMIC8_ZERO_SIGNED + dynamic8_code(x, 1));
    const int p = dynamic8_code(-x, 1);
    return (uint8_t)(DYNAMIC8_ZERO_SIGNED - (p > 127 ? 127 : p));
}

// Unsigned, for second moments: code = magnitude code. A value above 0 never becomes 0: a second
// moment of 0 with a first moment other than 0 would give an unbounded update.
static HOST_DEVICE inline float dynamic8_decode_unsigned(uint8_t code) {
    return dynamic8_magnitude((int)code, 2);
}
static HOST_DEVICE inline uint8_t dynamic8_encode_unsigned(float x) {
    const int p = dynamic8_code(x, 2);
    if (p == 0 && x > 0.0f) return 1;
    return (uint8_t)p;
}
