// Finds the tokenizer of weights and shards where users keep it, and refuses data and weights with
// different tokenizers: such a run would train on tokens that mean something else. Decides nothing
// else.
#pragma once
#include "llmc/text/tokenizer.h"

// Opens the first of these that exists:
//   given (--tokenizer): a path, which must open; "bytes": the built-in one; "none": none is looked
//     for, so that weights can be trained whose tokenizer is of a kind that cannot be read
//   the directory of the weights: tokenizer.json, vocab.json or encoder.json
//   the directory of the shards, the same (data/prepare writes tokenizer.json next to them)
//   bytes if V is 257
//   gpt2_tokenizer.bin in the working directory if V is 50257 (where llm.c keeps it)
// None found: true and *tokenizer NULL. weights, shards: paths or patterns, NULL or "" if none.
// vocab: of the data, 0 if it does not say; V: of the model. False: a file that is not a tokenizer;
// one with more tokens than the model, or with other ones than the data was made with (vocab, or
// the tokenizer next to the shards); weights of others without a tokenizer whose vocabulary is not
// that of the data.
bool tokenizer_find(Tokenizer **tokenizer, const char *given, const char *weights,
                    const char *shards, int64_t vocab, int64_t V, Error *err);
