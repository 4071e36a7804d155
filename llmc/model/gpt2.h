// GPT-2: memory, forward, backward. Built from ops.h alone, so it is the same on every backend.
// Owns the arena with weights, gradients, optimizer state, activations and workspace, and the views into it.
#pragma once
#include "llmc/device.h"
#include "llmc/model/memory_plan.h"
#include "llmc/model/parameters.h"
#include "llmc/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

// -r: what the backward pass computes again instead of keeping it. Gradients are the same bits at every level; on a GPU
// that has GELU in the epilogue of a matmul, levels 1 and 2 are bit-equal to 0 only with -ge 0 (doc/numerics.md).
typedef enum { RECOMPUTE_NONE = 0, RECOMPUTE_GELU = 1, RECOMPUTE_LAYERNORM = 2, RECOMPUTE_BLOCK = 3 } RecomputeLevel;

typedef struct {
    ModelConfig config;
    DType dtype;       // compute dtype: weights and activations
    bool master;       // keep fp32 master weights beside a bf16/fp16 compute dtype (always off for fp32)
    bool train;        // gradients, optimizer state and what the backward pass needs; false: forward only
    int64_t B, T;      // the largest micro-batch
    int recompute;     // RecomputeLevel
    int64_t sequences; // that may be decoded side by side; 0: gpt2_decode_* are not used
} Gpt2Options;

typedef struct Gpt2 Gpt2;

// The plan alone: what gpt2_create would take. Needs an initialised device (for ops_workspace_bytes), no memory.
MemoryPlan *gpt2_plan(const Gpt2Options *options);

// Takes the memory and zeroes it; weights are zero until gpt2_init_weights or gpt2_set_weight.
Gpt2 *gpt2_create(const Gpt2Options *options, Error *err);
void gpt2_destroy(Gpt2 *model);

const Gpt2Options *gpt2_options(const Gpt2 *model);
const MemoryPlan *gpt2_memory(const Gpt2 *model);
int gpt2_num_tensors(const Gpt2 *model);
const Parameter *gpt2_parameters(const Gpt2 *model); // gpt2_num_tensors entries
const AdamWTensor *gpt2_tensors(const Gpt2 *model);  // same order: weight, master, grad, m, v
const Tensor *gpt2_gradients(const Gpt2 *model);     // same order
Tensor gpt2_control(const Gpt2 *model);              // the device's StepControl (u8)
Tensor gpt2_sequence_losses(const Gpt2 *model);      // (B) fp32: of the step so far
Tensor gpt2_gradient_sumsq(const Gpt2 *model);       // (num_tensors) fp32

void gpt2_init_weights(Gpt2 *model, uint64_t seed);

// The StepControl on the device, from and to the host. Both synchronise. A new model has step_control_initial(1).
StepControl gpt2_get_control(const Gpt2 *model);
void gpt2_set_control(Gpt2 *model, const StepControl *control);

// Reads or writes rows [first_row, first_row + rows) of a weight as fp32 (the master where there is one), moments too.
typedef enum { STATE_WEIGHT, STATE_M, STATE_V } StateKind;
void gpt2_get_state(const Gpt2 *model, int index, StateKind kind, int64_t first_row, int64_t rows, float *out);
void gpt2_set_state(Gpt2 *model, int index, StateKind kind, int64_t first_row, int64_t rows, const float *in);

// The micro-batch that the next forward works on: B windows of T+1 tokens of token_bytes (2 or 4) each, in memory from
// host_alloc. Copied on the copy stream while the micro-step before still computes; the memory must stay untouched
// until the next call has returned.
void gpt2_load_batch(Gpt2 *model, const void *windows, int64_t B, int token_bytes);

// The same for windows of T+1 tokens, T at most that of the options: for gpt2_forward only.
void gpt2_load_short_batch(Gpt2 *model, const void *windows, int64_t B, int64_t T, int token_bytes);

// One micro-step on the loaded batch: losses into gpt2_sequence_losses, gradients of the mean loss over tokens_in_step
// tokens (those of all micro-steps of the step) into the gradient tensors. first: overwrite instead of accumulate.
void gpt2_forward_backward(Gpt2 *model, int64_t tokens_in_step, bool first);

// The losses of the loaded batch alone, into gpt2_sequence_losses (overwritten).
void gpt2_forward(Gpt2 *model);

// Of each token of the loaded batch after gpt2_forward: (B,T) fp32, nats.
Tensor gpt2_token_losses(const Gpt2 *model);

// Generation: sequences that grow token by token; keys and values of what they have read stay in a cache. The cache
// shares memory with training and evaluation: any other pass of the model ends it, and it ends what was loaded for one.
// Begins anew with prompts (sequences, n), 1 <= n <= T, sequences <= that of the options. logits (sequences, V), host:
// after the last token of each. Synchronises.
void gpt2_decode_start(Gpt2 *model, const int32_t *prompts, int64_t n, int64_t sequences, float *logits);
// One token more for each sequence, at most T in all; logits (sequences, V) after it. Synchronises.
void gpt2_decode_step(Gpt2 *model, const int32_t *tokens, float *logits);
int64_t gpt2_decode_length(const Gpt2 *model); // tokens read so far

#ifdef __cplusplus
}
#endif
