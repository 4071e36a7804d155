// Choices by measurement: which of several ways to do the same work is fastest on this GPU. What
// was chosen is kept in a small file (llmc/base/choices_file.h), which makes the second start
// quick, and makes runs repeat: a choice by timing may differ from run to run, and with it the
// bits. tuning.c states what every choice guarantees.
#pragma once
#include "llmc/tensor.h"
#include <stdbool.h>
#include <stddef.h>

enum { CHOICE_MAX_WAYS = 8 };

// Returns the way in [0, count) to do the work: the fastest with right results, or, if not `timed`,
// the first of those. -1: there is none. Waits for the GPU; overwrites the workspace. run(context,
// way) launches on the compute stream; false: it cannot be done here. All are timed in turn, round
// after round, so that a change of the clock affects all of them. A way that takes 1.5 times the
// minimum in its first run, or its second if the first was slow, is dropped. The smallest median
// wins, but a way replaces a lower one only if it is 0.5 % faster, 2 % below 0.2 ms: noise is no
// reason to choose. is_right(context, way) checks the winner alone; if it is wrong, the contest is
// repeated without it.
int cuda_choose(int count, bool timed, bool (*run)(void *context, int way),
                bool (*is_right)(void *context, int way), void *context);

// Zeroed device memory of this size, aligned as p is; for measurements that must not touch the real
// data. NULL where less than 256 MiB would stay free. Free *block with cudaFree. Neither is for a
// graph that is captured.
void *cuda_memory_like(const void *p, size_t bytes, void **block);

// "NVIDIA H200, cc 90, 132 SMs, driver 13000": how every key of the file begins. Append the library
// version, the shape and so on:
//   char key[CHOICES_KEY_MAX];
//   snprintf(key, sizeof key, "%s, cuDNN 91900, attention B %d ...", tuning_machine(), B, ...);
const char *tuning_machine(void);
