// The linear layers: matrix products in cache-sized pieces, on top of oneDNN; products of a few
// rows, for decoding; bias gradients; and the ops, which call these.
#include "llmc/cpu/matmul.h"
#include "llmc/base/arithmetic.h"
#include "llmc/cpu/cpu.h"
#include "llmc/cpu/simd.h"
#include "llmc/cpu/tile_matmul.h"

#include <malloc.h>
#include <stdlib.h>

// ------------------------------------------------------------------ bf16 without bf16 instructions

// m, rows x cols, when it is fp32 at wide, with its unit stride in the same dimension.
static Matrix widened(float *wide, Matrix m, int64_t rows, int64_t cols) {
    if (m.col_stride == 1) return (Matrix){wide, DTYPE_FP32, cols, 1};
    return (Matrix){wide, DTYPE_FP32, 1, rows};
}

static Matrix widen_bf16(float *wide, Matrix m, int64_t rows, int64_t cols) {
    const bool by_rows = m.col_stride == 1;
    int64_t outer = cols, inner = rows, stride = m.col_stride;
    if (by_rows) {
        outer = rows;
        inner = cols;
        stride = m.row_stride;
    }
#pragma omp parallel for schedule(static)
    for (int64_t o = 0; o < outer; o++)
        EACH_LANES(i, k, inner,
                   vstore_first_f32(k, wide + o * inner + i,
                                    vload_first(k, m.data, o * stride + i, DTYPE_BF16)));
    return widened(wide, m, rows, cols);
}

// dst (rows, cols) = or += sum (rows, cols; contiguous) + bias.
static void finish_part(Matrix dst, const float *sum, int64_t rows, int64_t cols, const void *bias,
                        bool accumulate) {
    const int64_t stride = dst.row_stride;
    void *to = dst.data;
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; row++)
        WITH_DTYPE(E, dst.dtype, {
            for (int64_t j = 0; j < cols; j += LANES) {
                int k = lanes(cols - j);
                V x = vload_first_f32(k, sum + row * cols + j);
                if (bias) x += vload_first(k, bias, j, DTYPE_BF16);
                if (accumulate) x += vload_first(k, to, row * stride + j, E);
                vstore_first(k, to, row * stride + j, x, E);
            }
        });
}

// Through fp32 copies, in parts so large that widening and rounding cost little beside the product:
// at most these rows of a, columns of b and elements of depth at a time, 16.8 MB. A row of parts of
// a is widened once where K is one part, as in all forward passes of 124M. 124M at T = 256 with
// AVX2 on 2 threads of Zen 5, tokens/s: in parts of 256 x 256 x 256 180, in these 274 to 290, in
// fp32 293 to 295.
enum { WIDE_ROWS = 1024, WIDE_COLUMNS = 1536, WIDE_DEPTH = 1024 };

static int64_t wide_bytes(int64_t M, int64_t N, int64_t K) {
    const int64_t rows = min_i64(M, WIDE_ROWS), cols = min_i64(N, WIDE_COLUMNS),
                  depth = min_i64(K, WIDE_DEPTH);
    return round_up((rows * depth + depth * cols + rows * cols) * (int64_t)sizeof(float), 64);
}

