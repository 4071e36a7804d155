// The private header of the CUDA backend: its one handle, the workspace, checked calls, and the host-side interfaces
// shared by the files of llmc/cuda: kernels that several ops launch, attention, matrix products, GPU capabilities. C
// and C++. Nothing outside llmc/cuda includes it. Choices by measurement are in tuning.h, device code in kernel.cuh.
//
// How an op is run here: the one thread that called device_init calls the ops, whose tensors ops.c has checked. Each op
// launches kernels (or library calls) on the compute stream and returns. Ops run in order (but cuda_beside_begin), so
// every op may use the whole workspace, from its start. The contents do not outlive the call. After the first steps
// nothing waits, allocates or queries the device: plans are made, and candidates timed, at the first use of a shape,
// which never happens under capture (see device_graph_begin in device.c).
#pragma once
#include "llmc/base/arithmetic.h"
#include "llmc/model/gpu_sizes.h"
#include "llmc/device.h"
#include "llmc/ops.h"
#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

// The only state of the backend that more than one file reads.
typedef struct {
    bool ready;             // device_init succeeded
    bool in_graph;          // between device_graph_begin and device_graph_end
    bool capturing;         // there, when that records
    int device;             // CUDA's number of the GPU that is used
    int compute_capability; // 75, 80, 86, 89, 90, 100, 120: major * 10 + minor
    int num_sms;            // multiprocessors
    int shared_per_block;   // bytes of dynamic shared memory that a block may ask for
    bool early_launch;      // kernels are launched with programmatic stream serialisation, see kernel.cuh
    DeviceOptions options;
    DeviceFacts facts;
    cudaStream_t streams[STREAM_COUNT];
    cudaStream_t beside; // instead of the compute stream, between cuda_beside_begin and cuda_beside_end
    char *workspace;     // the caller's memory, given by ops_set_workspace
    int64_t workspace_bytes;
    size_t allocated, allocated_peak;   // bytes, by device_alloc
    struct CudaAllocation *allocations; // what device_alloc gave and device_free has not taken back
    struct CudaNvml *nvml;              // opened by the first device_sensors
    bool no_nvml;                       // it was looked for and is not there
} CudaBackend;
extern CudaBackend cuda_backend;

// The stream that the running op launches on.
static inline cudaStream_t cuda_compute_stream(void) {
    return cuda_backend.beside ? cuda_backend.beside : cuda_backend.streams[STREAM_COMPUTE];
}

// For calls of the CUDA runtime that fail only because of a bug or an earlier faulty kernel: stops the program. While a
// step is being recorded the message says so, since this call, or one before it, may then be illegal in a step.
#define CUDA_CHECK(call)                                                                                               \
    do {                                                                                                               \
        cudaError_t cuda_status_ = (call);                                                                             \
        REQUIRE(cuda_status_ == cudaSuccess, "%s: %s (%s)%s", #call, cudaGetErrorString(cuda_status_),                 \
                cudaGetErrorName(cuda_status_), cuda_backend.capturing ? " while recording a graph" : "");             \
    } while (0)

// The first `bytes` bytes of the workspace, 256-byte aligned, contents undefined. They belong to the op until the next
// op asks. Stops the program, naming op, when the workspace is smaller, which means that ops_workspace_bytes and the op
// disagree.
void *cuda_scratch(const char *op, int64_t bytes);

// The workspace sizes of the ops are in gpu_sizes.h, except for attention by cuDNN. Both functions note the shape: one for
// the layout of the workspace during a product, one to query cuDNN and to build its kernels for this shape.
void cuda_matmul_note_shape(OpsShape shape);
int64_t cuda_cudnn_workspace(OpsShape shape);

// Work beside the ops that follow (OpsShape.overlap). Between these two calls the running op launches on a second
// stream, after everything launched so far, and has the second stream's scratch memory. Ops that touch its operands
// wait for it (backend_order); device_graph_end and choices by time wait for all of it. They do nothing outside
// device_graph_begin and end, or where it was not asked for.
void cuda_beside_begin(void);
void cuda_beside_end(void);
void cuda_beside_join(void); // the compute stream waits for all of it

// Whether the next kernel may be set up before the work before it in its stream has ended.
bool cuda_launches_early(void);

// Device to device, in order on the compute stream.
void cuda_copy(void *device_dst, const void *device_src, size_t bytes);

// Whether the kernels of this program run on the current GPU: false, with CUDA's reason, if it was built for others.
// *arch: what their PTX was made for, 90.
bool cuda_kernels_fit(int *arch, const char **reason);

