// Specification of attention_forward and attention_backward: one query row at a time. See
// reference.h.
#include "test/reference/reference.h"
#include <math.h>

// The parts of a packed (B,T,NH + 2 NKV,HS) array; every vector of HS values is addressed through
// these. h counts heads of q; k and v are of the head that it reads.
typedef struct {
    int64_t T, NH, NKV, HS;
} Layout;

static int64_t part(Layout s, int64_t b, int64_t t, int64_t h) {
    return ((b * s.T + t) * (s.NH + 2 * s.NKV) + h) * s.HS;
}
static int64_t q_at(Layout s, int64_t b, int64_t t, int64_t h) { return part(s, b, t, h); }
static int64_t k_at(Layout s, int64_t b, int64_t t, int64_t h) {
    return part(s, b, t, s.NH + h / (s.NH / s.NKV));
}
static int64_t v_at(Layout s, int64_t b, int64_t t, int64_t h) {
    return part(s, b, t, s.NH + s.NKV + h / (s.NH / s.NKV));
}
static int64_t out_at(Layout s, int64_t b, int64_t t, int64_t h) {
    return ((b * s.T + t) * s.NH + h) * s.HS;
}

static double dot(const double *a, const double *b, int64_t n) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

static double score(Layout s, const double *qkv, int64_t b, int64_t h, int64_t i, int64_t j) {
    return dot(qkv + q_at(s, b, i, h), qkv + k_at(s, b, j, h), s.HS) / sqrt((double)s.HS);
}

// log sum_{j<=i} exp(score), with the largest score taken out so that exp cannot overflow.
static double log_sum_exp(Layout s, const double *qkv, int64_t b, int64_t h, int64_t i) {
    double max = -INFINITY, sum = 0.0;
    for (int64_t j = 0; j <= i; j++) max = fmax(max, score(s, qkv, b, h, i, j));
    for (int64_t j = 0; j <= i; j++) sum += exp(score(s, qkv, b, h, i, j) - max);
    return max + log(sum);
}

void ref_attention_forward(double *out, double *lse, const double *qkv, int64_t B, int64_t T,
                           int64_t NH, int64_t NKV, int64_t HS) {
    Layout s = {T, NH, NKV, HS};
    for (int64_t b = 0; b < B; b++) {
        for (int64_t h = 0; h < NH; h++) {
            for (int64_t i = 0; i < T; i++) {
                double *o = out + out_at(s, b, i, h), *l = &lse[(b * NH + h) * T + i];
                *l = log_sum_exp(s, qkv, b, h, i);
                for (int64_t d = 0; d < s.HS; d++) o[d] = 0.0;
                for (int64_t j = 0; j <= i; j++) {
                    double p = exp(score(s, qkv, b, h, i, j) - *l);
                    for (int64_t d = 0; d < s.HS; d++) o[d] += p * qkv[v_at(s, b, j, h) + d];
                }
            }
        }
    }
}

void ref_attention_backward(double *dqkv, const double *dout, const double *out, const double *lse,
                            const double *qkv, int64_t B, int64_t T, int64_t NH, int64_t NKV,
                            int64_t HS) {
    Layout s = {T, NH, NKV, HS};
    for (int64_t i = 0; i < B * T * (NH + 2 * NKV) * HS; i++) dqkv[i] = 0.0;
    for (int64_t b = 0; b < B; b++) {
        for (int64_t h = 0; h < NH; h++) {
            for (int64_t i = 0; i < T; i++) {
                const double *dout_i = dout + out_at(s, b, i, h), *q = qkv + q_at(s, b, i, h);
                double row = dot(dout_i, out + out_at(s, b, i, h), s.HS);
                for (int64_t j = 0; j <= i; j++) {
                    const double *k = qkv + k_at(s, b, j, h), *v = qkv + v_at(s, b, j, h);
                    double p = exp(score(s, qkv, b, h, i, j) - lse[(b * NH + h) * T + i]);
                    double ds = p * (dot(dout_i, v, s.HS) - row) / sqrt((double)s.HS);
                    for (int64_t d = 0; d < s.HS; d++) {
                        dqkv[q_at(s, b, i, h) + d] += ds * k[d];
                        dqkv[k_at(s, b, j, h) + d] += ds * q[d];
                        dqkv[v_at(s, b, j, h) + d] += p * dout_i[d];
                    }
                }
            }
        }
    }
}
