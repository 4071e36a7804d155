// Small kernels with a planted mistake each, and their correct twins: what test_faults.c proves the simulator by.
//     faults NAME wrong|right
// runs one of them; a result that is not what it should be prints "wrong result" and ends with status 1.
// Built in every mode of the simulator. WRONG is known to the compiler, so the right twin holds nothing of the mistake.
#include "llmc/cuda/intrinsics.cuh"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 64 };

static void require(cudaError_t status) {
    if (status == cudaSuccess) return;
    printf("stopped: %s\n", cudaGetErrorName(status));
    exit(1);
}
static void expect(float got, float want) {
    if (got == want) return;
    printf("wrong result: %g instead of %g\n", (double)got, (double)want);
    exit(1);
}
static float *device_floats(int n) {
    float *p;
    require(cudaMalloc((void **)&p, (size_t)n * sizeof *p));
    require(cudaMemset(p, 0, (size_t)n * sizeof *p));
    require(cudaDeviceSynchronize()); // cudaMemset is asynchronous, and these streams do not wait for the legacy one
    return p;
}
static float *pinned_floats(int n) {
    float *p;
    require(cudaHostAlloc((void **)&p, (size_t)n * sizeof *p, cudaHostAllocDefault));
    for (int i = 0; i < n; i++) p[i] = 0.0f;
    return p;
}
static float device_value(const float *p) {
    float value;
    require(cudaMemcpy(&value, p, sizeof value, cudaMemcpyDeviceToHost));
    return value;
}
static cudaStream_t new_stream() {
    cudaStream_t stream;
    require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

__global__ void fill_kernel(float *out, float value) { out[threadIdx.x] = value; }

// ------------------------------------------------------------------------------------------------------------- memory

template <bool WRONG> __global__ void global_read_kernel(float *out, const float *in) {
    out[threadIdx.x] = in[threadIdx.x + (WRONG ? 1 : 0)];
}
template <bool WRONG> static void global_read() {
    float *in = device_floats(N), *out = device_floats(N);
    LAUNCH(global_read_kernel<WRONG>, 1, N, 0, 0)(out, (const float *)in);
    require(cudaFree(in));
    require(cudaFree(out));
}

template <bool WRONG> __global__ void global_write_kernel(float *out) {
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < N + WRONG) out[i] = 1.0f;
}
template <bool WRONG> static void global_write() {
    float *out = device_floats(N);
    LAUNCH(global_write_kernel<WRONG>, 2, N, 0, 0)(out);
    require(cudaFree(out));
}

template <bool WRONG> static void use_after_free() {
    float *out = device_floats(N), *again = out;
    cudaStream_t stream = new_stream();
    require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    LAUNCH(fill_kernel, 1, N, 0, stream)(again, 1.0f);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    require(cudaStreamEndCapture(stream, &graph));
    require(cudaGraphInstantiate(&exec, graph, 0));
    if (WRONG) require(cudaFree(out));
    require(cudaGraphLaunch(exec, stream));
    require(cudaStreamSynchronize(stream));
    if (!WRONG) require(cudaFree(out));
    require(cudaGraphDestroy(graph));
    require(cudaGraphExecDestroy(exec));
}

template <bool WRONG> __global__ void static_shared_kernel(float *out) {
    SHARED(float, tile, [N]);
    float *p = tile; // UBSan knows the bounds of the array, AddressSanitizer those of the memory
    p[threadIdx.x + (WRONG ? 1 : 0)] = 1.0f;
    __syncthreads();
    out[threadIdx.x] = tile[threadIdx.x / 2];
}
template <bool WRONG> static void static_shared() { LAUNCH(static_shared_kernel<WRONG>, 1, N, 0, 0)(device_floats(N)); }

template <bool WRONG> __global__ void dynamic_shared_kernel(float *out) {
    DYN_SHARED(float, tile);
    tile[threadIdx.x] = 1.0f;
    __syncthreads();
    out[threadIdx.x] = tile[N - 1 - threadIdx.x + (WRONG ? 1 : 0)];
}
template <bool WRONG> static void dynamic_shared() {
    LAUNCH(dynamic_shared_kernel<WRONG>, 1, N, N * sizeof(float), 0)(device_floats(N));
}

