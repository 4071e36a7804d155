// Files that people give by mistake, by their first bytes and names: a Git LFS pointer in place of
// the weights, an error page in place of a download, another program's data. One table for all
// readers, so that a message says what the file is and what to do. It judges only what a reader has
// already failed to recognise, or does not read at all.
#pragma once
#include "llmc/base/error.h"

#include <stddef.h>

enum { FOREIGN_FILE_HEAD = 512 }; // bytes that tell all kinds apart: tar's mark is at 257

typedef struct {
    const char *kind;   // "a Git LFS pointer"
    const char *advice; // the next step: "fetch the file itself with 'git lfs pull'"
    bool is_text;       // may be meant as text, too, by a corpus of web pages
} ForeignFile;

// The kind of a file that begins with these bytes, FOREIGN_FILE_HEAD of them or all that it has.
// Only the name of the file at path counts, and only where the bytes do not tell. NULL: not a known
// kind, or plain text.
const ForeignFile *foreign_file_find(const char *path, const void *head, size_t bytes);

// For readers of binary files, which want no text: true if the kind is not known, else false with
// the message "PATH: not EXPECTED but KIND: ADVICE". expected: "a token shard".
bool foreign_file_check(const char *expected, const char *path, const void *head, size_t bytes,
                        Error *err);
// The same for readers of text: any text that is not of a known kind passes.
bool foreign_file_check_text(const char *expected, const char *path, const void *head, size_t bytes,
                             Error *err);
// One of the two, on an open file; true if it cannot be read, which the reader will report.
bool foreign_file_check_open(const char *expected, const char *path, int fd, bool reads_text,
                             Error *err);
