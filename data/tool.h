// Shared by the programs of data/: reading options. For the programs that read a corpus
// (data/prepare, data/train_tokenizer) also their common options, progress display and report of
// skipped input.
#pragma once
#include "llmc/base/error.h"
#include "llmc/base/typed_path.h"
#include "llmc/text/corpus_options.h"

#include <stdint.h>

// ----------------------------------------------------------------------------------------- options

typedef struct {
    const char *name; // --name
    char letter;      // -n; 0: none
    // Where the value is stored: one of these.
    bool *flag;
    const char **text; // is_path: ~ at its beginning is the home directory
    // with K, M or G after it; max INT64_MAX: no limit, and none of these
    int64_t *number, min, max;
    bool is_path;
} ToolOption;

// Reads the options of a table that ends with {0} as getopt_long_only(3) does, up to -h if it is
// there; the other words are at the end of argv then, from optind on. Of two values the last
// counts, and stderr says so.
bool tool_read_options(const char *program, const ToolOption *table, int argc, char **argv,
                       Error *err);
QuotedPath tool_path(const char *program); // of a program of data/, as one word for a shell
// One number, read like an option's value; name is for the message.
bool tool_read_number(const char *name, const char *text, int64_t min, int64_t max, int64_t *out,
                      Error *err);

// ----------------------------------------------------------------------------------------- corpora

typedef struct {
    const char *program; // for messages: "prepare"
    bool help;
    CorpusOptions corpus;
    const char *format; // as it is given; NULL: not
    int64_t threads;
} CorpusTool;

// Rows of the table of options.
#define CORPUS_TOOL_OPTIONS(tool)                                                                  \
    {"format", .text = &(tool)->format}, {"field", .text = &(tool)->corpus.field},                 \
        {"split-at", .text = &(tool)->corpus.split_at},                                            \
        {"threads", .number = &(tool)->threads, .min = 1, .max = MAX_TOOL_THREADS},                \
        {"skip-bad", .flag = &(tool)->corpus.skip_bad}, {                                          \
        "help", 'h', .flag = &(tool)->help                                                         \
    }

// Their lines of --help.
#define CORPUS_TOOL_HELP                                                                           \
    "      --format FORMAT      txt: each input file is a document; jsonl: each line is one. "     \
    "Default: jsonl for "                                                                          \
    "files in\n"                                                                                   \
    "                           .jsonl and .ndjson and others that hold such lines, txt for the "  \
    "remaining ones\n"                                                                             \
    "      --field NAME         field of the JSON objects that has the text (default text)\n"      \
    "      --split-at TEXT      documents end at each TEXT, such as '<|endoftext|>', which is "    \
    "left out with its "                                                                           \
    "line's\n"                                                                                     \
    "                           end; for text and for the fields of JSON\n"                        \
    "      --threads N          threads that encode or count words (default: all cores, or the "   \
    "quota of them); the\n"                                                                        \
    "                           result does not depend on it\n"                                    \
    "      --skip-bad           count and skip bad lines, and compressed files from their damage " \
    "on\n"                                                                                         \
    "  -h, --help               show this help\n"

enum { MAX_TOOL_THREADS = 1024 };

// The result has the defaults of these options. `tool` and `tool_options` say how it is run, for
// advice: "data/prepare", "-o DIR".
CorpusTool corpus_tool(const char *program, const char *tool, const char *tool_options);
// After the options: checks those of both programs, and takes the inputs.
bool corpus_tool_take_inputs(CorpusTool *tool, char **inputs, int count, Error *err);

typedef struct {
    const char *program;
    double start, last_shown;
    CorpusStage stage;
    bool is_terminal, is_drawn;
} CorpusDisplay;
CorpusDisplay corpus_display(const char *program);
void corpus_display_progress(void *display, const CorpusProgress *p);
void corpus_display_clear(const CorpusDisplay *d);

void corpus_tool_print_skipped(const CorpusCounts *c);
