// The memory of a model, private to its files: the clock of a micro-step, the lists of activations with
// their lifetimes, and where everything is in the plan.
#pragma once
#include "llmc/model/model.h"

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

// A row of BLOCK_ACTIVATIONS.
typedef struct {
    const char *name;
    ActivationShape shape;
    int forward_first, forward_last;
    int backward_first, backward_last;
    int written_by;
} ActivationSpec;
extern const ActivationSpec model_block_activations[NUM_BLOCK_ACTS];

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
