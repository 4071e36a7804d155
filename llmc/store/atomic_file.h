// Files that are either whole or not there. A file is written under a temporary name in its own directory, checksummed
// on the way, fsynced and renamed; a directory of files is built under ".tmp-NAME" and renamed as a whole.
#pragma once
#include "llmc/base/error.h"
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// A file being written. Errors are sticky: a failed write is remembered and reported by finish.
typedef struct AtomicFile AtomicFile;
AtomicFile *atomic_file_create(const char *path, Error *err); // opens path + ".tmp-PID"
bool atomic_file_write(AtomicFile *f, const void *data, size_t bytes, Error *err);
// Flush, fsync, rename to path, fsync the directory. bytes and checksum (XXH3, 64 bits) of the content may be NULL.
bool atomic_file_commit(AtomicFile *f, int64_t *bytes, uint64_t *checksum, Error *err); // frees f in any case
void atomic_file_abandon(AtomicFile *f);                                                // removes it; frees f

bool file_write_atomic(const char *path, const void *data, size_t bytes, Error *err);
// The whole file, NUL-terminated, malloced; files above max_bytes are refused.
char *file_read_all(const char *path, size_t max_bytes, size_t *bytes, Error *err);
bool file_checksum(const char *path, int64_t *bytes, uint64_t *checksum, Error *err); // XXH3 64
bool file_exists(const char *path);

bool directory_make(const char *path, Error *err);           // with parents; existing is fine
bool directory_check_writable(const char *path, Error *err); // makes it if needed and proves a file can be written
bool directory_remove(const char *path, Error *err);         // a directory of plain files
bool directory_commit(const char *from, const char *to, Error *err); // fsync from, rename, fsync the parent

#ifdef __cplusplus
}
#endif
