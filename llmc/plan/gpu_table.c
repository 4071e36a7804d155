// The arithmetic of planner.h: the table of GPUs, how many bytes each kind takes and how much memory there is, what a
// step computes and moves and the least time that takes, and all of it for one device.
//
// Figures of GPUs are NVIDIA's: dense (without sparsity, which datasheets often count in) and with fp32 accumulation,
// which GeForce cards run at half their 16-bit and fp8 rate. test_gpu_table derives each peak a second time, from
// units x clock x operations a clock.
#include "llmc/plan/plan.h"

#include "llmc/base/arithmetic.h"
#include "llmc/model/gpu_sizes.h"
#include "llmc/model/parameters.h"
#include "llmc/model/recompute.h"
#include "llmc/run/profile.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---------------------------------------------------------------------------------------------------------------- GPUs

#define GB     *1e9
#define TFLOPS *1e12

// PCIe x16 of generations 3, 4 and 5: 8, 16 and 32 GT/s per lane, 128 of 130 bits.
#define PCIE3 (15.754 GB)
#define PCIE4 (31.508 GB)
#define PCIE5 (63.015 GB)

// NVLink of generations 3, 4 and 5, all links of a GPU, one way: half of the 600 GB/s, 900 GB/s and 1.8 TB/s of
// NVIDIA's datasheets (A100, H100, H200, DGX B200), which count both ways. Only of GPUs that a switch connects to all
// others of the machine: an NVLink bridge (RTX 3090, H100 PCIe) connects two.
#define NVLINK3 (300 GB)
#define NVLINK4 (450 GB)
#define NVLINK5 (900 GB)

// clang-format off
static const GpuSpec TABLE[] = {
    // name           also      memory  bf16           fp16           fp32 or TF32   fp8           bandwidth  link   NVLink    SMs  sm_
    {"T4",           NULL,       16 GB, 0,             65 TFLOPS,     8.1 TFLOPS,    0,            320 GB,  PCIE3, 0,        40,  75},
    {"L4",           NULL,       24 GB, 121 TFLOPS,    121 TFLOPS,    60.5 TFLOPS,   242 TFLOPS,   300 GB,  PCIE4, 0,        58,  89},
    {"A10",          "a10g",     24 GB, 125 TFLOPS,    125 TFLOPS,    62.5 TFLOPS,   0,            600 GB,  PCIE4, 0,        72,  86},
    {"RTX 3090",     "3090",     24 GB, 71 TFLOPS,     71 TFLOPS,     35.6 TFLOPS,   0,            936 GB,  PCIE4, 0,        82,  86},
    {"RTX 4090",     "4090",     24 GB, 165.2 TFLOPS,  165.2 TFLOPS,  82.6 TFLOPS,   330.3 TFLOPS, 1008 GB, PCIE4, 0,       128,  89},
    {"RTX 5090",     "5090",     32 GB, 209.5 TFLOPS,  209.5 TFLOPS,  104.8 TFLOPS,  419 TFLOPS,   1792 GB, PCIE5, 0,       170, 120},
    {"A100 40GB",    NULL,       40 GB, 312 TFLOPS,    312 TFLOPS,    156 TFLOPS,    0,            1555 GB, PCIE4, NVLINK3,  108,  80},
    {"L40S",         NULL,       48 GB, 362 TFLOPS,    362 TFLOPS,    183 TFLOPS,    733 TFLOPS,   864 GB,  PCIE4, 0,       142,  89},
    {"A100 80GB",    "a100",     80 GB, 312 TFLOPS,    312 TFLOPS,    156 TFLOPS,    0,            2039 GB, PCIE4, NVLINK3,  108,  80},
    {"RTX PRO 6000", "pro6000",  96 GB, 503.8 TFLOPS,  503.8 TFLOPS,  251.9 TFLOPS,  1007.6 TFLOPS, 1792 GB, PCIE5, 0,       188, 120},
    {"H100 PCIe",    NULL,       80 GB, 756 TFLOPS,    756 TFLOPS,    378 TFLOPS,    1513 TFLOPS,  2000 GB, PCIE5, 0,       114,  90},
    {"H100 SXM",     "h100",     80 GB, 989.4 TFLOPS,  989.4 TFLOPS,  494.7 TFLOPS,  1978.9 TFLOPS, 3350 GB, PCIE5, NVLINK4,  132,  90},
    {"H200",         NULL,      141 GB, 989.4 TFLOPS,  989.4 TFLOPS,  494.7 TFLOPS,  1978.9 TFLOPS, 4800 GB, PCIE5, NVLINK4,  132,  90},
    {"B200",         NULL,      180 GB, 2250 TFLOPS,   2250 TFLOPS,   1125 TFLOPS,   4500 TFLOPS,  8000 GB, PCIE5, NVLINK5,  148, 100},
};
// clang-format on

