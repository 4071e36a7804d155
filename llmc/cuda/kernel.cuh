// Included by every kernel file: launches, shared memory, reductions, conversions, vectors of
// elements, stochastic rounding, and the dispatch on the element type. Kernels are written in
// C-like CUDA C++: templates on the element type and on compile-time constants, and little more.
//
// Rules for kernels:
//   - LAUNCH(kernel, grid, block, shared_bytes, stream)(arguments...); a kernel name with commas
//     goes in parentheses.
//   - Explicit masks; all lanes of a mask reach the same operation. Every thread reaches every
//     __syncthreads; a whole warp may return early only where no block barrier follows.
//   - The first statement of a kernel is wait_for_the_grid_before() of intrinsics.cuh.
//   - PTX only through intrinsics.cuh. No float atomics, no spinning on other blocks, no launches
//     inside kernels.
//   - 64-bit indices where a product of sizes can pass 2^31. 16-byte accesses where rows allow
//     them.
#pragma once
#include "llmc/base/arithmetic.h"
#include "llmc/base/random.h"
#include "llmc/cuda/backend.h"
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

typedef __nv_bfloat16 bf16;
typedef __half fp16;

enum { WARP = 32 };
#define ALL_LANES 0xffffffffu

// kernel<<<grid, block, shared_bytes, stream>>>(arguments...), checked: a failed launch stops the
// program and names the kernel. With cuda_backend.early_launch (programmatic dependent launch), a
// grid is set up while the last blocks of the grid before it run, and waits for its end: the gap
// between two kernels becomes shorter.
template <class... P> struct KernelLaunch {
    const char *name;
    void (*kernel)(P...);
    dim3 grid, block;
    size_t shared_bytes;
    cudaStream_t stream;
    // A block may use 48 KB of shared memory, static and dynamic together, unless its kernel's
    // limit is raised. The limit is never lowered: a recorded launch may need the limit that an
    // earlier launch set.
    void allow_shared_memory() const {
        cudaFuncAttributes facts;
        CUDA_CHECK(cudaFuncGetAttributes(&facts, (const void *)kernel));
        if (facts.sharedSizeBytes + shared_bytes <= 48 * 1024) return;
        const int64_t limit = max_i64((int64_t)shared_bytes, facts.maxDynamicSharedSizeBytes);
        CUDA_CHECK(cudaFuncSetAttribute((const void *)kernel,
                                        cudaFuncAttributeMaxDynamicSharedMemorySize, (int)limit));
    }

    template <class... A> void operator()(A... arguments) const {
        if (shared_bytes > 0) allow_shared_memory();

        cudaLaunchAttribute early = {};
        early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        early.val.programmaticStreamSerializationAllowed = 1;
        cudaLaunchConfig_t config = {};
        config.gridDim = grid, config.blockDim = block, config.dynamicSmemBytes = shared_bytes;
        config.stream = stream, config.attrs = &early, config.numAttrs = cuda_backend.early_launch;

        (void)cudaLaunchKernelEx(&config, kernel, (P)arguments...);
        const cudaError_t status = cudaGetLastError();
        REQUIRE_MEMORY(status != cudaErrorMemoryAllocation, "%s" GPU_IS_FULL, name);
        REQUIRE(status == cudaSuccess, "launch of %s: %s", name, cudaGetErrorString(status));
    }
};
template <class... P>
KernelLaunch<P...> kernel_launch(const char *name, void (*kernel)(P...), dim3 grid, dim3 block,
                                 size_t shared_bytes, cudaStream_t stream) {
    return {name, kernel, grid, block, shared_bytes, stream};
}
#define LAUNCH(kernel, grid, block, shared_bytes, stream)                                          \
    kernel_launch(#kernel, kernel, grid, block, shared_bytes, stream)

// Blocks that read what the kernel before wrote go from the last rows to the first: the last ones
// are still in the L2 cache, and the kernel that follows, a matmul perhaps, begins with the first.
static __device__ __forceinline__ int64_t block_from_last() {
    return (int64_t)gridDim.x - 1 - blockIdx.x;
}

// The dynamic shared memory of the running block, of the size given at launch; 16-byte aligned.
extern __shared__ int4 dynamic_shared_memory[];

// Sum and maximum over the 32 lanes of a warp, the same in every lane: butterfly 16, 8, 4, 2, 1, so
// the order of the additions is fixed. All lanes take part.
static __device__ __forceinline__ float warp_sum(float v) {
    for (int offset = WARP / 2; offset > 0; offset /= 2) v += __shfl_xor_sync(ALL_LANES, v, offset);
    return v;
}
static __device__ __forceinline__ float warp_max(float v) {
    for (int offset = WARP / 2; offset > 0; offset /= 2)
        v = fmaxf(v, __shfl_xor_sync(ALL_LANES, v, offset));
    return v;
}

// Sum or maximum over the block, the same in every thread, in a fixed order: a butterfly in each
// warp, then one over the warps. blockDim.x is a multiple of 32; every thread takes part. Ends with
// a barrier, so it may be called again immediately.
template <bool IS_MAX> static __device__ inline float block_reduce(float v) {
    __shared__ float partial[WARP];
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP,
              warps = (int)blockDim.x / WARP;
    v = IS_MAX ? warp_max(v) : warp_sum(v);
    if (lane == 0) partial[warp] = v;
    __syncthreads();
    v = lane < warps ? partial[lane] : (IS_MAX ? -INFINITY : 0.0f);
    v = IS_MAX ? warp_max(v) : warp_sum(v);
    __syncthreads();
    return v;
}
static __device__ inline float block_sum(float v) { return block_reduce<false>(v); }
static __device__ inline float block_max(float v) { return block_reduce<true>(v); }

// Whether this block is the last of `blocks` that finish. It then sees what all the others wrote,
// past L1 (__ldcg). The ticket is 0 before and after. Every thread takes part.
static __device__ __forceinline__ bool finishes_last(unsigned *ticket, int blocks) {
    __shared__ bool last[1];
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last[0] = atomicInc(ticket, (unsigned)blocks - 1) == (unsigned)blocks - 1;
    __syncthreads();
    __threadfence();
    return last[0];
}

// -------------------------------------------------------------------------------------- conversion

static __device__ __forceinline__ float to_float(float x) { return x; }
static __device__ __forceinline__ float to_float(bf16 x) { return __bfloat162float(x); }
static __device__ __forceinline__ float to_float(fp16 x) { return __half2float(x); }

// Rounds to nearest even.
template <class T> static __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x) { return x; }
template <> __device__ __forceinline__ bf16 from_float<bf16>(float x) {
    return __float2bfloat16_rn(x);
}
template <> __device__ __forceinline__ fp16 from_float<fp16>(float x) { return __float2half_rn(x); }

