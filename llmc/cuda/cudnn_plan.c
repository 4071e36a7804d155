// From a graph to a kernel: device properties, engine configurations, execution plans. See cudnn_plan.h.
#include "llmc/cuda/cudnn_plan.h"

#ifdef HAVE_CUDNN
#include <stdlib.h>
#include <string.h>

typedef cudnnBackendDescriptor_t Descriptor;

// The heuristics give 2 to 5 configurations for attention.
enum { MAX_CONFIGS = 8, MAX_NOTES = 16 };

// -------------------------------------------------------------------------------------------------- single descriptors

static Descriptor make(cudnnBackendDescriptorType_t type, const char *what, Error *err) {
    Descriptor d = NULL;
    const cudnnStatus_t status = cudnn.cudnnBackendCreateDescriptor(type, &d);
    if (status == CUDNN_STATUS_SUCCESS) return d;
    cudnn_failed(err, what, status);
    return NULL;
}

static void destroy(Descriptor d) {
    if (d) cudnn.cudnnBackendDestroyDescriptor(d);
}

static bool finalize(Descriptor d, const char *what, Error *err) {
    const cudnnStatus_t status = cudnn.cudnnBackendFinalize(d);
    return status == CUDNN_STATUS_SUCCESS || cudnn_failed(err, what, status);
}

static bool refer(Descriptor d, cudnnBackendAttributeName_t name, Descriptor to, const char *what, Error *err) {
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
    Descriptor d = make(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, what, err);
    if (d && cudnn_set(d, name, type, count, values, what, err) && finalize(d, what, err)) return d;
    destroy(d);
    return NULL;
}

Descriptor cudnn_device_of_gpu(int number, Error *err) {
    const int32_t id = number;
    return device_of(CUDNN_ATTR_DEVICEPROP_DEVICE_ID, CUDNN_TYPE_INT32, 1, &id, err);
}

Descriptor cudnn_device_of_text(const char *json, Error *err) {
    return device_of(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, (int64_t)strlen(json), json, err);
}

void cudnn_device_destroy(Descriptor device) { destroy(device); }

// ----------------------------------------------------------------------------------------------- engine configurations

struct CudnnPlan {
    Descriptor configs[MAX_CONFIGS]; // the better one first
    int num_configs;
    Descriptor engine, knobs[CUDNN_MAX_KNOBS]; // of an engine that was asked for by its number
    int64_t workspace;
    Descriptor compiled;
    int64_t compiled_engine;
};

static const char choosing[] = "cuDNN engine for attention", compiling[] = "cuDNN kernel for attention";

static bool make_knob(CudnnPlan *plan, int i, const CudnnEngine *engine, Error *err) {
    Descriptor d = plan->knobs[i] = make(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, choosing, err);
    return d &&
           cudnn_set(d, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &engine->knobs[i].type, choosing,
                     err) &&
           cudnn_set(d, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, &engine->knobs[i].value, choosing,
                     err) &&
           finalize(d, choosing, err);
}

// The one configuration that engine describes.
static bool configure(CudnnPlan *plan, const CudnnGraph *graph, Descriptor device, const CudnnEngine *engine,
                      Error *err) {
    Descriptor e = plan->engine = make(CUDNN_BACKEND_ENGINE_DESCRIPTOR, choosing, err);
    if (!e || !refer(e, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, cudnn_graph_descriptor(graph), choosing, err) ||
        !cudnn_set(e, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &engine->number, choosing, err) ||
        !refer(e, CUDNN_ATTR_ENGINE_DEVICEPROP, device, choosing, err) || !finalize(e, choosing, err))
        return false;
    for (int i = 0; i < engine->num_knobs; i++)
        if (!make_knob(plan, i, engine, err)) return false;
    Descriptor config = plan->configs[0] = make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, choosing, err);
    plan->num_configs = config ? 1 : 0;
    return config && refer(config, CUDNN_ATTR_ENGINECFG_ENGINE, e, choosing, err) &&
           cudnn_set(config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR, engine->num_knobs,
                     plan->knobs, choosing, err) &&
           finalize(config, choosing, err);
}

// Configurations in the order of cuDNN's heuristics.
static bool read_results(CudnnPlan *plan, Descriptor heuristics, Error *err) {
    for (; plan->num_configs < MAX_CONFIGS; plan->num_configs++) {
        Descriptor d = make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, choosing, err);
        if (!d) return false;
        plan->configs[plan->num_configs] = d;
    }
    int64_t count = 0;
    const cudnnStatus_t status = cudnn.cudnnBackendGetAttribute(
        heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, MAX_CONFIGS, &count, plan->configs);
    if (status != CUDNN_STATUS_SUCCESS) return cudnn_failed(err, choosing, status);
    while (plan->num_configs > count) destroy(plan->configs[--plan->num_configs]);
    return count > 0 || cudnn_failed(err, "cuDNN has no engine for this attention", CUDNN_STATUS_NOT_SUPPORTED);
}

