// The last stage of sums over rows in a fixed order, which bias_backward of ops.h and the backward pass of LayerNorm
// share. Host side; launches on the compute stream.
#pragma once
#include "llmc/cuda/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

// first (n1), second (n2) = or += (accumulate) the sums of the columns of partials (parts, n1 + n2) fp32, rows added in
// a fixed order. The gradients are fp32, bf16 or fp16; second may be absent. partials: device memory.
void cuda_sum_partials(Tensor first, Tensor second, const float *partials, int64_t parts, bool accumulate);

#ifdef __cplusplus
}
#endif
