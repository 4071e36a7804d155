// The Model object, which the files of a model share, and its views of weights and activations,
// which the passes use as p-> and a->.
#pragma once
#include "llmc/device.h"
#include "llmc/model/memory_plan.h"
#include "llmc/model/model_activations.h"

// Views of the tensors of the lists, for a micro-batch of B sequences of T tokens, at most the
// planned ones; and of the weights at one block, or of their gradients.
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
#define FIELD(NAME, name, ...) Gradient name;
typedef union {
    struct {
        PARAMETERS(FIELD)
    };
    Gradient all[NUM_PARAMETER_SPECS];
} Gradients;
#undef FIELD

enum { NUM_GRAPHS = 4 }; // of a micro-step: first or not x whole or the shorter last one

// The state of generation (model_decode.c).
typedef struct {
    int64_t sequences, length; // length 0: not started, or invalidated by another pass
    char *host; // from host_alloc: tokens on their way to the device, logits on their way back
    DeviceGraph *graph; // the recording of one token
    int64_t recorded;   // the number of sequences it was recorded for
} Decoder;

typedef struct {
    DeviceGraph *graph;
    int64_t B, tokens_in_step; // of the micro-step that was recorded
} Recording;

// Handles of the memory plan; -1 if a tensor does not exist.
typedef struct {
    Partition *partition;
    // each one region: all units, one after the other; or buckets of gradients
    int weights, gradients;
    int own_gradients;                        // -1 unless gradients are freed
    int gradient_sums, exchange, step_losses; // -1 with one group; with one process
    int norm;
    // of a bucket; of a half of exchange; of a row
    int64_t longest_block, exchange_elements, norm_columns;
    int micro_gradients[NUM_PARAMETER_SPECS]; // of one block, or outside blocks
    int state[NUM_STATE_SLOTS]; // the same for each slot of the optimizer; -1 under offload: they
                                // are in host memory
    int64_t host_bytes;         // of the state in host memory
    int offload_buffer, optimizer_scratch;
    int control, sequence_losses, windows, workspace;
    int model_acts[NUM_MODEL_ACTS];
    int (*forward)[NUM_BLOCK_ACTS];   // (L): where the forward pass of a block writes
    int (*backward)[NUM_BLOCK_ACTS];  // (L): where its backward pass reads it, the same place if it
                                      // was kept
    int decoder_acts[NUM_BLOCK_ACTS]; // shared by all blocks
    int cache, decoder_tokens, decoder_logits;
    int fp8_weights, fp8_slots, fp8_forward, fp8_backward; // model_fp8.c
    int stats;                                             // model_numerics.c
    int rope_table;                                        // (T,2,HS/2), filled at the start
} Layout;

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
    WeightReader *weight_reader;
    void *weight_reader_context;
    char *host_state; // from host_alloc, under offload

    char *staging; // host memory from host_alloc, STAGING_BYTES: weights pass through it
    int64_t B, T;  // of the loaded batch
    DeviceEvent *copied, *unpacked;
    bool copy_in_flight;
    Recording graphs[NUM_GRAPHS];
    Recording *parts; // (NUM_GRAPHS, parts): of a micro-step with hooks; NULL for one process
    const struct UnitHooks *hooks;
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

typedef enum {
    PASS_FORWARD,
    PASS_BACKWARD,
    PASS_PROMPT,
    PASS_TOKEN
} Pass; // the last two: model_decode.c

// In Block.missing RECOMPUTE_LAYERNORM is ln1, and these are ln2 and the norms of q and k.
enum { RECOMPUTE_LN2 = RECOMPUTE_BLOCK + 1, RECOMPUTE_QKR = 2 * RECOMPUTE_LN2 };

// A block in one pass, as used by the lines of gpt2.c. A forward op of a block in the backward pass
// is a recomputation.
typedef struct {
    const Model *model;
    int number;
    Pass pass;
    Weights p;
    Gradients g; // in the backward pass only
    BlockActs a;
    int missing;  // in the backward pass: RECOMPUTE_... of what was not kept and is not recomputed
                  // yet
    Tensor cache; // PASS_PROMPT, PASS_TOKEN: keys and values of the sequences that this pass is for
    Tensor position; // PASS_TOKEN: see attention_decode
    Tensor table;    // of RoPE; absent: learned positions
} Block;

void *model_at(const Model *model, int handle);       // NULL for -1
Weights model_weights(const Model *model, int block); // block 0 for the weights outside blocks
// Where the ops of a micro-step write the gradients of a block, or of the parameters outside
// blocks, and whether they add: from the second micro-step on, if gradients are accumulated in
// fp32. Otherwise every micro-step writes to memory of its own, and gpt2.c adds that to the sums.
Gradients model_gradients(const Model *model, int block, const MicroStep *s);
Block model_block(const Model *model, int number, Pass pass, int64_t B, int64_t T); // without g
Tensor model_rope_table(const Model *model);
ModelActs model_acts(const Model *model, int64_t B, int64_t T);
// Gives the ops the scratch memory of this model. Called by model_load_batch, model_decode_* and
// model_observe; passes and updates use that of the last call. So models of one process take turns
// by whole steps (tests do).
void model_use_workspace(const Model *model);
