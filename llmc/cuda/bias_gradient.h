// Sums over rows in a fixed order: the bias gradient of a matmul, and the last stage that it shares with the backward
// pass of LayerNorm. Host side; each function launches on the compute stream.
#pragma once
#include "llmc/cuda/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

// dbias (OC) = or += (accumulate) the sum over the rows of dout (N,OC). dbias: fp32 or the dtype of dout. Takes
// cuda_bias_gradient_workspace bytes from the start of the workspace.
void cuda_bias_gradient(Tensor dbias, Tensor dout, bool accumulate);
int64_t cuda_bias_gradient_workspace(OpsShape shape); // for N up to B * T, OC up to 4 C

// first (n1), second (n2) = or += (accumulate) the sums of the columns of partials (parts, n1 + n2) fp32, rows added in
// a fixed order. The gradients are fp32, bf16 or fp16; second may be absent. partials: device memory.
void cuda_sum_partials(Tensor first, Tensor second, const float *partials, int64_t parts, bool accumulate);

#ifdef __cplusplus
}
#endif
