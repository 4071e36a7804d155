// config.json of Hugging Face models: reading it into a ModelConfig, or refusing what would be another computation, and
// writing it.
#pragma once
#include "llmc/model/parameters.h"

#include <cjson/cJSON.h>

bool huggingface_parse_config(const cJSON *root, ModelConfig *config, Error *err);
// The text, which the caller frees. begin, eot: the tokens before a text and after it, -1: none.
char *huggingface_config_json(const ModelConfig *config, DType dtype, int64_t begin, int64_t eot);
