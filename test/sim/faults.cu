// Small kernels with a planted mistake each, and their correct twins: what test_faults.c proves the
// simulator by.
//     faults NAME wrong|right
// runs one of them; a result that is not what it should be prints "wrong result" and ends with
// status 1.
// Built by nvcc for sm_90 and run in every mode of the simulator. WRONG is known to the compiler,
// so the right twin holds nothing of the mistake.
#include "dev/sim/sim_control.h"
#include "llmc/cuda/intrinsics.cuh"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 64 };
// LAUNCH asks the backend for this, of which nothing else is here.
CudaBackend cuda_backend;

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
    require(cudaDeviceSynchronize()); // cudaMemset is asynchronous, and these streams do not wait
                                      // for the legacy one
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
static cudaGraphExec_t captured_fill(cudaStream_t stream, float *p) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    fill_kernel<<<1, N, 0, stream>>>(p, 1.0f);
    require(cudaGetLastError());
    require(cudaStreamEndCapture(stream, &graph));
    require(cudaGraphInstantiate(&exec, graph, 0));
    require(cudaGraphDestroy(graph));
    return exec;
}

// ---------------------------------------------------------------------------------- early launches

template <bool WRONG> __global__ void early_read_kernel(float *out, const float *in) {
    if (!WRONG) wait_for_the_grid_before();
    const float x = in[threadIdx.x];
    if (WRONG) wait_for_the_grid_before();
    out[threadIdx.x] = x;
}
template <bool WRONG> static void early_read() {
    float *in = device_floats(N), *out = device_floats(N);
    cuda_backend.early_launch = true;
    cudaStream_t stream = new_stream();
    fill_kernel<<<1, N, 0, stream>>>(in, 1.0f);
    LAUNCH(early_read_kernel<WRONG>, 1, N, 0, stream)(out, in);
    require(cudaStreamSynchronize(stream));
    expect(device_value(out), 1.0f);
}

// ------------------------------------------------------------------------------------------ memory

template <bool WRONG> __global__ void global_read_kernel(float *out, const float *in) {
    out[threadIdx.x] = in[threadIdx.x + (WRONG ? 1 : 0)];
}
template <bool WRONG> static void global_read() {
    float *in = device_floats(N), *out = device_floats(N);
    global_read_kernel<WRONG><<<1, N>>>(out, (const float *)in);
    require(cudaFree(in));
    require(cudaFree(out));
}

template <bool WRONG> __global__ void global_write_kernel(float *out) {
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < N + WRONG) out[i] = 1.0f;
}
template <bool WRONG> static void global_write() {
    float *out = device_floats(N);
    global_write_kernel<WRONG><<<2, N>>>(out);
    require(cudaFree(out));
}
template <bool WRONG> static void forbidden_gap() {
    float *out = device_floats(2 * N);
    sim_forbid(out + N, 64);
    global_write_kernel<WRONG><<<2, N>>>(out);
}

template <bool WRONG> static void use_after_free() {
    float *out = device_floats(N);
    cudaStream_t stream = new_stream();
    fill_kernel<<<1, N, 0, stream>>>(out, 1.0f);
    cudaGraphExec_t exec = captured_fill(stream, out);
    if (WRONG) require(cudaFree(out));
    require(cudaGraphLaunch(exec, stream));
    require(cudaStreamSynchronize(stream));
    if (!WRONG) require(cudaFree(out));
    require(cudaGraphExecDestroy(exec));
}

// The first use of a kernel loads its code.
template <bool WRONG> static void first_use_in_capture() {
    float *out = device_floats(N);
    cudaStream_t stream = new_stream();
    if (!WRONG) fill_kernel<<<1, N, 0, stream>>>(out, 1.0f);
    require(cudaGraphExecDestroy(captured_fill(stream, out)));
}

template <bool WRONG> __global__ void static_shared_kernel(float *out) {
    __shared__ float tile[N];
    float *p = tile; // UBSan knows the bounds of the array, AddressSanitizer those of the memory
    p[threadIdx.x + (WRONG ? 1 : 0)] = 1.0f;
    __syncthreads();
    out[threadIdx.x] = tile[threadIdx.x / 2];
}
template <bool WRONG> static void static_shared() {
    static_shared_kernel<WRONG><<<1, N>>>(device_floats(N));
}

