// Tensor-core, matrix-load, asynchronous-copy and fp8 instructions: the only file that knows both worlds. Each wrapper
// is one PTX instruction on the device and its meaning, spelled out, in the simulator. All 32 lanes of a warp call the
// matrix instructions together. An instruction that the architecture being compiled does not have becomes a trap.
//
// Fragments (PTX ISA, "Matrix Fragments for mma.m16n8k16"): lane = 4 g + t; a register holds two 16-bit elements, the
// lower half the lower column.
//   A (16 x 16)  a[0] (g, 2t)  a[1] (g+8, 2t)  a[2] (g, 2t+8)  a[3] (g+8, 2t+8)     and the column to the right of each
//   B (16 x 8)   b0 (k = 2t, n = g)  b1 (k = 2t+8, n = g)                           and the k below each
//   C (16 x 8)   c[0] (g, 2t)  c[1] (g, 2t+1)  c[2] (g+8, 2t)  c[3] (g+8, 2t+1)     fp32
// So the C of two neighbouring tiles, rounded to 16 bits, is the A of the next product: attention's P never leaves
// registers.
#pragma once
#include "llmc/cuda/kernel.cuh"

// What the architecture being compiled has. The simulator has everything; the host pass of nvcc compiles no kernel.
#ifdef CUDA_SIM
#define HAS_AMPERE 1
#define HAS_FP8    0 // its instruction
#elif defined(__CUDA_ARCH__)
#define HAS_AMPERE (__CUDA_ARCH__ >= 800)
#define HAS_FP8    (__CUDA_ARCH__ >= 890)
#else
#define HAS_AMPERE 0
#define HAS_FP8    0
#endif

// Loops `for i from 0 below count`. Those over fragments must be unrolled, or the fragments do not stay in registers;
// those over tiles must not be, or registers for two tiles are in use.
#ifdef CUDA_SIM
#define UNROLL(i, count) for (int i = 0; i < (count); i++)
#define ROLLED(i, count) for (int i = 0; i < (count); i++)
#else
#define UNROLL(i, count) _Pragma("unroll") for (int i = 0; i < (count); i++)
#define ROLLED(i, count) _Pragma("unroll 1") for (int i = 0; i < (count); i++)
#endif

#ifndef CUDA_SIM
static __device__ __forceinline__ uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}
#endif

// ------------------------------------------------------------------------------------------------------ matrix product

#ifdef CUDA_SIM
struct SimulatedMma {
    uint32_t a[4], b[2];
    float c[4];
};
template <class T> static inline float sim_element(uint32_t word, int high) {
    const uint16_t bits = (uint16_t)(high ? word >> 16 : word);
    T x;
    memcpy((void *)&x, &bits, 2);
    return to_float(x);
}
// c += a * b over K = 8 or 16, k in ascending order, in fp32.
template <class T, int K> static inline void sim_mma(float c[4], const uint32_t *a, const uint32_t *b) {
    SimulatedMma mine;
    memcpy(mine.a, a, K / 4 * sizeof *a), memcpy(mine.b, b, K / 8 * sizeof *b), memcpy(mine.c, c, sizeof mine.c);
    sim::warp_collective(ALL_LANES, &mine, [](const uint64_t *lanes, const unsigned *, unsigned, uint64_t *) {
        float A[16][K], B[K][8];
        for (int lane = 0; lane < WARP; lane++) {
            const SimulatedMma *m = (const SimulatedMma *)(uintptr_t)lanes[lane];
            const int g = lane / 4, t = lane % 4;
            for (int high = 0; high < 2; high++) {
                for (int r = 0; r < K / 4; r++)
                    A[g + 8 * (r % 2)][2 * t + 8 * (r / 2) + high] = sim_element<T>(m->a[r], high);
                for (int r = 0; r < K / 8; r++) B[2 * t + 8 * r + high][g] = sim_element<T>(m->b[r], high);
            }
        }
        for (int lane = 0; lane < WARP; lane++) {
            SimulatedMma *m = (SimulatedMma *)(uintptr_t)lanes[lane];
            for (int i = 0; i < 4; i++)
                for (int k = 0; k < K; k++) m->c[i] += A[lane / 4 + 8 * (i / 2)][k] * B[k][2 * (lane % 4) + i % 2];
        }
    });
    memcpy(c, mine.c, sizeof mine.c);
}
#endif

