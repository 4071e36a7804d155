// Text from and to tokens. Built in: bytes. A token below 256 is that byte, 256 is end-of-text.
// Owns the spellings of its tokens. Reads no file and never refuses a text.
#include "llmc/tokens/tokenizer.h"

#include <stdlib.h>

struct Tokenizer {
    char bytes[BYTE_EOT]; // the spelling of token i is bytes[i]
};

Tokenizer *tokenizer_bytes(Error *err) {
    Tokenizer *t = malloc(sizeof *t);
    if (!t) {
        error_set(err, "byte tokenizer: out of memory");
        return NULL;
    }
    for (int i = 0; i < BYTE_EOT; i++) t->bytes[i] = (char)i;
    return t;
}

void tokenizer_free(Tokenizer *t) { free(t); }

int64_t tokenizer_vocab(const Tokenizer *t) {
    (void)t;
    return BYTE_VOCAB;
}

int32_t tokenizer_eot(const Tokenizer *t) {
    (void)t;
    return BYTE_EOT;
}

int64_t tokenizer_encode(const Tokenizer *t, const char *text, int64_t n, int32_t *out) {
    (void)t;
    for (int64_t i = 0; i < n; i++) out[i] = (unsigned char)text[i];
    return n;
}

const char *tokenizer_decode(const Tokenizer *t, int32_t token, size_t *length) {
    bool is_byte = token >= 0 && token < BYTE_EOT;
    *length = is_byte ? 1 : 0;
    return is_byte ? &t->bytes[token] : "";
}
