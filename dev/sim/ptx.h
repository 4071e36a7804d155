// Translated kernels call these functions (translate.py writes the calls): memory with the checks
// of the hardware, operations of warps and blocks, conversions, rounding. They are written from the
// PTX ISA. #line in the translation makes LINE and FILE the place in the .cu file.
#pragma once
#include "dev/sim/threads.h"
#include <math.h>
#include <stdint.h>
#include <string.h>

#define SITE        int line = __builtin_LINE(), const char *file = __builtin_FILE()
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

namespace ptx {
using sim::Kernel;
using sim::Module;
using sim::Param;
using sim::Variable;
struct Register {
    explicit Register(Module *module);
};

// ------------------------------------------------------------------------------------------ memory

enum : uint32_t {
    SHARED_BASE = 1024
}; // where a block's window of shared memory begins; below it is the system's

// The shared memory of the block that runs on this OS thread goes from SHARED_BASE to shared_end.
extern __thread char *shared_bytes;
extern __thread uint32_t shared_end;

// The allocations that accesses found last, by the number of the access in its kernel: the next one
// is mostly the same.
struct Range {
    uint64_t begin, bytes;
};
extern __thread Range found[64];

[[noreturn]] void shared_fault(uint32_t address, uint32_t size, int line, const char *file);
[[noreturn]] void window_fault(uint64_t address, uint32_t size, int line, const char *file);
char *global_lookup(uint64_t address, uint32_t size, int number, int line, const char *file);

// Addresses are multiples of the size of an access, everywhere. `size` is a constant in every call.
static inline char *shared_at(uint32_t a, uint32_t size, SITE) {
    if (UNLIKELY(a < SHARED_BASE || a > shared_end || size > shared_end - a || a % size))
        shared_fault(a, size, line, file);
    return shared_bytes + (a - SHARED_BASE);
}
static inline char *global_at(uint64_t a, uint32_t size, int number, SITE) {
    const Range r = found[number];
    if (UNLIKELY(a - r.begin + size > r.bytes || a < r.begin || a % size))
        return global_lookup(a, size, number, line, file);
    return (char *)(uintptr_t)a;
}
// Local memory of a thread and its parameters.
static inline char *window_at(uint64_t a, uint32_t size, const char *window, uint32_t bytes, SITE) {
    const uint64_t at = a - (uint64_t)(uintptr_t)window;
    if (UNLIKELY(at > bytes || size > bytes - at || a % size)) window_fault(a, size, line, file);
    return (char *)(uintptr_t)a;
}
static inline uint64_t generic_of_shared(uint64_t a) {
    return (uint64_t)(uintptr_t)shared_bytes + (a - SHARED_BASE);
}
static inline uint64_t shared_of_generic(uint64_t a) {
    const uint64_t at = a - (uint64_t)(uintptr_t)shared_bytes;
    return at <= shared_end - SHARED_BASE ? at + SHARED_BASE : ~0ull;
}
static inline char *generic_at(uint64_t a, uint32_t size, int number, const char *local,
                               uint32_t local_bytes, SITE) {
    if (a - (uint64_t)(uintptr_t)shared_bytes <= shared_end - SHARED_BASE)
        return shared_at((uint32_t)shared_of_generic(a), size, line, file);
    if (a - (uint64_t)(uintptr_t)local < local_bytes)
        return window_at(a, size, local, local_bytes, line, file);
    return global_at(a, size, number, line, file);
}
// Local memory holds 0xFF until it is written; MemorySanitizer is to see that nobody wrote it.
#if defined(__has_feature)
#if __has_feature(memory_sanitizer)
#define FRESH_LOCAL(local) (void)local
#endif
#endif
#ifndef FRESH_LOCAL
#define FRESH_LOCAL(local) memset(local, 0xff, sizeof local)
#endif

// Aligned accesses of their type, so that sanitizers see them whole; the type may alias any other.
template <class T> struct Alias { typedef T type __attribute__((may_alias)); };
template <class T> static inline T load(const char *p) {
    return *(const typename Alias<T>::type *)p;
}
template <class T> static inline void store(char *p, T v) { *(typename Alias<T>::type *)p = v; }

// Orders the memory of this thread with that of others; an atomic operation alone does not.
// ThreadSanitizer knows no fences. For it, an atomic operation publishes what its thread saw and
// did, but only the first one after a fence; a fence takes over everything that was published. So a
// fence that is missing, or comes after the atomic operation, is a race.
void fence();
#if defined(__SANITIZE_THREAD__) || defined(SIM_TSAN)
#define ATOMIC_ORDER __ATOMIC_RELAXED
void publish();
#else
#define ATOMIC_ORDER __ATOMIC_SEQ_CST
static inline void publish() {}
#endif
template <class T, class F> static inline T atomic_update(char *p, F f) {
    typedef typename sim::Bits<sizeof(T)>::type Raw;
    publish();
    Raw old = __atomic_load_n((Raw *)p, ATOMIC_ORDER);
    for (;;) {
        const T now = load<T>((const char *)&old), next = f(now);
        if (__atomic_compare_exchange_n((Raw *)p, &old, load<Raw>((const char *)&next), false,
                                        ATOMIC_ORDER, ATOMIC_ORDER))
            return now;
    }
}
#define ATOMIC(name, expression)                                                                   \
    template <class T> static inline T atom_##name(char *p, T b) {                                 \
        return atomic_update<T>(p, [b](T old) { return (T)(expression); });                        \
    }