template <bool WRONG> __global__ void misaligned_kernel(float *out) {
    reinterpret_cast<float4 *>(out + (WRONG ? 1 : 0))[threadIdx.x] = make_float4(1.0f, 2.0f, 3.0f, 4.0f);
}
template <bool WRONG> static void misaligned() { LAUNCH(misaligned_kernel<WRONG>, 1, 4, 0, 0)(device_floats(N)); }

// Thread 0 leaves its element of shared memory, or of global memory, as it is.
template <bool WRONG> __global__ void uninitialised_shared_kernel(float *out) {
    SHARED(float, tile, [N]);
    if (!WRONG || threadIdx.x > 0) tile[threadIdx.x] = 1.0f;
    __syncthreads();
    out[threadIdx.x] = tile[threadIdx.x] > 0.5f ? 1.0f : 0.0f;
}
template <bool WRONG> static void uninitialised_shared() {
    float *out = device_floats(N);
    LAUNCH(uninitialised_shared_kernel<WRONG>, 1, N, 0, 0)(out);
    expect(device_value(out), 1.0f);
}
template <bool WRONG> __global__ void uninitialised_global_kernel(float *out, const float *in) {
    out[threadIdx.x] = in[threadIdx.x] > 0.5f ? 1.0f : 0.0f;
}
template <bool WRONG> static void uninitialised_global() {
    float *in, *out = device_floats(N);
    require(cudaMalloc((void **)&in, N * sizeof(float)));
    if (!WRONG) LAUNCH(fill_kernel, 1, N, 0, 0)(in, 1.0f);
    LAUNCH(uninitialised_global_kernel<WRONG>, 1, N, 0, 0)(out, (const float *)in);
    expect(device_value(out), 1.0f);
}

template <bool WRONG> static void host_touches_device() {
    float *p = device_floats(N);
    expect(WRONG ? p[3] : device_value(p + 3), 0.0f);
}
template <bool WRONG> static void host_pointer() {
    float on_host[N] = {0};
    LAUNCH(fill_kernel, 1, N, 0, 0)(WRONG ? on_host : device_floats(N), 1.0f);
}
template <bool WRONG> static void copy_direction() {
    float on_host[N] = {0}, *p = device_floats(N);
    require(cudaMemcpy(on_host, p, sizeof on_host, WRONG ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost));
}

// --------------------------------------------------------------------------------------------- threads of one block

template <bool WRONG> __global__ void missing_barrier_kernel(float *out) {
    SHARED(float, tile, [N]);
    tile[threadIdx.x] = (float)threadIdx.x;
    if (!WRONG) __syncthreads();
    out[threadIdx.x] = tile[(threadIdx.x + N - 1) % N];
}
template <bool WRONG> static void missing_barrier() {
    float *out = device_floats(N);
    LAUNCH(missing_barrier_kernel<WRONG>, 1, N, 0, 0)(out);
    expect(device_value(out), N - 1);
    expect(device_value(out + 1), 0.0f);
}

// Each thread copies 2 x 4 floats into shared memory with cp.async. The wrong twin waits when they have been read.
template <bool WRONG> __global__ void missing_copy_wait_kernel(float *out, const float *in) {
    SHARED(float4, tile, [2 * N]);
    const float4 *source = reinterpret_cast<const float4 *>(in);
    AsyncCopies copies;
    copies.copy(&tile[threadIdx.x], &source[threadIdx.x], true);
    copies.copy(&tile[N + threadIdx.x], &source[N + threadIdx.x], true);
    copies.commit();
    if (!WRONG) copies.wait<0>();
    __syncthreads();
    out[threadIdx.x] = tile[threadIdx.x].x + tile[N + threadIdx.x].x;
    if (WRONG) copies.wait<0>();
}
template <bool WRONG> static void missing_copy_wait() {
    float *in = device_floats(8 * N), *out = device_floats(N);
    LAUNCH(missing_copy_wait_kernel<WRONG>, 1, N, 0, 0)(out, (const float *)in);
    expect(device_value(out), 0.0f);
}