// Two floats rounded to 16 bits in one 32-bit word, the first in the lower half, and back.
template <class T> static __device__ __forceinline__ uint32_t pack_two(float low, float high);
template <> __device__ __forceinline__ uint32_t pack_two<bf16>(float low, float high) {
    const __nv_bfloat162 two = __floats2bfloat162_rn(low, high);
    uint32_t word;
    memcpy(&word, (const void *)&two, sizeof word);
    return word;
}
template <> __device__ __forceinline__ uint32_t pack_two<fp16>(float low, float high) {
    const __half2 two = __floats2half2_rn(low, high);
    uint32_t word;
    memcpy(&word, (const void *)&two, sizeof word);
    return word;
}
template <class T> static __device__ __forceinline__ float2 unpack_two(uint32_t word);
template <>
__device__ __forceinline__ float2
unpack_two<bf16>(uint32_t word) { // bf16 is the upper half of a float
    return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
}
template <> __device__ __forceinline__ float2 unpack_two<fp16>(uint32_t word) {
    __half2 two;
    memcpy((void *)&two, &word, sizeof word);
    return __half22float2(two);
}

// ----------------------------------------------------------------------------------------- vectors
// Vector<T, N>: N adjacent elements in the registers of a thread. A pack is the vector of
// 16 bytes, the most that one instruction loads or stores: PACK<T> elements. A longer vector takes
// several accesses, for kernels that process the same number of elements of several types (a
// gradient in bf16 and the fp32 sum it is added to). N = 1 serves rows whose size is not a multiple
// of 16 bytes, with the same kernel source.
//
// Arithmetic is done in arrays of floats: to_floats and from_floats convert two 16-bit elements at
// a time, in the register that holds both. Single elements v[k] cost an instruction each to take
// out or put in.

template <class T> constexpr int PACK = 16 / (int)sizeof(T);

