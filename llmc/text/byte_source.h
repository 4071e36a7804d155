// The bytes of an input in any packing: plain, gzip (any number of members), zstd (any number of
// frames). Owns the decompressor and a buffer of 256 KiB. Does not interpret the bytes, and never
// returns bytes that come after damage.
#pragma once
#include "llmc/base/error.h"

#include <stddef.h>
#include <stdint.h>

typedef enum { PACKED_NOT, PACKED_GZIP, PACKED_ZSTD } Packing;

Packing packing_of_name(const char *path);                      // by .gz, .zst
Packing packing_of_bytes(const unsigned char *bytes, size_t n); // by the first four

typedef struct ByteSource ByteSource;
// Reads descriptor fd and then, if it is not -1, then_fd, as one sequence; fd is closed with the
// source, then_fd stays.
ByteSource *byte_source_open(int fd, int then_fd, Packing packing);
// The next n bytes into out, fewer only at the end or before damage; 0 at the end. -1: the next
// byte cannot be read.
int64_t byte_source_read(ByteSource *s, void *out, int64_t n, Error *err);
// a read failed because of the file's contents, not the machine
bool byte_source_is_damaged(const ByteSource *s);
int64_t byte_source_consumed(const ByteSource *s); // bytes of the file that were read so far
void byte_source_close(ByteSource *s);             // NULL is fine
