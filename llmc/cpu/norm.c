// The norms: LayerNorm and RMSNorm, forward and backward. RMSNorm is LayerNorm without a mean and a
// bias: one code, compiled for both.
//
// A row belongs to one task: it is read from memory once and stays in the L1 cache for the
// following passes. The gradients of weight and bias, and din, are summed over all rows in blocks
// (row_sums.h).
#include "llmc/base/arithmetic.h"
#include "llmc/cpu/cpu.h"
#include "llmc/cpu/row_sums.h"
#include "llmc/cpu/simd.h"

// A sum over a row waits for the latency of each addition. With 16 lanes that is no longer than the
// row takes from memory; narrower vectors add to four sums in turn.
enum { CHAINS = LANES < 16 ? 4 : 1 };

// EACH_LANES over i, in which c = 0, 1, .. CHAINS - 1 in turn is the sum to add to, and 0 for what
// remains.
#define EACH_CHAIN(c, i, k, n, ...)                                                                \
    do {                                                                                           \
        int64_t whole_ = 0;                                                                        \
        for (; CHAINS > 1 && whole_ + CHAINS * LANES <= (n); whole_ += CHAINS * LANES)             \
            for (int c = 0; c < CHAINS; c++) {                                                     \
                const int64_t i = whole_ + c * LANES;                                              \
                const int k = LANES;                                                               \
                __VA_ARGS__;                                                                       \
            }                                                                                      \
        EACH_LANES(left_, k, (n)-whole_, {                                                         \
            const int c = 0;                                                                       \
            const int64_t i = whole_ + left_;                                                      \
            __VA_ARGS__;                                                                           \
        });                                                                                        \
    } while (0)

static ALWAYS_INLINE V sum_of_chains(const V sum[CHAINS]) {
    enum { STEP = CHAINS > 1 }; // keeps the indices within the array
    if (CHAINS == 1) return sum[0];
    return (sum[0] + sum[STEP]) + (sum[2 * STEP] + sum[3 * STEP]);
}

// Runs the statement with the constant `centered`: whether there is a mean.
#define WITH_MEAN(mean, ...)                                                                       \
    do {                                                                                           \
        if (mean) {                                                                                \
            const bool centered = true;                                                            \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            const bool centered = false;                                                           \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)

// ----------------------------------------------------------------------------------------- forward

typedef struct {
    void *out;
    const void *in, *weight, *bias;
    float *mean, *rstd;
    int64_t C;
    float eps;
} NormForward;

static ALWAYS_INLINE void norm_forward_row(const NormForward *a, int64_t row, bool centered,
                                           DType E) {
    const int64_t C = a->C, first = row * C;
    const void *x = a->in, *w = a->weight, *b = a->bias;
    void *y = a->out;
    V sum[CHAINS] = {{0}}, sum_squares[CHAINS] = {{0}}, mean = vzero();

    if (centered) {
        EACH_CHAIN(c, i, k, C, sum[c] += vload_first(k, x, first + i, E));
        mean = vsplat(vsum(sum_of_chains(sum)) / (float)C);
        a->mean[row] = mean[0];
    }

    EACH_CHAIN(c, i, k, C, {
        V deviation = vload_first(k, x, first + i, E);
        if (centered) deviation = vfirst(k, deviation - mean, vzero());
        sum_squares[c] = vfma(deviation, deviation, sum_squares[c]);
    });

    const V rstd = 1.0f / vsqrt(vsplat(vsum(sum_of_chains(sum_squares)) / (float)C + a->eps));
    EACH_LANES(i, k, C, {
        V normalized = vload_first(k, x, first + i, E);
        normalized = (centered ? normalized - mean : normalized) * rstd;
        const V scale = vload_first(k, w, i, E);
        vstore_first(
            k, y, first + i,
            centered ? vfma(normalized, scale, vload_first(k, b, i, E)) : normalized * scale, E);
    });

    a->rstd[row] = rstd[0];
}

void backend_layernorm_forward(Tensor out, Tensor mean, Tensor rstd, Tensor in, Tensor weight,
                               Tensor bias, float eps) {
    const int64_t C = tensor_numel(weight), N = tensor_numel(in) / C;
    const NormForward a = {out.data, in.data, weight.data, bias.data, mean.data, rstd.data, C, eps};
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < N; row++)
        WITH_MEAN(a.mean, WITH_DTYPE(E, in.dtype, norm_forward_row(&a, row, centered, E)));
}

