// The words of a text, and how often each occurs. A word is a piece of the tokenizer's pattern.
// Threads count into small private tables, which are emptied into one shared table, so the distinct
// words are in memory once, whatever the number of threads. Owns the words; does not handle pairs.
#pragma once
#include "llmc/text/tokenizer.h"

#include <stdint.h>

typedef struct WordCounts WordCounts;
WordCounts *word_counts_create(void);
void word_counts_free(WordCounts *w); // NULL is fine

// The counter of one thread. Several may count at a time.
typedef struct WordCounter WordCounter;
WordCounter *word_counter_create(WordCounts *w); // w must outlive it
// Counts the pieces of n < 2^31 bytes, of which the last ends with them. Words of one byte are left
// out. t: any with the pattern.
void word_counter_add(WordCounter *c, const Tokenizer *t, const char *text, int64_t n);
void word_counter_finish(WordCounter *c); // all counts are in the shared table
void word_counter_free(WordCounter *c);   // NULL is fine

// Returns the number of distinct words; *bytes: of them together.
int64_t word_counts_size(const WordCounts *w, int64_t *bytes);
// Calls visit with each word and its count, in no particular order, and frees the words on the way.
void word_counts_drain(WordCounts *w,
                       void (*visit)(void *user, const char *word, uint32_t length, int64_t count),
                       void *user);
