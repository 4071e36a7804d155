// THE parameter table: what weights a GPT-2 has, their shapes, initial values, weight decay, and their names and
// layouts in Hugging Face files. Everything that walks over weights walks over this table: memory plan, init,
// optimizer, checkpoints, import and export, messages.
#pragma once
#include "llmc/model/model_config.h"
#include "llmc/tensor.h"

typedef enum { INIT_ZERO, INIT_ONE, INIT_NORMAL, INIT_NORMAL_RESIDUAL } InitKind;

// What optimizers tell apart.
typedef enum { GROUP_EMBEDDING, GROUP_MATRIX, GROUP_VECTOR } ParameterGroup;

// One row of the table: a weight of the model, or of each block.
typedef struct {
    const char *name;    // ours, and llm.c's: "wte", "qkvw", ...
    const char *hf_name; // Hugging Face; %d is the block
    InitKind init;       // NORMAL: N(0, 0.02); NORMAL_RESIDUAL: N(0, 0.02 / sqrt(2 L))
    bool per_block;
    bool weight_decay; // matrices yes, vectors no
    bool transposed;   // Hugging Face stores (in, out) where we store (out, in)
    char rows, cols;   // shape as a code: 'V' Vp, 'T' max_T, 'C', '3' 3C, '4' 4C, '1' no such dimension
    ParameterGroup group;
    int stacked; // matrices that stand in it one below the other: 3 in qkvw (Muon treats each by itself), else 1
} ParameterSpec;

enum {
    PARAM_WTE,
    PARAM_WPE,
    PARAM_LN1W,
    PARAM_LN1B,
    PARAM_QKVW,
    PARAM_QKVB,
    PARAM_ATTPROJW,
    PARAM_ATTPROJB,
    PARAM_LN2W,
    PARAM_LN2B,
    PARAM_FCW,
    PARAM_FCB,
    PARAM_FCPROJW,
    PARAM_FCPROJB,
    PARAM_LNFW,
    PARAM_LNFB,
    NUM_PARAMETER_SPECS
};
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
// Sum over the table: N of the FLOP formulas, padding included.
int64_t parameter_total(const ModelConfig *config);

// Initial fp32 values of elements [first, first + n) of tensor index: a pure function of seed and position. Rows of
// wte beyond V are 0.
void parameter_init_values(float *out, const ModelConfig *config, const Parameter *p, int index, uint64_t seed,
                           int64_t first, int64_t n);
