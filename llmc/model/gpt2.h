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
    int64_t sequences;   // max sequences decoded in parallel; 0: gpt2_decode_* are not used
    OptimizerKind optimizer;
    bool gradients_in_dtype;   // gradients have the compute dtype; a micro-step's are added to them, rounded
                               // stochastically
    uint64_t seed;             // of that rounding
    bool offload;              // optimizer state and master weights live in host memory
    bool fp8;                  // the four matmuls of a block in fp8; needs bf16 and dimensions in multiples of 16
    bool fp8_delayed;          // their scales from previous steps, instead of from the tensors themselves
    bool overlap;              // on a GPU: weight gradients are computed beside the other ops of the backward pass
    bool numerics;             // gpt2_observe will be used: plans memory for its counts and for a copy of an update
    int groups, group_count;   // of a step, and those that this process computes (train/data_parallel.h); 0: 1
    int processes, rank;       // that share a step; 0: 1
    bool divided;              // the optimizer's state is divided among them (-z 1)
    int64_t group_windows;     // sequences of a group; 0: at most B
    const PlannedSizes *sizes; // for gpt2_plan only; NULL: the sizes of the linked backend
} Gpt2Options;

typedef struct Gpt2 Gpt2;

// Whether such a model is possible: fp8 (dtype, device, C and T in multiples of 16), offload with this optimizer, Muon
// with fp16 gradients. Otherwise false and a message.
bool gpt2_check_options(const Gpt2Options *options, Error *err);

// The plan alone: the memory that gpt2_create would allocate. Needs an initialised device (for ops_workspace_bytes),
// but no memory.
MemoryPlan *gpt2_plan(const Gpt2Options *options);
int64_t gpt2_host_bytes(const Gpt2Options *options); // bytes of host memory, under offload

// The op at a tick of the plan, for people: "block 3 qkv", "block 3 fcproj backward", "generation". Returns name.
enum { TICK_NAME = 48 };
const char *gpt2_tick_name(const ModelConfig *config, int tick, char name[TICK_NAME]);

// Allocates the memory and zeroes it; weights are zero until gpt2_init_weights or gpt2_set_weight.
Gpt2 *gpt2_create(const Gpt2Options *options, Error *err);
void gpt2_destroy(Gpt2 *model);

const Gpt2Options *gpt2_options(const Gpt2 *model);
const MemoryPlan *gpt2_memory(const Gpt2 *model);
int gpt2_num_tensors(const Gpt2 *model);
const Parameter *gpt2_parameters(const Gpt2 *model); // gpt2_num_tensors entries
// In the same order: all tensors of the optimizer (in host memory under offload), rule, rate and weight decay (as a
// multiple of the run's: 1 or 0). Where the state is divided its tensors have no data here.
const UpdateTensor *gpt2_tensors(const Gpt2 *model);
// What this process updates: all of them, or where the state is divided slices of some of them, with their state.
const UpdateTensor *gpt2_own_tensors(const Gpt2 *model, int *count);
Range gpt2_own_elements(const Gpt2 *model, int index); // of a parameter
Tensor gpt2_control(const Gpt2 *model);                // the device's StepControl (u8)
Tensor gpt2_sequence_losses(const Gpt2 *model);        // (B) fp32: losses by row of the micro-batch, of the step so far
Tensor gpt2_step_losses(const Gpt2 *model); // (groups, B) fp32: of each group; with one group gpt2_sequence_losses

