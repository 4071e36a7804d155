// The plan of a model's memory, private to model.c: where everything is in the arena.
#pragma once
#include "llmc/model/model_object.h"

MemoryPlan *model_plan_all(Layout *layout, const ModelOptions *o);
void model_layout_free(Layout *layout);
// The bytes of each slot, all tensors together; with -z 1 of the process with the most.
void model_state_bytes(const ModelOptions *o, const Partition *p, int64_t bytes[NUM_STATE_SLOTS]);
