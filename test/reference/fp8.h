// Specification of the fp8 ops of llmc/ops.h. It knows the two formats by their definition only,
// and shares no rounding, no encoding and no scale with llmc/number.h: the nearest number is
// searched for. Codes are bytes, as the device holds them; slots are those of llmc/number.h. See
// reference.h.
#pragma once
#include "test/reference/reference.h"

// What a code stands for: sign, exponent and mantissa as in IEEE 754, with the format's infinities
// and NaNs.
double ref_fp8_value(uint8_t code, DType format);
// The code of the number nearest to x, of two the one whose last bit is 0; finite numbers beyond
// the largest: that; inf and NaN: 0x7F.
uint8_t ref_fp8_code(double x, DType format);
// The largest power of two from 2^-62 to 2^62 with amax * scale <= the largest number of the
// format; 1 if amax is 0, inf or NaN.
double ref_fp8_scale(double amax, DType format);

// in (N,K); q (N,K) and transposed (K,N), either of which may be NULL.
void ref_fp8_quantize(uint8_t *q, uint8_t *transposed, const double *in, Fp8Slot *slot, int64_t N,
                      int64_t K, DType format, Fp8Scaling scaling);
// One operand of fp8_matmul.
typedef struct {
    const uint8_t *codes;
    DType format;
    const Fp8Slot *slot;
} RefFp8;
// out (M,N) = added (M,N) + a (M,K) @ b (N,K)^T / (a.scale * b.scale) + bias (N); added (may be
// out) and bias may be NULL.
void ref_fp8_matmul(double *out, const double *added, RefFp8 a, RefFp8 b, const double *bias,
                    int64_t M, int64_t N, int64_t K);
void ref_gelu_backward(double *dpre, const double *dout, const double *pre, int64_t n);
void ref_bias_backward(double *dbias, const double *dout, int64_t N, int64_t OC, bool accumulate);
