// The two kernels of our own that matmuls need beside those of other families. Host side; they launch on the compute
// stream.
#pragma once
#include "llmc/cuda/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

// out (N,OC) += bias (OC): where cuBLASLt has no such epilogue.
void cuda_add_bias(Tensor out, Tensor bias);

// Whether two pieces of device memory hold the same bytes (an even number of them, 2-byte aligned). Allocates and
// waits: for choices at the first use of a shape. Also false when there is no memory left to find out.
bool cuda_same_bits(const void *a, const void *b, size_t bytes);

#ifdef __cplusplus
}
#endif
