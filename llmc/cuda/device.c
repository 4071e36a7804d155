// device.h on a GPU: the life of the backend and its one handle, memory, copies, events, graphs.
// Owns the streams; memory, events and graphs belong to whoever asked for them, the workspace of
// the ops to the caller. Collectives are in nccl.c. device_init reports a machine that cannot run
// this program, in one line with a remedy: no driver, an old one, no GPU, a GPU that the program
// was not built for.
#include "llmc/base/format.h"
#include "llmc/cuda/attention.h"
#include "llmc/cuda/backend.h"
#include "llmc/cuda/datasheet.h"
#include "llmc/cuda/gemm.h"
#include "llmc/cuda/nvml.h"

#include <cublasLt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// The capabilities that the Makefile compiled the kernels for: "80 90".
#ifndef CUDA_ARCHS
#define CUDA_ARCHS ""
#endif

enum { OLDEST_CAPABILITY = 75 }; // T4, RTX 20: fp16 tensor cores with fp32 accumulation, ldmatrix

CudaBackend cuda_backend;

#define OTHER_TRAINER "the CPU trainer is ./train_gpt2 (make train_gpt2)"

void device_prepare_process(char **argv) { (void)argv; } // nothing of CUDA is read before main

// -------------------------------------------------------------------------------------- finding it

// Makes a GPU that CUDA shows this process the current one: of several the one of this number. A
// launcher may show each process a GPU of its own (srun): then it is that one. CUDA_VISIBLE_DEVICES
// chooses what is shown.
static bool find_gpu(int number, Error *err) {
    int driver = 0, count = 0;
    cudaError_t status = cudaDriverGetVersion(&driver);
    if (status == cudaSuccess) status = cudaGetDeviceCount(&count);
    if (driver == 0) return error_set(err, "no NVIDIA driver on this machine; " OTHER_TRAINER);

    if (status == cudaErrorInsufficientDriver) {
        char has[16], needs[16];
        cuda_version_text(driver, has, sizeof has);
        cuda_version_text(CUDART_VERSION, needs, sizeof needs);
        return error_set(err,
                         "the NVIDIA driver of this machine is too old: it supports CUDA %s, this "
                         "program was built "
                         "with CUDA %s. Update the driver or build with CUDA %s; " OTHER_TRAINER,
                         has, needs, has);
    }

    if (status == cudaErrorNoDevice || (status == cudaSuccess && count == 0)) {
        const char *visible = getenv("CUDA_VISIBLE_DEVICES");
        if (visible)
            return error_set(err, "no GPU: CUDA_VISIBLE_DEVICES=\"%s\" leaves none; " OTHER_TRAINER,
                             visible);
        return error_set(err, "no GPU that CUDA can use on this machine; " OTHER_TRAINER);
    }

    if (status == cudaSuccess && number >= count && count > 1)
        return error_set(err,
                         "no GPU for process %d of this machine: %d are visible; start at most %d "
                         "processes on it",
                         number + 1, count, count);

    cuda_backend.device = count > 1 ? number : 0;
    if (status == cudaSuccess) status = cudaSetDevice(cuda_backend.device);
    if (status != cudaSuccess)
        return error_set(err, "CUDA does not start: %s (%s); " OTHER_TRAINER,
                         cudaGetErrorString(status), cudaGetErrorName(status));
    return true;
}

void device_address(int number, char address[64]) {
    int count = 0;
    cudaError_t status = cudaGetDeviceCount(&count);
    if (count == 1) number = 0;
    if (status == cudaSuccess && number < count)
        status = cudaDeviceGetPCIBusId(address, 64, number);
    if (status == cudaSuccess && number < count) return;
    address[0] = '\0';
    (void)cudaGetLastError(); // device_init reports it
}

static int attribute(enum cudaDeviceAttr which) {
    int value = 0;
    if (cudaDeviceGetAttribute(&value, which, cuda_backend.device) == cudaSuccess) return value;
    (void)cudaGetLastError(); // a fact that this GPU does not report
    return 0;
}

