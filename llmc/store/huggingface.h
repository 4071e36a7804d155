// Hugging Face model directories: config.json, the weights as safetensors (one file, or several
// with an index), and the tokenizer. Reading serves weights_file.h; writing is shared by
// checkpoints and exports: the files one by one, into a directory that the caller commits.
#pragma once
#include "llmc/base/own_file.h"
#include "llmc/model/model.h"
#include "llmc/store/model_extras.h"
#include "llmc/store/safetensors.h"
#include "llmc/text/tokenizer.h"

typedef struct HuggingFace HuggingFace;
// eot: eos_token_id of config.json, -1 if it has none.
HuggingFace *huggingface_open(const char *directory, ModelConfig *config, int64_t *eot, Error *err);
void huggingface_close(HuggingFace *f);
// Whether lm_head.weight, if there is one, equals wte, and with embed_norm the embedding has the
// norms of its rows.
bool huggingface_check_rest(HuggingFace *f, Error *err);
// Rows [first_row, first_row + rows) of p, all of them within p->file_rows.
bool huggingface_read(HuggingFace *f, const Parameter *p, int64_t first_row, int64_t rows,
                      float *out, Error *err);

// The files, in the order in which they are written.
// From HF_TOKENIZER_CONFIG on, those of model_extras.h.
enum {
    HF_WEIGHTS,
    HF_CONFIG,
    HF_TOKENIZER,
    HF_TOKENIZER_CONFIG,
    HF_FILES = HF_TOKENIZER_CONFIG + EXTRA_FILES
};
const char *huggingface_file_name(int file);

typedef struct {
    int64_t bytes;     // -1: there is no such file
    uint64_t checksum; // XXH3, 64 bits
} FileFacts;

typedef struct {
    const Model *model;
    DType dtype;                // of the weights in the file: fp32, fp16 or bf16
    int64_t eot;                // ends a text, -1: not known
    const Tokenizer *tokenizer; // NULL: its files are not written
    // of the directory that the model comes from; NULL: it comes from none
    const ModelExtras *extras;
} HuggingFaceModel;
// The extras, which may be none; the token before every text, -1: none.
const ModelExtras *huggingface_extras(const HuggingFaceModel *m);
int64_t huggingface_begin(const HuggingFaceModel *m);
// The number of tokens that end a text: those that the model's files state, then eot.
int huggingface_ends(const HuggingFaceModel *m, int32_t ends[MAX_END_TOKENS]);

// Whether all that is in the directory was written by huggingface_write, or is of the kinds in
// `more`, as own_directory_is has it. by_name: without a look at the marks.
enum { OWN_FILE_MORE = 4 };
bool huggingface_vouches(const char *directory); // one of the files in it has our mark
bool huggingface_is_own(const char *directory, const OwnFileKind *more, int count, bool by_name,
                        Error *err);

// Writes the files into an existing directory. Weights in fp32 are the model's to the last bit,
// otherwise rounded to nearest even; a finite value that would become infinite is an error that
// names the tensor.
bool huggingface_write(const char *directory, const HuggingFaceModel *m, FileFacts facts[HF_FILES],
                       Error *err);
