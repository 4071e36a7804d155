// GGUF v3, the files of llama.cpp: keys, the tokenizer, and the tensors of a model, in one file. It
// is written only: format and names are those of ggml's docs/gguf.md and of llama.cpp's
// src/llama-arch.cpp. Padding rows of the vocabulary are left out. Tensors pass through one buffer,
// so that host memory stays small whatever the model.
#pragma once
#include "llmc/store/huggingface.h"

// The type of the matrices, as llama.cpp numbers them. Vectors and position_embd are always F32.
// Q8_0: for each 32 values of a row an fp16 scale, amax / 127, and 32 signed bytes; a matrix whose
// rows are no multiple of 32 is F16.
typedef enum { GGUF_F32 = 0, GGUF_F16 = 1, GGUF_Q8_0 = 8, GGUF_BF16 = 30 } GgufType;

// Every such file begins with it.
#define GGUF_MAGIC "GGUF"

// Whether llama.cpp computes such a model and its tokens.
bool gguf_check(const ModelConfig *config, const Tokenizer *tokenizer, Error *err);
// Without a tokenizer the file says that it has none. A file of another program is renamed first.
// The dtype of m does not count.
bool gguf_write(const char *path, const HuggingFaceModel *m, GgufType type, Error *err);

// So many tokens that end a text have keys.
enum { GGUF_ENDS = 3 };
