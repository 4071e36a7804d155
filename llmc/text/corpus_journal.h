// How far data/prepare came: a small JSON file beside the unfinished shards, written after what it counts is on the
// disk. A later run of the same job reads it and goes on there. Owns the form of the file, and the comparison of jobs;
// the file is hostile as any other: one that does not hold together is refused, and the run starts over.
#pragma once
#include "llmc/text/corpus_block.h"
#include "llmc/text/corpus_writer.h"
#include <cjson/cJSON.h>

typedef enum {
    PHASE_ENCODE,  // up to position
    PHASE_REPLACE, // all is encoded; shards of an earlier run are being removed
    PHASE_MOVE,    // shards are being moved to their final place
    CORPUS_PHASES
} CorpusPhase;

typedef struct {
    CorpusPhase phase;
    bool cut_all;
    CorpusPosition position;
    CorpusCounts counts;
    CorpusShards shards[CORPUS_SIDES];
} CorpusJournal;

// What was asked for, as far as the shards depend on it, with the state of the inputs. The caller frees it.
typedef struct {
    const InputOptions *inputs;
    const InputSummary *summaries; // one for each argument
    const Tokenizer *tokenizer;    // NULL: to be trained, of `vocab` tokens
    int64_t vocab;
    const char *field;
    double val_fraction;
    int64_t shard_tokens;
} CorpusRequest;
cJSON *corpus_request_json(const CorpusRequest *request);
cJSON *corpus_tokenizer_json(const Tokenizer *t);

// Shards and counts in j are only read.
bool corpus_journal_save(const char *path, const cJSON *request, const CorpusJournal *j, Error *err);
// False: there is nothing to go on with, and why: another request, changed inputs, a file that does not hold together.
bool corpus_journal_load(const char *path, const cJSON *request, CorpusJournal *j, Error *why);
void corpus_journal_clear(CorpusJournal *j); // frees what load put into it
