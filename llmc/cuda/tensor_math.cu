// Arithmetic on whole tensors, for the products of Muon's orthogonalisation: a x + b y, and a matrix divided by its
// norm. Each array is read or written once: 3 times and 2 times the bytes of the tensor.
#include "llmc/cuda/vector.cuh"

// 4 neighbours a thread, as in the kernels of the update; the rest, or all of an unaligned tensor, one a thread.
enum { THREADS = 256, NEIGHBOURS = 4 };

// Threads for n elements: the first `fours` take 4 each.
typedef struct {
    int64_t fours, items;
} Work;

static Work work_of(int64_t n, bool aligned) {
    Work w;
    w.fours = aligned ? n / NEIGHBOURS : 0;
    w.items = w.fours + n - w.fours * NEIGHBOURS;
    return w;
}

static unsigned blocks(Work w) { return (unsigned)ceil_div(w.items, THREADS); }

// --------------------------------------------------------------------------------------------------------------- axpby

// out may be x or y: a thread reads its elements of both before it writes them.
template <class T, int N>
static __device__ __forceinline__ void axpby(T *out, float a, const T *x, float b, const T *y, int64_t e) {
    float u[N], v[N];
    to_floats(u, load_vector<T, N>(x + e));
    to_floats(v, load_vector<T, N>(y + e));
    for (int k = 0; k < N; k++) u[k] = fmaf(a, u[k], b * v[k]);
    store_vector(out + e, from_floats<T, N>(u));
}

template <class T>
static __global__ void __launch_bounds__(THREADS)
    axpby_kernel(T *out, float a, const T *x, float b, const T *y, Work work) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < work.fours)
        axpby<T, NEIGHBOURS>(out, a, x, b, y, i * NEIGHBOURS);
    else if (i < work.items)
        axpby<T, 1>(out, a, x, b, y, work.fours * NEIGHBOURS + (i - work.fours));
}

template <class T> static void launch_axpby(Tensor out, float a, Tensor x, float b, Tensor y) {
    const bool aligned = ((uintptr_t)out.data | (uintptr_t)x.data | (uintptr_t)y.data) % 16 == 0;
    const Work work = work_of(tensor_numel(out), aligned);
    LAUNCH(axpby_kernel<T>, blocks(work), THREADS, 0, cuda_compute_stream())
    ((T *)out.data, a, (const T *)x.data, b, (const T *)y.data, work);
}

void tensor_axpby(Tensor out, float a, Tensor x, float b, Tensor y) {
    const char *op = "tensor_axpby";
    cuda_check_float(op, out);
    tensor_check(op, x, out.dtype, tensor_numel(out));
    tensor_check(op, y, out.dtype, tensor_numel(out));
    DISPATCH(out.dtype, T, launch_axpby<T>(out, a, x, b, y));
}

// ----------------------------------------------------------------------------------------------------------- normalize

template <class D, class S, int N>
static __device__ __forceinline__ void multiply(D *out, const S *in, float factor, int64_t e) {
    float v[N];
    to_floats(v, load_vector<S, N>(in + e));
    for (int k = 0; k < N; k++) v[k] *= factor;
    store_vector(out + e, from_floats<D, N>(v));
}

template <class D, class S>
static __global__ void __launch_bounds__(THREADS) normalize_kernel(D *out, const S *in, const float *sumsq, Work work) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    const float factor = 1.0f / (sqrtf(sumsq[0]) + 1e-7f);
    if (i < work.fours)
        multiply<D, S, NEIGHBOURS>(out, in, factor, i * NEIGHBOURS);
    else if (i < work.items)
        multiply<D, S, 1>(out, in, factor, work.fours * NEIGHBOURS + (i - work.fours));
}

template <class D, class S> static void launch_normalize(Tensor out, Tensor in, Tensor sumsq) {
    const Work work = work_of(tensor_numel(out), ((uintptr_t)out.data | (uintptr_t)in.data) % 16 == 0);
    LAUNCH((normalize_kernel<D, S>), blocks(work), THREADS, 0, cuda_compute_stream())
    ((D *)out.data, (const S *)in.data, (const float *)sumsq.data, work);
}

void tensor_normalize(Tensor out, Tensor in, Tensor sumsq) {
    const char *op = "tensor_normalize";
    cuda_check_float(op, out);
    tensor_check(op, in, in.dtype == DTYPE_FP32 ? DTYPE_FP32 : out.dtype, tensor_numel(out));
    tensor_check(op, sumsq, DTYPE_FP32, 1);
    DISPATCH(out.dtype, D, {
        if (in.dtype == DTYPE_FP32)
            launch_normalize<D, float>(out, in, sumsq);
        else
            launch_normalize<D, D>(out, in, sumsq);
    });
}
