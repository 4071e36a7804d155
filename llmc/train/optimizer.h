// The end of a step: gradient norm, the decision (clip, skip), the update. Host side of AdamW: who decays, which step
// it is. Owns the list of tensors it hands to the ops; the state itself (m, v, master) is the model's.
#pragma once
#include "llmc/model/gpt2.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    float beta1, beta2, eps;
    float weight_decay; // on matrices and embeddings; vectors (biases, layernorm) do not decay
    uint64_t seed;      // of stochastic rounding, where there are no master weights
    StepLimits limits;  // clip, outliers
} OptimizerOptions;

typedef struct Optimizer Optimizer;
Optimizer *optimizer_create(Gpt2 *model, const OptimizerOptions *options, Error *err);
void optimizer_destroy(Optimizer *optimizer);

// Update number `step` (from 1) with this learning rate, from the gradients of a step of tokens_in_step tokens. What
// was decided stands in gpt2_control. Queued on the compute stream; does not wait.
void optimizer_step(Optimizer *optimizer, int64_t step, double learning_rate, int64_t tokens_in_step);

#ifdef __cplusplus
}
#endif
