// Text from and to tokens: GPT-2's byte-level BPE and, built in, bytes (256 values and end-of-text: 257 tokens). A text
// is split by GPT-2's pattern (PCRE2, Unicode properties), and inside each piece the adjacent pair that was merged
// first in training is merged first (Sennrich, Haddow, Birch 2016; Radford et al. 2019). Equal to tiktoken and to
// Hugging Face tokenizers on every text (doc/tokenizer.md). Those accept only valid UTF-8. Here a byte outside any
// well-formed sequence splits the text as U+FFFD would, but keeps its value: decode(encode(text)) is text for all
// bytes. NULs are ordinary. A Tokenizer is read-only after it was opened: any number of threads may use one, each with
// its own Encoder.
#pragma once
#include "llmc/base/error.h"

#include <stddef.h>
#include <stdint.h>

enum { BYTE_VOCAB = 257, BYTE_EOT = 256 };

typedef struct Tokenizer Tokenizer;
Tokenizer *tokenizer_bytes(Error *err);

// path is one of
//   a Hugging Face tokenizer.json, or a directory that holds one
//   a directory that holds vocab.json + merges.txt (or OpenAI's encoder.json + vocab.bpe), or that vocab.json itself
//   a tiktoken rank file (lines of base64 and rank, such as gpt2.tiktoken, r50k_base.tiktoken)
//   llm.c's gpt2_tokenizer.bin
// Every file is treated as hostile. Anything that would give other tokens than its own library does (another pattern, a
// normalizer, a model that is not BPE, dropout) is refused with the field named, as are numbers without a token and
// bytes without one.
Tokenizer *tokenizer_open(const char *path, Error *err);
Tokenizer *tokenizer_named(const char *name, Error *err); // "bytes": the built-in one; else that of this path
void tokenizer_free(Tokenizer *t);                        // NULL is fine

int64_t tokenizer_vocab(const Tokenizer *t);    // largest token + 1
int32_t tokenizer_eot(const Tokenizer *t);      // "<|endoftext|>", -1 if it has none
const char *tokenizer_name(const Tokenizer *t); // "bytes", "byte-level BPE of PATH": for headers and messages
bool tokenizer_is_special(const Tokenizer *t, int32_t token);

// The bytes of one token, not terminated, valid as long as t; those of a special token are its spelling
// ("<|endoftext|>"). Length 0 for numbers that are not a token.
const char *tokenizer_decode(const Tokenizer *t, int32_t token, size_t *length);

// One thread's working memory: matcher and a cache of pieces.
typedef struct Encoder Encoder;
Encoder *encoder_create(const Tokenizer *t, Error *err);
void encoder_free(Encoder *e); // NULL is fine
// Tokens of n < 2^32 bytes into out (capacity n); returns their number. The spelling of a special token inside the text
// is text; that of an added token that is not special (tokenizer.json: "special": false) is that token.
int64_t encoder_encode(Encoder *e, const char *text, int64_t n, int32_t *out);
// The same, but the spelling of a special token becomes that token: for prompts, never for corpora.
int64_t encoder_encode_special(Encoder *e, const char *text, int64_t n, int32_t *out);

// May the text be cut at m, 0 < m < n: do text[0..m) and text[m..) encoded one after the other give the tokens of the
// whole, whatever follows text[n - 1]? Certain where two kinds of characters meet (letter, number, space, other), but
// not after ' ' or an apostrophe before a letter; where a newline alone ends a line; and before the last of several
// spaces, which may be the newline of an empty line.
bool tokenizer_may_cut(const Tokenizer *t, const char *text, int64_t n, int64_t m);
// The last such place m <= n, 0 if there is none. For texts that are read block by block.
int64_t tokenizer_safe_cut(const Tokenizer *t, const char *text, int64_t n);

// The tokenizer as a Hugging Face tokenizer.json (loads with AutoTokenizer and tokenizers), malloced. Deterministic.
char *tokenizer_to_json(const Tokenizer *t, size_t *bytes, Error *err);
bool tokenizer_write(const Tokenizer *t, const char *path, Error *err); // this, as a file, atomically
#define TOKENIZER_MARK "\"pre_tokenizer\": {\"type\": \"ByteLevel\", "  // own_file.h; others break the line there
// A number that is equal for two tokenizers that give the same tokens, whatever their files' form: XXH3 of all tokens'
// bytes and numbers.
uint64_t tokenizer_fingerprint(const Tokenizer *t);

// ------------------------------------------------------------- which tokenizer do these weights and these shards have?

// Which tokenizer do these weights and these shards have? Looks where users keep them, and refuses data and weights
// that have different ones: such a run would train on tokens that mean something else. Decides nothing else.

// The first that is there, of
//   given (--tokenizer): a path, which must open; "bytes": the built-in one; "none": none is looked for, so that
//     weights can be trained whose tokenizer is of a kind that cannot be read
//   the directory of the weights: tokenizer.json, vocab.json or encoder.json
//   the directory of the shards, the same (data/prepare writes tokenizer.json next to them)
//   bytes if V is 257
//   gpt2_tokenizer.bin in the working directory if V is 50257 (where llm.c keeps it)
// None found: true and *tokenizer NULL. weights, shards: paths or patterns, NULL or "" if none. vocab: of the data, 0
// if it does not say; V: of the model. False: a file that is not a tokenizer; one with more tokens than the model, or
// with other ones than the data was made with (vocab, or the tokenizer next to the shards); weights of others without a
// tokenizer whose vocabulary is not that of the data.
bool tokenizer_find(Tokenizer **tokenizer, const char *given, const char *weights, const char *shards, int64_t vocab,
                    int64_t V, Error *err);
