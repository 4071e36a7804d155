// Data order without state: which window a run reads at position p is a pure function of (seed, p), so resume needs
// only the position, and the order does not depend on how a batch is cut into micro-batches.
#pragma once
#include <stdint.h>

// A pseudo-random permutation of [0, n) for this key: an 8-round Feistel network over the next power of four,
// walked until it lands inside (Black, Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). 1 <= n < 2^62.
int64_t shuffle_permute(int64_t i, int64_t n, uint64_t key);

// The window at position p of an endless stream over n windows: every epoch is a new permutation.
int64_t shuffle_window(int64_t p, int64_t n, uint64_t seed);
