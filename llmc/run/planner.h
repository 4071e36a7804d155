// --plan: what a run would take, before any memory is: bytes by class, and for each GPU of a table whether it fits and
// the least time it can take. Needs no GPU and no data. Times are limits computed from datasheets, not measurements,
// and every line says so. What is computed and what is printed are apart: planner_gpu has the figures.
#pragma once
#include "llmc/model/gpt2.h"
#include "llmc/run/gpu_table.h"
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

// Bytes of a GPU that the plan must leave free: 0.5 GB for the CUDA context and the libraries' own buffers, about; in a
// build without CUDA 1 GB more, because gpt2_plan knows this build's backend, and the CUDA backend cuts the logits into
// larger chunks (up to 1 GiB) and has larger workspaces.
double planner_reserve(void);

// What the matmuls and attention of a step of `tokens` tokens must compute: the exact count of flops.h (causal
// attention), and at -r 3 the blocks once more.
double planner_step_flops(const Gpt2Options *model, int64_t tokens);

// Bytes that everything else in a step moves to and from memory, when each kernel reads and writes its tensors once:
//   a token   ((16 L + 8) C + 2 Vp) elements of the compute dtype: embedding 2 C forward and C backward, layernorm with
//             its residual addition 4 C forward and 4 C backward, twice a block, 2 C and 3 C the one without; the
//             logits once read and once written. GELU is part of its matmul; -r 1 adds 8 L C, -r 2 12 L C, -r 3 6 L C.
//   a step    4 bytes a parameter for the norm of the gradient, and AdamW's: 30 with master weights, 24 without, 28 in
//             fp32.
double planner_step_bytes(const Gpt2Options *model, int64_t tokens);

// The largest micro-batch, at most `most`, whose plan fits into so many bytes; 0: none does.
int64_t planner_largest_batch(const Gpt2Options *model, double bytes, int64_t most);

typedef struct {
    DType dtype;           // of the run; fp16 where the GPU has no bf16
    bool fits;             // with the micro-batch of the model
    int64_t largest_batch; // no more than a step has windows; 0: not even one sequence fits
    double step_seconds; // FLOP / peak + bytes / bandwidth: what is not a matmul waits for one, and the other way round
} GpuPlan;
GpuPlan planner_gpu(const GpuSpec *gpu, const Gpt2Options *model, int64_t step_windows);

// steps: of step_windows windows of T tokens each; 0: not known.
void planner_print(FILE *out, const Gpt2Options *model, int64_t step_windows, int64_t steps);

#ifdef __cplusplus
}
#endif