enum { COUNT = sizeof TABLE / sizeof TABLE[0], NAME = 32 };

const GpuSpec *gpu_table(int *count) {
    *count = COUNT;
    return TABLE;
}

double gpu_spec_peak(const GpuSpec *gpu, DType dtype) {
    return dtype == DTYPE_BF16   ? gpu->peak_bf16
           : dtype == DTYPE_FP16 ? gpu->peak_fp16
           : dtype == DTYPE_FP32 ? gpu->peak_32
           : dtype == DTYPE_E4M3 ? gpu->peak_fp8
                                 : 0.0;
}

DType gpu_spec_dtype(const GpuSpec *gpu, DType dtype) {
    return dtype == DTYPE_BF16 && gpu->peak_bf16 == 0 && gpu->peak_fp16 > 0 ? DTYPE_FP16 : dtype;
}

// --------------------------------------------------------------------------------------------------------------- names

// Letters and digits alone, small, without "gb" at the end: what two spellings of a name have in common.
static void plain_name(char plain[NAME], const char *text, size_t length) {
    size_t n = 0;
    for (size_t i = 0; i < length && n < NAME - 1; i++)
        if (isalnum((unsigned char)text[i])) plain[n++] = (char)tolower((unsigned char)text[i]);
    plain[n] = '\0';
    if (n > 2 && strcmp(plain + n - 2, "gb") == 0) plain[n - 2] = '\0';
}

enum { MOST_GIGABYTES = 100000 };

// "24G", "16 GB", "11.5gb", "80GiB": bytes; 0: it is no size; negative: it is none that memory has.
static double size_of(const char *text, size_t length) {
    char copy[NAME], *unit;
    if (length >= sizeof copy || length == 0 || !isdigit((unsigned char)text[text[0] == '-'])) return 0;
    snprintf(copy, sizeof copy, "%.*s", (int)length, text);
    const double n = strtod(copy, &unit);
    unit += strspn(unit, " ");
    const bool binary = strcasecmp(unit, "gib") == 0;
    if (!binary && strcasecmp(unit, "g") != 0 && strcasecmp(unit, "gb") != 0) return 0;
    return n > 0 && n <= MOST_GIGABYTES ? n * (binary ? 0x1p30 : 1e9) : -1;
}

// Levenshtein's distance: insertions, deletions and substitutions that make one of the other.
static int distance(const char *a, const char *b) {
    const int n = (int)strlen(b);
    int row[NAME + 1];
    for (int j = 0; j <= n; j++) row[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            const int change = diagonal + (a[i - 1] != b[j - 1]), above = row[j] + 1, left = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = change < above ? change : above;
            if (left < row[j]) row[j] = left;
        }
    }
    return row[n];
}

static bool unknown(const char *text, size_t length, const GpuSpec *nearest, Error *err) {
    char names[400] = "";
    for (int i = 0; i < COUNT; i++) {
        const size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", TABLE[i].name);
    }
    return error_set(err, "--gpu %.*s: no such GPU; %s%s%s %s, and sizes such as 24G", (int)(length < 80 ? length : 80),
                     text, nearest ? "did you mean " : "", nearest ? nearest->name : "",
                     nearest ? "? Known GPUs:" : "known GPUs:", names);
}