// Kernels that lack an image for the GPU fail one by one, at their first launch: found here
// instead.
static bool inspect_gpu(GpuAttributes *gpu, int *arch, Error *err) {
    struct cudaDeviceProp properties;
    const char *reason;
    CUDA_CHECK(cudaGetDeviceProperties(&properties, cuda_backend.device));
    snprintf(gpu->name, sizeof gpu->name, "%.120s", properties.name);
    const int capability = 10 * attribute(cudaDevAttrComputeCapabilityMajor) +
                           attribute(cudaDevAttrComputeCapabilityMinor);
    gpu->compute_capability = capability;
    gpu->num_sms = attribute(cudaDevAttrMultiProcessorCount);
    gpu->clock_khz = attribute(cudaDevAttrClockRate);
    gpu->memory_clock_khz = attribute(cudaDevAttrMemoryClockRate);
    gpu->memory_bus_bits = attribute(cudaDevAttrGlobalMemoryBusWidth);

    if (capability < OLDEST_CAPABILITY)
        return error_set(err, "%s (sm_%d) is too old: sm_%d or newer is needed; " OTHER_TRAINER,
                         gpu->name, capability, OLDEST_CAPABILITY);
    if (cuda_kernels_fit(arch, &reason)) return true;
    return error_set(err,
                     "built with ARCHS=\"%s\", which %s (sm_%d) cannot run: build with `make "
                     "train_gpt2cu ARCHS=%d` (%s)",
                     CUDA_ARCHS, gpu->name, capability, capability, reason);
}

// ---------------------------------------------------------------------------------- life and facts

static void fill_gpu_facts(DeviceFacts *facts, const GpuAttributes *gpu, bool tf32) {
    facts->backend = "cuda";
    snprintf(facts->name, sizeof facts->name, "%s", gpu->name);
    CUDA_CHECK(cudaDeviceGetPCIBusId(facts->id, (int)sizeof facts->id, cuda_backend.device));
    facts->units = gpu->num_sms;
    CUDA_CHECK(cudaMemGetInfo(&facts->memory_free, &facts->memory_total));
    // Linux under Windows: the driver is that of Windows
    facts->memory_spills = access("/dev/dxg", F_OK) == 0;
    facts->supports[DTYPE_FP32] = facts->supports[DTYPE_FP16] = true;
    // older tensor cores do not know it
    facts->supports[DTYPE_BF16] = gpu->compute_capability >= 80;
    facts->default_dtype = DTYPE_FP16;
    if (facts->supports[DTYPE_BF16]) facts->default_dtype = DTYPE_BF16;
    const size_t lt = cublasLtGetVersion(); // 130100 is 13.1.0
    facts->supports[DTYPE_E4M3] = facts->supports[DTYPE_E5M2] =
        gpu_has_fp8(gpu->compute_capability, lt);
    for (int i = 0; i < DTYPE_COUNT; i++)
        facts->peak_flops[i] = gpu_peak_flops(gpu, (DType)i, tf32);
    facts->peak_bandwidth = gpu_peak_bandwidth(gpu);
    facts->cache_bytes = (size_t)attribute(cudaDevAttrL2CacheSize);

    // "580.65.06", or "" where the kernel module does not report it (WSL)
    char runtime[16], driver[64] = "";
    FILE *version = fopen("/sys/module/nvidia/version", "r");
    if (version && fgets(driver, sizeof driver, version)) driver[strcspn(driver, "\n")] = '\0';
    if (version) fclose(version);
    snprintf(facts->libraries, sizeof facts->libraries, "CUDA %s, cuBLASLt %zu.%zu.%zu%s%s",
             cuda_version_text(CUDART_VERSION, runtime, sizeof runtime), lt / 10000, lt / 100 % 100,
             lt % 100, *driver ? ", driver " : "", driver);
}

