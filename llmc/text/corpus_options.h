// The request of data/prepare and data/train_tokenizer, and the progress that they show.
#pragma once
#include "llmc/text/inputs.h"
#include "llmc/text/pieces.h"
#include "llmc/text/tokenizer.h"

typedef enum {
    STAGE_ENCODE,
    STAGE_COUNT,
    STAGE_MERGE
} CorpusStage; // the last two: training a vocabulary
typedef struct {
    CorpusStage stage;
    int64_t bytes_read, total_bytes; // of the input files as they are; total 0: not known
    int64_t tokens, vocab;           // merging: of the vocabulary so far and at the end
} CorpusProgress;

typedef struct {
    InputOptions inputs;
    const char *field;    // of the objects in lines, at most 255 bytes
    const char *split_at; // documents end at this text, at most 255 bytes; NULL: not
    double val_fraction;  // 0: all is for training, 1: for validation
    bool skip_bad;        // count bad input and continue
    int threads;          // that encode or count
    // NULL: a vocabulary of `vocab` tokens is trained on the training part
    const Tokenizer *tokenizer;
    int64_t vocab;
    Pattern pattern;
    // For a message: the option that gave the number of tokens, "--tokenizer train:", and what
    // comes after the number.
    const char *vocab_option, *vocab_option_end;
    const char *tool, *tool_options; // for advice: "data/prepare", "-o DIR"
    int64_t shard_tokens;
    bool force; // replace the shards of an earlier run
    // after each block, and while merging
    void (*on_progress)(void *user, const CorpusProgress *progress);
    void *user;
} CorpusOptions;
