// The norms: LayerNorm forward and backward.
//
// A row belongs to one task: it is read from memory once and stays in the L1 cache for the following passes.
// The gradients of weight and bias, and din, are summed over all rows: each block of rows adds into its own three fp32
// vectors in the workspace, and these are added in the order of the blocks. Blocks depend only on the number of rows,
// so the bits do not depend on the number of threads.
#include "llmc/base/arithmetic.h"
#include "llmc/cpu/cpu.h"
#include "llmc/cpu/simd.h"

#define EPSILON 1e-5f

// A sum over a row waits for the latency of each addition. With 16 lanes that is no longer than the row takes from
// memory; narrower vectors add to four sums in turn.
enum { CHAINS = LANES < 16 ? 4 : 1 };

// EACH_LANES over i, in which c = 0, 1, .. CHAINS - 1 in turn is the sum to add to, and 0 for what remains.
#define EACH_CHAIN(c, i, k, n, ...)                                                                                    \
    do {                                                                                                               \
        int64_t whole_ = 0;                                                                                            \
        for (; CHAINS > 1 && whole_ + CHAINS * LANES <= (n); whole_ += CHAINS * LANES)                                 \
            for (int c = 0; c < CHAINS; c++) {                                                                         \
                const int64_t i = whole_ + c * LANES;                                                                  \
                const int k = LANES;                                                                                   \
                __VA_ARGS__;                                                                                           \
            }                                                                                                          \
        EACH_LANES(left_, k, (n)-whole_, {                                                                             \
            const int c = 0;                                                                                           \
            const int64_t i = whole_ + left_;                                                                          \
            __VA_ARGS__;                                                                                               \
        });                                                                                                            \
    } while (0)

static ALWAYS_INLINE V sum_of_chains(const V sum[CHAINS]) {
    return CHAINS == 1 ? sum[0] : (sum[0] + sum[CHAINS > 1]) + (sum[CHAINS > 1 ? 2 : 0] + sum[CHAINS > 1 ? 3 : 0]);
}

// ------------------------------------------------------------------------------------------------------------- forward

void backend_layernorm_forward(Tensor out, Tensor means, Tensor rstds, Tensor in, Tensor weight, Tensor bias) {
    const int64_t C = tensor_numel(weight), n = tensor_numel(in), N = n / C;
    const void *x = in.data, *w = weight.data, *b = bias.data;
    void *y = out.data;
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < N; row++)
        WITH_DTYPE(E, in.dtype, {
            const int64_t first = row * C;
            V sum[CHAINS] = {{0}}, sum_squares[CHAINS] = {{0}};
            EACH_CHAIN(c, i, k, C, sum[c] += vload_first(k, x, first + i, E));
            V mean = vsplat(vsum(sum_of_chains(sum)) / (float)C);
            EACH_CHAIN(c, i, k, C, {
                V centered = vfirst(k, vload_first(k, x, first + i, E) - mean, vzero());
                sum_squares[c] = vfma(centered, centered, sum_squares[c]);
            });
            V rstd = 1.0f / vsqrt(vsplat(vsum(sum_of_chains(sum_squares)) / (float)C + EPSILON));
            EACH_LANES(i, k, C, {
                V normalized = (vload_first(k, x, first + i, E) - mean) * rstd;
                V scaled = vfma(normalized, vload_first(k, w, i, E), vload_first(k, b, i, E));
                vstore_first(k, y, first + i, scaled, E);
            });
            ((float *)means.data)[row] = mean[0];
            ((float *)rstds.data)[row] = rstd[0];
        });
}

// ------------------------------------------------------------------------------------------------------------ backward

// At least 32 rows, so that clearing and adding a block's vectors costs little compared with its rows; at most 256
// blocks, so that the workspace does not grow with the batch.
enum { MIN_BLOCK_ROWS = 32, MAX_BLOCKS = 256 };
enum { OF_DWEIGHT, OF_DBIAS, OF_DIN, NUM_SUMS }; // vectors of a block

static int64_t layernorm_bytes(int64_t blocks, int64_t C) {
    return blocks * NUM_SUMS * round_up(C, LANES) * (int64_t)sizeof(float);
}

int64_t cpu_norm_workspace(OpsShape shape) {
    return layernorm_bytes(min_i64(ceil_div(shape.B * shape.T, MIN_BLOCK_ROWS), MAX_BLOCKS), shape.C);
}

typedef struct {
    void *din;
    const void *dout, *in, *weight;
    const float *mean, *rstd;
    int64_t N, C;
    bool add_residual, sums_din;
} LayerNormBackward;

