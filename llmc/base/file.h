// Plain files: opening, whole and partial reads, complete writes, checksums. Knows nothing of the
// contents.
#pragma once
#include "llmc/base/error.h"

#include <stddef.h>
#include <stdint.h>

// The whole file, NUL-terminated, malloced. Files above max_bytes, and anything that is not a plain
// file, are refused.
char *file_read_all(const char *path, size_t max_bytes, size_t *bytes, Error *err);
bool file_checksum(const char *path, int64_t *bytes, uint64_t *checksum, Error *err); // XXH3 64
// Also of a file that cannot be looked at now (EIO, ESTALE, ...): it is not missing, and what opens
// it says why.
bool file_exists(const char *path);
// Opens a plain file for reading, and gets its size; -1 with the reason, or with the kind of what
// is there instead.
int file_open(const char *path, int64_t *size, Error *err);
// Reads n bytes at offset of an open file into out; a file that ends before that is an error. path
// is for the message.
bool file_read_at(int fd, const char *path, int64_t offset, void *out, size_t n, Error *err);
// Writes all bytes to an open file, at its offset. path is for the message.
bool file_write_all(int fd, const char *path, const void *data, size_t bytes, Error *err);
int64_t file_size(int fd); // -1: not a plain file
