// The files of a corpus, in a fixed order: the arguments in the given order, directories
// recursively by name. Walks again each time and keeps no list of names. Never opens a file. Reads
// each file once: follows symbolic links, under the link's name, but skips the other names of a
// file or directory that it met before. In directories it skips hidden names and the files that
// data/prepare wrote.
#pragma once
#include "llmc/text/byte_source.h"
#include "llmc/text/corpus_counts.h"

#include <limits.h>

typedef enum {
    FORMAT_BY_CONTENT, // .jsonl, .ndjson, and files that begin with a JSON object are lines; others
                       // are text
    FORMAT_TEXT,       // a file is a document
    FORMAT_LINES,      // each line is a JSON object with the text of a document
    FORMAT_DIVIDED,    // text with a marker between two documents (CorpusOptions.split_at)
} CorpusFormat;

typedef struct {
    char *const *arguments; // files, directories, "-" for standard input
    int count;
    CorpusFormat format; // of all files
    const char *output;  // the output directory; NULL: there is none
    // Standard input, after inputs_spool_stdin has read it.
    bool has_stdin;
    int stdin_fd; // an unnamed file
    // the file has only the beginning; the rest follows on the descriptor itself
    bool stdin_goes_on;
    Packing stdin_packing;
} InputOptions;

typedef struct {
    char path[PATH_MAX]; // for open and for messages
    int64_t size;        // bytes of the file
    bool is_argument;    // must be readable
    int unreadable;      // errno of a file in a directory that cannot be read
    bool is_stdin;
    CorpusFormat format; // as requested, or lines by its name
    Packing packing;
} InputFile;

typedef struct InputWalk InputWalk;
InputWalk *inputs_open(const InputOptions *options); // the options must outlive the walk
// The next file: 1; at the end 0; an argument that cannot be read: -1.
int inputs_next(InputWalk *w, InputFile *file, Error *err);
void inputs_close(InputWalk *w);                                    // NULL is fine
int input_open(const InputOptions *options, const InputFile *file); // open(2)
// Tells whether this errno concerns the file only, which is then skipped and counted unless it is
// an argument. Other errors, such as a failing disk or too many open files, end the run.
bool input_may_be_skipped(int reason);

// The files of one argument.
typedef struct {
    int64_t files, bytes;
} InputSummary;
// Walks over all files. Returns one summary for each argument, malloced; standard input that is not
// read yet counts as nothing. *left_out: files that the walk skips. *notes: links that it follows.
InputSummary *inputs_summarize(const InputOptions *options, int64_t *total_bytes,
                               KindCounts *left_out, KindCounts *notes, Error *err);

// Copies standard input, up to its end or to `limit` bytes, into an unnamed file in `directory`,
// for input that is read twice: a text, whose length decides where it is cut, and a corpus of few
// documents. *bytes: the bytes copied.
bool inputs_spool_stdin(InputOptions *options, const char *directory, int64_t limit, int64_t *bytes,
                        Error *err);

bool is_corpus_shard(const char *name); // train_000000.bin, val_000000.bin
