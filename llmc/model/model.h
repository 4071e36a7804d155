// GPT-2: memory, forward, backward. It is built from ops.h and device.h only, so it is the same on every backend. It
// owns the arena with weights, gradients, optimizer state (under offload in host memory), activations and workspace,
// and the views into it.
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
    bool fp8_delayed;          // their scales from previous steps, instead of from the tensors themselves
    bool overlap;              // on a GPU: weight gradients are computed beside the other ops of the backward pass
    bool numerics;             // model_observe will be used: plans memory for its counts and for a copy of an update
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

const ModelOptions *model_options(const Model *model);
const MemoryPlan *model_memory(const Model *model);
int model_num_tensors(const Model *model);
const Parameter *model_parameters(const Model *model); // model_num_tensors entries
// In the same order: all tensors of the optimizer (in host memory under offload), rule, rate and weight decay (as a
// multiple of the run's: 1 or 0). Where the state is divided its tensors have no data here.
const UpdateTensor *model_tensors(const Model *model);
// What this process updates: all of them, or where the state is divided slices of some of them, with their state.
const UpdateTensor *model_own_tensors(const Model *model, int *count);
Range model_own_elements(const Model *model, int index); // of a parameter
Tensor model_control(const Model *model);                // the device's StepControl (u8)
Tensor model_sequence_losses(const Model *model); // (B) fp32: losses by row of the micro-batch, of the step so far
Tensor model_step_losses(const Model *model); // (groups, B) fp32: of each group; with one group model_sequence_losses

// For data_parallel.c and optimizer.c: memory unit by unit, each a tensor (elements) with the padding between its
// parameters, which is 0.
const Partition *model_partition(const Model *model);
Tensor model_unit_weights(const Model *model, int unit);
Tensor model_unit_gradients(const Model *model, int unit);       // of the micro-steps
Tensor model_unit_sums(const Model *model, int unit, int level); // of groups: level 0 .. levels - 1
Tensor model_own_gradients(const Model *model, int unit);        // this process's range of the unit: the sums of all
Tensor model_all_gradients(const Model *model);                  // all units, unless gradients are freed
Tensor model_exchange_buffer(const Model *model, int half);      // 0 or 1, in the dtype of gradients
Tensor model_norm(const Model *model); // (processes, norm parts and more) fp32: sums of squares
// Whether the gradients of a block are freed as soon as they are exchanged, before those of other blocks are computed:
// where the state is divided and a process has one micro-step.
bool model_frees_gradients(const ModelOptions *options);

void model_init_weights(Model *model, uint64_t seed);

// Reads and writes the StepControl on the device. Both synchronise. A new model has step_control_initial(1).
StepControl model_get_control(const Model *model);
void model_set_control(Model *model, const StepControl *control);

// Reads or writes rows [first_row, first_row + rows) of a weight as fp32: the exact value of the parameter, which is
// the master, or weight + compensation, or the weight.
bool model_get_weight(const Model *model, int index, int64_t first_row, int64_t rows, float *out);
void model_set_weight(Model *model, int index, int64_t first_row, int64_t rows, const float *in);

// Bytes [first, first + n) of a tensor that belongs to the model (model_tensors), wherever it lives. Synchronises.
void model_read_bytes(const Model *model, Tensor t, int64_t first, int64_t n, void *out);
void model_write_bytes(Model *model, Tensor t, int64_t first, int64_t n, const void *in);

// Sets the compensation of these rows, in its dtype, of a weight that model_set_weight has set, which is weight +
// compensation: splits it again into the pair. Where the state is divided, only this process's part of the weight is
// then right: all must exchange their weights.
void model_set_compensation(Model *model, int index, int64_t first_row, int64_t rows, const void *in);

// Bytes [first, first + n) of the optimizer's state of a parameter. Where it is divided, what belongs to others is read
// by the reader, and a write changes only what belongs to this process. model_get_weight, which reads masters,
// likewise. Both are false, with nothing of use in out, if the reader could not reach the others; it has the message.
typedef bool StateReader(void *context, int index, StateSlot slot, int64_t first, int64_t n, void *out);
void model_set_reader(Model *model, StateReader *reader, void *context);
bool model_read_state(const Model *model, int index, StateSlot slot, int64_t first, int64_t n, void *out);
void model_write_state(Model *model, int index, StateSlot slot, int64_t first, int64_t n, const void *in);
// The bytes of it that a process has.
Range model_state_range(const Model *model, int index, StateSlot slot, int process);

