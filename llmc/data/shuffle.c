// The order of the data as a pure function: a keyed permutation of [0, n) and the endless stream of epochs built on it.
// Owns nothing, keeps nothing. The numbers are part of the format of a run: a checkpoint stores only a position, so a
// change here makes resumed runs read other data (test_shuffle pins some values).
#include "llmc/data/shuffle.h"

#include "llmc/base/error.h"
#include "llmc/base/rng.h"

// Four rounds are enough for large n (Luby, Rackoff, 1988), but with the one or two bits of a half that a small n has,
// four or six leave some orders visibly more likely (chi-square in test_shuffle); eight do not.
enum { ROUNDS = 8 };

// The finaliser of SplitMix64: every bit of z moves about half of the bits of the result. Philox is the project's
// generator, but ten of its rounds inside every Feistel round would cost as much as reading the window.
static uint64_t mix64(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

int64_t shuffle_permute(int64_t i, int64_t n, uint64_t key) {
    REQUIRE(n >= 1 && n < (int64_t)1 << 62 && i >= 0 && i < n, "shuffle_permute: %lld of %lld", (long long)i,
            (long long)n);
    int half = 1; // bits of one half: the network permutes [0, 4^half), at most four times n (n = 1 apart)
    while (n > (int64_t)1 << (2 * half)) half++;
    const uint64_t mask = ((uint64_t)1 << half) - 1;
    uint64_t round_key[ROUNDS];
    for (uint64_t r = 0; r < ROUNDS; r++) round_key[r] = mix64(key + (r + 1) * 0x9E3779B97F4A7C15u);
    uint64_t x = (uint64_t)i;
    do { // walks the cycle of i until it is inside again: at most four turns on average
        uint64_t left = x >> half, right = x & mask;
        for (int r = 0; r < ROUNDS; r++) {
            uint64_t next = left ^ (mix64(right + round_key[r]) & mask);
            left = right, right = next;
        }
        x = left << half | right;
    } while (x >= (uint64_t)n);
    return (int64_t)x;
}

int64_t shuffle_window(int64_t p, int64_t n, uint64_t seed) {
    Philox key = philox(seed, STREAM_SHUFFLE, (uint64_t)(p / n));
    return shuffle_permute(p % n, n, (uint64_t)key.v[1] << 32 | key.v[0]);
}