// The integer that moves BYTES bytes with one instruction.
template <int BYTES> struct Access;
template <> struct Access<2> { typedef unsigned short Bits; };
template <> struct Access<4> { typedef unsigned Bits; };
template <> struct Access<8> { typedef int2 Bits; };
template <> struct Access<16> { typedef int4 Bits; };

template <class T, int N> struct alignas(N < PACK<T> ? N * (int)sizeof(T) : 16) Vector {
    // of one access
    static constexpr int STEP = N < PACK<T> ? N : PACK<T>, BYTES = STEP * (int)sizeof(T);
    typedef typename Access<BYTES>::Bits Bits;
    T v[N];
};

// Zeros, and nothing is read, unless `inside`. p is aligned like a Vector<T, N>. once: for data
// that is not used again soon; it leaves the caches first and does not displace other data.
template <class T, int N, bool once = false>
static __device__ __forceinline__ Vector<T, N> load_or_zero(const T *p, bool inside) {
    typedef Vector<T, N> X;
    X x;
    for (int i = 0; i < N; i += X::STEP) {
        // of elements, zeros would make the compiler keep each one in a register of its own
        typename X::Bits bits = {};
        if (inside) {
            const typename X::Bits *from = reinterpret_cast<const typename X::Bits *>(p + i);
            bits = once ? __ldcs(from) : *from;
        }
        memcpy((void *)(x.v + i), &bits, X::BYTES);
    }
    return x;
}
template <class T, int N, bool once = false>
static __device__ __forceinline__ Vector<T, N> load_vector(const T *p) {
    return load_or_zero<T, N, once>(p, true);
}
template <class T, int N, bool once = false>
static __device__ __forceinline__ void store_vector(T *p, const Vector<T, N> &x) {
    typedef Vector<T, N> X;
    for (int i = 0; i < N; i += X::STEP) {
        typename X::Bits *to = reinterpret_cast<typename X::Bits *>(p + i), bits;
        memcpy(&bits, (const void *)(x.v + i), X::BYTES);
        if (once)
            __stcs(to, bits);
        else
            *to = bits;
    }
}

template <class T, int N>
static __device__ __forceinline__ void to_floats(float (&v)[N], const Vector<T, N> &x) {
    if constexpr (sizeof(T) == 2 && N % 2 == 0) {
        for (int i = 0; i < N; i += 2) {
            uint32_t word;
            memcpy(&word, (const void *)(x.v + i), sizeof word);
            const float2 two = unpack_two<T>(word);
            v[i] = two.x;
            v[i + 1] = two.y;
        }
    } else {
        for (int i = 0; i < N; i++) v[i] = to_float(x.v[i]);
    }
}
// Rounds to nearest even.
template <class T, int N>
static __device__ __forceinline__ Vector<T, N> from_floats(const float (&v)[N]) {
    Vector<T, N> x;
    if constexpr (sizeof(T) == 2 && N % 2 == 0) {
        for (int i = 0; i < N; i += 2) {
            const uint32_t word = pack_two<T>(v[i], v[i + 1]);
            memcpy((void *)(x.v + i), &word, sizeof word);
        }
    } else {
        for (int i = 0; i < N; i++) x.v[i] = from_float<T>(v[i]);
    }
    return x;
}

// sum += x.
template <class T, int N>
static __device__ __forceinline__ void add_to(float (&sum)[N], const Vector<T, N> &x) {
    float v[N];
    to_floats(v, x);
    for (int k = 0; k < N; k++) sum[k] += v[k];
}
// p[0 .. N) += sum, rounded once.
template <class T, int N>
static __device__ __forceinline__ void add_vector(T *p, const float (&sum)[N]) {
    float v[N];
    to_floats(v, load_vector<T, N>(p));
    for (int k = 0; k < N; k++) v[k] += sum[k];
    store_vector(p, from_floats<T, N>(v));
}

// sum = the rows p, p + stride, ... of partial sums that other blocks wrote, added in order; 8
// loads in flight.
template <int WIDTH>
static __device__ __forceinline__ void add_rows(float (&sum)[WIDTH], const float *p, int rows,
                                                int64_t stride) {
    enum { IN_FLIGHT = 8 };
    typedef typename Vector<float, WIDTH>::Bits Bits;
    for (int k = 0; k < WIDTH; k++) sum[k] = 0.0f;
    for (int row = 0; row < rows; row += IN_FLIGHT) {
        Vector<float, WIDTH> x[IN_FLIGHT];
        for (int j = 0; j < IN_FLIGHT; j++) {
            const Bits bits = row + j < rows
                                  ? __ldcg(reinterpret_cast<const Bits *>(p + (row + j) * stride))
                                  : Bits{};
            memcpy((void *)x[j].v, &bits, sizeof bits);
        }
        for (int j = 0; j < IN_FLIGHT; j++) add_to(sum, x[j]);
    }
}

