// The Model object, which the files of a model share, and the views of weights and activations that
// the passes use as p-> and a->.
#pragma once
#include "llmc/model/model.h"
#include "llmc/model/model_memory.h"
#include "llmc/model/model_state.h"

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

// -------------------------------------------------------------------------------------------------------------- gpt2.c

void block_forward(const Block *b, Tensor out);                 // out (B,T,C): the residual stream after the block
void gpt2_forward(Model *model, const MicroStep *s, int block); // block 0: with the embedding
void gpt2_head_forward(Model *model, const MicroStep *s);       // after the last block: the losses only
// The last block: with the head and its losses. L: of the parameters outside blocks.
void gpt2_backward(Model *model, const MicroStep *s, int unit);

// ------------------------------------------------------------------------------------------------------------- model.c

void *model_at(const Model *model, int handle); // NULL for -1
Block model_block(const Model *model, int number, Pass pass, int64_t B, int64_t T);
ModelActs model_acts(const Model *model, int64_t B, int64_t T);
// Gives the ops the scratch memory of this model. Called by model_load_batch, model_decode_* and model_observe; passes
// and updates use that of the last call. So models of one process take turns by whole steps (tests do).
void model_use_workspace(const Model *model);

// ------------------------------------------------------------------------------------------------------- model_state.c

void model_make_tensors(Model *model);                  // of the model, and those that this process updates
Weights model_weights(const Model *model, int block);   // block 0 for the weights outside blocks
Weights model_gradients(const Model *model, int block); // where the ops of a micro-step write them
// Call when the micro-step's gradients of the specs from .. to of this block are complete. Unless they were written in
// place, they are added to the gradient tensors or, in the first micro-step, overwrite them.
void model_add_gradients(const Model *model, int from, int to, int block, bool first);

// ------------------------------------------------------------------------------------------------------ model_decode.c

bool model_decoder_create(Model *model, Error *err);
void model_decoder_destroy(Model *model);
int64_t model_decoder_tokens(const ModelOptions *o); // the number of i32 that it keeps on the device
// Attention with the cache of keys and values; false if the remainder of the block is not needed.
bool model_decoder_attention(const Block *b);

// --------------------------------------------------------------------------------------------------------- model_fp8.c

// Adds the memory of --fp8 to the plan; nothing without it.
void model_fp8_plan(MemoryPlan *plan, Layout *layout, const ModelOptions *o);
// Linear layers with --fp8, see gpt2.c. They do not include the GELU. residual: absent, or added to the output.
void model_fp8_forward(const Block *b, LinearLayer layer, Tensor out, Tensor residual, Tensor in, Tensor bias);
void model_fp8_backward(const Block *b, LinearLayer layer, Tensor din, Tensor dweight, Tensor dbias, Tensor dout,
                        Tensor in);
// Quantises the weights of all layers if they have changed since the last call. Call before the first pass of a
// micro-step, outside its graph. Does nothing without --fp8.
void model_fp8_prepare(Model *model);

// ---------------------------------------------------------------------------------------------------- model_numerics.c

void model_numerics_plan(MemoryPlan *plan, Layout *layout, const ModelOptions *o);
typedef enum { ROLE_IN, ROLE_OUT, ROLE_GRADIENT, NUM_ROLES } Role;
void model_observe_tensor(const Model *model, LinearLayer layer, Role role,
                          Tensor t); // counts t while model_observe is on