static void gemm_widened(int64_t M, int64_t N, int64_t K, Matrix dst, Matrix a, Matrix b,
                         const uint16_t *bias, bool accumulate) {
    const int64_t rows = min_i64(M, WIDE_ROWS), cols = min_i64(N, WIDE_COLUMNS),
                  most = min_i64(K, WIDE_DEPTH);
    const int64_t bytes = wide_bytes(M, N, K),
                  left = cpu_backend.workspace_bytes - cpu_backend.workspace_used;
    char *base = cpu_backend.workspace + cpu_backend.workspace_used;
    void *own = NULL; // outside of ops: the measurement of speed, tests
    if (bytes <= left) {
        onednn_set_scratch(cpu_backend.onednn, base + bytes, left - bytes);
    } else {
        own = base = memalign(64, (size_t)bytes);
        REQUIRE_MEMORY(own, "%lld bytes for a matmul of bf16 in fp32", (long long)bytes);
    }
    float *wide_a = (float *)(void *)base, *wide_b = wide_a + rows * most,
          *sums = wide_b + most * cols;
    const bool in_place = dst.dtype == DTYPE_FP32 && !bias;
    for (int64_t i = 0; i < M; i += rows)
        for (int64_t j = 0; j < N; j += cols) {
            const int64_t m = min_i64(M - i, rows), n = min_i64(N - j, cols);
            const Matrix part = matrix_at(dst, i, j);
            Matrix sum = {sums, DTYPE_FP32, n, 1};
            if (in_place) sum = part;
            for (int64_t k = 0; k < K; k += most) {
                const int64_t depth = min_i64(K - k, most);
                Matrix left_part;
                if (j > 0 && K <= most) // it is there already
                    left_part = widened(wide_a, a, m, depth);
                else
                    left_part = widen_bf16(wide_a, matrix_at(a, i, k), m, depth);
                const Matrix right_part = widen_bf16(wide_b, matrix_at(b, k, j), depth, n);
                const bool adds = k > 0 || (in_place && accumulate);
                const bool done = onednn_matmul(cpu_backend.onednn, m, n, depth, sum, left_part,
                                                right_part, NULL, adds);
                REQUIRE(done, "oneDNN has no fp32 matmul for %lldx%lldx%lld", (long long)m,
                        (long long)n, (long long)depth);
            }
            const uint16_t *part_bias = bias;
            if (bias) part_bias += j;
            if (!in_place) finish_part(part, sums, m, n, part_bias, accumulate);
        }
    free(own);
}

// --------------------------------------------------------------------------- pieces for the caches

// n in equal pieces of at most `most`, a multiple of 64 elements: whole cache lines, and one shape
// for oneDNN (or two).
static int64_t piece_size(int64_t n, int64_t most) {
    if (n <= most) return n;
    return round_up(ceil_div(n, ceil_div(n, most)), 64);
}

// How large calls are split. oneDNN walks a large output in an order that leaves the caches when
// memory is slow or other data compete for them. Measured with 2 threads, bf16, C = 768, GFLOP/s
// in one call and in pieces:
//   weight gradients, pieces of 768 rows or, where they are wider than high, 1536 columns:
//     752..897 -> 896..939
//   the other products from 512 rows on, pieces of 1536 columns: 806..828 -> 897..901 in the slow
//     state of the memory, 940 -> 910 in the fast one; with 256 rows 820 -> 740, so not there.
// A piece that is narrower than its array costs oneDNN rows x columns fp32 sums of scratch per
// thread. Therefore pieces also have max 1024 rows, and calls are not split with more threads
// than were measured. With AMX they are whole: a step of 124M took 1.08 s in pieces and 0.85 s in
// whole calls (T = 256, 2 threads).
enum {
    GRADIENT_ROWS = 768,
    PIECE_COLUMNS = 1536,
    PIECE_ROWS = 1024,
    MIN_ROWS = 512,
    MAX_THREADS = 4
};

// Input gradients in fp32 with AVX-512 are sums over pieces of this depth. oneDNN 2.6 has two codes
// for fp32 there: brgemm for operands without gaps, and a gemm for parts of larger arrays. brgemm
// reads a weight that is not transposed where it lies, the deeper the slower on some processors
// (dev/bench/results/cpu_fp32_amd-epyc_2026-11-28.md). A piece of the depth is a part of a
// larger array. Zen 4, GFLOP/s of a thread: fc 105.6 -> 111.1, qkv 105.1 -> 110.6, fc in pieces of
// 768 108.0, with 4096 rows 106.6 -> 109.0. Products with transposed weights, which brgemm copies,
// gain nothing (attproj 106.5 -> 106.2, fcproj 108.0 -> 104.5).
enum { PIECE_DEPTH = 1536 };