// For data_parallel.c and optimizer.c: memory unit by unit, each a tensor (elements) with the padding between its
// parameters, which is 0.
const Partition *gpt2_partition(const Gpt2 *model);
Tensor gpt2_unit_weights(const Gpt2 *model, int unit);
Tensor gpt2_unit_gradients(const Gpt2 *model, int unit);       // of the micro-steps
Tensor gpt2_unit_sums(const Gpt2 *model, int unit, int level); // of groups: level 0 .. levels - 1
Tensor gpt2_own_gradients(const Gpt2 *model, int unit);        // this process's range of the unit: the sums of all
Tensor gpt2_all_gradients(const Gpt2 *model);                  // all units, unless gradients are freed
Tensor gpt2_exchange_buffer(const Gpt2 *model, int half);      // 0 or 1, in the dtype of gradients
Tensor gpt2_norm(const Gpt2 *model);                           // (processes, norm parts and more) fp32: sums of squares
// Whether the gradients of a block are freed as soon as they are exchanged, before those of other blocks are computed:
// where the state is divided and a process has one micro-step.
bool gpt2_frees_gradients(const Gpt2Options *options);

void gpt2_init_weights(Gpt2 *model, uint64_t seed);

// Reads and writes the StepControl on the device. Both synchronise. A new model has step_control_initial(1).
StepControl gpt2_get_control(const Gpt2 *model);
void gpt2_set_control(Gpt2 *model, const StepControl *control);

// Reads or writes rows [first_row, first_row + rows) of a weight as fp32: the exact value of the parameter, which is
// the master, or weight + compensation, or the weight.
bool gpt2_get_weight(const Gpt2 *model, int index, int64_t first_row, int64_t rows, float *out);
void gpt2_set_weight(Gpt2 *model, int index, int64_t first_row, int64_t rows, const float *in);

// Bytes [first, first + n) of a tensor that belongs to the model (gpt2_tensors), wherever it lives. Synchronises.
void gpt2_read_bytes(const Gpt2 *model, Tensor t, int64_t first, int64_t n, void *out);
void gpt2_write_bytes(Gpt2 *model, Tensor t, int64_t first, int64_t n, const void *in);

// Sets the compensation of these rows, in its dtype, of a weight that gpt2_set_weight has set, which is weight +
// compensation: splits it again into the pair. Where the state is divided, only this process's part of the weight is
// then right: all must exchange their weights.
void gpt2_set_compensation(Gpt2 *model, int index, int64_t first_row, int64_t rows, const void *in);

// Bytes [first, first + n) of the optimizer's state of a parameter. Where it is divided, what belongs to others is read
// by the reader, and a write changes only what belongs to this process. gpt2_get_weight, which reads masters, likewise.
// Both are false, with nothing of use in out, if the reader could not reach the others; it has the message.
typedef bool StateReader(void *context, int index, StateSlot slot, int64_t first, int64_t n, void *out);
void gpt2_set_reader(Gpt2 *model, StateReader *reader, void *context);
bool gpt2_read_state(const Gpt2 *model, int index, StateSlot slot, int64_t first, int64_t n, void *out);
void gpt2_write_state(Gpt2 *model, int index, StateSlot slot, int64_t first, int64_t n, const void *in);
// The bytes of it that a process has.
Range gpt2_state_range(const Gpt2 *model, int index, StateSlot slot, int process);

// Call when an update of the weights was queued: everything derived from them is out of date.
void gpt2_weights_changed(Gpt2 *model);

// Under offload: the device memory that chunks of the state pass through, and its bytes; otherwise NULL and 0.
void *gpt2_offload_buffer(const Gpt2 *model, int64_t *bytes);
// Arena memory that nothing else uses between the last micro-step of a step and the next forward pass, for the
// optimizer's scratch data. Planned for the optimizer of the options (optimizer_scratch_bytes).
Tensor gpt2_optimizer_scratch(const Gpt2 *model); // u8

// The scales of fp8 (Fp8Slot), in a fixed order; absent unless they are delayed, so that a step depends on earlier
// ones. Part of the checkpoint.
Tensor gpt2_fp8_slots(const Gpt2 *model);

// Loads the micro-batch for the next forward: B windows of T+1 tokens of token_bytes (2 or 4) each, in memory from
// host_alloc. It is copied on the copy stream while the previous micro-step still computes; the memory must stay
// untouched until the next call has returned.
void gpt2_load_batch(Gpt2 *model, const void *windows, int64_t B, int token_bytes);

