// A corpus: its files, and their conversion to a vocabulary of its own and to shards, manifest and
// tokenizer under their final names. This is everything data/prepare and data/train_tokenizer do
// between their options and their summary.
//   inputs -> documents in blocks -> corpus_pipeline: tokens -> corpus_shards;
//   content judges the files; corpus_output has the directory, corpus_manifest its description
// corpus.c combines them. Nothing here prints.
#pragma once
#include "llmc/text/corpus_options.h"

// All of data/prepare. Returns EXIT_OK, EXIT_BAD_INPUT or EXIT_RUN_FAILED. The result is complete
// with EXIT_OK.
typedef struct {
    CorpusCounts counts; // the caller clears them, in any case
    int64_t num_shards[CORPUS_SIDES];
    bool cut_all; // every document was cut
} CorpusResult;
int corpus_run(const CorpusOptions *options, CorpusResult *result, Error *err);

// A vocabulary of the corpus: the pipeline counts the words of the training part, which are then
// merged; the validation part is not counted. The only file it writes is one without a name in
// `directory`, for standard input. The same exit codes; EXIT_BAD_INPUT also for too little text.
// With EXIT_OK counts, in bytes as tokens, and the tokenizer are the caller's.
int corpus_vocabulary(const CorpusOptions *options, const char *directory, CorpusCounts *counts,
                      Tokenizer **tokenizer, Error *err);
