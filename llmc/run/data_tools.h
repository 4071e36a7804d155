// What the programs of data/ that read a corpus share (data/prepare, data/train_tokenizer): their options, the progress
// they show, and what they say was skipped.
#pragma once
#include "llmc/base/error.h"
#include "llmc/text/corpus.h"

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
