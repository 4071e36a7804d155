// llm.c's .bin models: 256 int32 (magic 20240326; version 3: fp32, 5: bf16; max_T, V, L, NH, C,
// Vp), then the tensors of parameter_specs in that order, blocks inside, without gaps. Rows of
// padding of wte are 0.
#pragma once
#include "llmc/model/model.h"
#include "llmc/model/parameters.h"

#define LLMC_BIN_MAGIC "\xC6\xD7\x34\x01" // 20240326, what such a file begins with

typedef struct LlmcBin LlmcBin;
LlmcBin *llmc_bin_open(const char *path, ModelConfig *config, Error *err);
void llmc_bin_close(LlmcBin *f);
// Rows [first_row, first_row + rows) of p, all of them within p->file_rows.
bool llmc_bin_read(LlmcBin *f, const Parameter *p, int64_t first_row, int64_t rows, float *out,
                   Error *err);

// Writes the file atomically. dtype: fp32 or bf16, rounded to nearest even.
bool llmc_bin_write(const char *path, const Model *model, DType dtype, Error *err);