bool gpu_find(GpuChoice *gpu, const char *text, size_t length, Error *err) {
    char asked[NAME], plain[NAME];
    const GpuSpec *nearest = NULL;
    int least = NAME;
    memset(gpu, 0, sizeof *gpu);
    gpu->spec.memory = size_of(text, length);
    if (gpu->spec.memory < 0)
        return error_set(err, "--gpu %.*s: the size must be above 0 and at most %dG", (int)length, text,
                         MOST_GIGABYTES);
    if (gpu->spec.memory > 0) {
        snprintf(gpu->name, sizeof gpu->name, "%.*s", (int)length, text);
        gpu->spec.name = gpu->name;
        return true;
    }
    plain_name(asked, text, length);
    for (int i = 0; i < COUNT; i++) {
        plain_name(plain, TABLE[i].name, strlen(TABLE[i].name));
        const bool also = TABLE[i].also && strcmp(asked, TABLE[i].also) == 0;
        const int d = also ? 0 : distance(asked, plain);
        const size_t longer = strlen(asked) > strlen(plain) ? strlen(asked) : strlen(plain);
        if (d < least && 2 * d <= (int)longer) least = d, nearest = &TABLE[i]; // half of the letters, as of options
    }
    if (least > 0 || length >= NAME) return unknown(text, length, nearest, err);
    gpu->spec = *nearest;
    return true;
}

// The GPU of this process: the one of the table that is alike, or else what the device says of itself.
static bool gpu_here(GpuChoice *gpu, Error *err) {
    const DeviceFacts *f = device_facts();
    if (strcmp(f->backend, "cpu") == 0)
        return error_set(err, "--gpu this: this program computes on the CPU; name a GPU, such as --gpu h100");
    memset(gpu, 0, sizeof *gpu);
    for (int i = 0; i < COUNT; i++) {
        const bool alike = TABLE[i].num_sms == f->units &&
                           fabs(TABLE[i].peak_fp16 / f->peak_flops[DTYPE_FP16] - 1) < 0.05 &&
                           fabs(TABLE[i].memory / (double)f->memory_total - 1) < 0.12;
        if (alike) return gpu->spec = TABLE[i], true;
    }
    snprintf(gpu->name, sizeof gpu->name, "%.31s", f->name);
    gpu->spec = (GpuSpec){.name = gpu->name,
                          .memory = (double)f->memory_total,
                          .peak_bf16 = f->peak_flops[DTYPE_BF16],
                          .peak_fp16 = f->peak_flops[DTYPE_FP16],
                          .peak_32 = f->peak_flops[DTYPE_FP32],
                          .bandwidth = f->peak_bandwidth,
                          .num_sms = f->units};
    return true;
}

bool gpu_find_all(GpuChoice gpus[MOST_GPUS], int *count, const char *names, Error *err) {
    *count = 0;
    for (const char *at = names; *names; at++) {
        const size_t length = strcspn(at, ",");
        const bool here = length == 4 && strncasecmp(at, "this", length) == 0;
        if (length == 0)
            return error_set(err, "--gpu %.80s: no GPU before or after a comma; leave the comma out", names);
        if (*count == MOST_GPUS) return error_set(err, "--gpu: more than %d GPUs", MOST_GPUS);
        GpuChoice *gpu = &gpus[(*count)++];
        if (here ? !gpu_here(gpu, err) : !gpu_find(gpu, at, length, err)) return false;
        at += length;
        if (!*at) break;
    }
    return true;
}

double gpu_exchange_rate(const GpuSpec *gpu) { return gpu->nvlink > 0 ? gpu->nvlink : gpu->link; }

// ------------------------------------------------------------------------------------------------------- a GPU's sizes

