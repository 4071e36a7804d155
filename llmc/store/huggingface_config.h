// config.json of Hugging Face models: reads it into a ModelConfig, refuses one that computes
// something else, and writes it.
#pragma once
#include "llmc/model/parameters.h"

#include <cjson/cJSON.h>

bool huggingface_parse_config(const cJSON *root, ModelConfig *config, Error *err);
// The text, which the caller frees. begin, eot: the tokens before a text and after it, -1: none.
char *huggingface_config_json(const ModelConfig *config, DType dtype, int64_t begin, int64_t eot);
