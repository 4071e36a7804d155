// Text -> tokens: finds added tokens by their spelling, cuts the text between them into pieces and
// merges the bytes of each, unless its cache has the result.
#pragma once
#include "llmc/text/tokenizer.h"

// One thread's working memory: matcher and a cache of pieces.
typedef struct Encoder Encoder;
Encoder *encoder_create(const Tokenizer *t);
void encoder_free(Encoder *e); // NULL is fine
// Tokens of n < 2^32 bytes into out (capacity n); returns their number. The spelling of a special
// token inside the text is text; that of an added token that is not special (tokenizer.json:
// "special": false) is that token.
int64_t encoder_encode(Encoder *e, const char *text, int64_t n, int32_t *out);
// The same, but the spelling of a special token becomes that token: for prompts, never for corpora.
int64_t encoder_encode_special(Encoder *e, const char *text, int64_t n, int32_t *out);
