// Exporting a model: an llm.c .bin (path ends in ".bin"; version 3 for fp32, 5 for bf16),
// llama.cpp's GGUF (path ends in ".gguf"), or else a Hugging Face directory (model.safetensors,
// config.json, tokenizer files). It is written completely or not at all. fp32 keeps every bit; bf16
// and fp16 round to nearest even, and keep every bit of weights that were read from a file of that
// type.
#pragma once
#include "llmc/store/huggingface.h"

// The type of the exported weights: llm.c has no fp16, and q8_0 is GGUF's alone. A value beyond the
// range of fp16 is an error that names the tensor.
typedef enum { EXPORT_FP32, EXPORT_FP16, EXPORT_BF16, EXPORT_Q8_0, EXPORT_TYPES } ExportType;
const char *export_type_name(ExportType type); // "fp32", "fp16", "bf16", "q8_0"
ExportType export_type_of(const char *name);   // of these, or "f32", "f16"; EXPORT_TYPES: of none

// The dtype of the model is that of the type. Without a tokenizer none is written.
bool export_model(const char *path, const HuggingFaceModel *model, ExportType type, Error *err);
// Lists what an export to this path leaves out of the model, or lacks for its readers: lines,
// malloced, "" if there is none.
char *export_warnings(const char *path, const HuggingFaceModel *model);
bool export_is_directory(const char *path); // by its name
// Checks before training whether this can be written.
bool export_check(const char *path, ExportType type, const ModelConfig *config,
                  const Tokenizer *tokenizer, Error *err);
