// --plan sizes and d_ff: which sizes of a model suit a GPU. NVIDIA, "Matrix Multiplication
// Background User's Guide": a matmul is computed in tiles, one on each multiprocessor at a time. A
// tile that reaches beyond the result costs as much as a full one, and so does a last wave that is
// nearly empty. Anthony et al., "The Case for Co-Designing Model Architectures with Hardware",
// 2024, has the consequences for the sizes of transformers.
#pragma once
#include "llmc/plan/plan.h"

#include <stdio.h>

// Prints for each GPU of the request how the matmuls of a step fill it and which changes nearby
// would gain most; or with d_ff sizes of feed-forward layers near 4 C. False and a message when it
// cannot be.
bool advise_print(FILE *out, const PlanRequest *request, bool d_ff, Error *err);
