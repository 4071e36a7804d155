// See tiling.h. Only the arithmetic of tiles is certain; every rate is an assumption.
#include "llmc/plan/tiling.h"

#include "llmc/base/arithmetic.h"
#include "llmc/model/gpu_sizes.h"

// Tiles of cuBLAS, of most work first, and the rate that each is assumed to reach, as a part of the
// first's: a tile of m x n loads m + n elements for m n products, so that smaller ones depend on
// the L2 cache (NVIDIA's guide, 2.3).
static const struct {
    int rows, cols;
    double rate;
} TILES[] = {{256, 128, 1.0}, {128, 256, 1.0}, {128, 128, 0.95},
             {128, 64, 0.8},  {64, 128, 0.8},  {64, 64, 0.6}};
enum { NUM_TILES = sizeof TILES / sizeof *TILES, MAX_ALIGNMENT = 64 };

// More parts of K must gain this much: their sums pass through memory once more. None is shorter
// than MIN_SPLIT_K.
static const double SPLIT_GAIN = 1.02, EQUAL = 1 + 1e-9;
enum { MAX_SPLITS = 8, MIN_SPLIT_K = 512 };

int tiling_alignment(int64_t n) {
    int a = 1;
    while (a < MAX_ALIGNMENT && n % (2 * a) == 0) a *= 2;
    return a;
}

// Rows that begin on a cache line of 128 bytes load at full rate; those that only begin on 16 bytes
// touch more sectors; below that a thread loads 8, 4 or 2 bytes at a time (the guide, 2.2).
// Assumed; the last one after nanoGPT, whose step became a quarter faster when a vocabulary of
// 50257 was padded to 50304: the head, 30% of the FLOP, ran at half its rate.
static const struct {
    size_t bytes;
    double share;
} LOADS[] = {{128, 1}, {32, 0.97}, {16, 0.93}, {8, 0.75}, {4, 0.6}, {0, 0.5}};

Tiling tiling_best(const GpuSpec *gpu, DType dtype, const MatmulShape *s) {
    const int64_t workspace = cuda_size_matmul((OpsShape){.C = 1 << 16}, gpu->compute_capability);
    Tiling best = {0};
    for (int splits = 1; splits <= MAX_SPLITS; splits++) {
        const bool fits =
            splits == 1 || (s->K / splits >= MIN_SPLIT_K && splits * s->M * s->N * 4 <= workspace);
        for (int tile = 0; tile < NUM_TILES && fits; tile++) {
            Tiling t = {.rows = TILES[tile].rows, .cols = TILES[tile].cols, .splits = splits};

            t.tiles = ceil_div(s->M, t.rows) * ceil_div(s->N, t.cols);
            const int64_t all = t.tiles * splits, last = all % gpu->num_sms;
            t.waves = ceil_div(all, gpu->num_sms);
            t.last_wave = 1;
            if (last > 0) t.last_wave = (double)last / gpu->num_sms;
            t.share = TILES[tile].rate * (double)(s->M * s->N) /
                      (double)(t.tiles * t.rows * t.cols) * (double)all /
                      (double)(t.waves * gpu->num_sms);

            const double gain = splits > best.splits ? SPLIT_GAIN : EQUAL;
            if (t.share > best.share * gain) best = t;
        }
    }

    const int64_t rows = s->sums_tokens ? s->M : s->K;
    const size_t bytes =
        (size_t)min_i64(tiling_alignment(rows), tiling_alignment(s->N)) * dtype_size(dtype);

    int load = 0;
    while (bytes < LOADS[load].bytes) load++;
    best.load_share = LOADS[load].share;
    best.share *= best.load_share;
    return best;
}
