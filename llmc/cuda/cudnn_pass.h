// One pass of attention, forward or backward, as cuDNN is to compute it on one architecture: which form of the graph,
// on which engine, in how much workspace. Only what gives the same bits every time is chosen. Host code; needs no GPU
// when the device is described by a text.
#pragma once
#include "llmc/cuda/cudnn_plan.h"

#ifdef HAVE_CUDNN
#ifdef __cplusplus
extern "C" {
#endif

// Where things stand in the workspace of a pass, in bytes from its start.
typedef struct {
    int64_t kernel;  // the plan's own
    int64_t dsum;    // (B,NH,T) fp32, backward
    int64_t dq_sums; // (B,NH,T,HS) fp32, where dQ is collected
    int64_t bytes;   // of all
} CudnnWorkspace;

typedef struct {
    AttentionShape shape;
    CudnnGraphKind kind;
    CudnnGraph *graph;
    CudnnPlan *plan;
    CudnnWorkspace workspace;
} CudnnPass;

// NULL and a message when cuDNN has nothing for this shape on this device that repeats and fits into max_workspace
// bytes. compute_capability: of the device, 80, 90, 103, 120. collected: backward, the form that need not repeat, for
// measurements. Not compiled yet: see cudnn_plan_compile.
CudnnPass *cudnn_pass_create(AttentionPass pass, AttentionShape shape, cudnnBackendDescriptor_t device,
                             int compute_capability, bool collected, int64_t max_workspace, Error *err);
void cudnn_pass_destroy(CudnnPass *pass); // NULL is fine

#ifdef __cplusplus
}
#endif
#endif