bool device_init(const DeviceOptions *options, Error *err) {
    REQUIRE(!cuda_backend.ready, "device_init: called twice");
    memset(&cuda_backend, 0, sizeof cuda_backend);
    if (!find_gpu(options->number, err)) return false;

    GpuAttributes gpu;
    int arch;
    if (!inspect_gpu(&gpu, &arch, err)) return false;

    // Non-blocking: the legacy default stream, on which libraries may work, does not hold them up;
    // and only such streams can be captured. The exchange goes first: what waits for it is the next
    // block, what it displaces is a wave of a product.
    int lowest, highest;
    CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    for (int i = 0; i < STREAM_COUNT; i++)
        CUDA_CHECK(cudaStreamCreateWithPriority(&cuda_backend.streams[i], cudaStreamNonBlocking,
                                                i == STREAM_COMM ? highest : lowest));

    cuda_backend.options = *options;
    cuda_backend.compute_capability = gpu.compute_capability;
    cuda_backend.num_sms = gpu.num_sms;
    // Kernels wait where they were compiled for sm_90 or later, not where the driver compiles PTX
    // of sm_80 for it.
    cuda_backend.early_launch =
        !options->no_early_launch && gpu.compute_capability >= 90 && arch >= 90;
    cuda_backend.graphs = !options->no_graphs;
    cuda_backend.shared_per_block = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    fill_gpu_facts(&cuda_backend.facts, &gpu, options->tf32);
    cuda_backend.ready = true;

    if (cuda_probe_driver(err) && cuda_attention_check(options, err)) return true;
    device_shutdown();
    return false;
}

void device_shutdown(void) {
    if (!cuda_backend.ready) return;
    cuda_comm_shutdown(); // first: a collective that failed would keep the device busy for ever
    CUDA_CHECK(cudaDeviceSynchronize());
    cuda_attention_shutdown();
    gemm_shutdown();
    nvml_shutdown();
    for (int i = 0; i < STREAM_COUNT; i++) CUDA_CHECK(cudaStreamDestroy(cuda_backend.streams[i]));
    memset(&cuda_backend, 0, sizeof cuda_backend);
}

const DeviceFacts *device_facts(void) {
    REQUIRE(cuda_backend.ready, "device_facts before device_init");
    // who computes attention may have been measured since the last call
    DeviceFacts *facts = &cuda_backend.facts;
    snprintf(facts->attention, sizeof facts->attention, "%s", cuda_attention_description());
    return facts;
}

// ------------------------------------------------------------------------------------------ memory

// One block from device_alloc: what device_free must subtract. There are a handful: the arena and
// short-lived buffers.
struct CudaAllocation {
    struct CudaAllocation *next;
    void *data;
    size_t bytes;
};

// A failed allocation is reported to the caller, who may continue; one inside a recording is a bug.
#define NOT_WHILE_RECORDING(function)                                                              \
    REQUIRE(!cuda_backend.capturing, function " while recording a graph")

void *device_alloc(size_t bytes, Error *err) {
    NOT_WHILE_RECORDING("device_alloc");
    struct CudaAllocation *block = (struct CudaAllocation *)malloc(sizeof *block);
    const size_t free_bytes = device_memory_free(), total = cuda_backend.facts.memory_total;
    if (!block || cudaMalloc(&block->data, max_size(bytes, 1)) != cudaSuccess) {
        (void)cudaGetLastError(); // or the next launch would report it
        free(block);
        error_set(err,
                  "out of memory: %zu bytes (%.2f GB) requested, %zu (%.2f GB) free of %zu on the "
                  "GPU; use a smaller "
                  "micro-batch or model, or end other programs",
                  bytes, (double)bytes * 1e-9, free_bytes, (double)free_bytes * 1e-9, total);
        return NULL;
    }

    CUDA_CHECK(cudaMemsetAsync(block->data, 0, bytes, cuda_compute_stream()));
    // the copy stream may be the first to use it
    CUDA_CHECK(cudaStreamSynchronize(cuda_compute_stream()));

    block->bytes = bytes;
    block->next = cuda_backend.allocations;
    cuda_backend.allocations = block;
    cuda_backend.allocated += bytes;
    if (cuda_backend.allocated > cuda_backend.allocated_peak)
        cuda_backend.allocated_peak = cuda_backend.allocated;
    return block->data;
}

void device_free(void *p) {
    if (!p) return;
    struct CudaAllocation **link = &cuda_backend.allocations;
    while (*link && (*link)->data != p) link = &(*link)->next;
    struct CudaAllocation *block = *link;
    REQUIRE(block, "device_free of memory that device_alloc did not return");
    *link = block->next;
    cuda_backend.allocated -= block->bytes;
    CUDA_CHECK(cudaFree(p));
    free(block);
}

size_t device_memory_free(void) {
    size_t free_bytes, total;
    CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total));
    return free_bytes;
}

size_t device_memory_peak(void) { return cuda_backend.allocated_peak; }
void device_memory_peak_restore(size_t peak) { cuda_backend.allocated_peak = peak; }

