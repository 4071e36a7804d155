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
// Of a tensor that check_adafactor has seen: it is a whole parameter.
void check_is_whole(const char *op, const UpdateTensor *t);
// The number of the step, from 1, and the StepControl.
void check_update_step(const char *op, UpdateParams params, Tensor control);

// fp8_quantize, but for the dtype of in; a backend may demand more of its shape.
void check_fp8_quantize(const char *op, Tensor q, Tensor transposed, Tensor in, Tensor slot);
// fp8_matmul, but for what a backend demands of addresses, of the dtypes of out and bias, and of the device.
void check_fp8_matmul(const char *op, Tensor out, Tensor a, Tensor a_slot, Tensor b, Tensor b_slot, Tensor bias,
                      bool accumulate);

#ifdef __cplusplus
}
#endif
