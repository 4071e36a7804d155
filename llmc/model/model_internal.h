// What the files of a model share: the Model object, the lists of activations, and the views of weights
// and activations that the passes use as p-> and a->.
#pragma once
#include "llmc/model/model.h"
#include "llmc/model/model_state.h"

// The clock of a micro-step, for lifetimes in the memory plan. Forward ticks of a block, FORWARD_TICKS to a block.
// F_IN: the embedding, or F_FCPROJ of the block before:
enum { F_IN, F_LN1, F_QKV, F_ATT, F_ATTPROJ, F_LN2, F_FC, F_FCPROJ, FORWARD_TICKS = F_FCPROJ, F_NEXT_LN1 };
// then the head (H_IN: F_FCPROJ of the last block; final layernorm; logits, loss and their gradients; final layernorm
// backward),
enum { H_IN, H_LNF, H_HEAD, H_LNF_BACKWARD, HEAD_TICKS };
// then the blocks backward, last block first.
// B_FCPROJ: the weight gradient of fcproj; B_GELU: its input gradient, through the GELU.
enum { B_RECOMPUTE, B_FCPROJ, B_GELU, B_FC, B_LN2, B_ATTPROJ, B_ATT, B_QKV, B_LN1, BACKWARD_TICKS };

// Shapes of activations: (B,T,C), (B,T,3C), (B,T,d_ff) in the compute dtype; (B,T) and (B,NH,T) in fp32; (B,T) in i32;
// (C) in fp32; and the logits of a chunk of rows (rows,Vp) in the compute dtype.
typedef enum { BTC, BT3C, BTFF, BT, BHT, BT_I32, C_FP32, LOGITS_CHUNK } ActivationShape;

// THE list of a block's activations, and of the gradients that pass through it. A row: name, shape; the ticks of the
// forward pass from its first write to its last read; the ticks of the backward pass from its first need, its own or
// that of a tensor computed with it, to its last read; and the ops that write it. If one of those is recomputed, the
// activation is not kept from one pass to the other.
enum { NEVER = -1 };
// clang-format off
#define BLOCK_ACTIVATIONS(X)                                                                      \
    X(residual1, BTC,  F_IN,      F_ATTPROJ,  B_LN1,     B_LN1,    0)                             \
    X(ln1,       BTC,  F_LN1,     F_QKV,      B_QKV,     B_QKV,    RECOMPUTE_LAYERNORM)           \
    X(ln1_mean,  BT,   F_LN1,     F_LN1,      B_QKV,     B_LN1,    RECOMPUTE_LAYERNORM)           \
    X(ln1_rstd,  BT,   F_LN1,     F_LN1,      B_QKV,     B_LN1,    RECOMPUTE_LAYERNORM)           \
    X(qkv,       BT3C, F_QKV,     F_ATT,      B_ATT,     B_ATT,    RECOMPUTE_QKV)                 \
    X(lse,       BHT,  F_ATT,     F_ATT,      B_ATTPROJ, B_ATT,    RECOMPUTE_ATTENTION)           \
    X(att,       BTC,  F_ATT,     F_ATTPROJ,  B_ATTPROJ, B_ATT,    RECOMPUTE_ATTENTION)           \
    X(residual2, BTC,  F_ATTPROJ, F_FCPROJ,   B_FC,      B_LN2,    RECOMPUTE_ATTPROJ)             \
    X(ln2,       BTC,  F_LN2,     F_FC,       B_FC,      B_FC,     RECOMPUTE_LAYERNORM)           \
    X(ln2_mean,  BT,   F_LN2,     F_LN2,      B_FC,      B_LN2,    RECOMPUTE_LAYERNORM)           \
    X(ln2_rstd,  BT,   F_LN2,     F_LN2,      B_FC,      B_LN2,    RECOMPUTE_LAYERNORM)           \
    X(pre,       BTFF, F_FC,      F_FC,       B_FCPROJ,  B_GELU,   RECOMPUTE_FC)                  \
    X(gelu,      BTFF, F_FC,      F_FCPROJ,   B_FCPROJ,  B_FCPROJ, RECOMPUTE_GELU | RECOMPUTE_FC) \
    X(dpre,      BTFF, NEVER,     NEVER,      B_GELU,    B_FC,     0)                             \
    X(dln2,      BTC,  NEVER,     NEVER,      B_FC,      B_LN2,    0)                             \
    X(datt,      BTC,  NEVER,     NEVER,      B_ATTPROJ, B_ATT,    0)                             \
    X(dqkv,      BT3C, NEVER,     NEVER,      B_ATT,     B_QKV,    0)                             \
    X(dln1,      BTC,  NEVER,     NEVER,      B_QKV,     B_LN1,    0)