template <bool WRONG> __global__ void dynamic_shared_kernel(float *out) {
    float *tile = reinterpret_cast<float *>(dynamic_shared_memory);
    tile[threadIdx.x] = 1.0f;
    __syncthreads();
    out[threadIdx.x] = tile[N - 1 - threadIdx.x + (WRONG ? 1 : 0)];
}
template <bool WRONG> static void dynamic_shared() {
    dynamic_shared_kernel<WRONG><<<1, N, N * sizeof(float)>>>(device_floats(N));
}

template <bool WRONG> __global__ void misaligned_kernel(float *out) {
    reinterpret_cast<float4 *>(out + (WRONG ? 1 : 0))[threadIdx.x] =
        make_float4(1.0f, 2.0f, 3.0f, 4.0f);
}
template <bool WRONG> static void misaligned() {
    misaligned_kernel<WRONG><<<1, 4>>>(device_floats(N));
}

// Thread 0 leaves its element of shared memory, or of global memory, as it is.
template <bool WRONG> __global__ void uninitialised_shared_kernel(float *out) {
    __shared__ float tile[N];
    if (!WRONG || threadIdx.x > 0) tile[threadIdx.x] = 1.0f;
    __syncthreads();
    out[threadIdx.x] = tile[threadIdx.x] > 0.5f ? 1.0f : 0.0f;
}
template <bool WRONG> static void uninitialised_shared() {
    float *out = device_floats(N);
    uninitialised_shared_kernel<WRONG><<<1, N>>>(out);
    expect(device_value(out), 1.0f);
}
// An index out of shared or global memory that nobody wrote; masked, so that it does no other harm.
template <bool WRONG> __global__ void uninitialised_index_kernel(float *out, const int *index) {
    __shared__ int of_block[N];
    if (!WRONG) of_block[threadIdx.x] = 0;
    __syncthreads();
    out[threadIdx.x] = (float)((of_block[threadIdx.x] & 31) + index[0]);
    out[(of_block[threadIdx.x] & 31) + (index[0] & 31)] = 0.0f;
}
template <bool WRONG> static void uninitialised_index() {
    uninitialised_index_kernel<WRONG><<<1, N>>>(device_floats(N), (const int *)device_floats(1));
}

template <bool WRONG> __global__ void uninitialised_global_kernel(float *out, const float *in) {
    out[threadIdx.x] = in[threadIdx.x] > 0.5f ? 1.0f : 0.0f;
}
template <bool WRONG> static void uninitialised_global() {
    float *in, *out = device_floats(N);
    require(cudaMalloc((void **)&in, N * sizeof(float)));
    if (!WRONG) fill_kernel<<<1, N>>>(in, 1.0f);
    uninitialised_global_kernel<WRONG><<<1, N>>>(out, (const float *)in);
    expect(device_value(out), 1.0f);
}

template <bool WRONG> static void host_touches_device() {
    float *p = device_floats(N);
    expect(WRONG ? p[3] : device_value(p + 3), 0.0f);
}
template <bool WRONG> static void host_pointer() {
    float on_host[N] = {0};
    fill_kernel<<<1, N>>>(WRONG ? on_host : device_floats(N), 1.0f);
}
// The same pointer where the host cannot see that it is one: in a struct, and in a table of the
// device.
struct Rows {
    const float *in;
    float *out;
};
static __device__ void copy_row(const Rows &rows) { rows.out[threadIdx.x] = rows.in[threadIdx.x]; }
template <bool WRONG> __global__ void pointer_in_struct_kernel(Rows rows) { copy_row(rows); }
template <bool WRONG> __global__ void pointer_in_table_kernel(const Rows *table) {
    copy_row(*table);
}
static Rows some_rows(bool wrong) {
    static float on_host[N];
    return {wrong ? on_host : device_floats(N), device_floats(N)};
}
template <bool WRONG> static void pointer_in_struct() {
    pointer_in_struct_kernel<WRONG><<<1, N>>>(some_rows(WRONG));
}
template <bool WRONG> static void pointer_in_table() {
    const Rows rows = some_rows(WRONG);
    Rows *table;
    require(cudaMalloc((void **)&table, sizeof rows));
    require(cudaMemcpy(table, &rows, sizeof rows, cudaMemcpyHostToDevice));
    pointer_in_table_kernel<WRONG><<<1, N>>>((const Rows *)table);
}
template <bool WRONG> static void copy_direction() {
    float on_host[N] = {0}, *p = device_floats(N);
    require(cudaMemcpy(on_host, p, sizeof on_host,
                       WRONG ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost));
}

