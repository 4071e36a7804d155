// A small file of choices that were found by measurement: which algorithm of cuBLASLt, which attention. It makes the
// second start quick, and it makes runs repeat: a choice by timing may differ from run to run, and with it the bits.
//
// The file is $PRETRAIN_CACHE ("off": none), else pretrain.cu/tuning in $XDG_CACHE_HOME or ~/.cache. It holds lines
// "key TAB value in hexadecimal TAB checksum"; lines that are damaged or too long are skipped. It is read at the first
// call and replaced as a whole at every put, by renaming, so that processes may share it: the worst that can happen is
// that an entry is lost and measured again. That it cannot be read or written is no error.
//
// Knows nothing about CUDA: callers put into the key whatever the choice depends on, tuning_machine first.
#pragma once
#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TUNING_KEY_MAX = 512, TUNING_VALUE_MAX = 256 }; // bytes, the key with its final 0

// "NVIDIA H200, cc 90, 132 SMs, driver 13000": how every key begins. For library versions, shapes and the rest, go on:
//   char key[TUNING_KEY_MAX];
//   snprintf(key, sizeof key, "%s, cuDNN 91900, attention B %d ...", tuning_machine(), B, ...);
const char *tuning_machine(void);

// Copies the value of key (printable ASCII) and returns true when there is one of exactly this size. A value is a hint
// from a file that anybody may have written: check it before use.
bool tuning_cache_get(const char *key, void *value, size_t size);
// Adds or replaces an entry, in memory and in the file.
void tuning_cache_put(const char *key, const void *value, size_t size);
// What this process asked for and got, or put: the lines of the file, without their checksums; malloced.
char *tuning_cache_used(void);
// Takes such lines before those of the file; damaged ones are skipped.
void tuning_cache_restore(const char *lines);
// Forgets everything; the next call reads the file again.
void tuning_cache_close(void);

#ifdef __cplusplus
}
#endif
