// Specification of gradient_sumsq and of the updates, for one tensor. The decision between them,
// step_control_decide, is one shared function (llmc/step_control.h) and needs no second text. See
// reference.h.
#include "test/reference/reference.h"
#include <math.h>

double ref_sumsq(const double *grad, int64_t n) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) sum += grad[i] * grad[i];
    return sum;
}

void ref_adamw_update(double *weight, double *m, double *v, const double *grad, int64_t n,
                      double rate, double weight_decay, UpdateParams params, int group,
                      int64_t updates, double grad_factor) {
    double b1 = params.moments[group].beta1, b2 = params.moments[group].beta2;
    double correction1 = 1.0 - pow(b1, (double)updates),
           correction2 = 1.0 - pow(b2, (double)updates);
    for (int64_t i = 0; i < n; i++) {
        double g = grad[i] * grad_factor;
        m[i] = b1 * m[i] + (1.0 - b1) * g;
        v[i] = b2 * v[i] + (1.0 - b2) * g * g;
        double direction =
            m[i] / correction1 / (sqrt(v[i] / correction2) + params.moments[group].eps);
        weight[i] -= params.learning_rate * (rate * direction + weight_decay * weight[i]);
    }
}

static double sign(double x) { return (double)((x > 0.0) - (x < 0.0)); }

// Adafactor's estimate of the second moment of element i.
static double adafactor_second_moment(const RefUpdate *t, double mean_row, int64_t i) {
    return t->cols ? t->row[i / t->cols] * t->col[i % t->cols] / mean_row : t->v[i];
}

static double adafactor_mean_row(const RefUpdate *t) {
    const int64_t rows = t->cols ? t->n / t->cols : 0;
    double sum = 0.0;
    for (int64_t i = 0; i < rows; i++) sum += t->row[i];
    return rows ? sum / (double)rows : 0.0;
}

void ref_optimizer_update(const RefUpdate *t, UpdateParams params, double grad_factor) {
    if (t->rule == RULE_ADAMW) {
        ref_adamw_update(t->w, t->m, t->v, t->grad, t->n, t->rate, t->weight_decay, params,
                         t->group, t->updates, grad_factor);
        return;
    }
    const double b1 = params.moments[t->group].beta1, b2 = params.moments[t->group].beta2,
                 mean_row = adafactor_mean_row(t);
    for (int64_t i = 0; i < t->n; i++) {
        double g = t->grad[i] * grad_factor, direction = t->grad[i]; // RULE_DIRECTION
        if (t->rule == RULE_LION) {
            direction = sign(b1 * t->m[i] + (1.0 - b1) * g);
            t->m[i] = b2 * t->m[i] + (1.0 - b2) * g;
        } else if (t->rule == RULE_SGD) {
            direction = t->m[i] = params.momentum * t->m[i] + g;
        } else if (t->rule == RULE_ADAFACTOR) {
            direction = g / sqrt(adafactor_second_moment(t, mean_row, i)) / fmax(1.0, t->rms[0]);
        }
        t->w[i] -= params.learning_rate * (t->rate * direction + t->weight_decay * t->w[i]);
    }
}

void ref_adafactor_statistics(const RefUpdate *t, double grad_factor) {
    const double b = 1.0 - pow((double)t->updates, -0.8);
    const int64_t cols = t->cols, rows = cols ? t->n / cols : 0;
    for (int64_t i = 0; i < rows; i++) t->row[i] *= b;
    for (int64_t j = 0; j < cols; j++) t->col[j] *= b;
    for (int64_t i = 0; i < t->n; i++) {
        const double g = t->grad[i] * grad_factor, g2 = g * g + 1e-30;
        if (cols) {
            t->row[i / cols] += (1.0 - b) * g2 / (double)cols;
            t->col[i % cols] += (1.0 - b) * g2 / (double)rows;
        } else {
            t->v[i] = b * t->v[i] + (1.0 - b) * g2;
        }
    }
    const double mean_row = adafactor_mean_row(t);
    double sum = 0.0; // of u^2
    for (int64_t i = 0; i < t->n; i++) {
        const double g = t->grad[i] * grad_factor;
        sum += g * g / adafactor_second_moment(t, mean_row, i);
    }
    t->rms[0] = sqrt(sum / (double)(t->n - t->padding));
}

void ref_momentum_update(const RefUpdate *t, UpdateParams params, double grad_factor) {
    for (int64_t i = 0; i < t->n; i++) {
        const double g = t->grad[i] * grad_factor;
        t->m[i] = params.momentum * t->m[i] + g;
        t->grad[i] = g + params.momentum * t->m[i];
    }
}
