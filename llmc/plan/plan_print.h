// --plan: the plan of a run as text, for people, or as one JSON object, for programs. doc/memory.md describes both.
#pragma once
#include "llmc/plan/plan.h"

#include <stdio.h>

// The shape of a model as fields of an object: JSON_ADD(object, JSON_SHAPE(config)).
#define JSON_SHAPE(c)                                                                                                  \
    JSON_NUMBER("L", (c)->L), JSON_NUMBER("C", (c)->C), JSON_NUMBER("NH", (c)->NH), JSON_NUMBER("V", (c)->V),          \
        JSON_NUMBER("Vp", (c)->Vp), JSON_NUMBER("max_T", (c)->max_T), JSON_NUMBER("d_ff", model_size(c, DIM_FF))

// Prints the plan, as text or one JSON object. False and a message when --gpu or -r cannot be read.
bool plan_print(FILE *out, const PlanRequest *request, bool json, Error *err);
