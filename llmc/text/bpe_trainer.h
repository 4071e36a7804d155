// Byte-level BPE training (Sennrich, Haddow, Birch 2016): repeatedly, the most frequent adjacent
// pair in the words of a text becomes a token. The merges and their order equal the merges of
// Hugging Face's BpeTrainer with min_frequency 2 and max_token_length 128 (doc/tokenizer.md). They
// depend only on the counts of the words.
#pragma once
#include "llmc/text/pieces.h"
#include "llmc/text/tokenizer.h"
#include "llmc/text/word_counts.h"

#include <stdint.h>

enum { MIN_TRAINED_VOCAB = 257, MAX_TRAINED_VOCAB = 1 << 20 };

// A vocabulary without merges but one: "\r" and "\n". Where it may cut a text, every vocabulary
// with this pattern may: for the text that another one is to be trained on.
Tokenizer *tokenizer_for_cuts(Pattern pattern, Error *err);

// vocab tokens, if the words of this pattern have as many pairs that occur twice; else fewer.
// Tokens 0 to 255 are the bytes in the order of their characters (alphabet.h), then come the merged
// ones; the last is <|endoftext|>. Frees the words on the way. on_progress: after some of the
// merges, with the number of tokens so far.
Tokenizer *bpe_train(WordCounts *words, Pattern pattern, int64_t vocab,
                     void (*on_progress)(void *user, int64_t tokens), void *user, Error *err);
