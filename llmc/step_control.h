// The decisions of a step that the host would see too late: whether the gradient is finite, how
// much it is clipped, whether the step is an outlier, whether the update is skipped, which number
// it has, and the next loss scale. They are made on the device, by this one function, in every
// backend: one thread of a kernel of one block calls it on a GPU. The state is small, is in device
// memory and is part of the checkpoint.
#pragma once
#include "llmc/base/arithmetic.h"
#include <math.h>
#include <stdint.h>

enum { OUTLIER_WINDOW = 128 }; // llm.c's window for -sl and -sg

typedef enum {
    SKIP_NONE = 0,
    SKIP_NONFINITE = 1,    // a gradient or the loss is inf or nan: see bad_tensor
    SKIP_LOSS_OUTLIER = 2, // z-score of the loss above limit (-sl)
    SKIP_NORM_OUTLIER = 3, // z-score of the gradient norm above limit (-sg)
} SkipReason;

typedef struct {
    float values[OUTLIER_WINDOW]; // the last finite values, a ring
    int32_t count;                // filled entries
    int32_t next;                 // where the next one goes
} OutlierWindow;

// Groups of parameters, which an update may treat differently: ParameterGroup of
// llmc/model/parameters.h.
enum { UPDATE_GROUPS = 4 };

// Moments of a group: the decay of the first and of the second, and the term added to the root of
// the second.
typedef struct {
    float beta1, beta2, eps;
} MomentRates;

typedef struct {
    // read by the host one step late
    float loss; // mean over all tokens of the step, nats
    // global L2 norm of the gradient, before clipping and with the loss scale divided out
    float norm;
    float grad_factor; // what the update multiplies gradients by: clip factor / loss scale
    float loss_z;      // z-scores against the window; 0 while the window is not full
    float norm_z;
    int32_t skip;       // SkipReason of this step: the update leaves weights and moments unchanged
    int32_t bad_tensor; // index of the first gradient that is not finite; -1: none, or only the
                        // loss is not
    int32_t skipped;    // steps skipped in the run so far
    // kept from step to step
    float loss_scale;     // dynamic loss scale (fp16); 1 otherwise
    int32_t good_steps;   // finite steps since the scale changed, or since a step that was not
    uint32_t micro_steps; // of the run, if gradients are rounded stochastically: the index of their
                          // random bits
    int32_t updates;      // since the optimizer's state began; a skipped step is none
    // of update number `updates`, not kept
    float m_correction[UPDATE_GROUPS], v_correction[UPDATE_GROUPS]; // AdamW: 1 / (1 - beta^updates)
    float keep, take; // Adafactor: mean = keep mean + take g^2, take = updates^-0.8
    OutlierWindow loss_window;
    OutlierWindow norm_window;
} StepControl;

typedef struct {
    float clip;                    // global-norm limit; 0 = never clip
    float loss_z_limit;            // 0 = off
    float norm_z_limit;            // 0 = off
    int32_t scale_growth_interval; // finite steps before loss_scale doubles; 0 = the scale is fixed
    MomentRates moments[UPDATE_GROUPS]; // for AdamW's bias corrections
} StepLimits;

static HOST_DEVICE inline StepControl step_control_initial(float loss_scale) {
    StepControl c;
    c.loss = c.norm = c.loss_z = c.norm_z = 0.0f;
    c.grad_factor = 1.0f;
    c.skip = SKIP_NONE;
    c.bad_tensor = -1;
    c.skipped = 0;
    c.loss_scale = loss_scale;
    c.good_steps = 0;
    c.micro_steps = 0;
    c.updates = 0;
    for (int i = 0; i < UPDATE_GROUPS; i++) c.m_correction[i] = c.v_correction[i] = 0.0f;
    c.keep = c.take = 0.0f;
    for (int i = 0; i < OUTLIER_WINDOW; i++)
        c.loss_window.values[i] = c.norm_window.values[i] = 0.0f;
    c.loss_window.count = c.norm_window.count = 0;
    c.loss_window.next = c.norm_window.next = 0;
    return c;
}

