// The tensors of a Hugging Face directory: those of model.safetensors, or of several files with an
// index.
#pragma once
#include "llmc/store/safetensors.h"

typedef struct WeightShards WeightShards;
// A model.safetensors takes precedence over an index, as in transformers. Of the index only the
// names of the files count: each of them says which tensors it has, and none may be in two.
WeightShards *weight_shards_open(const char *directory, Error *err);
void weight_shards_close(WeightShards *s); // NULL is fine

int weight_shards_count(const WeightShards *s);
const SafetensorsEntry *weight_shards_entry(const WeightShards *s, int i);
int weight_shards_find(const WeightShards *s, const char *name); // its index in the set, -1: absent
const char *weight_shards_path(const WeightShards *s, int i);    // the file that contains tensor i
// the file that lists all tensors: the one file, or the index
const char *weight_shards_list(const WeightShards *s);
// Elements [first, first + n) of tensor i, converted to fp32.
bool weight_shards_read_fp32(WeightShards *s, int i, int64_t first, int64_t n, float *out,
                             Error *err);
// Appends to the message the kind of the weights in the directory, if its name and content tell;
// returns false.
bool weight_shards_explain(const char *directory, Error *err);
