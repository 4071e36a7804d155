// What the programs of data/ share: the summary of a corpus (data/prepare, data/train_tokenizer), a look into a shard
// (data/shard, data/whereis), and which windows a step of a run reads (data/whereis).
#pragma once
#include "llmc/base/error.h"
#include "llmc/data/shards.h"
#include "llmc/text/corpus.h"
#include "llmc/text/tokenizer.h"

#include <stdint.h>

// --------------------------------------------------------------------------- options, progress and summary of a corpus

typedef struct {
    const char *program; // for messages: "prepare"
    CorpusOptions corpus;
} CorpusToolOptions;

enum { CORPUS_TOOL_FORMAT = 512, CORPUS_TOOL_FIELD, CORPUS_TOOL_THREADS, CORPUS_TOOL_SKIP_BAD };
// For getopt_long.
#define CORPUS_TOOL_OPTIONS                                                                                            \
    {"format", required_argument, NULL, CORPUS_TOOL_FORMAT}, {"field", required_argument, NULL, CORPUS_TOOL_FIELD},    \
        {"threads", required_argument, NULL, CORPUS_TOOL_THREADS}, {                                                   \
        "skip-bad", no_argument, NULL, CORPUS_TOOL_SKIP_BAD                                                            \
    }

CorpusToolOptions corpus_tool_defaults(const char *program);
bool corpus_tool_take(CorpusToolOptions *o, int option, const char *value, Error *err);
bool corpus_tool_take_inputs(CorpusToolOptions *o, char **inputs, int count, Error *err); // last; checks the whole
// What getopt_long could not use: ':' or '?'.
bool corpus_tool_refuse(const CorpusToolOptions *o, int c, const char *argument, Error *err);
// A number, with K, M or G behind it.
bool corpus_tool_parse_int(const char *name, const char *text, int64_t min, int64_t max, int64_t *out, Error *err);

typedef struct {
    const char *program;
    double start, last_shown;
    CorpusStage stage;
    bool is_terminal, is_drawn;
} CorpusDisplay;
CorpusDisplay corpus_display(const char *program);
void corpus_display_progress(void *display, const CorpusProgress *p);
void corpus_display_notice(void *display, const char *text);
void corpus_display_clear(const CorpusDisplay *d);

void corpus_tool_print_skipped(const CorpusCounts *c);

// ----------------------------------------------------------------------------------------------------------- one shard

// n tokens from token `first` on; first + n is at most shard->num_tokens.
bool shard_read(const Shard *shard, int64_t first, int64_t n, uint32_t *out, Error *err);

typedef struct {
    int version;        // of the format
    int64_t bytes;      // of the file
    uint64_t xxh3;      // XXH3 of the whole file, 64 bits
    int64_t documents;  // tokens that are end-of-text
    uint32_t largest;   // token
    int64_t first_bad;  // the first token that is not below vocab, -1: none
    uint32_t bad_value; // which one it is
} ShardScan;

// Reads the whole file once, 1 MiB at a time. vocab 0: tokens are not checked. eot -1: documents stays 0.
bool shard_scan(const Shard *shard, int64_t vocab, int64_t eot, ShardScan *scan, Error *err);

// The tokenizer of an opened set: `given` (a path, "" if none), else what stands beside the files of pattern or is
// implied by their vocabulary (tokenizer.h); shards that state none are taken for GPT-2's, as the trainer does.
// NULL and an error where there is none.
Tokenizer *shard_tokenizer(const char *given, const char *pattern, const ShardSet *set, Error *err);

// ----------------------------------------------------------------------------------------------- the windows of a step

// Which windows did step N of a run read? Answered from what the run left behind: the "run" events of its main.log, one
// for every time it was started or resumed, or, without a log, its newest checkpoint. The order itself is that of
// llmc/data/dataloader.h, which the loader walks: position p of the stream holds window shuffle_window(p, windows,
// seed). Reads only; opens no shard.

// The steps from one start of the trainer to the next.
typedef struct {
    char *train_data;     // -i of then, relative to where the trainer was started
    char *tokenizer;      // --tokenizer of then, "" if none
    int64_t start_step;   // steps done before; the first step of the segment is start_step + 1
    int64_t position;     // windows read before that step
    int64_t T, B;         // context, windows in a full micro-batch
    int64_t step_windows; // windows in a step
    int64_t num_windows;  // in the corpus of then, -1 if the run does not say; and
    int64_t num_tokens;   // tokens in it
    uint64_t seed;
    bool repeat_first_step; // -a
} RunSegment;

typedef struct {
    RunSegment *segments;
    int count, room;
    int64_t last_step; // the last one that was logged or saved
} RunOrder;

// directory: what -o named. False: there is neither a log nor a checkpoint, or what they say makes no sense.
bool run_order_read(RunOrder *order, const char *directory, Error *err);
void run_order_free(RunOrder *order); // also after a failed read

// The segment of this step, and the position of its first window. NULL: a step the run cannot have done.
const RunSegment *run_order_find(const RunOrder *order, int64_t step, int64_t *position, Error *err);

// The window at a position, as the loader reads it (dataloader.h) from a corpus of so many windows.
int64_t run_order_window(const RunSegment *segment, int64_t position, int64_t num_windows);
