// Reading and exporting weights files.
//
// Reading: a Hugging Face GPT-2 directory (config.json and safetensors, one file or several with an index), such as our
// checkpoints, or an llm.c .bin model (versions 3 fp32 and 5 bf16). Both are read through one interface, tensor by
// tensor in our layout, as fp32.
//
// Exporting (export_model): an llm.c .bin (path ends in ".bin"; version 3 for fp32, 5 for bf16), or else a Hugging Face
// directory (model.safetensors, config.json, tokenizer files). It is written completely or not at all. fp32 keeps every
// bit; bf16 and fp16 round to nearest even, and keep every bit of weights that were read from a file of that type.
#pragma once
#include "llmc/base/error.h"
#include "llmc/model/model.h"
#include "llmc/model/parameters.h"
#include "llmc/text/tokenizer.h"

#include <stdint.h>

typedef struct WeightsFile WeightsFile;

// path: a directory with config.json, or a file. Checks everything that can be checked before memory is allocated:
// config fields (model_type gpt2, gelu_new, n_embd, ...), every tensor of the table present with the right shape.
WeightsFile *weights_file_open(const char *path, Error *err);
void weights_file_close(WeightsFile *f);
const ModelConfig *weights_file_config(const WeightsFile *f);
int64_t weights_file_eot(const WeightsFile *f); // the end-of-text token that the model states, -1: none
// Compares what the file has besides the weights with what it must be: a head that is tied, masks that are causal.
bool weights_file_check_rest(WeightsFile *f, Error *err);
// Rows [first, first + rows) of tensor p (of a parameter_table for the file's config) in our (out, in) layout; rows
// beyond V are 0. A tensor with a value that is not finite is refused with their number and the first one.
bool weights_file_read(WeightsFile *f, const Parameter *p, int64_t first_row, int64_t rows, float *out, Error *err);

// ----------------------------------------------------------------------------------------------------------------- out

// dtype: DTYPE_FP32, DTYPE_BF16, or, for directories, DTYPE_FP16 (values beyond its range are an error that names the
// tensor). eot: -1 if not known. tokenizer NULL: none is written.
bool export_model(const char *path, const Model *model, DType dtype, int64_t eot, const Tokenizer *tokenizer,
                  Error *err);
// Checks before training whether this path and dtype can be written.
bool export_check(const char *path, DType dtype, const ModelConfig *config, Error *err);

// ------------------------------------------------------------------------------------------------ for huggingface.c

typedef struct {
    DType dtype;     // fp32; fp16 and bf16 are rounded to nearest even
    bool transposed; // (out, in) in our tensors, (in, out) in the file
} StateForm;

// Takes the next bytes of the file.
typedef bool StateSink(void *file, const void *data, size_t bytes, Error *err);

// Writes tensor `index` to the sink, without rows of padding (p->file_rows rows). False: the sink failed, or a finite
// value is infinite in the file's type.
bool state_write(const Model *model, int index, StateForm form, StateSink *sink, void *file, Error *err);

enum { STATE_PIECE_FLOATS = 2 << 20 }; // 8 MiB a piece: amortises the cost of a call, small compared with a model
// Rows of a tensor in a piece. A row has at most d_ff = 262,144 floats, 1 MiB.
static inline int64_t state_piece_rows(const Parameter *p) { return STATE_PIECE_FLOATS / p->cols; }

// out[c * out_stride + r] = in[r * in_stride + c] for r < rows, c < cols. Works in tiles of 16 x 16 floats: a tile is
// 16 cache lines on both sides, so each line is read and written once.
static inline void transpose(float *out, int64_t out_stride, const float *in, int64_t in_stride, int64_t rows,
                             int64_t cols) {
    enum { TILE = 16 };
    for (int64_t r0 = 0; r0 < rows; r0 += TILE) {
        int64_t r1 = r0 + TILE < rows ? r0 + TILE : rows;
        for (int64_t c0 = 0; c0 < cols; c0 += TILE) {
            int64_t c1 = c0 + TILE < cols ? c0 + TILE : cols;
            for (int64_t c = c0; c < c1; c++)
                for (int64_t r = r0; r < r1; r++) out[c * out_stride + r] = in[r * in_stride + c];
        }
    }
}

enum { TRANSPOSE_STRIP = 64 }; // rows of the (in, out) side that are read or written at a time

// --------------------------------------------------------------------------------------------------------------- llm.c

typedef struct LlmcBin LlmcBin;
LlmcBin *llmc_bin_open(const char *path, ModelConfig *config, Error *err);
void llmc_bin_close(LlmcBin *f);
// Rows [first_row, first_row + rows) of p, all of them within p->file_rows.
bool llmc_bin_read(LlmcBin *f, const Parameter *p, int64_t first_row, int64_t rows, float *out, Error *err);

// Writes the file atomically. dtype: fp32 or bf16, rounded to nearest even.
bool llmc_bin_write(const char *path, const Model *model, DType dtype, Error *err);
// Whether a plain file at path begins like such a model, and so may be replaced by another.
bool llmc_bin_is_one(const char *path);
