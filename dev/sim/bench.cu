// The program measures the simulator: nanoseconds per CUDA thread, barrier, shuffle and warp sum,
// the best of several runs.
//     make sim-bench
#include <chrono>
#include <cuda_runtime.h>
#include <stdio.h>

enum { ROUNDS = 40, THREADS = 1 << 12, PLAIN_THREADS = 1 << 16, REPEATS = 100 };

__global__ void plain_kernel(float *x) { x[blockIdx.x * blockDim.x + threadIdx.x] *= 1.0001f; }
__global__ void empty_kernel() {}
__global__ void barrier_kernel(float *x) {
    float v = (float)threadIdx.x;
    for (int i = 0; i < ROUNDS; i++) {
        v *= 1.0001f;
        __syncthreads();
    }
    x[blockIdx.x * blockDim.x + threadIdx.x] = v;
}
__global__ void shuffle_kernel(float *x) {
    float v = (float)threadIdx.x;
    for (int i = 0; i < ROUNDS; i++) v += __shfl_up_sync(~0u, v, 1);
    x[blockIdx.x * blockDim.x + threadIdx.x] = v;
}
// A sum over a warp, as llmc/cuda/kernel.cuh has it.
__global__ void warp_sum_kernel(float *x) {
    float v = (float)threadIdx.x;
    for (int i = 0; i < ROUNDS; i++) {
        for (int offset = 16; offset > 0; offset /= 2) v += __shfl_xor_sync(~0u, v, offset);
        v *= 0.01f;
    }
    x[blockIdx.x * blockDim.x + threadIdx.x] = v;
}

template <class F> static double best_seconds(F f) {
    double best = 1e9;
    for (int i = 0; i < REPEATS; i++) {
        const auto begin = std::chrono::steady_clock::now();
        f();
        const double seconds =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        if (seconds < best) best = seconds;
    }
    return best;
}
static double nanoseconds_per_round(void (*kernel)(float *), float *x, unsigned block) {
    const auto launch = [=] { kernel<<<THREADS / block, block>>>(x); };
    return best_seconds(launch) * 1e9 / ((double)THREADS * ROUNDS);
}

static void launch_empty(unsigned block) { empty_kernel<<<1, block>>>(); }
static void launch_plain(float *x) { plain_kernel<<<PLAIN_THREADS / 256, 256>>>(x); }

int main() {
    float *x;
    if (cudaMalloc((void **)&x, PLAIN_THREADS * sizeof *x) ||
        cudaMemset(x, 0, PLAIN_THREADS * sizeof *x))
        return 1;

    printf("launch of one thread            %8.0f ns\n",
           best_seconds([] { launch_empty(1); }) * 1e9);
    printf("launch of a block of 256        %8.0f ns\n",
           best_seconds([] { launch_empty(256); }) * 1e9);
    printf("thread without barriers         %8.2f ns\n",
           best_seconds([=] { launch_plain(x); }) * 1e9 / PLAIN_THREADS);

    for (unsigned block : {32u, 256u, 1024u})
        printf("block of %4u, ns per thread: __syncthreads %6.2f  shuffle %6.2f  warp sum %6.2f\n",
               block, nanoseconds_per_round(barrier_kernel, x, block),
               nanoseconds_per_round(shuffle_kernel, x, block),
               nanoseconds_per_round(warp_sum_kernel, x, block));
    return cudaFree(x);
}
