// Private to the gpt2*.c files: the Gpt2 object, and the views of weights and activations that the pass uses as p-> and
// a->.
#pragma once
#include "llmc/model/gpt2.h"

// The clock of a micro-step, for lifetimes in the memory plan. Forward ticks of a block, FORWARD_TICKS to a block:
enum { F_LN1, F_QKV, F_ATT, F_PROJ, F_LN2, F_FC, F_FCPROJ, FORWARD_TICKS, F_NEXT_LN1 = FORWARD_TICKS };
// then the head (final layernorm; logits, loss and their gradients; final layernorm backward),
enum { H_LNF, H_HEAD, H_LNF_BACKWARD, HEAD_TICKS };
// then the blocks backward, last block first.
enum { B_RECOMPUTE, B_FCPROJ, B_GELU, B_FC, B_LN2, B_PROJ, B_ATT, B_QKV, B_LN1, BACKWARD_TICKS };

// The activations of a block, and the gradients that pass through it.
typedef enum {
    ACT_RESIDUAL1,
    ACT_LN1,
    ACT_LN1_MEAN,
    ACT_LN1_RSTD,
    ACT_QKV,
    ACT_LSE,
    ACT_ATT,
    ACT_PROJ,
    ACT_RESIDUAL2,
    ACT_LN2,
    ACT_LN2_MEAN,
    ACT_LN2_RSTD,
    ACT_PRE,
    ACT_GELU,
    ACT_FCPROJ,
    ACT_DFC,
    ACT_DLN2,
    ACT_DATT,
    ACT_DQKV,
    ACT_DLN1,
    NUM_BLOCK_ACTS
} BlockAct;

// Tensors of the whole model that live within a micro-step.
typedef enum {
    ACT_INPUTS,
    ACT_TARGETS,
    ACT_FINAL_RESIDUAL,
    ACT_LNF,
    ACT_LNF_MEAN,
    ACT_LNF_RSTD,
    ACT_LOGITS,
    ACT_LOSSES,
    ACT_DLNF,
    ACT_DRESIDUAL,
    NUM_MODEL_ACTS
} ModelAct;

// Handles of the memory plan; -1 if a tensor does not exist.
typedef struct {
    int weights, gradients;                   // each one region: all tensors of the table, one after the other
    int micro_gradients[NUM_PARAMETER_SPECS]; // gpt2_memory.c: of one block, or outside blocks
    int state[NUM_STATE_SLOTS]; // the same for each slot of the optimizer; -1 under offload: they are in host memory
    int64_t host_bytes;         // of the state in host memory
    int offload_buffer, optimizer_scratch;
    int control, sequence_losses, sumsq, windows, workspace;
    int model_acts[NUM_MODEL_ACTS];
    int (*forward)[NUM_BLOCK_ACTS];   // (L): where the forward pass of a block writes
    int (*backward)[NUM_BLOCK_ACTS];  // (L): where its backward pass reads it, the same place if it was kept
    int decoder_acts[NUM_BLOCK_ACTS]; // shared by all blocks
    int cache, decoder_tokens, decoder_logits;
    int fp8_weights, fp8_slots, fp8_forward, fp8_backward; // gpt2_fp8.c
    int stats;                                             // gpt2_numerics.c
} Layout;

// The state of generation (gpt2_decode.c).
typedef struct {
    int64_t sequences, length; // length 0: not started, or invalidated by another pass
    char *host;                // from host_alloc: tokens on their way to the device, logits on their way back
    DeviceGraph *graph;        // the recording of one token
    int64_t recorded;          // the number of sequences it was recorded for
} Decoder;

struct Gpt2 {
    Gpt2Options options;
    MemoryPlan *plan;
    Layout layout;
    char *arena;

    int num_tensors;
    Parameter *parameters;
    UpdateTensor *tensors;
    char *host_state; // from host_alloc, under offload

    char *staging; // host memory from host_alloc, STAGING_BYTES: weights pass through it
    int64_t B, T;  // of the loaded batch
    DeviceEvent *copied, *unpacked;
    bool copy_in_flight;
    struct {
        DeviceGraph *graph;
        int64_t B, tokens_in_step; // the parameters of the recording
    } graphs[4];
    Decoder decoder;
    bool observing;       // gpt2_observe
    bool weights_are_new; // since fp8_prepare
    bool evaluating;      // the current pass does not belong to a step
};

enum { STAGING_BYTES = 4 << 20 };

// Weights of one block, or their gradients.
typedef struct {
    Tensor ln1w, ln1b, qkvw, qkvb, attprojw, attprojb, ln2w, ln2b, fcw, fcb, fcprojw, fcprojb;
} BlockParams;
BlockParams gpt2_block_weights(const Gpt2 *model, int block);
BlockParams gpt2_block_gradients(const Gpt2 *model, int block); // where the ops of a micro-step write them
Tensor gpt2_weight(const Gpt2 *model, int spec);                // of a weight outside blocks
Tensor gpt2_gradient(const Gpt2 *model, int spec);              // the same