static int64_t depth_piece(int64_t M, int64_t K, Matrix a, Matrix b, const void *bias) {
    const bool dense = a.row_stride == K && a.col_stride == 1 && b.col_stride == 1;
    if (LANES < 16 || a.dtype != DTYPE_FP32 || !dense || bias || M < MIN_ROWS) return K;
    return piece_size(K, PIECE_DEPTH);
}

// oneDNN 2.6: in bf16 the sums of the largest piece for every thread, and up to 0.2 MB each for
// packed operands. Other versions may take more; they get it from the heap.
int64_t cpu_gemm_workspace(OpsShape shape) {
    enum { PACKED_BYTES = 256 << 10 };
    int64_t N = shape.B * shape.T, widest = max_i64(shape.Vp, ops_widest(shape)), sums = 0;
    if (shape.dtype == DTYPE_BF16 && N >= MIN_ROWS && widest > PIECE_COLUMNS &&
        cpu_threads() <= MAX_THREADS)
        sums = min_i64(N, PIECE_ROWS) * PIECE_COLUMNS * (int64_t)sizeof(float);
    const int64_t longest = max_i64(N, widest);
    int64_t wide = 0;
    if (shape.dtype == DTYPE_BF16 && !onednn_has_bf16())
        wide = wide_bytes(longest, longest, longest);
    return (sums + PACKED_BYTES) * cpu_threads() + wide;
}

static void gemm_piece(int64_t M, int64_t N, int64_t K, Matrix dst, Matrix a, Matrix b, void *bias,
                       bool adds) {
    if (onednn_matmul(cpu_backend.onednn, M, N, K, dst, a, b, bias, adds)) return;
    REQUIRE(a.dtype == DTYPE_BF16, "oneDNN has no fp32 matmul for %lldx%lldx%lld", (long long)M,
            (long long)N, (long long)K);
    gemm_widened(M, N, K, dst, a, b, bias, adds);
}

void gemm(int64_t M, int64_t N, int64_t K, Matrix dst, Matrix a, Matrix b, void *bias,
          bool accumulate) {
    // a = dout^T: K counts rows of the batch, M and N are weight dimensions
    const bool weight_gradient = a.col_stride != 1, tiles = BF16_TILES && a.dtype == DTYPE_BF16;
    const bool splits = cpu_threads() <= MAX_THREADS && !tiles;
    int64_t rows = M, cols = N, depth = K;
    if (splits) depth = depth_piece(M, K, a, b, bias);
    if (splits && weight_gradient && M >= N) {
        rows = piece_size(M, GRADIENT_ROWS);
    } else if (splits && weight_gradient) {
        cols = piece_size(N, PIECE_COLUMNS);
    } else if (splits && M >= MIN_ROWS && N > PIECE_COLUMNS) {
        rows = piece_size(M, PIECE_ROWS);
        cols = piece_size(N, PIECE_COLUMNS);
    }
    onednn_set_scratch(cpu_backend.onednn, cpu_backend.workspace + cpu_backend.workspace_used,
                       cpu_backend.workspace_bytes - cpu_backend.workspace_used);
    for (int64_t i = 0; i < M; i += rows)
        for (int64_t j = 0; j < N; j += cols) {
            const int64_t m = min_i64(M - i, rows), n = min_i64(N - j, cols);
            const Matrix part = matrix_at(dst, i, j);
            char *piece_bias = bias ? (char *)bias + j * (int64_t)dtype_size(a.dtype) : NULL;
            for (int64_t k = 0; k < K; k += depth)
                gemm_piece(m, n, min_i64(K - k, depth), part, matrix_at(a, i, k),
                           matrix_at(b, k, j), piece_bias, accumulate || k > 0);
        }
}

// ---------------------------------------------------------------------------------------- few rows

