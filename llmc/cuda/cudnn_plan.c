// From a graph to a kernel: device properties, engine configurations, execution plans; and the choice among the forms
// in which cuDNN computes a pass of attention. See cudnn_graph.h.
#include "llmc/cuda/cudnn_graph.h"

#ifdef HAVE_CUDNN
#include <stdlib.h>
#include <string.h>

typedef cudnnBackendDescriptor_t Descriptor;

// The heuristics give 2 to 5 configurations for attention.
enum { MAX_CONFIGS = 8, MAX_NOTES = 16 };

// -------------------------------------------------------------------------------------------------- single descriptors

static bool plan_refer(Descriptor d, cudnnBackendAttributeName_t name, Descriptor to, const char *what, Error *err) {
    return cudnn_set(d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &to, what, err);
}

static bool get_number(Descriptor d, cudnnBackendAttributeName_t name, int64_t *value, const char *what, Error *err) {
    int64_t count = 0;
    const cudnnStatus_t status = cudnn.cudnnBackendGetAttribute(d, name, CUDNN_TYPE_INT64, 1, &count, value);
    if (status != CUDNN_STATUS_SUCCESS) return cudnn_failed(err, what, status);
    return count == 1 || error_set(err, "%s: attribute %d has %lld values, not 1", what, (int)name, (long long)count);
}

// -------------------------------------------------------------------------------------------------------------- device

static Descriptor device_of(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                            const void *values, Error *err) {
    static const char what[] = "cuDNN device properties";
    Descriptor d = cudnn_make(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, what, err);
    if (d && cudnn_set(d, name, type, count, values, what, err) && cudnn_finalize(d, what, err)) return d;
    cudnn_destroy(d);
    return NULL;
}

Descriptor cudnn_device_of_gpu(int number, Error *err) {
    const int32_t id = number;
    return device_of(CUDNN_ATTR_DEVICEPROP_DEVICE_ID, CUDNN_TYPE_INT32, 1, &id, err);
}

Descriptor cudnn_device_of_text(const char *json, Error *err) {
    return device_of(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, (int64_t)strlen(json), json, err);
}

// ----------------------------------------------------------------------------------------------- engine configurations

struct CudnnPlan {
    Descriptor configs[MAX_CONFIGS]; // the better one first
    int num_configs;
    Descriptor engine, knobs[CUDNN_MAX_KNOBS]; // of an engine that was asked for by its number
    int64_t workspace;                         // bytes, at most; known before it is compiled
    Descriptor compiled;
    int64_t compiled_engine;
};

static const char choosing[] = "cuDNN engine for attention", compiling[] = "cuDNN kernel for attention";

// The one configuration that engine describes.
static bool configure(CudnnPlan *plan, const CudnnGraph *graph, Descriptor device, const CudnnEngine *engine,
                      Error *err) {
    Descriptor e = plan->engine = cudnn_make(CUDNN_BACKEND_ENGINE_DESCRIPTOR, choosing, err);
    if (!e || !plan_refer(e, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, cudnn_graph_descriptor(graph), choosing, err) ||
        !cudnn_set(e, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &engine->number, choosing, err) ||
        !plan_refer(e, CUDNN_ATTR_ENGINE_DEVICEPROP, device, choosing, err) || !cudnn_finalize(e, choosing, err))
        return false;
    for (int i = 0; i < engine->num_knobs; i++) {
        const int64_t *value = &engine->knobs[i].value;
        const cudnnBackendKnobType_t *type = &engine->knobs[i].type;
        Descriptor d = plan->knobs[i] = cudnn_make(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, choosing, err);
        if (!d || !cudnn_set(d, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, type, choosing, err) ||
            !cudnn_set(d, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, value, choosing, err) ||
            !cudnn_finalize(d, choosing, err))
            return false;
    }
    Descriptor config = plan->configs[0] = cudnn_make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, choosing, err);
    plan->num_configs = 0;
    if (config) plan->num_configs = 1;
    return config && plan_refer(config, CUDNN_ATTR_ENGINECFG_ENGINE, e, choosing, err) &&
           cudnn_set(config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR, engine->num_knobs,
                     plan->knobs, choosing, err) &&
           cudnn_finalize(config, choosing, err);
}

