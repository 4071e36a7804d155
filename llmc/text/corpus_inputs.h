// The files of a corpus, in a fixed order: the arguments as they are given, directories recursively by name. Walks
// anew each time and keeps no list, so that millions of files need no memory. Never opens a file.
// In directories hidden names and symbolic links are left out, and what data/prepare wrote into the output directory.
#pragma once
#include "llmc/base/error.h"
#include "llmc/text/byte_source.h"
#include <limits.h>
#include <stddef.h>
#include <stdint.h>

typedef enum { FORMAT_BY_NAME, FORMAT_TEXT, FORMAT_LINES } CorpusFormat; // .jsonl and .ndjson are lines

typedef struct {
    char path[PATH_MAX]; // to open it and for messages
    int64_t index;       // in the walk, from 0
    int64_t size;        // bytes of the file
    bool is_argument;    // stands on the command line: must be readable
    bool is_unreadable;  // in a directory; why is not kept
    CorpusFormat format; // text or lines
    Packing packing;
    int then_fd; // what follows the file in the same sequence of bytes (standard input); -1: nothing
} InputFile;

// Standard input is read into a file first, up to a limit; what is left of it is read from the descriptor.
typedef struct {
    const char *path; // of the spool; NULL: "-" is not among the arguments
    int then_fd;      // -1: the spool has all of it
    Packing packing;
} InputStdin;

typedef struct {
    char *const *arguments; // files, directories, "-" for standard input
    int count;
    CorpusFormat format; // of all files
    const char *output;  // the output directory
    InputStdin standard_input;
} InputOptions;

typedef struct InputWalk InputWalk;
InputWalk *inputs_open(const InputOptions *options, Error *err); // the options must outlive the walk
// The next file: 1; at the end 0; an argument that cannot be read: -1.
int inputs_next(InputWalk *w, InputFile *file, Error *err);
int inputs_argument(const InputWalk *w); // the argument that the last file came from
void inputs_close(InputWalk *w);         // NULL is fine

// What one argument stands for. A fingerprint covers names, sizes and times of change.
typedef struct {
    int64_t files, bytes;
    uint64_t fingerprint;
} InputSummary;
// summaries: one for each argument. Standard input that has not been read yet counts as nothing.
bool inputs_summarize(const InputOptions *options, InputSummary *summaries, Error *err);

// Is this the name of a file that data/prepare makes?
bool is_corpus_shard(const char *name); // train_000000.bin, val_000000.bin
bool is_corpus_file(const char *name);  // or manifest.json, tokenizer.json
