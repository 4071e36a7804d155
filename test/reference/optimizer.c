// Specification of gradient_sumsq and adamw_update for one tensor. The decision between them, step_control_decide, is
// one shared function (llmc/step_control.h) and needs no second text. See reference.h.
#include "test/reference/reference.h"
#include <math.h>

double ref_sumsq(const double *grad, int64_t n) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) sum += grad[i] * grad[i];
    return sum;
}

void ref_adamw_update(double *weight, double *m, double *v, const double *grad, int64_t n, double weight_decay,
                      AdamWParams params, double grad_factor) {
    double b1 = params.beta1, b2 = params.beta2;
    double correction1 = 1.0 - pow(b1, (double)params.step), correction2 = 1.0 - pow(b2, (double)params.step);
    for (int64_t i = 0; i < n; i++) {
        double g = grad[i] * grad_factor;
        m[i] = b1 * m[i] + (1.0 - b1) * g;
        v[i] = b2 * v[i] + (1.0 - b2) * g * g;
        double direction = m[i] / correction1 / (sqrt(v[i] / correction2) + params.eps);
        weight[i] -= params.learning_rate * (direction + weight_decay * weight[i]);
    }
}
