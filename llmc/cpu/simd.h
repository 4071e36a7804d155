// Vectors of fp32: the type and functions of every CPU kernel outside oneDNN.
//
// V is one vector register, a GCC vector, so + - * / are written as operators: 16 lanes with
// AVX-512, 8 with AVX2, 4 in portable C (SSE2, NEON). Operations without an operator (fma, max,
// tails, bf16, exp, sums over lanes) are here three times: AVX-512 intrinsics (bf16 conversions
// and dot products in hardware where __AVX512BF16__ is defined), AVX2 intrinsics, and portable C
// that the compiler turns into whole instructions. gcc lowers a vector wider than a register
// through memory: 16 lanes in AVX2 ran attention at a tenth of the speed of 8.
//
// Bits. A function of single lanes gives the same bits in all three, except vfma and vexp, where
// portable code without the instruction rounds products twice. Sums over lanes are in the order
// of vsum, so a sum over many elements depends on the number of lanes; and attention rounds its
// probabilities to bf16 only where pairs of bf16 are multiplied. The number of threads never
// matters. bf16 has no denormals here, and the ops run with FTZ and DAZ set.
//
// A kernel is written once for all element types, any length and any number of lanes: WITH_DTYPE
// compiles its body for each type as a constant, and EACH_LANES passes full vectors with the
// constant LANES for k and then the remainder, so that the inner loop tests neither. A longer
// body is an ALWAYS_INLINE function whose last argument is the type:
//
//   // A parallel region gets structs by address and would load in.data at each use, so pointers
//   // come first.
//   const void *from = in.data;
//   void *to = out.data;
//   #pragma omp parallel for
//   for (int64_t r = 0; r < rows; r++)
//       // Inside the loop: a region is compiled apart and would not see a constant from outside.
//       WITH_DTYPE(E, out.dtype, {
//           EACH_LANES(i, k, C, {
//               vstore_first(k, to, r * C + i, vload_first(k, from, r * C + i, E) * scale, E);
//           });
//       });
#pragma once
#include "llmc/tensor.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif
#include <math.h>
#include <string.h>

// FEW_REGISTERS: 16 instead of 32, which the tiles of sums must fit in.
#if defined(__AVX512F__)
enum { LANES = 16, FEW_REGISTERS = 0 };
#elif defined(__AVX2__)
enum { LANES = 8, FEW_REGISTERS = 1 };
#elif defined(__aarch64__)
enum { LANES = 4, FEW_REGISTERS = 0 };
#else
enum { LANES = 4, FEW_REGISTERS = 1 };
#endif

typedef float V __attribute__((vector_size(4 * LANES)));
// the bits of a V: (VU)x; also pairs of bf16
typedef uint32_t VU __attribute__((vector_size(4 * LANES)));
typedef int32_t VI __attribute__((vector_size(4 * LANES)));
typedef uint64_t VWide __attribute__((vector_size(4 * LANES)));
typedef uint16_t VH __attribute__((vector_size(2 * LANES)));
typedef uint8_t VB __attribute__((vector_size(LANES)));

#define ALWAYS_INLINE inline __attribute__((always_inline))

