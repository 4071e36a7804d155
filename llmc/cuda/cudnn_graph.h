// Causal attention by cuDNN, up to the launch: operation graphs, what to compute and on which
// tensors; plans, the engine and the kernel that do it on a device; and passes, the form in which
// cuDNN computes one pass of attention so that the bits repeat. Host code, in cuDNN's backend C
// API. No GPU is needed: the device may be one that is only described in a text, and then
// everything but running works. cudnn_attention.c runs it.
#pragma once
#include "llmc/cuda/attention.h"
#include "llmc/cuda/cudnn_library.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifdef HAVE_CUDNN
// ------------------------------------------------------------------------------------------ graphs
// cuDNN does not run the operations of a graph one by one. It recognises the whole as
// attention and has one fused kernel for it; a graph that is written in another way, however right,
// has none. The spelling here is the one that it recognises on every architecture.

typedef enum {
    CUDNN_FORWARD,
    // dQ = dS K written by the matmul: the order of its sums is fixed, so the bits repeat. To cuDNN
    // this means that dS is materialised, B * NH * T * T elements in the plan's workspace.
    CUDNN_BACKWARD,
    // dQ collected in an fp32 array of the caller, as each block of keys finishes: less memory, but
    // in the engines' ordinary form in whatever order the blocks come, with other bits every time.
    CUDNN_BACKWARD_COLLECTED,
} CudnnGraphKind;

// The tensors that a caller supplies, by the identifiers they have in the graphs. q, k, v and their
// gradients are in (B,T,NH + 2 NKV,HS), out and dout in (B,T,NH,HS), lse and dsum in (B,NH,T) fp32,
// dq_sums in (B,NH,T,HS) fp32. The constants are fp32 on the host. dsum = rowsum(dout * out) and
// dq_sums are workspace.
typedef enum {
    CUDNN_Q = 1,
    CUDNN_K,
    CUDNN_V,
    CUDNN_OUT,
    CUDNN_LSE,
    CUDNN_DOUT,
    CUDNN_DQ,
    CUDNN_DK,
    CUDNN_DV,
    CUDNN_DSUM,
    CUDNN_DQ_SUMS,
    CUDNN_SCALE,          // 1 / sqrt(HS)
    CUDNN_MINUS_INFINITY, // the mask's value above the diagonal
    CUDNN_ONE,
    CUDNN_NUM_TENSORS,
} CudnnTensor;

enum { CUDNN_GRAPH_MAX_OPERATIONS = 24 };

typedef struct CudnnGraph CudnnGraph;
// NULL and a message that names the operation when cuDNN refuses. The shape's dtype is bf16 or
// fp16, HS a multiple of 8.
CudnnGraph *cudnn_graph_create(CudnnGraphKind kind, AttentionShape shape, Error *err);
void cudnn_graph_destroy(CudnnGraph *graph); // NULL is fine
cudnnBackendDescriptor_t cudnn_graph_descriptor(const CudnnGraph *graph);
bool cudnn_graph_has(const CudnnGraph *graph, CudnnTensor tensor); // whether the caller supplies it

// Descriptors being made. After the first failure, whose message begins with `what`, these
// functions do nothing.
typedef struct {
    const char *what;
    Error *err;
    bool failed;
} CudnnBuild;
void cudnn_check(CudnnBuild *b, cudnnStatus_t status);
// NULL on failure
cudnnBackendDescriptor_t cudnn_make(CudnnBuild *b, cudnnBackendDescriptorType_t type);
void cudnn_destroy(cudnnBackendDescriptor_t d); // NULL is fine
void cudnn_set(CudnnBuild *b, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
               cudnnBackendAttributeType_t type, int64_t count, const void *values);
void cudnn_refer(CudnnBuild *b, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                 cudnnBackendDescriptor_t to);
void cudnn_finalize(CudnnBuild *b, cudnnBackendDescriptor_t d);

// ------------------------------------------------------------------------------------------- plans
// How cuDNN runs a graph. Choosing an engine takes milliseconds and tells the workspace;
// compiling its kernel takes 0.2 to 1.3 seconds.

// Device properties: of a GPU by its CUDA number, or of one that a JSON text describes
// (test/sim/devices). NULL and a message on failure. Destroyed with cudnn_destroy.
cudnnBackendDescriptor_t cudnn_device_of_gpu(int number, Error *err);
cudnnBackendDescriptor_t cudnn_device_of_text(const char *json, Error *err);

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

// The heuristics give 2 to 5 configurations for attention.
enum { CUDNN_MAX_CONFIGS = 8 };
typedef struct {
    cudnnBackendDescriptor_t configs[CUDNN_MAX_CONFIGS]; // the better one first
    int num_configs;
    // of an engine that was asked for by its number
    cudnnBackendDescriptor_t engine, knobs[CUDNN_MAX_KNOBS];
    int64_t workspace;                 // bytes, at most; known before it is compiled
    cudnnBackendDescriptor_t compiled; // what cudnnBackendExecute takes
    int64_t compiled_engine;           // its number
} CudnnPlan;

// A plan for graph on device, not compiled yet. engine NULL: cuDNN's heuristics choose. Engines
// that need more than max_workspace bytes are left out and, with must_repeat, those that say of
// themselves that their results do not. NULL and a message when there is none. graph and device
// must outlive the plan.
CudnnPlan *cudnn_plan_create(const CudnnGraph *graph, cudnnBackendDescriptor_t device,
                             const CudnnEngine *engine, bool must_repeat, int64_t max_workspace,
                             Error *err);
void cudnn_plan_destroy(CudnnPlan *plan); // NULL is fine

// Compiles the kernel; if that fails, the kernel of the heuristics' next choice that needs no more
// workspace.
bool cudnn_plan_compile(CudnnPlan *plan, Error *err);

// ------------------------------------------------------------------------------------------ passes
// One pass of attention, forward or backward, as cuDNN is to compute it on one architecture:
// which form of the graph, on which engine, in how much workspace.

// Offsets in the workspace of a pass, in bytes.
typedef struct {
    int64_t kernel;  // the plan's own
    int64_t dsum;    // (B,NH,T) fp32, backward
    int64_t dq_sums; // (B,NH,T,HS) fp32, where dQ is collected
    int64_t bytes;   // of all
} CudnnWorkspace;

typedef struct CudnnPass {
    AttentionShape shape;
    CudnnGraphKind kind;
    CudnnGraph *graph;
    CudnnPlan *plan;
    CudnnWorkspace workspace;
    float scale; // 1 / sqrt(HS); cuDNN reads it at every launch
} CudnnPass;

// NULL and a message when cuDNN has nothing of this way for this shape on this device that fits
// into max_workspace bytes; the message is left as it is where cuDNN never had this way.
// compute_capability: of the device, 80, 90, 103, 120. Not compiled yet: see cudnn_plan_compile.
CudnnPass *cudnn_pass_create(AttentionPass pass, AttentionShape shape,
                             cudnnBackendDescriptor_t device, int compute_capability,
                             AttentionWay way, int64_t max_workspace, Error *err);
void cudnn_pass_destroy(CudnnPass *pass); // NULL is fine
#endif

#ifdef __cplusplus
}
#endif
