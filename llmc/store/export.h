// A model as others read it: an llm.c .bin (path ends in ".bin"; version 3 for fp32, 5 for bf16), or else a Hugging
// Face directory (model.safetensors, config.json, tokenizer files). Written whole or not at all. fp32 keeps every bit;
// bf16 and fp16 round to nearest even, and keep every bit of weights that were read from a file of that type.
#pragma once
#include "llmc/model/gpt2.h"
#include "llmc/text/tokenizer.h"

// dtype: DTYPE_FP32, DTYPE_BF16, or, for directories, DTYPE_FP16 (values beyond its range are an error that names the
// tensor). eot: -1 if not known. tokenizer NULL: none is written.
bool export_model(const char *path, const Gpt2 *model, DType dtype, int64_t eot, const Tokenizer *tokenizer,
                  Error *err);
// What can be said before anything is trained: may this path and dtype be written?
bool export_check(const char *path, DType dtype, Error *err);
