// Vocabularies whose numbers are ranks: tiktoken's files (lines of base64 and rank) and llm.c's
// gpt2_tokenizer.bin (256 words: 20240328, version, tokens, end-of-text; then for each token a byte
// of length and its bytes). They have no merges: any two neighbours that together make a token
// merge, the lowest number first.
#pragma once
#include "llmc/text/vocabulary.h"

// text: the file's content. All messages begin with its path.
enum { LLMC_TOKENIZER_MAGIC = 20240328 };
// tiktoken
Tokenizer *tokenizer_read_ranks(const char *path, const char *text, size_t bytes, Error *err);
// gpt2_tokenizer.bin
Tokenizer *tokenizer_read_llmc(const char *path, const char *text, size_t bytes, Error *err);
