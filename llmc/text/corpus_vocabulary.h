// A corpus -> a vocabulary of its own: the words of what is for training are counted by the pipeline, and merged.
// Nothing of the part for validation is counted. Writes no file.
#pragma once
#include "llmc/text/corpus_pipeline.h"

typedef struct {
    InputOptions inputs; // standard input in its spool
    const char *field;
    double val_fraction; // 0: all is for training
    bool skip_bad;
    int threads;        // that count
    int64_t vocab;      // tokens in all
    const char *option; // with which the number of tokens was given, "--vocab-size ": for a message
    int64_t total_bytes;
    void (*on_progress)(void *user, const CorpusProgress *progress);
    void *user;
} VocabularyOptions;

typedef struct {
    Tokenizer *tokenizer; // the caller's
    CorpusCounts counts;  // in bytes as tokens; to be cleared
    bool cut_all;         // every document was cut: so it must be when the corpus is encoded
} CorpusVocabulary;

// Returns EXIT_OK, EXIT_BAD_INPUT (also for a text that gives fewer tokens) or EXIT_RUN_FAILED.
int corpus_vocabulary(const VocabularyOptions *options, CorpusVocabulary *vocabulary, Error *err);
