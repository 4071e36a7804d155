// The lists of activations with their lifetimes, and the clock of a micro-step that these count in.
#pragma once
#include "llmc/model/model_options.h"

// The clock of a micro-step, for lifetimes in the memory plan. Forward ticks of a block,
// FORWARD_TICKS to a block. F_IN: the embedding, or F_FCPROJ of the block before:
enum {
    F_IN,
    F_LN1,
    F_QKV,
    F_ATT,
    F_ATTPROJ,
    F_LN2,
    F_FC,
    F_FCPROJ,
    FORWARD_TICKS = F_FCPROJ,
    F_NEXT_LN1
};
// then the head (H_IN: F_FCPROJ of the last block; final layernorm; logits, loss and their
// gradients; final layernorm backward; H_BEGIN and H_END: the embedding's ticks, forward and
// backward),
enum { H_BEGIN = -1, H_IN, H_LNF, H_HEAD, H_LNF_BACKWARD, HEAD_TICKS, H_END = HEAD_TICKS };
// then the blocks backward, last block first.
// B_FCPROJ: the weight gradient of fcproj; B_GELU: its input gradient, through the GELU.
enum { B_RECOMPUTE, B_FCPROJ, B_GELU, B_FC, B_LN2, B_ATTPROJ, B_ATT, B_QKV, B_LN1, BACKWARD_TICKS };

// Shapes of activations: (B,T,C), (B,T,NH HS), (B,T,(NH + 2 NKV) HS), (B,T,d_ff), with SwiGLU's
// gate (B,T,2 d_ff) in the compute dtype; (B,T), (B,NH,T) and (B,T,NH + NKV) in fp32; (B,T) in i32;
// (C) in fp32; and the logits of a chunk of rows (rows,Vp) in the compute dtype.
typedef enum {
    BTC,
    BTATT,
    BTQKV,
    BTFF,
    BTFC,
    BT,
    BHT,
    BTH,
    BT_I32,
    C_FP32,
    LOGITS_CHUNK
} ActivationShape;

// THE list of a block's activations, and of the gradients that pass through it. A row: name, shape,
// which models have it; the ticks of the forward pass from its first write to its last read; the
// ticks of the backward pass from its first need, its own or that of a tensor computed with it, to
// its last read; and the ops that write it. If one of those is recomputed, the activation is not
// kept from one pass to the other.
enum { NEVER = -1 };
// clang-format off
#define BLOCK_ACTIVATIONS(X)                                                                       \
    X(residual1, BTC,   IN_ALL,       F_IN,      F_ATTPROJ, B_LN1,     B_LN1,    0)                \
    X(ln1,       BTC,   IN_ALL,       F_LN1,     F_QKV,     B_QKV,     B_QKV,    RECOMPUTE_LAYERNORM) \
    X(ln1_mean,  BT,    IN_LAYERNORM, F_LN1,     F_LN1,     B_QKV,     B_LN1,    RECOMPUTE_LAYERNORM) \
    X(ln1_rstd,  BT,    IN_ALL,       F_LN1,     F_LN1,     B_QKV,     B_LN1,    RECOMPUTE_LAYERNORM) \
    X(qkv,       BTQKV, IN_ALL,       F_QKV,     F_ATT,     B_ATT,     B_ATT,    RECOMPUTE_QKV)    \
    X(qkr,       BTQKV, IN_QK_NORM,   F_ATT,     F_ATT,     B_ATT,     B_ATT,    RECOMPUTE_LAYERNORM) \
    X(qkr_rstd,  BTH,   IN_QK_NORM,   F_ATT,     F_ATT,     B_ATT,     B_ATT,    RECOMPUTE_LAYERNORM) \
    X(lse,       BHT,   IN_ALL,       F_ATT,     F_ATT,     B_ATTPROJ, B_ATT,    RECOMPUTE_ATTENTION) \
    X(att,       BTATT, IN_ALL,       F_ATT,     F_ATTPROJ, B_ATTPROJ, B_ATT,    RECOMPUTE_ATTENTION) \
    X(residual2, BTC,   IN_ALL,       F_ATTPROJ, F_FCPROJ,  B_FC,      B_LN2,    RECOMPUTE_ATTPROJ) \
    X(ln2,       BTC,   IN_ALL,       F_LN2,     F_FC,      B_FC,      B_FC,     RECOMPUTE_LAYERNORM) \
    X(ln2_mean,  BT,    IN_LAYERNORM, F_LN2,     F_LN2,     B_FC,      B_LN2,    RECOMPUTE_LAYERNORM) \
    X(ln2_rstd,  BT,    IN_ALL,       F_LN2,     F_LN2,     B_FC,      B_LN2,    RECOMPUTE_LAYERNORM) \
    X(pre,       BTFC,  IN_ALL,       F_FC,      F_FC,      B_FCPROJ,  B_GELU,   RECOMPUTE_FC)     \
    X(gelu,      BTFF,  IN_ALL,       F_FC,      F_FCPROJ,  B_FCPROJ,  B_FCPROJ, RECOMPUTE_GELU |  \
      RECOMPUTE_FC)                                                                                \
    X(dgelu,     BTFF,  IN_SWIGLU,    NEVER,     NEVER,     B_GELU,    B_GELU,   0)                \
    X(dpre,      BTFC,  IN_ALL,       NEVER,     NEVER,     B_GELU,    B_FC,     0)                \
    X(dln2,      BTC,   IN_ALL,       NEVER,     NEVER,     B_FC,      B_LN2,    0)                \
    X(datt,      BTATT, IN_ALL,       NEVER,     NEVER,     B_ATTPROJ, B_ATT,    0)                \
    X(dqkv,      BTQKV, IN_ALL,       NEVER,     NEVER,     B_ATT,     B_QKV,    0)                \
    X(dln1,      BTC,   IN_ALL,       NEVER,     NEVER,     B_QKV,     B_LN1,    0)

