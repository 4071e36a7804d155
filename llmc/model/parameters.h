// The shape of a GPT-2 style model, the descriptors that name one on the command line, and THE parameter table: the
// weights of a model of that shape, their shapes, initial values, weight decay, and their names and layouts in Hugging
// Face files. Everything that iterates over weights uses this table: memory plan, init, optimizer, checkpoints, import
// and export, messages. There is only arithmetic and text here: no file is opened.
#pragma once
#include "llmc/base/error.h"
#include "llmc/tensor.h"
#include <stdint.h>

// --------------------------------------------------------------------------------------------------------------- shape

typedef struct {
    int64_t max_T; // longest context: rows of the position embedding
    int64_t V;     // vocabulary; 0 in a descriptor that leaves it to the data
    int64_t Vp;    // V rounded up to a multiple of 128: rows of the token embedding and of the logits
    int64_t L;     // blocks
    int64_t NH;    // heads
    int64_t C;     // channels
    int64_t d_ff;  // hidden units of the MLP; 0: 4 C, which is never stored as a number
} ModelConfig;

enum { VOCAB_PADDING = 128, GPT2_VOCAB = 50257 };

// Fills config from a descriptor; false and a message that lists the forms if it is not one.
//   d6 d12 d24 d36 d48 d60     GPT-2's sizes (124M is d12), and llm.c's d6 and d60: max_T 1024, V 0
//   gpt3:c768 ...              GPT-3's table by channels (384 768 1024 1536 2048 2560 4096 5120 12288): max_T 2048
//   L=6,C=384,NH=6,V=257,T=256 free shape; each part optional (defaults: d12's; V 0); NH defaults to C/64,
//                              or to 1 if C is not a multiple of 64.
//                              A preset may come first: d12,V=50257,T=512
bool model_config_parse(ModelConfig *config, const char *descriptor, Error *err);

// Whether a -e value looks like a descriptor (it has no '/'; the file system is not consulted).
bool model_config_is_descriptor(const char *text);

// Sets V and Vp. V >= 1.
void model_config_set_vocab(ModelConfig *config, int64_t V);

// Sets d_ff after C: 0 or 4 C is the default. model_config_check says whether it is allowed.
void model_config_set_d_ff(ModelConfig *config, int64_t d_ff);

// Checks ranges and divisibility (1 <= L, C a multiple of NH, d_ff a multiple of 8, ...) of a shape that came from
// outside.
bool model_config_check(const ModelConfig *config, Error *err);

// "12 blocks, 768 channels, 12 heads, context 1024, vocabulary 50257" into buf; returns buf. T: the context to name.
const char *model_config_text(const ModelConfig *config, int64_t T, char *buf, size_t size);

// ------------------------------------------------------------------------------------------------------ the parameters

typedef enum { INIT_ZERO, INIT_ONE, INIT_NORMAL, INIT_NORMAL_RESIDUAL } InitKind;

// The groups that optimizers distinguish. Vectors have no weight decay.
typedef enum { GROUP_EMBEDDING, GROUP_MATRIX, GROUP_VECTOR } ParameterGroup;

// A size that follows from the shape of the model: 1, C, 3C, d_ff, Vp, max_T.
typedef enum { DIM_1, DIM_C, DIM_3C, DIM_FF, DIM_VP, DIM_MAX_T } Dimension;
int64_t model_size(const ModelConfig *config, Dimension dimension);