template <bool WRONG> __global__ void divergent_barrier_kernel(float *out) {
    if (!WRONG) {
        __syncthreads();
    } else if (threadIdx.x < 32) {
        __syncthreads();
    } else {
        __syncthreads();
    }
    out[threadIdx.x] = 1.0f;
}
template <bool WRONG> static void divergent_barrier() {
    LAUNCH(divergent_barrier_kernel<WRONG>, 1, N, 0, 0)(device_floats(N));
}

template <bool WRONG> __global__ void early_exit_kernel(float *out) {
    if (WRONG && threadIdx.x >= 40) return;
    __syncthreads();
    out[threadIdx.x] = 1.0f;
}
template <bool WRONG> static void early_exit() { LAUNCH(early_exit_kernel<WRONG>, 1, N, 0, 0)(device_floats(N)); }

template <bool WRONG> __global__ void deadlock_kernel(float *out) {
    float v = 1.0f;
    if (!WRONG || threadIdx.x < 16) v = __shfl_sync(~0u, v, 0);
    __syncthreads();
    out[threadIdx.x] = v;
}
template <bool WRONG> static void deadlock() { LAUNCH(deadlock_kernel<WRONG>, 1, 32, 0, 0)(device_floats(N)); }

template <bool WRONG> __global__ void endless_loop_kernel(float *out) {
    volatile unsigned step = WRONG ? 0 : 1; // volatile: the compiler must not conclude that the loop ends
    for (unsigned i = threadIdx.x; i < N; i += step) out[i] = 1.0f;
}
template <bool WRONG> static void endless_loop() { LAUNCH(endless_loop_kernel<WRONG>, 1, 32, 0, 0)(device_floats(N)); }

// Lane i of a warp hands its value to lane i + 1 through shared memory.
template <bool WRONG> __global__ void shuffle_as_barrier_kernel(float *out) {
    SHARED(float, tile, [32]);
    tile[threadIdx.x] = 1.0f;
    if (WRONG)
        (void)__shfl_sync(~0u, 0.0f, 0); // brings the lanes together, but orders no memory
    else
        __syncwarp();
    out[threadIdx.x] = tile[(threadIdx.x + 31) % 32];
}
template <bool WRONG> static void shuffle_as_barrier() {
    LAUNCH(shuffle_as_barrier_kernel<WRONG>, 1, 32, 0, 0)(device_floats(N));
}

// ---------------------------------------------------------------------------------------------------- warp operations

template <bool WRONG> __global__ void shuffle_mask_kernel(float *out) {
    out[threadIdx.x] = __shfl_sync(WRONG ? 0xffffu : ~0u, 1.0f, 0);
}
template <bool WRONG> static void shuffle_mask() { LAUNCH(shuffle_mask_kernel<WRONG>, 1, 32, 0, 0)(device_floats(N)); }

template <bool WRONG> __global__ void inactive_source_kernel(float *out) {
    if (threadIdx.x < 16) out[threadIdx.x] = __shfl_sync(0xffffu, 1.0f, WRONG ? 20 : 2);
}
template <bool WRONG> static void inactive_source() {
    LAUNCH(inactive_source_kernel<WRONG>, 1, 32, 0, 0)(device_floats(N));
}

template <bool WRONG> __global__ void different_operations_kernel(float *out) {
    float v = 1.0f;
    if (!WRONG || threadIdx.x % 2)
        v = __shfl_sync(~0u, v, 0);
    else
        v = (float)__ballot_sync(~0u, 1);
    out[threadIdx.x] = v;
}
template <bool WRONG> static void different_operations() {
    LAUNCH(different_operations_kernel<WRONG>, 1, 32, 0, 0)(device_floats(N));
}

// ------------------------------------------------------------------------------------------------- blocks and streams

template <bool WRONG> __global__ void block_race_kernel(int *count) {
    if (threadIdx.x > 0) return;
    if (WRONG)
        *count += 1;
    else
        atomicAdd(count, 1);
}
template <bool WRONG> static void block_race() {
    int *count = reinterpret_cast<int *>(device_floats(1));
    LAUNCH(block_race_kernel<WRONG>, 8, 32, 0, 0)(count);
}

