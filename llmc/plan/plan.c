// See plan.h.
#include "llmc/plan/plan.h"

#include "llmc/base/arithmetic.h"
#include "llmc/plan/plan_fit.h"

#include <math.h>
#include <string.h>

// Returns the seconds of the exchange that a computation of `seconds` cannot hide. Gradients leave
// during the backward pass of the last micro-step, those outside blocks after it; weights arrive
// during the forward pass of the first, those outside blocks before it. A forward pass is a third
// of the FLOPs.
static double exposed_part(const DevicePlan *p, const PlannedExchange *e, bool overlap,
                           double seconds) {
    const double rate = p->exchange_rate,
                 micro_steps = (double)p->share_tokens / (double)(p->model.B * p->model.T);
    const double micro_step = seconds / ceil(micro_steps);
    if (!overlap) return p->exchange_seconds;
    return (e->last_gradients + e->first_weights) / rate +
           fmax(0, (e->gradients - e->last_gradients) / rate - micro_step * 2 / 3) +
           fmax(0, (e->weights - e->first_weights) / rate - micro_step / 3);
}

// The max windows of a group, and so of a micro-batch. 0: not known.
static int64_t group_windows(const PlanRequest *r) {
    return ceil_div(r->step_windows, max_i64(r->model.groups, 1));
}

void plan_alternatives(DevicePlan *plan, const PlanRequest *r) {
    const int64_t most = group_windows(r);
    ModelOptions m = plan->model;
    for (int level = 0; level < 4; level++) {
        m.recompute = recompute_all(recompute_level_set(level));
        plan->most[level] = plan_largest_batch(&m, plan->room, most);
    }
    if (!plan_choose(&m, plan->room, most)) return;
    plan->auto_batch = m.B;
    plan->auto_recompute = m.recompute;
}

// Sets what depends on a GPU that may not be this machine's. One without bf16 computes in fp16, one
// without fp8 in the dtype of the run.
static void take_gpu(DevicePlan *plan, const PlanRequest *r, const GpuChoice *gpu) {
    GpuSpec *spec = &plan->gpu.spec;
    plan->gpu = *gpu;
    if (*gpu->name) spec->name = plan->gpu.name;
    plan->sizes = plan_sizes(spec, r->attention);

    // NCCL takes 400 MB for each other GPU that NVLink connects (32 channels of 12 MB), at most 3
    // GB; without NVLink little.
    if (spec->nvlink > 0) plan->nccl = fmin(0.4e9 * (plan->gpus - 1), 3e9);
    plan->room = spec->memory - plan_reserve(spec->memory) - plan->nccl;
    plan->model.sizes = &plan->sizes;
    plan->model.dtype = gpu_spec_dtype(spec, plan->model.dtype);
    if (spec->bandwidth > 0 && spec->peak_fp8 == 0) plan->model.fp8 = false;
}

// Adds what the GPUs exchange in a step, and the part of it that computation does not hide.
static void add_exchange(DevicePlan *plan, bool overlap) {
    const PlannedExchange e = plan_step_exchange(&plan->model);
    plan->exchange_bytes = e.gradients + e.weights;
    plan->exchange_rate = gpu_exchange_rate(&plan->gpu.spec);
    if (plan->exchange_rate <= 0) return;

    Estimate *p = &plan->predicted;
    plan->exchange_seconds = plan->exchange_bytes / plan->exchange_rate;
    plan->exposed_seconds = exposed_part(plan, &e, overlap, plan->step.seconds);
    plan->efficiency = plan->step.seconds / (plan->step.seconds + plan->exposed_seconds);
    if (plan->prediction.is_known) {
        p->likely += exposed_part(plan, &e, overlap, p->likely);
        p->worst += exposed_part(plan, &e, overlap, p->worst);
        p->best += exposed_part(plan, &e, overlap, p->best);
    }
}

void plan_device(DevicePlan *plan, const PlanRequest *r, const GpuChoice *gpu) {
    memset(plan, 0, sizeof *plan);
    plan->model = r->model;
    plan->gpus = (int)max_i64(r->model.processes, 1);

    // The processes of one machine share its memory; GPUs have their own.
    plan->room = plan_room(true);
    if (strcmp(device_facts()->backend, "cpu") == 0) plan->room /= plan->gpus;
    if (gpu) take_gpu(plan, r, gpu);

    const int64_t most = group_windows(r);
    plan->fits =
        plan_fit(&plan->model, r->model.B == 0, r->recompute, plan->room, most, &plan->why_not);
    if (plan->fits && r->divides && r->model.B == 0)
        plan->fits = plan_fit_divisor(&plan->model, r->recompute, plan->room, &plan->why_not);

    plan->windows = positive_or(r->step_windows, plan->model.B * max_i64(r->model.groups, 1));
    plan->share_tokens = ceil_div(plan->windows, plan->gpus) * plan->model.T;
    plan->memory = plan_memory(&plan->model);
    plan->batch = plan_largest_batch(&plan->model, plan->room, most);

    if (gpu && plan->model.train) {
        plan->step = plan_step_limit(&plan->gpu.spec, &plan->model, plan->share_tokens);
        const PredictOptions assumed = {r->attention, r->gelu_fusion};
        plan_predict(&plan->prediction, &plan->gpu.spec, &plan->model, plan->share_tokens, &assumed,
                     false);
        plan->predicted = plan->prediction.step;
    }
    if (plan->gpus > 1 && plan->step.seconds > 0) add_exchange(plan, r->comm_overlap);

    const bool is_known = plan->batch > 0 && (plan->gpus == 1 || plan->exchange_rate > 0);
    if (!is_known) plan->predicted = (Estimate){0};

    plan->step_tokens = (double)(plan->windows * plan->model.T);
    plan->tokens = fmax(0, (double)r->max_steps) * plan->step_tokens;
    if (r->tokens > 0) plan->tokens = r->tokens;
    plan->steps = ceil(plan->tokens / plan->step_tokens);
    if (is_known) plan->step_seconds = plan->step.seconds + plan->exposed_seconds;
    plan->run_seconds = plan->step_seconds * plan->steps;
}
