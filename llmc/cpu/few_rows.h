// A matrix product whose left side has a few rows: memory-bound, where gemm.h is bound by arithmetic.
#pragma once
#include "llmc/tensor.h"

// Up to how many rows it is faster than the library. A token of 124M in bf16 on 2 threads, ms with oneDNN -> with this:
// 1 row 10.4 -> 4.1, 2 8.1 -> 4.3, 8 10.0 -> 6.0, 16 12.5 -> 10.3.
enum { FEW_ROWS = 16 };

// out (M,OC) = in (M,IC) @ weight (OC,IC)^T + bias (OC). bias may be absent. fp32 sums, rounded once; a row of out has
// the same bits whatever M is. One dtype, fp32 or bf16.
void few_rows_matmul(Tensor out, Tensor in, Tensor weight, Tensor bias);
