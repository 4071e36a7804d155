// Specification of the matmul family and of GELU (tanh form). See reference.h.
#include "test/reference/reference.h"
#include <math.h>

static const double sqrt_2_over_pi = 0.79788456080286535588;
static const double cubic = 0.044715;

double ref_gelu(double x) {
    return 0.5 * x * (1.0 + tanh(sqrt_2_over_pi * (x + cubic * x * x * x)));
}

// d/dx of 0.5 x (1 + tanh u) with u = sqrt(2/pi) (x + 0.044715 x^3), and 1 - tanh^2 the derivative
// of tanh.
double ref_gelu_derivative(double x) {
    double t = tanh(sqrt_2_over_pi * (x + cubic * x * x * x));
    double du = sqrt_2_over_pi * (1.0 + 3.0 * cubic * x * x);
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * du;
}

void ref_gelu_forward(double *out, const double *pre, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = ref_gelu(pre[i]);
}

void ref_matmul_forward(double *out, const double *in, const double *weight, const double *bias,
                        int64_t N, int64_t IC, int64_t OC) {
    for (int64_t n = 0; n < N; n++) {
        for (int64_t o = 0; o < OC; o++) {
            double sum = bias ? bias[o] : 0.0;
            for (int64_t i = 0; i < IC; i++) sum += in[n * IC + i] * weight[o * IC + i];
            out[n * OC + o] = sum;
        }
    }
}

void ref_matmul_residual_forward(double *out, const double *residual, const double *in,
                                 const double *weight, const double *bias, int64_t N, int64_t IC,
                                 int64_t OC) {
    ref_matmul_forward(out, in, weight, bias, N, IC, OC);
    for (int64_t i = 0; i < N * OC; i++) out[i] += residual[i];
}

void ref_matmul_gelu_forward(double *out, double *pre, const double *in, const double *weight,
                             const double *bias, int64_t N, int64_t IC, int64_t OC, DType dtype) {
    ref_matmul_forward(pre, in, weight, bias, N, IC, OC);
    for (int64_t i = 0; i < N * OC; i++) pre[i] = ref_round(pre[i], dtype);
    ref_gelu_forward(out, pre, N * OC);
}

void ref_matmul_backward_input(double *din, const double *dout, const double *weight, int64_t N,
                               int64_t IC, int64_t OC) {
    for (int64_t n = 0; n < N; n++) {
        for (int64_t i = 0; i < IC; i++) din[n * IC + i] = 0.0;
        for (int64_t o = 0; o < OC; o++)
            for (int64_t i = 0; i < IC; i++)
                din[n * IC + i] += dout[n * OC + o] * weight[o * IC + i];
    }
}

void ref_matmul_gelu_backward_input(double *dpre, const double *dout, const double *weight,
                                    const double *pre, int64_t N, int64_t IC, int64_t OC) {
    ref_matmul_backward_input(dpre, dout, weight, N, IC, OC);
    for (int64_t i = 0; i < N * IC; i++) dpre[i] *= ref_gelu_derivative(pre[i]);
}

void ref_matmul_backward_weight(double *dweight, double *dbias, const double *dout,
                                const double *in, int64_t N, int64_t IC, int64_t OC,
                                bool accumulate) {
    if (!accumulate) {
        for (int64_t i = 0; i < OC * IC; i++) dweight[i] = 0.0;
        for (int64_t o = 0; dbias && o < OC; o++) dbias[o] = 0.0;
    }
    for (int64_t n = 0; n < N; n++) {
        for (int64_t o = 0; o < OC; o++) {
            double d = dout[n * OC + o];
            if (dbias) dbias[o] += d;
            for (int64_t i = 0; i < IC; i++) dweight[o * IC + i] += d * in[n * IC + i];
        }
    }
}