// The same for windows of T+1 tokens, with T at most the T of the options; for gpt2_forward only.
void gpt2_load_short_batch(Gpt2 *model, const void *windows, int64_t B, int64_t T, int token_bytes);

// One micro-step on the loaded batch: losses into gpt2_sequence_losses, gradients of the mean loss over tokens_in_step
// tokens (of all micro-steps of the step) into the gradient tensors. first: overwrite instead of accumulate.
void gpt2_forward_backward(Gpt2 *model, int64_t tokens_in_step, bool first);

// Called in the micro-steps that follow, NULL: no more: before the forward pass reads the weights of a unit
// (partition.h), and when the gradients of a unit are complete. The struct must stay. Evaluation and decoding do not
// call them. For models of several processes.
typedef struct {
    void (*before_forward)(void *context, int unit);
    void (*after_backward)(void *context, int unit);
    void *context;
} UnitHooks;
void gpt2_set_hooks(Gpt2 *model, const UnitHooks *hooks);

// Drops the micro-steps since the last update: their effects outside the gradients are undone. last: the control after
// that update. Synchronises.
void gpt2_abandon_step(Gpt2 *model, const StepControl *last);

// While this is on, the statistics of each input, output and output gradient of a linear layer are counted, in
// micro-steps that run op by op. Needs Gpt2Options.numerics. Counts begin at 0 when it is switched on.
void gpt2_observe(Gpt2 *model, bool on);

// The losses of the loaded batch only, into gpt2_sequence_losses (overwritten).
void gpt2_forward(Gpt2 *model);

// The loss of each token of the loaded batch after gpt2_forward: (B,T) fp32, nats.
Tensor gpt2_token_losses(const Gpt2 *model);

// Generation: sequences grow token by token, and the keys and values of their tokens stay in a cache. The cache shares
// memory with training and evaluation: any other pass of the model invalidates it, and it invalidates a loaded batch.
// gpt2_decode_start begins with prompts (sequences, n), 1 <= n <= T, with at most the sequences of the options. logits
// (sequences, V), in host memory: after the last token of each. Synchronises.
void gpt2_decode_start(Gpt2 *model, const int32_t *prompts, int64_t n, int64_t sequences, float *logits);
// Adds a token to each sequence, at most T in all; logits (sequences, V) after it. Synchronises.
void gpt2_decode_step(Gpt2 *model, const int32_t *tokens, float *logits);
int64_t gpt2_decode_length(const Gpt2 *model); // tokens read so far

// ---------------------------------------------------------------------------------------------------- --numerics-every

typedef struct {
    char name[48]; // "qkv.in", "fc.gradient", "qkvw.weight", "wte.gradient", "wte.update"
    TensorStats stats;
    double weight_sumsq; // of an update: of the weights before it; 0 for the others
    bool of_process;     // others have counted other elements: of a linear layer, or where the state is divided
} NumericsRow;
// Of an update: its norm over the norm of the weight; 0 for the others.
double gpt2_numerics_ratio(const NumericsRow *row);

// Of each of the four linear layers: input, output, output gradient; of each parameter: weight, gradient, update.
enum { NUMERICS_MAX_ROWS = 4 * 3 + NUM_PARAMETER_SPECS * 3 };

// Counts the current weights and gradients; call after the last micro-step of a step, before its update. Queued.
void gpt2_numerics_gradients(Gpt2 *model);
// Counts the change that the update of parameter `index` makes: call begin before the update is queued, end after.
// Queued. The change is measured on the master if there is one on the device, else on the weight: with --offload or
// Kahan's compensation it is the change of the rounded weight. Keeps a copy in gpt2_optimizer_scratch.
void gpt2_numerics_update_begin(Gpt2 *model, int index);
void gpt2_numerics_update_end(Gpt2 *model, int index);
// Reads everything counted since gpt2_observe(model, true); returns the number of rows. Classes without counts have no
// row. Synchronises.
int gpt2_numerics_read(Gpt2 *model, NumericsRow rows[NUMERICS_MAX_ROWS]);
