// GELU forward and backward, element by element, where they are not in the epilogue of a matmul. The formulas are in
// gelu.cuh; here are only the kernels that carry elements past them.
#include "llmc/cuda/elements.cuh"
#include "llmc/cuda/gelu.cuh"

// Two packs a thread, a block's width apart: 2 or 4 loads of 16 bytes in flight fill the memory of an H200 at half of
// the threads that a multiprocessor can hold.
enum { THREADS = 256, THREAD_PACKS = 2 };

// Blocks for packs, two a thread, and for the elements that are in no pack, one a thread.
static unsigned block_count(int64_t packs, int64_t rest) {
    const int64_t for_packs = ceil_div(packs, THREADS * THREAD_PACKS), for_rest = ceil_div(rest, THREADS);
    return (unsigned)(for_packs > for_rest ? for_packs : for_rest);
}

// out = gelu(pre), n elements, in packs of 16 bytes as far as whole_packs allows. Thread t of block b owns the packs
// b * 512 + t and + 256, and one of the elements behind the packs. Bytes: 2 elements each.
template <class T>
static __global__ void __launch_bounds__(THREADS) gelu_forward_kernel(T *out, const T *pre, int64_t packs, int64_t n) {
    constexpr int W = Pack<T>::N;
    const int64_t first = (int64_t)blockIdx.x * THREADS * THREAD_PACKS + threadIdx.x;
    const int64_t rest = packs * W + (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int4 bits[THREAD_PACKS];
    for (int j = 0; j < THREAD_PACKS; j++)
        if (first + j * THREADS < packs) bits[j] = load_bits_once(pre + (first + j * THREADS) * W);
    for (int j = 0; j < THREAD_PACKS; j++) {
        if (first + j * THREADS >= packs) continue;
        float x[W];
        bits_to_floats<T>(x, bits[j]);
        for (int k = 0; k < W; k++) x[k] = gelu(x[k]);
        store_bits(out + (first + j * THREADS) * W, bits_from_floats<T>(x));
    }
    if (rest < n) out[rest] = from_float<T>(gelu(to_float(pre[rest])));
}

// dpre = dout * gelu'(pre), the same way; dpre may be dout. Bytes: 3 elements each.
template <class T>
static __global__ void __launch_bounds__(THREADS)
    gelu_backward_kernel(T *dpre, const T *dout, const T *pre, int64_t packs, int64_t n) {
    constexpr int W = Pack<T>::N;
    const int64_t first = (int64_t)blockIdx.x * THREADS * THREAD_PACKS + threadIdx.x;
    const int64_t rest = packs * W + (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int4 bits[THREAD_PACKS], d_bits[THREAD_PACKS];
    for (int j = 0; j < THREAD_PACKS; j++) {
        if (first + j * THREADS >= packs) continue;
        bits[j] = load_bits_once(pre + (first + j * THREADS) * W);
        d_bits[j] = load_bits_once(dout + (first + j * THREADS) * W);
    }
    for (int j = 0; j < THREAD_PACKS; j++) {
        if (first + j * THREADS >= packs) continue;
        float x[W], gradient[W];
        bits_to_floats<T>(x, bits[j]);
        bits_to_floats<T>(gradient, d_bits[j]);
        for (int k = 0; k < W; k++) gradient[k] *= gelu_derivative(x[k]);
        store_bits(dpre + (first + j * THREADS) * W, bits_from_floats<T>(gradient));
    }
    if (rest < n) dpre[rest] = from_float<T>(to_float(dout[rest]) * gelu_derivative(to_float(pre[rest])));
}

template <class T> static void launch_forward(T *out, const T *pre, int64_t n) {
    const int64_t packs = whole_packs<T>(n, out, pre);
    LAUNCH(gelu_forward_kernel<T>, block_count(packs, n - packs * Pack<T>::N), THREADS, 0, cuda_compute_stream())
    (out, pre, packs, n);
}

template <class T> static void launch_backward(T *dpre, const T *dout, const T *pre, int64_t n) {
    const int64_t packs = whole_packs<T>(n, dpre, dout, pre);
    LAUNCH(gelu_backward_kernel<T>, block_count(packs, n - packs * Pack<T>::N), THREADS, 0, cuda_compute_stream())
    (dpre, dout, pre, packs, n);
}

void gelu_forward(Tensor out, Tensor pre) {
    const int64_t n = tensor_numel(pre);
    cuda_check_float("gelu_forward", pre);
    tensor_check("gelu_forward", out, pre.dtype, n);
    DISPATCH(pre.dtype, T, launch_forward((T *)out.data, (const T *)pre.data, n));
}

void gelu_backward(Tensor dpre, Tensor dout, Tensor pre) {
    const int64_t n = tensor_numel(pre);
    cuda_check_float("gelu_backward", pre);
    tensor_check("gelu_backward", dpre, pre.dtype, n);
    tensor_check("gelu_backward", dout, pre.dtype, n);
    DISPATCH(pre.dtype, T, launch_backward((T *)dpre.data, (const T *)dout.data, (const T *)pre.data, n));
}