// Runs the statement with the constant E = DTYPE_BF16 or DTYPE_FP32, according to dtype_.
#define WITH_DTYPE(E, dtype_, ...)                                                                 \
    do {                                                                                           \
        if ((dtype_) == DTYPE_BF16) {                                                              \
            const DType E = DTYPE_BF16;                                                            \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            const DType E = DTYPE_FP32;                                                            \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)

// The same for two dtypes.
#define WITH_DTYPES(E, dtype_e, G, dtype_g, ...)                                                   \
    WITH_DTYPE(E, dtype_e, WITH_DTYPE(G, dtype_g, __VA_ARGS__))

// The statements for i = 0, LANES, 2 LANES, .. below n, where k = min(LANES, n - i) lanes are in
// use.
#define EACH_LANES(i, k, n, ...)                                                                   \
    do {                                                                                           \
        int64_t i = 0;                                                                             \
        for (; i + LANES <= (n); i += LANES) {                                                     \
            const int k = LANES;                                                                   \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
        if (i < (n)) {                                                                             \
            const int k = (int)((n)-i);                                                            \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)

// The number of the next lanes in use when n elements remain: n clamped to 0..LANES.
static ALWAYS_INLINE int lanes(int64_t n) {
    if (n >= LANES) return LANES;
    return n <= 0 ? 0 : (int)n;
}

// x in every lane. x - 0 is x, for -0 too.
static ALWAYS_INLINE V vsplat(float x) { return x - (V){0}; }
static ALWAYS_INLINE VU vsplat_bits(uint32_t x) { return x + (VU){0}; }
static ALWAYS_INLINE V vzero(void) { return (V){0}; }
static ALWAYS_INLINE VU vlane_numbers(void) {
#if defined(__AVX512F__)
    return (VU){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#elif defined(__AVX2__)
    return (VU){0, 1, 2, 3, 4, 5, 6, 7};
#else
    return (VU){0, 1, 2, 3};
#endif
}
// All ones in lanes where a < b, both below 2^31, so that the difference keeps its sign.
static ALWAYS_INLINE VU vless_bits(VU a, VU b) { return (VU)((VI)(a - b) >> 31); }

// ----------------------------------------------------------------------- the three implementations

typedef float VUnaligned __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint32_t VUUnaligned __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

static ALWAYS_INLINE V vload_f32(const float *p) { return *(const VUnaligned *)p; }
static ALWAYS_INLINE void vstore_f32(float *p, V x) { *(VUnaligned *)p = x; }
static ALWAYS_INLINE VU vload_bits(const void *p) {
    return *(const VUUnaligned *)p;
} // any 4-byte aligned address
static ALWAYS_INLINE void vstore_bits(void *p, VU x) { *(VUUnaligned *)p = x; }

// x rounded to bf16 in the upper half of each lane, as AVX512-BF16 does: to nearest, ties to even;
// NaN becomes a quiet NaN; denormals become 0 of their sign. The lower half is not cleared.
static ALWAYS_INLINE VU vround_bf16_bits(V x) {
    VU u = (VU)x;
    // all ones where the magnitude is above infinity's
    VU nan = (VU)((VI)(u & 0x7FFFFFFFu) > 0x7F800000);
    VU denormal = (VU)((VI)(u & 0x7FFFFFFFu) < 0x00800000);
    VU rounded = u + 0x7FFFu + (u >> 16 & 1u);
    return (nan & (u | 0x400000u)) | (~(nan | denormal) & rounded) | (u & 0x80000000u);
}

// A table of 8 numbers, in one register where that holds as many.
typedef float VTable __attribute__((vector_size(LANES < 8 ? 32 : 4 * LANES)));

#if defined(__AVX512F__)

static ALWAYS_INLINE V vfma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); } // a * b + c
static ALWAYS_INLINE V vmax(V a, V b) {
    return _mm512_max_ps(a, b);
} // a > b ? a : b, so b where one is NaN
static ALWAYS_INLINE V vmin(V a, V b) { return _mm512_min_ps(a, b); } // a < b ? a : b
static ALWAYS_INLINE V vsqrt(V x) { return _mm512_sqrt_ps(x); }

// a > b ? yes : no; no where one is NaN.
static ALWAYS_INLINE V vwhere_greater(V a, V b, V yes, V no) {
    return _mm512_mask_mov_ps(no, _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ), yes);
}
// count + 1 where a > b.
static ALWAYS_INLINE VI vcount_greater(VI count, V a, V b) {
    const __m512i one = _mm512_set1_epi32(1);
    return (VI)_mm512_mask_add_epi32((__m512i)count, _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ),
                                     (__m512i)count, one);
}
// Entry `index` of the table, 0..7, for each lane.
static ALWAYS_INLINE V vlookup(VTable table, VU index) {
    return _mm512_permutexvar_ps((__m512i)index, table);
}

static ALWAYS_INLINE __mmask16 vmask_first(int n) { return (__mmask16)((1u << n) - 1u); }

// Lanes 0..n-1 of a, the others of b; n in 0..LANES.
static ALWAYS_INLINE V vfirst(int n, V a, V b) {
    return n == LANES ? a : (V)_mm512_mask_mov_ps(b, vmask_first(n), a);
}

// The first n lanes from memory, the others 0; nothing beyond is touched. n in 0..LANES. Full
// vectors take the plain instruction: masked 16-bit stores are microcode on Zen 4.
static ALWAYS_INLINE V vload_first_f32(int n, const float *p) {
    if (n == LANES) return vload_f32(p);
    return (V)_mm512_maskz_loadu_ps(vmask_first(n), p);
}
static ALWAYS_INLINE void vstore_first_f32(int n, float *p, V x) {
    if (n == LANES)
        vstore_f32(p, x);
    else
        _mm512_mask_storeu_ps(p, vmask_first(n), x);
}

