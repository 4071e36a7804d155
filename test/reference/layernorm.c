// Specification of layernorm_forward and layernorm_backward. See reference.h.
#include "test/reference/reference.h"
#include <math.h>

void ref_layernorm_forward(double *out, double *mean, double *rstd, const double *in,
                           const double *weight, const double *bias, int64_t N, int64_t C,
                           double eps) {
    for (int64_t n = 0; n < N; n++) {
        const double *x = in + n * C;
        double sum = 0.0, var = 0.0;
        for (int64_t c = 0; c < C; c++) sum += x[c];
        mean[n] = sum / (double)C;
        for (int64_t c = 0; c < C; c++) var += (x[c] - mean[n]) * (x[c] - mean[n]);
        rstd[n] = 1.0 / sqrt(var / (double)C + eps);
        for (int64_t c = 0; c < C; c++)
            out[n * C + c] = (x[c] - mean[n]) * rstd[n] * weight[c] + bias[c];
    }
}

void ref_layernorm_backward(double *din, double *dweight, double *dbias, double *din_sum,
                            const double *dout, const double *in, const double *mean,
                            const double *rstd, const double *weight, int64_t N, int64_t C,
                            bool add_residual, bool accumulate, bool accumulate_sum) {
    if (!accumulate_sum)
        for (int64_t c = 0; din_sum && c < C; c++) din_sum[c] = 0.0;
    if (!accumulate)
        for (int64_t c = 0; c < C; c++) dweight[c] = dbias[c] = 0.0;
    for (int64_t n = 0; n < N; n++) {
        double mean_dnorm = 0.0, mean_dnorm_xhat = 0.0;
        for (int64_t c = 0; c < C; c++) {
            double xhat = (in[n * C + c] - mean[n]) * rstd[n], d = dout[n * C + c];
            mean_dnorm += d * weight[c] / (double)C;
            mean_dnorm_xhat += d * weight[c] * xhat / (double)C;
            dweight[c] += d * xhat;
            dbias[c] += d;
        }
        for (int64_t c = 0; c < C; c++) {
            double xhat = (in[n * C + c] - mean[n]) * rstd[n];
            double dx =
                rstd[n] * (dout[n * C + c] * weight[c] - mean_dnorm - xhat * mean_dnorm_xhat);
            din[n * C + c] = add_residual ? din[n * C + c] + dx : dx;
            if (din_sum) din_sum[c] += din[n * C + c];
        }
    }
}
