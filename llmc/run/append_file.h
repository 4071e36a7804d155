// A file that grows by whole records: main.log, the events for TensorBoard. Each record is one write(2); one that does
// not fit (disk full) is cut off again. So whatever ends the run, the file holds whole records, and after a kill at
// most one unfinished one at its end. Owns the descriptor; knows nothing of what a record is.
#pragma once
#include "llmc/base/error.h"
#include <stddef.h>
#include <sys/types.h>

typedef struct {
    char *path;
    int fd;    // -1: not open
    off_t end; // behind the last whole record
} AppendFile;

// Opens the file for this process alone, for as long as it is open, and makes it if there is none (new_only: it must
// not be there). Where another process has it open for writing: an error after a second, in which that one may end.
bool append_file_open(AppendFile *f, const char *path, bool new_only, Error *err);
bool append_file_cut(AppendFile *f, off_t bytes, Error *err); // keeps the first bytes of it; 0: a new file
// false: nothing of it is in the file.
bool append_file_write(AppendFile *f, const void *record, size_t bytes, Error *err);
// Takes a directory for this process, by a lock on its file .lock, which names the process that has it. Another process
// has it: false after a second, and who it is in the message. *fd: open, and the directory held, until
// directory_release, or the process ends in whatever way.
bool directory_hold(const char *directory, int *fd, Error *err);
// A directory in which nothing but the lock was made is removed, with those made around it: directory_unmake.
void directory_release(const char *directory, int fd, size_t existing);
void append_file_close(AppendFile *f); // also after a failed open