static ALWAYS_INLINE V vwiden_bf16(VH x) {
    return (V)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)x), 16);
}
static ALWAYS_INLINE VH vnarrow_bf16(V x) {
#ifdef __AVX512BF16__
    return (VH)_mm512_cvtneps_pbh(x);
#else
    return (VH)_mm512_cvtepi32_epi16((__m512i)(vround_bf16_bits(x) >> 16));
#endif
}

// p * 2^k for integral k, 0 and inf beyond the range of fp32.
static ALWAYS_INLINE V vscale_pow2(V p, V k) { return _mm512_scalef_ps(p, k); }
static ALWAYS_INLINE V vround(V x) {
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

// Products of the lower words of 64-bit lanes.
static ALWAYS_INLINE VWide vmul_low(VWide a, uint32_t b) {
    return (VWide)_mm512_mul_epu32((__m512i)a, _mm512_set1_epi64((int64_t)b));
}
// Even lanes of a, each followed by that of b; and odd lanes.
static ALWAYS_INLINE VWide vunpack_low(VWide a, VWide b) {
    return (VWide)_mm512_unpacklo_epi64((__m512i)a, (__m512i)b);
}
static ALWAYS_INLINE VWide vunpack_high(VWide a, VWide b) {
    return (VWide)_mm512_unpackhi_epi64((__m512i)a, (__m512i)b);
}

// Sum and maximum over the lanes, always in the order lane i with i + LANES / 2, then + LANES / 4,
// .. + 1.
static ALWAYS_INLINE float vsum(V x) {
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
static ALWAYS_INLINE float vmax_lane(V x) {
    __m256 h = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

#elif defined(__AVX2__)

static ALWAYS_INLINE V vfma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
static ALWAYS_INLINE V vmax(V a, V b) { return _mm256_max_ps(a, b); }
static ALWAYS_INLINE V vmin(V a, V b) { return _mm256_min_ps(a, b); }
static ALWAYS_INLINE V vsqrt(V x) { return _mm256_sqrt_ps(x); }

static ALWAYS_INLINE V vwhere_greater(V a, V b, V yes, V no) {
    return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_GT_OQ));
}
static ALWAYS_INLINE VI vcount_greater(VI count, V a, V b) {
    return count - (VI)_mm256_cmp_ps(a, b, _CMP_GT_OQ);
}
static ALWAYS_INLINE V vlookup(VTable table, VU index) {
    return _mm256_permutevar8x32_ps(table, (__m256i)index);
}

// All ones in the first n lanes.
static ALWAYS_INLINE __m256i vmask_first(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), (__m256i)vlane_numbers());
}
static ALWAYS_INLINE V vfirst(int n, V a, V b) {
    if (n == LANES) return a;
    return (V)_mm256_blendv_ps(b, a, (__m256)vmask_first(n));
}
static ALWAYS_INLINE V vload_first_f32(int n, const float *p) {
    if (n == LANES) return vload_f32(p);
    return (V)_mm256_maskload_ps(p, vmask_first(n));
}
static ALWAYS_INLINE void vstore_first_f32(int n, float *p, V x) {
    if (n == LANES)
        vstore_f32(p, x);
    else
        _mm256_maskstore_ps(p, vmask_first(n), x);
}

static ALWAYS_INLINE V vwiden_bf16(VH x) {
    return (V)_mm256_slli_epi32(_mm256_cvtepu16_epi32((__m128i)x), 16);
}
static ALWAYS_INLINE VH vnarrow_bf16(V x) {
    const __m256i bits = (__m256i)(vround_bf16_bits(x) >> 16);
    return (VH)_mm_packus_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
}

// Below 2^-125 times p: 0, which costs less than denormals; ops flush them anyway. 2^(k - 1) is a
// normal number; the other factor of 2 makes inf of what is beyond the range. Where k is NaN, p
// passes.
static ALWAYS_INLINE V vscale_pow2(V p, V k) {
    const V factor = (V)(((VI)_mm256_cvtps_epi32(k) + 126) << 23);
    return _mm256_and_ps((p + p) * factor, _mm256_cmp_ps(k, vsplat(-125.5f), _CMP_NLT_UQ));
}
static ALWAYS_INLINE V vround(V x) {
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

static ALWAYS_INLINE VWide vmul_low(VWide a, uint32_t b) {
    return (VWide)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x((int64_t)b));
}
static ALWAYS_INLINE VWide vunpack_low(VWide a, VWide b) {
    return (VWide)_mm256_unpacklo_epi64((__m256i)a, (__m256i)b);
}
static ALWAYS_INLINE VWide vunpack_high(VWide a, VWide b) {
    return (VWide)_mm256_unpackhi_epi64((__m256i)a, (__m256i)b);
}

