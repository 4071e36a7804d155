// Exporting a model: an llm.c .bin (path ends in ".bin"; version 3 for fp32, 5 for bf16), or else a Hugging Face
// directory (model.safetensors, config.json, tokenizer files). It is written completely or not at all. fp32 keeps every
// bit; bf16 and fp16 round to nearest even, and keep every bit of weights that were read from a file of that type.
#pragma once
#include "llmc/model/model.h"
#include "llmc/text/tokenizer.h"

// dtype: DTYPE_FP32, DTYPE_BF16, or, for directories, DTYPE_FP16 (values beyond its range are an error that names the
// tensor). eot: -1 if not known. tokenizer NULL: none is written.
bool export_model(const char *path, const Model *model, DType dtype, int64_t eot, const Tokenizer *tokenizer,
                  Error *err);
// Checks before training whether this path and dtype can be written.
bool export_check(const char *path, DType dtype, const ModelConfig *config, Error *err);
