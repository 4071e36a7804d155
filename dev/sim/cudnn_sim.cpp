// cuDNN's backend API on the CPU: takes the place of llmc/cuda/cudnn_library.c, so that everything
// above it is the real code: graphs, engines, workspaces, pointers, launches under capture.
//
// A graph is not recognised but interpreted (cudnn_program.cpp), so that one which is wired wrongly
// gives wrong numbers here, where cuDNN may take it for the attention that it looks like. What
// cuDNN checks, or a GPU would do to wrong pointers, is checked: references to unfinished
// descriptors, alignment, ranges, the workspace. What it would refuse because it has no kernel is
// not known here; that is test/sim/test_cudnn_graphs.c.
#include "dev/sim/cudnn_sim.h"
#include "dev/sim/runtime.h"
#include "llmc/cuda/cudnn_graph.h"

#include <math.h>
#include <memory>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <string>
#include <vector>

SimCudnnCounts sim_cudnn_counts;

static int version; // as with the library itself, 0 until cudnn_library_open has succeeded
static char version_text[32];

// llmc's error_set; the simulator links with nothing of llmc.
static bool refuse(Error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool refuse(Error *err, const char *format, ...) {
    va_list args;
    va_start(args, format);
    if (err) vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    return false;
}

extern "C" {
int cudnn_library_version(void) { return version; }
const char *cudnn_library_version_text(void) { return version_text; }
}

#ifndef HAVE_CUDNN
extern "C" bool cudnn_library_open(Error *err) {
    return refuse(err, "built without the headers of cuDNN");
}
#else
#include "dev/sim/cudnn_program.h"

// Whether SIM_CUDNN has this vice, for all graphs or for those of the kind of this one.
static bool asked_for(const char *vice, const sim::dnn::Program *p) {
    const std::string kind = p->form();
    const std::string list =
        "," + std::string(sim::setting("SIM_CUDNN") ? sim::setting("SIM_CUDNN") : "") + ",";
    return list.find("," + std::string(vice) + ",") != list.npos ||
           list.find("," + kind + ":" + vice + ",") != list.npos;
}

extern "C" {
bool cudnn_library_open(Error *err) {
    const char *list = sim::setting("SIM_CUDNN");
    version = list ? atoi(list) : 0;
    if (version == 1) version = 91900;
    if (version == 0)
        return refuse(err, "cuDNN not found: the simulator has one when SIM_CUDNN is set");
    snprintf(version_text, sizeof version_text, "%d.%d.%d", version / 10000, version / 100 % 100,
             version % 100);
    return true;
}
bool cudnn_failed(Error *err, const char *what, cudnnStatus_t status) {
    return refuse(err, "%s: simulated cuDNN, status %d", what, (int)status);
}
}

namespace {
using namespace sim::dnn;

// ------------------------------------------------------------------------------------- descriptors

struct Attribute {
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t count;
    std::vector<char> bytes;
};

struct Descriptor {
    cudnnBackendDescriptorType_t type;
    bool finalized = false;
    std::vector<Attribute> attributes;
    std::shared_ptr<const Program> program; // of a graph, and of what is made from it
    int64_t workspace = 0;                  // of an engine configuration and a plan

    const Attribute *find(cudnnBackendAttributeName_t name) const {
        for (const Attribute &a : attributes)
            if (a.name == name) return &a;
        return nullptr;
    }
    template <class T> T value(cudnnBackendAttributeName_t name, T otherwise) const {
        const Attribute *a = find(name);
        T v = otherwise;
        if (a) memcpy((void *)&v, a->bytes.data(), sizeof v);
        return v;
    }
    const Descriptor *refers(cudnnBackendAttributeName_t name) const {
        return (const Descriptor *)value<void *>(name, nullptr);
    }
};

size_t bytes_of(cudnnBackendAttributeType_t type) {
    switch (type) {
    case CUDNN_TYPE_BOOLEAN:
        return sizeof(bool);
    case CUDNN_TYPE_CHAR:
        return 1;
    case CUDNN_TYPE_INT64:
        return 8;
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
        return sizeof(void *);
    default:
        return 4; // int32, float and enumerations
    }
}

// ---------------------------------------------------------------------------------------- programs

int place_of(Program &p, const Descriptor *d) {
    if (!d) return NO_TENSOR;
    Tensor4 t = {};
    t.id = d->value<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID, -1);
    for (size_t i = 0; i < p.tensors.size(); i++)
        if (p.tensors[i].id == t.id) return (int)i;

    t.alignment = d->value<int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 1);
    t.type = d->value(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_DATA_FLOAT);
    t.is_virtual = d->value(CUDNN_ATTR_TENSOR_IS_VIRTUAL, false);
    t.by_value = d->value(CUDNN_ATTR_TENSOR_IS_BY_VALUE, false);
    memcpy(t.dims, d->find(CUDNN_ATTR_TENSOR_DIMENSIONS)->bytes.data(), sizeof t.dims);
    memcpy(t.strides, d->find(CUDNN_ATTR_TENSOR_STRIDES)->bytes.data(), sizeof t.strides);

    p.tensors.push_back(t);
    return (int)p.tensors.size() - 1;
}