// The tensors of the whole model that live within a micro-step: name, shape, first and last tick (head: of the final
// layernorm; final: of its backward pass; end: the last one), and whether only training has it.
#define MODEL_ACTIVATIONS(X)                                                             \
    X(inputs,         BT_I32,       0,                     end,                   false) \
    X(targets,        BT_I32,       0,                     head + H_HEAD,         false) \
    X(final_residual, BTC,          head + H_IN,           final,                 false) \
    X(lnf,            BTC,          head + H_LNF,          head + H_HEAD,         false) \
    X(lnf_mean,       BT,           head + H_LNF,          final,                 false) \
    X(lnf_rstd,       BT,           head + H_LNF,          final,                 false) \
    X(logits,         LOGITS_CHUNK, head + H_HEAD,         head + H_HEAD,         false) \
    X(losses,         BT,           head + H_HEAD,         head + H_HEAD,         false) \
    X(dlnf,           BTC,          head + H_HEAD,         head + H_LNF_BACKWARD, true)  \
    X(dresidual,      BTC,          head + H_LNF_BACKWARD, end,                   true)  \
    X(dresidual_sum,  C_FP32,       head + H_LNF_BACKWARD, end,                   true)
// clang-format on

#define ONE(...) +1
enum { NUM_BLOCK_ACTS = 0 BLOCK_ACTIVATIONS(ONE), NUM_MODEL_ACTS = 0 MODEL_ACTIVATIONS(ONE) };
#undef ONE

// Views of the tensors of the lists, for a micro-batch of B sequences of T tokens, at most the planned ones; and of the
// weights at one block, or of their gradients.
#define FIELD(name, ...) Tensor name;
typedef union {
    struct {
        BLOCK_ACTIVATIONS(FIELD)
    };
    Tensor all[NUM_BLOCK_ACTS];
} BlockActs;
typedef union {
    struct {
        MODEL_ACTIVATIONS(FIELD)
    };
    Tensor all[NUM_MODEL_ACTS];
} ModelActs;
#undef FIELD
#define FIELD(NAME, name, ...) Tensor name;
typedef union {
    struct {
        PARAMETERS(FIELD)
    };
    Tensor all[NUM_PARAMETER_SPECS];
} Weights;
#undef FIELD

// Handles of the memory plan; -1 if a tensor does not exist.
typedef struct {
    Partition *partition;
    int weights, gradients; // each one region: all units, one after the other; or buckets of gradients
    int own_gradients;      // -1 unless gradients are freed
    int gradient_sums, exchange, step_losses; // -1 with one group; with one process
    int norm;
    int64_t longest_block, exchange_elements, norm_columns; // of a bucket; of a half of exchange; of a row
    int micro_gradients[NUM_PARAMETER_SPECS];               // of one block, or outside blocks
    int state[NUM_STATE_SLOTS]; // the same for each slot of the optimizer; -1 under offload: they are in host memory
    int64_t host_bytes;         // of the state in host memory
    int offload_buffer, optimizer_scratch;
    int control, sequence_losses, windows, workspace;
    int model_acts[NUM_MODEL_ACTS];
    int (*forward)[NUM_BLOCK_ACTS];   // (L): where the forward pass of a block writes
    int (*backward)[NUM_BLOCK_ACTS];  // (L): where its backward pass reads it, the same place if it was kept
    int decoder_acts[NUM_BLOCK_ACTS]; // shared by all blocks
    int cache, decoder_tokens, decoder_logits;
    int fp8_weights, fp8_slots, fp8_forward, fp8_backward; // model_fp8.c
    int stats;                                             // model_numerics.c
} Layout;

