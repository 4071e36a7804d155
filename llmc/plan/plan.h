// The plan of a run on one device: its memory, the -b and -r that fit, the minimum and the
// predicted time of its steps. It needs no GPU and no data. plan_print shows it.
#pragma once
#include "llmc/data/mixture.h"
#include "llmc/plan/gpu_table.h"
#include "llmc/plan/plan_cost.h"
#include "llmc/plan/plan_memory.h"
#include "llmc/plan/plan_predict.h"

// The input of --plan: a model, whose B and recompute follow from -b and -r, and a run of it on
// model.processes GPUs.
typedef struct {
    ModelOptions model;
    int64_t step_windows;  // of T tokens, of all GPUs; 0: B for each group
    const char *recompute; // -r, or "auto"
    double tokens;         // --tokens; 0: not given
    int64_t max_steps;     // -x; below 0: not given
    bool divides;          // -b auto takes a power of two, which divides the windows of a step
                           // (plan_fit_divisor)
    const char *gpus;      // --gpu; "": this machine and the whole table
    AttentionChoice attention;
    int gelu_fusion;
    bool comm_overlap;
    const Mixture *data; // -i: of more than one source the shares are shown; NULL: not known
} PlanRequest;

// The plan for one device, or for several of them: memory, -b and -r are those of each.
typedef struct {
    GpuChoice gpu; // no name: this machine
    PlannedSizes sizes;
    ModelOptions model; // with the dtype, B and recompute used on it
    int gpus;
    int64_t windows;      // of a step, of all GPUs
    int64_t share_tokens; // of a step, of the GPU with the most
    bool fits;
    Error why_not; // the bytes it needs, and options that would fit
    double nccl;   // bytes that NCCL takes
    double room;   // bytes that the plan may take
    PlannedMemory memory;
    int64_t batch;  // the largest B at the -r of model; 0: not one sequence fits
    StepLimit step; // of one GPU's share; nearly the same for smaller micro-batches
    // of several GPUs: sent by each in a step; bytes/s, 0: unknown
    double exchange_bytes, exchange_rate;
    double exchange_seconds, exposed_seconds; // the second: at least, beside computation
    double efficiency; // step.seconds / step_seconds: the part of a step that computes
    double tokens, steps, step_tokens; // of the run, 0: unknown; of a step
    double step_seconds, run_seconds;  // lower bounds; 0: unknown, or not one sequence fits
    Prediction prediction;             // of one GPU's share
    Estimate predicted;                // of a step, with the exposed exchange; 0: unknown
    // Filled by plan_alternatives:
    int64_t most[4];    // the largest B at -r 0 .. 3
    int64_t auto_batch; // of -b auto -r auto
    Recompute auto_recompute;
} DevicePlan;
// Fills *plan, which must not be moved afterwards. gpu NULL: this machine; its spec stays zero. -r
// must be valid.
void plan_device(DevicePlan *plan, const PlanRequest *request, const GpuChoice *gpu);
// Finds the alternatives that would fit there, with five more searches, for output that shows them.
void plan_alternatives(DevicePlan *plan, const PlanRequest *request);
