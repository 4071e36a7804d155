// --advise: which sizes of a model suit a GPU. NVIDIA, "Matrix Multiplication Background User's Guide": a matmul is
// computed in tiles, one on each multiprocessor at a time. A tile that reaches beyond the result costs as much as a
// full one, and so does a last wave that is nearly empty. Anthony et al., "The Case for Co-Designing Model
// Architectures with Hardware", 2024, has the consequences for the sizes of transformers.
#pragma once
#include "llmc/plan/plan.h"

#include <stdio.h>

typedef struct {
    int rows, cols;    // of a tile
    int64_t tiles;     // of the result; those at its edges may reach beyond it
    int splits;        // parts of K, whose sums are added afterwards: each part has all tiles
    int64_t waves;     // tiles x splits on so many multiprocessors, rounded up
    double last_wave;  // the part of the multiprocessors that the last wave keeps busy
    double load_share; // assumed: by how many elements rows are aligned
    double share;      // of the rate of the largest tiles in full waves: what the result is of the tiles, the tiles of
                       // the places in the waves, what smaller tiles are assumed to lose, and load_share
} Tiling;
// The tile and splits, of those that cuBLAS has, with which this matmul takes the least time on this GPU.
Tiling advise_tiling(const GpuSpec *gpu, DType dtype, const MatmulShape *shape);
// Elements by which n is aligned, at most 64: the largest power of two that divides it.
int advise_alignment(int64_t n);

// Prints for each GPU of the request how the matmuls of a step fill it and which changes nearby would gain most; or
// with d_ff sizes of feed-forward layers near 4 C. False and a message when it cannot be.
bool advise_print(FILE *out, const PlanRequest *request, bool d_ff, Error *err);
