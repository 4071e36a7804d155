// What the op families of the CPU backend share beyond ops.h: the few kernels one file offers to another, and how
// element-wise work is cut into tasks. Nothing outside llmc/cpu includes it.
#pragma once
#include "llmc/base/checked.h"
#include "llmc/tensor.h"

// Elements of one task of an element-wise op: 16 to 64 KiB, long enough to hide what a task costs, and a multiple of
// the vector length, so that only the last task of a tensor has a tail.
enum { TASK_ELEMENTS = 8192 };

static inline int64_t task_end(int64_t begin, int64_t n) {
    return n - begin < TASK_ELEMENTS ? n : begin + TASK_ELEMENTS;
}

// d = d * gelu'(pre), element by element, in place: the second half of matmul_gelu_backward_input. (gelu.c)
void cpu_gelu_backward(Tensor d, Tensor pre);

// Stops the program, naming op and tensor, unless grad can hold the gradient of a weight of dtype compute: numel
// elements, fp32 or compute.
static inline void cpu_check_weight_gradient(const char *op, Tensor grad, DType compute, int64_t numel) {
    tensor_check(op, grad, grad.dtype == DTYPE_FP32 ? DTYPE_FP32 : compute, numel);
}