// THE list of the tensors of the whole model that live within a micro-step: name, shape, which
// models have it, first and last tick of the head, and whether only training has it. Without
// training the head's forward pass is the end.
#define MODEL_ACTIVATIONS(X)                                                                       \
    X(inputs,         BT_I32,       IN_ALL,       H_BEGIN,        H_END,          false)           \
    X(targets,        BT_I32,       IN_ALL,       H_BEGIN,        H_HEAD,         false)           \
    X(final_residual, BTC,          IN_ALL,       H_IN,           H_LNF_BACKWARD, false)           \
    X(lnf,            BTC,          IN_ALL,       H_LNF,          H_HEAD,         false)           \
    X(lnf_mean,       BT,           IN_LAYERNORM, H_LNF,          H_LNF_BACKWARD, false)           \
    X(lnf_rstd,       BT,           IN_ALL,       H_LNF,          H_LNF_BACKWARD, false)           \
    X(logits,         LOGITS_CHUNK, IN_ALL,       H_HEAD,         H_HEAD,         false)           \
    X(losses,         BT,           IN_ALL,       H_HEAD,         H_HEAD,         false)           \
    X(dlnf,           BTC,          IN_ALL,       H_HEAD,         H_LNF_BACKWARD, true)            \
    X(dresidual,      BTC,          IN_ALL,       H_LNF_BACKWARD, H_END,          true)            \
    X(dresidual_sum,  C_FP32,       IN_MLP_BIAS,  H_LNF_BACKWARD, H_END,          true)
// clang-format on

#define ONE(...) +1
enum { NUM_BLOCK_ACTS = 0 BLOCK_ACTIVATIONS(ONE), NUM_MODEL_ACTS = 0 MODEL_ACTIVATIONS(ONE) };
#undef ONE

// A row of BLOCK_ACTIVATIONS.
typedef struct {
    const char *name;
    ActivationShape shape;
    Presence presence;
    int forward_first, forward_last;
    int backward_first, backward_last;
    int written_by;
} ActivationSpec;
extern const ActivationSpec model_block_activations[NUM_BLOCK_ACTS];

// A row of MODEL_ACTIVATIONS.
typedef struct {
    const char *name;
    ActivationShape shape;
    Presence presence;
    int first, last;
    bool train_only;
} ModelActivationSpec;
extern const ModelActivationSpec model_activations[NUM_MODEL_ACTS];

int model_tick_of_head(const ModelConfig *config, int tick); // H_BEGIN .. H_END
int model_head_tick(const ModelConfig *config); // the tick of the head, of the backward pass of a
                                                // block, and of the end
int model_backward_tick(const ModelConfig *config, int block);
int model_end_tick(const ModelConfig *config); // embedding backward, the last tick of a micro-step

// The tick of the backward pass at which a tensor is recomputed that it first reads at `tick`, in a
// block that recomputes this set.
int model_recompute_tick(int set, int tick);

// The op at a tick of the plan, for people: "block 3 qkv", "block 3 fcproj backward", "generation".
// Returns name.
enum { TICK_NAME = 48 };
const char *model_tick_name(const ModelConfig *config, int tick, char name[TICK_NAME]);

// The tensor of this name and shape over data, absent where the model has none, for B sequences of
// T tokens.
Tensor model_activation(const ModelOptions *o, ActivationShape shape, Presence presence,
                        const char *name, void *data, int64_t B, int64_t T);
