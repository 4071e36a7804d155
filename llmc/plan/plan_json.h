// --plan json: the plans of devices as one JSON object. Its keys stay; doc/memory.md lists them. Bytes, FLOP and
// seconds are plain numbers; what is not known is null.
#pragma once
#include "llmc/base/json.h"
#include "llmc/plan/plan.h"

#include <stdio.h>

// The shape of a model as fields of an object: JSON_ADD(object, JSON_SHAPE(config)).
#define JSON_SHAPE(c)                                                                                                  \
    JSON_NUMBER("L", (c)->L), JSON_NUMBER("C", (c)->C), JSON_NUMBER("NH", (c)->NH), JSON_NUMBER("V", (c)->V),          \
        JSON_NUMBER("Vp", (c)->Vp), JSON_NUMBER("max_T", (c)->max_T), JSON_NUMBER("d_ff", model_size(c, DIM_FF))

// plans: of this machine and the whole table, or of the GPUs that the request names.
void plan_json(FILE *out, const DevicePlan *plans, int count, const PlanRequest *request);
