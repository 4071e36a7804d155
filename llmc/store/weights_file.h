// Weights from files: a Hugging Face GPT-2 directory (config.json and safetensors, one file or several with an index),
// which our checkpoints are too, or an llm.c .bin model (versions 3 fp32 and 5 bf16). Both are read through one
// interface, tensor by tensor in our layout, as fp32.
#pragma once
#include "llmc/base/error.h"
#include "llmc/model/parameters.h"

typedef struct WeightsFile WeightsFile;

// path: a directory with config.json, or a file. Checks everything that can be checked before memory is taken:
// config fields (model_type gpt2, gelu_new, n_embd, ...), every tensor of the table present with the right shape.
WeightsFile *weights_file_open(const char *path, Error *err);
void weights_file_close(WeightsFile *f);
const ModelConfig *weights_file_config(const WeightsFile *f);
int64_t weights_file_eot(const WeightsFile *f); // the end-of-text token that the model states, -1: none
// Rows [first, first + rows) of tensor p (of a parameter_table for the file's config) in our (out, in) layout; rows
// beyond V give 0.
bool weights_file_read(WeightsFile *f, const Parameter *p, int64_t first_row, int64_t rows, float *out, Error *err);
