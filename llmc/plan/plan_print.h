// --plan: the plan of a run as text, for people, or as one JSON object, for programs. doc/memory.md
// describes both.
#pragma once
#include "llmc/plan/plan.h"

#include <stdio.h>

// Prints the plan, as text or one JSON object. False and a message when --gpu or -r cannot be read.
bool plan_print(FILE *out, const PlanRequest *request, bool json, Error *err);
