// THE parameter table: the weights of a model, their shapes, initial values, weight decay, and
// their names and layouts in Hugging Face files. Everything that iterates over weights uses this
// table: memory plan, init, optimizer, checkpoints, import and export, messages.
#pragma once
#include "llmc/model/model_config.h"
#include "llmc/tensor.h"
#include <stdint.h>

typedef enum { INIT_ZERO, INIT_ONE, INIT_NORMAL, INIT_NORMAL_RESIDUAL } InitKind;

// The groups that optimizers distinguish: embeddings (and the head, if it is one), a head of its
// own, matrices of the blocks, and vectors (biases, weights of norms).
typedef enum { GROUP_EMBEDDING, GROUP_HEAD, GROUP_MATRIX, GROUP_VECTOR, NUM_GROUPS } ParameterGroup;

// THE list of weights, in the order of llm.c's .bin files. A row: the name of its constant and of
// its field, MODEL or BLOCK (one in each block), which models have it, group, initial value, rows
// and columns (DIM_1: a vector), and its name in Hugging Face files, with %d for the block: of
// GPT-2 after "transformer.", and of the other classes, where * is a layer of the MLP, whose name
// depends on the activation.
// clang-format off
#define PARAMETERS(X)                                                                              \
    X(WTE,      wte,      MODEL, IN_ALL,       EMBEDDING, NORMAL,          DIM_VP,    DIM_C, "wte.weight",              "model.embed_tokens.weight")                       \
    X(WPE,      wpe,      MODEL, IN_LEARNED,   EMBEDDING, NORMAL,          DIM_MAX_T, DIM_C, "wpe.weight",              "model.embed_positions.weight")                    \
    X(LN1W,     ln1w,     BLOCK, IN_ALL,       VECTOR,    ONE,             DIM_C,     DIM_1, "h.%d.ln_1.weight",        "model.layers.%d.input_layernorm.weight")          \
    X(LN1B,     ln1b,     BLOCK, IN_LAYERNORM, VECTOR,    ZERO,            DIM_C,     DIM_1, "h.%d.ln_1.bias",          "model.layers.%d.input_layernorm.bias")            \
    X(QKVW,     qkvw,     BLOCK, IN_ALL,       MATRIX,    NORMAL,          DIM_QKV,   DIM_C, "h.%d.attn.c_attn.weight", "model.layers.%d.self_attn.qkv_proj.weight")       \
    X(QKVB,     qkvb,     BLOCK, IN_QKV_BIAS,  VECTOR,    ZERO,            DIM_QKV,   DIM_1, "h.%d.attn.c_attn.bias",   "model.layers.%d.self_attn.qkv_proj.bias")         \
    X(QNORMW,   qnormw,   BLOCK, IN_QK_NORM,   VECTOR,    ONE,             DIM_HS,    DIM_1, "",                        "model.layers.%d.self_attn.q_norm.weight")         \
    X(KNORMW,   knormw,   BLOCK, IN_QK_NORM,   VECTOR,    ONE,             DIM_HS,    DIM_1, "",                        "model.layers.%d.self_attn.k_norm.weight")         \
    X(ATTPROJW, attprojw, BLOCK, IN_ALL,       MATRIX,    NORMAL_RESIDUAL, DIM_C,     DIM_ATT, "h.%d.attn.c_proj.weight", "model.layers.%d.self_attn.o_proj.weight")       \
    X(ATTPROJB, attprojb, BLOCK, IN_PROJ_BIAS, VECTOR,    ZERO,            DIM_C,     DIM_1, "h.%d.attn.c_proj.bias",   "model.layers.%d.self_attn.o_proj.bias")           \
    X(LN2W,     ln2w,     BLOCK, IN_ALL,       VECTOR,    ONE,             DIM_C,     DIM_1, "h.%d.ln_2.weight",        "model.layers.%d.post_attention_layernorm.weight") \
    X(LN2B,     ln2b,     BLOCK, IN_LAYERNORM, VECTOR,    ZERO,            DIM_C,     DIM_1, "h.%d.ln_2.bias",          "model.layers.%d.post_attention_layernorm.bias")   \
    X(FCW,      fcw,      BLOCK, IN_ALL,       MATRIX,    NORMAL,          DIM_FC,    DIM_C, "h.%d.mlp.c_fc.weight",    "model.layers.%d.mlp.*.weight")                    \
    X(FCB,      fcb,      BLOCK, IN_MLP_BIAS,  VECTOR,    ZERO,            DIM_FC,    DIM_1, "h.%d.mlp.c_fc.bias",      "model.layers.%d.mlp.*.bias")                      \
    X(FCPROJW,  fcprojw,  BLOCK, IN_ALL,       MATRIX,    NORMAL_RESIDUAL, DIM_C,     DIM_FF, "h.%d.mlp.c_proj.weight",  "model.layers.%d.mlp.*.weight")                   \
    X(FCPROJB,  fcprojb,  BLOCK, IN_MLP_BIAS,  VECTOR,    ZERO,            DIM_C,     DIM_1, "h.%d.mlp.c_proj.bias",    "model.layers.%d.mlp.*.bias")                      \
    X(LNFW,     lnfw,     MODEL, IN_ALL,       VECTOR,    ONE,             DIM_C,     DIM_1, "ln_f.weight",             "model.norm.weight")                               \
    X(LNFB,     lnfb,     MODEL, IN_LAYERNORM, VECTOR,    ZERO,            DIM_C,     DIM_1, "ln_f.bias",               "model.norm.bias")                                 \
    X(HEADW,    headw,    MODEL, IN_UNTIED,    HEAD,      NORMAL,          DIM_VP,    DIM_C, "",                        "lm_head.weight")