Step step_of(Program &p, const Descriptor *d) {
    Step s = {POINTWISE, 0, 0, NO_TENSOR, NO_TENSOR, NO_TENSOR, NO_TENSOR};

    if (d->type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR) {
        const Descriptor *kind = d->refers(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
        s.mode = kind->value<int>(CUDNN_ATTR_POINTWISE_MODE, -1);
        s.axis = kind->value<int64_t>(CUDNN_ATTR_POINTWISE_AXIS, -1);
        s.x = place_of(p, d->refers(CUDNN_ATTR_OPERATION_POINTWISE_XDESC));
        s.b = place_of(p, d->refers(CUDNN_ATTR_OPERATION_POINTWISE_BDESC));
        s.t = place_of(p, d->refers(CUDNN_ATTR_OPERATION_POINTWISE_TDESC));
        s.y = place_of(p, d->refers(CUDNN_ATTR_OPERATION_POINTWISE_YDESC));
    } else if (d->type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR) {
        s.kind = MATMUL;
        s.x = place_of(p, d->refers(CUDNN_ATTR_OPERATION_MATMUL_ADESC));
        s.b = place_of(p, d->refers(CUDNN_ATTR_OPERATION_MATMUL_BDESC));
        s.y = place_of(p, d->refers(CUDNN_ATTR_OPERATION_MATMUL_CDESC));
    } else if (d->type == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR) {
        s.kind = REDUCTION;
        s.mode = d->refers(CUDNN_ATTR_OPERATION_REDUCTION_DESC)
                     ->value<int>(CUDNN_ATTR_REDUCTION_OPERATOR, -1);
        s.x = place_of(p, d->refers(CUDNN_ATTR_OPERATION_REDUCTION_XDESC));
        s.y = place_of(p, d->refers(CUDNN_ATTR_OPERATION_REDUCTION_YDESC));
    } else {
        s.kind = RESHAPE;
        s.x = place_of(p, d->refers(CUDNN_ATTR_OPERATION_RESHAPE_XDESC));
        s.y = place_of(p, d->refers(CUDNN_ATTR_OPERATION_RESHAPE_YDESC));
    }

    return s;
}

// False when an operation reads a tensor between operations that none before it has written, or
// lacks an operand.
bool is_in_order(const Program &p) {
    std::vector<bool> written(p.tensors.size());
    for (const Step &s : p.steps) {
        if (s.x == NO_TENSOR || s.y == NO_TENSOR) return false;
        for (int in : {s.x, s.b, s.t})
            if (in != NO_TENSOR && p.tensors[(size_t)in].is_virtual && !written[(size_t)in])
                return false;
        written[(size_t)s.y] = true;
    }
    return !p.steps.empty();
}

bool make_program(Descriptor *graph) {
    auto p = std::make_shared<Program>();
    const Attribute *ops = graph->find(CUDNN_ATTR_OPERATIONGRAPH_OPS);
    for (int64_t i = 0; ops && i < ops->count; i++) {
        const Descriptor *d;
        memcpy((void *)&d, ops->bytes.data() + (size_t)i * sizeof d, sizeof d);
        p->steps.push_back(step_of(*p, d));
    }
    if (!is_in_order(*p)) return false;

    // The workspace is as on most GPUs: where a matmul writes dQ, the scores are kept, as elements
    // of 16 bits. They are the square tensors.
    if (strcmp(p->form(), "stored") == 0)
        for (const Tensor4 &t : p->tensors)
            if (t.is_virtual && t.dims[2] == t.dims[3])
                p->workspace = t.dims[0] * t.dims[1] * t.dims[2] * t.dims[3] * 2;

    for (const Step &s : p->steps) { // dK and dV of each head of q, before they are added up
        const Tensor4 &x = p->tensors[(size_t)s.x], &y = p->tensors[(size_t)s.y];
        if (s.kind == REDUCTION && x.dims[1] != y.dims[1])
            p->workspace += x.extent() * (int64_t)x.element();
    }

    graph->program = p;
    return true;
}

// ----------------------------------------------------------------------------------------- the API

struct Handle {
    cudaStream_t stream = nullptr;
};

cudnnStatus_t create(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *d) {
    Descriptor *made = new Descriptor;
    made->type = type;
    sim_cudnn_counts.descriptors++;
    *d = made;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t destroy(cudnnBackendDescriptor_t d) {
    sim_cudnn_counts.descriptors -= d != nullptr;
    delete (Descriptor *)d;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t set_attribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                            cudnnBackendAttributeType_t type, int64_t count, const void *values) {
    Descriptor *d = (Descriptor *)descriptor;
    if (!d || d->finalized || count < 0 || !values) return CUDNN_STATUS_BAD_PARAM;
    if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR)
        for (int64_t i = 0; i < count; i++) {
            const Descriptor *to = ((Descriptor *const *)values)[i];
            if (!to || !to->finalized) return CUDNN_STATUS_BAD_PARAM;
        }
    const char *bytes = (const char *)values;
    for (Attribute &a : d->attributes)
        if (a.name == name) {
            a.type = type, a.count = count;
            a.bytes.assign(bytes, bytes + (size_t)count * bytes_of(type));
            return CUDNN_STATUS_SUCCESS;
        }
    d->attributes.push_back({name, type, count, {bytes, bytes + (size_t)count * bytes_of(type)}});
    return CUDNN_STATUS_SUCCESS;
}

bool has(const Descriptor *d, std::initializer_list<cudnnBackendAttributeName_t> names) {
    for (cudnnBackendAttributeName_t name : names)
        if (!d->find(name)) return false;
    return true;
}

cudnnStatus_t finalize(cudnnBackendDescriptor_t descriptor) {
    Descriptor *d = (Descriptor *)descriptor;
    if (!d || d->finalized) return CUDNN_STATUS_BAD_PARAM;

    bool ok = true;
    const Descriptor *from = nullptr;
    switch (d->type) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR:
        ok = has(d, {CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_ATTR_TENSOR_DIMENSIONS,
                     CUDNN_ATTR_TENSOR_STRIDES, CUDNN_ATTR_TENSOR_UNIQUE_ID,
                     CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT});
        break;
    case CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR:
        ok = has(d, {CUDNN_ATTR_DEVICEPROP_DEVICE_ID});
        break;
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
        ok = make_program(d);
        break;
    case CUDNN_BACKEND_ENGINE_DESCRIPTOR:
        ok = has(d, {CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_ATTR_ENGINE_DEVICEPROP});
        from = d->refers(CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
        break;
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
        ok = has(d, {CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP});
        from = d->refers(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
        break;
    case CUDNN_BACKEND_ENGINECFG_DESCRIPTOR: // an engine that was asked for by its number: those
                                             // need little
        from = d->refers(CUDNN_ATTR_ENGINECFG_ENGINE);
        d->workspace = 256;
        break;
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
        from = d->refers(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
        d->workspace = from ? from->workspace : 0;
        if (from && asked_for("uncompilable", from->program.get()))
            return CUDNN_STATUS_INTERNAL_ERROR_COMPILATION_FAILED;
        sim_cudnn_counts.compiled++;
        break;
    default:
        d->finalized = true;
        return CUDNN_STATUS_SUCCESS; // kinds of operations, operations, knobs, packs
    }

    if (from) d->program = from->program;
    const bool needs_program = d->type != CUDNN_BACKEND_TENSOR_DESCRIPTOR &&
                               d->type != CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR;
    d->finalized = ok && (!needs_program || d->program);
    return d->finalized ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}

// An empty descriptor becomes another one's image, as cuDNN fills those that it is given.
void fill(Descriptor *empty, std::shared_ptr<const Program> program,
          cudnnBackendAttributeName_t name, int64_t value) {
    empty->program = program;
    empty->finalized = true;
    const char *bytes = (const char *)&value;
    empty->attributes.push_back({name, CUDNN_TYPE_INT64, 1, {bytes, bytes + sizeof value}});
}

cudnnStatus_t get_attribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                            cudnnBackendAttributeType_t, int64_t requested, int64_t *count,
                            void *values) {
    const Descriptor *d = (const Descriptor *)descriptor;
    if (!d || !d->finalized || requested < 1) return CUDNN_STATUS_BAD_PARAM;
    *count = 1;
    switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:
        *count = asked_for("engineless", d->program.get()) ? 0 : 1;
        if (*count) fill(((Descriptor **)values)[0], d->program, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, 1);
        if (*count) ((Descriptor **)values)[0]->workspace = d->program->workspace;
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINECFG_ENGINE: {
        const Descriptor *engine = d->refers(CUDNN_ATTR_ENGINECFG_ENGINE);
        fill(((Descriptor **)values)[0], d->program, CUDNN_ATTR_ENGINE_GLOBAL_INDEX,
             (engine ? engine : d)->value<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, -1));
        return CUDNN_STATUS_SUCCESS;
    }
    case CUDNN_ATTR_ENGINE_GLOBAL_INDEX:
        *(int64_t *)values = d->value<int64_t>(name, -1);
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
        *count = asked_for("noted", d->program.get()) ? 1 : 0;
        if (*count) *(cudnnBackendNumericalNote_t *)values = CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE:
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
        *(int64_t *)values = d->workspace;
        return CUDNN_STATUS_SUCCESS;
    default:
        return CUDNN_STATUS_NOT_SUPPORTED;
    }
}

