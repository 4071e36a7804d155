// Atomic operations. They are real atomics of the host, because blocks run on several threads. Included by launch.h.
// atomicAdd on float exists so that tests can show what forbids it: its result depends on the order.
#pragma once
#include <cstring>

namespace sim {
// *p = f(*p), atomically; returns the old value. Raw is the unsigned integer of T's size.
template <class Raw, class T, class F> T atomic_update(T *p, F f) {
    static_assert(sizeof(Raw) == sizeof(T), "atomic of another size");
    Raw *raw = reinterpret_cast<Raw *>(p);
    Raw old_bits = __atomic_load_n(raw, __ATOMIC_ACQUIRE), new_bits;
    T old_value;
    do {
        memcpy((void *)&old_value, &old_bits, sizeof(T));
        const T new_value = f(old_value);
        memcpy(&new_bits, (const void *)&new_value, sizeof(T));
    } while (!__atomic_compare_exchange_n(raw, &old_bits, new_bits, true, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
    return old_value;
}
} // namespace sim

#define SIM_ATOMIC_NUMBER(T, Raw)                                                                                      \
    inline T atomicAdd(T *p, T v) {                                                                                    \
        return sim::atomic_update<Raw>(p, [&](T old) { return (T)(old + v); });                                        \
    }                                                                                                                  \
    inline T atomicExch(T *p, T v) {                                                                                   \
        return sim::atomic_update<Raw>(p, [&](T) { return v; });                                                       \
    }
#define SIM_ATOMIC_INTEGER(T, Raw)                                                                                     \
    SIM_ATOMIC_NUMBER(T, Raw)                                                                                          \
    inline T atomicMax(T *p, T v) {                                                                                    \
        return sim::atomic_update<Raw>(p, [&](T old) { return old > v ? old : v; });                                   \
    }                                                                                                                  \
    inline T atomicMin(T *p, T v) {                                                                                    \
        return sim::atomic_update<Raw>(p, [&](T old) { return old < v ? old : v; });                                   \
    }                                                                                                                  \
    inline T atomicCAS(T *p, T expected, T v) {                                                                        \
        return sim::atomic_update<Raw>(p, [&](T old) { return old == expected ? v : old; });                           \
    }                                                                                                                  \
    inline T atomicOr(T *p, T v) {                                                                                     \
        return sim::atomic_update<Raw>(p, [&](T old) { return old | v; });                                             \
    }                                                                                                                  \
    inline T atomicAnd(T *p, T v) {                                                                                    \
        return sim::atomic_update<Raw>(p, [&](T old) { return old & v; });                                             \
    }                                                                                                                  \
    inline T atomicXor(T *p, T v) {                                                                                    \
        return sim::atomic_update<Raw>(p, [&](T old) { return old ^ v; });                                             \
    }
SIM_ATOMIC_INTEGER(int, unsigned)
SIM_ATOMIC_INTEGER(unsigned, unsigned)
SIM_ATOMIC_INTEGER(unsigned long long, unsigned long long)
SIM_ATOMIC_NUMBER(float, unsigned)
SIM_ATOMIC_NUMBER(double, unsigned long long)
#undef SIM_ATOMIC_INTEGER
#undef SIM_ATOMIC_NUMBER

inline int atomicSub(int *p, int v) { return atomicAdd(p, -v); }
inline unsigned atomicSub(unsigned *p, unsigned v) { return atomicAdd(p, 0u - v); }
inline unsigned atomicInc(unsigned *p, unsigned limit) {
    return sim::atomic_update<unsigned>(p, [&](unsigned old) { return old >= limit ? 0u : old + 1; });
}
inline unsigned atomicDec(unsigned *p, unsigned limit) {
    return sim::atomic_update<unsigned>(p, [&](unsigned old) { return old == 0 || old > limit ? limit : old - 1; });
}
// ThreadSanitizer knows no fences. The atomics beside them order as much here, which also means that none of the
// sanitizers misses a fence where a GPU would.
inline void __threadfence() {
#ifndef __SANITIZE_THREAD__
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}
inline void __threadfence_block() { __threadfence(); }
inline void __threadfence_system() { __threadfence(); }
