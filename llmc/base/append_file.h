// Files that grow by whole records: main.log, the events for TensorBoard. Each record is one
// write(2); a record that does not fit (disk full) is cut off again. So however the run ends, the
// file has complete records, and after a kill at most one incomplete record at its end. Never
// seeked, never buffered. A call that fails loses the record at hand and no other: what it left
// undone (a file that is not open, a part of a record) is done before the next one.
#pragma once
#include "llmc/base/error.h"

#include <stddef.h>
#include <sys/types.h>

typedef struct {
    char *path;   // NULL: there is no file
    int fd;       // -1: not open; with a path the next record opens it again
    off_t end;    // end of the last complete record
    bool is_torn; // there may be a part of a record after it
} AppendFile;

// Opens the file for this process alone, as long as it is open, and creates it if necessary
// (new_only: it must not exist). If another process has it open for writing, waits up to a second
// for that process to end, then fails.
bool append_file_open(AppendFile *f, const char *path, bool new_only, Error *err);
// keeps its first `bytes` bytes; 0: a new file
bool append_file_cut(AppendFile *f, off_t bytes, Error *err);
// Gives it these records instead of its own, in one step; false: it has the old ones, or it has the
// new ones and is not open.
bool append_file_replace(AppendFile *f, const void *records, size_t bytes, Error *err);
// its records survive a loss of power from here on
bool append_file_sync(AppendFile *f, Error *err);
// false: no part of the record is in the file.
bool append_file_write(AppendFile *f, const void *record, size_t bytes, Error *err);
void append_file_close(AppendFile *f); // also after a failed open
