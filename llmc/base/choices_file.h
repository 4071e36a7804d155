// A small file of the choices made by measurement (algorithms of cuBLASLt, attention), so that the
// next start need not measure again. Knows nothing about CUDA: callers put into the key whatever
// the choice depends on.
//
// The file is $PRETRAIN_CACHE ("off": none), else pretrain.cu/tuning in $XDG_CACHE_HOME or
// ~/.cache. It holds lines "key TAB value in hexadecimal TAB checksum"; lines that are damaged or
// too long are skipped, and logged once. It is read at the first call and replaced as a whole at
// every put, by renaming, so that processes may share it: the worst that can happen is that an
// entry is lost and measured again. Failure to read or write it is not an error, and what cannot be
// read is not replaced.
#pragma once
#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { CHOICES_KEY_MAX = 512, CHOICES_VALUE_MAX = 256 }; // bytes, the key with its final 0

// Copies the value of key (printable ASCII) and returns true when there is one of exactly this
// size. A value is a hint from a file that anybody may have written: check it before use.
bool choices_file_get(const char *key, void *value, size_t size);
// Adds or replaces an entry, in memory and in the file.
void choices_file_put(const char *key, const void *value, size_t size);
// Returns the lines of the file that this process asked for and got, or put; malloced.
char *choices_file_used(void);
// Takes such lines before those of the file; damaged ones are skipped.
void choices_file_restore(const char *lines);
// Forgets everything; the next call reads the file again.
void choices_file_close(void);

#ifdef __cplusplus
}
#endif
