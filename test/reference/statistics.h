// Specification of tensor_statistics (llmc/ops.h) over fp64 values; beside reference.h, which has
// the other ops.
#pragma once
#include "llmc/number.h"

// Adds what the n values hold to *stats, by the definitions of llmc/number.h.
void ref_tensor_statistics(TensorStats *stats, const double *x, int64_t n, DType format);