// Configurations in the order of cuDNN's heuristics.
static bool read_results(CudnnPlan *plan, Descriptor heuristics, Error *err) {
    for (; plan->num_configs < MAX_CONFIGS; plan->num_configs++) {
        Descriptor d = cudnn_make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, choosing, err);
        if (!d) return false;
        plan->configs[plan->num_configs] = d;
    }
    int64_t count = 0;
    const cudnnStatus_t status = cudnn.cudnnBackendGetAttribute(
        heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, MAX_CONFIGS, &count, plan->configs);
    if (status != CUDNN_STATUS_SUCCESS) return cudnn_failed(err, choosing, status);
    while (plan->num_configs > count) cudnn_destroy(plan->configs[--plan->num_configs]);
    return count > 0 || cudnn_failed(err, "cuDNN has no engine for this attention", CUDNN_STATUS_NOT_SUPPORTED);
}

static bool ask_heuristics(CudnnPlan *plan, const CudnnGraph *graph, Descriptor device, Error *err) {
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    Descriptor h = cudnn_make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, choosing, err);
    const bool ok =
        h && plan_refer(h, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, cudnn_graph_descriptor(graph), choosing, err) &&
        cudnn_set(h, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode, choosing, err) &&
        plan_refer(h, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, device, choosing, err) && cudnn_finalize(h, choosing, err) &&
        read_results(plan, h, err);
    cudnn_destroy(h);
    return ok;
}

// The number of a configuration's engine, and whether its results repeat as far as cuDNN says.
static bool describe_engine(Descriptor config, int64_t *number, bool *repeats, Error *err) {
    cudnnBackendNumericalNote_t notes[MAX_NOTES];
    int64_t count = 0, num_notes = 0;
    Descriptor e = cudnn_make(CUDNN_BACKEND_ENGINE_DESCRIPTOR, choosing, err);
    if (!e) return false;
    cudnnStatus_t status = cudnn.cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE,
                                                          CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &e);
    if (status == CUDNN_STATUS_SUCCESS)
        status = cudnn.cudnnBackendGetAttribute(e, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                                MAX_NOTES, &num_notes, notes);
    bool ok;
    if (status == CUDNN_STATUS_SUCCESS)
        ok = get_number(e, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, number, choosing, err);
    else
        ok = cudnn_failed(err, choosing, status);
    *repeats = true;
    for (int64_t i = 0; i < num_notes && i < MAX_NOTES; i++)
        if (notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) *repeats = false;
    cudnn_destroy(e);
    return ok;
}

// Keeps the configurations that fit into limit bytes and, unless any will do, repeat.
static bool keep_fitting(CudnnPlan *plan, bool must_repeat, int64_t limit, Error *err) {
    int kept = 0;
    int64_t smallest = INT64_MAX;
    for (int i = 0; i < plan->num_configs; i++) {
        Descriptor config = plan->configs[i];
        int64_t workspace = 0, number;
        bool repeats = false;
        if (!get_number(config, CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE, &workspace, choosing, err)) return false;
        if (!describe_engine(config, &number, &repeats, err)) return false;
        repeats = repeats || !must_repeat;
        if (repeats && workspace < smallest) smallest = workspace;
        plan->configs[i] = plan->configs[kept];
        plan->configs[kept] = config;
        if (!repeats || workspace > limit) continue;
        if (kept == 0) plan->workspace = workspace;
        kept += kept == 0 || workspace <= plan->workspace;
    }
    while (plan->num_configs > kept) cudnn_destroy(plan->configs[--plan->num_configs]);
    if (kept > 0) return true;
    if (smallest == INT64_MAX) return error_set(err, "no cuDNN engine for this attention is deterministic");
    return error_set(err, "cuDNN's attention needs %lld bytes of workspace, %lld are allowed", (long long)smallest,
                     (long long)limit);
}

// --------------------------------------------------------------------------------------------------------------- plans

CudnnPlan *cudnn_plan_create(const CudnnGraph *graph, Descriptor device, const CudnnEngine *engine, bool must_repeat,
                             int64_t max_workspace, Error *err) {
    CudnnPlan *plan = (CudnnPlan *)calloc(1, sizeof *plan);
    if (!plan) {
        error_set(err, "out of memory for a cuDNN plan");
        return NULL;
    }
    bool ok;
    if (engine)
        ok = configure(plan, graph, device, engine, err);
    else
        ok = ask_heuristics(plan, graph, device, err);
    if (ok && keep_fitting(plan, must_repeat, max_workspace, err)) return plan;
    cudnn_plan_destroy(plan);
    return NULL;
}