ATOMIC(add, old + b)
ATOMIC(exch, ((void)old, b))
ATOMIC(max, old > b ? old : b)
ATOMIC(min, old < b ? old : b)
ATOMIC(or, old | b)
ATOMIC(and, old &b)
ATOMIC(xor, old ^ b)
ATOMIC(inc, old >= b ? 0 : old + 1)
#undef ATOMIC
template <class T> static inline T atom_cas(char *p, T expected, T b) {
    return atomic_update<T>(p, [=](T old) { return old == expected ? b : old; });
}

// -------------------------------------------------------------------------------------------- bits

static inline float f32_of(uint32_t b) { return load<float>((const char *)&b); }
static inline double f64_of(uint64_t b) { return load<double>((const char *)&b); }
static inline uint32_t bits(float f) { return load<uint32_t>((const char *)&f); }
static inline uint64_t bits(double f) { return load<uint64_t>((const char *)&f); }

// Shifts by the width or more leave zeros, or the sign.
template <class T> static inline T shl(T v, uint32_t n) {
    return n >= 8 * sizeof(T) ? (T)0 : (T)(v << n);
}
template <class T> static inline T shr(T v, uint32_t n) {
    if (n >= 8 * sizeof(T)) return v < 0 ? (T)-1 : (T)0;
    return (T)(v >> n);
}
static inline uint32_t brev(uint32_t v) {
    uint32_t r = 0;
    for (int i = 0; i < 32; i++) r |= (v >> i & 1) << (31 - i);
    return r;
}
static inline uint32_t bfind_shiftamt(uint32_t v) { return v ? (uint32_t)__builtin_clz(v) : ~0u; }
static inline uint32_t bfe(uint32_t a, uint32_t at, uint32_t length) {
    at &= 255, length &= 255;
    const uint32_t mask = length >= 32 ? ~0u : (1u << length) - 1;
    return at >= 32 ? 0 : a >> at & mask;
}
template <class T> static inline T bfi(T a, T b, uint32_t at, uint32_t length) {
    at &= 255, length &= 255;
    const uint32_t width = 8 * sizeof(T);
    if (at >= width || length == 0) return b;
    const T mask = (T)((length >= width ? (T) ~(T)0 : (T)(((T)1 << length) - 1)) << at);
    return (T)((b & ~mask) | ((T)(a << at) & mask));
}
static inline uint32_t prmt(uint32_t a, uint32_t b, uint32_t c) {
    const uint64_t bytes = (uint64_t)b << 32 | a;
    uint32_t r = 0;
    for (int i = 0; i < 4; i++) {
        const uint32_t select = c >> (4 * i) & 15;
        uint32_t byte = (uint32_t)(bytes >> (8 * (select & 7))) & 255;
        if (select & 8) byte = byte & 128 ? 255 : 0;
        r |= byte << (8 * i);
    }
    return r;
}
template <class T> static inline T int_abs(T v) { return v < 0 ? (T)(0 - (uint64_t)v) : v; }
template <class T> static inline T mul_hi(T a, T b) {
    if ((T)-1 < (T)0) return (T)(((__int128)a * (__int128)b) >> 64);
    return (T)(((unsigned __int128)a * (unsigned __int128)b) >> 64);
}
[[noreturn]] void division_by_zero(int line, const char *file);
template <class T> static inline T int_div(T a, T b, SITE) {
    if (UNLIKELY(b == 0)) division_by_zero(line, file);
    return (T)-1 < (T)0 && b == (T)-1 ? (T)(0 - (uint64_t)a) : (T)(a / b);
}
template <class T> static inline T int_rem(T a, T b, SITE) {
    if (UNLIKELY(b == 0)) division_by_zero(line, file);
    return (T)-1 < (T)0 && b == (T)-1 ? (T)0 : (T)(a % b);
}
[[noreturn]] void trap(SITE);

