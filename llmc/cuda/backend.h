// The private header of the CUDA backend: its one handle, the workspace, checked calls, and what the files of llmc/cuda
// share on the host side. C and C++. Nothing outside llmc/cuda includes it. What kernels need is in kernel.cuh.
//
// How an op is run here: the one thread that called device_init calls the ops; each op checks its tensors, launches
// kernels (or library calls) on the compute stream and returns. Ops run in order, so every op may use the whole
// workspace, from its start. What an op keeps there does not outlive the call. Nothing waits, allocates or asks the
// device anything once the first steps have run: plans are made, and candidates timed, when a shape is met for the
// first time, which never happens under capture (see device_graph_begin in stream.c).
#pragma once
#include "llmc/base/checked.h"
#include "llmc/cuda/sizes.h"
#include "llmc/device.h"
#include "llmc/ops.h"
#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

// The only state of the backend that more than one file reads.
typedef struct {
    bool ready;             // device_init succeeded
    bool capturing;         // between device_graph_begin and device_graph_end, when that records
    int compute_capability; // 75, 80, 86, 89, 90, 100, 120: major * 10 + minor
    int units;              // multiprocessors
    int shared_per_block;   // bytes of dynamic shared memory that a block may ask for
    DeviceOptions options;
    DeviceFacts facts;
    cudaStream_t streams[STREAM_COUNT];
    char *workspace; // the caller's memory, given by ops_set_workspace
    int64_t workspace_bytes;
    size_t allocated, allocated_peak;   // bytes, by device_alloc
    struct CudaAllocation *allocations; // what device_alloc gave and device_free has not taken back
    struct CudaNvml *nvml;              // opened by the first device_sensors
    bool no_nvml;                       // it was looked for and is not there
} CudaBackend;
extern CudaBackend cuda_backend;

// The stream that ops run on.
static inline cudaStream_t cuda_compute_stream(void) { return cuda_backend.streams[STREAM_COMPUTE]; }

// Calls of the CUDA runtime that can fail only by a bug, or by an earlier kernel that broke: stops the program. While a
// step is being recorded the message says so: the call, or one before it, is then one that a step may not make.
#define CUDA_CHECK(call)                                                                                               \
    do {                                                                                                               \
        cudaError_t cuda_status_ = (call);                                                                             \
        REQUIRE(cuda_status_ == cudaSuccess, "%s: %s (%s)%s", #call, cudaGetErrorString(cuda_status_),                 \
                cudaGetErrorName(cuda_status_), cuda_backend.capturing ? " while recording a graph" : "");             \
    } while (0)

// The first `bytes` bytes of the workspace, 256-byte aligned, contents undefined: they belong to the op until the next
// op asks. Stops the program, naming op, when the workspace is smaller: then ops_workspace_bytes and the op disagree.
void *cuda_scratch(const char *op, int64_t bytes);

// What the ops need of the workspace is in sizes.h, but for attention by cuDNN. Both note the shape: for the layout of
// the workspace during a product, and to ask cuDNN, whose kernels are then made for it.
void cuda_matmul_note_shape(OpsShape shape);
int64_t cuda_cudnn_workspace(OpsShape shape);

// Device to device, in order on the compute stream.
void cuda_copy(void *device_dst, const void *device_src, size_t bytes);

// Whether a kernel of this program runs on the current GPU: false where it was built for others, with CUDA's reason.
bool cuda_kernels_fit(const char **reason);

// Nodes (kernels, copies, fills) that the graph holds; 0 until it is recorded.
size_t cuda_graph_nodes(const DeviceGraph *graph);

// Called by device_shutdown: each frees what it built lazily (handles, plans, tables).
void cuda_matmul_shutdown(void);
void cuda_attention_shutdown(void);
void cuda_optimizer_shutdown(void);

// Stops the program, naming op and tensor, unless t is a floating tensor.
void cuda_check_float(const char *op, Tensor t);

#ifdef __cplusplus
}
#endif
