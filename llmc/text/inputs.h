// The files of a corpus, in a fixed order: the arguments in the given order, directories recursively by name. Walks
// again each time and keeps no list, so that millions of files need no memory. Never opens a file.
// Each file is read once. Symbolic links are followed, under the link's name; one that leads into a directory that is
// given anyway is left out, and so are, once it was given, a file's other names. In directories hidden names are left
// out, and what data/prepare wrote into the output directory.
#pragma once
#include "llmc/text/byte_source.h"
#include "llmc/text/corpus_counts.h"

#include <limits.h>

typedef enum {
    FORMAT_BY_CONTENT, // of an input: .jsonl and .ndjson are lines, and others that begins with an object of JSON
    FORMAT_TEXT,       // a file is a document
    FORMAT_LINES,      // a line is one, in JSON
    FORMAT_DIVIDED,    // text with a marker between two documents (CorpusOptions.split_at)
} CorpusFormat;

typedef struct {
    char *const *arguments; // files, directories, "-" for standard input
    int count;
    CorpusFormat format; // of all files
    const char *output;  // the output directory; NULL: there is none
    // Standard input, after inputs_spool_stdin has read it.
    bool has_stdin;
    int stdin_fd;       // of a file without a name
    bool stdin_goes_on; // more is to be read from the descriptor itself
    Packing stdin_packing;
} InputOptions;

typedef struct {
    char path[PATH_MAX]; // to open it and for messages
    int64_t size;        // bytes of the file
    bool is_argument;    // must be readable
    int unreadable;      // in a directory: why, an errno
    bool is_stdin;
    CorpusFormat format; // as it is asked for, or lines by its name
    Packing packing;
} InputFile;

typedef struct InputWalk InputWalk;
InputWalk *inputs_open(const InputOptions *options, Error *err); // the options must outlive the walk
// The next file: 1; at the end 0; an argument that cannot be read: -1.
int inputs_next(InputWalk *w, InputFile *file, Error *err);
void inputs_close(InputWalk *w);                                    // NULL is fine
int input_open(const InputOptions *options, const InputFile *file); // open(2)
// Is this errno about the file, which is then left out and counted unless it is an argument? Other reasons, such as a
// disk that fails or too many open files, end the run.
bool input_may_be_skipped(int reason);

// The files of one argument.
typedef struct {
    int64_t files, bytes;
} InputSummary;
// One for each argument, malloced. Standard input that has not been read yet counts as nothing. *left_out, *notes: what
// the walk passes over, and the links that it follows.
InputSummary *inputs_summarize(const InputOptions *options, int64_t *total_bytes, KindCounts *left_out,
                               KindCounts *notes, Error *err);

// Copies standard input, up to its end or to `limit` bytes, into a file without a name in `directory`: what is read
// twice (a text, whose length decides where it is cut; a corpus of few documents) must be somewhere. *bytes: of it.
bool inputs_spool_stdin(InputOptions *options, const char *directory, int64_t limit, int64_t *bytes, Error *err);

bool is_corpus_shard(const char *name); // train_000000.bin, val_000000.bin
