// device.h on a GPU, first half: the life of the backend, the facts, memory. Copies, events and graphs are in stream.c,
// the measured speed in device_speed.c, the sensors in nvml.c.
// device_init is where a machine that cannot run this program must say so, in one line with the way out: no driver, an
// old one, no GPU, a GPU that the program was not built for.
#include "llmc/cuda/attention.h"
#include "llmc/cuda/backend.h"
#include "llmc/cuda/facts.h"
#include "llmc/cuda/nvml.h"

#include <cublasLt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// What the Makefile compiled the kernels for: "80 90".
#ifndef CUDA_ARCHS
#define CUDA_ARCHS ""
#endif

enum { OLDEST_CAPABILITY = 75 }; // T4, RTX 20: fp16 tensor cores with fp32 accumulation, ldmatrix

#define OTHER_TRAINER "the CPU trainer is ./train_gpt2 (make train_gpt2)"

void device_prepare_process(char **argv) { (void)argv; } // nothing of CUDA is read before main

// --------------------------------------------------------------------------------------------------------- finding it

static bool no_driver(int driver, Error *err) {
    char has[16], needs[16];
    if (driver == 0) return error_set(err, "no NVIDIA driver on this machine; " OTHER_TRAINER);
    return error_set(err,
                     "the NVIDIA driver of this machine is too old: it serves CUDA %s, this program was built with "
                     "CUDA %s. Update the driver or build with CUDA %s; " OTHER_TRAINER,
                     cuda_version_text(driver, has, sizeof has), cuda_version_text(CUDART_VERSION, needs, sizeof needs),
                     has);
}

// Makes the first GPU that CUDA shows this process the current one. CUDA_VISIBLE_DEVICES chooses among several.
static bool find_gpu(Error *err) {
    int driver = 0, count = 0;
    cudaError_t status = cudaDriverGetVersion(&driver);
    if (status == cudaSuccess) status = cudaGetDeviceCount(&count);
    if (driver == 0 || status == cudaErrorInsufficientDriver) return no_driver(driver, err);
    if (status == cudaErrorNoDevice || (status == cudaSuccess && count == 0)) {
        const char *visible = getenv("CUDA_VISIBLE_DEVICES");
        return visible ? error_set(err, "no GPU: CUDA_VISIBLE_DEVICES=\"%s\" leaves none; " OTHER_TRAINER, visible)
                       : error_set(err, "no GPU that CUDA can use on this machine; " OTHER_TRAINER);
    }
    if (status == cudaSuccess) status = cudaSetDevice(0);
    return status == cudaSuccess || error_set(err, "CUDA does not start: %s (%s); " OTHER_TRAINER,
                                              cudaGetErrorString(status), cudaGetErrorName(status));
}

static int attribute(enum cudaDeviceAttr which) {
    int value = 0;
    if (cudaDeviceGetAttribute(&value, which, 0) == cudaSuccess) return value;
    (void)cudaGetLastError(); // a fact that this GPU does not tell
    return 0;
}

static void read_attributes(GpuAttributes *gpu) {
    struct cudaDeviceProp properties;
    CUDA_CHECK(cudaGetDeviceProperties(&properties, 0));
    snprintf(gpu->name, sizeof gpu->name, "%.120s", properties.name);
    gpu->compute_capability =
        10 * attribute(cudaDevAttrComputeCapabilityMajor) + attribute(cudaDevAttrComputeCapabilityMinor);
    gpu->units = attribute(cudaDevAttrMultiProcessorCount);
    gpu->clock_khz = attribute(cudaDevAttrClockRate);
    gpu->memory_clock_khz = attribute(cudaDevAttrMemoryClockRate);
    gpu->memory_bus_bits = attribute(cudaDevAttrGlobalMemoryBusWidth);
}

// Kernels that lack an image for the GPU fail one by one, at their first launch: found here instead.
static bool check_image(const GpuAttributes *gpu, Error *err) {
    const int capability = gpu->compute_capability;
    const char *reason;
    char archs[128];
    if (capability < OLDEST_CAPABILITY)
        return error_set(err, "%s (sm_%d) is too old: sm_%d or newer is needed; " OTHER_TRAINER, gpu->name, capability,
                         OLDEST_CAPABILITY);
    if (cuda_kernels_fit(&reason)) return true;
    return error_set(err, "built for %s, which %s (sm_%d) cannot run: build with `make train_gpt2cu ARCHS=%d` (%s)",
                     gpu_list_text(CUDA_ARCHS, archs, sizeof archs), gpu->name, capability, capability, reason);
}

// --------------------------------------------------------------------------------------------------- life and facts

// "580.65.06", or "" where the kernel module does not tell (WSL).
static void read_driver_version(char *text, size_t size) {
    text[0] = '\0';
    FILE *f = fopen("/sys/module/nvidia/version", "r");
    if (!f) return;
    if (!fgets(text, (int)size, f)) text[0] = '\0';
    text[strcspn(text, "\n")] = '\0';
    fclose(f);
}

