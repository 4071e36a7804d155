// The golden tests of models share their size, limits, the model on the values of a file, steps,
// and logits of the decoder.
#pragma once
#include "llmc/device.h"
#include "llmc/model/model_decode.h"
#include "llmc/model/model_state.h"
#include "llmc/store/safetensors.h"
#include "llmc/store/weights_file.h"
#include "llmc/train/optimizer.h"
#include "test/ops/op_test.h"
#include <math.h>
#include <stdlib.h>

enum { B = 3, T = 16, STEPS = 10, WINDOWS = B * (T + 1) };

typedef struct {
    double logits, losses, gradients; // relative L2 errors
    double step_losses;               // of the ten mean losses
    double norms;                     // of the ten gradient norms
    double moved;                     // error of the final weights, relative to the way they went
} Limits;

// The files are right to 2^-24 = 6e-8. In fp32 an op is good to about 1e-6; thirty in a row, whose
// errors add as squares, stay below 1e-5. A weight of size 1 that goes a way of 0.01 in ten steps
// is stored with an error of sqrt(10)
// * 2^-25 = 1e-7, which is 1e-5 of its way; ten times that is the limit. In bf16 every stored value
// is off by 1.6e-3 rms (fp16: 2e-4). Residual stream and branches are rounded about ten times on
// the way up, and the layernorms and the head weigh these errors by up to 2: 1e-2 for logits, two
// to four tolerances of one op. Gradients go as far down again, through derivatives that were taken
// at the inexact values: twice that. Losses and norms are sums over many such errors. AdamW divides
// a gradient by its size, so that small elements, where the error of 2e-2 is a larger share, count
// as much as large ones: 0.05 of the way on average. In fp16 the smallest elements, below 2^-14
// after scaling, have fewer bits than the others: 40 tolerances instead of 25.
static inline Limits golden_limits(DType dtype) {
    if (dtype == DTYPE_FP32) return (Limits){1e-5, 1e-5, 1e-5, 1e-5, 1e-5, 1e-4};
    const double one = op_tolerance(dtype);
    return (Limits){4 * one, one, 8 * one, one, one, (dtype == DTYPE_FP16 ? 40 : 25) * one};
}

// fp16 cannot hold the gradient of a mean loss: it is scaled, and the scale divided out again.
// Others need none.
static inline double loss_scale_of(DType dtype) { return dtype == DTYPE_FP16 ? 1024.0 : 1.0; }

// The fp32 values of a tensor; the caller frees them.
static inline double *golden_values(SafetensorsFile *file, const SafetensorsEntry *e, int64_t *n) {
    Error err;
    *n = e->bytes / (int64_t)sizeof(float);
    float *values = malloc((size_t)e->bytes);
    double *wide = calloc((size_t)*n + 1, sizeof *wide);
    if (!safetensors_read_fp32(file, e, 0, *n, values, &err)) op_fail("%s", err.text);
    for (int64_t i = 0; i < *n; i++) wide[i] = (double)values[i];
    free(values);
    return wide;
}

// The model of a file, to train; recompute as -r takes it.
static inline Model *golden_model(const char *path, const ModelConfig *config,
                                  OptimizerKind optimizer, DType dtype, const char *recompute) {
    Error err;
    ModelOptions options = {.config = *config,
                            .dtype = dtype,
                            .optimizer = optimizer,
                            .master = dtype != DTYPE_FP32,
                            .train = true,
                            .B = B,
                            .T = T,
                            .sequences = B};
    if (!recompute_parse(&options.recompute, recompute, config->L, &err)) op_fail("%s", err.text);
    Model *model = model_create(&options, &err);
    if (!model || !weights_file_load(model, path, &err)) op_fail("%s", err.text);
    StepControl control = step_control_initial((float)loss_scale_of(dtype));
    model_set_control(model, &control);
    return model;
}

// windows: (STEPS, B, T+1), memory the device can copy from.
static inline void golden_micro_step(Model *model, const uint16_t *windows, int step) {
    model_load_batch(model, windows + (size_t)step * WINDOWS, B, T, sizeof(uint16_t));
    model_forward_backward(model, B * T, true);
    device_sync();
}

// The losses and gradient norms of ten steps.
static inline void golden_ten_steps(Model *model, Optimizer *optimizer, const uint16_t *windows,
                                    const double *rates, double losses[STEPS],
                                    double norms[STEPS]) {
    for (int step = 0; step < STEPS; step++) {
        golden_micro_step(model, windows, step);
        optimizer_norm(optimizer);
        optimizer_step(optimizer, rates[step], B * T, false);
        StepControl control = model_get_control(model);
        assert_int_equal(control.skip, SKIP_NONE);
        losses[step] = (double)control.loss, norms[step] = (double)control.norm;
    }
}

// The logits (B,T,V) of the decoder: row t from a prompt of t + 1 tokens, or, grown, token by token
// from one.
static inline void golden_logits(Model *model, const uint16_t *windows, int64_t V, bool grown,
                                 double *got) {
    float *rows = malloc((size_t)(B * V) * sizeof *rows);
    for (int t = 0; t < T; t++) {
        int32_t tokens[B * T];
        const int first = grown && t > 0 ? t : 0, count = t + 1 - first;
        for (int b = 0; b < B; b++)
            for (int i = 0; i < count; i++)
                tokens[b * count + i] = windows[b * (T + 1) + first + i];
        if (grown && t > 0)
            model_decode_step(model, tokens, rows);
        else
            model_decode_start(model, tokens, count, B, rows);
        assert_int_equal(model_decode_length(model), t + 1);
        for (int b = 0; b < B; b++)
            for (int64_t v = 0; v < V; v++) got[(b * T + t) * V + v] = (double)rows[b * V + v];
    }
    free(rows);
}
