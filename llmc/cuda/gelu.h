// GELU as kernels of their own, for matmuls that do not have it in their epilogue. gelu_forward is in ops.h.
#pragma once
#include "llmc/cuda/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

// d = d * gelu'(pre), element by element, in place: the second half of matmul_gelu_backward_input.
void cuda_gelu_backward_inplace(Tensor d, Tensor pre);

#ifdef __cplusplus
}
#endif
