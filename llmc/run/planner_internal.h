// Private to the planner*.c files: what its two ways of printing share.
#pragma once
#include "llmc/run/planner.h"

// Tokens of the whole run with so many windows a step, 0: not known; and in how many steps.
double planner_tokens(const PlanRequest *request, int64_t step_windows);
double planner_steps(double tokens, int64_t tokens_per_step);
// Whether -b or -r is chosen for each device.
bool planner_is_auto(const PlanRequest *request);
// Whether -r can be read.
bool planner_check_recompute(const PlanRequest *request, Error *err);

// -b auto -r auto, as planner_fit has it, without a message.
bool planner_choose(Gpt2Options *model, double room, int64_t most);

// gpus: those of --gpu; count 0: all of the table, and this machine.
bool planner_print_text(FILE *out, const PlanRequest *request, const GpuChoice *gpus, int count, Error *err);
bool planner_print_json(FILE *out, const PlanRequest *request, const GpuChoice *gpus, int count, Error *err);
