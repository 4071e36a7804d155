// From a graph to a kernel: device properties, engine configurations, execution plans; and the
// choice among the forms in which cuDNN computes a pass of attention. See cudnn_graph.h.
#include "llmc/cuda/cudnn_graph.h"

#ifdef HAVE_CUDNN
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef cudnnBackendDescriptor_t Descriptor;

enum { MAX_NOTES = 16 };

static void get_number(CudnnBuild *b, Descriptor d, cudnnBackendAttributeName_t name,
                       int64_t *value) {
    int64_t count = 0;
    if (b->failed) return;
    cudnn_check(b, cudnn.cudnnBackendGetAttribute(d, name, CUDNN_TYPE_INT64, 1, &count, value));
    if (b->failed || count == 1) return;
    b->failed = true;
    error_set(b->err, "%s: attribute %d has %lld values, not 1", b->what, (int)name,
              (long long)count);
}

// ------------------------------------------------------------------------------------------ device

static Descriptor device_of(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                            int64_t count, const void *values, Error *err) {
    CudnnBuild b = {.what = "cuDNN device properties", .err = err};
    Descriptor d = cudnn_make(&b, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    cudnn_set(&b, d, name, type, count, values);
    cudnn_finalize(&b, d);
    if (!b.failed) return d;
    cudnn_destroy(d);
    return NULL;
}

Descriptor cudnn_device_of_gpu(int number, Error *err) {
    const int32_t id = number;
    return device_of(CUDNN_ATTR_DEVICEPROP_DEVICE_ID, CUDNN_TYPE_INT32, 1, &id, err);
}

Descriptor cudnn_device_of_text(const char *json, Error *err) {
    return device_of(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                     (int64_t)strlen(json), json, err);
}

// --------------------------------------------------------------------------- engine configurations

// The one configuration that engine describes.
static void configure(CudnnPlan *plan, CudnnBuild *b, const CudnnGraph *graph, Descriptor device,
                      const CudnnEngine *engine) {
    plan->engine = cudnn_make(b, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    cudnn_refer(b, plan->engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, cudnn_graph_descriptor(graph));
    cudnn_set(b, plan->engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1,
              &engine->number);
    cudnn_refer(b, plan->engine, CUDNN_ATTR_ENGINE_DEVICEPROP, device);
    cudnn_finalize(b, plan->engine);
    for (int i = 0; i < engine->num_knobs; i++) {
        Descriptor d = plan->knobs[i] = cudnn_make(b, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
        cudnn_set(b, d, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1,
                  &engine->knobs[i].type);
        cudnn_set(b, d, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1,
                  &engine->knobs[i].value);
        cudnn_finalize(b, d);
    }
    Descriptor config = plan->configs[0] = cudnn_make(b, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    plan->num_configs = 1;
    cudnn_refer(b, config, CUDNN_ATTR_ENGINECFG_ENGINE, plan->engine);
    cudnn_set(b, config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR,
              engine->num_knobs, plan->knobs);
    cudnn_finalize(b, config);
}

// Configurations in the order of cuDNN's heuristics.
static void ask_heuristics(CudnnPlan *plan, CudnnBuild *b, const CudnnGraph *graph,
                           Descriptor device) {
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    int64_t count = 0;
    Descriptor h = cudnn_make(b, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    cudnn_refer(b, h, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, cudnn_graph_descriptor(graph));
    cudnn_set(b, h, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    cudnn_refer(b, h, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, device);
    cudnn_finalize(b, h);
    for (; plan->num_configs < CUDNN_MAX_CONFIGS; plan->num_configs++)
        plan->configs[plan->num_configs] = cudnn_make(b, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (!b->failed)
        cudnn_check(b, cudnn.cudnnBackendGetAttribute(h, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                                      CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                                      CUDNN_MAX_CONFIGS, &count, plan->configs));
    cudnn_destroy(h);
    while (plan->num_configs > count) cudnn_destroy(plan->configs[--plan->num_configs]);
    if (b->failed || count > 0) return;
    b->what = "cuDNN has no engine for this attention";
    cudnn_check(b, CUDNN_STATUS_NOT_SUPPORTED);
}

// The number of a configuration's engine, and whether its results repeat as far as cuDNN says.
static void describe_engine(CudnnBuild *b, Descriptor config, int64_t *number, bool *repeats) {
    cudnnBackendNumericalNote_t notes[MAX_NOTES];
    int64_t count = 0, num_notes = 0;
    Descriptor e = cudnn_make(b, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    if (!b->failed)
        cudnn_check(b,
                    cudnn.cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE,
                                                   CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &e));
    if (!b->failed)
        cudnn_check(b, cudnn.cudnnBackendGetAttribute(e, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                                      CUDNN_TYPE_NUMERICAL_NOTE, MAX_NOTES,
                                                      &num_notes, notes));
    get_number(b, e, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, number);
    *repeats = true;
    for (int64_t i = 0; i < num_notes && i < MAX_NOTES; i++)
        if (notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) *repeats = false;
    cudnn_destroy(e);
}

// Keeps the configurations that fit into limit bytes and, unless any will do, repeat.
static bool keep_fitting(CudnnPlan *plan, CudnnBuild *b, bool must_repeat, int64_t limit) {
    int kept = 0;
    int64_t smallest = INT64_MAX;
    for (int i = 0; i < plan->num_configs; i++) {
        Descriptor config = plan->configs[i];
        int64_t workspace = 0, number;
        bool repeats = false;
        get_number(b, config, CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE, &workspace);
        describe_engine(b, config, &number, &repeats);
        if (b->failed) return false;

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
    if (smallest == INT64_MAX)
        return error_set(b->err, "no cuDNN engine for this attention is deterministic");
    return error_set(b->err, "cuDNN's attention needs %lld bytes of workspace, %lld are allowed",
                     (long long)smallest, (long long)limit);
}

// ------------------------------------------------------------------------------------------- plans

CudnnPlan *cudnn_plan_create(const CudnnGraph *graph, Descriptor device, const CudnnEngine *engine,
                             bool must_repeat, int64_t max_workspace, Error *err) {
    CudnnPlan *plan = (CudnnPlan *)calloc(1, sizeof *plan);
    if (!plan) {
        error_set(err, "out of memory for a cuDNN plan");
        return NULL;
    }
    CudnnBuild b = {.what = "cuDNN engine for attention", .err = err};
    if (engine)
        configure(plan, &b, graph, device, engine);
    else
        ask_heuristics(plan, &b, graph, device);
    if (!b.failed && keep_fitting(plan, &b, must_repeat, max_workspace)) return plan;
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
        CudnnBuild b = {.what = "cuDNN kernel for attention", .err = err};
        Descriptor config = plan->configs[i],
                   d = cudnn_make(&b, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
        int64_t workspace = 0;
        bool repeats;

        cudnn_refer(&b, d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
        cudnn_finalize(&b, d);
        get_number(&b, d, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, &workspace);
        describe_engine(&b, config, &plan->compiled_engine, &repeats);

        if (!b.failed && workspace <= plan->workspace) {
            plan->compiled = d;
            return true;
        }
        if (!b.failed)
            error_set(err, "%s: needs %lld bytes of workspace, its engine said %lld", b.what,
                      (long long)workspace, (long long)plan->workspace);
        cudnn_destroy(d);
    }
    return false;
}

// ------------------------------------------------------------------------------------------ passes
// Forward there is one form, and it repeats. Backward, the question is in which order the
// contributions of the blocks of keys to dQ are added. No engine of cuDNN 9.19 carries the note
// NONDETERMINISTIC, so the notes do not answer it; NVIDIA's own front end (cudnn-frontend 1.2x)
// takes the forms below when it is asked for a deterministic backward pass.

// A pass, a way of it, the architectures and the versions of cuDNN, first and last, and the form to
// take there: by this engine, or by the heuristics where it has no knobs. The first entry of a way
// that cuDNN accepts is taken.
typedef struct {
    AttentionPass pass;
    AttentionWay way;
    int first_capability, last_capability, first_version, last_version;
    CudnnGraphKind kind;
    CudnnEngine engine;
} Form;

enum { ANY = 999999 };

// clang-format off
static const Form forms[] = {
    {ATTENTION_FORWARD, BY_CUDNN_STORED, 80, ANY, 0, ANY, CUDNN_FORWARD, {0}},
    // Blackwell's engine has stages = 2, "several kernels", for the form in which the matmul writes
    // dQ. It needs no workspace. The heuristics do not know it and would fall back to the kernel
    // for sm_80.
    {ATTENTION_BACKWARD, BY_CUDNN_STORED, 100, 103, 91801, 92299, CUDNN_BACKWARD,
     {5, 2, {{CUDNN_KNOB_TYPE_KERNEL_CFG, 31}, {CUDNN_KNOB_TYPE_STAGES, 2}}}},
    // The same from 9.23 on, where the kernel's configuration is spelled in other knobs: tiles of
    // 128 x 128.
    {ATTENTION_BACKWARD, BY_CUDNN_STORED, 100, 103, 92300, ANY, CUDNN_BACKWARD,
     {5, 6, {{CUDNN_KNOB_TYPE_TILE_M, 3}, {CUDNN_KNOB_TYPE_TILE_N, 2},
             {CUDNN_KNOB_TYPE_KERNEL_CFG, 2}, {CUDNN_KNOB_TYPE_STREAM_K, 0},
             {CUDNN_KNOB_TYPE_TILE_CGA_M, 0}, {CUDNN_KNOB_TYPE_STAGES, 2}}}},
    {ATTENTION_BACKWARD, BY_CUDNN_STORED, 80, ANY, 0, ANY, CUDNN_BACKWARD, {0}},
    // Hopper's engine has stages = 4 from 9.25 on, in which the blocks wait for each other to add
    // in order, in a workspace that is linear in T; that of the form above is B * NH * T * T * 2
    // bytes. Which is faster is measured.
    {ATTENTION_BACKWARD, BY_CUDNN_ORDERED, 90, 90, 92500, ANY, CUDNN_BACKWARD_COLLECTED,
     {6, 6, {{CUDNN_KNOB_TYPE_TILE_M, 2}, {CUDNN_KNOB_TYPE_TILE_N, 1},
             {CUDNN_KNOB_TYPE_KERNEL_CFG, 2}, {CUDNN_KNOB_TYPE_STREAM_K, 0},
             {CUDNN_KNOB_TYPE_TILE_CGA_M, 0}, {CUDNN_KNOB_TYPE_STAGES, 4}}}},
    // llm.c and PyTorch run this one: blocks add to dQ in the order in which they get there.
    {ATTENTION_BACKWARD, BY_CUDNN_UNORDERED, 80, ANY, 0, ANY, CUDNN_BACKWARD_COLLECTED, {0}},
};
// clang-format on

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

static CudnnPass *create_pass(const Form *form, AttentionShape shape,
                              cudnnBackendDescriptor_t device, int64_t max_workspace, Error *err) {
    CudnnPass *p = (CudnnPass *)calloc(1, sizeof *p);
    if (!p) {
        error_set(err, "out of memory for cuDNN's attention");
        return NULL;
    }
    p->shape = shape;
    p->kind = form->kind;
    p->scale = 1.0f / sqrtf((float)shape.HS);
    p->graph = cudnn_graph_create(form->kind, shape, err);
    if (p->graph) {
        const int64_t callers = pass_workspace(p, 0).bytes;
        const CudnnEngine *engine = NULL;
        if (form->engine.num_knobs > 0) engine = &form->engine;
        p->plan = cudnn_plan_create(p->graph, device, engine, form->way != BY_CUDNN_UNORDERED,
                                    max_workspace - callers, err);
    }
    if (p->plan) {
        p->workspace = pass_workspace(p, p->plan->workspace);
        return p;
    }
    cudnn_pass_destroy(p);
    return NULL;
}

CudnnPass *cudnn_pass_create(AttentionPass pass, AttentionShape shape,
                             cudnnBackendDescriptor_t device, int compute_capability,
                             AttentionWay way, int64_t max_workspace, Error *err) {
    const int version = cudnn_library_version();
    if (compute_capability < 80)
        error_set(err, "cuDNN has no fused attention for sm_%d, only for sm_80 and newer",
                  compute_capability);
    else if (shape.dtype != DTYPE_BF16 && shape.dtype != DTYPE_FP16)
        error_set(err, "cuDNN has no fused attention for %s", dtype_name(shape.dtype));
    else if (shape.HS % 8 != 0) // 16-byte rows, which the graphs promise
        error_set(err, "cuDNN has no fused attention for head size %lld", (long long)shape.HS);
    else
        for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
            const Form *f = &forms[i];
            if (f->pass != pass || f->way != way || compute_capability < f->first_capability ||
                compute_capability > f->last_capability || version < f->first_version ||
                version > f->last_version)
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