// c += a * b, 16 x 8 x 16, 16-bit factors, fp32 sums. sm_80+.
template <class T>
static __device__ __forceinline__ void mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

#if defined(CUDA_SIM)
#define MMA_M16N8K16(T, type)                                                                                          \
    const uint32_t b[2] = {b0, b1};                                                                                    \
    sim_mma<T, 16>(c, a, b)
#elif HAS_AMPERE
#define MMA_M16N8K16(T, type)                                                                                          \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "          \
        "{%0,%1,%2,%3};"                                                                                               \
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                               \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
#else
#define MMA_M16N8K16(T, type) ((void)c, (void)a, (void)b0, (void)b1, __trap())
#endif
template <>
__device__ __forceinline__ void mma_m16n8k16<bf16>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    MMA_M16N8K16(bf16, "bf16");
}
template <>
__device__ __forceinline__ void mma_m16n8k16<fp16>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    MMA_M16N8K16(fp16, "f16");
}
#undef MMA_M16N8K16

// c += a * b, 16 x 8 x 8, fp16 factors, fp32 sums: a0, a1 and b0 are the first half of the fragments of m16n8k16.
// sm_75+.
static __device__ __forceinline__ void mma_m16n8k8(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t b0) {
#ifdef CUDA_SIM
    const uint32_t a[2] = {a0, a1};
    sim_mma<fp16, 8>(c, a, &b0);
#else
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(b0));
#endif
}

// -------------------------------------------------------------------------------------------------------- matrix loads

// Four 8 x 8 matrices of 16-bit elements from shared memory: lane 8 i + r gives the address of row r of matrix i, 16
// bytes, 16-byte aligned; out[i] of lane L is row L/4, columns 2(L%4) and the next. _trans: column L/4, rows 2(L%4)
// and the next. sm_75+.
#ifdef CUDA_SIM
struct SimulatedLoad {
    const uint16_t *row;
    uint32_t out[4];
};
template <bool TRANSPOSE> static inline void sim_ldmatrix(uint32_t (&out)[4], const void *row) {
    if ((uintptr_t)row % 16 != 0) sim::fatal("ldmatrix: a row address is not 16-byte aligned");
    SimulatedLoad mine = {(const uint16_t *)row, {}};
    sim::warp_collective(ALL_LANES, &mine, [](const uint64_t *lanes, const unsigned *, unsigned, uint64_t *) {
        for (int lane = 0; lane < WARP; lane++) {
            SimulatedLoad *m = (SimulatedLoad *)(uintptr_t)lanes[lane];
            for (int i = 0; i < 4; i++) {
                uint32_t pair[2];
                for (int e = 0; e < 2; e++) {
                    const int r = TRANSPOSE ? 2 * (lane % 4) + e : lane / 4,
                              c = TRANSPOSE ? lane / 4 : 2 * (lane % 4) + e;
                    pair[e] = ((const SimulatedLoad *)(uintptr_t)lanes[8 * i + r])->row[c];
                }
                m->out[i] = pair[0] | pair[1] << 16;
            }
        }
    });
    memcpy(out, mine.out, sizeof mine.out);
}
#endif

static __device__ __forceinline__ void ldmatrix_x4(uint32_t (&out)[4], const void *row) {
#ifdef CUDA_SIM
    sim_ldmatrix<false>(out, row);
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(shared_address(row))
                 : "memory");
#endif
}

static __device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&out)[4], const void *row) {
#ifdef CUDA_SIM
    sim_ldmatrix<true>(out, row);
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(shared_address(row))
                 : "memory");
#endif
}

// ------------------------------------------------------------------------------------------------- asynchronous copies

