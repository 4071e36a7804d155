// The small ops, element by element: the batch, the sums of losses by sequence, fill and cast,
// activations where they are not in the epilogue of a matmul, arithmetic on whole tensors, and the
// statistics of a tensor. All are bound by memory; each array is read or written once, unless its
// op says otherwise. Owns nothing.
#include "llmc/cuda/intrinsics.cuh"

enum { THREADS = 256 };

static unsigned blocks(int64_t items) { return (unsigned)ceil_div(items, THREADS); }

// ------------------------------------------------------------------------------------------- batch

// inputs, targets (B,T) i32 from windows (B,T+1) u16 or i32. Block (b, chunk), one token of window
// b a thread: it is the input of its place and the target of the place before. Bytes: each token is
// read once, 2 or 4, and written twice, 8.
template <class W>
static __global__ void __launch_bounds__(THREADS)
    batch_unpack_kernel(int32_t *inputs, int32_t *targets, const W *windows, int64_t T) {
    wait_for_the_grid_before();
    const int64_t b = blockIdx.x, t = (int64_t)blockIdx.y * THREADS + threadIdx.x;
    if (t > T) return;
    const int32_t token = (int32_t)windows[b * (T + 1) + t];
    if (t < T) inputs[b * T + t] = token;
    if (t > 0) targets[b * T + t - 1] = token;
}

void backend_batch_unpack(Tensor inputs, Tensor targets, Tensor windows) {
    const int64_t T = tensor_cols(windows) - 1;
    const dim3 grid((unsigned)tensor_rows(windows), blocks(T + 1));
    int32_t *in = (int32_t *)inputs.data, *next = (int32_t *)targets.data;
    if (windows.dtype == DTYPE_U16) {
        LAUNCH(batch_unpack_kernel<uint16_t>, grid, THREADS, 0, cuda_compute_stream())
        (in, next, (const uint16_t *)windows.data, T);
    } else {
        LAUNCH(batch_unpack_kernel<int32_t>, grid, THREADS, 0, cuda_compute_stream())
        (in, next, (const int32_t *)windows.data, T);
    }
}

// ------------------------------------------------------------------------------------------ losses

// sums (B) = or += the sums of the rows of losses (B,T), a block each: thread t adds every 256th in
// order, then the threads are added in the order of a tree. Bytes: 4 B * T.
static __global__ void __launch_bounds__(THREADS)
    sequence_losses_kernel(float *sums, const float *losses, int64_t T, bool add) {
    wait_for_the_grid_before();
    const int64_t b = blockIdx.x;
    float sum = 0.0f;
    for (int64_t t = threadIdx.x; t < T; t += THREADS) sum += losses[b * T + t];
    sum = block_sum(sum);
    if (threadIdx.x == 0) sums[b] = add ? sums[b] + sum : sum;
}

void backend_sequence_losses(Tensor sums, Tensor losses, bool add) {
    const int64_t B = tensor_numel(sums), T = tensor_numel(losses) / B;
    LAUNCH(sequence_losses_kernel, (unsigned)B, THREADS, 0, cuda_compute_stream())
    ((float *)sums.data, (const float *)losses.data, T, add);
}

// -------------------------------------------------------------------------------------------- fill

// 16 bytes per thread; the elements after the last pack, or all of an unaligned tensor, one per
// thread. items counts both.
template <class T>
static __global__ void __launch_bounds__(THREADS)
    fill_kernel(T *x, float value, int64_t packs, int64_t items) {
    wait_for_the_grid_before();
    constexpr int W = PACK<T>;
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < packs) {
        float values[W];
        for (int k = 0; k < W; k++) values[k] = value;
        store_vector(x + i * W, from_floats<T>(values));
    } else if (i < items) {
        x[packs * W + (i - packs)] = from_float<T>(value);
    }
}

void backend_tensor_fill(Tensor t, float value) {
    const int64_t n = tensor_numel(t);
    DISPATCH(t.dtype, T, {
        T *x = (T *)t.data;
        const int64_t packs = whole_packs<T>(n, x), items = packs + n - packs * PACK<T>;
        LAUNCH(fill_kernel<T>, blocks(items), THREADS, 0, cuda_compute_stream())
        (x, value, packs, items);
    });
}