static int64_t chunk_rows(const void *machine, OpsShape shape) {
    const GpuSpec *gpu = machine;
    return cuda_size_head_chunk_rows(shape, gpu->num_sms > 0 ? gpu->num_sms : 1, (int64_t)gpu->memory);
}

static int64_t own_workspace(const void *machine, OpsShape shape) {
    const GpuSpec *gpu = machine;
    return cuda_size_workspace(shape, gpu->compute_capability, 0);
}

enum { MOST_WORKSPACE = 80 }; // the capability for which cuDNN's largest forms are taken

static int planned_capability(const GpuSpec *gpu) {
    return gpu->compute_capability > 0 ? gpu->compute_capability : MOST_WORKSPACE;
}

static int64_t workspace_with_cudnn(const void *machine, OpsShape shape) {
    const GpuSpec *gpu = machine;
    const int64_t limit = cuda_size_cudnn_limit((int64_t)gpu->memory);
    return cuda_size_workspace(shape, gpu->compute_capability, cuda_size_cudnn(shape, planned_capability(gpu), limit));
}

static int64_t workspace_with_fast_cudnn(const void *machine, OpsShape shape) {
    const GpuSpec *gpu = machine;
    return cuda_size_workspace(shape, gpu->compute_capability, cuda_size_cudnn_fast(shape, planned_capability(gpu)));
}

PlannedSizes planner_sizes(const GpuSpec *gpu, AttentionChoice attention) {
    int64_t (*const workspace)(const void *, OpsShape) = attention == ATTENTION_OWN    ? own_workspace
                                                         : attention == ATTENTION_FAST ? workspace_with_fast_cudnn
                                                                                       : workspace_with_cudnn;
    return (PlannedSizes){workspace, chunk_rows, gpu};
}

// --------------------------------------------------------------------------------------------------- how much there is

// Not measured yet. In addition to the arena there are the kernels of this program, the kernels that cuBLASLt and cuDNN
// load when they first run, cuDNN's handle, the tables of updates and recorded graphs.
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

// By the names that model_memory.c and its neighbours give: test_planner fails where one is missing here.
static const struct {
    const char *name, *tensors;
} KINDS[] = {
    {"residual", "residual1 residual2 final_residual"},
    {"layernorm", "ln1 ln1_mean ln1_rstd ln2 ln2_mean ln2_rstd lnf lnf_mean lnf_rstd"},
    {"qkv", "qkv"},
    {"attention", "att lse"},
    {"mlp", "pre gelu"},
    {"logits", "logits losses"},
    {"gradients", "dpre dln2 datt dqkv dln1 dlnf dresidual dresidual_sum"},
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
            if (strncmp(at, name, length) == 0 && (at[length] == ' ' || at[length] == '\0')) return k;
        }
    return KIND_OTHER;
}

PlannedMemory planner_memory(const ModelOptions *model) {
    PlannedMemory m = {0};
    MemoryPlan *plan = model_plan(model);
    const int peak = memory_plan_peak_tick(plan);
    for (int c = 0; c < MEM_CLASS_COUNT; c++) m.classes[c] = (double)memory_plan_class_bytes(plan, (MemoryClass)c);
    for (int i = 0; i < memory_plan_count(plan); i++) {
        const PlannedTensor t = memory_plan_tensor(plan, i);
        if (t.first_use == PLAN_ALWAYS || t.first_use > peak || t.last_use < peak) continue;
        m.kinds[activation_kind(t.name)] += (double)t.bytes;
    }
    m.total = (double)memory_plan_total(plan);
    m.kinds[KIND_GAPS] = m.total - (double)memory_plan_live_peak(plan);
    m.host = (double)model_host_bytes(model);
    memory_plan_destroy(plan);
    return m;
}

// --------------------------------------------------------------------------------------------------------------- FLOPs

// The processes that divide the update among them.
static double sharers(const ModelOptions *model) {
    return model->divided && model->processes > 1 ? model->processes : 1;
}