// clang-format on

#define X(NAME, ...) PARAM_##NAME,
enum { PARAMETERS(X) NUM_PARAMETER_SPECS };
#undef X

// The linear layers of a block, in the order of their weights.
typedef enum { LINEAR_QKV, LINEAR_ATTPROJ, LINEAR_FC, LINEAR_FCPROJ, NUM_LINEARS } LinearLayer;

typedef struct {
    const char *name; // ours, and llm.c's: "wte", "qkvw", ...
    bool per_block;
    ParameterGroup group;
    InitKind init; // NORMAL: N(0, 0.02); NORMAL_RESIDUAL: N(0, 0.02 / sqrt(2 L)), 0 with embed_norm
    Presence presence;
    Dimension rows, cols;
    const char *gpt2_name, *class_name;
} ParameterSpec;
extern const ParameterSpec parameter_specs[NUM_PARAMETER_SPECS];

// One weight tensor of a given model: a row of the table at a block.
typedef struct {
    const ParameterSpec *spec;
    int block;         // -1 outside blocks
    int rank;          // 1 or 2
    int64_t rows;      // Vp, max_T, OC; for vectors the length
    int64_t cols;      // 1 for vectors
    int64_t file_rows; // rows that files hold: V instead of Vp for wte, rows otherwise
    // The matrices (or biases) that it stacks by rows: q, k and v; gate and up.
    int num_parts;
    int64_t parts[3]; // rows
    char name[64];    // Hugging Face's name with the block filled in
    bool transposed;  // matrices of GPT-2: Hugging Face stores (in, out), we store (out, in)
    int file_parts;   // 1: files hold one tensor; else they hold each part apart
    bool is_normed; // an embedding with embed_norm: files hold it as the head, and its norm as the
                    // embedding
} Parameter;

// The name of a part in files; of the whole where files hold one tensor. That of an embedding with
// embed_norm is the head's: p->name is its norm's.
void parameter_part_name(const Parameter *p, int part, char name[64]);

// The tensors of a model in their fixed order (the order of parameter_specs, blocks inside): count,
// and a table that the caller frees.
int parameter_count(const ModelConfig *config);
Parameter *parameter_table(const ModelConfig *config);
// Index into that table of spec (PARAM_...) at block (ignored for specs outside blocks); -1: the
// model has none.
int parameter_index(const ModelConfig *config, int spec, int block);

int64_t parameter_numel(const Parameter *p);
// A tensor of the parameter's name and shape over data, which may be NULL for the shape alone.
Tensor parameter_tensor(const Parameter *p, void *data, DType dtype);
// Sum over the table: the N of the FLOP formulas, padding included.
int64_t parameter_total(const ModelConfig *config);

// Initial fp32 values of elements [first, first + n) of tensor index: a pure function of seed and
// position. Rows of wte beyond V are 0.
void parameter_init_values(float *out, const ModelConfig *config, const Parameter *p, int index,
                           uint64_t seed, int64_t first, int64_t n);

// The short name of a tensor for people: a weight's is its column `name` of PARAMETERS, without the
// block
// ("transformer.h.11.attn.c_attn.weight" -> "qkvw"); names that are no weight's stay.
const char *parameter_label(const char *name);