// For tests: nodes (kernels, copies, fills) that the graph holds; 0 until it is recorded.
size_t cuda_graph_nodes(const DeviceGraph *graph);

// Called by device_shutdown: each frees what it built lazily (handles, plans).
void cuda_matmul_shutdown(void);
void cuda_attention_shutdown(void);

// Called by device_shutdown: leaves the other processes once all requests are done; aborts if that takes a minute, or
// if NCCL has failed.
void cuda_comm_shutdown(void);
extern double cuda_comm_start_seconds; // how long device_comm_start waits for the others: 60; tests make it shorter

// ------------------------------------------------------------------------------------- kernels that several ops launch
// On the compute stream.

// out (N,OC) += bias (OC): where cuBLASLt has no such epilogue.
void cuda_add_bias(Tensor out, Tensor bias);

// gelu_backward (llmc/ops.h) with dbias.
void cuda_gelu_bias_backward(Tensor dpre, Tensor dbias, Tensor dout, Tensor pre, bool accumulate);

// Whether two pieces of device memory hold the same bytes (an even number of them, 2-byte aligned). Allocates and
// waits: for choices at the first use of a shape. Also false when there is no memory left for the comparison.
bool cuda_same_bits(const void *a, const void *b, size_t bytes);

// Softmax cross-entropy over rows of logits, which are independent: the kernel between the two halves of the LM head.
// Targets are trusted to be in [0, V): the host checked them when it read the data.
// losses (R) fp32 = log sum_{v<V} exp(logits[r,v]) - logits[r,targets[r]], in nats. logits (R,Vp) floating, read once;
// targets (R) i32.
void cross_entropy_forward(float *losses, Tensor logits, const int32_t *targets, int64_t V);

// The same losses, to the bit, and logits[r] = factor * (softmax(logits[r]) - onehot(targets[r])) in its place, 0 from
// column V on. factor = scale * the loss_scale of control, a StepControl on the device; control absent: scale.
void cross_entropy_backward(float *losses, Tensor logits, const int32_t *targets, int64_t V, float scale,
                            Tensor control);

// ----------------------------------------------------------------------------------------------------------- attention
// Shared by the files that implement attention_forward and attention_backward. attention.c chooses our
// own kernels or cuDNN. Layouts and formulas are in llmc/ops.h.

typedef struct {
    int64_t B, T, NH, HS;
    DType dtype;
} AttentionShape;

typedef enum { ATTENTION_FORWARD, ATTENTION_BACKWARD, ATTENTION_PASSES } AttentionPass;

// For device_init, once the streams exist: false, with the reason and a remedy, when options ask for cuDNN and this
// machine has no usable one. Shapes that cuDNN does not support (fp32, head sizes) are not an error: they run on our
// own kernels, and cuda_attention_description says so.
bool cuda_attention_check(const DeviceOptions *options, Error *err);

// The implementation of attention at the shape planned last, for the run's header: "cuDNN 9.19.0", "own kernels (cuDNN
// not found: ...)", "cuDNN 9.19.0 or own kernels, to be measured" before the first step, "forward cuDNN 9.19.0,
// backward own kernels (...)", "forward cuDNN 9.19.0, backward cuDNN 9.19.0 without repeatable bits". Empty before
// ops_workspace_bytes. Valid until the next call.
const char *cuda_attention_description(void);

// Our own kernels, used where cuDNN is absent, slower or does not support the shape. One pair of calls covers two
// families. Tensor cores (flash_forward.cu, flash_backward.cu): bf16 on sm_80+, fp16 on sm_75+, head sizes that are a
// multiple of 8, at most 128. Plain (plain_attention.cu): every floating dtype and every head size, on the ordinary
// units. Neither ever stores a T x T matrix; both add in a fixed order, without atomics.

// Whether the tensor-core kernels support this; otherwise the calls below run the plain ones.
bool cuda_flash_supports(DType dtype, int64_t head_size);

// Any floating dtype, any head size. They take scratch memory from the workspace, at most cuda_size_flash. Backward
// returns whether it made dbias, which may be absent, as well: the tensor-core kernels do.
void cuda_flash_forward(Tensor out, Tensor lse, Tensor qkv, int num_heads);
bool cuda_flash_backward(Tensor dqkv, Tensor dout, Tensor out, Tensor lse, Tensor qkv, int num_heads, Tensor dbias,
                         bool accumulate);