static double update_flops(const ModelOptions *model) {
    const int count = parameter_count(&model->config);
    Parameter *table = parameter_table(&model->config);
    double flops = 0;
    for (int i = 0; i < count; i++) flops += optimizer_matmul_flops(model->optimizer, &table[i]);
    free(table);
    return flops / sharers(model);
}

double planner_step_flops(const ModelOptions *model, int64_t tokens) {
    const double again = recompute_flops_per_token(&model->recompute, &model->config, model->T);
    const double exact = flops_per_token_exact(&model->config, model->T);
    return (double)tokens * (exact + again) + (model->train ? update_flops(model) : 0);
}

double planner_step_fp8_flops(const ModelOptions *model, int64_t tokens) {
    if (!model->fp8) return 0;
    const int64_t no_attention = -1; // its FLOPs are in proportion to T + 1
    return (double)tokens * (flops_per_token_linear(&model->config) +
                             recompute_flops_per_token(&model->recompute, &model->config, no_attention));
}

// --------------------------------------------------------------------------------------------------------------- bytes

static double elements_per_token(const ModelOptions *model) {
    const ModelConfig *c = &model->config;
    const double L = (double)c->L, C = (double)c->C, Vp = (double)c->Vp;
    return (12 * L + 8) * C + 2 * Vp + recompute_elements_per_token(&model->recompute, c);
}

// Operands of the four linear layers of a block, 3 C + d_ff going in and 5 C + d_ff of gradients: quantised as they
// pass.
static double fp8_bytes_per_token(const ModelOptions *model) {
    if (!model->fp8) return 0;
    const int64_t width = model->config.L * (8 * model->config.C + 2 * model_size(&model->config, DIM_FF));
    const Tensor in = tensor_make(NULL, model->dtype, "in", 1, width, 0, 0);
    const Tensor q = tensor_make(NULL, DTYPE_E4M3, "q", 1, width, 0, 0);
    const Fp8Scaling scaling = model->fp8_delayed ? FP8_DELAYED : FP8_CURRENT;
    return op_cost_fp8_quantize(q, q, in, scaling).bytes;
}

// All tensors of the update, as model_tensors has them; their data are never looked at, but that they are there is.
static UpdateTensor *update_tensors(const ModelOptions *model, const Parameter *table, int count) {
    static char there;
    UpdateTensor *tensors = calloc((size_t)count, sizeof *tensors);
    REQUIRE_MEMORY(tensors, "a plan");
    const DType grad = model->gradients_in_dtype ? model->dtype : DTYPE_FP32;
    for (int i = 0; i < count; i++) {
        const Parameter *p = &table[i];
        tensors[i].weight = tensor_make(&there, model->dtype, "weight", p->rows, p->cols, 0, 0);
        tensors[i].grad = tensor_make(&there, grad, "grad", p->rows, p->cols, 0, 0);
        tensors[i].rule = optimizer_rule(model->optimizer, p);
        for (int slot = 0; slot < NUM_STATE_SLOTS; slot++) {
            Tensor t = optimizer_state(model->optimizer, model->master, model->dtype, p, (StateSlot)slot);
            if (t.rank > 0) t.data = &there;
            *state_slot_tensor(&tensors[i], (StateSlot)slot) = t;
        }
    }
    return tensors;
}

// The norm, the update, and in each micro-step the gradients that are added to the compute dtype.
static double update_bytes(const ModelOptions *model, int64_t micro_steps) {
    if (!model->train) return 0;
    const int count = parameter_count(&model->config);
    Parameter *table = parameter_table(&model->config);
    UpdateTensor *t = update_tensors(model, table, count);
    double bytes = op_cost_optimizer_update(t, count).bytes + op_cost_adafactor_statistics(t, count).bytes +
                   op_cost_momentum_update(t, count).bytes;
    for (int i = 0; i < count; i++) bytes += (double)tensor_bytes(t[i].grad);
    bytes /= sharers(model);
    for (int i = 0; i < count; i++) {
        const Tensor own = tensor_make(NULL, DTYPE_FP32, "own", table[i].rows, table[i].cols, 0, 0);
        if (model->gradients_in_dtype) bytes += (double)micro_steps * op_cost_gradient_add(t[i].grad, own, true).bytes;
    }
    free(t);
    free(table);
    return bytes;
}

