// Files that are either whole or not there. A file is written under a temporary name in its own directory, checksummed
// on the way, fsynced and renamed; a directory of files is built under ".tmp-NAME" and renamed as a whole.
// Owns the plain file and directory work of the project: reading whole files, checksums, making and removing
// directories. Knows nothing of what the files mean.
//
// And files that grow by whole records: main.log, the events for TensorBoard. Each record is one write(2); one that
// does not fit (disk full) is cut off again. So whatever ends the run, the file holds whole records, and after a kill
// at most one unfinished one at its end.
#pragma once
#include "llmc/base/error.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

// A file being written. Errors are sticky: a failed write is remembered and reported by commit.
typedef struct AtomicFile AtomicFile;
AtomicFile *atomic_file_create(const char *path, Error *err); // opens path + ".tmp-PID"
bool atomic_file_write(AtomicFile *f, const void *data, size_t bytes, Error *err);
// Flush, fsync, rename to path, fsync the directory. bytes and checksum (XXH3, 64 bits) of the content may be NULL.
bool atomic_file_commit(AtomicFile *f, int64_t *bytes, uint64_t *checksum, Error *err); // frees f in any case
void atomic_file_abandon(AtomicFile *f);                                                // removes it; frees f

bool file_write_atomic(const char *path, const void *data, size_t bytes, Error *err);
// The whole file, NUL-terminated, malloced; files above max_bytes and what is no plain file are refused.
char *file_read_all(const char *path, size_t max_bytes, size_t *bytes, Error *err);
bool file_checksum(const char *path, int64_t *bytes, uint64_t *checksum, Error *err); // XXH3 64
bool file_exists(const char *path);
// n bytes at offset of an open file into out; a file that ends before is an error. path is for the message.
bool file_read_at(int fd, const char *path, int64_t offset, void *out, size_t n, Error *err);
// All bytes into an open file, at its offset. path is for the message.
bool file_write_all(int fd, const char *path, const void *data, size_t bytes, Error *err);
int64_t file_size(int fd); // -1: not a plain file

bool directory_make(const char *path, Error *err);           // with parents; existing is fine
bool directory_check_writable(const char *path, Error *err); // proves that it can be made and written; leaves nothing
size_t directory_existing(const char *path);                 // bytes of the longest beginning of path that exists
void directory_unmake(const char *path, size_t existing);    // removes what was made beyond, while it is empty
// The names in a directory but for . and .., malloced; false, and nothing to free, where it cannot be read to its end.
bool directory_list(const char *path, char ***names, int *count, Error *err);
void directory_list_free(char **names, int count);
// The files that a glob(7) pattern names, in the order of their bytes, whatever the locale; a pattern under which a
// file stands is that file's name. None is no error, a directory that is there and cannot be read is. For
// directory_list_free.
bool files_match(const char *pattern, char ***names, int *count, Error *err);
bool directory_remove(const char *path, Error *err); // a directory of plain files
// fsync from, rename, fsync the parent. A directory that stands at `to` is replaced: the two are exchanged in one step
// where the file system can do that, and the old one then is at `from`, for the caller to remove.
bool directory_commit(const char *from, const char *to, Error *err);

// Opens /dev/null in place of what of stdin, stdout and stderr is closed: the next file that is opened would get its
// number, and lines for the terminal with it. The first thing that a program does.
void standard_files_open(void);

char *path_join(const char *directory, const char *name); // "directory/name", malloced
// The directory part, malloced: "a/b" -> "a", "b" -> ".", "/b" -> "/", "a/b/" -> "a".
char *path_parent(const char *path);
char *path_unused(const char *path); // path.1, or with the first number under which nothing stands; malloced

// ----------------------------------------------------------------------------------------------------- files that grow

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