static ALWAYS_INLINE float vsum(V x) {
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
static ALWAYS_INLINE float vmax_lane(V x) {
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

#else // portable

static ALWAYS_INLINE V vselect(VI condition, V yes, V no) {
    return (V)((condition & (VI)yes) | (~condition & (VI)no));
}
static ALWAYS_INLINE V vwhere_greater(V a, V b, V yes, V no) { return vselect(a > b, yes, no); }
static ALWAYS_INLINE VI vcount_greater(VI count, V a, V b) { return count - (a > b); }
static ALWAYS_INLINE V vmax(V a, V b) { return vselect(a > b, a, b); } // b where one is NaN
static ALWAYS_INLINE V vmin(V a, V b) { return vselect(a < b, a, b); }

static ALWAYS_INLINE V vfma(V a, V b, V c) {
#ifdef __FP_FAST_FMAF
    V r;
    for (int i = 0; i < LANES; i++) r[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return r;
#else
    // without the instruction a fused product would be a function call for every lane
    return a * b + c;
#endif
}
static ALWAYS_INLINE V vsqrt(V x) {
    V r;
    for (int i = 0; i < LANES; i++) r[i] = __builtin_sqrtf(x[i]);
    return r;
}
static ALWAYS_INLINE V vlookup(VTable table, VU index) {
    V r;
    for (int i = 0; i < LANES; i++) r[i] = table[index[i] % 8];
    return r;
}

static ALWAYS_INLINE V vfirst(int n, V a, V b) {
    if (n == LANES) return a;
    return vselect(((VI)vlane_numbers() - n) >> 31, a, b);
}

static ALWAYS_INLINE V vload_first_f32(int n, const float *p) {
    if (n == LANES) return vload_f32(p);
    V x = {0};
    memcpy(&x, p, (size_t)n * sizeof *p);
    return x;
}
static ALWAYS_INLINE void vstore_first_f32(int n, float *p, V x) {
    if (n == LANES)
        vstore_f32(p, x);
    else
        memcpy(p, &x, (size_t)n * sizeof *p);
}

static ALWAYS_INLINE V vwiden_bf16(VH x) { return (V)(__builtin_convertvector(x, VU) << 16); }
static ALWAYS_INLINE VH vnarrow_bf16(V x) {
    return __builtin_convertvector(vround_bf16_bits(x) >> 16, VH);
}

// Gives 0 below 2^-125 times p, as the AVX2 code does.
static ALWAYS_INLINE V vscale_pow2(V p, V k) {
    const V factor = (V)((__builtin_convertvector(k, VI) + 126) << 23);
    return (V)((VI)((p + p) * factor) & ~(k < vsplat(-125.5f)));
}
// |x| < 2^22, to nearest even, because adding 1.5 * 2^23 leaves no bits for a fraction.
static ALWAYS_INLINE V vround(V x) { return (x + 0x1.8p23f) - 0x1.8p23f; }

static ALWAYS_INLINE VWide vmul_low(VWide a, uint32_t b) { return (a & 0xFFFFFFFFu) * b; }
static ALWAYS_INLINE VWide vunpack_low(VWide a, VWide b) { return (VWide){a[0], b[0]}; }
static ALWAYS_INLINE VWide vunpack_high(VWide a, VWide b) { return (VWide){a[1], b[1]}; }

static ALWAYS_INLINE float vsum(V x) { return (x[0] + x[2]) + (x[1] + x[3]); }
static ALWAYS_INLINE float vmax_lane(V x) {
    const float even = x[0] > x[2] ? x[0] : x[2], odd = x[1] > x[3] ? x[1] : x[3];
    if (even > odd) return even;
    return odd;
}

#endif

typedef uint16_t VHUnaligned __attribute__((vector_size(2 * LANES), aligned(2), may_alias));
static ALWAYS_INLINE V vload_bf16(const uint16_t *p) {
    return vwiden_bf16(*(const VHUnaligned *)p);
}
static ALWAYS_INLINE void vstore_bf16(uint16_t *p, V x) { *(VHUnaligned *)p = vnarrow_bf16(x); }

// ------------------------------------------------------------------------ one name for every dtype

// LANES elements of type E (fp32 or bf16, a constant where this is inlined) from index i of the
// array at p, and back.
static ALWAYS_INLINE V vload(const void *p, int64_t i, DType E) {
    if (E == DTYPE_BF16) return vload_bf16((const uint16_t *)p + i);
    return vload_f32((const float *)p + i);
}
static ALWAYS_INLINE void vstore(void *p, int64_t i, V x, DType E) {
    if (E == DTYPE_BF16)
        vstore_bf16((uint16_t *)p + i, x);
    else
        vstore_f32((float *)p + i, x);
}
// The first n of them: missing lanes read as 0 and are not written.
static ALWAYS_INLINE V vload_first(int n, const void *p, int64_t i, DType E) {
    if (E != DTYPE_BF16) return vload_first_f32(n, (const float *)p + i);
    const uint16_t *from = (const uint16_t *)p + i;
    if (n == LANES) return vload_bf16(from);
#ifdef __AVX512F__
    return vwiden_bf16((VH)_mm256_maskz_loadu_epi16(vmask_first(n), from));
#else
    VH x = {0};
    memcpy(&x, from, (size_t)n * sizeof *from);
    return vwiden_bf16(x);
#endif
}
static ALWAYS_INLINE void vstore_first(int n, void *p, int64_t i, V x, DType E) {
    if (E != DTYPE_BF16) {
        vstore_first_f32(n, (float *)p + i, x);
        return;
    }
    uint16_t *to = (uint16_t *)p + i;
    const VH h = vnarrow_bf16(x);
    if (n == LANES)
        *(VHUnaligned *)to = h;
    else
#ifdef __AVX512F__
        _mm256_mask_storeu_epi16(to, vmask_first(n), (__m256i)h);
#else
        memcpy(to, &h, (size_t)n * sizeof *to);
#endif
}
// The first n of LANES bytes, the others 0; and back: the lowest byte of each. gcc converts byte by
// byte.
static ALWAYS_INLINE VI vload_first_u8(int n, const uint8_t *p) {
    VB x = {0};
    memcpy(&x, p, (size_t)n);
#if defined(__AVX512F__)
    return (VI)_mm512_cvtepu8_epi32((__m128i)x);
#elif defined(__AVX2__)
    return (VI)_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((int64_t)x));
#else
    return __builtin_convertvector(x, VI);
#endif
}
static ALWAYS_INLINE void vstore_first_u8(int n, uint8_t *p, VI x) {
#if defined(__AVX512F__)
    const VB b = (VB)_mm512_cvtepi32_epi8((__m512i)x);
#elif defined(__AVX2__)
    const __m256i bytes = (__m256i)(x & 0xFF);
    const __m128i words =
        _mm_packus_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
    const VB b = (VB)_mm_cvtsi128_si64(_mm_packus_epi16(words, words));
#else
    const VB b = __builtin_convertvector(x, VB);
#endif
    memcpy(p, &b, (size_t)n);
}

// --------------------------------------------------------------------------------------------- exp

// e^x, relative error <= 1e-7 (test_simd measures 8.3e-8). 0 below -103.98 with AVX-512 (where
// denormals are flushed, below -87.34), otherwise below -87.0; inf above 88.7229, NaN for NaN.
//   x = k ln 2 + r with |r| <= ln(2)/2;  e^x = 2^k (1 + r + r^2 q(r)),
//   q of degree 4 fitted to the relative error.
static ALWAYS_INLINE V vexp(V x) {
    // in this order of arguments NaN passes through
    x = vmin(vsplat(89.0f), vmax(vsplat(-104.0f), x));
    V k = vround(x * 0x1.715476p+0f);
    // ln 2 in two parts; k times the first is exact, so that r is as good with and without fma.
    V r = vfma(k, vsplat(-0x1.63p-1f), x);
    r = vfma(k, vsplat(0x1.bd0106p-13f), r);
    V q = vsplat(0x1.6a4748p-10f);
    q = vfma(q, r, vsplat(0x1.1239a2p-7f));
    q = vfma(q, r, vsplat(0x1.5558b6p-5f));
    q = vfma(q, r, vsplat(0x1.555492p-3f));
    q = vfma(q, r, vsplat(0x1.fffffcp-2f));
    return vscale_pow2(vfma(r * r, q, r) + 1.0f, k);
}

// 2^r, |r| <= 1/2: a polynomial fitted to the relative error, 2e-7 with rounding.
static ALWAYS_INLINE V vexp2_fraction(V r) {
    V p = vsplat(0x1.5bba14p-10f);
    p = vfma(p, r, vsplat(0x1.3cea88p-7f));
    p = vfma(p, r, vsplat(0x1.c6b752p-5f));
    p = vfma(p, r, vsplat(0x1.ebf9bcp-3f));
    p = vfma(p, r, vsplat(0x1.62e42ap-1f));
    return vfma(p, r, vsplat(1.0f));
}

// e^x for x <= 0 or barely above, as softmax needs it: two thirds of the instructions of vexp, 3%
// of the time of attention. Relative error 2e-7 + 2e-8 |x| (without fma 2e-7 + 7e-8 |x|): values
// far below the maximum are less exact and matter less. 0 below -104, so also for -inf; NaN for
// NaN.
//   x log2(e) = k + r with |r| <= 1/2;  e^x = 2^k 2^r
static ALWAYS_INLINE V vexp_nonpositive(V x) {
    const V log2_e = vsplat(0x1.715476p+0f);
    x = vmax(vsplat(-104.0f), x); // in this order of arguments NaN passes through
    V k = vround(x * log2_e);
    return vscale_pow2(vexp2_fraction(vfma(x, log2_e, -k)), k);
}

// 1 + 2^y with y = x factor, |y| <= 126, for vectors of fewer than 16 lanes: fewer multiplications
// than vexp. Relative error of 2^y: 4e-8 of the polynomial; without fma also 4e-8 |y|, of y.
//   y = k + r,  k in eighths,  |r| <= 1/16
// 2^k comes from a table for the fraction of k; 2^r = 1 + r q(r), q of degree 2. The bits of y +
// 1.5 * 2^20 end in those of k; the table lacks what they add to it. Vectors of 4 lanes have no
// instruction for a table: there k is whole, |r| <= 1/2, and the polynomial longer.
static ALWAYS_INLINE V vone_plus_exp2(V x, V factor) {
    if (LANES == 4) {
        const V y = x * factor, k = vround(y);
        return vfma(vexp2_fraction(y - k), (V)((__builtin_convertvector(k, VI) + 127) << 23),
                    vsplat(1.0f));
    }
    const VTable fraction = {0x1p+0f,        0x1.f72b84p-1f, 0x1.f06fep-1f,  0x1.ebfdaep-1f,
                             0x1.ea09e6p-1f, 0x1.eace54p-1f, 0x1.ee89fap-1f, 0x1.f5818ep-1f};
    const V shifted = vfma(x, factor, vsplat(0x1.8p20f)), r = vfma(x, factor, 0x1.8p20f - shifted);
    const V power = (V)((VU)vlookup(fraction, (VU)shifted) + ((VU)shifted << 20));
    const V q =
        vfma(vfma(vsplat(0x1.c6b8bep-5f), r, vsplat(0x1.ec0aa6p-3f)), r, vsplat(0x1.62e43p-1f));
    return vfma(power * r, q, power + 1.0f);
}

// ----------------------------------------------------------------------- pairs of bf16 (attention)

// One instruction multiplies 16 x 16 pairs of bf16 with 16 x 16 (AMX), ten times as fast as
// vdot_bf16: tile_matmul.c.
#ifdef __AMX_BF16__
enum { BF16_TILES = 1 };
#else
enum { BF16_TILES = 0 };
#endif

// A 32-bit lane holds two bf16, the lower half first in memory, as dot products of bf16 expect.
// Only where these are one instruction: elsewhere bf16 is widened before it is multiplied.
#ifdef __AVX512BF16__
enum { BF16_PAIRS = 1 };
// acc + a.low * b.low + a.high * b.high, lane by lane.
static ALWAYS_INLINE V vdot_bf16(V acc, VU a, VU b) {
    return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b);
}
// Pairs (low, high), each rounded to bf16.
static ALWAYS_INLINE VU vpair_bf16(V low, V high) {
    VU l = (VU)_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(low));
    VU h = (VU)_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(high));
    return l | h << 16;
}
#else
enum { BF16_PAIRS = 0 };
static ALWAYS_INLINE V vdot_bf16(__attribute__((unused)) V acc, __attribute__((unused)) VU a,
                                 __attribute__((unused)) VU b) {
    __builtin_trap();
}
static ALWAYS_INLINE VU vpair_bf16(__attribute__((unused)) V low, __attribute__((unused)) V high) {
    __builtin_trap();
}
#endif