// The gradient i of this dtype = or += (add) value.
template <class G>
static __device__ __forceinline__ void put_gradient(G *gradient, float value, bool add) {
    *gradient = from_float<G>(add ? to_float(*gradient) + value : value);
}
static __device__ __forceinline__ void put_gradient_of(DType dtype, void *gradient, int64_t i,
                                                       float value, bool add) {
    if (dtype == DTYPE_FP32) put_gradient((float *)gradient + i, value, add);
    if (dtype == DTYPE_FP16) put_gradient((fp16 *)gradient + i, value, add);
    if (dtype == DTYPE_BF16) put_gradient((bf16 *)gradient + i, value, add);
}

// Whether rows of `cols` elements of dtype starting at p can be read in packs.
static inline bool pack_aligned(const void *p, int64_t cols, DType dtype) {
    return (uintptr_t)p % 16 == 0 && (uint64_t)cols * dtype_size(dtype) % 16 == 0;
}
// The number of whole packs that an element-wise op may take from n elements at each p: 0 when any
// p is not 16-byte aligned.
template <class T, class... P> static inline int64_t whole_packs(int64_t n, const P *...p) {
    return ((uintptr_t)p | ...) % 16 == 0 ? n / PACK<T> : 0;
}

// ------------------------------------------------------------------------------------- activations
// With their derivatives, in fp32.

// s = 1 / (1 + exp(-x)), and s (1 - s). With e = exp(-|x|), which does not overflow, they are 1 /
// (1 + e), or e / (1 + e) for negative x, and e / (1 + e)^2. Not from 1 - s, which for large x is
// the error of s, times x^3 in GELU's derivative.
static __device__ __forceinline__ float logistic(float x, float *product) {
    const float e = __expf(-fabsf(x)), r = __fdividef(1.0f, 1.0f + e);
    *product = e * r * r;
    return x < 0.0f ? e * r : r;
}

// GELU in its tanh form.
// 0.5 (1 + tanh(u)) is the logistic function of 2u, so one exp replaces tanh and nothing cancels
// for negative x:
//   gelu(x)  = x s,      s = 1 / (1 + exp(-2u)),       2u  = 2 sqrt(2/pi) (x + 0.044715 x^3)
//   gelu'(x) = s + x s (1 - s) (2u)',                (2u)' = 2 sqrt(2/pi) (1 + 3 * 0.044715 x^2)
// __expf and __fdividef are a few instructions around one of the special function unit each;
// together they err by a few ulp where s is not small, by 5e-6 of s where s is 1e-30. Two special
// functions an element take 0.6 of the time that its bytes take on an H200, the hardest case;
// tanh.approx would be a single one, but errs by 5e-4.

#define TWO_SQRT_2_OVER_PI 1.5957691216f
#define GELU_CUBIC         0.044715f

static __device__ __forceinline__ float gelu_gate(float x, float *product) {
    return logistic(x * (TWO_SQRT_2_OVER_PI * GELU_CUBIC * x * x + TWO_SQRT_2_OVER_PI), product);
}

static __device__ __forceinline__ float gelu(float x) {
    float product;
    return x * gelu_gate(x, &product);
}

static __device__ __forceinline__ float gelu_derivative(float x) {
    float product;
    const float s = gelu_gate(x, &product);
    const float slope = 3.0f * TWO_SQRT_2_OVER_PI * GELU_CUBIC * x * x + TWO_SQRT_2_OVER_PI;
    return x * product * slope + s;
}

// Types that kernels take as template arguments.
struct Gelu {
    static __device__ __forceinline__ float value(float x) { return gelu(x); }
    static __device__ __forceinline__ float derivative(float x) { return gelu_derivative(x); }
};
struct Relu2 { // max(0, x)^2; NaN passes
    static __device__ __forceinline__ float root(float x) { return x < 0.0f ? 0.0f : x; }
    static __device__ __forceinline__ float value(float x) { return root(x) * root(x); }
    static __device__ __forceinline__ float derivative(float x) { return 2.0f * root(x); }
};

