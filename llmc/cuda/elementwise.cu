// The small ops: the batch, the sums of losses by sequence, fill and cast.
#include "llmc/cuda/elements.cuh"
#include "llmc/cuda/vector.cuh"

enum { THREADS = 256 };

static unsigned blocks(int64_t items) { return (unsigned)ceil_div(items, THREADS); }

// --------------------------------------------------------------------------------------------------------------- batch

// inputs, targets (B,T) i32 from windows (B,T+1) u16 or i32. Block (b, chunk), one token of window b a thread: it is
// the input of its place and the target of the place before. Bytes: each token is read once, 2 or 4, and written
// twice, 8.
template <class W>
static __global__ void __launch_bounds__(THREADS)
    batch_unpack_kernel(int32_t *inputs, int32_t *targets, const W *windows, int64_t T) {
    const int64_t b = blockIdx.x, t = (int64_t)blockIdx.y * THREADS + threadIdx.x;
    if (t > T) return;
    const int32_t token = (int32_t)windows[b * (T + 1) + t];
    if (t < T) inputs[b * T + t] = token;
    if (t > 0) targets[b * T + t - 1] = token;
}

template <class W>
static void launch_batch_unpack(Tensor inputs, Tensor targets, Tensor windows, int64_t B, int64_t T) {
    LAUNCH(batch_unpack_kernel<W>, dim3((unsigned)B, blocks(T + 1)), THREADS, 0, cuda_compute_stream())
    ((int32_t *)inputs.data, (int32_t *)targets.data, (const W *)windows.data, T);
}

void batch_unpack(Tensor inputs, Tensor targets, Tensor windows) {
    const int64_t B = tensor_rows(windows), T = tensor_cols(windows) - 1;
    tensor_check("batch_unpack", inputs, DTYPE_I32, B * T);
    tensor_check("batch_unpack", targets, DTYPE_I32, B * T);
    tensor_check("batch_unpack", windows, windows.dtype == DTYPE_U16 ? DTYPE_U16 : DTYPE_I32, B * (T + 1));
    if (windows.dtype == DTYPE_U16)
        launch_batch_unpack<uint16_t>(inputs, targets, windows, B, T);
    else
        launch_batch_unpack<int32_t>(inputs, targets, windows, B, T);
}

// -------------------------------------------------------------------------------------------------------------- losses

// sums (B) = or += the sums of the rows of losses (B,T), a block each: thread t adds every 256th in order, then the
// threads are added in the order of a tree. Bytes: 4 B * T.
static __global__ void __launch_bounds__(THREADS)
    sequence_losses_kernel(float *sums, const float *losses, int64_t T, bool accumulate) {
    const int64_t b = blockIdx.x;
    float sum = 0.0f;
    for (int64_t t = threadIdx.x; t < T; t += THREADS) sum += losses[b * T + t];
    sum = block_sum(sum);
    if (threadIdx.x == 0) sums[b] = accumulate ? sums[b] + sum : sum;
}

void sequence_losses(Tensor sums, Tensor losses, bool accumulate) {
    const int64_t B = tensor_numel(sums), T = tensor_numel(losses) / B;
    tensor_check("sequence_losses", sums, DTYPE_FP32, B);
    tensor_check("sequence_losses", losses, DTYPE_FP32, B * T);
    LAUNCH(sequence_losses_kernel, (unsigned)B, THREADS, 0, cuda_compute_stream())
    ((float *)sums.data, (const float *)losses.data, T, accumulate);
}

// ---------------------------------------------------------------------------------------------------------------- fill

// 16 bytes a thread; the elements behind the last pack, or all of an unaligned tensor, one a thread: items counts both.
template <class T>
static __global__ void __launch_bounds__(THREADS) fill_kernel(T *x, float value, int64_t packs, int64_t items) {
    constexpr int W = Pack<T>::N;
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < packs) {
        float values[W];
        for (int k = 0; k < W; k++) values[k] = value;
        store_bits(x + i * W, bits_from_floats<T>(values));
    } else if (i < items) {
        x[packs * W + (i - packs)] = from_float<T>(value);
    }
}

template <class T> static void launch_fill(T *x, float value, int64_t n) {
    const int64_t packs = whole_packs<T>(n, x), items = packs + n - packs * Pack<T>::N;
    LAUNCH(fill_kernel<T>, blocks(items), THREADS, 0, cuda_compute_stream())(x, value, packs, items);
}

void tensor_fill(Tensor t, float value) {
    cuda_check_float("tensor_fill", t);
    DISPATCH(t.dtype, T, launch_fill((T *)t.data, value, tensor_numel(t)));
}

// ---------------------------------------------------------------------------------------------------------------- cast

// dst = src, four elements a thread (16 bytes of fp32, 8 of the others), the rest one a thread, as in fill_kernel.
// Bytes: 6 an element between fp32 and a 16-bit type.
template <class D, class S>
static __global__ void __launch_bounds__(THREADS) cast_kernel(D *dst, const S *src, int64_t fours, int64_t items) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < fours) {
        const Vector<S, 4> from = load_vector<S, 4>(src + i * 4);
        Vector<D, 4> to;
        for (int k = 0; k < 4; k++) to.v[k] = from_float<D>(to_float(from.v[k]));
        store_vector(dst + i * 4, to);
    } else if (i < items) {
        dst[fours * 4 + (i - fours)] = from_float<D>(to_float(src[fours * 4 + (i - fours)]));
    }
}

template <class D, class S> static void launch_cast(D *dst, const S *src, int64_t n) {
    const bool is_aligned = (uintptr_t)dst % (4 * sizeof(D)) == 0 && (uintptr_t)src % (4 * sizeof(S)) == 0;
    const int64_t fours = is_aligned ? n / 4 : 0, items = fours + n - fours * 4;
    LAUNCH((cast_kernel<D, S>), blocks(items), THREADS, 0, cuda_compute_stream())(dst, src, fours, items);
}

void tensor_cast(Tensor dst, Tensor src) {
    const int64_t n = tensor_numel(src);
    cuda_check_float("tensor_cast", src);
    cuda_check_float("tensor_cast", dst);
    tensor_check("tensor_cast", dst, dst.dtype, n);
    DISPATCH(dst.dtype, D, DISPATCH(src.dtype, S, launch_cast((D *)dst.data, (const S *)src.data, n)));
}
