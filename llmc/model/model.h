// A model: its plan of memory, the object, and its passes. It is built from ops.h and device.h only, so it is the same
// on every backend. It owns the arena with weights, gradients, optimizer state (under offload in host memory),
// activations and workspace. model_state.h has the weights and the state, model_decode.h generation, model_numerics.h
// statistics.
#pragma once
#include "llmc/device.h"
#include "llmc/model/memory_plan.h"
#include "llmc/model/optimizer_state.h"
#include "llmc/model/parameters.h"
#include "llmc/model/partition.h"
#include "llmc/model/recompute.h"
#include "llmc/ops.h"

// The sizes that the ops of another machine require, in place of ops_workspace_bytes and ops_head_chunk_rows, to plan
// for a machine that is not present. machine is passed to both.
typedef struct {
    int64_t (*workspace_bytes)(const void *machine, OpsShape shape);
    int64_t (*head_chunk_rows)(const void *machine, OpsShape shape);
    const void *machine;
} PlannedSizes;

typedef struct {
    ModelConfig config;
    DType dtype;         // compute dtype: weights and activations
    bool master;         // keep fp32 master weights with a bf16/fp16 compute dtype (always off for fp32, and if the
                         // optimizer has none)
    bool train;          // gradients, optimizer state and the memory of the backward pass; false: forward only
    int64_t B, T;        // the largest micro-batch
    Recompute recompute; // the activations that the backward pass recomputes
    int64_t sequences;   // max sequences decoded in parallel; 0: model_decode_* are not used
    OptimizerKind optimizer;
    bool gradients_in_dtype;   // gradients have the compute dtype; a micro-step's are added to them, rounded
                               // stochastically
    uint64_t seed;             // of that rounding
    bool offload;              // optimizer state and master weights live in host memory
    bool fp8;                  // the four matmuls of a block in fp8; needs bf16 and dimensions in multiples of 16
    bool overlap;              // on a GPU: weight gradients are computed beside the other ops of the backward pass
    bool numerics;             // model_numerics.h: plans memory for its counts and for a copy of an update
    int groups, group_count;   // of a step, and those that this process computes (train/data_parallel.h); 0: 1
    int processes, rank;       // that share a step; 0: 1
    bool divided;              // the optimizer's state is divided among them (-z 1)
    int64_t group_windows;     // sequences of a group; 0: at most B
    const PlannedSizes *sizes; // for model_plan only; NULL: the sizes of the linked backend
} ModelOptions;

typedef struct Model Model;

// Whether such a model is possible: fp8 (dtype, device, C and T in multiples of 16), offload with this optimizer, Muon
// with fp16 gradients. Otherwise false and a message.
bool model_check_options(const ModelOptions *options, Error *err);

// The plan alone: the memory that model_create would allocate. Needs an initialised device (for ops_workspace_bytes),
// but no memory.
MemoryPlan *model_plan(const ModelOptions *options);
int64_t model_host_bytes(const ModelOptions *options); // bytes of host memory, under offload

// The op at a tick of the plan, for people: "block 3 qkv", "block 3 fcproj backward", "generation". Returns name.
enum { TICK_NAME = 48 };
const char *model_tick_name(const ModelConfig *config, int tick, char name[TICK_NAME]);

// Allocates the memory and zeroes it; weights are zero until model_init_weights or model_set_weight.
Model *model_create(const ModelOptions *options, Error *err);
void model_destroy(Model *model);
// A model without memory, for a dry run of a whole micro-batch: its tensors have shapes, and addresses that fault. An
// observer that refuses every op must watch (ops_observe) while model_load_batch, model_forward_backward or the
// optimizer gets it. NULL: there are not so many addresses. Not for offload.
Model *model_create_dry(const ModelOptions *options);

const ModelOptions *model_options(const Model *model);
const MemoryPlan *model_memory(const Model *model);

void model_init_weights(Model *model, uint64_t seed);

// -------------------------------------------------------------------------------------------------------------- passes

// Loads the micro-batch for the next pass: B windows of T+1 tokens of token_bytes (2 or 4) each, in memory from
// host_alloc. Only model_forward takes fewer than the T of the options. The windows are copied on the copy stream while
// the previous micro-step still computes; the memory must stay untouched until the next call has returned.
void model_load_batch(Model *model, const void *windows, int64_t B, int64_t T, int token_bytes);

// One micro-step on the loaded batch: losses into model_sequence_losses, gradients of the mean loss over tokens_in_step
// tokens (of all micro-steps of the step) into the gradient tensors. first: overwrite instead of accumulate.
void model_forward_backward(Model *model, int64_t tokens_in_step, bool first);

// Called in the micro-steps that follow, NULL: no more: before the forward pass reads the weights of a unit
// (partition.h), and when the gradients of a unit are complete. The struct must stay. Evaluation and decoding do not
// call them. For models of several processes.
typedef struct {
    void (*before_forward)(void *context, int unit);
    void (*after_backward)(void *context, int unit);
    void *context;
} UnitHooks;
void model_set_hooks(Model *model, const UnitHooks *hooks);

// The losses of the loaded batch only, into model_sequence_losses (overwritten).
void model_forward(Model *model);

Tensor model_sequence_losses(const Model *model); // (B) fp32: losses by row of the micro-batch, of the step so far
Tensor model_step_losses(const Model *model);  // (groups, B) fp32: of each group; with one group model_sequence_losses
Tensor model_token_losses(const Model *model); // (B,T) fp32, nats: of each token of the batch after model_forward

// The StepControl on the device. Reading and writing synchronise. A new model has step_control_initial(1).
Tensor model_control(const Model *model); // u8
StepControl model_get_control(const Model *model);
void model_set_control(Model *model, const StepControl *control);
