// Files that are either complete or absent. A file is written under a temporary name in its own directory, checksummed
// on the way, fsynced and renamed; a directory of files is built under ".tmp-NAME" and renamed as a whole. This module
// does all plain file and directory work of the project: reading whole files, checksums, making and removing
// directories. It knows nothing of the contents.
//
// It also has files that grow by whole records: main.log, the events for TensorBoard. Each record is one write(2); a
// record that does not fit (disk full) is cut off again. So however the run ends, the file has complete records, and
// after a kill at most one incomplete record at its end.
#pragma once
#include "llmc/base/error.h"
#include "llmc/base/path_reason.h"

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
// Removes the temporary files of processes that were killed while they wrote it.
void atomic_file_clean(const char *path);

bool file_write_atomic(const char *path, const void *data, size_t bytes, Error *err);
// The whole file, NUL-terminated, malloced. Files above max_bytes, and anything that is not a plain file, are refused.
char *file_read_all(const char *path, size_t max_bytes, size_t *bytes, Error *err);
bool file_checksum(const char *path, int64_t *bytes, uint64_t *checksum, Error *err); // XXH3 64
bool file_exists(const char *path);
// Opens a plain file for reading, and gets its size; -1 with the reason, or with the kind of what is there instead.
int file_open(const char *path, int64_t *size, Error *err);
// Reads n bytes at offset of an open file into out; a file that ends before that is an error. path is for the message.
bool file_read_at(int fd, const char *path, int64_t offset, void *out, size_t n, Error *err);
// Writes all bytes to an open file, at its offset. path is for the message.
bool file_write_all(int fd, const char *path, const void *data, size_t bytes, Error *err);
int64_t file_size(int fd); // -1: not a plain file

bool directory_make(const char *path, Error *err);           // with parents, all of them durable; existing is fine
bool directory_sync(const char *path, Error *err);           // makes new, removed and renamed names in it durable
bool directory_check_writable(const char *path, Error *err); // tests that it can be made and written; leaves nothing
size_t directory_existing(const char *path);                 // length of the longest prefix of path that exists
void directory_unmake(const char *path, size_t existing);    // removes directories made beyond that, if empty
// The names in a directory except . and .., malloced. False, and nothing to free, if it cannot be read to its end: why
// is also in errno.
bool directory_list(const char *path, char ***names, int *count, Error *err);
void directory_list_free(char **names, int count);
// The files that match a glob(7) pattern, in byte order, whatever the locale. If a file has the pattern itself as its
// name, the result is that file. No match is not an error; an existing directory that cannot be read is. Free with
// directory_list_free.
bool files_match(const char *pattern, char ***names, int *count, Error *err);
bool directory_remove(const char *path, Error *err); // a directory of plain files
// fsync from, rename, fsync the parent. An existing directory at `to` is replaced: the two are exchanged, in one step
// if the file system supports that. The old one is then at `from`, for the caller to remove.
bool directory_commit(const char *from, const char *to, Error *err);

// Opens /dev/null in place of any of stdin, stdout and stderr that is closed. Otherwise the next file to be opened
// would get its number, and the lines meant for the terminal. Every program calls this first.
void standard_files_open(void);

char *path_join(const char *directory, const char *name); // "directory/name", malloced
// The directory part, malloced: "a/b" -> "a", "b" -> ".", "/b" -> "/", "a/b/" -> "a".
char *path_parent(const char *path);
char *path_unused(const char *path); // path.1, or path with the first unused number; malloced

// ----------------------------------------------------------------------------------------------------- files that grow

typedef struct {
    char *path;
    int fd;    // -1: not open
    off_t end; // end of the last complete record
} AppendFile;

// Opens the file for this process alone, as long as it is open, and creates it if necessary (new_only: it must not
// exist). If another process has it open for writing, waits up to a second for that process to end, then fails.
bool append_file_open(AppendFile *f, const char *path, bool new_only, Error *err);
bool append_file_cut(AppendFile *f, off_t bytes, Error *err); // keeps its first `bytes` bytes; 0: a new file
bool append_file_sync(AppendFile *f, Error *err);             // its records survive a loss of power from here on
// false: no part of the record is in the file.
bool append_file_write(AppendFile *f, const void *record, size_t bytes, Error *err);
// Claims a directory for this process, by a lock on its file .lock, which names the process that holds it. If another
// process holds it: false after a second, with that process in the message. *fd stays open, and the directory held,
// until directory_release or until the process ends in any way.
bool directory_hold(const char *directory, int *fd, Error *err);
// If nothing but the lock was made in the directory, it is removed, with the parents made for it (directory_unmake).
void directory_release(const char *directory, int fd, size_t existing);
void append_file_close(AppendFile *f); // also after a failed open
