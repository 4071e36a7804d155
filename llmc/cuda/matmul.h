// What the matmuls of the compute types (matmul.c) and those of fp8 (fp8_matmul.c) share: products get cuBLASLt's part
// of the workspace. Host side, private to the two.
#pragma once
#include "llmc/cuda/gemm_plan.h"

// Runs the product, into out, and adds bias, which may be absent: in the epilogue, if `fuse` and the library can, else
// by a kernel after it.
void cuda_matmul_bias(Gemm g, Tensor out, Tensor bias, bool fuse);