// -------------------------------------------------------------------------------------------- cast

// dst = src, four elements a thread (16 bytes of fp32, 8 of the others), the remainder one per
// thread, as in fill_kernel. Bytes: 6 an element between fp32 and a 16-bit type.
template <class D, class S>
static __global__ void __launch_bounds__(THREADS)
    cast_kernel(D *dst, const S *src, int64_t fours, int64_t items) {
    wait_for_the_grid_before();
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

void backend_tensor_cast(Tensor dst, Tensor src) {
    const int64_t n = tensor_numel(src);
    const size_t dst_bytes = 4 * dtype_size(dst.dtype), src_bytes = 4 * dtype_size(src.dtype);
    int64_t fours = 0;
    if ((uintptr_t)dst.data % dst_bytes == 0 && (uintptr_t)src.data % src_bytes == 0) fours = n / 4;
    const int64_t items = fours + n - fours * 4;
    DISPATCH(dst.dtype, D, DISPATCH(src.dtype, S, {
                 LAUNCH((cast_kernel<D, S>), blocks(items), THREADS, 0, cuda_compute_stream())
                 ((D *)dst.data, (const S *)src.data, fours, items);
             }));
}

// --------------------------------------------------------------------------------- GELU and ReLU^2
// Two packs a thread, a block's width apart: 2 or 4 loads of 16 bytes in flight
// fill the memory of an H200 at half of the threads that a multiprocessor can hold.
enum { THREAD_PACKS = 2 };

// to = F(pre) or, BACKWARD, dout * F'(pre), n elements, in packs of 16 bytes as far as whole_packs
// allows; to may be dout. Thread t of block b owns the packs b * 512 + t and + 256, and one of the
// elements after the packs. Bytes: 2 elements each, BACKWARD 3.
template <class T, class F, bool BACKWARD>
static __global__ void __launch_bounds__(THREADS)
    activation_kernel(T *to, const T *dout, const T *pre, int64_t packs, int64_t n) {
    wait_for_the_grid_before();
    constexpr int W = PACK<T>;
    const int64_t first = block_from_last() * THREADS * THREAD_PACKS + threadIdx.x;
    const int64_t rest = packs * W + (int64_t)blockIdx.x * THREADS + threadIdx.x;
    Vector<T, W> x[THREAD_PACKS], d[THREAD_PACKS];
    for (int j = 0; j < THREAD_PACKS; j++) {
        if (first + j * THREADS >= packs) continue;
        x[j] = load_vector<T, W, true>(pre + (first + j * THREADS) * W);
        if constexpr (BACKWARD) d[j] = load_vector<T, W, true>(dout + (first + j * THREADS) * W);
    }
    for (int j = 0; j < THREAD_PACKS; j++) {
        if (first + j * THREADS >= packs) continue;
        float v[W], gradient[W];
        to_floats(v, x[j]);
        if constexpr (BACKWARD) to_floats(gradient, d[j]);
        for (int k = 0; k < W; k++)
            v[k] = BACKWARD ? gradient[k] * F::derivative(v[k]) : F::value(v[k]);
        store_vector(to + (first + j * THREADS) * W, from_floats<T>(v));
    }
    if (rest >= n) return;
    const float last = to_float(pre[rest]);
    to[rest] =
        from_float<T>(BACKWARD ? to_float(dout[rest]) * F::derivative(last) : F::value(last));
}

template <class F, bool BACKWARD> static void activation(Tensor to, Tensor dout, Tensor pre) {
    const int64_t n = tensor_numel(pre);
    DISPATCH(pre.dtype, T, {
        const int64_t packs =
            whole_packs<T>(n, (T *)to.data, (const T *)dout.data, (const T *)pre.data);
        const int64_t rest = n - packs * PACK<T>; // elements in no pack, one a thread
        const int64_t blocks =
            max_i64(ceil_div(packs, THREADS * THREAD_PACKS), ceil_div(rest, THREADS));
        LAUNCH((activation_kernel<T, F, BACKWARD>), (unsigned)blocks, THREADS, 0,
               cuda_compute_stream())
        ((T *)to.data, (const T *)dout.data, (const T *)pre.data, packs, n);
    });
}

void backend_gelu_forward(Tensor out, Tensor pre) {
    activation<Gelu, false>(out, tensor_none(), pre);
}
void backend_relu2_forward(Tensor out, Tensor pre) {
    activation<Relu2, false>(out, tensor_none(), pre);
}

void backend_gelu_backward(Tensor dpre, Gradient dbias, Tensor dout, Tensor pre) {
    if (dbias.to.data)
        cuda_gelu_bias_backward(dpre, dbias, dout, pre);
    else
        activation<Gelu, true>(dpre, dout, pre);
}

void backend_relu2_backward(Tensor dpre, Gradient dbias, Tensor dout, Tensor pre) {
    if (dbias.to.data)
        cuda_relu2_bias_backward(dpre, dbias, dout, pre);
    else
        activation<Relu2, true>(dpre, dout, pre);
}

// ------------------------------------------------------------------------------------------ SwiGLU
// Rows of gate_up are (gate (F), up (F)). Thread i owns columns [c, c + N) of row i / (F /
// N) of out and of both halves of gate_up, whose gradient may overwrite it. N = 1: for rows that
// are not a multiple of 16 bytes.

// out = silu(gate) * up. Bytes: 3 elements for each of out.
template <class T, int N>
static __global__ void __launch_bounds__(THREADS)
    swiglu_forward_kernel(T *out, const T *gate_up, int64_t items, unsigned F) {
    wait_for_the_grid_before();
    const int64_t i = block_from_last() * THREADS + threadIdx.x;
    if (i >= items) return;
    const unsigned per_row = F / N, row = (unsigned)i / per_row, c = (unsigned)i % per_row * N;
    const T *in = gate_up + (int64_t)row * 2 * F + c;
    const Vector<T, N> x = load_vector<T, N, true>(in), y = load_vector<T, N, true>(in + F);
    float gate[N], up[N], product;
    to_floats(gate, x);
    to_floats(up, y);
    for (int k = 0; k < N; k++) up[k] *= gate[k] * logistic(gate[k], &product);
    store_vector(out + (int64_t)row * F + c, from_floats<T>(up));
}

// dgate = dout * up * (s + gate s (1 - s)); dup = dout * gate * s; s = logistic(gate). Bytes: 5
// elements for each of dout.
template <class T, int N>
static __global__ void __launch_bounds__(THREADS)
    swiglu_backward_kernel(T *dgate_up, const T *dout, const T *gate_up, int64_t items,
                           unsigned F) {
    wait_for_the_grid_before();
    const int64_t i = block_from_last() * THREADS + threadIdx.x;
    if (i >= items) return;
    const unsigned per_row = F / N, row = (unsigned)i / per_row, c = (unsigned)i % per_row * N;
    const int64_t at = (int64_t)row * 2 * F + c;
    const Vector<T, N> x = load_vector<T, N, true>(gate_up + at),
                       y = load_vector<T, N, true>(gate_up + at + F);
    float gate[N], up[N], d[N];
    to_floats(d, load_vector<T, N>(dout + (int64_t)row * F + c));
    to_floats(gate, x);
    to_floats(up, y);
    for (int k = 0; k < N; k++) {
        float product;
        const float s = logistic(gate[k], &product), silu = gate[k] * s;
        gate[k] = d[k] * up[k] * (gate[k] * product + s);
        up[k] = d[k] * silu;
    }
    store_vector(dgate_up + at, from_floats<T>(gate));
    store_vector(dgate_up + at + F, from_floats<T>(up));
}

// Forward without dout.
static void swiglu(Tensor to, Tensor dout, Tensor gate_up) {
    const int64_t F = tensor_cols(gate_up) / 2, rows = tensor_rows(gate_up);
    const bool packs = pack_aligned(to.data, F, to.dtype) && pack_aligned(dout.data, F, to.dtype) &&
                       pack_aligned(gate_up.data, F, to.dtype);
    DISPATCH_PACKS(gate_up.dtype, packs, T, N, {
        const int64_t items = rows * (F / N);
        REQUIRE(items < (int64_t)1 << 31, "swiglu: %lld rows of %lld columns", (long long)rows,
                (long long)F);
        if (dout.data) {
            LAUNCH((swiglu_backward_kernel<T, N>), blocks(items), THREADS, 0, cuda_compute_stream())
            ((T *)to.data, (const T *)dout.data, (const T *)gate_up.data, items, (unsigned)F);
        } else {
            LAUNCH((swiglu_forward_kernel<T, N>), blocks(items), THREADS, 0, cuda_compute_stream())
            ((T *)to.data, (const T *)gate_up.data, items, (unsigned)F);
        }
    });
}

void backend_swiglu_forward(Tensor out, Tensor gate_up) { swiglu(out, tensor_none(), gate_up); }

// No model class has SwiGLU with biases: their gradients take a pass of their own.
void backend_swiglu_backward(Tensor dgate_up, Gradient dbias, Tensor dout, Tensor gate_up) {
    swiglu(dgate_up, dout, gate_up);
    if (dbias.to.data) backend_bias_backward(dbias, dgate_up);
}

// ------------------------------------------------------------------------------- tensor arithmetic
// a x + b y; and for Muon's orthogonalisation tensors that become a stack,
// divided by their norms, and back.

// 4 neighbours a thread, as in the kernels of the update; the remainder, or all of an unaligned
// tensor, one per thread.
enum { NEIGHBOURS = 4 };

// Threads for n elements: the first `fours` take 4 each.
typedef struct {
    int64_t fours, items;
} Work;

static Work work_of(int64_t n, bool aligned) {
    Work w = {0, n};
    if (aligned) w.fours = n / NEIGHBOURS;
    w.items -= w.fours * (NEIGHBOURS - 1);
    return w;
}

// out may be x or y: a thread reads its elements of both before it writes them.
template <class T, int N>
static __device__ __forceinline__ void axpby(T *out, float a, const T *x, float b, const T *y,
                                             int64_t e) {
    float u[N], v[N];
    to_floats(u, load_vector<T, N>(x + e));
    to_floats(v, load_vector<T, N>(y + e));
    for (int k = 0; k < N; k++) u[k] = fmaf(a, u[k], b * v[k]);
    store_vector(out + e, from_floats<T, N>(u));
}

template <class T>
static __global__ void __launch_bounds__(THREADS)
    axpby_kernel(T *out, float a, const T *x, float b, const T *y, Work work) {
    wait_for_the_grid_before();
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < work.fours)
        axpby<T, NEIGHBOURS>(out, a, x, b, y, i * NEIGHBOURS);
    else if (i < work.items)
        axpby<T, 1>(out, a, x, b, y, work.fours * NEIGHBOURS + (i - work.fours));
}