double planner_step_bytes(const ModelOptions *model, int64_t tokens) {
    const double a_token = elements_per_token(model) * (double)dtype_size(model->dtype) + fp8_bytes_per_token(model);
    return (double)tokens * a_token + update_bytes(model, ceil_div(tokens, model->B * model->T));
}

StepLimit planner_step(const GpuSpec *gpu, const ModelOptions *model, int64_t tokens) {
    const double peak = gpu_spec_peak(gpu, model->dtype), fp8_peak = gpu_spec_peak(gpu, DTYPE_E4M3);
    StepLimit s = {.flops = planner_step_flops(model, tokens),
                   .fp8_flops = planner_step_fp8_flops(model, tokens),
                   .bytes = planner_step_bytes(model, tokens),
                   .link_bytes = (double)model_host_bytes(model)};
    if (peak == 0 || (s.fp8_flops > 0 && fp8_peak == 0)) return s;
    s.seconds = (s.flops - s.fp8_flops) / peak + s.bytes / gpu->bandwidth + s.link_bytes / gpu->link;
    if (s.fp8_flops > 0) s.seconds += s.fp8_flops / fp8_peak;
    return s;
}

// What process r sends of a unit in an all-to-all and receives in an all-gather, in elements, or the other way round if
// that is more: everything but its own range, and its own range once for each of the others.
static double passed(const Partition *p, int unit, int r) {
    const double all = (double)(p->begin[unit + 1] - p->begin[unit]);
    const double own = (double)range_size(partition_of_unit(p, unit, r));
    return fmax(all - own, (p->processes - 1) * own);
}

PlannedExchange planner_exchange(const ModelOptions *model) {
    PlannedExchange most = {0};
    if (model->processes <= 1 || !model->train) return most;
    const double gradient = (double)dtype_size(model->gradients_in_dtype ? model->dtype : DTYPE_FP32);
    const double weight = (double)dtype_size(model->dtype);
    Partition *p = partition_create(&model->config, model->optimizer, model->groups, model->processes);
    const int outside = p->num_units - 1;
    for (int r = 0; r < p->processes; r++) {
        double all = 0;
        for (int u = 0; u <= outside; u++) all += passed(p, u, r);
        const double times = model->divided ? 1 : 2; // to the owners, and without -z 1 back
        const PlannedExchange e = {.gradients = times * all * gradient,
                                   .weights = model->divided ? all * weight : 0,
                                   .last_gradients = times * passed(p, outside, r) * gradient,
                                   .first_weights = model->divided ? passed(p, outside, r) * weight : 0};
        if (e.gradients + e.weights > most.gradients + most.weights) most = e;
    }
    partition_destroy(p);
    return most;
}

// ---------------------------------------------------------------------------------------------------------- one device

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

// What the computation, of so many seconds, cannot hide of the exchange. Gradients leave during the backward pass of
// the last micro-step, those outside blocks after it; weights arrive during the forward pass of the first, those
// outside blocks before it. A forward pass is a third of the FLOPs.
static double exposed_seconds(const DevicePlan *p, const PlannedExchange *e, bool overlap, double seconds) {
    const double rate = p->exchange_rate,
                 micro_step = seconds / ceil((double)p->share_tokens / (double)(p->model.B * p->model.T));
    if (!overlap) return p->exchange_seconds;
    return (e->last_gradients + e->first_weights) / rate +
           fmax(0, (e->gradients - e->last_gradients) / rate - micro_step * 2 / 3) +
           fmax(0, (e->weights - e->first_weights) / rate - micro_step / 3);
}

