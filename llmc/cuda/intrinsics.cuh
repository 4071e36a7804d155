// Tensor-core, matrix-load, asynchronous-copy and fp8 instructions: each wrapper is one PTX
// instruction. All 32 lanes of a warp call the matrix instructions together. An instruction that
// the architecture being compiled does not have becomes a trap.
//
// Fragments (PTX ISA, "Matrix Fragments for mma.m16n8k16"): lane = 4 g + t; a register holds two
// 16-bit elements, the lower half the lower column.
//   A (16 x 16)  a[0] (g, 2t)  a[1] (g+8, 2t)  a[2] (g, 2t+8)  a[3] (g+8, 2t+8)
//                and the column to the right of each
//   B (16 x 8)   b0 (k = 2t, n = g)  b1 (k = 2t+8, n = g)     and the k below each
//   C (16 x 8)   c[0] (g, 2t)  c[1] (g, 2t+1)  c[2] (g+8, 2t)  c[3] (g+8, 2t+1)     fp32
// So the C of two neighbouring tiles, rounded to 16 bits, is the A of the next product:
// attention's P never leaves registers.
#pragma once
#include "llmc/cuda/kernel.cuh"

// The abilities of the architecture being compiled. The host pass of nvcc compiles no kernel.
#ifdef __CUDA_ARCH__
#define HAS_AMPERE (__CUDA_ARCH__ >= 800)
#define HAS_FP8    (__CUDA_ARCH__ >= 890)
#else
#define HAS_AMPERE 0
#define HAS_FP8    0
#endif

// Every kernel begins with it. Where LAUNCH lets a grid start early (kernel.cuh), this waits until
// the grid before it in the stream, and so all earlier work, has ended and its memory is visible;
// elsewhere it does nothing.
static __device__ __forceinline__ void wait_for_the_grid_before(void) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

static constexpr float LOG2_E = 1.44269504f;

// Loops `for i from 0 below count`. Those over fragments must be unrolled, or the fragments do not
// stay in registers; those over tiles must not be, or registers for two tiles are in use.
#define UNROLL(i, count) _Pragma("unroll") for (int i = 0; i < (count); i++)
#define ROLLED(i, count) _Pragma("unroll 1") for (int i = 0; i < (count); i++)

static __device__ __forceinline__ uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

// ---------------------------------------------------------------------------------- matrix product

// c += a * b, 16 x 8 x 16, 16-bit factors, fp32 sums. sm_80+.
template <class T>
static __device__ __forceinline__ void mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4],
                                                    uint32_t b0, uint32_t b1);

#if HAS_AMPERE
#define MMA_M16N8K16(type)                                                                         \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                                     \
        ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "                                             \
        "{%0,%1,%2,%3};"                                                                           \
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                           \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
#else
#define MMA_M16N8K16(type) ((void)c, (void)a, (void)b0, (void)b1, __trap())
#endif
template <>
__device__ __forceinline__ void mma_m16n8k16<bf16>(float (&c)[4], const uint32_t (&a)[4],
                                                   uint32_t b0, uint32_t b1) {
    MMA_M16N8K16("bf16");
}
template <>
__device__ __forceinline__ void mma_m16n8k16<fp16>(float (&c)[4], const uint32_t (&a)[4],
                                                   uint32_t b0, uint32_t b1) {
    MMA_M16N8K16("f16");
}
#undef MMA_M16N8K16

// c += a * b, 16 x 8 x 8, fp16 factors, fp32 sums: a0, a1 and b0 are the first half of the
// fragments of m16n8k16. sm_75+.
static __device__ __forceinline__ void mma_m16n8k8(float (&c)[4], uint32_t a0, uint32_t a1,
                                                   uint32_t b0) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(b0));
}

// ------------------------------------------------------------------------------------ matrix loads

// Four 8 x 8 matrices of 16-bit elements from shared memory: lane 8 i + r gives the address of row
// r of matrix i, 16 bytes, 16-byte aligned; out[i] of lane L is row L/4, columns 2(L%4) and the
// next. _trans: column L/4, rows 2(L%4) and the next. sm_75+.
static __device__ __forceinline__ void ldmatrix_x4(uint32_t (&out)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(shared_address(row))
                 : "memory");
}

static __device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&out)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// ----------------------------------------------------------------------------- asynchronous copies

// Copies from global to shared memory that are in flight while the thread computes. sm_80+.
//   - copy_async: 16 bytes, both addresses 16-byte aligned, past L1; if not valid, writes zeros
//     and does not read.
//   - copy_async_commit: the copies since the last commit become a group.
//   - copy_async_wait<N>: until all groups but the last N have landed for this thread; others see
//     them after a barrier.
#if HAS_AMPERE
static __device__ __forceinline__ void copy_async(void *shared, const void *global, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
                 "l"(global), "r"(valid ? 16 : 0)
                 : "memory");
}
static __device__ __forceinline__ void copy_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N> static __device__ __forceinline__ void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
#else
static __device__ __forceinline__ void copy_async(void *, const void *, bool) { __trap(); }
static __device__ __forceinline__ void copy_async_commit() { __trap(); }
template <int N> static __device__ __forceinline__ void copy_async_wait() { __trap(); }
#endif

// -------------------------------------------------------------------------------------- arithmetic

// 2^x, relative error 2^-22; 0 for -inf. One instruction of the special function unit.
static __device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// The formats of fp8 as types, for templates.
struct E4M3 {
    static constexpr DType dtype = DTYPE_E4M3;
};
struct E5M2 {
    static constexpr DType dtype = DTYPE_E5M2;
};

// fp8_encode (llmc/number.h) of two floats, low in the lower byte. sm_89+; older GPUs get the same
// bits from arithmetic. The instruction saturates inf as well, where fp8_encode gives NaN: x + 0 x
// is x, and NaN for inf.
template <class F>
static __device__ __forceinline__ uint32_t fp8_encode_two(float low, float high) {
#if HAS_FP8
    uint16_t codes;
    low = fmaf(low, 0.0f, low);
    high = fmaf(high, 0.0f, high);
    if constexpr (F::dtype == DTYPE_E4M3)
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
    else
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
    return codes;
#else
    return fp8_encode(low, F::dtype) | (uint32_t)fp8_encode(high, F::dtype) << 8;
#endif
}
