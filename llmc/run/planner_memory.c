// The memory half of planner.h: what of a plan is what, how much there is, and what a GPU that is not here asks for.
#include "llmc/run/planner.h"

#include "llmc/cuda/sizes.h"
#include <math.h>
#include <string.h>

// ------------------------------------------------------------------------------------------------------- a GPU's sizes

static const GpuSpec *as_gpu(const void *machine) { return (const GpuSpec *)machine; }

static int64_t chunk_rows(const void *machine, OpsShape shape) {
    const int units = as_gpu(machine)->units;
    return cuda_size_head_chunk_rows(shape, units > 0 ? units : 1);
}

static int64_t own_workspace(const void *machine, OpsShape shape) {
    (void)machine;
    return cuda_size_workspace(shape);
}

static int64_t workspace_with_cudnn(const void *machine, OpsShape shape) {
    enum { MOST_WORKSPACE = 80 }; // the capability for which cuDNN's largest form is taken
    const GpuSpec *gpu = as_gpu(machine);
    const int capability = gpu->compute_capability > 0 ? gpu->compute_capability : MOST_WORKSPACE;
    const int64_t limit = cuda_size_cudnn_limit((int64_t)gpu->memory);
    const int64_t own = cuda_size_workspace(shape), cudnn = cuda_size_cudnn(shape, capability, limit);
    return own > cudnn ? own : cudnn;
}

PlannedSizes planner_sizes(const GpuSpec *gpu, AttentionChoice attention) {
    return (PlannedSizes){attention == ATTENTION_OWN ? own_workspace : workspace_with_cudnn, chunk_rows, gpu};
}

// --------------------------------------------------------------------------------------------------- how much there is

// Not measured yet. Beside the arena stand the kernels of this program, those that cuBLASLt and cuDNN load when they
// first run, cuDNN's handle, the tables of updates and recorded graphs.
double planner_reserve(double memory) { return fmin(1e9, 0.06 * memory); }

double planner_room(bool automatic) {
    const double available = (double)device_facts()->memory_free;
    if (strcmp(device_facts()->backend, "cpu") != 0)
        return fmax(0, available - planner_reserve((double)device_facts()->memory_total));
    if (!automatic) return available;
    const double least = 0x1p28, share = 0.05 * available;
    return available - (share > least ? share : least);
}

// -------------------------------------------------------------------------------------------------------- what is what

// By the names that gpt2_memory.c and its neighbours give: test_planner fails where one is missing here.
static const struct {
    const char *name, *tensors;
} KINDS[KIND_COUNT] = {
    [KIND_RESIDUAL] = {"residual", "residual1 residual2 final_residual"},
    [KIND_LAYERNORM] = {"layernorm", "ln1 ln1_mean ln1_rstd ln2 ln2_mean ln2_rstd lnf lnf_mean lnf_rstd"},
    [KIND_QKV] = {"qkv", "qkv"},
    [KIND_ATTENTION] = {"attention", "att lse proj"},
    [KIND_MLP] = {"mlp", "pre gelu fcproj"},
    [KIND_LOGITS] = {"logits", "logits losses"},
    [KIND_GRADIENTS] = {"gradients", "dfc dln2 datt dqkv dln1 dlnf dresidual"},
    [KIND_MICRO] = {"micro_gradients", "micro_gradients"},
    [KIND_FP8] = {"fp8", "fp8_forward fp8_backward"},
    [KIND_TOKENS] = {"tokens", "inputs targets"},
    [KIND_GENERATION] = {"generation", "cache decoder_tokens decoder_logits"},
    [KIND_OPTIMIZER] = {"optimizer_scratch", "optimizer_scratch"},
    [KIND_OTHER] = {"other", ""},
};
const char *activation_kind_name(ActivationKind kind) { return KINDS[kind].name; }

ActivationKind activation_kind(const char *name) {
    const size_t length = strlen(name);
    for (int k = 0; k < KIND_OTHER; k++)
        for (const char *at = KINDS[k].tensors; at; at = strchr(at, ' ')) {
            at += *at == ' ';
            if (strncmp(at, name, length) == 0 && (at[length] == ' ' || at[length] == '\0')) return (ActivationKind)k;
        }
    return KIND_OTHER;
}

PlannedMemory planner_memory(const Gpt2Options *model) {
    PlannedMemory m = {0};
    MemoryPlan *plan = gpt2_plan(model);
    const int peak = memory_plan_peak_tick(plan);
    for (int c = 0; c < MEM_CLASS_COUNT; c++) m.classes[c] = (double)memory_plan_class_bytes(plan, (MemoryClass)c);
    for (int i = 0; i < memory_plan_count(plan); i++) {
        const PlannedTensor t = memory_plan_tensor(plan, i);
        if (t.first_use == PLAN_ALWAYS || t.first_use > peak || t.last_use < peak) continue;
        m.kinds[activation_kind(t.name)] += (double)t.bytes;
    }
    m.total = (double)memory_plan_total(plan);
    m.gaps = m.total - (double)memory_plan_live_peak(plan);
    m.host = (double)gpt2_host_bytes(model);
    memory_plan_destroy(plan);
    return m;
}