// The copies from global to shared memory that one thread has under way; one object a thread. cp.async, sm_80+.
//   copy      16 bytes, both addresses 16-byte aligned, past L1; invalid: writes zeros and does not read global
//   commit    the copies since the last commit become a group
//   wait<N>   until all groups but the last N have landed, for this thread; others see them after a barrier
// The simulator does every other copy at once and the rest in the wait, as late as the hardware may: a missing wait
// shows in the late ones, a buffer that is overwritten while somebody reads it in the early ones.
struct AsyncCopies {
#ifdef CUDA_SIM
    enum { MOST = 128 };
    struct Pending {
        void *shared;
        const void *global;
        int group;
    };
    Pending pending[MOST];
    int count = 0, group = 0, calls = 0;

    static void perform(void *shared, const void *global) {
        if (global)
            *(int4 *)shared = *(const int4 *)global;
        else
            memset(shared, 0, 16);
    }
    void copy(void *shared, const void *global, bool valid) {
        if (((uintptr_t)shared | (uintptr_t)global) % 16 != 0)
            sim::fatal("cp.async: an address is not 16-byte aligned");
        const void *source = valid ? global : nullptr;
        if (calls++ % 2 == 0) {
            perform(shared, source);
            return;
        }
        if (count == MOST) sim::fatal("cp.async: more than %d copies under way", (int)MOST);
        pending[count++] = {shared, source, group};
    }
    void commit() { group++; }
    template <int N> void wait() {
        int kept = 0;
        for (int i = 0; i < count; i++) {
            if (pending[i].group < group - N)
                perform(pending[i].shared, pending[i].global);
            else
                pending[kept++] = pending[i];
        }
        count = kept;
    }
    ~AsyncCopies() {
        if (count > 0) sim::fatal("cp.async: a thread ends with %d copies that nobody waited for", count);
    }
#elif HAS_AMPERE
    __device__ __forceinline__ void copy(void *shared, const void *global, bool valid) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global),
                     "r"(valid ? 16 : 0)
                     : "memory");
    }
    __device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
    template <int N> __device__ __forceinline__ void wait() {
        asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
    }
#else
    __device__ __forceinline__ void copy(void *, const void *, bool) { __trap(); }
    __device__ __forceinline__ void commit() { __trap(); }
    template <int N> __device__ __forceinline__ void wait() { __trap(); }
#endif
};

// --------------------------------------------------------------------------------------------------------- arithmetic

// 2^x, relative error 2^-22; 0 for -inf. One instruction of the special function unit.
static __device__ __forceinline__ float exp2_approx(float x) {
#ifdef CUDA_SIM
    return exp2f(x);
#else
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

// Two floats rounded to 16 bits in one register, low in the lower half: a piece of a fragment.
template <class T> static __device__ __forceinline__ uint32_t pack_two(float low, float high);
template <> __device__ __forceinline__ uint32_t pack_two<bf16>(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    uint32_t bits;
    memcpy(&bits, (const void *)&pair, 4);
    return bits;
}
template <> __device__ __forceinline__ uint32_t pack_two<fp16>(float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    uint32_t bits;
    memcpy(&bits, (const void *)&pair, 4);
    return bits;
}

// The formats of fp8 as types, for templates.
struct E4M3 {
    static constexpr DType dtype = DTYPE_E4M3;
};
struct E5M2 {
    static constexpr DType dtype = DTYPE_E5M2;
};

// fp8_encode (llmc/fp8.h) of two floats, low in the lower byte. sm_89+; older GPUs get the same bits from arithmetic.
// The instruction saturates inf as well, where fp8_encode gives NaN: x + 0 x is x, and NaN for inf.
template <class F> static __device__ __forceinline__ uint32_t fp8_encode_two(float low, float high) {
#if HAS_FP8
    uint16_t codes;
    low = fmaf(low, 0.0f, low), high = fmaf(high, 0.0f, high);
    if constexpr (F::dtype == DTYPE_E4M3)
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
    else
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
    return codes;
#else
    return fp8_encode(low, F::dtype) | (uint32_t)fp8_encode(high, F::dtype) << 8;
#endif
}