void backend_tensor_axpby(Tensor out, float a, Tensor x, float b, Tensor y) {
    const bool aligned = ((uintptr_t)out.data | (uintptr_t)x.data | (uintptr_t)y.data) % 16 == 0;
    const Work work = work_of(tensor_numel(out), aligned);
    DISPATCH(out.dtype, T, {
        LAUNCH(axpby_kernel<T>, blocks(work.items), THREADS, 0, cuda_compute_stream())
        ((T *)out.data, a, (const T *)x.data, b, (const T *)y.data, work);
    });
}

template <class D, class S, int N>
static __device__ __forceinline__ void multiply(D *out, const S *in, float factor, int64_t e) {
    float v[N];
    to_floats(v, load_vector<S, N>(in + e));
    for (int k = 0; k < N; k++) v[k] *= factor;
    store_vector(out + e, from_floats<D, N>(v));
}

// The tensors of a stack. Kernels find theirs by comparison, for a parameter that is indexed would
// be copied to local memory.
typedef struct {
    void *tensors[STACK_MAX];
    float factors[STACK_MAX]; // of a scatter
} StackTensors;

// Block (x, y): elements of entry y, n each. sumsq: gathers, else scatters.
template <class D, class S>
static __global__ void __launch_bounds__(THREADS)
    stack_kernel(StackTensors of, void *stack, const float *sumsq, int64_t n, Work work) {
    wait_for_the_grid_before();
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    void *tensor = of.tensors[0];
    float factor = of.factors[0];
#pragma unroll
    for (int k = 1; k < STACK_MAX; k++)
        if (blockIdx.y == (unsigned)k) {
            tensor = of.tensors[k];
            factor = of.factors[k];
        }
    D *out = (D *)tensor;
    const S *in = (const S *)stack + blockIdx.y * n;
    if (sumsq) {
        factor = 1.0f / fmaxf(sqrtf(sumsq[blockIdx.y]), sqrtf((float)n) * STACK_RMS_MIN);
        out = (D *)stack + blockIdx.y * n;
        in = (const S *)tensor;
    }
    if (i < work.fours)
        multiply<D, S, NEIGHBOURS>(out, in, factor, i * NEIGHBOURS);
    else if (i < work.items)
        multiply<D, S, 1>(out, in, factor, work.fours * NEIGHBOURS + (i - work.fours));
}