// The max number of rows for which it is faster than the library. One token of the 124M model in
// bf16 on 2 threads, ms with oneDNN -> with this: 1 row 10.4 -> 4.1, 2 8.1 -> 4.3, 8 10.0 -> 6.0,
// 16 12.5 -> 10.3.
enum { FEW_ROWS = 16 };

// Every weight takes part in only M products, so it must be read once, in memory order, at the
// speed of memory. Nothing is packed, and `in` stays in the L1 cache. A task has LANES rows of the
// weight; 4 of them meet TILE_ROWS rows of `in` at a time. Each product is a vector of sums along
// the row, and LANES such vectors reduce to as many adjacent elements of out. An element is summed
// in the same order whatever M and the number of threads are.

// 4 x 4 sums and their operands stay in 32 registers, 4 x 2 in 16; 4 rows of the weight cover the
// latency of a sum at M = 1.
enum { TILE_WEIGHTS = 4, TILE_ROWS = FEW_REGISTERS ? 2 : 4 };

typedef struct {
    void *out;
    const void *in, *weight, *bias, *residual; // bias and residual may be NULL
    int64_t M, OC, IC;
} Product;

// Rows [row, row + rows) of in, rows [column, column + weights) of the weight.
typedef struct {
    int64_t row, column;
    int rows, weights;
} Tile;

// sums += the products of elements [begin, end) of the rows, LANES at a time, or twice as many in
// pairs of bf16.
static ALWAYS_INLINE void add_products(V sums[TILE_ROWS][TILE_WEIGHTS], const Product *p, Tile t,
                                       int64_t begin, int64_t end, bool pairs, DType E) {
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
            // Prefetches the operands of the next tile: no hardware prefetcher runs ahead of four
            // short streams while rows of `in` repeat. Prefetching past the end of memory has no
            // effect.
            if (t.row == 0)
                __builtin_prefetch((const char *)p->weight +
                                   (at + TILE_WEIGHTS * p->IC) * (E == DTYPE_BF16 ? 2 : 4));
            const VU b = pairs ? vload_bits(weight + at) : (VU)vload_first(k, weight, at, E);
#pragma GCC unroll 4
            for (int r = 0; r < t.rows; r++)
                sums[r][w] =
                    pairs ? vdot_bf16(sums[r][w], a[r], b) : vfma((V)a[r], (V)b, sums[r][w]);
        }
    }
}

// all[r][c] = the sums of row r of in with row (first + c) of the weight.
static ALWAYS_INLINE void few_rows_tile(V all[FEW_ROWS][LANES], const Product *p, Tile t,
                                        int64_t first, DType E) {
    V sums[TILE_ROWS][TILE_WEIGHTS] = {{{0}}};
    // Pairs of bf16 are read as words, which begin at even elements.
    int64_t paired = 0;
    if (BF16_PAIRS && E == DTYPE_BF16 && p->IC % 2 == 0) paired = p->IC / (2 * LANES) * (2 * LANES);
    add_products(sums, p, t, 0, paired, true, E);
    add_products(sums, p, t, paired, p->IC, false, E);
    for (int r = 0; r < t.rows; r++)
        for (int w = 0; w < t.weights; w++) all[t.row + r][t.column - first + w] = sums[r][w];
}

// All rows of in, in tiles whose sizes the compiler knows.
static ALWAYS_INLINE void few_rows_tiles(V all[FEW_ROWS][LANES], const Product *p, int64_t column,
                                         int weights, int64_t first, DType E) {
    int64_t row = 0;
    for (; row + TILE_ROWS <= p->M; row += TILE_ROWS)
        few_rows_tile(all, p, (Tile){row, column, TILE_ROWS, weights}, first, E);
    if (TILE_ROWS > 2 && p->M - row == 3)
        few_rows_tile(all, p, (Tile){row, column, 3, weights}, first, E);
    if (TILE_ROWS > 2 && p->M - row == 2)
        few_rows_tile(all, p, (Tile){row, column, 2, weights}, first, E);
    if (p->M - row == 1) few_rows_tile(all, p, (Tile){row, column, 1, weights}, first, E);
}

