// See matmul_kernels.h. Neither kernel runs in a usual step: cuBLASLt adds biases in its epilogue, and bits are
// compared only when algorithms are chosen.
#include "llmc/cuda/matmul_kernels.h"

#include "llmc/cuda/kernel.cuh"

// Memory-bound, no cooperation between threads: any block of a few warps will do.
enum { THREADS = 256 };

// out (N,OC), bias (OC). Thread i owns the pack that begins at element WIDTH * i: reads 16 bytes of each, writes 16.
// WIDTH 1 is for rows that are no multiple of 16 bytes.
template <class T, int WIDTH> static __global__ void add_bias_kernel(T *out, const T *bias, int64_t packs, int64_t OC) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= packs) return;
    T *const o = out + i * WIDTH;
    const T *const b = bias + i * WIDTH % OC;
    if (WIDTH == 1) {
        *o = from_float<T>(to_float(*o) + to_float(*b));
        return;
    }
    Pack<T> sum = load_pack(o);
    const Pack<T> added = load_pack(b);
    for (int j = 0; j < Pack<T>::N; j++) sum.v[j] = from_float<T>(to_float(sum.v[j]) + to_float(added.v[j]));
    store_pack(o, sum);
}

template <class T, int WIDTH> static void launch_add_bias(Tensor out, Tensor bias) {
    const int64_t packs = tensor_numel(out) / WIDTH;
    LAUNCH((add_bias_kernel<T, WIDTH>), (unsigned)ceil_div(packs, THREADS), THREADS, 0, cuda_compute_stream())
    ((T *)out.data, (const T *)bias.data, packs, tensor_numel(bias));
}

void cuda_add_bias(Tensor out, Tensor bias) {
    const bool aligned = pack_aligned(out.data, tensor_numel(bias), out.dtype) && (uintptr_t)bias.data % 16 == 0;
    DISPATCH(out.dtype, T, if (aligned) launch_add_bias<T, Pack<T>::N>(out, bias);
             else launch_add_bias<T, 1>(out, bias));
}

// Thread i compares words i, i + threads of the grid, ... of a and b (words of 2 bytes, the smallest element).
static __global__ void compare_kernel(unsigned *differ, const uint16_t *a, const uint16_t *b, int64_t words) {
    bool same = true;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < words; i += (int64_t)gridDim.x * THREADS)
        same = same && a[i] == b[i];
    if (!same) atomicOr(differ, 1u);
}

bool cuda_same_bits(const void *a, const void *b, size_t bytes) {
    unsigned *differ = NULL, answer = 1;
    if (cudaMalloc((void **)&differ, sizeof *differ) != cudaSuccess) {
        (void)cudaGetLastError();
        return false;
    }
    CUDA_CHECK(cudaMemsetAsync(differ, 0, sizeof *differ, cuda_compute_stream()));
    // Eight blocks of 256 threads fill a multiprocessor.
    const int64_t words = (int64_t)(bytes / 2), blocks = ceil_div(words, THREADS),
                  full = 8 * (int64_t)cuda_backend.units;
    LAUNCH(compare_kernel, (unsigned)(blocks < full ? blocks : full), THREADS, 0, cuda_compute_stream())
    (differ, (const uint16_t *)a, (const uint16_t *)b, words);
    CUDA_CHECK(cudaStreamSynchronize(cuda_compute_stream()));
    CUDA_CHECK(cudaMemcpy(&answer, differ, sizeof answer, cudaMemcpyDeviceToHost));
    CUDA_CHECK(cudaFree(differ));
    return answer == 0;
}