template <class D, class S>
static void launch_stack(Tensor stack, const Tensor *tensors, const float *sumsq,
                         const float *factors) {
    const int64_t entries = stack.shape[0], n = tensor_numel(stack) / entries;
    StackTensors of;
    uintptr_t addresses = (uintptr_t)stack.data | (uintptr_t)(n * (int64_t)dtype_size(stack.dtype));
    memset(&of, 0, sizeof of);
    for (int64_t i = 0; i < entries; i++) {
        of.tensors[i] = tensors[i].data;
        if (factors) of.factors[i] = factors[i];
        addresses |= (uintptr_t)tensors[i].data;
    }
    const Work work = work_of(n, addresses % 16 == 0);
    LAUNCH((stack_kernel<D, S>), dim3(blocks(work.items), (unsigned)entries), THREADS, 0,
           cuda_compute_stream())
    (of, stack.data, sumsq, n, work);
}

void backend_stack_gather(Tensor stack, const Tensor *in, Tensor sumsq) {
    DISPATCH(stack.dtype, T, {
        if (in[0].dtype == DTYPE_FP32)
            launch_stack<T, float>(stack, in, (const float *)sumsq.data, NULL);
        else
            launch_stack<T, T>(stack, in, (const float *)sumsq.data, NULL);
    });
}