// The z-score of x against the current window (0 until it is full); x then replaces the oldest
// value.
static HOST_DEVICE inline float outlier_window_push(OutlierWindow *w, float x) {
    float z = 0.0f;
    if (w->count == OUTLIER_WINDOW) {
        double sum = 0.0, sumsq = 0.0;
        for (int i = 0; i < OUTLIER_WINDOW; i++) sum += w->values[i];
        double mean = sum / OUTLIER_WINDOW;
        for (int i = 0; i < OUTLIER_WINDOW; i++)
            sumsq += (w->values[i] - mean) * (w->values[i] - mean);
        double sd = sqrt(sumsq / OUTLIER_WINDOW);
        if (sd > 0.0) z = (float)((x - mean) / sd);
    } else {
        w->count++;
    }
    w->values[w->next] = x;
    w->next = (w->next + 1) % OUTLIER_WINDOW;
    return z;
}

// x^n, n >= 0, by squaring: pow of the host's library and of the device's differ in the last bits.
static HOST_DEVICE inline double step_control_power(double x, int32_t n) {
    double product = 1.0;
    for (; n > 0; n /= 2, x *= x)
        if (n % 2) product *= x;
    return product;
}

// Counts an update that is made, and finds its factors.
static HOST_DEVICE inline void step_control_count_update(StepControl *c, StepLimits limits) {
    const int32_t n = ++c->updates;
    for (int i = 0; i < UPDATE_GROUPS; i++) {
        c->m_correction[i] = (float)(1.0 / (1.0 - step_control_power(limits.moments[i].beta1, n)));
        c->v_correction[i] = (float)(1.0 / (1.0 - step_control_power(limits.moments[i].beta2, n)));
    }
    // n^-0.8 as the fifth root of n over n. Newton's method from above the root, no more than twice
    // as large.
    double root = 1.0;
    while (step_control_power(root, 5) < n) root *= 2.0;
    for (int i = 0; i < 8; i++) root = (4.0 * root + n / step_control_power(root, 4)) / 5.0;
    const double take = root / n;
    c->keep = (float)(1.0 - take);
    c->take = (float)take;
}

// One decision.
//   sumsq      (num_tensors)   sum of squares of each gradient tensor, loss scale included
//   loss_sum   sum of the losses of all tokens of the step;  num_tokens  their number
// Values that are skipped as outliers still enter the window, so that a lasting change of level is
// accepted eventually.
static HOST_DEVICE inline void step_control_decide(StepControl *c, const float *sumsq,
                                                   int num_tensors, double loss_sum,
                                                   int64_t num_tokens, StepLimits limits) {
    double total = 0.0;
    c->bad_tensor = -1;
    for (int i = 0; i < num_tensors; i++) {
        if (!isfinite(sumsq[i]) && c->bad_tensor < 0) c->bad_tensor = i;
        total += sumsq[i];
    }
    c->loss = (float)(loss_sum / (double)num_tokens);
    c->norm = (float)(sqrt(total) / c->loss_scale);
    c->loss_z = c->norm_z = 0.0f;
    c->skip = SKIP_NONE;
    c->grad_factor = 1.0f / c->loss_scale;
    if (c->bad_tensor >= 0 || !isfinite(c->norm) || !isfinite(c->loss)) {
        c->skip = SKIP_NONFINITE;
        c->skipped++;
        c->good_steps = 0;
        if (limits.scale_growth_interval > 0 && c->loss_scale > 1.0f) c->loss_scale *= 0.5f;
        return;
    }
    if (limits.clip > 0.0f && c->norm > limits.clip) c->grad_factor *= limits.clip / c->norm;
    c->loss_z = outlier_window_push(&c->loss_window, c->loss);
    c->norm_z = outlier_window_push(&c->norm_window, c->norm);
    if (limits.norm_z_limit > 0.0f && c->norm_z > limits.norm_z_limit) c->skip = SKIP_NORM_OUTLIER;
    if (limits.loss_z_limit > 0.0f && c->loss_z > limits.loss_z_limit) c->skip = SKIP_LOSS_OUTLIER;
    if (c->skip != SKIP_NONE)
        c->skipped++;
    else
        step_control_count_update(c, limits);
    c->good_steps++;
    if (limits.scale_growth_interval > 0 && c->good_steps >= limits.scale_growth_interval) {
        c->good_steps = 0;
        if (c->loss_scale < 0x1p24f) c->loss_scale *= 2.0f;
    }
}
