// The tests of the planner share GPUs by name, figures that agree, and what a plan takes.
#pragma once
#include "llmc/model/model.h"
#include "llmc/plan/gpu_table.h"
#include "test/test.h"

#include <math.h>

static inline const GpuSpec *gpu_named(const char *name) {
    int count;
    const GpuSpec *gpus = gpu_table(&count);
    for (int i = 0; i < count; i++)
        if (strcmp(gpus[i].name, name) == 0) return &gpus[i];
    fail_msg("no GPU %s", name);
    return NULL;
}

static inline void assert_near(const char *what, double got, double expected, double tolerance) {
    if (!(fabs(got / expected - 1) <= tolerance))
        fail_msg("%s: %.9g, expected %.9g", what, got, expected);
}

// A model that trains in bf16 with AdamW.
static inline ModelOptions model_of(const char *descriptor, int64_t B, int64_t T) {
    Error err = {""};
    ModelOptions o = {.dtype = DTYPE_BF16, .master = true, .train = true, .B = B, .T = T};
    if (!model_config_parse(&o.config, descriptor, &err)) fail_msg("%s", err.text);
    if (o.config.V == 0) model_config_set_vocab(&o.config, GPT2_VOCAB);
    return o;
}

// Bytes.
static inline double plan_total(const ModelOptions *model) {
    MemoryPlan *plan = model_plan(model);
    const double bytes = (double)memory_plan_total(plan);
    memory_plan_destroy(plan);
    return bytes;
}

static inline double total_at(const ModelOptions *model, int64_t B) {
    ModelOptions at = *model;
    at.B = B;
    return plan_total(&at);
}