void backend_stack_scatter(const Tensor *out, Tensor stack, const float *factors) {
    DISPATCH(stack.dtype, T, {
        if (out[0].dtype == DTYPE_FP32)
            launch_stack<float, T>(stack, out, NULL, factors);
        else
            launch_stack<T, T>(stack, out, NULL, factors);
    });
}

// -------------------------------------------------------------------------------------- statistics
// tensor_statistics: counts the contents of a tensor in one pass over its bits. Two
// launches, no atomics: blocks count their parts into the workspace, one block adds the parts to
// the TensorStats of the caller. Magnitudes are compared as integers, as on the CPU, so that
// denormals are counted as such in every build.
//
// Bytes: each element is read once. Sums are in fp64: a GPU that is slow at it does 4 G elements a
// second, and this runs in one step out of many.

enum { WARPS = THREADS / WARP };
// Elements of a part: 64 KB of fp32, longer where a tensor would have more than
// STATISTICS_MAX_PARTS.
enum { PART = 16384 };

// The counts of one thread; small includes zeros.
struct Count {
    double sumsq;
    unsigned zero, small, large, amax;
};

static __device__ __forceinline__ void count_value(Count &c, float x, FormatLimits limits) {
    const unsigned size = __float_as_uint(x) & FLOAT_MAGNITUDE;
    c.zero += size == 0;
    c.small += size < limits.smallest;
    c.large += size > limits.largest;
    if (size < FLOAT_INFINITY) {
        c.amax = max(c.amax, size);
        c.sumsq = fma((double)x, (double)x, c.sumsq);
    }
}

