// How a matmul fills a GPU. NVIDIA, "Matrix Multiplication Background User's Guide": a matmul is
// computed in tiles, one on each multiprocessor at a time. A tile that reaches beyond the result
// costs as much as a full one, and so does a last wave that is nearly empty.
#pragma once
#include "llmc/plan/plan_predict.h"

typedef struct {
    int rows, cols;    // of a tile
    int64_t tiles;     // of the result; those at its edges may reach beyond it
    int splits;        // parts of K, whose sums are added afterwards: each part has all tiles
    int64_t waves;     // tiles x splits over the multiprocessors, rounded up
    double last_wave;  // the part of the multiprocessors that the last wave keeps busy
    double load_share; // assumed: by how many elements rows are aligned
    double share; // of the rate of the largest tiles in full waves: the result's part of the tiles,
                  // the tiles' part of the waves, the assumed rate of smaller tiles, and load_share
} Tiling;
// The tile and splits, of those that cuBLAS has, with which this matmul takes the least time on
// this GPU.
Tiling tiling_best(const GpuSpec *gpu, DType dtype, const MatmulShape *shape);
// Elements by which n is aligned, at most 64: the largest power of two that divides it.
int tiling_alignment(int64_t n);
