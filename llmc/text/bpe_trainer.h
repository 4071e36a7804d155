// Byte-level BPE training (Sennrich, Haddow, Birch 2016): repeatedly, the most frequent adjacent pair in the words of a
// text becomes a token. The merges and their order equal the merges of Hugging Face's BpeTrainer with min_frequency 2
// and max_token_length 128 (doc/tokenizer.md). They depend only on the counts of the words.
//
// The words and how often each occurs are counted by word_counts.c. A word is a piece of GPT-2's pattern
// (tokenizer_internal.h). Threads count into small private tables, which are emptied into one shared table, so the
// distinct words are in memory once, whatever the number of threads. Owns the words; does not handle pairs.
#pragma once
#include "llmc/text/tokenizer.h"

#include <stdint.h>

// --------------------------------------------------------------------------------------------------------------- words

typedef struct WordCounts WordCounts;
WordCounts *word_counts_create(Error *err);
void word_counts_free(WordCounts *w); // NULL is fine

// The counter of one thread. Several may count at a time.
typedef struct WordCounter WordCounter;
WordCounter *word_counter_create(WordCounts *w, Error *err); // w must outlive it
// Counts the pieces of n < 2^31 bytes, of which the last ends with them. Words of one byte are left out. t: any.
bool word_counter_add(WordCounter *c, const Tokenizer *t, const char *text, int64_t n, Error *err);
bool word_counter_finish(WordCounter *c, Error *err); // all counts are in the shared table
void word_counter_free(WordCounter *c);               // NULL is fine

int64_t word_counts_words(const WordCounts *w);
int64_t word_counts_bytes(const WordCounts *w); // of all distinct words together
// Calls visit with each word and its count, in no particular order, and frees the words on the way.
void word_counts_drain(WordCounts *w, void (*visit)(void *user, const char *word, uint32_t length, int64_t count),
                       void *user);

// ------------------------------------------------------------------------------------------------------------ training

enum { MIN_TRAINED_VOCAB = 257, MAX_TRAINED_VOCAB = 1 << 20 };

// A vocabulary without merges but one: "\r" and "\n". Where it may cut a text, every vocabulary may: for the text that
// another one is to be trained on.
Tokenizer *tokenizer_for_cuts(Error *err);

// vocab tokens, if the words have as many pairs that occur twice; else fewer. Tokens 0 to 255 are the bytes in the
// order of their characters (tokenizer_internal.h), then come the merged ones; the last is <|endoftext|>. Frees the
// words on the way. on_progress: after some of the merges, with the number of tokens so far.
Tokenizer *bpe_train(WordCounts *words, int64_t vocab, void (*on_progress)(void *user, int64_t tokens), void *user,
                     Error *err);
