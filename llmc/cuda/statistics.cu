// tensor_statistics: what a tensor holds, counted in one pass over its bits. Two launches, no atomics: blocks count
// their parts into the workspace, one block adds the parts to the TensorStats of the caller. Magnitudes are compared as
// integers, as on the CPU, so that denormals count as what they are in every build. Owns nothing.
//
// Bytes: each element is read once. Sums are in fp64: a GPU that is slow at it does 4 G elements a second, and this
// runs in one step out of many.
#include "llmc/cuda/elements.cuh"

enum { THREADS = 256, WARPS = THREADS / WARP };
// Elements of a part: 64 KB of fp32, longer where a tensor would have more than STATISTICS_MAX_PARTS.
enum { PART = 16384 };

// What one thread has counted; small are zeros too.
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

// The Count of the block in thread 0: over the lanes of each warp as a butterfly, then over warps in their order. A
// part has less than 2^32 elements.
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
            c.zero += of_warp[w].zero, c.small += of_warp[w].small, c.large += of_warp[w].large;
            c.amax = max(c.amax, of_warp[w].amax);
        }
    }
    return c;
}

// Block b counts elements [b * part, (b + 1) * part) of x (n) into parts[b]. Thread: every 256th pack of them, then
// what is behind the last pack, or all where x is not 16-byte aligned.
template <class T>
static __global__ void __launch_bounds__(THREADS)
    count_parts_kernel(TensorStats *parts, const T *x, int64_t n, int64_t part, bool packed, FormatLimits limits) {
    constexpr int N = Pack<T>::N;
    const int64_t begin = blockIdx.x * part, end = min(n, begin + part);
    const int64_t whole = packed ? begin + (end - begin) / N * N : begin;
    Count c = {0.0, 0, 0, 0, 0};
    for (int64_t i = begin + threadIdx.x * N; i < whole; i += THREADS * N) {
        float v[N];
        bits_to_floats<T>(v, load_bits(x + i));
        for (int k = 0; k < N; k++) count_value(c, v[k], limits);
    }
    for (int64_t i = whole + threadIdx.x; i < end; i += THREADS) count_value(c, to_float(x[i]), limits);
    c = block_count(c);
    if (threadIdx.x > 0) return;
    TensorStats s;
    s.count = (double)(end - begin), s.sumsq = c.sumsq;
    s.zero = (double)c.zero, s.underflow = (double)(c.small - c.zero), s.overflow = (double)c.large;
    s.amax = __uint_as_float(c.amax), s.unused = 0.0f;
    parts[blockIdx.x] = s;
}

// One block: thread f < 5 adds one of the fp64 numbers of all parts to stats in the order of the parts, the next one
// takes the largest amax. As bits: see FormatLimits.
static __global__ void __launch_bounds__(WARP) add_parts_kernel(TensorStats *stats, const TensorStats *parts, int n) {
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

void tensor_statistics(Tensor stats, Tensor t, DType format) {
    const char *op = "tensor_statistics";
    const int64_t n = tensor_numel(t), part = round_up(ceil_div(n, STATISTICS_MAX_PARTS), PART);
    const int count = (int)ceil_div(n, part);
    tensor_check(op, stats, DTYPE_U8, (int64_t)sizeof(TensorStats));
    cuda_check_float(op, t);
    TensorStats *parts = (TensorStats *)cuda_scratch(op, count * (int64_t)sizeof(TensorStats));
    const bool packed = (uintptr_t)t.data % 16 == 0;
    const FormatLimits limits = format_limits(format);
    const cudaStream_t stream = cuda_compute_stream();
    DISPATCH(t.dtype, T, {
        LAUNCH(count_parts_kernel<T>, (unsigned)count, THREADS, 0, stream)
        (parts, (const T *)t.data, n, part, packed, limits);
    });
    LAUNCH(add_parts_kernel, 1, WARP, 0, stream)((TensorStats *)stats.data, parts, count);
}
