// Hugging Face GPT-2 directories: config.json, the weights as safetensors (one file, or several with an index), and the
// tokenizer. Reading serves weights_file.h; writing is shared by checkpoints and exports: the files one by one, into a
// directory that the caller commits.
#pragma once
#include "llmc/model/gpt2.h"
#include "llmc/store/safetensors.h"
#include "llmc/text/tokenizer.h"

typedef struct HuggingFace HuggingFace;
HuggingFace *huggingface_open(const char *directory, ModelConfig *config, Error *err);
void huggingface_close(HuggingFace *f);
int64_t huggingface_eot(const HuggingFace *f); // eos_token_id of config.json, -1 if it has none
// Rows [first_row, first_row + rows) of p, all of them within p->file_rows.
bool huggingface_read(HuggingFace *f, const Parameter *p, int64_t first_row, int64_t rows, float *out, Error *err);

// The files, in the order in which they are written.
enum { HF_WEIGHTS, HF_CONFIG, HF_TOKENIZER, HF_TOKENIZER_CONFIG, HF_FILES };
extern const char *const huggingface_file_names[HF_FILES];

typedef struct {
    int64_t bytes;     // -1: there is no such file
    uint64_t checksum; // XXH3, 64 bits
} FileFacts;

typedef struct {
    const Gpt2 *model;
    DType dtype;                // of the weights in the file: fp32, fp16 or bf16
    int64_t eot;                // bos and eos token, -1: null
    const Tokenizer *tokenizer; // NULL: its two files are not written
} HuggingFaceModel;

// Writes the files into an existing directory. Weights in fp32 are the model's to the last bit, otherwise rounded to
// nearest even; a finite value that would become infinite is an error that names the tensor.
bool huggingface_write(const char *directory, const HuggingFaceModel *m, FileFacts facts[HF_FILES], Error *err);

// config.json as transformers reads it; malloced.
char *huggingface_config_json(const ModelConfig *config, DType dtype, int64_t eot);

// ------------------------------------------------------------------------------------------ the tensors of a directory

typedef struct WeightShards WeightShards;
// A model.safetensors takes precedence over an index, as in transformers.
WeightShards *weight_shards_open(const char *directory, Error *err);
void weight_shards_close(WeightShards *s); // NULL is fine

int weight_shards_count(const WeightShards *s);
const SafetensorsEntry *weight_shards_entry(const WeightShards *s, int i);
int weight_shards_find(const WeightShards *s, const char *name); // its index in the set, -1: absent
const char *weight_shards_path(const WeightShards *s, int i);    // the file that contains tensor i
const char *weight_shards_list(const WeightShards *s); // the file that lists all tensors: the one file, or the index
// Elements [first, first + n) of tensor i, converted to fp32.
bool weight_shards_read_fp32(WeightShards *s, int i, int64_t first, int64_t n, float *out, Error *err);
