// See plan.h.
#include "llmc/plan/plan.h"

#include "llmc/base/arithmetic.h"
#include "llmc/plan/plan_fit.h"

#include <math.h>
#include <string.h>

// A GPU without bf16 computes in fp16, one without fp8 in the dtype of the run.
static void move_to(DevicePlan *plan, const GpuChoice *gpu, AttentionChoice attention) {
    plan->gpu = *gpu;
    GpuSpec *spec = &plan->gpu.spec;
    if (*gpu->name) spec->name = plan->gpu.name;
    plan->sizes = plan_sizes(spec, attention);
    plan->room = spec->memory - plan_reserve(spec->memory);
    plan->model.sizes = &plan->sizes;
    plan->model.dtype = gpu_spec_dtype(spec, plan->model.dtype);
    if (spec->bandwidth > 0 && spec->peak_fp8 == 0) plan->model.fp8 = false;
}

// What the computation, of so many seconds, cannot hide of the exchange. Gradients leave during the backward pass of
// the last micro-step, those outside blocks after it; weights arrive during the forward pass of the first, those
// outside blocks before it. A forward pass is a third of the FLOPs.
static double exposed_part(const DevicePlan *p, const PlannedExchange *e, bool overlap, double seconds) {
    const double rate = p->exchange_rate,
                 micro_step = seconds / ceil((double)p->share_tokens / (double)(p->model.B * p->model.T));
    if (!overlap) return p->exchange_seconds;
    return (e->last_gradients + e->first_weights) / rate +
           fmax(0, (e->gradients - e->last_gradients) / rate - micro_step * 2 / 3) +
           fmax(0, (e->weights - e->first_weights) / rate - micro_step / 3);
}

static void add_exchange(DevicePlan *p, const PlanRequest *r) {
    if (p->gpus == 1 || p->step.seconds == 0) return;
    const PlannedExchange e = plan_exchange(&p->model);
    p->exchange_bytes = e.gradients + e.weights;
    p->exchange_rate = gpu_exchange_rate(&p->gpu.spec);
    if (p->exchange_rate == 0) return;
    p->exchange_seconds = p->exchange_bytes / p->exchange_rate;
    const bool overlap = r->comm_overlap;
    p->exposed_seconds = exposed_part(p, &e, overlap, p->step.seconds);
    if (p->prediction.is_known) {
        p->predicted.likely += exposed_part(p, &e, overlap, p->predicted.likely);
        p->predicted.worst += exposed_part(p, &e, overlap, p->predicted.worst);
        p->predicted.best += exposed_part(p, &e, overlap, p->predicted.best);
    }
    p->efficiency = p->step.seconds / (p->step.seconds + p->exposed_seconds);
}

// The run as steps of the plan, and the min time they take.
static void add_steps(DevicePlan *p, const PlanRequest *r) {
    const bool is_known = p->batch > 0 && (p->gpus == 1 || p->exchange_rate > 0);
    p->step_tokens = (double)(p->windows * p->model.T);
    p->tokens = r->tokens > 0 ? r->tokens : fmax(0, (double)r->max_steps) * p->step_tokens;
    p->steps = ceil(p->tokens / p->step_tokens);
    p->step_seconds = is_known ? p->step.seconds + p->exposed_seconds : 0;
    if (!is_known) p->predicted = (Estimate){0};
    p->run_seconds = p->step_seconds * p->steps;
}

// The most windows of a group: a micro-batch has no more. 0: not known.
static int64_t group_windows(const PlanRequest *r) { return ceil_div(r->step_windows, max_i64(r->model.groups, 1)); }

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

void plan_device(DevicePlan *plan, const PlanRequest *r, const GpuChoice *gpu) {
    memset(plan, 0, sizeof *plan);
    plan->model = r->model;
    plan->gpus = (int)max_i64(r->model.processes, 1);
    // The processes of one machine share its memory; GPUs have their own.
    plan->room = plan_room(true) / (strcmp(device_facts()->backend, "cpu") == 0 ? plan->gpus : 1);
    if (gpu) move_to(plan, gpu, r->attention);
    const int64_t most = group_windows(r);
    plan->fits = plan_fit(&plan->model, r->model.B == 0, r->recompute, plan->room, most, &plan->why_not);
    plan->windows = r->step_windows > 0 ? r->step_windows : plan->model.B * max_i64(r->model.groups, 1);
    plan->share_tokens = ceil_div(plan->windows, plan->gpus) * plan->model.T;
    plan->memory = plan_memory(&plan->model);
    plan->batch = plan_largest_batch(&plan->model, plan->room, most);
    if (gpu && plan->model.train) {
        plan->step = plan_step_limit(&plan->gpu.spec, &plan->model, plan->share_tokens);
        const PredictOptions assumed = {r->attention, r->gelu_fusion};
        plan_predict(&plan->prediction, &plan->gpu.spec, &plan->model, plan->share_tokens, &assumed, false);
        plan->predicted = plan->prediction.step;
    }
    add_exchange(plan, r);
    add_steps(plan, r);
}
