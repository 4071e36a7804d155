// --numerics-every: what stands in the tensors of a step, by class. A class is a role of a linear layer (what goes in,
// what comes out, its gradient), or the weight, gradient or update of a kind of parameter, over all blocks. Underflow
// and overflow are those of the compute dtype, also where a tensor is fp32: what it would lose if it were kept in it.
// With a loss scale (fp16) gradients are counted as they are, multiplied by it. What -r computes again is counted once.
#pragma once
#include "llmc/model/gpt2.h"

typedef struct {
    char name[48]; // "qkv.in", "fc.gradient", "qkvw.weight", "wte.gradient", "wte.update"
    TensorStats stats;
    double ratio; // of an update: its norm over that of the weight; 0 for the others
} NumericsRow;

enum { NUMERICS_MAX_ROWS = 64 };

// Counts weights and gradients as they stand now: after the last micro-step of a step, before its update. Queued.
void gpt2_numerics_gradients(Gpt2 *model);
// Counts what the update of parameter `index` changed: begin before it is queued, end after. Queued. Seen in the master
// where there is one on the device, else in the weight: with --offload, or Kahan's compensation, what the rounded
// weight went through. Keeps a copy in gpt2_optimizer_scratch.
void gpt2_numerics_update_begin(Gpt2 *model, int index);
void gpt2_numerics_update_end(Gpt2 *model, int index);
// All that was counted since gpt2_observe(model, true); returns the number of rows: classes that nothing was counted of
// have none. Synchronises.
int gpt2_numerics_read(Gpt2 *model, NumericsRow rows[NUMERICS_MAX_ROWS]);