// Arguments of the kernels of both families.
typedef struct {
    int T, NH, HS;
    int heads;         // B * NH
    int group;         // heads whose blocks run side by side, see flash_block in flash_tile.cuh
    float scale;       // of the scores: 1 / sqrt(HS)
    float scale_log2e; // the same for 2^x in place of e^x
} FlashShape;

// The plain family. delta: (B,NH,T) fp32 of scratch, rowsum(dout * out).
void cuda_plain_attention_forward(Tensor out, Tensor lse, Tensor qkv, FlashShape s);
void cuda_plain_attention_backward(Tensor dqkv, Tensor dout, Tensor out, Tensor lse, Tensor qkv, float *delta,
                                   FlashShape s);

FlashShape cuda_flash_shape(Tensor qkv, int num_heads);

// cuDNN's attention on the GPU of this process (cudnn_attention.c), which owns cuDNN's handle.

// Whether cuDNN can be used here: the library is present and new enough, and has fused attention for this GPU. The
// first call loads the library; later calls return the same answer.
bool cudnn_attention_open(Error *why);
void cudnn_attention_close(void);               // after everything below was destroyed
int cudnn_attention_version(void);              // 91900
const char *cudnn_attention_version_text(void); // "9.19.0"

// One pass at one shape. NULL and the reason when cuDNN has no form with repeatable bits (with --attention fast: no
// form) that needs at most max_workspace bytes. Takes milliseconds; cudnn_attention_compile takes up to 1.3 s, and must
// be done before it runs.
typedef struct CudnnAttention CudnnAttention;
CudnnAttention *cudnn_attention_create(AttentionPass pass, AttentionShape shape, int64_t max_workspace, Error *why);
void cudnn_attention_destroy(CudnnAttention *attention); // NULL is fine
int64_t cudnn_attention_workspace(const CudnnAttention *attention);
bool cudnn_attention_compile(CudnnAttention *attention, Error *why);

// The tensors of attention_forward and attention_backward (llmc/ops.h), of exactly the shape. Enqueued on the compute
// stream, may be captured. workspace is 256-byte aligned. False, with the reason, when the launch fails.
bool cudnn_attention_forward(CudnnAttention *attention, Tensor out, Tensor lse, Tensor qkv, void *workspace,
                             Error *why);
bool cudnn_attention_backward(CudnnAttention *attention, Tensor dqkv, Tensor dout, Tensor out, Tensor lse, Tensor qkv,
                              void *workspace, Error *why);

// ----------------------------------------------------------------------------------------------------- matrix products
// Matrix products by cuBLASLt. Descriptors and an algorithm are found once for each distinct product, measured on first
// use, and kept here for the process and in the tuning file (tuning.h) for the next one. matmul.c maps the ops onto
// this.
//
// Only algorithms with repeatable bits are used: k in one piece, or split with fp32 parts that are added in a fixed
// order, and then only after two runs on the real operands gave the same bits. They must also have run and agree with
// the others: an algorithm that leaves out part of its work would win on time.

// What cuBLASLt does to z = op(A) op(B) [+ C] before it stores D (m,n). bias and aux are of D's type.
typedef enum {
    GEMM_PLAIN,         // D = z
    GEMM_BIAS,          // D = z + bias (m)
    GEMM_GELU_AUX_BIAS, // aux (m,n) = z + bias (m), D = gelu(z + bias): gelu of the unrounded sum
    GEMM_DGELU,         // D = z * gelu'(aux (m,n))
    GEMM_BGRADB,        // D = z, bias (n) = sum over k of op(B): stored, never added
} GemmEpilogue;

// One product as cuBLASLt sees it: column-major and contiguous, so a row-major tensor (rows, cols) is a matrix (cols,
// rows) with leading dimension cols.
typedef struct {
    const char *op;                // for messages
    bool transpose_a, transpose_b; // A is (k,m) in memory instead of (m,k), B is (n,k) instead of (k,n)
    int64_t m, n, k;
    DType in_a, in_b, out; // of A, B and D; A and B differ in fp8 only
    GemmEpilogue epilogue;
    const void *a, *b;
    const void *c;                  // what is added, of D's type and shape: NULL: nothing; d: D +=
    const float *scale_a, *scale_b; // fp8, on the device: factors of A and B, read when the product runs
    bool fast_sums;                 // fp8: sums may stay in the tensor cores' registers, see fp8_matmul
    void *d, *bias, *aux;
    void *workspace; // 256-byte aligned; its contents are lost
    size_t workspace_bytes;
} Gemm;

