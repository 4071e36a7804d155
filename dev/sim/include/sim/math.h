// Integer, conversion and mathematical functions that nvcc knows and a host compiler does not. Included by launch.h.
// Fast approximations (__expf, ...) are the exact functions of libm: the simulator says nothing about their error.
#pragma once
#include <cstdint>
#include <cstring>
#include <math.h>

namespace sim {
template <class To, class From> inline To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From), "bit_cast between sizes");
    To to;
    memcpy((void *)&to, (const void *)&from, sizeof to);
    return to;
}
} // namespace sim

// ---------------------------------------------------------------------------------------------------------------- bits

inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
inline int __clz(int v) { return v ? __builtin_clz((unsigned)v) : 32; }
inline int __clzll(long long v) { return v ? __builtin_clzll((unsigned long long)v) : 64; }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __ffsll(long long v) { return __builtin_ffsll(v); }
inline unsigned __brev(unsigned v) {
    unsigned r = 0;
    for (int i = 0; i < 32; i++) r |= (v >> i & 1u) << (31 - i);
    return r;
}
inline unsigned long long __brevll(unsigned long long v) {
    return (unsigned long long)__brev((unsigned)v) << 32 | __brev((unsigned)(v >> 32));
}
// Byte i of the result is byte (selector nibble i) of y:x; bit 3 of a nibble replicates the sign of that byte.
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    const uint64_t bytes = (uint64_t)y << 32 | x;
    unsigned r = 0;
    for (int i = 0; i < 4; i++) {
        const unsigned s = selector >> (4 * i) & 15u, byte = (unsigned)(bytes >> (8 * (s & 7u))) & 255u;
        r |= (s & 8u ? (byte & 128u ? 255u : 0u) : byte) << (8 * i);
    }
    return r;
}
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
inline int __mulhi(int a, int b) { return (int)((int64_t)a * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    __extension__ typedef unsigned __int128 Wide;
    return (unsigned long long)((Wide)a * b >> 64);
}
inline unsigned __umul24(unsigned a, unsigned b) { return (a & 0xffffffu) * (b & 0xffffffu); }
inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned shift) {
    return (unsigned)((((uint64_t)hi << 32 | lo) << (shift & 31u)) >> 32);
}
inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned shift) {
    return (unsigned)(((uint64_t)hi << 32 | lo) >> (shift & 31u));
}

// --------------------------------------------------------------------------------------------------------- conversions

inline unsigned __float_as_uint(float f) { return sim::bit_cast<unsigned>(f); }
inline int __float_as_int(float f) { return sim::bit_cast<int>(f); }
inline float __uint_as_float(unsigned u) { return sim::bit_cast<float>(u); }
inline float __int_as_float(int i) { return sim::bit_cast<float>(i); }
inline long long __double_as_longlong(double d) { return sim::bit_cast<long long>(d); }
inline double __longlong_as_double(long long i) { return sim::bit_cast<double>(i); }
inline int __float2int_rn(float f) { return (int)rintf(f); }
inline int __float2int_rz(float f) { return (int)f; }
inline int __float2int_rd(float f) { return (int)floorf(f); }
inline int __float2int_ru(float f) { return (int)ceilf(f); }
inline unsigned __float2uint_rn(float f) { return (unsigned)rintf(f); }
inline unsigned __float2uint_rz(float f) { return (unsigned)f; }
inline long long __float2ll_rn(float f) { return llrintf(f); }
inline float __int2float_rn(int i) { return (float)i; }
inline float __uint2float_rn(unsigned u) { return (float)u; }
inline float __ll2float_rn(long long i) { return (float)i; }
inline float __ull2float_rn(unsigned long long u) { return (float)u; }
inline float __double2float_rn(double d) { return (float)d; }

// ---------------------------------------------------------------------------------------------------------- arithmetic

inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float __frsqrt_rn(float x) { return 1.0f / sqrtf(x); }
// glibc declares functions of these names.
#define __expf(x)    expf(x)
#define __exp2f(x)   exp2f(x)
#define __exp10f(x)  exp10f(x)
#define __logf(x)    logf(x)
#define __log2f(x)   log2f(x)
#define __log10f(x)  log10f(x)
#define __sinf(x)    sinf(x)
#define __cosf(x)    cosf(x)
#define __tanhf(x)   tanhf(x)
#define __powf(x, y) powf(x, y)
inline void __sincosf(float x, float *sine, float *cosine) { sincosf(x, sine, cosine); }
inline float fdividef(float a, float b) { return a / b; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __dsqrt_rn(double a) { return sqrt(a); }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
inline float __saturatef(float a) { return a > 1.0f ? 1.0f : a > 0.0f ? a : 0.0f; }

#define SIM_MIN_MAX(T)                                                                                                 \
    inline T min(T a, T b) { return a < b ? a : b; }                                                                   \
    inline T max(T a, T b) { return a > b ? a : b; }
SIM_MIN_MAX(int)
SIM_MIN_MAX(unsigned)
SIM_MIN_MAX(long)
SIM_MIN_MAX(unsigned long)
SIM_MIN_MAX(long long)
SIM_MIN_MAX(unsigned long long)
#undef SIM_MIN_MAX
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
inline unsigned max(int a, unsigned b) { return max((unsigned)a, b); }
inline unsigned max(unsigned a, int b) { return max(a, (unsigned)b); }
inline unsigned min(int a, unsigned b) { return min((unsigned)a, b); }
inline unsigned min(unsigned a, int b) { return min(a, (unsigned)b); }
