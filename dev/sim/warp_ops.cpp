// What the last lane of a meeting computes for all: shuffles, votes, matches, sums. Each gets the values and arguments
// of the 32 lanes, the mask of those that take part, and writes the result of each.
#include <cuda_runtime.h>

namespace sim {
static void sync(const uint64_t *, const unsigned *, unsigned, uint64_t *) {}

static void shuffle(const uint64_t *value, const unsigned *source, unsigned lanes, uint64_t *result) {
    for (unsigned left = lanes; left; left &= left - 1) {
        const int lane = __builtin_ctz(left);
        if (source[lane] > 31 || !(lanes >> source[lane] & 1))
            fatal("shuffle: lane %d reads lane %u, which does not take part (lanes %08x)", lane, source[lane], lanes);
        result[lane] = value[source[lane]];
    }
}

static void ballot(const uint64_t *value, const unsigned *, unsigned lanes, uint64_t *result) {
    uint64_t votes = 0;
    for (unsigned left = lanes; left; left &= left - 1) votes |= value[__builtin_ctz(left)] << __builtin_ctz(left);
    for (int lane = 0; lane < 32; lane++) result[lane] = votes;
}

static void match(const uint64_t *value, const unsigned *, unsigned lanes, uint64_t *result) {
    for (int lane = 0; lane < 32; lane++) {
        result[lane] = 0;
        for (int other = 0; other < 32; other++)
            if (lanes >> other & 1 && value[other] == value[lane]) result[lane] |= 1u << other;
    }
}

// The butterfly 16, 8, 4, 2, 1. Lanes >= offset would hold copies of the others.
template <class F> static inline void butterfly(const uint64_t *value, unsigned lanes, uint64_t *result, F f) {
    if (lanes != 0xffffffffu) fatal("warp reduction with inactive lanes (lanes %08x)", lanes);
    float v[32];
    for (int i = 0; i < 32; i++) v[i] = from_bits<float>(value[i]);
    for (int offset = 16; offset > 0; offset /= 2)
        for (int i = 0; i < offset; i++) v[i] = f(v[i], v[i + offset]);
    for (int i = 0; i < 32; i++) result[i] = to_bits(v[0]);
}
static void sum(const uint64_t *value, const unsigned *, unsigned lanes, uint64_t *result) {
    butterfly(value, lanes, result, [](float a, float b) { return a + b; });
}
static void maximum(const uint64_t *value, const unsigned *, unsigned lanes, uint64_t *result) {
    butterfly(value, lanes, result, [](float a, float b) { return fmaxf(a, b); });
}

const CompleteFn op_sync = sync, op_shuffle = shuffle, op_ballot = ballot, op_match = match, op_sum = sum,
                 op_max = maximum;
} // namespace sim
