// --plan json: the plans of devices as one JSON object. Its keys stay; doc/memory.md lists them.
// Bytes, FLOP and seconds are plain numbers; unknown values are null.
#pragma once
#include "llmc/base/json.h"
#include "llmc/plan/plan.h"

#include <stdio.h>

// Adds the shape of a model as fields of an object, and the block where it is not GPT-2's.
void plan_json_shape(cJSON *to, const ModelConfig *config);

// plans: of this machine and the whole table, or of the GPUs that the request names.
void plan_json(FILE *out, const DevicePlan *plans, int count, const PlanRequest *request);