// ---------------------------------------------------------------------------- threads of one block

template <bool WRONG> __global__ void missing_barrier_kernel(float *out) {
    __shared__ float tile[N];
    tile[threadIdx.x] = (float)threadIdx.x;
    if (!WRONG) __syncthreads();
    out[threadIdx.x] = tile[(threadIdx.x + N - 1) % N];
}
template <bool WRONG> static void missing_barrier() {
    float *out = device_floats(N);
    missing_barrier_kernel<WRONG><<<1, N>>>(out);
    expect(device_value(out), N - 1);
    expect(device_value(out + 1), 0.0f);
}

// Each thread copies 2 x 4 floats into shared memory with cp.async. The wrong twin waits when they
// have been read.
template <bool WRONG> __global__ void missing_copy_wait_kernel(float *out, const float *in) {
    __shared__ float4 tile[2 * N];
    const float4 *source = reinterpret_cast<const float4 *>(in);
    copy_async(&tile[threadIdx.x], &source[threadIdx.x], true);
    copy_async(&tile[N + threadIdx.x], &source[N + threadIdx.x], true);
    copy_async_commit();
    if (!WRONG) copy_async_wait<0>();
    __syncthreads();
    out[threadIdx.x] = tile[threadIdx.x].x + tile[N + threadIdx.x].x;
    if (WRONG) copy_async_wait<0>();
}
template <bool WRONG> static void missing_copy_wait() {
    float *in = device_floats(8 * N), *out = device_floats(N);
    missing_copy_wait_kernel<WRONG><<<1, N>>>(out, (const float *)in);
    expect(device_value(out), 0.0f);
}

// Groups are counted by thread, whichever array they fill: all but the last one has landed.
template <bool WRONG> __global__ void copy_groups_kernel(float *out, const float4 *in) {
    __shared__ float4 first[N], second[N];
    copy_async(&first[threadIdx.x], &in[threadIdx.x], true);
    copy_async_commit();
    copy_async(&second[threadIdx.x], &in[threadIdx.x], true);
    copy_async_commit();
    copy_async_wait<1>();
    out[threadIdx.x] = (WRONG ? second : first)[threadIdx.x].x;
    copy_async_wait<0>();
}
template <bool WRONG> static void copy_groups() {
    float *in = device_floats(4 * N), *out = device_floats(N);
    copy_groups_kernel<WRONG><<<1, N>>>(out, (const float4 *)in);
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
    divergent_barrier_kernel<WRONG><<<1, N>>>(device_floats(N));
}

template <bool WRONG> __global__ void early_exit_kernel(float *out) {
    if (WRONG && threadIdx.x >= 40) return;
    __syncthreads();
    out[threadIdx.x] = 1.0f;
}
template <bool WRONG> static void early_exit() {
    early_exit_kernel<WRONG><<<1, N>>>(device_floats(N));
}

template <bool WRONG> __global__ void deadlock_kernel(float *out) {
    float v = 1.0f;
    if (!WRONG || threadIdx.x < 16) v = __shfl_sync(~0u, v, 0);
    __syncthreads();
    out[threadIdx.x] = v;
}
template <bool WRONG> static void deadlock() {
    deadlock_kernel<WRONG><<<1, 32>>>(device_floats(N));
}

template <bool WRONG> __global__ void endless_loop_kernel(float *out) {
    volatile unsigned step =
        WRONG ? 0 : 1; // volatile: the compiler must not conclude that the loop ends
    for (unsigned i = threadIdx.x; i < N; i += step) out[i] = 1.0f;
}
template <bool WRONG> static void endless_loop() {
    endless_loop_kernel<WRONG><<<1, 32>>>(device_floats(N));
}

