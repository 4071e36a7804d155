// Choices by measurement: which of several ways to do the same work is fastest on this GPU. What was chosen is kept in
// a small file (llmc/base/choices_file.h), which makes the second start quick, and makes runs repeat: a choice by
// timing may differ from run to run, and with it the bits.
// tuning.c states what every choice guarantees.
#pragma once
#include "llmc/tensor.h"
#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TIMING_MAX_CHOICES = 8 };

// Runs work(context, i), which launches on the compute stream, for i in [0, count), drops what takes 1.5 times the
// minimum, not before a second run if the first was slow, and runs the others round after round in turn, so that a
// clock that rises or a neighbour that comes meets all of them. Returns the i with the smallest median time. What is
// not at least 0.5 % faster, 2 % of less than 0.2 ms, does not take the place of a lower i: noise is no reason to
// choose. A work that returns false cannot be done here and is left out; -1 when none can. Overwrites the workspace.
// Waits for the GPU.
int cuda_fastest(int count, bool (*work)(void *context, int i), void *context);

// Zeroed device memory of this size, aligned as p is; for measurements that must not touch the real data. NULL where
// less than 256 MiB would stay free, or under capture. Free *block with cudaFree.
void *cuda_memory_like(const void *p, size_t bytes, void **block);

// "NVIDIA H200, cc 90, 132 SMs, driver 13000": how every key of the file begins. Append the library version, the shape
// and so on:
//   char key[CHOICES_KEY_MAX];
//   snprintf(key, sizeof key, "%s, cuDNN 91900, attention B %d ...", tuning_machine(), B, ...);
const char *tuning_machine(void);

#ifdef __cplusplus
}
#endif
