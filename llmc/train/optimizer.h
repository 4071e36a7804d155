// The end of a step: gradient norm, the decision (clip, skip), the update, by the optimizer that the model was planned
// for. Owns the list of tensors it hands to the ops; the state itself (moments, master) is the model's. Which rules an
// optimizer uses: llmc/model/optimizer_state.c; Muon and offload have files of their own beside this one.
#pragma once
#include "llmc/model/gpt2.h"

typedef struct {
    float beta1, beta2, eps;
    float momentum;     // SGD, Muon
    float weight_decay; // on matrices and embeddings; vectors (biases, layernorm) do not decay
    uint64_t seed;      // of stochastic rounding, where there are no master weights
    StepLimits limits;  // clip, outliers
} OptimizerOptions;

// The loss scale. fp16 has no numbers below 2^-24, where many gradients lie: the loss is multiplied by a scale before
// the backward pass and the gradients divided by it after, see step_control.h. It begins high, is halved by each step
// that overflows (a few at the start are normal; they are skipped) and doubles after 2000 steps without one.
// Micikevicius et al., "Mixed Precision Training", 2017. bf16 and fp32 have the range without it: scale 1, fixed.
float optimizer_first_loss_scale(DType dtype);
int32_t optimizer_scale_growth_interval(DType dtype); // for StepLimits

typedef struct Optimizer Optimizer;
Optimizer *optimizer_create(Gpt2 *model, const OptimizerOptions *options, Error *err);
void optimizer_destroy(Optimizer *optimizer);

// Update number `step` (from 1, counted from where the optimizer's state began) with this learning rate, from the
// gradients of a step of tokens_in_step tokens. What was decided stands in gpt2_control. Queued on the compute stream;
// does not wait. watched: --numerics-every wants to see it: one parameter after the other, the same bits.
void optimizer_step(Optimizer *optimizer, int64_t step, double learning_rate, int64_t tokens_in_step, bool watched);
