// The tensors of a Hugging Face directory, whether they stand in one model.safetensors or in the files that
// model.safetensors.index.json lists: one set of tensors with unique names. Owns the open files. Every file is opened
// and checked against the index before anything is read: each tensor where the index says, and none besides.
// Knows nothing of what the tensors are for.
#pragma once
#include "llmc/store/safetensors.h"

typedef struct WeightShards WeightShards;
// A model.safetensors is taken before an index, as transformers does.
WeightShards *weight_shards_open(const char *directory, Error *err);
void weight_shards_close(WeightShards *s); // NULL is fine

int weight_shards_count(const WeightShards *s);
const SafetensorsEntry *weight_shards_entry(const WeightShards *s, int i);
int weight_shards_find(const WeightShards *s, const char *name); // its place in the set, -1: not there
const char *weight_shards_path(const WeightShards *s, int i);    // the file that holds tensor i
const char *weight_shards_list(const WeightShards *s);           // the one file, or the index: what lists all tensors
// Elements [first, first + n) of tensor i, converted to fp32.
bool weight_shards_read_fp32(WeightShards *s, int i, int64_t first, int64_t n, float *out, Error *err);
