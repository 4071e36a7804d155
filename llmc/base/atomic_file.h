// Files that are either complete or absent. A file is written under a temporary name in its own
// directory, checksummed on the way, fsynced and renamed. It knows nothing of the contents.
// directory_commit does the same for a directory.
#pragma once
#include "llmc/base/error.h"

#include <stddef.h>
#include <stdint.h>

// A file being written. Errors are sticky: a failed write is remembered and reported by commit.
typedef struct AtomicFile AtomicFile;
// opens path + ".tmp-PID", after atomic_file_clean
AtomicFile *atomic_file_create(const char *path, Error *err);
bool atomic_file_write(AtomicFile *f, const void *data, size_t bytes, Error *err);
// Flush, fsync, rename to path, fsync the directory. bytes and checksum (XXH3, 64 bits) of the
// content may be NULL.
// frees f in any case
bool atomic_file_commit(AtomicFile *f, int64_t *bytes, uint64_t *checksum, Error *err);
void atomic_file_abandon(AtomicFile *f); // removes it; frees f
// Removes the temporary files of processes that were killed while they wrote it: those that no
// process holds locked.
void atomic_file_clean(const char *path);

bool file_write_atomic(const char *path, const void *data, size_t bytes, Error *err);
