// See statistics.h. The ends of the formats are written as numbers here, not as bits: their
// definition.
#include "test/reference/statistics.h"
#include <math.h>

static double smallest_normal(DType format) {
    if (format == DTYPE_FP16 || format == DTYPE_E5M2) return 0x1p-14;
    return format == DTYPE_E4M3 ? 0x1p-6 : 0x1p-126;
}

static double largest(DType format) {
    switch (format) {
    case DTYPE_FP16:
        return 65504.0;
    case DTYPE_BF16:
        return (2.0 - 0x1p-7) * 0x1p127;
    case DTYPE_E4M3:
        return 448.0;
    case DTYPE_E5M2:
        return 57344.0;
    default:
        return (2.0 - 0x1p-23) * 0x1p127;
    }
}

void ref_tensor_statistics(TensorStats *stats, const double *x, int64_t n, DType format) {
    for (int64_t i = 0; i < n; i++) {
        const double size = fabs(x[i]);
        stats->count += 1.0;
        if (size == 0.0) stats->zero += 1.0;
        if (size > 0.0 && size < smallest_normal(format)) stats->underflow += 1.0;
        if (!(size <= largest(format))) stats->overflow += 1.0; // inf and nan too
        if (!isfinite(size)) continue;
        stats->sumsq += size * size;
        if (size > (double)stats->amax) stats->amax = (float)size;
    }
}
