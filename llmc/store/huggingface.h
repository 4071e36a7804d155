// Hugging Face GPT-2 directories: config.json and model.safetensors. What weights_file.h needs of them; its config is
// written by huggingface_config_json there.
#pragma once
#include "llmc/model/parameters.h"

typedef struct HuggingFace HuggingFace;
HuggingFace *huggingface_open(const char *directory, ModelConfig *config, Error *err);
void huggingface_close(HuggingFace *f);
// Rows [first_row, first_row + rows) of p, all of them within p->file_rows.
bool huggingface_read(HuggingFace *f, const Parameter *p, int64_t first_row, int64_t rows, float *out, Error *err);