enum { NUM_BUCKETS = 2 }; // where gradients are freed: of blocks, one computes while another one is sent

enum { NUM_GRAPHS = 4 }; // of a micro-step: first or not x whole or the shorter last one

// The state of generation (model_decode.c).
typedef struct {
    int64_t sequences, length; // length 0: not started, or invalidated by another pass
    char *host;                // from host_alloc: tokens on their way to the device, logits on their way back
    DeviceGraph *graph;        // the recording of one token
    int64_t recorded;          // the number of sequences it was recorded for
} Decoder;

typedef struct {
    DeviceGraph *graph;
    int64_t B, tokens_in_step; // of the micro-step that was recorded
} Recording;
// Of a micro-step with hooks: L forward, L + 1 backward.
static inline int model_num_parts(const ModelOptions *o) { return 2 * (int)o->config.L + 1; }

struct Model {
    ModelOptions options;
    MemoryPlan *plan;
    Layout layout;
    char *arena;
    bool is_dry; // model_create_dry: the arena is a range of addresses without memory

    int num_tensors;
    Parameter *parameters;
    UpdateTensor *tensors;
    int num_own;
    UpdateTensor *own;
    StateReader *reader;
    void *reader_context;
    char *host_state; // from host_alloc, under offload

    char *staging; // host memory from host_alloc, STAGING_BYTES: weights pass through it
    int64_t B, T;  // of the loaded batch
    DeviceEvent *copied, *unpacked;
    bool copy_in_flight;
    Recording graphs[NUM_GRAPHS];
    Recording *parts; // (NUM_GRAPHS, parts): of a micro-step with hooks; NULL for one process
    const UnitHooks *hooks;
    Decoder decoder;
    bool observing;       // model_observe
    bool weights_are_new; // since model_fp8_prepare
};

enum { STAGING_BYTES = 4 << 20 };

// A micro-step adds its gradients to those of the step so far; the first one overwrites them.
typedef struct {
    int64_t B, T, tokens_in_step;
    bool first;
} MicroStep;

typedef enum { PASS_FORWARD, PASS_BACKWARD, PASS_PROMPT, PASS_TOKEN } Pass; // the last two: model_decode.c

enum { RECOMPUTE_LN2 = RECOMPUTE_BLOCK + 1 }; // in Block.missing: ln2; RECOMPUTE_LAYERNORM is ln1 there

// A block in one pass, as used by the lines of gpt2.c. A forward op of a block in the backward pass is a recomputation.
typedef struct {
    const Model *model;
    int number;
    Pass pass;
    Weights p, g; // g in the backward pass only: where the ops of a micro-step write the gradients
    BlockActs a;
    bool accumulate;      // in the backward pass: add to g
    int missing;          // in the backward pass: RECOMPUTE_... of what was not kept and is not recomputed yet
    int64_t first, count; // PASS_PROMPT: of the sequences that begin with this prompt
} Block;

// The linear layers of a block, in the order of their weights.
typedef enum { LINEAR_QKV, LINEAR_ATTPROJ, LINEAR_FC, LINEAR_FCPROJ, NUM_LINEARS } LinearLayer;

// ---------------------------------------------------------------------------------------------------------------
// gpt2.c

void block_forward(const Block *b, Tensor out);                 // out (B,T,C): the residual stream after the block
void gpt2_forward(Model *model, const MicroStep *s, int block); // block 0: with the embedding
void gpt2_head_forward(Model *model, const MicroStep *s);       // after the last block: the losses only
// The last block: with the head and its losses. L: of the parameters outside blocks.
void gpt2_backward(Model *model, const MicroStep *s, int unit);

// --------------------------------------------------------------------------------------------------------------
// model.c