// Lane i of the result: the sum over the lanes of x[i].
static ALWAYS_INLINE V sums_of_lanes(const V x[LANES]) {
    VU t[LANES];
    for (int i = 0; i < LANES; i++) t[i] = (VU)x[i];
    transpose_square(t);
    for (int half = LANES / 2; half >= 1; half /= 2)
        for (int i = 0; i < half; i++) t[i] = (VU)((V)t[i] + (V)t[i + half]);
    return (V)t[0];
}

// Elements [first, first + LANES) of every row of out, or as many as exist.
static ALWAYS_INLINE void few_rows_task(const Product *p, int64_t first, DType E) {
    V all[FEW_ROWS][LANES];
    const int used = lanes(p->OC - first);
    int c = 0;
    for (; c + TILE_WEIGHTS <= used; c += TILE_WEIGHTS)
        few_rows_tiles(all, p, first + c, TILE_WEIGHTS, first, E);
    for (; c < used; c++) few_rows_tiles(all, p, first + c, 1, first, E);
    const V bias = p->bias ? vload_first(used, p->bias, first, E) : vzero();
    for (int64_t r = 0; r < p->M; r++) {
        for (int i = used; i < LANES; i++) all[r][i] = vzero();
        V sum = sums_of_lanes(all[r]) + bias;
        if (p->residual) sum += vload_first(used, p->residual, r * p->OC + first, E);
        vstore_first(used, p->out, r * p->OC + first, sum, E);
    }
}

// ----------------------------------------------------------------------------------- bias gradient

// Sums over the rows of a batch, also for fp8, whose products do not handle bias gradients.
// Memory-bound: every element is read once, in memory order.

// Columns of one task: two cache lines of bf16 in each row.
enum { STRIP = 64 };
// Rows are summed in blocks of this size and the blocks in order: rounding errors stay small for
// long columns, and the bits do not depend on the number of threads.
enum { ROW_BLOCK = 256 };

// Elements first_col .. first_col + STRIP - 1 of dbias = or += the column sums of dout (rows,
// stride).
static ALWAYS_INLINE void strip_sums(void *dbias, const void *dout, int64_t first_col, int64_t rows,
                                     int64_t stride, bool add, DType E, DType G) {
    int used[STRIP / LANES];
    V total[STRIP / LANES] = {0};
    for (int s = 0; s < STRIP / LANES; s++) used[s] = lanes(stride - first_col - s * LANES);
    for (int64_t block = 0; block < rows; block += ROW_BLOCK) {
        const int64_t end = min_i64(block + ROW_BLOCK, rows);
        V sum[STRIP / LANES] = {0};
        for (int64_t r = block; r < end; r++)
            for (int s = 0; s < STRIP / LANES; s++)
                sum[s] += vload_first(used[s], dout, r * stride + first_col + s * LANES, E);
        for (int s = 0; s < STRIP / LANES; s++) total[s] += sum[s];
    }
    for (int s = 0; s < STRIP / LANES; s++) {
        int64_t j = first_col + s * LANES;
        if (add) total[s] += vload_first(used[s], dbias, j, G);
        vstore_first(used[s], dbias, j, total[s], G);
    }
}

void backend_bias_backward(Gradient dbias, Tensor dout) {
    const Tensor to = dbias.to;
    int64_t OC = tensor_cols(dout), rows = tensor_rows(dout);
#pragma omp parallel for schedule(static)
    for (int64_t j = 0; j < OC; j += STRIP)
        WITH_DTYPES(E, dout.dtype, G, to.dtype,
                    strip_sums(to.data, dout.data, j, rows, OC, dbias.add, E, G));
}

