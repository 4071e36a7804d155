// optimizer.safetensors of a checkpoint: every tensor of the optimizer's state that has a prefix,
// as PREFIX NAME in its own dtype, in our (out, in) layout; wte has V rows, except in 8-bit states.
// The metadata names the optimizer. llmc/model/optimizer_state.c determines which tensors there
// are.
#pragma once
#include "llmc/model/model.h"
#include "llmc/store/huggingface.h"

#define OPTIMIZER_FILE_NAME "optimizer.safetensors"

bool optimizer_file_write(const char *path, const Model *model, FileFacts *facts, Error *err);
// Loads the state of the checkpoint, a step directory, into the model. Without it the state is new:
// all zero.
bool optimizer_file_load(Model *model, const char *checkpoint, Error *err);
// False, and a message that names both, unless the saved state belongs to the wanted optimizer.
bool optimizer_file_check(OptimizerKind saved, OptimizerKind wanted, Error *err);