static void plan_exchange(DevicePlan *p, const PlanRequest *r) {
    if (p->gpus == 1 || p->step.seconds == 0) return;
    const PlannedExchange e = planner_exchange(&p->model);
    p->exchange_bytes = e.gradients + e.weights;
    p->exchange_rate = gpu_exchange_rate(&p->gpu.spec);
    if (p->exchange_rate == 0) return;
    p->exchange_seconds = p->exchange_bytes / p->exchange_rate;
    const bool overlap = r->options->comm_overlap != 0;
    p->exposed_seconds = exposed_seconds(p, &e, overlap, p->step.seconds);
    if (p->prediction.is_known) {
        p->predicted.likely += exposed_seconds(p, &e, overlap, p->predicted.likely);
        p->predicted.worst += exposed_seconds(p, &e, overlap, p->predicted.worst);
        p->predicted.best += exposed_seconds(p, &e, overlap, p->predicted.best);
    }
    p->efficiency = p->step.seconds / (p->step.seconds + p->exposed_seconds);
}

// The run as steps of the plan, and the min time they take.
static void plan_steps(DevicePlan *p, const PlanRequest *r) {
    const Options *o = r->options;
    const bool is_known = p->batch > 0 && (p->gpus == 1 || p->exchange_rate > 0);
    p->step_tokens = (double)(p->windows * p->model.T);
    p->tokens = o->tokens > 0 ? o->tokens : fmax(0, (double)o->max_steps) * p->step_tokens;
    p->steps = ceil(p->tokens / p->step_tokens);
    p->step_seconds = is_known ? p->step.seconds + p->exposed_seconds : 0;
    if (!is_known) p->predicted = (Estimate){0};
    p->run_seconds = p->step_seconds * p->steps;
}

// The most windows of a group: a micro-batch has no more. 0: not known.
static int64_t group_windows(const PlanRequest *r) { return ceil_div(r->step_windows, max_i64(r->model.groups, 1)); }

void planner_alternatives(DevicePlan *plan, const PlanRequest *r) {
    const int64_t most = group_windows(r);
    ModelOptions m = plan->model;
    for (int level = 0; level < 4; level++) {
        m.recompute = recompute_all(recompute_level_set(level));
        plan->most[level] = planner_largest_batch(&m, plan->room, most);
    }
    if (!planner_choose(&m, plan->room, most)) return;
    plan->auto_batch = m.B;
    plan->auto_recompute = m.recompute;
}

void planner_device(DevicePlan *plan, const PlanRequest *r, const GpuChoice *gpu) {
    const Options *o = r->options;
    memset(plan, 0, sizeof *plan);
    plan->model = r->model;
    plan->gpus = (int)max_i64(r->model.processes, 1);
    // The processes of one machine share its memory; GPUs have their own.
    plan->room = planner_room(true) / (strcmp(device_facts()->backend, "cpu") == 0 ? plan->gpus : 1);
    if (gpu) move_to(plan, gpu, o->attention);
    const int64_t most = group_windows(r);
    plan->fits = planner_fit(&plan->model, r->model.B == 0, o->recompute, plan->room, most, &plan->why_not);
    plan->windows = r->step_windows > 0 ? r->step_windows : plan->model.B * max_i64(r->model.groups, 1);
    plan->share_tokens = ceil_div(plan->windows, plan->gpus) * plan->model.T;
    plan->memory = planner_memory(&plan->model);
    plan->batch = planner_largest_batch(&plan->model, plan->room, most);
    if (gpu && plan->model.train) {
        plan->step = planner_step(&plan->gpu.spec, &plan->model, plan->share_tokens);
        planner_predict(&plan->prediction, &plan->gpu.spec, &plan->model, plan->share_tokens, o, false);
        plan->predicted = plan->prediction.step;
    }
    plan_exchange(plan, r);
    plan_steps(plan, r);
}
