// Opens a tokenizer from a file or a directory: decides by content which of the readers it is for.
#pragma once
#include "llmc/text/tokenizer.h"

// path is one of
//   a Hugging Face tokenizer.json, or a directory that holds one
//   a directory that holds vocab.json + merges.txt (or OpenAI's encoder.json + vocab.bpe), or that
//     vocab.json itself
//   a tiktoken rank file (lines of base64 and rank, such as gpt2.tiktoken, r50k_base.tiktoken)
//   llm.c's gpt2_tokenizer.bin
// Every file is treated as hostile. Anything that would give other tokens than its own library does
// (another pattern, a normalizer, a model that is not BPE, dropout) is refused with the field
// named, as are numbers without a token and bytes without one.
Tokenizer *tokenizer_open(const char *path, Error *err);
// "bytes": the built-in one; else that of this path
Tokenizer *tokenizer_named(const char *name, Error *err);
bool tokenizer_is_directory(const char *path);
// the file there that is a tokenizer, malloced; NULL: there is none
char *tokenizer_file_in(const char *directory);
