// What --numerics-every counts of a tensor, on the device and on the host, and where the number formats end. Sums of
// several tensors of a class (all blocks, all micro-steps) stand in one TensorStats. Shared by all backends and the
// tests.
#pragma once
#include "llmc/base/checked.h"
#include "llmc/tensor.h"
#include <stdint.h>

typedef struct {
    double count;     // elements
    double sumsq;     // of the finite ones
    double zero;      // elements that are 0
    double underflow; // not 0, and smaller in magnitude than the smallest normal number of the format
    double overflow;  // larger in magnitude than the largest number of the format, or inf, or nan
    float amax;       // largest finite magnitude
    float unused;     // keeps the size a multiple of 8
} TensorStats;

// The magnitudes that a format holds with all its digits, as the bits of floats without their sign. Bits, because as
// integers they are ordered as the numbers are, and compared exactly where the processor takes small numbers for 0.
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
        limits.smallest = 0x38800000u, limits.largest = 0x477FE000u; // 2^-14 .. 65504
        break;
    case DTYPE_E4M3:
        limits.smallest = 0x3C800000u, limits.largest = 0x43E00000u; // 2^-6 .. 448
        break;
    case DTYPE_E5M2:
        limits.smallest = 0x38800000u, limits.largest = 0x47600000u; // 2^-14 .. 57344
        break;
    default:
        break;
    }
    return limits;
}
