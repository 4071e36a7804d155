// Planted faults in cuDNN's attention graphs, for tests that must see them: one change to what
// cuDNN is told, made on the way there by a function that stands in for cudnnBackendSetAttribute in
// the table of llmc/cuda/cudnn_graph.h. So the code that builds the graphs is the real one and
// knows nothing of it.
#pragma once
#include "llmc/cuda/cudnn_graph.h"
#include <string.h>

typedef struct {
    const char *what;
    CudnnGraphKind kind;
    int leave_out; // this operation, from 1; 0: none
    // The strides of a tensor that the caller supplies; all 0: as they are.
    CudnnTensor tensor;
    int64_t strides[4];
    // Pointwise operations of one mode become another; equal: none.
    cudnnPointwiseMode_t from, to;
} Fault;

static CudnnFunctions cudnn_without_fault;
static Fault planted;

static cudnnStatus_t set_with_fault(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                                    cudnnBackendAttributeType_t type, int64_t count,
                                    const void *values) {
    cudnnStatus_t (*set)(cudnnBackendDescriptor_t, cudnnBackendAttributeName_t,
                         cudnnBackendAttributeType_t, int64_t, const void *) =
        cudnn_without_fault.cudnnBackendSetAttribute;
    if (name == CUDNN_ATTR_OPERATIONGRAPH_OPS && planted.leave_out > 0) {
        cudnnBackendDescriptor_t kept[CUDNN_GRAPH_MAX_OPERATIONS];
        int64_t n = 0;
        for (int64_t i = 0; i < count; i++)
            if (i + 1 != planted.leave_out)
                memcpy(&kept[n++], (const cudnnBackendDescriptor_t *)values + i, sizeof *kept);
        return set(d, name, type, n, kept);
    }
    // The identifier is set after the strides.
    if (name == CUDNN_ATTR_TENSOR_UNIQUE_ID && planted.strides[0] &&
        *(const int64_t *)values == (int64_t)planted.tensor) {
        const cudnnStatus_t status =
            set(d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, planted.strides);
        if (status != CUDNN_STATUS_SUCCESS) return status;
    }
    if (name == CUDNN_ATTR_POINTWISE_MODE && planted.from != planted.to &&
        *(const cudnnPointwiseMode_t *)values == planted.from)
        return set(d, name, type, count, &planted.to);
    return set(d, name, type, count, values);
}

static inline void plant(Fault fault) {
    cudnn_without_fault = cudnn;
    planted = fault;
    cudnn.cudnnBackendSetAttribute = set_with_fault;
}
static inline void remove_fault(void) { cudnn = cudnn_without_fault; }

// How many operations the graphs have.
static const int num_operations[] = {14, 21, 22};
static const char *const kind_names[] = {"forward", "backward", "backward, dQ collected"};