void cudnn_plan_destroy(CudnnPlan *plan) {
    if (!plan) return;
    cudnn_destroy(plan->compiled);
    for (int i = 0; i < plan->num_configs; i++) cudnn_destroy(plan->configs[i]);
    for (int i = 0; i < CUDNN_MAX_KNOBS; i++) cudnn_destroy(plan->knobs[i]);
    cudnn_destroy(plan->engine);
    free(plan);
}

bool cudnn_plan_compile(CudnnPlan *plan, Error *err) {
    if (plan->compiled) return true;
    for (int i = 0; i < plan->num_configs; i++) {
        Descriptor config = plan->configs[i], d = cudnn_make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, compiling, err);
        int64_t workspace = 0;
        bool repeats;
        bool ok = d && plan_refer(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config, compiling, err) &&
                  cudnn_finalize(d, compiling, err) &&
                  get_number(d, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, &workspace, compiling, err) &&
                  describe_engine(config, &plan->compiled_engine, &repeats, err);
        if (ok && workspace > plan->workspace)
            ok = error_set(err, "%s: needs %lld bytes of workspace, its engine said %lld", compiling,
                           (long long)workspace, (long long)plan->workspace);
        if (ok) {
            plan->compiled = d;
            return true;
        }
        cudnn_destroy(d);
    }
    return false;
}

Descriptor cudnn_plan_descriptor(const CudnnPlan *plan) { return plan->compiled; }
int64_t cudnn_plan_engine(const CudnnPlan *plan) { return plan->compiled_engine; }

// -------------------------------------------------------------------------------------------------------------- passes
// Forward there is one form, and it repeats. Backward, the question is in which order the contributions of the blocks
// of keys to dQ are added. No engine of cuDNN 9.19 carries the note NONDETERMINISTIC, so the notes do not answer it;
// NVIDIA's own front end (cudnn-frontend 1.2x) takes the forms below when it is asked for a deterministic backward
// pass.

// An architecture, a range of versions, and the form to take there. The first entry of a way that cuDNN accepts is
// taken.
typedef struct {
    AttentionPass pass;
    AttentionWay way;
    int first_capability, last_capability;
    int first_version, last_version;
    CudnnGraphKind kind;
    bool pinned; // to this engine; otherwise by the heuristics
    CudnnEngine engine;
} Form;

enum { ANY_CAPABILITY = 9999, ANY_VERSION = 999999 };

static const Form forms[] = {
    {.pass = ATTENTION_FORWARD,
     .way = BY_CUDNN_STORED,
     .first_capability = 80,
     .last_capability = ANY_CAPABILITY,
     .last_version = ANY_VERSION,
     .kind = CUDNN_FORWARD},
    // Blackwell's engine has stages = 2, "several kernels", for the form in which the matmul writes dQ. It needs no
    // workspace. The heuristics do not know it and would fall back to the kernel for sm_80.
    {.pass = ATTENTION_BACKWARD,
     .way = BY_CUDNN_STORED,
     .first_capability = 100,
     .last_capability = 103,
     .first_version = 91801,
     .last_version = 92299,
     .kind = CUDNN_BACKWARD,
     .pinned = true,
     .engine = {.number = 5, .num_knobs = 2, .knobs = {{CUDNN_KNOB_TYPE_KERNEL_CFG, 31}, {CUDNN_KNOB_TYPE_STAGES, 2}}}},
    // The same from 9.23 on, where the kernel's configuration is spelled in other knobs: tiles of 128 x 128.
    {.pass = ATTENTION_BACKWARD,
     .way = BY_CUDNN_STORED,
     .first_capability = 100,
     .last_capability = 103,
     .first_version = 92300,
     .last_version = ANY_VERSION,
     .kind = CUDNN_BACKWARD,
     .pinned = true,
     .engine = {.number = 5,
                .num_knobs = 6,
                .knobs = {{CUDNN_KNOB_TYPE_TILE_M, 3},
                          {CUDNN_KNOB_TYPE_TILE_N, 2},
                          {CUDNN_KNOB_TYPE_KERNEL_CFG, 2},
                          {CUDNN_KNOB_TYPE_STREAM_K, 0},
                          {CUDNN_KNOB_TYPE_TILE_CGA_M, 0},
                          {CUDNN_KNOB_TYPE_STAGES, 2}}}},
    {.pass = ATTENTION_BACKWARD,
     .way = BY_CUDNN_STORED,
     .first_capability = 80,
     .last_capability = ANY_CAPABILITY,
     .last_version = ANY_VERSION,
     .kind = CUDNN_BACKWARD},
    // Hopper's engine has stages = 4 from 9.25 on, in which the blocks wait for each other to add in order, in a
    // workspace that is linear in T; that of the form above is B * NH * T * T * 2 bytes. Which is faster is measured.
    {.pass = ATTENTION_BACKWARD,
     .way = BY_CUDNN_ORDERED,
     .first_capability = 90,
     .last_capability = 90,
     .first_version = 92500,
     .last_version = ANY_VERSION,
     .kind = CUDNN_BACKWARD_COLLECTED,
     .pinned = true,
     .engine = {.number = 6,
                .num_knobs = 6,
                .knobs = {{CUDNN_KNOB_TYPE_TILE_M, 2},
                          {CUDNN_KNOB_TYPE_TILE_N, 1},
                          {CUDNN_KNOB_TYPE_KERNEL_CFG, 2},
                          {CUDNN_KNOB_TYPE_STREAM_K, 0},
                          {CUDNN_KNOB_TYPE_TILE_CGA_M, 0},
                          {CUDNN_KNOB_TYPE_STAGES, 4}}}},
    // What llm.c and PyTorch run: blocks add to dQ in the order in which they get there.
    {.pass = ATTENTION_BACKWARD,
     .way = BY_CUDNN_UNORDERED,
     .first_capability = 80,
     .last_capability = ANY_CAPABILITY,
     .last_version = ANY_VERSION,
     .kind = CUDNN_BACKWARD_COLLECTED},
};