static void fill_facts(DeviceFacts *facts, const GpuAttributes *gpu, bool tf32) {
    facts->backend = "cuda";
    snprintf(facts->name, sizeof facts->name, "%s", gpu->name);
    facts->units = gpu->units;
    CUDA_CHECK(cudaMemGetInfo(&facts->memory_free, &facts->memory_total));
    facts->supports[DTYPE_FP32] = facts->supports[DTYPE_FP16] = true;
    facts->supports[DTYPE_BF16] = gpu->compute_capability >= 80; // older tensor cores do not know it
    facts->default_dtype = facts->supports[DTYPE_BF16] ? DTYPE_BF16 : DTYPE_FP16;
    const size_t lt = cublasLtGetVersion(); // 130100 is 13.1.0
    facts->supports[DTYPE_E4M3] = facts->supports[DTYPE_E5M2] = gpu_has_fp8(gpu->compute_capability, lt);
    for (int i = 0; i < DTYPE_COUNT; i++) facts->peak_flops[i] = gpu_peak_flops(gpu, (DType)i, tf32);
    facts->peak_bandwidth = gpu_peak_bandwidth(gpu);

    char runtime[16], driver[64];
    read_driver_version(driver, sizeof driver);
    snprintf(facts->libraries, sizeof facts->libraries, "CUDA %s, cuBLASLt %zu.%zu.%zu%s%s",
             cuda_version_text(CUDART_VERSION, runtime, sizeof runtime), lt / 10000, lt / 100 % 100, lt % 100,
             *driver ? ", driver " : "", driver);
}

bool device_init(const DeviceOptions *options, Error *err) {
    REQUIRE(!cuda_backend.ready, "device_init: called twice");
    memset(&cuda_backend, 0, sizeof cuda_backend);
    if (!find_gpu(err)) return false;
    GpuAttributes gpu;
    read_attributes(&gpu);
    if (!check_image(&gpu, err)) return false;
    // Non-blocking: the legacy default stream, on which libraries may work, does not hold them up; and only such
    // streams can be captured.
    for (int i = 0; i < STREAM_COUNT; i++)
        CUDA_CHECK(cudaStreamCreateWithFlags(&cuda_backend.streams[i], cudaStreamNonBlocking));
    cuda_backend.options = *options;
    cuda_backend.compute_capability = gpu.compute_capability;
    cuda_backend.units = gpu.units;
    cuda_backend.shared_per_block = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    fill_facts(&cuda_backend.facts, &gpu, options->tf32);
    cuda_backend.ready = true;
    if (cuda_attention_check(options, err)) return true;
    device_shutdown();
    return false;
}

void device_shutdown(void) {
    if (!cuda_backend.ready) return;
    CUDA_CHECK(cudaDeviceSynchronize());
    cuda_attention_shutdown();
    cuda_optimizer_shutdown();
    cuda_matmul_shutdown();
    cuda_nvml_close(cuda_backend.nvml);
    for (int i = 0; i < STREAM_COUNT; i++) CUDA_CHECK(cudaStreamDestroy(cuda_backend.streams[i]));
    memset(&cuda_backend, 0, sizeof cuda_backend);
}

const DeviceFacts *device_facts(void) {
    REQUIRE(cuda_backend.ready, "device_facts before device_init");
    DeviceFacts *facts = &cuda_backend.facts; // who computes attention may have been measured since the last call
    snprintf(facts->attention, sizeof facts->attention, "%s", cuda_attention_description());
    return facts;
}

// ------------------------------------------------------------------------------------------------------------- memory

// One block from device_alloc: what device_free must subtract. There are a handful: the arena, and buffers that come
// and go.
struct CudaAllocation {
    struct CudaAllocation *next;
    void *data;
    size_t bytes;
};

// A failed allocation is reported to the caller, who may go on; one inside a recording is a bug.
#define NOT_WHILE_RECORDING(function) REQUIRE(!cuda_backend.capturing, function " while recording a graph")

void *device_alloc(size_t bytes, Error *err) {
    NOT_WHILE_RECORDING("device_alloc");
    struct CudaAllocation *block = (struct CudaAllocation *)malloc(sizeof *block);
    size_t free_bytes = 0, total = 0;
    CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total));
    if (!block || cudaMalloc(&block->data, bytes ? bytes : 1) != cudaSuccess) {
        (void)cudaGetLastError(); // or the next launch would report it
        free(block);
        error_set(err,
                  "out of memory: %zu bytes (%.2f GB) asked, %zu (%.2f GB) free of %zu on the GPU; use a smaller "
                  "micro-batch or model, or end other programs",
                  bytes, (double)bytes * 1e-9, free_bytes, (double)free_bytes * 1e-9, total);
        return NULL;
    }
    CUDA_CHECK(cudaMemsetAsync(block->data, 0, bytes, cuda_compute_stream()));
    CUDA_CHECK(cudaStreamSynchronize(cuda_compute_stream())); // the copy stream may be the first to use it
    block->bytes = bytes;
    block->next = cuda_backend.allocations;
    cuda_backend.allocations = block;
    cuda_backend.allocated += bytes;
    if (cuda_backend.allocated > cuda_backend.allocated_peak) cuda_backend.allocated_peak = cuda_backend.allocated;
    return block->data;
}

void device_free(void *p) {
    if (!p) return;
    struct CudaAllocation **link = &cuda_backend.allocations;
    while (*link && (*link)->data != p) link = &(*link)->next;
    struct CudaAllocation *block = *link;
    REQUIRE(block, "device_free of memory that device_alloc did not give");
    *link = block->next;
    cuda_backend.allocated -= block->bytes;
    CUDA_CHECK(cudaFree(p));
    free(block);
}

size_t device_memory_peak(void) { return cuda_backend.allocated_peak; }

// Pinned, so that the copy engines read and write it directly, beside the kernels.
void *host_alloc(size_t bytes, Error *err) {
    NOT_WHILE_RECORDING("host_alloc");
    void *p = NULL;
    if (cudaHostAlloc(&p, bytes ? bytes : 1, cudaHostAllocDefault) == cudaSuccess) return p;
    (void)cudaGetLastError();
    error_set(err, "out of memory: %zu bytes of pinned host memory (ulimit -l, or the memory limit of the container?)",
              bytes);
    return NULL;
}

void host_free(void *p) {
    if (p) CUDA_CHECK(cudaFreeHost(p));
}