// din of one row; its terms of dweight, dbias and the sum of din are added to sums (3, padded), whole vectors.
static ALWAYS_INLINE void layernorm_backward_row(const LayerNormBackward *a, int64_t row, float *sums, int64_t padded,
                                                 DType E) {
    float *dweight = sums + OF_DWEIGHT * padded, *dbias = sums + OF_DBIAS * padded, *of_din = sums + OF_DIN * padded;
    const int64_t C = a->C, first = row * C;
    const V mean = vsplat(a->mean[row]), rstd = vsplat(a->rstd[row]);
    V sum_dnorm = vzero(), sum_dnorm_xhat = vzero();
    EACH_LANES(i, k, C, {
        V dout = vload_first(k, a->dout, first + i, E); // 0 beyond the row, and so is everything computed from it
        V xhat = (vload_first(k, a->in, first + i, E) - mean) * rstd;
        V dnorm = dout * vload_first(k, a->weight, i, E);
        sum_dnorm += dnorm;
        sum_dnorm_xhat = vfma(dnorm, xhat, sum_dnorm_xhat);
        vstore_f32(dweight + i, vfma(dout, xhat, vload_f32(dweight + i)));
        vstore_f32(dbias + i, vload_f32(dbias + i) + dout);
    });
    const V mean_dnorm = vsplat(vsum(sum_dnorm) / (float)C);
    const V mean_dnorm_xhat = vsplat(vsum(sum_dnorm_xhat) / (float)C);
    EACH_LANES(i, k, C, {
        V xhat = (vload_first(k, a->in, first + i, E) - mean) * rstd;
        V dnorm = vload_first(k, a->dout, first + i, E) * vload_first(k, a->weight, i, E);
        V din = (dnorm - mean_dnorm - xhat * mean_dnorm_xhat) * rstd;
        if (a->add_residual) din += vload_first(k, a->din, first + i, E);
        vstore_first(k, a->din, first + i, din, E);
        if (a->sums_din) vstore_f32(of_din + i, vload_f32(of_din + i) + vfirst(k, din, vzero()));
    });
}

void backend_layernorm_backward(Tensor din, Tensor dweight, Tensor dbias, Tensor din_sum, Tensor dout, Tensor in,
                                Tensor mean, Tensor rstd, Tensor weight, bool add_residual, bool accumulate,
                                bool accumulate_sum) {
    const int64_t C = tensor_numel(weight), n = tensor_numel(in), N = n / C;
    const LayerNormBackward a = {din.data,  dout.data, in.data, weight.data,  mean.data,
                                 rstd.data, N,         C,       add_residual, din_sum.data != NULL};
    const int64_t rows = max_i64(ceil_div(N, MAX_BLOCKS), MIN_BLOCK_ROWS);
    const int64_t blocks = ceil_div(N, rows), padded = round_up(C, LANES);
    const struct {
        Tensor total; // may be absent
        bool accumulate;
    } gradients[NUM_SUMS] = {
        [OF_DWEIGHT] = {dweight, accumulate}, [OF_DBIAS] = {dbias, accumulate}, [OF_DIN] = {din_sum, accumulate_sum}};
    float *partial = cpu_scratch("layernorm_backward", layernorm_bytes(blocks, C)); // (blocks, 3, padded)
#pragma omp parallel
    {
#pragma omp for schedule(static)
        for (int64_t b = 0; b < blocks; b++) {
            const int64_t begin = b * rows, end = N - begin < rows ? N : begin + rows;
            float *sums = partial + b * NUM_SUMS * padded;
            memset(sums, 0, (size_t)(NUM_SUMS * padded) * sizeof *sums);
            WITH_DTYPE(E, in.dtype, {
                for (int64_t row = begin; row < end; row++) layernorm_backward_row(&a, row, sums, padded, E);
            });
        }
        // Gradient s = or += the sum of the blocks' vectors.
#pragma omp for schedule(static)
        for (int64_t i = 0; i < C; i += LANES) {
            const int k = lanes(C - i);
            for (int s = 0; s < NUM_SUMS; s++) {
                const Tensor total = gradients[s].total;
                if (!total.data) continue;
                V sum = vzero();
                for (int64_t b = 0; b < blocks; b++) sum += vload_f32(partial + (b * NUM_SUMS + s) * padded + i);
                WITH_DTYPE(G, total.dtype, {
                    if (gradients[s].accumulate) sum += vload_first(k, total.data, i, G);
                    vstore_first(k, total.data, i, sum, G);
                });
            }
        }
    }
}