// ------------------------------------------------------------------------------------------ floats

static inline float ftz(float v) {
    return __builtin_fabsf(v) < 0x1p-126f ? __builtin_copysignf(0.0f, v) : v;
}
template <class T> static inline T min_of(T a, T b) { return a < b ? a : b; }
template <class T> static inline T max_of(T a, T b) { return a > b ? a : b; }
enum : uint32_t { CANONICAL_NAN = 0x7fffffff };
// The one that is a number; -0 is below +0.
template <> inline float min_of<float>(float a, float b) {
    if (a != a) return b != b ? f32_of(CANONICAL_NAN) : b;
    if (b != b) return a;
    return a == b ? f32_of(bits(a) | bits(b)) : a < b ? a : b;
}
template <> inline float max_of<float>(float a, float b) {
    if (a != a) return b != b ? f32_of(CANONICAL_NAN) : b;
    if (b != b) return a;
    return a == b ? f32_of(bits(a) & bits(b)) : a > b ? a : b;
}
static inline float saturate(float v) { return v > 0.0f ? v < 1.0f ? v : 1.0f : 0.0f; }
float fma_rm(float a, float b, float c); // rounded down
// Approximate instructions: correctly rounded, or, with SIM_NUMERICS=hardware, off by what the PTX
// ISA allows.
float ex2_approx(float v);
float lg2_approx(float v);
float rsqrt_approx(float v);
float tanh_approx(float v);
float divide_approx(float a, float b);
template <bool FTZ> static inline float div_approx(float a, float b) {
    return FTZ ? ftz(divide_approx(ftz(a), ftz(b))) : divide_approx(a, b);
}
// Saturates. NaN becomes 0, but where a double or 64 bits take part the sign bit alone.
template <class T, class F> static inline T float_to_int(F v) {
    if (v != v)
        return sizeof(T) == 8 || sizeof(F) == 8 ? (T)((uint64_t)1 << (8 * sizeof(T) - 1)) : (T)0;
    const T low = (T)-1 < (T)0 ? (T)((uint64_t)1 << (8 * sizeof(T) - 1)) : (T)0, high = (T)~low;
    return v <= (F)low ? low : v >= (F)high ? high : (T)v;
}
float half_to_float(uint16_t h);
uint16_t float_to_half(float f);
uint8_t float_to_e4m3(float f); // these two saturate
uint8_t float_to_e5m2(float f);
static inline uint16_t float_to_bfloat(float f) {
    if (f != f) return 0x7fff;
    const uint32_t b = bits(f);
    return (uint16_t)((b + 0x7fff + (b >> 16 & 1)) >> 16);
}
// cvt of two numbers: the first operand becomes the upper half.
static inline uint32_t pack2(uint16_t upper, uint16_t lower) {
    return (uint32_t)upper << 16 | lower;
}
static inline uint16_t pack_fp8(uint8_t upper, uint8_t lower) {
    return (uint16_t)(upper << 8 | lower);
}

// -------------------------------------------------------------------------------- warps and blocks

