// Weights in files: a Hugging Face GPT-2 directory (config.json and safetensors, one file or
// several with an index), such as our checkpoints, or an llm.c .bin model (versions 3 fp32 and 5
// bf16). Both are read through one interface, tensor by tensor in our layout, as fp32.
#pragma once
#include "llmc/base/error.h"
#include "llmc/model/model.h"
#include "llmc/model/parameters.h"

#include <stdint.h>

typedef struct WeightsFile WeightsFile;

// path: a directory with config.json, or a file. Checks everything that can be checked before
// memory is allocated: config fields (model_type gpt2, gelu_new, n_embd, ...), every tensor of the
// table present with the right shape.
WeightsFile *weights_file_open(const char *path, Error *err);
void weights_file_close(WeightsFile *f);
const ModelConfig *weights_file_config(const WeightsFile *f);
// the end-of-text token that the model states, -1: none
int64_t weights_file_eot(const WeightsFile *f);
// Checks the other contents of the file: a tied head equals wte.
bool weights_file_check_rest(WeightsFile *f, Error *err);
// Rows [first, first + rows) of tensor p (of a parameter_table for the file's config) in our (out,
// in) layout; rows beyond V are 0. A tensor with a value that is not finite is refused with its
// place.
bool weights_file_read(WeightsFile *f, const Parameter *p, int64_t first_row, int64_t rows,
                       float *out, Error *err);

// Loads all weights from the file at path into the model, which must have its shape.
bool weights_file_load(Model *model, const char *path, Error *err);

// Lets writers of files read the values that the model was made from in place of the model's own,
// which are rounded to its type: those of the file at path, or NULL: the initial ones of this seed.
// Only for a model that was not trained.
typedef struct WeightsOrigin WeightsOrigin;
WeightsOrigin *weights_origin_begin(Model *model, const char *path, uint64_t seed, Error *err);
void weights_origin_end(WeightsOrigin *origin); // NULL is fine