// 1 + 1e8 is 1e8 in fp32: a sum in the order of arrival has other bits in another order.
template <bool WRONG> __global__ void float_atomics_kernel(float *sum, float *parts) {
    const float value = blockIdx.x == 0 ? 1.0f : blockIdx.x == 1 ? 1e8f : -1e8f;
    if (WRONG)
        atomicAdd(sum, value);
    else
        parts[blockIdx.x] = value;
}
template <bool WRONG> static void float_atomics() {
    float *sum = device_floats(1), *parts = device_floats(3);
    LAUNCH(float_atomics_kernel<WRONG>, 3, 1, 0, 0)(sum, parts);
    expect(WRONG ? device_value(sum) : device_value(parts) + device_value(parts + 1) + device_value(parts + 2), 0.0f);
}

template <bool WRONG> static void missing_event() {
    float *p = device_floats(N), *out = pinned_floats(N);
    cudaStream_t producer = new_stream(), consumer = new_stream();
    cudaEvent_t filled;
    require(cudaEventCreateWithFlags(&filled, cudaEventDisableTiming));
    LAUNCH(fill_kernel, 1, N, 0, producer)(p, 5.0f);
    require(cudaEventRecord(filled, producer));
    if (!WRONG) require(cudaStreamWaitEvent(consumer, filled, 0));
    require(cudaMemcpyAsync(out, p, N * sizeof(float), cudaMemcpyDeviceToHost, consumer));
    require(cudaStreamSynchronize(consumer));
    expect(out[0], 5.0f);
}

template <bool WRONG> static void missing_wait() {
    float *p = device_floats(N), *out = pinned_floats(N);
    cudaStream_t stream = new_stream();
    LAUNCH(fill_kernel, 1, N, 0, stream)(p, 5.0f);
    require(cudaMemcpyAsync(out, p, N * sizeof(float), cudaMemcpyDeviceToHost, stream));
    if (!WRONG) require(cudaStreamSynchronize(stream));
    expect(out[0], 5.0f);
}

// ------------------------------------------------------------------------------------------------------------ limits

__global__ void shared_hungry_kernel(float *out) {
    DYN_SHARED(float, tile);
    tile[threadIdx.x] = 1.0f;
    out[threadIdx.x] = tile[threadIdx.x];
}
template <bool WRONG> static void too_much_shared() {
    LAUNCH(shared_hungry_kernel, 1, N, WRONG ? 228 * 1024 : 227 * 1024, 0)(device_floats(N));
    require(cudaGetLastError());
}
template <bool WRONG> static void too_many_threads() {
    LAUNCH(fill_kernel, 1, WRONG ? 1025 : 1024, 0, 0)(device_floats(1024), 1.0f);
    require(cudaGetLastError());
}

// --------------------------------------------------------------------------------------------------------------- main

#define FAULT(name)                                                                                                    \
    { #name, name < true>, name < false> }
static const struct {
    const char *name;
    void (*wrong)();
    void (*right)();
} faults[] = {
    FAULT(global_read),          FAULT(global_write),       FAULT(use_after_free),       FAULT(static_shared),
    FAULT(dynamic_shared),       FAULT(misaligned),         FAULT(uninitialised_shared), FAULT(uninitialised_global),
    FAULT(host_touches_device),  FAULT(host_pointer),       FAULT(copy_direction),       FAULT(missing_barrier),
    FAULT(missing_copy_wait),    FAULT(divergent_barrier),  FAULT(early_exit),           FAULT(deadlock),
    FAULT(endless_loop),         FAULT(shuffle_as_barrier), FAULT(shuffle_mask),         FAULT(inactive_source),
    FAULT(different_operations), FAULT(block_race),         FAULT(float_atomics),        FAULT(missing_event),
    FAULT(missing_wait),         FAULT(too_much_shared),    FAULT(too_many_threads),
};

int main(int argc, char **argv) {
    for (const auto &fault : faults) {
        if (argc != 3 || strcmp(argv[1], fault.name) != 0) continue;
        (strcmp(argv[2], "wrong") == 0 ? fault.wrong : fault.right)();
        require(cudaDeviceSynchronize());
        printf("finished\n");
        return 0;
    }
    fprintf(stderr, "usage: faults NAME wrong|right\n");
    return 2;
}
