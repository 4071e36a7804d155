// Text from and to tokens. Built in: bytes (256 byte values and end-of-text, 257 tokens), which needs no file.
#pragma once
#include "llmc/base/error.h"
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { BYTE_VOCAB = 257, BYTE_EOT = 256 };

typedef struct Tokenizer Tokenizer;
Tokenizer *tokenizer_bytes(Error *err);
void tokenizer_free(Tokenizer *t);

int64_t tokenizer_vocab(const Tokenizer *t);
int32_t tokenizer_eot(const Tokenizer *t);
// Tokens of n bytes into out (room for n); returns how many.
int64_t tokenizer_encode(const Tokenizer *t, const char *text, int64_t n, int32_t *out);
// The bytes of one token, not terminated, valid as long as t; length 0 for end-of-text and unknown tokens.
const char *tokenizer_decode(const Tokenizer *t, int32_t token, size_t *length);

#ifdef __cplusplus
}
#endif
