// A model: its plan of memory, the object, and its passes. It is built from ops.h and device.h
// only, so it is the same on every backend. It owns the arena with weights, gradients, optimizer
// state (under offload in host memory), activations and workspace. model_state.h has the weights
// and the state, model_decode.h generation, model_numerics.h statistics.
#pragma once
#include "llmc/device.h"
#include "llmc/model/memory_plan.h"
#include "llmc/model/model_tensors.h"

// The plan alone: the memory that model_create would allocate. Needs an initialised device (for
// ops_workspace_bytes), but no memory.
MemoryPlan *model_plan(const ModelOptions *options);
int64_t model_host_bytes(const ModelOptions *options); // bytes of host memory, under offload

// Allocates the memory and zeroes it; weights are zero until model_init_weights or
// model_set_weight.
Model *model_create(const ModelOptions *options, Error *err);
void model_destroy(Model *model);
// A model without memory, for a dry run of a whole micro-batch: its tensors have shapes, and
// addresses that fault. An observer that refuses every op must watch (ops_observe) while
// model_load_batch, model_forward_backward or the optimizer gets it. NULL: the address space is too
// small. Not for offload.
Model *model_create_dry(const ModelOptions *options);

const ModelOptions *model_options(const Model *model);
const MemoryPlan *model_memory(const Model *model);

void model_init_weights(Model *model, uint64_t seed);

// ------------------------------------------------------------------------------------------ passes

// Loads the micro-batch for the next pass: B windows of T+1 tokens of token_bytes (2 or 4) each, in
// memory from host_alloc. Only model_forward takes fewer than the T of the options. The windows are
// copied on the copy stream while the previous micro-step still computes; the memory must stay
// untouched until the next call has returned.
void model_load_batch(Model *model, const void *windows, int64_t B, int64_t T, int token_bytes);

// One micro-step on the loaded batch: losses into model_sequence_losses, gradients of the mean loss
// over tokens_in_step tokens (of all micro-steps of the step) into the gradient tensors. first:
// overwrite instead of accumulate.
void model_forward_backward(Model *model, int64_t tokens_in_step, bool first);

// Called in the micro-steps that follow, NULL: no more: before the forward pass reads the weights
// of a unit (partition.h), and when the gradients of a unit are complete. The struct must stay.
// Evaluation and decoding do not call them. For models of several processes.
typedef struct UnitHooks {
    void (*before_forward)(void *context, int unit);
    void (*after_backward)(void *context, int unit);
    void *context;
} UnitHooks;
void model_set_hooks(Model *model, const UnitHooks *hooks);

// The losses of the loaded batch only, into model_sequence_losses (overwritten).
void model_forward(Model *model);
