// How cuDNN runs a graph: the device it is for, the engine that is to do it, the compiled kernel. Host code: the device
// may be one that is only described in a text, and then everything but running works without any GPU.
// Choosing an engine takes milliseconds and tells the workspace; compiling its kernel takes 0.2 to 1.3 seconds.
#pragma once
#include "llmc/cuda/cudnn_graph.h"

#ifdef HAVE_CUDNN
#ifdef __cplusplus
extern "C" {
#endif

// Device properties: of a GPU by its CUDA number, or of one that a JSON text describes (test/sim/devices). NULL and a
// message on failure. Destroyed with cudnn_device_destroy (NULL is fine).
cudnnBackendDescriptor_t cudnn_device_of_gpu(int number, Error *err);
cudnnBackendDescriptor_t cudnn_device_of_text(const char *json, Error *err);
void cudnn_device_destroy(cudnnBackendDescriptor_t device);

// An engine by its number, with some of its knobs set.
enum { CUDNN_MAX_KNOBS = 6 };
typedef struct {
    int64_t number;
    int num_knobs;
    struct {
        cudnnBackendKnobType_t type;
        int64_t value;
    } knobs[CUDNN_MAX_KNOBS];
} CudnnEngine;

typedef struct CudnnPlan CudnnPlan;

// A plan for graph on device, not compiled yet. engine NULL: cuDNN's heuristics choose. Engines that need more than
// max_workspace bytes or say of themselves that their results do not repeat are left out. NULL and a message when there
// is none. graph and device must outlive the plan.
CudnnPlan *cudnn_plan_create(const CudnnGraph *graph, cudnnBackendDescriptor_t device, const CudnnEngine *engine,
                             int64_t max_workspace, Error *err);
void cudnn_plan_destroy(CudnnPlan *plan); // NULL is fine

int64_t cudnn_plan_workspace(const CudnnPlan *plan); // bytes, at most; known before it is compiled

// Compiles the kernel; when that fails, that of the next choice of the heuristics which needs no more workspace.
bool cudnn_plan_compile(CudnnPlan *plan, Error *err);

// Of a compiled plan: what cudnnBackendExecute takes, and the number of the engine.
cudnnBackendDescriptor_t cudnn_plan_descriptor(const CudnnPlan *plan);
int64_t cudnn_plan_engine(const CudnnPlan *plan);

#ifdef __cplusplus
}
#endif
#endif
