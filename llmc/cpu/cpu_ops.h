// What the op families of the CPU backend share beyond ops.h: the few kernels one file offers to another, and how
// element-wise work is cut into tasks. Nothing outside llmc/cpu includes it.
#pragma once
#include "llmc/base/checked.h"
#include "llmc/ops_check.h"

// Elements of one task of an element-wise op: 16 to 64 KiB, long enough to hide what a task costs, and a multiple of
// the vector length, so that only the last task of a tensor has a tail.
enum { TASK_ELEMENTS = 8192 };

static inline int64_t task_end(int64_t begin, int64_t n) {
    return n - begin < TASK_ELEMENTS ? n : begin + TASK_ELEMENTS;
}