// ----------------------------------------------------------------------------- stochastic rounding
// x is rounded up with a probability equal to the fraction that is cut off, so
// the mean of many roundings is x, and small changes add up where rounding to nearest would lose
// each of them. The random bits are a pure function of (seed, stream, counter, element):
// llmc/base/arithmetic.h. Gupta et al., "Deep Learning with Limited Numerical Precision", 2015.

// x rounded down or up to a neighbour, up when random / 2^16 is at least the distance to the upper
// neighbour in steps of the type. random has 16 bits. Infinity and NaN are unchanged.
template <class T>
static __device__ __forceinline__ T round_stochastically(float x, uint32_t random);
template <> __device__ __forceinline__ bf16 round_stochastically<bf16>(float x, uint32_t random) {
    if (!isfinite(x)) return __float2bfloat16_rn(x);
    // exact
    return __float2bfloat16_rn(__uint_as_float((__float_as_uint(x) + random) & 0xFFFF0000u));
}
// 13 bits are cut off a normal number; below 2^-14 the steps are 2^-24 and more bits are cut. Above
// the largest value: infinity.
template <> __device__ __forceinline__ fp16 round_stochastically<fp16>(float x, uint32_t random) {
    const float size = fabsf(x);
    if (!(size < 65536.0f)) return __float2half_rn(x);
    float rounded;
    if (size < 0x1p-14f)
        rounded = (float)(((uint32_t)(size * 0x1p40f) + random) >> 16) * 0x1p-24f;
    else
        rounded = __uint_as_float((__float_as_uint(size) + (random >> 3)) & 0xFFFFE000u);
    return __float2half_rn(copysignf(rounded, x)); // exact
}

// x, the elements e .. e + N - 1, rounded stochastically to T; unchanged if T is fp32. N is 8, 4 or
// 1, and e a multiple of it. 16 random bits for each: half-word e % 8, lower halves first, of
// philox(seed, stream, counter + e / 8).
template <class T, int N>
static __device__ __forceinline__ Vector<T, N> round_vector(const float (&x)[N], uint64_t seed,
                                                            uint64_t stream, uint64_t counter,
                                                            uint64_t e) {
    if constexpr (sizeof(T) == 4) {
        return from_floats<T, N>(x);
    } else {
        const Philox random = philox(seed, stream, counter + e / 8);
        uint32_t bits[N];
        if constexpr (N == 8) {
            for (int k = 0; k < N; k++) bits[k] = random.v[k / 2] >> (k % 2 * 16) & 0xFFFFu;
        } else {
            const uint32_t low = e & 4 ? random.v[2] : random.v[0],
                           high = e & 4 ? random.v[3] : random.v[1];
            // half-words of the elements e / 4 * 4 .. + 3
            const uint64_t four = (uint64_t)high << 32 | low;
            for (int k = 0; k < N; k++)
                bits[k] = (uint32_t)(four >> ((e + (uint64_t)k) % 4 * 16)) & 0xFFFFu;
        }
        Vector<T, N> rounded;
        for (int k = 0; k < N; k++) rounded.v[k] = round_stochastically<T>(x[k], bits[k]);
        return rounded;
    }
}

// ---------------------------------------------------------------------------------------- dispatch

// Runs the statements with T standing for the element type of a floating dtype.
#define DISPATCH(dtype, T, ...)                                                                    \
    switch (dtype) {                                                                               \
    case DTYPE_FP32: {                                                                             \
        typedef float T;                                                                           \
        __VA_ARGS__;                                                                               \
    } break;                                                                                       \
    case DTYPE_FP16: {                                                                             \
        typedef fp16 T;                                                                            \
        __VA_ARGS__;                                                                               \
    } break;                                                                                       \
    case DTYPE_BF16: {                                                                             \
        typedef bf16 T;                                                                            \
        __VA_ARGS__;                                                                               \
    } break;                                                                                       \
    default:                                                                                       \
        REQUIRE(false, "no kernel for %s", dtype_name(dtype));                                     \
    }

// The same with the constant N, the elements of a Vector: a pack where `packed`, else one.
#define DISPATCH_PACKS(dtype, packed, T, N, ...)                                                   \
    DISPATCH(dtype, T, {                                                                           \
        if (packed) {                                                                              \
            constexpr int N = PACK<T>;                                                             \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            constexpr int N = 1;                                                                   \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    })