// Lane i of a warp hands its value to lane i + 1 through shared memory.
template <bool WRONG> __global__ void shuffle_as_barrier_kernel(float *out) {
    __shared__ float tile[32];
    tile[threadIdx.x] = 1.0f;
    if (WRONG)
        (void)__shfl_sync(~0u, 0.0f, 0); // brings the lanes together, but orders no memory
    else
        __syncwarp();
    out[threadIdx.x] = tile[(threadIdx.x + 31) % 32];
}
template <bool WRONG> static void shuffle_as_barrier() {
    shuffle_as_barrier_kernel<WRONG><<<1, 32>>>(device_floats(N));
}
// ldmatrix reads rows that other lanes wrote; it brings the lanes together and orders no memory
// either.
template <bool WRONG> __global__ void ldmatrix_as_barrier_kernel(uint32_t *out) {
    __shared__ uint4 tile[32];
    uint32_t m[4];
    tile[threadIdx.x] = make_uint4(1, 1, 1, 1);
    if (!WRONG) __syncwarp();
    ldmatrix_x4(m, &tile[(threadIdx.x + 31) % 32]);
    out[threadIdx.x] = m[0];
}
template <bool WRONG> static void ldmatrix_as_barrier() {
    ldmatrix_as_barrier_kernel<WRONG><<<1, 32>>>((uint32_t *)device_floats(32));
}

// --------------------------------------------------------------------------------- warp operations

template <bool WRONG> __global__ void shuffle_mask_kernel(float *out) {
    out[threadIdx.x] = __shfl_sync(WRONG ? 0xffffu : ~0u, 1.0f, 0);
}
template <bool WRONG> static void shuffle_mask() {
    shuffle_mask_kernel<WRONG><<<1, 32>>>(device_floats(N));
}

template <bool WRONG> __global__ void inactive_source_kernel(float *out) {
    if (threadIdx.x < 16) out[threadIdx.x] = __shfl_sync(0xffffu, 1.0f, WRONG ? 20 : 2);
}
template <bool WRONG> static void inactive_source() {
    inactive_source_kernel<WRONG><<<1, 32>>>(device_floats(N));
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
    different_operations_kernel<WRONG><<<1, 32>>>(device_floats(N));
}

template <bool WRONG> __global__ void missing_lanes_kernel(uint32_t *out) {
    __shared__ uint4 tile[32];
    uint32_t m[4] = {0, 0, 0, 0};
    tile[threadIdx.x] = make_uint4(1, 1, 1, 1);
    __syncwarp();
    if (!WRONG || threadIdx.x < 31) ldmatrix_x4(m, &tile[threadIdx.x]);
    out[threadIdx.x] = m[0];
}
template <bool WRONG> static void missing_lanes() {
    missing_lanes_kernel<WRONG><<<1, 32>>>((uint32_t *)device_floats(32));
}

// ------------------------------------------------------------------------------ blocks and streams

// Every block leaves a number, the last one to come adds them up. A fence makes a number visible
// before the ticket is drawn; without it another multiprocessor may still see what was there
// before.
template <bool WRONG>
__global__ void missing_fence_kernel(float *numbers, unsigned *tickets, float *sum) {
    if (threadIdx.x > 0) return;
    numbers[blockIdx.x] = 1.0f;
    if (!WRONG) __threadfence();
    if (atomicInc(tickets, gridDim.x - 1) < gridDim.x - 1) return;
    __threadfence();
    float total = 0.0f;
    for (unsigned i = 0; i < gridDim.x; i++) total += __ldcg(&numbers[i]);
    *sum = total;
}
template <bool WRONG> static void missing_fence() {
    float *numbers = device_floats(8), *sum = device_floats(1);
    missing_fence_kernel<WRONG><<<8, 32>>>(numbers, (unsigned *)device_floats(1), sum);
    expect(device_value(sum), 8.0f);
}

// The same with whole blocks, and where it is wrong, a fence comes after the ticket.
template <bool WRONG>
__global__ void late_fence_kernel(float *numbers, unsigned *tickets, float *sum) {
    __shared__ bool last[1];
    numbers[blockIdx.x * 32 + threadIdx.x] = 1.0f;
    if (!WRONG) __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last[0] = atomicInc(tickets, gridDim.x - 1) == gridDim.x - 1;
    __syncthreads();
    __threadfence();
    if (!last[0] || threadIdx.x > 0) return;
    float total = 0.0f;
    for (unsigned i = 0; i < gridDim.x * 32; i++) total += __ldcg(&numbers[i]);
    *sum = total;
}
template <bool WRONG> static void late_fence() {
    float *numbers = device_floats(8 * 32), *sum = device_floats(1);
    late_fence_kernel<WRONG><<<8, 32>>>(numbers, (unsigned *)device_floats(1), sum);
    expect(device_value(sum), 256.0f);
}