typedef struct GemmPlan GemmPlan;

// The plan of a product, found or made. NULL when cuBLASLt does not support it. Products that differ only in the
// addresses of operands, at the same alignment, and in whether D accumulates share a plan. The first call of a plan
// chooses its algorithm by running candidates on the operands of g, which must be valid; D, aux and a bias gradient are
// overwritten (not D if it accumulates). Never under capture.
GemmPlan *gemm_plan(const Gemm *g);

// Launches the product on the compute stream.
void gemm_run(const GemmPlan *plan, const Gemm *g);

// A choice between an epilogue and the same work by a plain product and a kernel.
enum { GEMM_MAX_OUTPUTS = 2 };
typedef struct {
    bool (*work)(void *context, int fused); // 0: the plain way, 1: the fused way; both repeatable
    void *context;
    bool (*repeats)(void *context);   // asked once the outputs agree; may be NULL. False: not fused
    bool timed;                       // the fused way must be faster too
    bool adds;                        // work adds to its outputs
    Tensor outputs[GEMM_MAX_OUTPUTS]; // lost
    int num_outputs;
} GemmContest;

// Whether to take the fused way. The first call compares the outputs of both ways and, if timed, times them. If an
// output has no data, or there is no memory to compare, a timed contest is not fused.
bool gemm_fuses(GemmPlan *plan, const GemmContest *contest);
bool gemm_is_known(GemmPlan *plan, bool timed); // the next gemm_fuses will run nothing

// Frees the plans and the library handle, forgets the tuning file.
void gemm_shutdown(void);

typedef struct {
    int64_t plans, timed; // plans made; candidates that were timed for them
} GemmCounts;
GemmCounts gemm_counts(void);

// --------------------------------------------------------------------------------------------------- what a GPU can do
// Peak rates, derived from the attributes the driver reports: the datasheet's FLOP/s from multiprocessors x clock x
// operations per clock, memory bandwidth from clock x bus width. Pure arithmetic (device_speed.c).

typedef struct {
    char name[128];         // "NVIDIA H200"
    int compute_capability; // major * 10 + minor
    int num_sms;            // multiprocessors
    int clock_khz;          // highest clock of the multiprocessors; 0 = not told
    int memory_clock_khz;   // 0 = not told
    int memory_bus_bits;
} GpuAttributes;

// Dense FLOP/s (2 per multiply-add) with fp32 accumulation, as the datasheet counts them; 0 = unknown. fp32 uses the
// TF32 tensor cores if tf32 is set and the GPU has them.
double gpu_peak_flops(const GpuAttributes *gpu, DType dtype, bool tf32);

// Whether fp8 matmuls are available: on tensor cores from sm_89, in cuBLASLt from 12.1, for Blackwell from 12.8
// (versions in the library's encoding, 120803 is 12.8.3).
bool gpu_has_fp8(int compute_capability, size_t cublaslt_version);

// Bytes per second between chip and memory, as the datasheet counts them; 0 = unknown.
double gpu_peak_bandwidth(const GpuAttributes *gpu);

// CUDA's version encoding as text: 13000 is "13.0", 12040 is "12.4". Returns buf.
const char *cuda_version_text(int version, char *buf, size_t size);

// "80 90" -> "sm_80, sm_90": a list of architectures for a message. Returns buf.
const char *gpu_list_text(const char *archs, char *buf, size_t size);

// ------------------------------------------------------------------------------------------------------------- sensors
// NVML, the library behind nvidia-smi: clocks, power, energy, temperature, throttling. Optional: loaded from the driver
// with dlopen at run time, never linked; without it there are no sensors.

typedef struct CudaNvml CudaNvml;

// For the GPU at this PCI bus address ("00000000:1B:00.0"); path is the library, NULL the driver's. NULL if NVML is
// missing or does not know the GPU.
CudaNvml *cuda_nvml_open(const char *path, const char *pci_bus_id);
void cuda_nvml_close(CudaNvml *nvml); // NULL is fine

// Reads the sensors; fields that NVML does not report are 0.
void cuda_nvml_read(const CudaNvml *nvml, DeviceSensors *sensors);

// NVML's bits of reasons as words: "power cap, thermal"; "" for none, and for an idle GPU or clocks that the user set.
const char *cuda_throttle_text(unsigned long long reasons, char *buf, size_t size);

#ifdef __cplusplus
}
#endif
