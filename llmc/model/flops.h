// FLOPs of a training step, with the formulas stated, because numbers from different formulas cannot be compared.
#pragma once
#include "llmc/model/recompute.h"

// Per token of context T, forward + backward:
//   llm.c's, what mfu prints:    6 N + 6 L C T
//   exact (causal half):         72 L C^2 + 6 Vp C + 6 L C (T + 1)
double flops_per_token_llmc(const ModelConfig *config, int64_t T);
double flops_per_token_exact(const ModelConfig *config, int64_t T);
// What the machine computes, for hfu: exact + attention / 6 (the backward pass computes QK^T again) + recomputation
// (recompute_flops_per_token).
double flops_per_token_hardware(const ModelConfig *config, int64_t T, const Recompute *recompute);
