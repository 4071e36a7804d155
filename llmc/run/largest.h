// --plan --hours: the options that are left to the dial, and the command that trains what
// plan_largest chose.
#pragma once
#include "llmc/plan/plan.h"
#include "llmc/run/options.h"

// Sets the options that were not given to auto; without -e, to Qwen3's blocks with Muon, what
// learned most on the ladder of doc/recipes.md. False and a message if -e is no descriptor.
bool largest_take(Options *options, Error *err);
// Prints the choice and its command to stdout.
bool largest_print(Options *options, const PlanRequest *request, Error *err);