// The block's Count, in thread 0: over the lanes of each warp as a butterfly, then over warps in
// their order. A part has fewer than 2^32 elements.
static __device__ Count block_count(Count c) {
    __shared__ Count of_warp[WARPS];
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
        c.sumsq += __shfl_xor_sync(ALL_LANES, c.sumsq, offset);
        c.zero += __shfl_xor_sync(ALL_LANES, c.zero, offset);
        c.small += __shfl_xor_sync(ALL_LANES, c.small, offset);
        c.large += __shfl_xor_sync(ALL_LANES, c.large, offset);
        c.amax = max(c.amax, __shfl_xor_sync(ALL_LANES, c.amax, offset));
    }

    if (threadIdx.x % WARP == 0) of_warp[threadIdx.x / WARP] = c;
    __syncthreads();

    if (threadIdx.x == 0) {
        for (int w = 1; w < WARPS; w++) {
            c.sumsq += of_warp[w].sumsq;
            c.zero += of_warp[w].zero;
            c.small += of_warp[w].small;
            c.large += of_warp[w].large;
            c.amax = max(c.amax, of_warp[w].amax);
        }
    }
    return c;
}

// Block b counts elements [b * part, (b + 1) * part) of x (n) into parts[b]. Thread: every 256th
// pack of them, then the elements after the last pack, or all of them where x is not 16-byte
// aligned.
template <class T>
static __global__ void __launch_bounds__(THREADS)
    count_parts_kernel(TensorStats *parts, const T *x, int64_t n, int64_t part, bool packed,
                       FormatLimits limits) {
    wait_for_the_grid_before();
    constexpr int N = PACK<T>;
    const int64_t begin = blockIdx.x * part, end = min(n, begin + part);
    const int64_t whole = packed ? begin + (end - begin) / N * N : begin;
    Count c = {0.0, 0, 0, 0, 0};
    for (int64_t i = begin + threadIdx.x * N; i < whole; i += THREADS * N) {
        float v[N];
        to_floats(v, load_vector<T, N>(x + i));
        for (int k = 0; k < N; k++) count_value(c, v[k], limits);
    }
    for (int64_t i = whole + threadIdx.x; i < end; i += THREADS)
        count_value(c, to_float(x[i]), limits);
    c = block_count(c);
    if (threadIdx.x > 0) return;
    TensorStats s;
    s.count = (double)(end - begin);
    s.sumsq = c.sumsq;
    s.zero = (double)c.zero;
    s.underflow = (double)(c.small - c.zero);
    s.overflow = (double)c.large;
    s.amax = __uint_as_float(c.amax);
    s.unused = 0.0f;
    parts[blockIdx.x] = s;
}

// One block: thread f < 5 adds one of the fp64 numbers of all parts to stats in the order of the
// parts, the next one takes the largest amax. As bits: see FormatLimits.
static __global__ void __launch_bounds__(WARP)
    add_parts_kernel(TensorStats *stats, const TensorStats *parts, int n) {
    wait_for_the_grid_before();
    enum { SUMS = 5, WORDS = sizeof(TensorStats) / sizeof(double) };
    const int f = (int)threadIdx.x;
    if (f < SUMS) {
        const double *from = (const double *)parts;
        double sum = ((double *)stats)[f];
        for (int p = 0; p < n; p++) sum += from[p * WORDS + f];
        ((double *)stats)[f] = sum;
    } else if (f == SUMS) {
        unsigned amax = __float_as_uint(stats->amax);
        for (int p = 0; p < n; p++) amax = max(amax, __float_as_uint(parts[p].amax));
        stats->amax = __uint_as_float(amax);
    }
}

void backend_tensor_statistics(Tensor stats, Tensor t, DType format) {
    const int64_t n = tensor_numel(t), part = round_up(ceil_div(n, STATISTICS_MAX_PARTS), PART);
    const int count = (int)ceil_div(n, part);
    TensorStats *parts =
        (TensorStats *)cuda_scratch("tensor_statistics", count * (int64_t)sizeof(TensorStats));
    const bool packed = (uintptr_t)t.data % 16 == 0;
    const FormatLimits limits = format_limits(format);
    const cudaStream_t stream = cuda_compute_stream();
    DISPATCH(t.dtype, T, {
        LAUNCH(count_parts_kernel<T>, (unsigned)count, THREADS, 0, stream)
        (parts, (const T *)t.data, n, part, packed, limits);
    });
    LAUNCH(add_parts_kernel, 1, WARP, 0, stream)((TensorStats *)stats.data, parts, count);
}