// Call when an update of the weights was queued: everything derived from them is out of date.
void model_weights_changed(Model *model);

// Under offload: the device memory that chunks of the state pass through, and its bytes; otherwise NULL and 0.
void *model_offload_buffer(const Model *model, int64_t *bytes);
// Arena memory that nothing else uses between the last micro-step of a step and the next forward pass, for the
// optimizer's scratch data. Planned for the optimizer of the options (optimizer_scratch_bytes).
Tensor model_optimizer_scratch(const Model *model); // u8

// The scales of fp8 (Fp8Slot), in a fixed order; absent unless they are delayed, so that a step depends on earlier
// ones. Part of the checkpoint.
Tensor model_fp8_slots(const Model *model);

// Loads the micro-batch for the next forward: B windows of T+1 tokens of token_bytes (2 or 4) each, in memory from
// host_alloc. It is copied on the copy stream while the previous micro-step still computes; the memory must stay
// untouched until the next call has returned.
void model_load_batch(Model *model, const void *windows, int64_t B, int token_bytes);

// The same for windows of T+1 tokens, with T at most the T of the options; for model_forward only.
void model_load_short_batch(Model *model, const void *windows, int64_t B, int64_t T, int token_bytes);

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

// Drops the micro-steps since the last update: their effects outside the gradients are undone. last: the control after
// that update. Synchronises.
void model_abandon_step(Model *model, const StepControl *last);

// While this is on, the statistics of each input, output and output gradient of a linear layer are counted, in
// micro-steps that run op by op. Needs ModelOptions.numerics. Counts begin at 0 when it is switched on.
void model_observe(Model *model, bool on);

// The losses of the loaded batch only, into model_sequence_losses (overwritten).
void model_forward(Model *model);

// The loss of each token of the loaded batch after model_forward: (B,T) fp32, nats.
Tensor model_token_losses(const Model *model);

// Generation: sequences grow token by token, and the keys and values of their tokens stay in a cache. The cache shares
// memory with training and evaluation: any other pass of the model invalidates it, and it invalidates a loaded batch.
// model_decode_start begins with prompts (sequences, n), 1 <= n <= T, with at most the sequences of the options. logits
// (sequences, V), in host memory: after the last token of each. Synchronises.
void model_decode_start(Model *model, const int32_t *prompts, int64_t n, int64_t sequences, float *logits);
// Adds a token to each sequence, at most T in all; logits (sequences, V) after it. Synchronises.
void model_decode_step(Model *model, const int32_t *tokens, float *logits);
int64_t model_decode_length(const Model *model); // tokens read so far

// ---------------------------------------------------------------------------------------------------- --numerics-every

typedef struct {
    char name[48]; // "qkv.in", "fc.gradient", "qkvw.weight", "wte.gradient", "wte.update"
    TensorStats stats;
    double weight_sumsq; // of an update: of the weights before it; 0 for the others
    bool of_process;     // others have counted other elements: of a linear layer, or where the state is divided
} NumericsRow;
// Of an update: its norm over the norm of the weight; 0 for the others.
double model_numerics_ratio(const NumericsRow *row);

// Of each of the four linear layers: input, output, output gradient; of each parameter: weight, gradient, update.
enum { NUMERICS_MAX_ROWS = 4 * 3 + NUM_PARAMETER_SPECS * 3 };

// Counts the current weights and gradients; call after the last micro-step of a step, before its update. Queued.
void model_numerics_gradients(Model *model);
// Counts the change that the update of parameter `index` makes: call begin before the update is queued, end after.
// Queued. The change is measured on the master if there is one on the device, else on the weight: with --offload or
// Kahan's compensation it is the change of the rounded weight. Keeps a copy in model_optimizer_scratch.
void model_numerics_update_begin(Model *model, int index);
void model_numerics_update_end(Model *model, int index);
// Reads everything counted since model_observe(model, true); returns the number of rows. Classes without counts have no
// row. Synchronises.
int model_numerics_read(Model *model, NumericsRow rows[NUMERICS_MAX_ROWS]);
