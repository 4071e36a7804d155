// Sums over all rows that a kernel makes on its way through them, one for each column: the
// gradients of the weights of norms, and of biases before them. Each block sums its rows in order,
// and the block that finishes last adds the blocks in order. The number of blocks must depend on
// the shape alone. Each kernel file that includes it has its own tickets.
#pragma once
#include "llmc/cuda/intrinsics.cuh"

// The sums, (C) each, one after another in the partial sums of a block.
enum { MAX_ROW_SUMS = LAYERNORM_SUMS };
typedef struct {
    void *to;
    DType dtype;
    bool add;
} RowSum;
typedef struct {
    RowSum of[MAX_ROW_SUMS];
    int count;
} RowSums;
static inline RowSum sum_into(Gradient g) { return {g.to.data, g.to.dtype, g.add}; }

// The block has written its partial sums, row blockIdx.x of partials (blocks, columns): the block
// of its group that finishes last adds the group's rows in order, into the first of them, and of
// these blocks the last adds the groups' in order. Adding all rows at once would leave one
// multiprocessor with megabytes to read; two levels leave it 0.1 MB.
enum { GROUP_BLOCKS = LAYERNORM_GROUP_BLOCKS, MAX_GROUPS = LAYERNORM_MAX_BLOCKS / GROUP_BLOCKS };
static __device__ unsigned tickets[MAX_GROUPS + 1]; // zero when a kernel begins and when it ends

template <int WIDTH>
static __device__ __forceinline__ void finish_row_sums(float *partials, const RowSums &sums,
                                                       int64_t C) {
    const int group = (int)blockIdx.x / GROUP_BLOCKS,
              groups = ((int)gridDim.x + GROUP_BLOCKS - 1) / GROUP_BLOCKS;
    const int in_group = min((int)GROUP_BLOCKS, (int)gridDim.x - group * GROUP_BLOCKS);
    const int64_t columns = sums.count * C;
    float *first = partials + (int64_t)group * GROUP_BLOCKS * columns, sum[WIDTH];
    if (!finishes_last(&tickets[group], in_group)) return;

    for (int64_t c = (int64_t)threadIdx.x * WIDTH; c < columns; c += (int64_t)blockDim.x * WIDTH) {
        add_rows<WIDTH>(sum, first + c, in_group, columns);
        store_vector(first + c, from_floats<float>(sum));
    }
    if (!finishes_last(&tickets[MAX_GROUPS], groups)) return;

    for (int64_t c = (int64_t)threadIdx.x * WIDTH; c < columns; c += (int64_t)blockDim.x * WIDTH) {
        add_rows<WIDTH>(sum, partials + c, groups, GROUP_BLOCKS * columns);
        for (int k = 0; k < WIDTH; k++) {
            const int64_t column = c + k;
#pragma unroll
            for (int s = 0; s < MAX_ROW_SUMS; s++)
                if (column >= s * C && column < (s + 1) * C)
                    put_gradient_of(sums.of[s].dtype, sums.of[s].to, column - s * C, sum[k],
                                    sums.of[s].add);
        }
    }
}
