// See gradient_add.h.
#include "test/reference/gradient_add.h"

#include "llmc/base/random.h"
#include <math.h>

uint32_t ref_half_word(uint64_t seed, uint64_t stream, uint64_t index, int64_t e) {
    const Philox words = philox(seed, stream, index + (uint64_t)e / 8);
    return words.v[e % 8 / 2] >> (e % 2 * 16) & 0xFFFFu;
}

double ref_round_stochastically(double x, DType dtype, uint32_t half_word) {
    if (dtype == DTYPE_FP32 || !isfinite(x) || x == 0.0) return x;
    int exponent; // |x| = m 2^exponent, 1/2 <= m < 1
    frexp(x, &exponent);
    const int digits = dtype == DTYPE_BF16 ? 8 : 11, lowest = dtype == DTYPE_BF16 ? -133 : -24;
    const double largest = dtype == DTYPE_BF16 ? 0x1.FEp127 : 65504.0;
    const double step = ldexp(1.0, exponent - digits > lowest ? exponent - digits : lowest);
    const double steps = fabs(x) / step, whole = floor(steps);
    const double up = floor((steps - whole) * 65536.0) + half_word >= 65536.0;
    const double rounded = (whole + up) * step;
    return copysign(rounded > largest ? (double)INFINITY : rounded, x);
}

void ref_gradient_add(double *dst, const double *src, int64_t n, bool accumulate, DType dtype,
                      uint64_t seed, int stream, uint32_t micro_steps) {
    for (int64_t e = 0; e < n; e++) {
        const double sum = (double)(float)(accumulate ? dst[e] + src[e] : src[e]);
        const uint64_t name = (uint64_t)STREAM_GRADIENT + (uint64_t)stream;
        dst[e] = ref_round_stochastically(
            sum, dtype, ref_half_word(seed, name, (uint64_t)micro_steps << 32, e));
    }
}
