// The whole plan for one device: what fits there, what is chosen, what it takes and how long at least. See planner.h.
#include "llmc/run/planner_internal.h"

#include <string.h>

// A GPU without bf16 computes in fp16, one without fp8 in the dtype of the run.
static void move_to(DevicePlan *plan, const GpuChoice *gpu, AttentionChoice attention) {
    plan->gpu = *gpu;
    GpuSpec *spec = &plan->gpu.spec;
    if (*gpu->name) spec->name = plan->gpu.name;
    plan->sizes = planner_sizes(spec, attention);
    plan->room = spec->memory - planner_reserve(spec->memory);
    plan->model.sizes = &plan->sizes;
    plan->model.dtype = gpu_spec_dtype(spec, plan->model.dtype);
    if (spec->bandwidth > 0 && spec->peak_fp8 == 0) plan->model.fp8 = false;
}

void planner_alternatives(DevicePlan *plan, const PlanRequest *r) {
    const int64_t most = r->step_windows;
    Gpt2Options m = plan->model;
    for (int level = 0; level < 4; level++) {
        m.recompute = recompute_all(recompute_level_set(level));
        plan->most[level] = planner_largest_batch(&m, plan->room, most);
    }
    if (!planner_choose(&m, plan->room, most)) return;
    plan->auto_batch = m.B;
    plan->auto_recompute = m.recompute;
}

bool planner_device(DevicePlan *plan, const PlanRequest *r, const GpuChoice *gpu, Error *err) {
    memset(plan, 0, sizeof *plan);
    plan->model = r->model;
    plan->room = planner_room(true);
    if (!planner_check_recompute(r, err)) return false;
    if (gpu) move_to(plan, gpu, r->attention);
    plan->fits = planner_fit(&plan->model, r->any_batch, r->recompute, plan->room, r->step_windows, &plan->why_not);
    plan->windows = r->step_windows > 0 ? r->step_windows : plan->model.B;
    plan->memory = planner_memory(&plan->model);
    plan->batch = planner_largest_batch(&plan->model, plan->room, r->step_windows);
    if (gpu && plan->model.train)
        plan->step = planner_step(&plan->gpu.spec, &plan->model, plan->windows * plan->model.T);
    return true;
}
