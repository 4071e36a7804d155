// Text that is put together in memory, as open_memstream does it, whose streams forget a write that found no memory:
// what comes out then is cut, and neither ferror nor fclose says so. Here both do.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

// *text (malloced, '\0' behind *bytes bytes) is up to date after fflush and after memory_stream_close, and is to be
// freed in any case. NULL: no memory.
FILE *memory_stream_open(char **text, size_t *bytes);
// Closes the stream; false: there was no memory for some of the text. NULL is false.
bool memory_stream_close(FILE *stream);

#ifdef __cplusplus
}
#endif