enum { SHFL_UP, SHFL_DOWN, SHFL_BFLY, SHFL_IDX };
struct Shuffled {
    uint32_t value;
    bool in_range;
};
uint32_t shfl_meet(uint32_t mask, uint32_t value, uint32_t source, int line, const char *file);
template <int MODE>
static inline Shuffled shfl(uint32_t a, uint32_t b, uint32_t c, uint32_t mask, SITE) {
    const int lane = (int)sim::lane_id(), bval = (int)(b & 31), cval = (int)(c & 31),
              segment = (int)(c >> 8 & 31);
    const int max_lane = (lane & segment) | (cval & ~segment & 31), min_lane = lane & segment;
    int j = MODE == SHFL_UP     ? lane - bval
            : MODE == SHFL_DOWN ? lane + bval
            : MODE == SHFL_BFLY ? lane ^ bval
                                : min_lane | (bval & ~segment & 31);
    const bool in_range = MODE == SHFL_UP ? j >= max_lane : j <= max_lane;
    if (!in_range) j = lane;
    return {shfl_meet(mask, a, (uint32_t)j, line, file), in_range};
}
// A chain of v = v + (v of lane ^ OFFSET), or the maximum, over a whole warp.
typedef sim::CompleteFn Complete;
uint32_t warp_meet(uint32_t value, Complete f, int line, const char *file);
template <bool IS_MAX, int... OFFSETS>
static __attribute__((no_sanitize("thread"))) void butterfly_all(const uint64_t *value,
                                                                 const unsigned *, unsigned lanes,
                                                                 uint64_t *result) {
    sim::expect_whole_warp(lanes, "shfl.sync");
    float v[32], w[32];
    for (int i = 0; i < 32; i++) v[i] = f32_of((uint32_t)value[i]);
    for (int offset : {OFFSETS...}) {
        for (int i = 0; i < 32; i++)
            w[i] = IS_MAX ? max_of<float>(v[i], v[i ^ offset]) : v[i] + v[i ^ offset];
        for (int i = 0; i < 32; i++) v[i] = w[i];
    }
    for (int i = 0; i < 32; i++) result[i] = bits(v[i]);
}
template <int... OFFSETS> static inline float butterfly_add(float v, SITE) {
    return f32_of(warp_meet(bits(v), butterfly_all<false, OFFSETS...>, line, file));
}
template <int... OFFSETS> static inline float butterfly_max(float v, SITE) {
    return f32_of(warp_meet(bits(v), butterfly_all<true, OFFSETS...>, line, file));
}
uint32_t vote_ballot(bool p, uint32_t mask, SITE);
uint32_t match_any(uint32_t value, uint32_t mask, SITE);
void bar_warp(uint32_t mask, SITE);
void bar_sync(SITE);
uint32_t bar_popc(bool p, SITE);
bool bar_and(bool p, SITE);
bool bar_or(bool p, SITE);

// m: the row that this lane has the address of, and afterwards its part of every matrix. Orders no
// memory, nor does mma.
template <bool TRANS> void ldmatrix_x4(uint32_t *m, SITE);
struct Half {
    static float number(uint16_t v) { return half_to_float(v); }
};
struct BFloat {
    static float number(uint16_t v) { return f32_of((uint32_t)v << 16); }
};
struct MmaFragments {
    uint32_t a[4], b[2]; // with K = 8: the first half
    float c[4];          // and d
};
template <class T, int K> void mma_m16n8(MmaFragments &m, SITE);

// cp.async of one thread. A copy happens as late as the ISA allows, in the wait for it; in the
// reverse schedule as early as it may, when it is issued: then a tile that somebody still reads is
// overwritten.
struct AsyncCopies {
    enum { MOST = 256 };
    struct Copy {
        char *to;
        const char *from;
        int bytes, read, group;
    } copy[MOST];
    int first = 0, count = 0, group = 0;

    ~AsyncCopies() {
        if (UNLIKELY(count > 0))
            sim::fatal("a thread ends with %d cp.async that it did not wait for", count);
    }

    void issue(char *to, uint64_t from, int bytes, uint32_t read, int number, SITE) {
        if (UNLIKELY(read > (uint32_t)bytes))
            sim::fatal("cp.async reads %u of %d bytes at %s:%d", read, bytes, file, line);
        if (read)
            global_at(from, (uint32_t)bytes, number, line, file);
        else if (UNLIKELY(from % (uint64_t)bytes))
            sim::fatal("cp.async: misaligned address 0x%lx at %s:%d", from, file, line);
        const Copy now = {to, (const char *)(uintptr_t)from, bytes, (int)read, group};
        if (sim::copies_at_once()) return perform(now);
        if (UNLIKELY(count == MOST))
            sim::fatal("more than %d cp.async under way at %s:%d", (int)MOST, file, line);
        copy[(first + count++) % MOST] = now;
    }
    void commit() { group++; }
    void wait(int pending_groups) { // -1: all, also those of no group
        for (; count && (pending_groups < 0 || copy[first].group < group - pending_groups);
             count--) {
            perform(copy[first]);
            first = (first + 1) % MOST;
        }
    }
    static void perform(const Copy &c) {
        if (c.read) memcpy(c.to, c.from, (size_t)c.read);
        if (c.read < c.bytes) memset(c.to + c.read, 0, (size_t)(c.bytes - c.read));
    }
};
} // namespace ptx