template <bool WRONG> __global__ void block_race_kernel(int *count) {
    if (threadIdx.x > 0) return;
    if (WRONG)
        *count += 1;
    else
        atomicAdd(count, 1);
}
template <bool WRONG> static void block_race() {
    int *count = reinterpret_cast<int *>(device_floats(1));
    block_race_kernel<WRONG><<<8, 32>>>(count);
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
    float_atomics_kernel<WRONG><<<3, 1>>>(sum, parts);
    expect(WRONG ? device_value(sum)
                 : device_value(parts) + device_value(parts + 1) + device_value(parts + 2),
           0.0f);
}

template <bool WRONG> static void missing_event() {
    float *p = device_floats(N), *out = pinned_floats(N);
    cudaStream_t producer = new_stream(), consumer = new_stream();
    cudaEvent_t filled;
    require(cudaEventCreateWithFlags(&filled, cudaEventDisableTiming));
    fill_kernel<<<1, N, 0, producer>>>(p, 5.0f);
    require(cudaEventRecord(filled, producer));
    if (!WRONG) require(cudaStreamWaitEvent(consumer, filled, 0));
    require(cudaMemcpyAsync(out, p, N * sizeof(float), cudaMemcpyDeviceToHost, consumer));
    require(cudaStreamSynchronize(consumer));
    expect(out[0], 5.0f);
}

