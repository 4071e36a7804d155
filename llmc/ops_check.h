// What every backend demands of the arguments of an op, in one place. A wrong shape or dtype is a bug of the caller:
// the op and the tensor are named, and the program stops (tensor_check). Which floating dtypes there are, each backend
// says itself.
#pragma once
#include "llmc/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

// grad can hold the gradient of a weight of dtype compute: numel elements, fp32 or compute.
void check_weight_gradient(const char *op, Tensor grad, DType compute, int64_t numel);

// Of what is updated: gradient, master or lost, and where a slice begins.
void check_update_tensor(const char *op, const UpdateTensor *t);
// m, or m and v, kept alike: fp32, bf16, or u8 with their scales.
void check_moments(const char *op, const UpdateTensor *t, bool has_v);
// What Adafactor keeps. A slice of a matrix comes with the whole row and col, which say what it is a slice of.
void check_adafactor(const char *op, const UpdateTensor *t);

#ifdef __cplusplus
}
#endif
