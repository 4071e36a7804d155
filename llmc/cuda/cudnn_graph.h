// Causal attention as cuDNN operation graphs, in cuDNN's backend C API: what to compute, on which tensors, and not yet
// how (that is cudnn_plan.h). Host code; needs the library, no device.
// cuDNN does not run the operations one by one. It recognises the whole as attention and has one fused kernel for it;
// a graph that is written in another way, however right, has none. The spelling here is the one that it recognises on
// every architecture.
#pragma once
#include "llmc/cuda/attention.h"
#include "llmc/cuda/cudnn_library.h"

#ifdef HAVE_CUDNN
#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    CUDNN_FORWARD,
    // dQ = dS K written by the matmul: the order of its sums is fixed, so the bits repeat. To cuDNN this means that dS
    // is materialised, B * NH * T * T elements in the plan's workspace.
    CUDNN_BACKWARD,
    // dQ collected in an fp32 array of the caller, as each block of keys finishes: less memory, but in the engines'
    // ordinary form in whatever order the blocks come, with other bits every time.
    CUDNN_BACKWARD_COLLECTED,
} CudnnGraphKind;

// The tensors that a caller supplies, by the identifiers they have in the graphs. q, k, v and their gradients lie in
// (B,T,3,NH,HS), out and dout in (B,T,NH,HS), lse and dsum in (B,NH,T) fp32, dq_sums in (B,NH,T,HS) fp32. The constants
// are fp32 on the host. dsum = rowsum(dout * out) and dq_sums are workspace.
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
    CUDNN_MINUS_INFINITY, // what the mask puts above the diagonal
    CUDNN_ONE,
    CUDNN_NUM_TENSORS,
} CudnnTensor;

enum { CUDNN_GRAPH_MAX_OPERATIONS = 22 };

typedef struct CudnnGraph CudnnGraph;
// NULL and a message that names the operation when cuDNN refuses. The shape's dtype is bf16 or fp16, HS a multiple
// of 8.
CudnnGraph *cudnn_graph_create(CudnnGraphKind kind, AttentionShape shape, Error *err);
void cudnn_graph_destroy(CudnnGraph *graph); // NULL is fine
cudnnBackendDescriptor_t cudnn_graph_descriptor(const CudnnGraph *graph);
bool cudnn_graph_has(const CudnnGraph *graph, CudnnTensor tensor); // whether the caller supplies it

// Shared with cudnn_plan.c: one attribute of a descriptor. False, with a message that begins with what, on failure.
bool cudnn_set(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
               int64_t count, const void *values, const char *what, Error *err);

#ifdef __cplusplus
}
#endif
#endif
