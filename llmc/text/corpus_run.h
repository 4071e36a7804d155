// A corpus from its files to its shards, manifest and tokenizer under their final names: what data/prepare does between
// its options and its summary. Brings together the pipeline, the journal (a run that was killed is continued), the
// second pass over few, short documents, and the output directory. Prints nothing.
#pragma once
#include "llmc/text/corpus_block.h"

typedef struct {
    const char *output; // the directory
    char *const *arguments;
    int num_arguments;
    CorpusFormat format;
    const Tokenizer *tokenizer; // NULL: one of `vocab` tokens is trained on what goes to training
    int64_t vocab;
    const char *field;
    double val_fraction, journal_seconds;
    int64_t shard_tokens;
    int threads;
    bool skip_bad, force;
    void (*on_progress)(void *user, const CorpusProgress *progress); // after each block, and while merging
    void (*on_notice)(void *user, const char *text);                 // goes on with an unfinished run, starts over
    void *user;
} CorpusRunOptions;

typedef struct {
    CorpusCounts counts;
    int64_t num_shards[CORPUS_SIDES];
    bool cut_all;
} CorpusResult;

// Returns EXIT_OK, EXIT_BAD_INPUT or EXIT_RUN_FAILED. The result is complete with EXIT_OK; free it in any case.
int corpus_run(const CorpusRunOptions *options, CorpusResult *result, Error *err);
void corpus_result_free(CorpusResult *result);