// Pinned, so that the copy engines read and write it directly, concurrently with the kernels.
void *host_alloc(size_t bytes, Error *err) {
    NOT_WHILE_RECORDING("host_alloc");
    void *p = NULL;
    if (cudaHostAlloc(&p, max_size(bytes, 1), cudaHostAllocDefault) == cudaSuccess) return p;
    (void)cudaGetLastError();
    error_set(err,
              "out of memory: %zu bytes of pinned host memory (ulimit -l, or the memory limit of "
              "the container?)",
              bytes);
    return NULL;
}

void host_free(void *p) {
    if (p) CUDA_CHECK(cudaFreeHost(p));
}

// --------------------------------------------------------------------------------------- workspace

int64_t ops_workspace_bytes(OpsShape shape) {
    cuda_matmul_note_shape(shape);
    return cuda_size_workspace(shape, cuda_backend.compute_capability, cuda_cudnn_workspace(shape));
}

void ops_set_workspace(void *device_memory, int64_t bytes) {
    REQUIRE((uintptr_t)device_memory % 256 == 0, "the workspace is not 256-byte aligned");
    cuda_backend.workspace = (char *)device_memory;
    cuda_backend.workspace_bytes = bytes;
}

bool ops_workspace_is_set(void) { return cuda_backend.workspace != NULL; }

void *cuda_scratch(const char *op, int64_t bytes) {
    REQUIRE(bytes <= cuda_backend.workspace_bytes,
            "%s: needs %lld bytes of workspace, ops_set_workspace gave %lld", op, (long long)bytes,
            (long long)cuda_backend.workspace_bytes);
    if (bytes <= 0) return NULL;
    return cuda_backend.workspace;
}

const BackendOps *backend_ops(void) {
    static const BackendOps ops = {BACKEND_OPS(BACKEND_ENTRY)};
    return &ops;
}

bool backend_computes(DType dtype) {
    return dtype == DTYPE_FP32 || dtype == DTYPE_BF16 || dtype == DTYPE_FP16;
}

// ------------------------------------------------------------------------------ copies and waiting

void copy_h2d(void *device_dst, const void *host_src, size_t bytes, Stream stream) {
    CUDA_CHECK(cudaMemcpyAsync(device_dst, host_src, bytes, cudaMemcpyHostToDevice,
                               cuda_backend.streams[stream]));
}

void copy_d2h(void *host_dst, const void *device_src, size_t bytes, Stream stream) {
    CUDA_CHECK(cudaMemcpyAsync(host_dst, device_src, bytes, cudaMemcpyDeviceToHost,
                               cuda_backend.streams[stream]));
}

void device_copy(void *device_dst, const void *device_src, size_t bytes) {
    CUDA_CHECK(cudaMemcpyAsync(device_dst, device_src, bytes, cudaMemcpyDeviceToDevice,
                               cuda_compute_stream()));
}

void device_sync(void) { CUDA_CHECK(cudaDeviceSynchronize()); }

// ------------------------------------------------------------------------------------------ events

// A DeviceEvent is a cudaEvent_t.

DeviceEvent *device_event_create(Error *err) {
    (void)err; // CUDA_CHECK reports short memory
    cudaEvent_t event;
    // With a time stamp. Blocking: a host that waits for a step sleeps, and leaves its core to the
    // data reader.
    CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventBlockingSync));
    return (DeviceEvent *)event;
}

void device_event_destroy(DeviceEvent *e) { CUDA_CHECK(cudaEventDestroy((cudaEvent_t)e)); }

void device_event_record(DeviceEvent *e, Stream stream) {
    CUDA_CHECK(cudaEventRecord((cudaEvent_t)e, cuda_backend.streams[stream]));
}

void device_event_wait(DeviceEvent *e) { CUDA_CHECK(cudaEventSynchronize((cudaEvent_t)e)); }

bool device_event_done(DeviceEvent *e) {
    const cudaError_t status = cudaEventQuery((cudaEvent_t)e);
    if (status != cudaErrorNotReady) CUDA_CHECK(status);
    (void)cudaGetLastError(); // "not ready" is an answer; the next launch must not find it
    return status == cudaSuccess;
}

void device_stream_wait(Stream stream, DeviceEvent *e) {
    CUDA_CHECK(cudaStreamWaitEvent(cuda_backend.streams[stream], (cudaEvent_t)e, 0));
}

