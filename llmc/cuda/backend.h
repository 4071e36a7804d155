// The private header of the CUDA backend: its one handle, the workspace, checked calls, and the
// host-side interfaces shared by the files of llmc/cuda. C and C++. Nothing outside llmc/cuda
// includes it. Other headers of one subject each: attention.h, gemm.h, tuning.h, datasheet.h,
// nvml.h. Device code is in kernel.cuh.
//
// How an op is run here: the one thread that called device_init calls the ops, whose tensors ops.c
// has checked. Each op launches kernels (or library calls) on the compute stream and returns. Ops
// run in order, so every op may use the whole workspace, from its start. The contents do not
// outlive the call. After the first steps nothing waits, allocates or queries the device: plans are
// made, and candidates timed, at the first use of a shape, which never happens under capture (see
// device_graph_begin in device.c).
#pragma once
#include "llmc/device.h"
#include "llmc/model/gpu_sizes.h"
#include "llmc/ops.h"
#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

// The only state of the backend that more than one file reads.
typedef struct {
    bool ready;             // device_init succeeded
    bool capturing;         // device_graph_begin records, until device_graph_end
    int device;             // CUDA's number of the GPU that is used
    int compute_capability; // 75, 80, 86, 89, 90, 100, 120: major * 10 + minor
    int num_sms;            // multiprocessors
    int shared_per_block;   // bytes of dynamic shared memory that a block may ask for
    // kernels are launched with programmatic stream serialisation, see kernel.cuh
    bool early_launch;
    bool graphs;        // device_graph_* record; else the ops of every pass run as they are called
    int exchange_units; // multiprocessors that products leave to an exchange that is in flight
    int requests;       // of the exchange, that are in flight
    DeviceOptions options;
    DeviceFacts facts;
    cudaStream_t streams[STREAM_COUNT];
    char *workspace; // the caller's memory, given by ops_set_workspace
    int64_t workspace_bytes;
    size_t allocated, allocated_peak;   // bytes, by device_alloc
    struct CudaAllocation *allocations; // what device_alloc gave and device_free has not taken back
} CudaBackend;
extern CudaBackend cuda_backend;

// The stream that the running op launches on.
static inline cudaStream_t cuda_compute_stream(void) {
    return cuda_backend.streams[STREAM_COMPUTE];
}

// For calls of the CUDA runtime that fail only because of a bug or an earlier faulty kernel: stops
// the program. While a step is being recorded the message says so, since this call, or one before
// it, may then be illegal in a step. Short memory is no bug.
#define GPU_IS_FULL " on the GPU; use a smaller micro-batch or model, or end other programs"
#define CUDA_CHECK(call)                                                                           \
    do {                                                                                           \
        cudaError_t cuda_status_ = (call);                                                         \
        REQUIRE_MEMORY(cuda_status_ != cudaErrorMemoryAllocation, "%s" GPU_IS_FULL, #call);        \
        REQUIRE(cuda_status_ == cudaSuccess, "%s: %s (%s)%s", #call,                               \
                cudaGetErrorString(cuda_status_), cudaGetErrorName(cuda_status_),                  \
                cuda_backend.capturing                                                             \
                    ? " while recording a graph; PRETRAIN_GRAPHS=0 runs without"                   \
                    : "");                                                                         \
    } while (0)

// The first `bytes` bytes of the workspace, 256-byte aligned, contents undefined. They belong to
// the op until the next op asks. Stops the program, naming op, when the workspace is smaller, which
// means that ops_workspace_bytes and the op disagree.
void *cuda_scratch(const char *op, int64_t bytes);

// The workspace sizes of the ops are in gpu_sizes.h, except for attention by cuDNN (attention.h).
// This notes the shape for the layout of the workspace during a product.
void cuda_matmul_note_shape(OpsShape shape);

// Whether the kernels of this program run on the current GPU: false, with CUDA's reason, if it was
// built for others. *arch: what their PTX was made for, 90.
bool cuda_kernels_fit(int *arch, const char **reason);

// Part of device_init: tries graphs and early launches, where options and GPU allow them, in some
// milliseconds. What the driver refuses is switched off in cuda_backend, with one line on stderr.
// False: a kernel does not run at all.
bool cuda_probe_driver(Error *err);

// For tests: nodes (kernels, copies, fills) that the graph holds; 0 until it is recorded.
size_t cuda_graph_nodes(const DeviceGraph *graph);

// Called by device_shutdown: leaves the other processes once all requests are done; aborts if that
// takes a minute, or if NCCL has failed.
void cuda_comm_shutdown(void);

// ----------------------------------------------------------------- kernels that several ops launch
// On the compute stream.

// out (N,OC) += bias (OC): where cuBLASLt has no such epilogue.
void cuda_add_bias(Tensor out, Tensor bias);

// gelu_backward and relu2_backward (llmc/ops.h) with dbias.
void cuda_gelu_bias_backward(Tensor dpre, Gradient dbias, Tensor dout, Tensor pre);
void cuda_relu2_bias_backward(Tensor dpre, Gradient dbias, Tensor dout, Tensor pre);

// Softmax cross-entropy over rows of logits, which are independent: the kernel between the two
// halves of the LM head. Targets are trusted to be in [0, V): the host checked them when it read
// the data. losses (R) fp32 = log sum_{v<V} exp(logits[r,v]) - logits[r,targets[r]], in nats.
// logits (R,Vp) floating, read once; targets (R) i32. backward, with the same losses to the bit:
// logits[r] = factor * (softmax(logits[r]) - onehot(targets[r])) in its place, 0 from column V on.
// factor = scale * the loss_scale of control, a StepControl on the device; control absent: scale.
void cross_entropy(float *losses, Tensor logits, const int32_t *targets, int64_t V, bool backward,
                   float scale, Tensor control);

#ifdef __cplusplus
}
#endif
