// Choices by measurement: which of several ways to do the same work is fastest on this GPU, and whether they do the
// same work at all (tuning.c); and a small file of what was chosen, which algorithm of cuBLASLt, which attention
// (tuning_cache.c). The file makes the second start quick, and it makes runs repeat: a choice by timing may differ from
// run to run, and with it the bits.
//
// The file is $PRETRAIN_CACHE ("off": none), else pretrain.cu/tuning in $XDG_CACHE_HOME or ~/.cache. It holds lines
// "key TAB value in hexadecimal TAB checksum"; lines that are damaged or too long are skipped, which is said once. It
// is read at the first call and replaced as a whole at every put, by renaming, so that processes may share it: the
// worst that can happen is that an entry is lost and measured again. Failure to read or write it is not an error.
#pragma once
#include "llmc/tensor.h"
#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

// -------------------------------------------------------------------------------------------------------- measurement
// Used at the first use of a shape only, never under capture: it waits for the GPU.

enum { TIMING_MAX_CHOICES = 48 };

// Runs work(context, i), which launches on the compute stream, for i in [0, count), round after round in turn, so that
// a clock that rises or a neighbour that comes meets all of them; and returns the i with the smallest median time. What
// is not at least 0.5 % faster, 2 % of less than 0.2 ms, does not take the place of a lower i: noise is no reason to
// choose. A work that returns false cannot be done here and is left out; -1 when none can.
// ms (count; may be NULL): the median times, negative for what cannot be done.
int cuda_fastest(int count, bool (*work)(void *context, int i), void *context, float *ms);

// For the log (device_choices): what was chosen, its ways, their times (NULL: none was measured) and the one taken.
// Names are plain ASCII without quotes.
void cuda_note_choice(const char *what, int count, const char *const *ways, const float *ms, int taken);
void cuda_forget_choices(void); // the device goes

// Zeroed device memory of this size, aligned as p is; for measurements that must not touch the real data. NULL when
// none is available, or under capture. Free *block with cudaFree.
void *cuda_memory_like(const void *p, size_t bytes, void **block);

// Fills t with NaN, as bytes 0xFF: what is not written after it shows in cuda_difference.
void cuda_poison(Tensor t);

// ||t - expected|| / ||expected|| over the finite elements; t is lost. Infinite when t and expected do not have equally
// many elements that are not finite: fp16 may overflow, the same elements by any way. Both are on the device. Uses the
// start of the workspace.
double cuda_difference(Tensor t, Tensor expected);

// "NVIDIA H200, cc 90, 132 SMs, driver 13000": how every key of the file begins. Append the library version, the shape
// and so on:
//   char key[TUNING_KEY_MAX];
//   snprintf(key, sizeof key, "%s, cuDNN 91900, attention B %d ...", tuning_machine(), B, ...);
const char *tuning_machine(void);

// ----------------------------------------------------------------------------------------------------------- the file
// Knows nothing about CUDA: callers put into the key whatever the choice depends on, tuning_machine first.

enum { TUNING_KEY_MAX = 512, TUNING_VALUE_MAX = 256 }; // bytes, the key with its final 0

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