// The same between kernels, behind one that both streams wait for.
template <bool WRONG> static void kernels_of_two_streams() {
    float *p = device_floats(N);
    cudaStream_t streams[2] = {new_stream(), new_stream()};
    cudaEvent_t event;
    require(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    for (int i = 0; i < 4; i++) {
        fill_kernel<<<1, N, 0, streams[i % 2]>>>(p, 5.0f);
        if (WRONG && i == 2) continue;
        require(cudaEventRecord(event, streams[i % 2]));
        require(cudaStreamWaitEvent(streams[1 - i % 2], event, 0));
    }
}
// A copy may still have to read what is overwritten behind it: here by a copy of the host.
template <bool WRONG> static void source_changed() {
    float *p = device_floats(N), *in = pinned_floats(N), *other = pinned_floats(N);
    cudaStream_t stream = new_stream();
    require(cudaMemcpyAsync(p, in, N * sizeof(float), cudaMemcpyHostToDevice, stream));
    if (!WRONG) require(cudaStreamSynchronize(stream));
    require(cudaMemcpy(in, other, N * sizeof(float), cudaMemcpyHostToHost));
}

template <bool WRONG> static void missing_wait() {
    float *p = device_floats(N), *out = pinned_floats(N);
    cudaStream_t stream = new_stream();
    fill_kernel<<<1, N, 0, stream>>>(p, 5.0f);
    require(cudaMemcpyAsync(out, p, N * sizeof(float), cudaMemcpyDeviceToHost, stream));
    if (!WRONG) require(cudaStreamSynchronize(stream));
    expect(out[0], 5.0f);
}

// cudaMemcpy waits for blocking streams alone.
template <bool WRONG> static void copy_beside_stream() {
    float *p = device_floats(N);
    cudaStream_t stream = new_stream();
    fill_kernel<<<1, N, 0, stream>>>(p, 5.0f);
    if (!WRONG) require(cudaStreamSynchronize(stream));
    expect(device_value(p), 5.0f);
}

// ----------------------------------------------------------------------------------------- numbers

// A quotient of equal numbers is 1, but not from an approximate division.
template <bool WRONG> __global__ void exact_quotient_kernel(float *inexact, const float *zeros) {
    const float x = (float)(threadIdx.x + 1), y = x + zeros[threadIdx.x];
    if ((WRONG ? __fdividef(x, y) : x / y) != 1.0f) atomicAdd(inexact, 1.0f);
}
template <bool WRONG> static void exact_quotient() {
    float *inexact = device_floats(1);
    exact_quotient_kernel<WRONG><<<1, N>>>(inexact, (const float *)device_floats(N));
    expect(device_value(inexact), 0.0f);
}
// 16 products of 2^-26 and 1 are 1 + 2^-22; a tensor core cuts each of them off.
template <bool WRONG> __global__ void exact_sum_kernel(float *sum) {
    const uint32_t two = 0x39003900; // 2^-13 as bf16, twice
    const uint32_t a[4] = {two, two, two, two};
    float c[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    mma_m16n8k16<bf16>(c, a, two, two);
    if (threadIdx.x == 0)
        *sum = WRONG ? c[0] : c[0] > 1.0f - 1e-6f && c[0] < 1.0f + 1e-6f ? 1.0f + 0x1p-22f : 0.0f;
}
template <bool WRONG> static void exact_sum() {
    float *sum = device_floats(1);
    exact_sum_kernel<WRONG><<<1, 32>>>(sum);
    expect(device_value(sum), 1.0f + 0x1p-22f);
}

// ------------------------------------------------------------------------------------------ limits

__global__ void shared_hungry_kernel(float *out) {
    __shared__ float fixed[128];
    float *tile = reinterpret_cast<float *>(dynamic_shared_memory);
    tile[threadIdx.x] = fixed[threadIdx.x] = 1.0f;
    out[threadIdx.x] = tile[threadIdx.x] + fixed[threadIdx.x];
}
// 512 static bytes leave 48 KB less 512 for the dynamic ones, unless the kernel is allowed more.
template <bool WRONG> static void shared_without_asking() {
    shared_hungry_kernel<<<1, N, 48 * 1024 - (WRONG ? 0 : 512)>>>(device_floats(N));
    require(cudaGetLastError());
}
template <bool WRONG> static void shared_asked_too_little() {
    require(cudaFuncSetAttribute(shared_hungry_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 64 * 1024));
    shared_hungry_kernel<<<1, N, (WRONG ? 65 : 64) * 1024>>>(device_floats(N));
    require(cudaGetLastError());
}
template <bool WRONG> static void too_much_shared() {
    require(cudaFuncSetAttribute(shared_hungry_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 227 * 1024 - (WRONG ? 0 : 512)));
}
template <bool WRONG> static void too_many_threads() {
    fill_kernel<<<1, WRONG ? 1025 : 1024>>>(device_floats(1024), 1.0f);
    require(cudaGetLastError());
}
// LAUNCH, by which llmc/cuda launches, ends the program; who launches without it has to ask.
template <bool WRONG> static void refused_launch() {
    LAUNCH(fill_kernel, 1, WRONG ? 1025 : 1024, 0, nullptr)(device_floats(1024), 1.0f);
}
template <bool WRONG> static void unseen_refusal() {
    float *p = device_floats(1024);
    fill_kernel<<<1, WRONG ? 1025 : 1024>>>(p, 1.0f);
    fill_kernel<<<1, 1024>>>(p, 1.0f);
}
template <bool WRONG>
__global__ void __launch_bounds__(WRONG ? 64 : 128) launch_bounds_kernel(float *out) {
    out[threadIdx.x] = 1.0f;
}
template <bool WRONG> static void launch_bounds() {
    launch_bounds_kernel<WRONG><<<1, 128>>>(device_floats(128));
    require(cudaGetLastError());
}
// This program holds code for sm_90: run as another GPU it has none.
template <bool WRONG> static void no_code_for_gpu() {
    fill_kernel<<<1, N>>>(device_floats(N), 1.0f);
    require(cudaGetLastError());
}
template <bool WRONG> __global__ void trap_kernel(float *out) {
    if (WRONG && threadIdx.x == 5) __trap();
    out[threadIdx.x] = 1.0f;
}
template <bool WRONG> static void trap() { trap_kernel<WRONG><<<1, N>>>(device_floats(N)); }

// A GPU goes on with some number.
template <bool WRONG> __global__ void division_by_zero_kernel(float *out, int divisor) {
    out[threadIdx.x] = (float)((int)threadIdx.x / divisor);
}
template <bool WRONG> static void division_by_zero() {
    division_by_zero_kernel<WRONG><<<1, N>>>(device_floats(N), WRONG ? 0 : 3);
}

template <bool WRONG> __global__ void local_memory_kernel(float *out, int i) {
    float table[8];
    for (int k = 0; k < 8; k++) table[k] = out[k];
    table[i + (int)threadIdx.x % 2] = 2.0f;
    out[threadIdx.x] = table[i] + table[(i + 3) % 8];
}
template <bool WRONG> static void local_memory() {
    local_memory_kernel<WRONG><<<1, N>>>(device_floats(N), WRONG ? 7 : 6);
}
template <bool WRONG> __global__ void misaligned_shared_kernel(float *out) {
    __shared__ alignas(8) float tile[N + 4];
    tile[threadIdx.x] = 1.0f;
    __syncthreads();
    const float2 pair = reinterpret_cast<float2 *>(tile + (WRONG ? 1 : 0))[threadIdx.x / 2];
    out[threadIdx.x] = pair.x + pair.y;
}
template <bool WRONG> static void misaligned_shared() {
    misaligned_shared_kernel<WRONG><<<1, N>>>(device_floats(N));
}

// An array of floats is aligned as a float is, even where it is the only one: on an H200 such an
// array of a kernel of ours began at a multiple of 4. Dynamic memory is aligned to 16 and begins
// after the static variables.
template <bool WRONG> __global__ void shared_alignment_kernel(float *out) {
    __shared__ alignas(WRONG ? 4 : 16) float tile[4 * N];
    for (int i = (int)threadIdx.x; i < 4 * N; i += N) tile[i] = 1.0f;
    __syncthreads();
    const float4 v = reinterpret_cast<const float4 *>(tile)[threadIdx.x];
    out[threadIdx.x] = v.x + v.y + v.z + v.w;
}
template <bool WRONG> static void shared_alignment() {
    shared_alignment_kernel<WRONG><<<1, N>>>(device_floats(N));
}
template <bool WRONG> __global__ void dynamic_alignment_kernel(float *out) {
    __shared__ float4 fixed[N + 1];
    fixed[threadIdx.x] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    out[threadIdx.x] =
        fixed[threadIdx.x].x + (float)(shared_address(dynamic_shared_memory) % (WRONG ? 32 : 16));
}
template <bool WRONG> static void dynamic_alignment() {
    float *out = device_floats(N);
    dynamic_alignment_kernel<WRONG><<<1, N, 64>>>(out);
    expect(device_value(out), 0.0f);
}

// -------------------------------------------------------------------------------------------- main

#define FAULT(name)                                                                                \
    { #name, name < true>, name < false> }
static const struct {
    const char *name;
    void (*wrong)();
    void (*right)();
} faults[] = {
    FAULT(block_race),
    FAULT(copy_beside_stream),
    FAULT(copy_direction),
    FAULT(copy_groups),
    FAULT(deadlock),
    FAULT(different_operations),
    FAULT(divergent_barrier),
    FAULT(dynamic_alignment),
    FAULT(division_by_zero),
    FAULT(dynamic_shared),
    FAULT(early_exit),
    FAULT(early_read),
    FAULT(endless_loop),
    FAULT(exact_quotient),
    FAULT(exact_sum),
    FAULT(first_use_in_capture),
    FAULT(float_atomics),
    FAULT(forbidden_gap),
    FAULT(global_read),
    FAULT(global_write),
    FAULT(host_pointer),
    FAULT(host_touches_device),
    FAULT(inactive_source),
    FAULT(kernels_of_two_streams),
    FAULT(late_fence),
    FAULT(launch_bounds),
    FAULT(ldmatrix_as_barrier),
    FAULT(local_memory),
    FAULT(misaligned),
    FAULT(misaligned_shared),
    FAULT(missing_barrier),
    FAULT(missing_copy_wait),
    FAULT(missing_event),
    FAULT(missing_fence),
    FAULT(missing_lanes),
    FAULT(missing_wait),
    FAULT(no_code_for_gpu),
    FAULT(refused_launch),
    FAULT(pointer_in_struct),
    FAULT(pointer_in_table),
    FAULT(shared_alignment),
    FAULT(shared_asked_too_little),
    FAULT(shared_without_asking),
    FAULT(shuffle_as_barrier),
    FAULT(shuffle_mask),
    FAULT(source_changed),
    FAULT(static_shared),
    FAULT(too_many_threads),
    FAULT(too_much_shared),
    FAULT(trap),
    FAULT(uninitialised_global),
    FAULT(uninitialised_shared),
    FAULT(uninitialised_index),
    FAULT(unseen_refusal),
    FAULT(use_after_free),
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
