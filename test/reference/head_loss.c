// Specification of head_loss_forward, head_loss_backward and sequence_losses, one row of logits at
// a time. Columns V..Vp-1 of the padded vocabulary are never looked at. See reference.h.
#include "test/reference/reference.h"
#include <math.h>
#include <stdlib.h>

// logits (V) of one row x (C), and log sum exp of them.
static double row_logits(double *logits, const double *x, const double *wte, int64_t C, int64_t V) {
    ref_matmul_forward(logits, x, wte, NULL, 1, C, V);
    double max = -INFINITY, sum = 0.0;
    for (int64_t v = 0; v < V; v++) max = fmax(max, logits[v]);
    for (int64_t v = 0; v < V; v++) sum += exp(logits[v] - max);
    return max + log(sum);
}

void ref_head_loss_forward(double *losses, const double *in, const double *wte,
                           const int32_t *targets, int64_t N, int64_t C, int64_t V) {
    double *logits = malloc((size_t)V * sizeof *logits);
    for (int64_t n = 0; n < N; n++)
        losses[n] = row_logits(logits, in + n * C, wte, C, V) - logits[targets[n]];
    free(logits);
}

void ref_head_loss_backward(double *losses, double *din, double *dwte, const double *in,
                            const double *wte, const int32_t *targets, int64_t N, int64_t C,
                            int64_t V, int64_t Vp, double factor, bool accumulate) {
    double *logits = malloc((size_t)V * sizeof *logits);
    if (!accumulate)
        for (int64_t i = 0; i < Vp * C; i++) dwte[i] = 0.0;
    for (int64_t n = 0; n < N; n++) {
        double lse = row_logits(logits, in + n * C, wte, C, V);
        losses[n] = lse - logits[targets[n]];
        for (int64_t c = 0; c < C; c++) din[n * C + c] = 0.0;
        for (int64_t v = 0; v < V; v++) {
            double dlogit = factor * (exp(logits[v] - lse) - (v == targets[n] ? 1.0 : 0.0));
            for (int64_t c = 0; c < C; c++) {
                din[n * C + c] += dlogit * wte[v * C + c];
                dwte[v * C + c] += dlogit * in[n * C + c];
            }
        }
    }
    free(logits);
}

void ref_sequence_losses(double *sums, const double *losses, int64_t B, int64_t T,
                         bool accumulate) {
    for (int64_t b = 0; b < B; b++) {
        double sum = accumulate ? sums[b] : 0.0;
        for (int64_t t = 0; t < T; t++) sum += losses[b * T + t];
        sums[b] = sum;
    }
}
