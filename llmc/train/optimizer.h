// The end of a step: gradient norm, the decision (clip, skip), and the update, by the optimizer
// that the model was planned for. This module owns the list of tensors that it passes to the ops;
// the model owns the state itself (moments, master). llmc/model/optimizer_state.c lists the rules
// that an optimizer uses.
#pragma once
#include "llmc/base/error.h"
#include "llmc/model/model.h"

typedef struct {
    GroupRates rates[NUM_GROUPS];
    float momentum;    // SGD, Muon
    uint64_t seed;     // of stochastic rounding, if there are no master weights
    StepLimits limits; // clip, outliers; optimizer_create adds the betas
} OptimizerOptions;

// The loss scale. fp16 has no numbers below 2^-24, where many gradients are. So the loss is
// multiplied by a scale before the backward pass and the gradients are divided by it afterwards,
// see step_control.h. It begins high, is halved by each step that overflows (a few at the start are
// normal; they are skipped) and doubles after 2000 steps without one. Micikevicius et al., "Mixed
// Precision Training", 2017. bf16 and fp32 have enough range without it: their scale is fixed at 1.
#define FIRST_LOSS_SCALE 65536.0f
int32_t optimizer_scale_growth_interval(DType dtype); // for StepLimits

typedef struct Optimizer Optimizer;
Optimizer *optimizer_create(Model *model, const OptimizerOptions *options, Error *err);
void optimizer_destroy(Optimizer *optimizer);

// The sum of squares of the gradients, into model_norm: of this process's part where the state is
// divided. Call after the last micro-step; before optimizer_step the processes add their sums
// (data_parallel.h). Queued.
void optimizer_norm(Optimizer *optimizer);
// Does the next update with this learning rate, from the gradients of a step of tokens_in_step
// tokens. The decision, and with it the number of the update, is in model_control. Queued on the
// compute stream; does not wait. watched: for
// --numerics-every, parameters are updated one after the other, with the same bits.
void optimizer_step(Optimizer *optimizer, double learning_rate, int64_t tokens_in_step,
                    bool watched);
