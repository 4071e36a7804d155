// What the matmuls of the compute types (matmul.c) and those of fp8 (fp8_matmul.c) share: products get cuBLASLt's part
// of the workspace. Host side, private to the two.
#pragma once
#include "llmc/cuda/gemm_plan.h"

// The plan of a product with this epilogue, NULL when the library has none. Completes *g.
GemmPlan *cuda_matmul_plan(Gemm *g, GemmEpilogue epilogue, const void *bias, void *aux);

// Runs the product without an epilogue, which the library must have.
void cuda_matmul_plain(Gemm g);