// The pointer that the pack has for a tensor; null when it has none.
char *pointer_of(const Descriptor *pack, int64_t id) {
    const Attribute *ids = pack->find(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    const Attribute *pointers = pack->find(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    for (int64_t i = 0; ids && pointers && i < ids->count && i < pointers->count; i++) {
        int64_t found;
        char *pointer;
        memcpy(&found, ids->bytes.data() + i * 8, 8);
        memcpy(&pointer, pointers->bytes.data() + i * (int64_t)sizeof pointer, sizeof pointer);
        if (found == id) return pointer;
    }
    return nullptr;
}

bool fits(const Tensor4 &t, const char *p) {
    if (!p) {
        sim::set_error(cudaSuccess, "cuDNN: no pointer for tensor %d", (int)t.id);
        return false;
    }

    if (t.by_value) return true;
    if ((uintptr_t)p % (uintptr_t)t.alignment) {
        sim::set_error(cudaSuccess, "cuDNN: tensor %d is not aligned to %d bytes", (int)t.id,
                       (int)t.alignment);
        return false;
    }

    if (sim::memory_kind(p, (size_t)t.extent() * t.element()) == sim::DEVICE) return true;
    sim::set_error(cudaSuccess, "cuDNN: tensor %d is not within one allocation of the device",
                   (int)t.id);
    return false;
}

cudnnStatus_t execute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                      cudnnBackendDescriptor_t variant) {
    const Descriptor *p = (const Descriptor *)plan, *pack = (const Descriptor *)variant;
    if (!handle || !p || !p->finalized || !pack || !pack->finalized) return CUDNN_STATUS_BAD_PARAM;
    auto launch = std::unique_ptr<Launch>(new Launch{p->program, {}, {}, nullptr, 0, false, false});
    const float factor = asked_for("wrong", p->program.get()) ? 1.5f : 1.0f;
    for (const Tensor4 &t : p->program->tensors) {
        char *pointer = t.is_virtual ? nullptr : pointer_of(pack, t.id);
        if (!t.is_virtual && !fits(t, pointer)) return CUDNN_STATUS_BAD_PARAM;
        launch->memory.push_back(pointer);
        // read at the call
        launch->constants.push_back(t.by_value ? factor * *(const float *)pointer : NAN);
    }
    launch->workspace = pack->value<char *>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, nullptr);
    launch->workspace_bytes = (size_t)p->workspace;
    if (sim::memory_kind(launch->workspace, launch->workspace_bytes) != sim::DEVICE)
        return CUDNN_STATUS_BAD_PARAM;
    launch->slow = asked_for("slow", p->program.get());
    launch->unrepeatable = asked_for("unrepeatable", p->program.get());
    sim_cudnn_counts.launched++;
    if (asked_for("idle", p->program.get())) return CUDNN_STATUS_SUCCESS;
    sim::stream_enqueue(((Handle *)handle)->stream,
                        [](void *argument) { run(*(const Launch *)argument); }, launch.release(),
                        [](void *argument) { delete (Launch *)argument; });
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t open_handle(cudnnHandle_t *handle) {
    if (!sim::take_memory("SIM_CUDNN_MB", 20)) return CUDNN_STATUS_ALLOC_FAILED;
    sim_cudnn_counts.handles++;
    *handle = (cudnnHandle_t) new Handle;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t close_handle(cudnnHandle_t handle) {
    sim_cudnn_counts.handles--;
    delete (Handle *)handle;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t set_stream(cudnnHandle_t handle, cudaStream_t stream) {
    ((Handle *)handle)->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}
size_t get_version() { return (size_t)version; }
const char *error_string(cudnnStatus_t) { return "simulated"; }
void last_error_string(char *text, size_t size) {
    if (size) text[0] = '\0';
}
} // namespace

extern "C" CudnnFunctions cudnn;
CudnnFunctions cudnn = {get_version, error_string, last_error_string, open_handle,   close_handle,
                        set_stream,  create,       destroy,           set_attribute, get_attribute,
                        finalize,    execute};
#endif