void backend_rmsnorm_forward(Tensor out, Tensor rstd, Tensor in, Tensor weight, float eps) {
    backend_layernorm_forward(out, tensor_none(), rstd, in, weight, tensor_none(), eps);
}

// ---------------------------------------------------------------------------------------- backward

enum { OF_DWEIGHT, OF_DBIAS, OF_DIN, NUM_SUMS }; // vectors of a block

static int64_t layernorm_bytes(int64_t blocks, int64_t C) {
    return blocks * NUM_SUMS * round_up(C, LANES) * (int64_t)sizeof(float);
}

int64_t cpu_norm_workspace(OpsShape shape) {
    return layernorm_bytes(blocks_of_rows(shape.B * shape.T), shape.C);
}

typedef struct {
    void *din;
    const void *dout, *in, *weight;
    const float *mean, *rstd;
    int64_t N, C;
    bool add_residual, sums_din;
} NormBackward;

// din of one row; its terms of dweight, dbias and the sum of din are added to sums (3, padded),
// whole vectors.
static ALWAYS_INLINE void norm_backward_row(const NormBackward *a, int64_t row, float *sums,
                                            int64_t padded, bool centered, DType E) {
    float *dweight = sums + OF_DWEIGHT * padded, *dbias = sums + OF_DBIAS * padded,
          *of_din = sums + OF_DIN * padded;
    const int64_t C = a->C, first = row * C;
    const V mean = centered ? vsplat(a->mean[row]) : vzero(), rstd = vsplat(a->rstd[row]);
    V sum_dnorm = vzero(), sum_dnorm_xhat = vzero();
    EACH_LANES(i, k, C, {
        // 0 beyond the row, and so is everything computed from it
        V dout = vload_first(k, a->dout, first + i, E);
        V xhat = (vload_first(k, a->in, first + i, E) - mean) * rstd;
        V dnorm = dout * vload_first(k, a->weight, i, E);
        if (centered) sum_dnorm += dnorm;
        sum_dnorm_xhat = vfma(dnorm, xhat, sum_dnorm_xhat);
        vstore_f32(dweight + i, vfma(dout, xhat, vload_f32(dweight + i)));
        if (centered) vstore_f32(dbias + i, vload_f32(dbias + i) + dout);
    });
    const V mean_dnorm = centered ? vsplat(vsum(sum_dnorm) / (float)C) : vzero();
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

void backend_layernorm_backward(Gradient din, Gradient dweight, Gradient dbias, Gradient din_sum,
                                Tensor dout, Tensor in, Tensor mean, Tensor rstd, Tensor weight) {
    const int64_t C = tensor_numel(weight), n = tensor_numel(in), N = n / C;
    const NormBackward a = {din.to.data, dout.data, in.data, weight.data, mean.data,
                            rstd.data,   N,         C,       din.add,     din_sum.to.data != NULL};
    const int64_t rows = rows_of_block(N), blocks = ceil_div(N, rows), padded = round_up(C, LANES);
    const Gradient gradients[NUM_SUMS] = {
        [OF_DWEIGHT] = dweight, [OF_DBIAS] = dbias, [OF_DIN] = din_sum};
    // (blocks, 3, padded)
    float *partial = cpu_scratch("layernorm_backward", layernorm_bytes(blocks, C));
#pragma omp parallel
    {
#pragma omp for schedule(static)
        for (int64_t b = 0; b < blocks; b++) {
            const int64_t begin = b * rows, end = min_i64(begin + rows, N);
            float *sums = partial + b * NUM_SUMS * padded;
            memset(sums, 0, (size_t)(NUM_SUMS * padded) * sizeof *sums);
            WITH_MEAN(a.mean, WITH_DTYPE(E, in.dtype, {
                          for (int64_t row = begin; row < end; row++)
                              norm_backward_row(&a, row, sums, padded, centered, E);
                      }));
        }
#pragma omp for schedule(static)
        for (int64_t i = 0; i < C; i += LANES)
            for (int s = 0; s < NUM_SUMS; s++)
                if (gradients[s].to.data)
                    add_blocks(gradients[s], i, lanes(C - i), partial + s * padded + i, blocks,
                               NUM_SUMS * padded);
    }
}

void backend_rmsnorm_backward(Gradient din, Gradient dweight, Gradient din_sum, Tensor dout,
                              Tensor in, Tensor rstd, Tensor weight) {
    backend_layernorm_backward(din, dweight, gradient_none(), din_sum, dout, in, tensor_none(),
                               rstd, weight);
}
