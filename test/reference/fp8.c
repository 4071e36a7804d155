// Specification of fp8. See test/reference/fp8.h.
#include "test/reference/fp8.h"
#include <math.h>

double ref_fp8_value(uint8_t code, DType format) {
    const int mantissa = format == DTYPE_E4M3 ? 3 : 2, bias = format == DTYPE_E4M3 ? 7 : 15;
    const int exponent = (code & 0x7F) >> mantissa, fraction = code % (1 << mantissa);
    const double sign = code & 0x80 ? -1.0 : 1.0;
    if (format == DTYPE_E4M3 && (code & 0x7F) == 0x7F) return NAN;
    if (format == DTYPE_E5M2 && exponent == 31) return fraction ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * fraction * ldexp(1.0, 1 - bias - mantissa);
    return sign * ldexp(1.0 + ldexp(fraction, -mantissa), exponent - bias);
}

static uint8_t largest_code(DType format) { return format == DTYPE_E4M3 ? 0x7E : 0x7B; }

// Codes of one sign are ordered like their values: the two neighbours of |x| are found by halving
// the range between zero and the largest. The last bit of a code is that of the mantissa.
uint8_t ref_fp8_code(double x, DType format) {
    const double size = fabs(x);
    int below = 0, above = largest_code(format);
    if (!isfinite(x)) return 0x7F;
    while (above - below > 1) {
        const int middle = (below + above) / 2;
        if (ref_fp8_value((uint8_t)middle, format) <= size)
            below = middle;
        else
            above = middle;
    }
    const double down = size - ref_fp8_value((uint8_t)below, format);
    const double up = ref_fp8_value((uint8_t)above, format) - size;
    const int nearest = down < up || (down == up && below % 2 == 0) ? below : above;
    return (uint8_t)(nearest | (signbit(x) ? 0x80 : 0));
}

double ref_fp8_scale(double amax, DType format) {
    const double largest = ref_fp8_value(largest_code(format), format);
    if (amax == 0.0 || !isfinite(amax)) return 1.0;
    double scale = 0x1p-62;
    while (scale < 0x1p62 && amax * scale * 2.0 <= largest) scale *= 2.0;
    return scale;
}

// The largest magnitude; NaN where there is one.
static double amax_of(const double *in, int64_t n) {
    double amax = 0.0;
    for (int64_t i = 0; i < n; i++) {
        if (isnan(in[i])) return NAN;
        if (fabs(in[i]) > amax) amax = fabs(in[i]);
    }
    return amax;
}

void ref_fp8_quantize(uint8_t *q, uint8_t *transposed, const double *in, Fp8Slot *slot, int64_t N,
                      int64_t K, DType format, Fp8Scaling scaling) {
    if (scaling != FP8_KEEP) {
        const double amax = amax_of(in, N * K), scale = ref_fp8_scale(amax, format);
        slot->amax = (float)amax;
        slot->scale = (float)scale;
        slot->inverse = (float)(1.0 / scale);
    }
    for (int64_t n = 0; n < N; n++) {
        for (int64_t k = 0; k < K; k++) {
            const uint8_t code = ref_fp8_code(in[n * K + k] * (double)slot->scale, format);
            if (q) q[n * K + k] = code;
            if (transposed) transposed[k * N + n] = code;
        }
    }
}

void ref_fp8_matmul(double *out, const double *added, RefFp8 a, RefFp8 b, const double *bias,
                    int64_t M, int64_t N, int64_t K) {
    const double scale = (double)a.slot->scale * (double)b.slot->scale;
    double a_values[256], b_values[256];
    for (int code = 0; code < 256; code++) {
        a_values[code] = ref_fp8_value((uint8_t)code, a.format);
        b_values[code] = ref_fp8_value((uint8_t)code, b.format);
    }
    for (int64_t m = 0; m < M; m++) {
        for (int64_t n = 0; n < N; n++) {
            double sum = 0.0;
            for (int64_t k = 0; k < K; k++)
                sum += a_values[a.codes[m * K + k]] * b_values[b.codes[n * K + k]];
            out[m * N + n] =
                (added ? added[m * N + n] : 0.0) + sum / scale + (bias ? bias[n] : 0.0);
        }
    }
}

void ref_gelu_backward(double *dpre, const double *dout, const double *pre, int64_t n) {
    for (int64_t i = 0; i < n; i++) dpre[i] = dout[i] * ref_gelu_derivative(pre[i]);
}

void ref_bias_backward(double *dbias, const double *dout, int64_t N, int64_t OC, bool accumulate) {
    for (int64_t o = 0; o < OC; o++) {
        double sum = accumulate ? dbias[o] : 0.0;
        for (int64_t n = 0; n < N; n++) sum += dout[n * OC + o];
        dbias[o] = sum;
    }
}
