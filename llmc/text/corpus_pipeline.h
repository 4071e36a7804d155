// The way of a corpus from files to shards: one thread reads and unpacks ahead, several encode, the caller's writes.
// Blocks are written in the order in which they were read, so the shards do not depend on the number of threads.
// Owns the threads and the blocks between them; memory is bounded by them, whatever the size of the inputs.
#pragma once
#include "llmc/text/corpus_encoder.h"
#include "llmc/text/corpus_writer.h"

typedef struct {
    InputOptions inputs;
    const Tokenizer *tokenizer, *cuts; // as in CorpusEncoderOptions
    WordCounts *words;                 // likewise; then there is no writer
    const char *field;                 // of the objects in lines
    double val_fraction;
    bool cut_all;
    bool skip_bad; // count bad input and go on
    int threads;   // that encode
    // Called after each block that was written or counted, with all that is so far; false ends the run with its error.
    bool (*on_written)(void *user, const CorpusPosition *position, const CorpusCounts *counts, Error *err);
    void *user;
} CorpusJob;

// From *position on; position and counts are kept up to date. Returns EXIT_OK, EXIT_BAD_INPUT (input that cannot be
// read or is bad) or EXIT_RUN_FAILED.
int corpus_convert(const CorpusJob *job, CorpusWriter *writer, CorpusPosition *position, CorpusCounts *counts,
                   Error *err);
