// A dry run of a training step: the real step on a model without memory, whose ops are shown and
// not run. So the list of a step's ops is stated once, in gpt2.c and optimizer.c.
#pragma once
#include "llmc/model/model.h"

// Calls `see` for each op of a step of `micro_steps` whole micro-batches, in order; calls: how
// often the step makes this call, as all micro-steps after the first are alike. In fp16 or bf16
// where this machine has the other one only. False: the address space is too small, or the
// optimizer's state is in host memory.
typedef void DryRunOp(void *context, const OpCost *cost, double calls);
bool dry_run_step(const ModelOptions *model, double micro_steps, DryRunOp *see, void *context);
