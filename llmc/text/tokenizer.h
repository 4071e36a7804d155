// Text from and to tokens: byte-level BPE and, built in, bytes (256 values and end-of-text: 257
// tokens). A text is split by GPT-2's pattern or a later one (pieces.h), and inside each piece the
// adjacent pair that was merged first in training is merged first (Sennrich, Haddow, Birch 2016;
// Radford et al. 2019). Equal to tiktoken and to Hugging Face tokenizers on every text
// (doc/tokenizer.md). Those accept only valid UTF-8. Here a byte outside any well-formed sequence
// splits the text as U+FFFD would, but keeps its value: decode(encode(text)) is text for all bytes.
// NULs are ordinary. A Tokenizer is read-only after it was opened: any number of threads may use
// one, each with its own Encoder (encoder.h).
#pragma once
#include "llmc/base/error.h"
#include "llmc/text/spellings.h"

#include <stddef.h>
#include <stdint.h>

enum { BYTE_VOCAB = 257, BYTE_EOT = 256 };

typedef struct Tokenizer Tokenizer;
Tokenizer *tokenizer_bytes(Error *err);
void tokenizer_free(Tokenizer *t); // NULL is fine

int64_t tokenizer_vocab(const Tokenizer *t); // largest token + 1
// "<|endoftext|>", else "<|end_of_text|>" or "</s>"; -1: none
int32_t tokenizer_eot(const Tokenizer *t);
// of every text: Llama 3's "<|begin_of_text|>", else end-of-text
int32_t tokenizer_begin(const Tokenizer *t);
// "bytes", "byte-level BPE of PATH": for headers and messages
const char *tokenizer_name(const Tokenizer *t);
// the file that it was read from; "" if it is built in
const char *tokenizer_path(const Tokenizer *t);
// has Qwen's normalizer, which is not carried out: texts must be in NFC
bool tokenizer_expects_nfc(const Tokenizer *t);
bool tokenizer_is_special(const Tokenizer *t, int32_t token);
// The name that llama.cpp has for the pattern: tokenizer.ggml.pre of a GGUF file; NULL: it has
// none.
const char *tokenizer_pre(const Tokenizer *t);

// The bytes of one token, not terminated, valid as long as t; those of a special token are its
// spelling
// ("<|endoftext|>"). Length 0 for numbers that are not a token.
const char *tokenizer_decode(const Tokenizer *t, int32_t token, size_t *length);

// Tells whether the text may be cut at m, 0 < m < n: whether text[0..m) and text[m..), encoded one
// after the other, give the tokens of the whole, whatever follows text[n - 1]. Certain where two
// kinds of characters meet (letter, number, space, other), but not after ' ' or an apostrophe
// before a letter; where a newline alone ends a line; and before the last of several spaces, which
// may be the newline of an empty line. cuts: those of a text, in which a window around the last m
// is known.
typedef struct {
    const Tokenizer *tokenizer;
    const char *text;
    int64_t n, window;
    bool crossed[SPELLINGS_WINDOW];
} TokenizerCuts;
TokenizerCuts tokenizer_cuts(const Tokenizer *t, const char *text, int64_t n);
bool tokenizer_may_cut(TokenizerCuts *cuts, int64_t m);
// Returns the last such place m <= n, 0 if there is none. For texts that are read block by block.
int64_t tokenizer_safe_cut(const Tokenizer *t, const char *text, int64_t n);

// A number that is equal for two tokenizers that give the same tokens, whatever their files' form:
// XXH3 of all tokens' bytes and numbers.
uint64_t tokenizer_fingerprint(const Tokenizer *t);
