// Specification of batch_unpack, and of the embedding with its norm and their gradients. See
// reference.h.
#include "test/reference/reference.h"
#include <math.h>

double ref_round(double x, DType dtype) {
    float y = (float)x;
    if (dtype == DTYPE_BF16) y = bf16_to_float(float_to_bf16(y));
    if (dtype == DTYPE_FP16) y = fp16_to_float(float_to_fp16(y));
    return y;
}

void ref_batch_unpack(int32_t *inputs, int32_t *targets, const int32_t *windows, int64_t B,
                      int64_t T) {
    for (int64_t b = 0; b < B; b++) {
        for (int64_t t = 0; t < T; t++) {
            inputs[b * T + t] = windows[b * (T + 1) + t];
            targets[b * T + t] = windows[b * (T + 1) + t + 1];
        }
    }
}

void ref_embedding_forward(double *out, const int32_t *tokens, const double *wte, const double *wpe,
                           int64_t B, int64_t T, int64_t C) {
    for (int64_t b = 0; b < B; b++)
        for (int64_t t = 0; t < T; t++)
            for (int64_t c = 0; c < C; c++)
                out[(b * T + t) * C + c] =
                    wte[tokens[b * T + t] * C + c] + (wpe ? wpe[t * C + c] : 0.0);
}

void ref_embedding_backward(double *dwte, double *dwpe, const double *dout, const int32_t *tokens,
                            int64_t B, int64_t T, int64_t C, int64_t Vp, int64_t maxT,
                            bool accumulate_wte, bool accumulate) {
    if (!accumulate_wte)
        for (int64_t i = 0; i < Vp * C; i++) dwte[i] = 0.0;
    if (!accumulate)
        for (int64_t i = 0; dwpe && i < maxT * C; i++) dwpe[i] = 0.0;
    for (int64_t b = 0; b < B; b++) {
        for (int64_t t = 0; t < T; t++) {
            for (int64_t c = 0; c < C; c++) {
                double d = dout[(b * T + t) * C + c];
                dwte[tokens[b * T + t] * C + c] += d;
                if (dwpe) dwpe[t * C + c] += d;
            }
        }
    }
}

static double rstd_of(const double *e, int64_t C, double eps) {
    double squares = 0.0;
    for (int64_t c = 0; c < C; c++) squares += e[c] * e[c];
    return 1.0 / sqrt(squares / (double)C + eps);
}

void ref_embedding_norm_forward(double *out, const int32_t *tokens, const double *wte, int64_t N,
                                int64_t C, double eps) {
    for (int64_t n = 0; n < N; n++) {
        const double *e = wte + tokens[n] * C, rstd = rstd_of(e, C, eps);
        for (int64_t c = 0; c < C; c++) out[n * C + c] = e[c] * rstd;
    }
}

void ref_embedding_norm_backward(double *dout, const int32_t *tokens, const double *wte, int64_t N,
                                 int64_t C, double eps) {
    for (int64_t n = 0; n < N; n++) {
        const double *e = wte + tokens[n] * C, rstd = rstd_of(e, C, eps);
        double *d = dout + n * C, mean = 0.0;
        for (int64_t c = 0; c < C; c++) mean += d[c] * e[c] * rstd / (double)C;
        for (int64_t c = 0; c < C; c++) d[c] = rstd * (d[c] - e[c] * rstd * mean);
    }
}