// --------------------------------------------------------------------------------------------- ops

// The whole workspace is free for gemm: cpu_scratch of 0 bytes.

// oneDNN adds to what is in its output.
void backend_matmul_residual_forward(Tensor out, Tensor residual, Tensor in, Tensor weight,
                                     Tensor bias) {
    cpu_scratch("matmul_forward", 0);
    int64_t N = tensor_rows(in), OC = tensor_rows(weight), IC = tensor_cols(weight);
    if (N <= FEW_ROWS) { // fp32 sums, rounded once; a row of out has the same bits whatever N is
        const Product p = {out.data, in.data, weight.data, bias.data, residual.data, N, OC, IC};
#pragma omp parallel for schedule(static) num_threads(cpu_threads())
        for (int64_t i = 0; i < OC; i += LANES)
            WITH_DTYPE(E, weight.dtype, few_rows_task(&p, i, E));
        return;
    }
    if (residual.data) backend_tensor_cast(out, residual);
    gemm(N, OC, IC, matrix_of(out, OC), matrix_of(in, IC), matrix_transposed(matrix_of(weight, IC)),
         bias.data, residual.data != NULL);
}

void backend_matmul_forward(Tensor out, Tensor in, Tensor weight, Tensor bias) {
    backend_matmul_residual_forward(out, tensor_none(), in, weight, bias);
}

// GELU is a separate pass: oneDNN's fused one costs more than the pass and drops the
// pre-activation.
void backend_matmul_gelu_forward(Tensor out, Tensor pre, Tensor in, Tensor weight, Tensor bias) {
    backend_matmul_forward(pre, in, weight, bias);
    backend_gelu_forward(out, pre);
}

void backend_matmul_backward_input(Tensor din, Tensor dout, Tensor weight) {
    cpu_scratch("matmul_backward_input", 0);
    int64_t N = tensor_rows(din), OC = tensor_rows(weight), IC = tensor_cols(weight);
    gemm(N, IC, OC, matrix_of(din, IC), matrix_of(dout, OC), matrix_of(weight, IC), NULL, false);
}

// dbias is left to matmul_backward_weight: a cache holds a strip of dpre's rows in neither.
void backend_matmul_gelu_backward_input(Tensor dpre, Tensor dout, Tensor weight, Tensor pre,
                                        Gradient *dbias) {
    (void)dbias;
    backend_matmul_backward_input(dpre, dout, weight);
    backend_gelu_backward(dpre, gradient_none(), dpre, pre);
}

void backend_matmul_backward_weight(Gradient dweight, Gradient dbias, Tensor dout, Tensor in) {
    int64_t N = tensor_rows(in), IC = tensor_cols(in), OC = tensor_cols(dout);
    cpu_scratch("matmul_backward_weight", 0);
    gemm(OC, IC, N, matrix_of(dweight.to, IC), matrix_transposed(matrix_of(dout, OC)),
         matrix_of(in, IC), NULL, dweight.add);
    if (dbias.to.data) backend_bias_backward(dbias, dout);
}

void backend_matmul_stack(Tensor out, StackForm form, float alpha, Tensor a, Tensor b, float beta,
                          Tensor added) {
    for (int64_t i = 0; i < out.shape[0]; i++) {
        const Tensor to = tensor_matrix(out, i), of_a = tensor_matrix(a, i),
                     of_b = tensor_matrix(b, i);
        if (form == STACK_ABT) backend_matmul_forward(to, of_a, of_b, tensor_none());
        if (form == STACK_AB) backend_matmul_backward_input(to, of_a, of_b);
        if (form == STACK_ATB)
            backend_matmul_backward_weight(gradient_to(to, false), gradient_none(), of_a, of_b);
    }
    if (added.data)
        backend_tensor_axpby(out, beta, added, alpha, out);
    else if (alpha != 1.0f)
        backend_tensor_axpby(out, alpha, out, 0.0f, out);
}