void *model_at(const Model *model, int handle); // NULL for -1
Block model_block(const Model *model, int number, Pass pass, int64_t B, int64_t T);
ModelActs model_acts(const Model *model, int64_t B, int64_t T);
// Gives the ops the scratch memory of this model. Called by model_load_batch, model_decode_* and model_observe; passes
// and updates use that of the last call. So models of one process take turns by whole steps (tests do).
void model_use_workspace(const Model *model);

// --------------------------------------------------------------------------------------------------------
// model_memory.c

MemoryPlan *model_plan_all(Layout *layout, const ModelOptions *o);
void model_layout_free(Layout *layout);
int model_head_tick(const ModelConfig *config); // the tick of the head, of the backward pass of a block, and of the end
int model_backward_tick(const ModelConfig *config, int block);
int model_end_tick(const ModelConfig *config); // embedding backward, the last tick of a micro-step
Tensor model_activation(const ModelOptions *o, ActivationShape shape, const char *name, void *data, int64_t B,
                        int64_t T);
OpsShape model_ops_shape(const ModelOptions *o);
// The bytes of each slot, all tensors together; with -z 1 of the process that has most.
void model_state_bytes(const ModelOptions *o, const Partition *p, int64_t bytes[NUM_STATE_SLOTS]);
DType model_gradient_dtype(const ModelOptions *o); // in which gradients are accumulated
bool model_is_divided(const ModelOptions *o);
// Whether the gradients of a block are freed as soon as they are exchanged, before those of other blocks are computed:
// where the state is divided and a process has one micro-step.
bool model_frees_gradients(const ModelOptions *o);
// The elements of a parameter of which a process has the optimizer's state: all of them without -z 1.
Range model_own_range(const ModelOptions *o, const Partition *p, const Parameter *parameter, int index, int process);

// ---------------------------------------------------------------------------------------------------------
// model_state.c

void model_make_tensors(Model *model);                  // of the model, and those that this process updates
Weights model_weights(const Model *model, int block);   // block 0 for the weights outside blocks
Weights model_gradients(const Model *model, int block); // where the ops of a micro-step write them
// Call when the micro-step's gradients of the specs from .. to of this block are complete. Unless they were written in
// place, they are added to the gradient tensors or, in the first micro-step, overwrite them.
void model_add_gradients(const Model *model, int from, int to, int block, bool first);

// --------------------------------------------------------------------------------------------------------
// model_decode.c

bool model_decoder_create(Model *model, Error *err);
void model_decoder_destroy(Model *model);
int64_t model_decoder_tokens(const ModelOptions *o); // the number of i32 that it keeps on the device
// Attention with the cache of keys and values; false if the remainder of the block is not needed.
bool model_decoder_attention(const Block *b);

// -----------------------------------------------------------------------------------------------------------
// model_fp8.c

// Adds the memory of --fp8 to the plan; nothing without it.
void model_fp8_plan(MemoryPlan *plan, Layout *layout, const ModelOptions *o);
// Linear layers with --fp8, see gpt2.c. They do not include the GELU. residual: absent, or added to the output.
void model_fp8_forward(const Block *b, LinearLayer layer, Tensor out, Tensor residual, Tensor in, Tensor bias);
void model_fp8_backward(const Block *b, LinearLayer layer, Tensor din, Tensor dweight, Tensor dbias, Tensor dout,
                        Tensor in);
// Quantises the weights of all layers if they have changed since the last call. Call before the first pass of a
// micro-step, outside its graph. Does nothing without --fp8.
void model_fp8_prepare(Model *model);

// ------------------------------------------------------------------------------------------------------
// model_numerics.c

void model_numerics_plan(MemoryPlan *plan, Layout *layout, const ModelOptions *o);
typedef enum { ROLE_IN, ROLE_OUT, ROLE_GRADIENT, NUM_ROLES } Role;
void model_observe_tensor(const Model *model, LinearLayer layer, Role role,
                          Tensor t); // counts t while model_observe is on