// THE list of weights, in the order of llm.c's .bin files. A row: the name of its constant and of its field, MODEL or
// BLOCK (one in each block), group, initial value, rows and columns (DIM_1: a vector), the matrices stacked by rows in
// it (Muon treats each separately), and its name in Hugging Face files after "transformer.", with %d for the block.
// clang-format off
#define PARAMETERS(X)                                                                                         \
    X(WTE,      wte,      MODEL, EMBEDDING, NORMAL,          DIM_VP,    DIM_C,  1, "wte.weight")              \
    X(WPE,      wpe,      MODEL, EMBEDDING, NORMAL,          DIM_MAX_T, DIM_C,  1, "wpe.weight")              \
    X(LN1W,     ln1w,     BLOCK, VECTOR,    ONE,             DIM_C,     DIM_1,  1, "h.%d.ln_1.weight")        \
    X(LN1B,     ln1b,     BLOCK, VECTOR,    ZERO,            DIM_C,     DIM_1,  1, "h.%d.ln_1.bias")          \
    X(QKVW,     qkvw,     BLOCK, MATRIX,    NORMAL,          DIM_3C,    DIM_C,  3, "h.%d.attn.c_attn.weight") \
    X(QKVB,     qkvb,     BLOCK, VECTOR,    ZERO,            DIM_3C,    DIM_1,  1, "h.%d.attn.c_attn.bias")   \
    X(ATTPROJW, attprojw, BLOCK, MATRIX,    NORMAL_RESIDUAL, DIM_C,     DIM_C,  1, "h.%d.attn.c_proj.weight") \
    X(ATTPROJB, attprojb, BLOCK, VECTOR,    ZERO,            DIM_C,     DIM_1,  1, "h.%d.attn.c_proj.bias")   \
    X(LN2W,     ln2w,     BLOCK, VECTOR,    ONE,             DIM_C,     DIM_1,  1, "h.%d.ln_2.weight")        \
    X(LN2B,     ln2b,     BLOCK, VECTOR,    ZERO,            DIM_C,     DIM_1,  1, "h.%d.ln_2.bias")          \
    X(FCW,      fcw,      BLOCK, MATRIX,    NORMAL,          DIM_FF,    DIM_C,  1, "h.%d.mlp.c_fc.weight")    \
    X(FCB,      fcb,      BLOCK, VECTOR,    ZERO,            DIM_FF,    DIM_1,  1, "h.%d.mlp.c_fc.bias")      \
    X(FCPROJW,  fcprojw,  BLOCK, MATRIX,    NORMAL_RESIDUAL, DIM_C,     DIM_FF, 1, "h.%d.mlp.c_proj.weight")  \
    X(FCPROJB,  fcprojb,  BLOCK, VECTOR,    ZERO,            DIM_C,     DIM_1,  1, "h.%d.mlp.c_proj.bias")    \
    X(LNFW,     lnfw,     MODEL, VECTOR,    ONE,             DIM_C,     DIM_1,  1, "ln_f.weight")             \
    X(LNFB,     lnfb,     MODEL, VECTOR,    ZERO,            DIM_C,     DIM_1,  1, "ln_f.bias")
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
    InitKind init; // NORMAL: N(0, 0.02); NORMAL_RESIDUAL: N(0, 0.02 / sqrt(2 L))
    Dimension rows, cols;
    int stacked;
    const char *hf_name;
    bool transposed; // matrices: Hugging Face stores (in, out), we store (out, in)
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
    char name[64];     // Hugging Face's name with the block filled in
} Parameter;

// The tensors of a model in their fixed order (the order of parameter_specs, blocks inside): count, and a table that
// the caller frees.
int parameter_count(const ModelConfig *config);
Parameter *parameter_table(const ModelConfig *config);
// Index into that table of spec (PARAM_...) at block (ignored for specs outside blocks).
int parameter_index(const ModelConfig *config, int spec, int block);

int64_t parameter_numel(const Parameter *p);
// A tensor of the parameter's name and shape over data, which may be NULL for the shape alone.
Tensor parameter_tensor(const Parameter *p, void *data, DType dtype);
// Sum over the table: the N of the FLOP formulas, padding included.
int64_t parameter_total(const ModelConfig *config);

// Initial fp32 values of elements [first, first + n) of tensor index: a pure function of seed and position. Rows of
// wte beyond V are 0.
void parameter_init_values(float *out, const ModelConfig *config, const Parameter *p, int index, uint64_t seed,
                           int64_t first, int64_t n);

// The short name of a tensor for people: a weight's is its column `name` of PARAMETERS, without the block
// ("transformer.h.11.attn.c_attn.weight" -> "qkvw"); names that are no weight's stay.
const char *parameter_label(const char *name);