// Views for a micro-batch of B sequences of T tokens, at most the planned ones.
typedef struct {
    Tensor residual1, ln1, ln1_mean, ln1_rstd, qkv, lse, att, proj;
    Tensor residual2, ln2, ln2_mean, ln2_rstd, pre, gelu, fcproj;
    Tensor dfc, dln2, datt, dqkv, dln1;
} BlockActs;

typedef enum { PASS_FORWARD, PASS_BACKWARD, PASS_DECODER } Pass;

// The tensors that the backward pass of a block reads, that were not kept, and that are not recomputed yet.
typedef struct {
    bool ln1, qkv, attention, residual2, ln2, pre, gelu;
} Missing;

// A block in one pass, as used by the lines of gpt2.c. A forward op of a block in the backward pass is a recomputation.
typedef struct {
    const Gpt2 *model;
    int number;
    Pass pass;
    BlockParams p, g; // g in the backward pass only
    BlockActs a;
    Missing missing; // in the backward pass
} Block;

typedef enum { LINEAR_QKV, LINEAR_ATTPROJ, LINEAR_FC, LINEAR_FCPROJ, NUM_LINEARS } LinearLayer;

// The decoder has the same ones for every block.
BlockActs gpt2_block_acts(const Gpt2 *model, int block, Pass pass, int64_t B, int64_t T);
// Gives the ops the scratch memory of this model: one process may hold several models (tests do).
void gpt2_use_workspace(const Gpt2 *model);

Tensor gpt2_act(const Gpt2 *model, ModelAct act, int64_t B, int64_t T);

// gpt2_numerics.c: counts t while gpt2_observe is on.
void numerics_plan(MemoryPlan *plan, Layout *layout, const Gpt2Options *o);
typedef enum { ROLE_IN, ROLE_OUT, ROLE_GRADIENT, NUM_ROLES } Role;
void observe(const Gpt2 *model, LinearLayer layer, Role role, Tensor t);

// gpt2_memory.c
void gradients_plan(MemoryPlan *plan, Layout *layout, const Gpt2Options *o);
DType gpt2_gradient_dtype(const Gpt2Options *o); // in which gradients are accumulated
// Where the ops of a micro-step write the gradient of parameter `index`: the gradient tensor itself, or fp32 memory
// that belongs to the micro-step and is shared by all blocks.
Tensor gpt2_micro_gradient(const Gpt2 *model, int index);
// Call when the micro-step's gradients of the specs from .. to of this block are complete. Unless they were written in
// place, they are added to the gradient tensors or, in the first micro-step, overwrite them.
void gpt2_add_gradients(const Gpt2 *model, int from, int to, int block, bool first);

// gpt2_memory.c
int gpt2_head_tick(const ModelConfig *config); // the tick of the head, of the backward pass of a block, and of the end
int gpt2_backward_tick(const ModelConfig *config, int block);
int gpt2_end_tick(const ModelConfig *config); // embedding backward, the last tick of a micro-step
MemoryPlan *gpt2_plan_all(Layout *layout, const Gpt2Options *o);
OpsShape gpt2_ops_shape(const Gpt2Options *o);
void gpt2_state_bytes(const Gpt2Options *o, int64_t bytes[NUM_STATE_SLOTS]); // of each slot, all tensors together
void *gpt2_at(const Gpt2 *model, int handle);                                // NULL for -1

// gpt2_decode.c
bool gpt2_decoder_create(Gpt2 *model, Error *err);
void gpt2_decoder_destroy(Gpt2 *model);
int64_t gpt2_decoder_tokens(const Gpt2Options *o); // the number of i32 that it keeps on the device

// gpt2.c: a layer's weight (OC,IC) and bias (OC), or their gradients.
Tensor linear_weight(const BlockParams *p, LinearLayer layer);
Tensor linear_bias(const BlockParams *p, LinearLayer layer);

// gpt2_fp8.c: linear layers with --fp8, see gpt2.c. They do not include the GELU.
void fp8_forward(const Block *b, LinearLayer layer, Tensor out, Tensor in);
void fp8_backward(const Block *b, LinearLayer layer, Tensor din, Tensor dout, Tensor in, bool accumulate);
// Quantises the weights of all layers if they have changed since the last call, and then also advances the scales of
// delayed scaling. Call before the first pass of a micro-step, outside its graph. evaluating: the next pass does not
// belong to a step and must leave no trace in the scales of the run. Does nothing without --fp8.
void fp8_prepare(Gpt2 *model, bool evaluating);
// Forgets the magnitudes that the micro-steps since the last update have recorded.
void fp8_abandon_step(Gpt2 *model);
// Adds the memory of --fp8 to the plan; nothing without it.
void fp8_plan(MemoryPlan *plan, Layout *layout, const Gpt2Options *o);