static bool ask_heuristics(CudnnPlan *plan, const CudnnGraph *graph, Descriptor device, Error *err) {
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    Descriptor h = make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, choosing, err);
    const bool ok = h &&
                    refer(h, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, cudnn_graph_descriptor(graph), choosing, err) &&
                    cudnn_set(h, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode, choosing, err) &&
                    refer(h, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, device, choosing, err) && finalize(h, choosing, err) &&
                    read_results(plan, h, err);
    destroy(h);
    return ok;
}

// The number of a configuration's engine, and whether its results repeat as far as cuDNN says.
static bool describe_engine(Descriptor config, int64_t *number, bool *repeats, Error *err) {
    cudnnBackendNumericalNote_t notes[MAX_NOTES];
    int64_t count = 0, num_notes = 0;
    Descriptor e = make(CUDNN_BACKEND_ENGINE_DESCRIPTOR, choosing, err);
    if (!e) return false;
    cudnnStatus_t status = cudnn.cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE,
                                                          CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &e);
    if (status == CUDNN_STATUS_SUCCESS)
        status = cudnn.cudnnBackendGetAttribute(e, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                                MAX_NOTES, &num_notes, notes);
    const bool ok = status == CUDNN_STATUS_SUCCESS
                        ? get_number(e, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, number, choosing, err)
                        : cudnn_failed(err, choosing, status);
    *repeats = true;
    for (int64_t i = 0; i < num_notes && i < MAX_NOTES; i++)
        if (notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) *repeats = false;
    destroy(e);
    return ok;
}

// Keeps the configurations that fit into limit bytes and repeat.
static bool keep_fitting(CudnnPlan *plan, int64_t limit, Error *err) {
    int kept = 0;
    int64_t smallest = INT64_MAX;
    for (int i = 0; i < plan->num_configs; i++) {
        Descriptor config = plan->configs[i];
        int64_t workspace = 0, number;
        bool repeats = false;
        if (!get_number(config, CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE, &workspace, choosing, err)) return false;
        if (!describe_engine(config, &number, &repeats, err)) return false;
        if (repeats && workspace < smallest) smallest = workspace;
        plan->configs[i] = plan->configs[kept];
        plan->configs[kept] = config;
        if (!repeats || workspace > limit) continue;
        if (kept == 0) plan->workspace = workspace;
        kept += kept == 0 || workspace <= plan->workspace;
    }
    while (plan->num_configs > kept) destroy(plan->configs[--plan->num_configs]);
    if (kept > 0) return true;
    if (smallest == INT64_MAX) return error_set(err, "no engine of cuDNN for this attention repeats its results");
    return error_set(err, "cuDNN's attention needs %lld bytes of workspace, %lld are allowed", (long long)smallest,
                     (long long)limit);
}

// --------------------------------------------------------------------------------------------------------------- plans

CudnnPlan *cudnn_plan_create(const CudnnGraph *graph, Descriptor device, const CudnnEngine *engine,
                             int64_t max_workspace, Error *err) {
    CudnnPlan *plan = (CudnnPlan *)calloc(1, sizeof *plan);
    if (!plan) {
        error_set(err, "out of memory for a cuDNN plan");
        return NULL;
    }
    const bool ok = engine ? configure(plan, graph, device, engine, err) : ask_heuristics(plan, graph, device, err);
    if (ok && keep_fitting(plan, max_workspace, err)) return plan;
    cudnn_plan_destroy(plan);
    return NULL;
}

void cudnn_plan_destroy(CudnnPlan *plan) {
    if (!plan) return;
    destroy(plan->compiled);
    for (int i = 0; i < plan->num_configs; i++) destroy(plan->configs[i]);
    for (int i = 0; i < CUDNN_MAX_KNOBS; i++) destroy(plan->knobs[i]);
    destroy(plan->engine);
    free(plan);
}

int64_t cudnn_plan_workspace(const CudnnPlan *plan) { return plan->workspace; }

static bool compile(CudnnPlan *plan, Descriptor config, Error *err) {
    int64_t workspace = 0;
    bool repeats;
    Descriptor d = make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, compiling, err);
    bool ok = d && refer(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config, compiling, err) &&
              finalize(d, compiling, err) &&
              get_number(d, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, &workspace, compiling, err) &&
              describe_engine(config, &plan->compiled_engine, &repeats, err);
    if (ok && workspace > plan->workspace)
        ok = error_set(err, "%s: needs %lld bytes of workspace, its engine said %lld", compiling, (long long)workspace,
                       (long long)plan->workspace);
    if (ok)
        plan->compiled = d;
    else
        destroy(d);
    return ok;
}

bool cudnn_plan_compile(CudnnPlan *plan, Error *err) {
    for (int i = 0; i < plan->num_configs && !plan->compiled; i++) compile(plan, plan->configs[i], err);
    return plan->compiled != NULL;
}

Descriptor cudnn_plan_descriptor(const CudnnPlan *plan) { return plan->compiled; }
int64_t cudnn_plan_engine(const CudnnPlan *plan) { return plan->compiled_engine; }

#endif
