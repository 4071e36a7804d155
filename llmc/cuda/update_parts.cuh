// The device side of update_table.h: which tensor a block works on, and which part of it.
#pragma once
#include "llmc/cuda/kernel.cuh"
#include "llmc/cuda/update_table.h"

// The entry that part first[0] + blockIdx.x belongs to: first[i] <= part < first[i + 1]. Each thread looks at a few.
// Contains a barrier.
static __device__ inline int entry_of_block(const int32_t *first, int n) {
    __shared__ int found[1];
    const int part = first[0] + (int)blockIdx.x;
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x) {
        const int begin = first[i], end = first[i + 1];
        if (begin <= part && part < end) found[0] = i;
    }
    __syncthreads();
    return found[0];
}

// The sum of partials[begin .. end) by one warp, in fp64, in every lane, in an order that depends on their number
// alone.
static __device__ inline double sum_of_parts(const float *partials, int begin, int end) {
    double sum = 0.0;
    for (int i = begin + (int)threadIdx.x; i < end; i += WARP) sum += (double)partials[i];
    for (int offset = WARP / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, offset);
    return sum;
}

// The number of this block's part within its entry.
static __device__ inline int part_of_block(const int32_t *first, int entry) {
    return first[0] + (int)blockIdx.x - first[entry];
}
