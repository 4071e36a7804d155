// Hugging Face model directories: config.json, the weights as safetensors (one file, or several with an index), and the
// tokenizer. Reading serves weights_file.h; writing is shared by checkpoints and exports: the files one by one, into a
// directory that the caller commits.
#pragma once
#include "llmc/base/own_file.h"
#include "llmc/model/model.h"
#include "llmc/store/safetensors.h"
#include "llmc/text/tokenizer.h"

typedef struct HuggingFace HuggingFace;
// eot: eos_token_id of config.json, -1 if it has none.
HuggingFace *huggingface_open(const char *directory, ModelConfig *config, int64_t *eot, Error *err);
void huggingface_close(HuggingFace *f);
// Whether lm_head.weight, if there is one, equals wte, and with embed_norm the embedding has the norms of its rows.
bool huggingface_check_rest(HuggingFace *f, Error *err);
// Rows [first_row, first_row + rows) of p, all of them within p->file_rows.
bool huggingface_read(HuggingFace *f, const Parameter *p, int64_t first_row, int64_t rows, float *out, Error *err);

// The files, in the order in which they are written.
enum { HF_WEIGHTS, HF_CONFIG, HF_TOKENIZER, HF_TOKENIZER_CONFIG, HF_FILES };
extern const OwnFileKind huggingface_files[HF_FILES];

typedef struct {
    int64_t bytes;     // -1: there is no such file
    uint64_t checksum; // XXH3, 64 bits
} FileFacts;

typedef struct {
    const Model *model;
    DType dtype;                // of the weights in the file: fp32, fp16 or bf16
    int64_t eot;                // bos and eos token, -1: null
    const Tokenizer *tokenizer; // NULL: its two files are not written
} HuggingFaceModel;

// Writes the files into an existing directory. Weights in fp32 are the model's to the last bit, otherwise rounded to
// nearest even; a finite value that would become infinite is an error that names the tensor.
bool huggingface_write(const char *directory, const HuggingFaceModel *m, FileFacts facts[HF_FILES], Error *err);
