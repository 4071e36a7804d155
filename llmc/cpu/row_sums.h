// Sums over the rows of a tensor in a fixed order, for the gradients of the weights of norms. Each
// block of rows adds into vectors of its own, fp32 in the workspace, and these are added in the
// order of the blocks. Blocks depend only on the number of rows, so the bits do not depend on the
// number of threads.
#pragma once
#include "llmc/base/arithmetic.h"
#include "llmc/cpu/simd.h"

// At least 32 rows, so that clearing and adding a block's vectors costs little compared with its
// rows; at most 256 blocks, so that the workspace does not grow with the batch.
enum { MIN_BLOCK_ROWS = 32, MAX_BLOCKS = 256 };

static inline int64_t rows_of_block(int64_t N) {
    return max_i64(ceil_div(N, MAX_BLOCKS), MIN_BLOCK_ROWS);
}
static inline int64_t blocks_of_rows(int64_t N) {
    return min_i64(ceil_div(N, MIN_BLOCK_ROWS), MAX_BLOCKS);
}

// Elements i .. i + k - 1 of the gradient = or += the sum of the blocks' vectors at `partial`,
// which are `stride` apart.
static ALWAYS_INLINE void add_blocks(Gradient gradient, int64_t i, int k, const float *partial,
                                     int64_t blocks, int64_t stride) {
    V sum = vzero();
    for (int64_t b = 0; b < blocks; b++) sum += vload_f32(partial + b * stride);
    WITH_DTYPE(G, gradient.to.dtype, {
        if (gradient.add) sum += vload_first(k, gradient.to.data, i, G);
        vstore_first(k, gradient.to.data, i, sum, G);
    });
}
