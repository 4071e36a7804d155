// Hugging Face's files: reads a tokenizer.json, and vocab.json with merges.txt (OpenAI:
// encoder.json with vocab.bpe); writes a tokenizer.json: one line per token and merge, the same
// bytes every time. A field that would make other tokens than byte-level BPE with one of the
// patterns of pieces.h is refused by name; the decoder, which does not affect tokens, is ignored.
#pragma once
#include "llmc/text/vocabulary.h"

// tokenizer.json, vocab.json. text: the file's content. All messages begin with its path.
Tokenizer *tokenizer_read_json(const char *path, const char *text, size_t bytes, Error *err);

// The tokenizer as a Hugging Face tokenizer.json (loads with AutoTokenizer and tokenizers),
// malloced. Deterministic.
char *tokenizer_to_json(const Tokenizer *t, size_t *bytes);
// this, as a file, atomically
bool tokenizer_write(const Tokenizer *t, const char *path, Error *err);
#define TOKENIZER_MARK "\"pre_tokenizer\": {\"type\": \"" // own_file.h; others break the line there