static int64_t padded_bytes(int64_t bytes) { return (bytes + 255) / 256 * 256; }

// The caller's buffers, in addition to the plan's own workspace.
static CudnnWorkspace pass_workspace(const CudnnPass *p, int64_t kernel_bytes) {
    const AttentionShape s = p->shape;
    const int64_t rows = s.B * s.NH * s.T * (int64_t)sizeof(float);
    CudnnWorkspace w = {0};
    w.dsum = padded_bytes(kernel_bytes);
    w.dq_sums = w.dsum;
    if (cudnn_graph_has(p->graph, CUDNN_DSUM)) w.dq_sums += padded_bytes(rows);
    w.bytes = w.dq_sums;
    if (cudnn_graph_has(p->graph, CUDNN_DQ_SUMS)) w.bytes += padded_bytes(rows * s.HS);
    return w;
}

static CudnnPass *create_pass(const Form *form, AttentionShape shape, cudnnBackendDescriptor_t device,
                              int64_t max_workspace, Error *err) {
    CudnnPass *p = (CudnnPass *)calloc(1, sizeof *p);
    if (!p) {
        error_set(err, "out of memory for cuDNN's attention");
        return NULL;
    }
    p->shape = shape;
    p->kind = form->kind;
    p->graph = cudnn_graph_create(form->kind, shape, err);
    if (p->graph) {
        const int64_t callers = pass_workspace(p, 0).bytes;
        const CudnnEngine *engine = NULL;
        if (form->pinned) engine = &form->engine;
        p->plan =
            cudnn_plan_create(p->graph, device, engine, form->way != BY_CUDNN_UNORDERED, max_workspace - callers, err);
    }
    if (p->plan) {
        p->workspace = pass_workspace(p, p->plan->workspace);
        return p;
    }
    cudnn_pass_destroy(p);
    return NULL;
}

CudnnPass *cudnn_pass_create(AttentionPass pass, AttentionShape shape, cudnnBackendDescriptor_t device,
                             int compute_capability, AttentionWay way, int64_t max_workspace, Error *err) {
    const int version = cudnn_library_version();
    if (compute_capability < 80)
        error_set(err, "cuDNN has no fused attention for sm_%d, only for sm_80 and newer", compute_capability);
    else if (shape.dtype != DTYPE_BF16 && shape.dtype != DTYPE_FP16)
        error_set(err, "cuDNN has no fused attention for %s", dtype_name(shape.dtype));
    else if (shape.HS % 8 != 0) // 16-byte rows, which the graphs promise
        error_set(err, "cuDNN has no fused attention for head size %lld", (long long)shape.HS);
    else
        for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
            const Form *f = &forms[i];
            if (f->pass != pass || f->way != way || compute_capability < f->first_capability ||
                compute_capability > f->last_capability || version < f->first_version || version > f->last_version)
                continue;
            CudnnPass *p = create_pass(f, shape, device, max_workspace, err);
            if (p) return p;
        }
    return NULL;
}

void cudnn_pass_destroy(CudnnPass *pass) {
    if (!pass) return;
    cudnn_plan_destroy(pass->plan);
    cudnn_graph_destroy(pass->graph);
    free(pass);
}

#endif
