// Barriers, shuffles, votes and reductions of kernels. Included by launch.h; the meeting of lanes is in block.cpp.
// Every function takes the caller's line, so that a message can name the place.
#pragma once
#include <cstdint>
#include <cstring>

// Stands at the end of a parameter list.
#define SIM_SITE int line = __builtin_LINE(), const char *file = __builtin_FILE()

namespace sim {
// What the last lane that arrives computes for all: value and argument of the participating lanes -> result of each.
using CompleteFn = void (*)(const uint64_t *value, const unsigned *argument, unsigned lanes, uint64_t *result);

// The lanes of mask meet; the last one to arrive runs fn; every lane returns its result. orders_memory: what a lane
// wrote before is visible to the others afterwards (true of __syncwarp, not of shuffles; only TSan can tell).
uint64_t warp_op(unsigned mask, uint64_t value, unsigned argument, CompleteFn fn, int line, const char *file,
                 bool orders_memory = false);
enum BlockOp { BLOCK_SYNC, BLOCK_COUNT, BLOCK_AND, BLOCK_OR };
int block_op(int predicate, BlockOp op, int line, const char *file);
unsigned lane_id();
extern const CompleteFn op_sync, op_shuffle, op_ballot, op_match, op_sum, op_max;

template <class T> inline uint64_t to_bits(T v) {
    static_assert(sizeof(T) <= 8, "value too wide for one warp operation");
    uint64_t bits = 0;
    memcpy(&bits, (const void *)&v, sizeof(T));
    return bits;
}
template <class T> inline T from_bits(uint64_t bits) {
    T v;
    memcpy((void *)&v, &bits, sizeof(T));
    return v;
}
template <class T> inline T shuffle(unsigned mask, T v, unsigned source, int line, const char *file) {
    return from_bits<T>(warp_op(mask, to_bits(v), source, op_shuffle, line, file));
}

// A collective of our own over structs on the lanes' stacks (mma, ldmatrix): fn gets their addresses as values.
template <class P> inline void warp_collective(unsigned mask, P *payload, CompleteFn fn, SIM_SITE) {
    warp_op(mask, (uint64_t)(uintptr_t)payload, 0, fn, line, file, true);
}

// Sum and maximum over a full warp as one meeting instead of five shuffles. Bit-identical to the xor butterfly 16, 8,
// 4, 2, 1, because a + b == b + a.
inline float warp_sum(float v, SIM_SITE) { return from_bits<float>(warp_op(~0u, to_bits(v), 0, op_sum, line, file)); }
inline float warp_max(float v, SIM_SITE) { return from_bits<float>(warp_op(~0u, to_bits(v), 0, op_max, line, file)); }
} // namespace sim

inline void __syncthreads(SIM_SITE) { sim::block_op(0, sim::BLOCK_SYNC, line, file); }
inline int __syncthreads_count(int p, SIM_SITE) { return sim::block_op(p, sim::BLOCK_COUNT, line, file); }
inline int __syncthreads_and(int p, SIM_SITE) { return sim::block_op(p, sim::BLOCK_AND, line, file); }
inline int __syncthreads_or(int p, SIM_SITE) { return sim::block_op(p, sim::BLOCK_OR, line, file); }
inline void __syncwarp(unsigned mask = 0xffffffffu, SIM_SITE) {
    sim::warp_op(mask, 0, 0, sim::op_sync, line, file, true);
}

inline unsigned __ballot_sync(unsigned mask, int p, SIM_SITE) {
    return (unsigned)sim::warp_op(mask, p != 0, 0, sim::op_ballot, line, file);
}
inline int __any_sync(unsigned mask, int p, SIM_SITE) { return __ballot_sync(mask, p, line, file) != 0; }
inline int __all_sync(unsigned mask, int p, SIM_SITE) { return __ballot_sync(mask, !p, line, file) == 0; }
template <class T> inline unsigned __match_any_sync(unsigned mask, T v, SIM_SITE) {
    return (unsigned)sim::warp_op(mask, sim::to_bits(v), 0, sim::op_match, line, file);
}
template <class T> inline unsigned __match_all_sync(unsigned mask, T v, int *all, SIM_SITE) {
    *all = __match_any_sync(mask, v, line, file) == mask;
    return *all ? mask : 0;
}

// A source outside the segment of `width` lanes means the lane itself, as in CUDA.
template <class T> inline T __shfl_sync(unsigned mask, T v, int source, int width = 32, SIM_SITE) {
    const unsigned lane = sim::lane_id(), w = (unsigned)width;
    return sim::shuffle(mask, v, (lane & ~(w - 1)) | ((unsigned)source & (w - 1)), line, file);
}
template <class T> inline T __shfl_up_sync(unsigned mask, T v, unsigned delta, int width = 32, SIM_SITE) {
    const unsigned lane = sim::lane_id(), w = (unsigned)width;
    return sim::shuffle(mask, v, (lane & (w - 1)) < delta ? lane : lane - delta, line, file);
}
template <class T> inline T __shfl_down_sync(unsigned mask, T v, unsigned delta, int width = 32, SIM_SITE) {
    const unsigned lane = sim::lane_id(), w = (unsigned)width;
    return sim::shuffle(mask, v, (lane & (w - 1)) + delta >= w ? lane : lane + delta, line, file);
}
template <class T> inline T __shfl_xor_sync(unsigned mask, T v, int lane_mask, int width = 32, SIM_SITE) {
    const unsigned lane = sim::lane_id(), w = (unsigned)width, source = lane ^ (unsigned)lane_mask;
    return sim::shuffle(mask, v, source >= (lane & ~(w - 1)) + w ? lane : source, line, file);
}

// __reduce_*_sync: the accumulator a takes the values b of the lanes in ascending order. no_sanitize: it runs on the
// last lane's behalf over values of all, which their lanes published by arriving.
#define SIM_REDUCE(name, T, expression)                                                                                \
    inline T name(unsigned mask, T v, SIM_SITE) {                                                                      \
        const sim::CompleteFn fn = [](const uint64_t *value, const unsigned *, unsigned lanes, uint64_t *result)       \
            __attribute__((no_sanitize("thread"))) {                                                                   \
            T a = sim::from_bits<T>(value[__builtin_ctz(lanes)]);                                                      \
            for (unsigned left = lanes & (lanes - 1); left; left &= left - 1) {                                        \
                const T b = sim::from_bits<T>(value[__builtin_ctz(left)]);                                             \
                a = (expression);                                                                                      \
            }                                                                                                          \
            for (int i = 0; i < 32; i++) result[i] = sim::to_bits(a);                                                  \
        };                                                                                                             \
        return sim::from_bits<T>(sim::warp_op(mask, sim::to_bits(v), 0, fn, line, file));                              \
    }
SIM_REDUCE(__reduce_add_sync, unsigned, a + b)
SIM_REDUCE(__reduce_add_sync, int, (int)((unsigned)a + (unsigned)b))
SIM_REDUCE(__reduce_max_sync, unsigned, a > b ? a : b)
SIM_REDUCE(__reduce_max_sync, int, a > b ? a : b)
SIM_REDUCE(__reduce_min_sync, unsigned, a < b ? a : b)
SIM_REDUCE(__reduce_min_sync, int, a < b ? a : b)
SIM_REDUCE(__reduce_or_sync, unsigned, a | b)
SIM_REDUCE(__reduce_and_sync, unsigned, a &b)
SIM_REDUCE(__reduce_xor_sync, unsigned, a ^ b)
#undef SIM_REDUCE

// Which lanes happen to run together is no property of a program.
unsigned __activemask() __attribute__((error("__activemask() means nothing here: pass explicit masks")));
