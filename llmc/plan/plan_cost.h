// The FLOP, bytes and exchange of a step, from the shapes of its model alone, and the minimum time
// for them on a GPU by its datasheet. Limits, not measurements.
#pragma once
#include "llmc/model/model.h"
#include "llmc/plan/gpu_table.h"

// FLOP of the matmuls and attention of a step of `tokens` tokens: the exact count of recompute.h
// (causal attention), the recomputation of -r, and Muon's products: five times 4 m^2 n + 2 m^3 for
// a matrix of m x n, m <= n.
double plan_step_flops(const ModelOptions *model, int64_t tokens);
// The fp8 part of it: the linear layers of the blocks, with --fp8.
double plan_step_fp8_flops(const ModelOptions *model, int64_t tokens);

// Bytes that everything else in a step moves to and from memory, when each kernel reads and writes
// its tensors once:
//   a token      ((12 L + 8) C + 2 Vp) elements of the compute dtype: embedding 2 C forward and C
//                backward, layernorm 2 C forward and 4 C backward, twice a block, the final one 2 C
//                and 3 C; the logits once read and once written; GELU and residual additions are
//                part of their matmuls. recompute_elements_per_token counts recomputation besides
//                matmuls, op_table.def the quantisation of --fp8
//   a micro-step gradients that are added to the compute dtype, by op_table.def
//   a step       the norm of the gradient and the update, for the tensors of optimizer_state(), by
//                op_table.def
double plan_step_bytes(const ModelOptions *model, int64_t tokens);

typedef struct {
    double flops, fp8_flops, bytes;
    double link_bytes; // under offload: to the device and back, one way
    double seconds;    // FLOP / peak + bytes / bandwidth + bytes / link: what is not a matmul waits
                       // for one, and the other way round, and the update waits for the norm of all
                       // gradients. 0: no peak is known
} StepLimit;
StepLimit plan_step_limit(const GpuSpec *gpu, const ModelOptions *model, int64_t tokens);

// Bytes that each of model->processes GPUs sends in a step, and receives at the same time, see
// train/data_parallel.h: of n bytes of gradients its own range stays, and the others go to their
// owners, n (processes - 1) / processes; its sum then goes to all others, which is as much again,
// or with -z 1 its new weights do. Where whole tensors are divided: those of the GPU with the most.
// The losses, a few KB, are not counted.
typedef struct {
    double gradients, weights;
    double last_gradients, first_weights; // the part of them outside blocks
} PlannedExchange;
PlannedExchange plan_step_exchange(const ModelOptions *model);
