// See plan_memory.h.
#include "llmc/plan/plan_memory.h"

#include <math.h>
#include <string.h>

PlannedSizes plan_sizes(const GpuSpec *gpu, AttentionChoice attention) {
    return (PlannedSizes){gpu->num_sms, gpu->compute_capability, (int64_t)gpu->memory, attention};
}

// -------------------------------------------------------------------------------- available memory

// This reserve has not been measured yet. In addition to the arena there are the kernels of this
// program, the kernels that cuBLASLt and cuDNN load when they first run, cuDNN's handle, the tables
// of updates and recorded graphs.
double plan_reserve(double memory) { return fmin(1e9, 0.06 * memory); }

double plan_room(bool automatic) {
    const DeviceFacts *facts = device_facts();
    const double available = (double)facts->memory_free, total = (double)facts->memory_total;
    if (strcmp(facts->backend, "cpu") != 0) {
        double reserve = plan_reserve(total);
        if (facts->memory_spills) reserve = fmax(reserve, 0.1 * total);
        // NCCL has taken its memory since device_init
        return fmax(0, (double)device_memory_free() - reserve);
    }
    if (!automatic) return available;
    return fmax(0, available - fmax(0.05 * available, 0x1p28));
}

// ---------------------------------------------------------------------------- kinds of activations

// By the names that model_memory.c and its neighbours give: test_plan fails where one is missing
// here.
static const struct {
    const char *name, *tensors;
} KINDS[] = {
    {"residual", "residual1 residual2 final_residual"},
    {"layernorm", "ln1 ln1_mean ln1_rstd ln2 ln2_mean ln2_rstd lnf lnf_mean lnf_rstd"},
    {"qkv", "qkv qkr qkr_rstd"},
    {"attention", "att lse"},
    {"mlp", "pre gelu"},
    {"logits", "logits losses"},
    {"gradients", "dgelu dpre dln2 datt dqkv dln1 dlnf dresidual dresidual_sum"},
    {"micro_gradients", "micro_gradients"}, // of weights, with --grad-dtype compute
    {"fp8", "fp8_forward fp8_backward"},
    {"tokens", "inputs targets"},
    {"generation", "cache decoder_tokens decoder_logits"},
    {"optimizer_scratch", "optimizer_scratch"},
    [KIND_OTHER] = {"other", ""},
    [KIND_GAPS] = {"gaps", ""},
};
_Static_assert(sizeof KINDS / sizeof *KINDS == KIND_COUNT, "a kind without a row");

const char *activation_kind_name(int kind) { return KINDS[kind].name; }

int activation_kind(const char *name) {
    const size_t length = strlen(name);
    for (int k = 0; k < KIND_OTHER; k++)
        for (const char *at = KINDS[k].tensors; at; at = strchr(at, ' ')) {
            at += *at == ' ';
            if (strncmp(at, name, length) == 0 && (at[length] == ' ' || at[length] == '\0'))
                return k;
        }
    return KIND_OTHER;
}

PlannedMemory plan_memory(const ModelOptions *model) {
    PlannedMemory m = {0};
    MemoryPlan *plan = model_plan(model);
    int tick;
    const int64_t peak = memory_plan_live_peak(plan, &tick);

    for (int c = 0; c < MEM_CLASS_COUNT; c++)
        m.classes[c] = (double)memory_plan_class_bytes(plan, (MemoryClass)c);
    for (int i = 0; i < memory_plan_count(plan); i++) {
        const PlannedTensor t = memory_plan_tensor(plan, i);
        if (t.first_use == PLAN_ALWAYS || t.first_use > tick || t.last_use < tick) continue;
        m.kinds[activation_kind(t.name)] += (double)t.bytes;
    }

    m.total = (double)memory_plan_total(plan);
    m.kinds[KIND_GAPS] = m.total - (double)peak;
    m.host = (double)model_host_bytes(model);
    memory_plan_destroy(plan);
    return m;
}
