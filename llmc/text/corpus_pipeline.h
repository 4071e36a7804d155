// The pipeline from files to shards, or to counts of words: one thread reads and unpacks ahead,
// several encode, the caller's thread writes. Blocks are written in the order in which they were
// read, so the result does not depend on the number of threads.
#pragma once
#include "llmc/text/corpus_options.h"
#include "llmc/text/corpus_shards.h"
#include "llmc/text/word_counts.h"

typedef struct {
    const CorpusOptions *options;
    const Tokenizer *tokenizer; // encodes
    const Tokenizer *cuts;      // says where a document may be cut: the same one, except while a
                                // vocabulary is trained
    // NULL: encodes; else counts the words for training here, and each byte as a token
    WordCounts *words;
    CorpusWriter *writer; // NULL with words
    bool cut_all;
    CorpusProgress *progress; // updated and shown after each block that was written or counted
} CorpusJob;

// Adds to the counts. Returns EXIT_OK, EXIT_BAD_INPUT (input that cannot be read or is bad) or
// EXIT_RUN_FAILED.
int corpus_convert(const CorpusJob *job, CorpusCounts *counts, Error *err);
