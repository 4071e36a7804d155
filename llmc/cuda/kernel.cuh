// What every kernel file includes: launches, shared memory, 16-byte packs, conversions, reductions and the dispatch on
// the element type. Kernels are written in C-like CUDA C++: templates on the element type and on what must be known to
// the compiler, nothing more.
//
// Rules for kernels:
//   - LAUNCH(kernel, grid, block, shared_bytes, stream)(arguments...); a kernel name with commas goes in parentheses.
//   - Explicit masks; all lanes of a mask reach the same operation. Every thread reaches every __syncthreads; a whole
//     warp may return early only where no block barrier follows.
//   - PTX only through intrinsics.cuh. No float atomics, no spinning on other blocks, no launches inside kernels.
//   - 64-bit indices where a product of sizes can pass 2^31. 16-byte accesses where rows allow them.
#pragma once
#include "llmc/cuda/backend.h"
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>
#include <string.h>

typedef __nv_bfloat16 bf16;
typedef __half fp16;

enum { WARP = 32 };
#define ALL_LANES 0xffffffffu

// kernel<<<grid, block, shared_bytes, stream>>>(arguments...), checked: a launch that the device refuses ends the
// program, and names the kernel.
template <class... P> struct KernelLaunch {
    const char *name;
    void (*kernel)(P...);
    dim3 grid, block;
    size_t shared_bytes;
    cudaStream_t stream;
    // A block may have 48 KB of shared memory, static and dynamic together, unless its kernel is allowed more. The
    // limit is only ever raised: a launch that was recorded may need what an earlier one asked for.
    void allow_shared_memory() const {
        cudaFuncAttributes facts;
        CUDA_CHECK(cudaFuncGetAttributes(&facts, (const void *)kernel));
        if (facts.sharedSizeBytes + shared_bytes <= 48 * 1024) return;
        const int limit = facts.maxDynamicSharedSizeBytes;
        CUDA_CHECK(cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        (int)shared_bytes > limit ? (int)shared_bytes : limit));
    }
    template <class... A> void operator()(A... arguments) const {
        if (shared_bytes > 0) allow_shared_memory();
        kernel<<<grid, block, shared_bytes, stream>>>(arguments...);
        const cudaError_t status = cudaGetLastError();
        REQUIRE(status == cudaSuccess, "launch of %s: %s", name, cudaGetErrorString(status));
    }
};
template <class... P>
KernelLaunch<P...> kernel_launch(const char *name, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes,
                                 cudaStream_t stream) {
    return {name, kernel, grid, block, shared_bytes, stream};
}
#define LAUNCH(kernel, grid, block, shared_bytes, stream)                                                              \
    kernel_launch(#kernel, kernel, grid, block, shared_bytes, stream)

// The dynamic shared memory of the block that runs, as much as its launch asked for; 16-byte aligned.
extern __shared__ int4 dynamic_shared_memory[];

// Sum and maximum over the 32 lanes of a warp, the same in every lane: butterfly 16, 8, 4, 2, 1, so the order of the
// additions is fixed. All lanes take part.
static __device__ __forceinline__ float warp_sum(float v) {
    for (int offset = WARP / 2; offset > 0; offset /= 2) v += __shfl_xor_sync(ALL_LANES, v, offset);
    return v;
}
static __device__ __forceinline__ float warp_max(float v) {
    for (int offset = WARP / 2; offset > 0; offset /= 2) v = fmaxf(v, __shfl_xor_sync(ALL_LANES, v, offset));
    return v;
}

// Sum or maximum over the block, in warp order, the same in every thread. blockDim.x is a multiple of 32; every thread
// takes part. Ends with a barrier, so that it may be called again at once.
template <bool IS_MAX> static __device__ inline float block_reduce(float v) {
    __shared__ float partial[WARP];
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, warps = (int)blockDim.x / WARP;
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

// ---------------------------------------------------------------------------------------------------------- conversion

static __device__ __forceinline__ float to_float(float x) { return x; }
static __device__ __forceinline__ float to_float(bf16 x) { return __bfloat162float(x); }
static __device__ __forceinline__ float to_float(fp16 x) { return __half2float(x); }

// Rounds to nearest even.
template <class T> static __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x) { return x; }
template <> __device__ __forceinline__ bf16 from_float<bf16>(float x) { return __float2bfloat16_rn(x); }
template <> __device__ __forceinline__ fp16 from_float<fp16>(float x) { return __float2half_rn(x); }

// --------------------------------------------------------------------------------------------------------------- packs

// 16 bytes of elements: what one thread loads or stores with one instruction. Addresses must be 16-byte aligned.
template <class T> struct alignas(16) Pack {
    static constexpr int N = 16 / (int)sizeof(T);
    T v[N];
};
template <class T> static __device__ __forceinline__ Pack<T> pack_from_bits(int4 bits) {
    Pack<T> p;
    memcpy((void *)&p, &bits, 16);
    return p;
}
template <class T> static __device__ __forceinline__ int4 pack_bits(const Pack<T> &p) {
    int4 bits;
    memcpy(&bits, (const void *)&p, 16);
    return bits;
}
template <class T> static __device__ __forceinline__ Pack<T> load_pack(const T *p) {
    return pack_from_bits<T>(*reinterpret_cast<const int4 *>(p));
}
template <class T> static __device__ __forceinline__ void store_pack(T *p, const Pack<T> &v) {
    *reinterpret_cast<int4 *>(p) = pack_bits(v);
}
// Whether rows of `cols` elements of dtype that begin at p can be read in packs.
static inline bool pack_aligned(const void *p, int64_t cols, DType dtype) {
    return (uintptr_t)p % 16 == 0 && (uint64_t)cols * dtype_size(dtype) % 16 == 0;
}

// ------------------------------------------------------------------------------------------------------------ dispatch

// Runs the statements with T standing for the element type of a floating dtype.
#define DISPATCH(dtype, T, ...)                                                                                        \
    switch (dtype) {                                                                                                   \
    case DTYPE_FP32: {                                                                                                 \
        typedef float T;                                                                                               \
        __VA_ARGS__;                                                                                                   \
    } break;                                                                                                           \
    case DTYPE_FP16: {                                                                                                 \
        typedef fp16 T;                                                                                                \
        __VA_ARGS__;                                                                                                   \
    } break;                                                                                                           \
    case DTYPE_BF16: {                                                                                                 \
        typedef bf16 T;                                                                                                \
        __VA_ARGS__;                                                                                                   \
    } break;                                                                                                           \
    default:                                                                                                           \
        REQUIRE(false, "no kernel for %s", dtype_name(dtype));                                                         \
    }