double device_event_seconds(DeviceEvent *start, DeviceEvent *stop) {
    float ms = 0;
    CUDA_CHECK(cudaEventElapsedTime(&ms, (cudaEvent_t)start, (cudaEvent_t)stop));
    return (double)ms * 1e-3;
}

// ------------------------------------------------------------------------------------------ graphs
// A micro-step of 12 layers is some 250 launches; one by one they cost the host 2 to 5 us each,
// as long as the kernels of a small batch run. Recorded once, they cost one launch. A graph goes
// through three states, each pass through `if (!replay) { begin; ops; end; }` moving it on by
// one:
//
//   UNSEEN   The ops run as they are called. All work at the first use of a shape happens here,
//            because a capture allows none of it: matmul plans are made and candidates timed,
//            attention is chosen, cuDNN builds its plans, the driver loads the machine code of
//            each kernel.
//   WARM     The ops are captured instead of run: the same calls now only leave nodes in a graph,
//            which is made executable, sent to the device and launched once. Pointers, sizes and
//            numbers are frozen in it.
//   RECORDED Replayed: one launch.
//
// Replay that returns false promises the caller's next pass is the same work as the one before.
// begin without it means other work (another batch size): whatever was recorded is dropped, and
// the graph is UNSEEN again.
//
// With PRETRAIN_GRAPHS=0, and where the driver refuses captures (driver_probe.cu), a graph stays
// UNSEEN.
//
// The capture is ThreadLocal: it forbids unsafe calls (allocation, synchronisation) to this
// thread alone, and the data reader's thread is unaffected.

typedef enum { GRAPH_UNSEEN, GRAPH_WARM, GRAPH_RECORDED } GraphState;

struct DeviceGraph {
    GraphState state;
    bool same_work; // replay was asked for and refused: the pass that follows repeats the last one
    cudaGraphExec_t exec;
    size_t nodes;
};

DeviceGraph *device_graph_create(Error *err) {
    DeviceGraph *g = (DeviceGraph *)calloc(1, sizeof *g);
    if (!g) error_set(err, "out of memory for a graph");
    return g;
}

static void drop_recording(DeviceGraph *g) {
    if (g->state == GRAPH_RECORDED) {
        CUDA_CHECK(cudaStreamSynchronize(cuda_compute_stream())); // it may still be running
        CUDA_CHECK(cudaGraphExecDestroy(g->exec));
    }
    g->state = GRAPH_UNSEEN;
    g->nodes = 0;
}

void device_graph_destroy(DeviceGraph *g) {
    drop_recording(g);
    free(g);
}

bool device_graph_replay(DeviceGraph *g) {
    g->same_work = g->state != GRAPH_RECORDED;
    if (g->same_work) return false;
    CUDA_CHECK(cudaGraphLaunch(g->exec, cuda_compute_stream()));
    return true;
}

void device_graph_begin(DeviceGraph *g) {
    REQUIRE(!cuda_backend.capturing, "device_graph_begin inside another recording");
    if (!g->same_work) drop_recording(g);
    g->same_work = false;
    if (g->state == GRAPH_UNSEEN) return;
    CUDA_CHECK(cudaStreamBeginCapture(cuda_compute_stream(), cudaStreamCaptureModeThreadLocal));
    cuda_backend.capturing = true;
}

void device_graph_end(DeviceGraph *g) {
    if (g->state == GRAPH_UNSEEN) {
        if (cuda_backend.graphs) g->state = GRAPH_WARM;
        return;
    }
    cudaGraph_t graph;
    CUDA_CHECK(cudaStreamEndCapture(cuda_compute_stream(), &graph));
    CUDA_CHECK(cudaGraphGetNodes(graph, NULL, &g->nodes));
    CUDA_CHECK(cudaGraphInstantiate(&g->exec, graph, 0));
    CUDA_CHECK(cudaGraphDestroy(graph));
    // or the first launch would pay for it
    CUDA_CHECK(cudaGraphUpload(g->exec, cuda_compute_stream()));
    cuda_backend.capturing = false;
    g->state = GRAPH_RECORDED;
    CUDA_CHECK(cudaGraphLaunch(g->exec, cuda_compute_stream()));
}

size_t cuda_graph_nodes(const DeviceGraph *g) { return g->nodes; }
