// Specification of the ops of blocks after GPT-2. See blocks.h.
#include "test/reference/blocks.h"

#include "test/reference/reference.h"
#include <math.h>

// ----------------------------------------------------------------------------------------- rmsnorm

void ref_rmsnorm_forward(double *out, double *rstd, const double *in, const double *weight,
                         int64_t N, int64_t C, double eps) {
    for (int64_t n = 0; n < N; n++) {
        const double *x = in + n * C;
        double squares = 0.0;
        for (int64_t c = 0; c < C; c++) squares += x[c] * x[c];
        rstd[n] = 1.0 / sqrt(squares / (double)C + eps);
        for (int64_t c = 0; c < C; c++) out[n * C + c] = x[c] * rstd[n] * weight[c];
    }
}

void ref_rmsnorm_backward(double *din, double *dweight, double *din_sum, const double *dout,
                          const double *in, const double *rstd, const double *weight, int64_t N,
                          int64_t C, bool add_residual, bool accumulate, bool accumulate_sum) {
    if (!accumulate_sum)
        for (int64_t c = 0; din_sum && c < C; c++) din_sum[c] = 0.0;
    if (!accumulate)
        for (int64_t c = 0; c < C; c++) dweight[c] = 0.0;
    for (int64_t n = 0; n < N; n++) {
        double mean = 0.0; // of dnorm * xhat
        for (int64_t c = 0; c < C; c++) {
            const double xhat = in[n * C + c] * rstd[n], d = dout[n * C + c];
            mean += d * weight[c] * xhat / (double)C;
            dweight[c] += d * xhat;
        }
        for (int64_t c = 0; c < C; c++) {
            const double xhat = in[n * C + c] * rstd[n];
            const double dx = rstd[n] * (dout[n * C + c] * weight[c] - xhat * mean);
            din[n * C + c] = add_residual ? din[n * C + c] + dx : dx;
            if (din_sum) din_sum[c] += din[n * C + c];
        }
    }
}

// -------------------------------------------------------------------------------- QK-norm and RoPE

void ref_rope_table(double *table, int64_t maxT, int64_t HS, double base) {
    const int64_t half = HS / 2;
    for (int64_t t = 0; t < maxT; t++)
        for (int64_t j = 0; j < half; j++) {
            const double power = ref_round(
                pow(base, ref_round(2.0 * (double)j / (double)HS, DTYPE_FP32)), DTYPE_FP32);
            const double angle =
                ref_round((double)t * ref_round(1.0 / power, DTYPE_FP32), DTYPE_FP32);
            table[t * HS + j] = cos(angle);
            table[t * HS + half + j] = sin(angle);
        }
}

// Where head h of row n begins.
static int64_t head_at(RefHeads s, int64_t n, int64_t h) {
    return (n * (s.NH + 2 * s.NKV) + h) * s.HS;
}

// x (HS) times a rotation by `direction` times the angles of a row of the table.
static void rotate(double *out, const double *x, const double *row, int64_t HS, double direction) {
    const int64_t half = HS / 2;
    for (int64_t j = 0; j < half; j++) {
        const double a = x[j], b = x[half + j], c = row[j], s = direction * row[half + j];
        out[j] = a * c - b * s;
        out[half + j] = b * c + a * s;
    }
}

void ref_qk_norm_rope_forward(double *out, double *rstd, const double *qkv, const double *q_weight,
                              const double *k_weight, const double *table, RefHeads s, double eps,
                              int64_t first) {
    for (int64_t n = 0; n < s.B * s.T; n++)
        for (int64_t h = 0; h < s.NH + 2 * s.NKV; h++) {
            const double *x = qkv + head_at(s, n, h), *weight = h < s.NH ? q_weight : k_weight;
            double *y = out + head_at(s, n, h);
            if (h >= s.NH + s.NKV) { // v
                for (int64_t i = 0; i < s.HS; i++) y[i] = x[i];
                continue;
            }
            if (weight)
                ref_rmsnorm_forward(y, rstd + n * (s.NH + s.NKV) + h, x, weight, 1, s.HS, eps);
            else
                for (int64_t i = 0; i < s.HS; i++) y[i] = x[i];
            rotate(y, y, table + (first + n % s.T) * s.HS, s.HS, 1.0);
        }
}

void ref_qk_norm_rope_backward(double *dqkv, double *dq_weight, double *dk_weight,
                               const double *qkv, const double *rstd, const double *q_weight,
                               const double *k_weight, const double *table, RefHeads s,
                               bool accumulate) {
    if (!accumulate)
        for (int64_t i = 0; q_weight && i < s.HS; i++) dq_weight[i] = dk_weight[i] = 0.0;
    for (int64_t n = 0; n < s.B * s.T; n++)
        for (int64_t h = 0; h < s.NH + s.NKV; h++) {
            double *d = dqkv + head_at(s, n, h);
            rotate(d, d, table + n % s.T * s.HS, s.HS, -1.0);
            if (q_weight)
                ref_rmsnorm_backward(d, h < s.NH ? dq_weight : dk_weight, NULL, d,
                                     qkv + head_at(s, n, h), rstd + n * (s.NH + s.NKV) + h,
                                     h < s.NH ? q_weight : k_weight, 1, s.HS, false, true, false);
        }
}

// ------------------------------------------------------------------------------- SwiGLU and ReLU^2

void ref_swiglu_forward(double *out, const double *gate_up, int64_t N, int64_t F) {
    for (int64_t n = 0; n < N; n++)
        for (int64_t f = 0; f < F; f++) {
            const double gate = gate_up[n * 2 * F + f], up = gate_up[n * 2 * F + F + f];
            out[n * F + f] = gate / (1.0 + exp(-gate)) * up;
        }
}

void ref_swiglu_backward(double *dgate_up, const double *dout, const double *gate_up, int64_t N,
                         int64_t F) {
    for (int64_t n = 0; n < N; n++)
        for (int64_t f = 0; f < F; f++) {
            const double gate = gate_up[n * 2 * F + f], up = gate_up[n * 2 * F + F + f],
                         d = dout[n * F + f];
            const double s = 1.0 / (1.0 + exp(-gate));
            dgate_up[n * 2 * F + f] = d * up * s * (1.0 + gate * (1.0 - s));
            dgate_up[n * 2 * F + F + f] = d * gate * s;
        }
}

void ref_relu2_forward(double *out, const double *pre, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = pre[i] > 0.0 ? pre[i] * pre[i] : 0.0;
}

void ref_relu2_backward(double *dpre, const double *dout, const double *pre, int64_t n) {
    for (int64_t i = 0; i < n; i++) dpre[i] = pre[i] > 0.0 ? 2.0 * pre[i] * dout[i] : 0.0;
}
