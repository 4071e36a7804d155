// matmul_forward for a few rows, as decoding has them: out (M,OC) = in (M,IC) @ weight^T (IC,OC) + bias.
//
// Every weight serves M products only, so what counts is to read it once, in the order in which it lies in memory, at
// the speed of memory: nothing is packed, `in` stays in the first-level cache. A task has 16 rows of the weight; 4 of
// them meet 4 rows of `in` at a time. Each product is a vector of sums along the row, and 16 such vectors make 16
// neighbouring elements of out. An element is summed in the same order whatever M and the number of threads are.
#include "llmc/cpu/few_rows.h"

#include "llmc/cpu/cpu.h"
#include "llmc/cpu/tile_matmul.h"

// 4 x 4 sums and what they are made of stay in 32 registers; 4 rows of the weight cover the latency of a sum at M = 1.
enum { TILE_WEIGHTS = 4, TILE_ROWS = 4 };

typedef struct {
    void *out;
    const void *in, *weight, *bias; // bias may be NULL
    int64_t M, OC, IC;
} Product;

// Rows [row, row + rows) of in, rows [column, column + weights) of the weight.
typedef struct {
    int64_t row, column;
    int rows, weights;
} Tile;

// Nothing happens behind the end of memory.
static ALWAYS_INLINE void prefetch(const void *p, int64_t i, DType E) {
    __builtin_prefetch((const char *)p + i * (E == DTYPE_BF16 ? 2 : 4));
}

// sums += the products of elements [begin, end) of the rows, 16 at a time, or 32 where they are pairs of bf16.
static ALWAYS_INLINE void add_products(V sums[TILE_ROWS][TILE_WEIGHTS], const Product *p, Tile t, int64_t begin,
                                       int64_t end, bool pairs, DType E) {
    const uint16_t *in = p->in, *weight = p->weight;
    for (int64_t i = begin; i < end; i += pairs ? 2 * LANES : LANES) {
        const int k = pairs ? LANES : lanes(end - i);
        VU a[TILE_ROWS];
#pragma GCC unroll 4
        for (int r = 0; r < t.rows; r++) {
            const int64_t at = (t.row + r) * p->IC + i;
            a[r] = pairs ? vload_bits(in + at) : (VU)vload_first(k, in, at, E);
        }
#pragma GCC unroll 4
        for (int w = 0; w < t.weights; w++) {
            const int64_t at = (t.column + w) * p->IC + i;
            // What the next tile reads: no hardware prefetcher runs ahead of four short streams while rows of `in`
            // repeat.
            if (t.row == 0) prefetch(p->weight, at + TILE_WEIGHTS * p->IC, E);
            const VU b = pairs ? vload_bits(weight + at) : (VU)vload_first(k, weight, at, E);
#pragma GCC unroll 4
            for (int r = 0; r < t.rows; r++)
                sums[r][w] = pairs ? vdot_bf16(sums[r][w], a[r], b) : vfma((V)a[r], (V)b, sums[r][w]);
        }
    }
}

// all[r][c] = the sums of row r of in with row (first + c) of the weight.
static ALWAYS_INLINE void tile(V all[FEW_ROWS][LANES], const Product *p, Tile t, int64_t first, DType E) {
    V sums[TILE_ROWS][TILE_WEIGHTS] = {{{0}}};
    // Pairs of bf16 are read as words, which begin at even elements.
    const int64_t paired = E == DTYPE_BF16 && p->IC % 2 == 0 ? p->IC / (2 * LANES) * (2 * LANES) : 0;
    add_products(sums, p, t, 0, paired, true, E);
    add_products(sums, p, t, paired, p->IC, false, E);
    for (int r = 0; r < t.rows; r++)
        for (int w = 0; w < t.weights; w++) all[t.row + r][t.column - first + w] = sums[r][w];
}

// All rows of in, in tiles whose sizes the compiler knows.
static ALWAYS_INLINE void tile_rows(V all[FEW_ROWS][LANES], const Product *p, int64_t column, int weights,
                                    int64_t first, DType E) {
    int64_t row = 0;
    for (; row + TILE_ROWS <= p->M; row += TILE_ROWS) tile(all, p, (Tile){row, column, TILE_ROWS, weights}, first, E);
    if (p->M - row == 3) tile(all, p, (Tile){row, column, 3, weights}, first, E);
    if (p->M - row == 2) tile(all, p, (Tile){row, column, 2, weights}, first, E);
    if (p->M - row == 1) tile(all, p, (Tile){row, column, 1, weights}, first, E);
}

// Lane i of the result: the sum over the lanes of x[i].
static ALWAYS_INLINE V sums_of_lanes(const V x[LANES]) {
    VU t[LANES];
    for (int i = 0; i < LANES; i++) t[i] = (VU)x[i];
    transpose_16x16(t);
    for (int half = LANES / 2; half >= 1; half /= 2)
        for (int i = 0; i < half; i++) t[i] = (VU)((V)t[i] + (V)t[i + half]);
    return (V)t[0];
}

// Elements [first, first + 16) of every row of out, as far as there are any.
static ALWAYS_INLINE void task(const Product *p, int64_t first, DType E) {
    V all[FEW_ROWS][LANES];
    const int used = lanes(p->OC - first);
    int c = 0;
    for (; c + TILE_WEIGHTS <= used; c += TILE_WEIGHTS) tile_rows(all, p, first + c, TILE_WEIGHTS, first, E);
    for (; c < used; c++) tile_rows(all, p, first + c, 1, first, E);
    const V bias = p->bias ? vload_first(used, p->bias, first, E) : vzero();
    for (int64_t r = 0; r < p->M; r++) {
        for (int i = used; i < LANES; i++) all[r][i] = vzero();
        vstore_first(used, p->out, r * p->OC + first, sums_of_lanes(all[r]) + bias, E);
    }
}

void few_rows_matmul(Tensor out, Tensor in, Tensor weight, Tensor bias) {
    const int64_t IC = tensor_cols(weight), OC = tensor_rows(weight);
    const Product p = {out.data, in.data, weight.data, bias.data, tensor_numel(in) / IC, OC, IC};
    REQUIRE(p.M <= FEW_ROWS, "few_rows_matmul: %lld rows", (long long)p.M);
#pragma omp parallel for schedule(static) num_threads(cpu_threads())
    for (int64_t i = 0; i < OC; i += LANES) WITH_DTYPE(E, weight.dtype, task(&p, i, E));
}
