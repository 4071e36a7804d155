// Adafactor: second moments of a matrix as the product of a row and a column;
// adafactor_statistics and the update.
// Shazeer, Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost", 2018.
//
// Every tensor is seen as (rows, cols). A vector is a matrix of one row without row statistics,
// whose column statistics are v: one source serves both. Statistics are three passes over the
// gradient, each one launch for all tensors:
//   rows      a warp sums a row
//   columns   a block sums the columns of a tile; a tall matrix has several tiles in a column,
//             whose sums go through the workspace and are added in order
//   rms       a block sums u^2 over a tile, or several
// then the update, over the same tiles. Bytes a parameter with bf16 weights, fp32 master and
// gradient: statistics 12, update 14 (gradient 4, master 8, weight 2). The state is next to
// nothing: 4 (1 / rows + 1 / cols).
#include "llmc/cuda/optimizer.cuh"

enum {
    BLOCK_THREADS = 256,
    BLOCK_WARPS = BLOCK_THREADS / WARP,
    NEIGHBOURS = 4,                  // columns of a thread
    TILE_COLS = WARP * NEIGHBOURS,   // 512 bytes of fp32 in a row
    TILE_ROWS = ADAFACTOR_TILE_ROWS, // 64 rows a warp
    ROW_PART = 4 * BLOCK_WARPS,      // rows of a block in the pass over rows
};

typedef struct {
    UpdateEntry t;
    float *row, *col, *rms;     // of a vector: row NULL, col is v
    int64_t rows, cols;         // of the whole matrix
    int64_t begin;              // of a slice of a matrix: its first element
    int64_t counted;            // elements of the whole tensor that are not padding
    int64_t first_row, end_row; // the rows that a slice has elements of
    int64_t col_tiles;          // tiles across
    int64_t tiles;              // in all
    int64_t column_sums; // offset of its tiles' sums in the workspace; -1: one tile is as high as
                         // the matrix
    int32_t tensor;
} AdafactorEntry;

// The groups of the table: which kernels go over them.
enum { ROWS, TILES, TALL, SUMS };

// -------------------------------------------------------------------------------- rows and columns

// Elements (i, c .. c + 3) of a matrix, fewer at its edge.
static __device__ __forceinline__ Place place_in_row(const AdafactorEntry &a, int64_t i,
                                                     int64_t c) {
    return place_at<NEIGHBOURS>(i * a.cols + c, a.cols - c, a.t.packed);
}

template <class E, int N>
static __device__ __forceinline__ void adafactor_gradient(float (&g)[N], const UpdateEntry &t,
                                                          Place at, float grad_factor) {
    const bool is_fp32 = grad_is_fp32<E>(t);
    either_to_floats(g, load_either<E, N>(t.grad, at, is_fp32), is_fp32); // 0 beyond the edge
    for (int k = 0; k < N; k++) g[k] *= grad_factor;
}

// The mean of g^2 + 1e-30 into a moving average.
static __device__ __forceinline__ void average(float *x, const StepControl *control, float sum,
                                               int64_t n) {
    *x = fmaf(control->keep, *x, control->take * (sum / (float)n + 1e-30f));
}

// row (rows): a warp a row, ROW_PART rows a block.
template <class E>
static __global__ void __launch_bounds__(BLOCK_THREADS)
    adafactor_rows_kernel(const AdafactorEntry *entries, const int32_t *first, int n,
                          const StepControl *control) {
    wait_for_the_grid_before();
    if (control->skip != SKIP_NONE) return;
    const float grad_factor = control->grad_factor;
    const int entry = entry_of_block(first, n);
    const AdafactorEntry a = entries[entry];
    const int64_t begin = (int64_t)part_of_block(first, entry) * ROW_PART,
                  end = min(a.rows, begin + ROW_PART);
    const int lane = (int)threadIdx.x % WARP;
    for (int64_t i = begin + threadIdx.x / WARP; i < end; i += BLOCK_WARPS) {
        float sum = 0.0f, g[NEIGHBOURS];
        for (int64_t c = lane * NEIGHBOURS; c < a.cols; c += TILE_COLS) {
            adafactor_gradient<E>(g, a.t, place_in_row(a, i, c), grad_factor);
            for (int k = 0; k < NEIGHBOURS; k++) sum = fmaf(g[k], g[k], sum);
        }
        sum = warp_sum(sum);
        if (lane == 0) average(&a.row[i], control, sum, a.cols);
    }
}

// A tile. Lane: 4 columns; warp: every 8th row.
struct Tile {
    // the first row of the thread's warp, the end of the tile, its first column
    int64_t row, end, col;
};
static __device__ __forceinline__ Tile tile_of(const AdafactorEntry &a, int64_t number) {
    const int64_t top = a.first_row + number / a.col_tiles * TILE_ROWS;
    Tile tile;
    tile.row = top + threadIdx.x / WARP;
    tile.end = min(a.end_row, top + TILE_ROWS);
    tile.col = number % a.col_tiles * TILE_COLS;
    return tile;
}
static __device__ __forceinline__ int64_t my_column(Tile tile) {
    return tile.col + threadIdx.x % WARP * NEIGHBOURS;
}

// The sums of g^2 of the columns of a tile: into col, or, of tall matrices, into column_sums.
template <class E>
static __global__ void __launch_bounds__(BLOCK_THREADS)
    adafactor_columns_kernel(float *column_sums, const AdafactorEntry *entries,
                             const int32_t *first, int n, const StepControl *control) {
    wait_for_the_grid_before();
    __shared__ float sums[BLOCK_WARPS][TILE_COLS];
    if (control->skip != SKIP_NONE) return;
    const float grad_factor = control->grad_factor;
    const int entry = entry_of_block(first, n), number = part_of_block(first, entry);
    const AdafactorEntry a = entries[entry];
    const Tile tile = tile_of(a, number);
    float sum[NEIGHBOURS] = {}, g[NEIGHBOURS];
    for (int64_t i = tile.row; i < tile.end; i += BLOCK_WARPS) {
        adafactor_gradient<E>(g, a.t, place_in_row(a, i, my_column(tile)), grad_factor);
        for (int k = 0; k < NEIGHBOURS; k++) sum[k] = fmaf(g[k], g[k], sum[k]);
    }
    for (int k = 0; k < NEIGHBOURS; k++)
        sums[threadIdx.x / WARP][threadIdx.x % WARP * NEIGHBOURS + k] = sum[k];
    __syncthreads();
    const int64_t c = tile.col + threadIdx.x;
    if (threadIdx.x >= TILE_COLS || c >= a.cols) return;
    float total = 0.0f;
    for (int warp = 0; warp < BLOCK_WARPS; warp++) total += sums[warp][threadIdx.x];
    if (a.column_sums < 0)
        average(&a.col[c], control, total, a.rows);
    else
        column_sums[a.column_sums + number / a.col_tiles * a.cols + c] = total;
}

// col of tall matrices from the sums of their tiles, in order: a thread a column.
static __global__ void __launch_bounds__(BLOCK_THREADS)
    adafactor_tall_columns_kernel(const float *column_sums, const AdafactorEntry *entries,
                                  const int32_t *first, int n, const StepControl *control) {
    wait_for_the_grid_before();
    if (control->skip != SKIP_NONE) return;
    const int entry = entry_of_block(first, n);
    const AdafactorEntry a = entries[entry];
    const int64_t c = (int64_t)part_of_block(first, entry) * BLOCK_THREADS + threadIdx.x;
    if (c >= a.cols) return;
    const float *sums = column_sums + a.column_sums + c;
    float total = 0.0f;
    for (int64_t tile = 0; tile < a.tiles / a.col_tiles; tile++) total += sums[tile * a.cols];
    average(&a.col[c], control, total, a.rows);
}

// row_means[tensor] = mean of row, of matrices. A block a tensor.
static __global__ void __launch_bounds__(BLOCK_THREADS)
    adafactor_row_means_kernel(float *row_means, const AdafactorEntry *entries) {
    wait_for_the_grid_before();
    const float *row = entries[blockIdx.x].row;
    const int64_t rows = entries[blockIdx.x].rows;
    if (!row) return;
    float sum = 0.0f;
    for (int64_t i = threadIdx.x; i < rows; i += BLOCK_THREADS) sum += row[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) row_means[entries[blockIdx.x].tensor] = sum / (float)rows;
}

// ---------------------------------------------------------------------------------- rms and update

// u = g * factor of the row * factor of the column: never the product of row and col themselves,
// which may be too small for fp32.
template <int N>
static __device__ __forceinline__ void column_factors(float (&factors)[N], const AdafactorEntry &a,
                                                      int64_t c) {
    for (int k = 0; k < N; k++) factors[k] = c + k < a.cols ? 1.0f / sqrtf(a.col[c + k]) : 0.0f;
}
template <class E, int N>
static __device__ __forceinline__ void load_update(float (&u)[N], const AdafactorEntry &a, Place at,
                                                   int64_t i, const float (&factors)[N],
                                                   float row_mean, float grad_factor) {
    const float factor = a.row ? 1.0f / sqrtf(a.row[i] / row_mean) : 1.0f;
    adafactor_gradient<E>(u, a.t, at, grad_factor);
    for (int k = 0; k < N; k++) u[k] = u[k] * factor * factors[k];
}

// partials[b]: the sum of u^2 over tiles p, p + parts, ... of a tensor that has `parts` of these
// blocks.
template <class E>
static __global__ void __launch_bounds__(BLOCK_THREADS)
    adafactor_rms_kernel(float *partials, const float *row_means, const AdafactorEntry *entries,
                         const int32_t *first, int n, const StepControl *control) {
    wait_for_the_grid_before();
    if (control->skip != SKIP_NONE) return;
    const float grad_factor = control->grad_factor;
    const int entry = entry_of_block(first, n), parts = first[entry + 1] - first[entry];
    const AdafactorEntry a = entries[entry];
    const float row_mean = a.row ? row_means[a.tensor] : 1.0f;
    float sum = 0.0f, u[NEIGHBOURS], factors[NEIGHBOURS];
    for (int64_t number = part_of_block(first, entry); number < a.tiles; number += parts) {
        const Tile tile = tile_of(a, number);
        column_factors(factors, a, my_column(tile));
        for (int64_t i = tile.row; i < tile.end; i += BLOCK_WARPS) {
            load_update<E>(u, a, place_in_row(a, i, my_column(tile)), i, factors, row_mean,
                           grad_factor);
            for (int k = 0; k < NEIGHBOURS; k++) sum = fmaf(u[k], u[k], sum);
        }
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

// rms of entry i from the partials of its blocks, in fp64, in an order that depends on their number
// alone. A warp each.
static __global__ void adafactor_rms_sums_kernel(const float *partials,
                                                 const AdafactorEntry *entries,
                                                 const int32_t *first, const StepControl *control) {
    wait_for_the_grid_before();
    if (control->skip != SKIP_NONE) return;
    const AdafactorEntry *a = &entries[blockIdx.x];
    const double sum =
        sum_of_parts(partials, first[blockIdx.x] - first[0], first[blockIdx.x + 1] - first[0]);
    if (threadIdx.x == 0) a->rms[0] = (float)sqrt(sum / (double)a->counted);
}

// The columns c .. c + N - 1 of a tile.
template <class E, int N>
static __device__ __forceinline__ void update_columns(const AdafactorEntry &a, const UpdateStep &s,
                                                      Tile tile, int64_t c, float row_mean,
                                                      float clip, float grad_factor) {
    float u[N], w[N], factors[N];
    column_factors(factors, a, c);
#pragma unroll 1
    for (int64_t i = tile.row; i < tile.end; i += BLOCK_WARPS) {
        const Place at = {i * a.cols + c - a.begin, N, true};
        if (at.e < 0 || at.e >= a.t.numel) continue; // of the first or the last row of a slice
        const WeightVector<E, N> weight = load_weight<E, N>(a.t, at);
        load_update<E>(u, a, at, i, factors, row_mean, grad_factor);
        weight_to_floats<E, N>(w, weight, a.t);
        for (int k = 0; k < N; k++)
            w[k] = descend(w[k], u[k] * clip, a.t.learning_rate, a.t.weight_decay);
        store_weight<E, N>(a.t, s, at, w);
    }
}

// A block a tile; nothing when the step is skipped.
template <class E>
static __global__ void __launch_bounds__(BLOCK_THREADS, 3)
    adafactor_update_kernel(const float *row_means, const AdafactorEntry *entries,
                            const int32_t *first, int n, UpdateStep s, const StepControl *control) {
    wait_for_the_grid_before();
    if (control->skip != SKIP_NONE) return;
    const float grad_factor = control->grad_factor;
    const int entry = entry_of_block(first, n), lane = (int)threadIdx.x % WARP;
    AdafactorEntry a = entries[entry];
    a.t = entry_of_step(a.t, s);
    s = step_of_decision(s, control, a.t.group);
    const float row_mean = a.row ? row_means[a.tensor] : 1.0f, clip = 1.0f / fmaxf(1.0f, a.rms[0]);
    const Tile tile = tile_of(a, part_of_block(first, entry));
    if (a.t.packed) {
        const int64_t c = tile.col + lane * NEIGHBOURS;
        if (c < a.cols) update_columns<E, NEIGHBOURS>(a, s, tile, c, row_mean, clip, grad_factor);
    } else {
        for (int64_t c = tile.col + lane; c < min(a.cols, tile.col + TILE_COLS); c += WARP)
            update_columns<E, 1>(a, s, tile, c, row_mean, clip, grad_factor);
    }
}

// -------------------------------------------------------------------------------------------- host

// Floats of the column sums of a matrix: none where it has one tile in a column.
static int64_t column_sums_of(const UpdateTensor *t) {
    if (!t->row.data || tensor_numel(t->row) <= TILE_ROWS) return 0;
    return ceil_div(tensor_numel(t->row), TILE_ROWS) * tensor_numel(t->col);
}

static void describe_adafactor(TableDraft *draft, const UpdateTensor *tensors, int n) {
    int64_t column_sums = 0;
    for (int i = 0; i < n; i++) {
        const UpdateTensor *t = &tensors[i];
        if (t->rule != RULE_ADAFACTOR) continue;
        AdafactorEntry a = {};
        a.t = cuda_update_entry(t);
        a.col = (float *)t->v.data;
        a.rms = (float *)t->rms.data;
        a.rows = 1;
        a.cols = a.t.numel;

        if (t->row.data) {
            a.row = (float *)t->row.data;
            a.col = (float *)t->col.data;
            a.rows = tensor_numel(t->row);
            a.cols = tensor_numel(t->col);
            a.begin = t->offset;
        }

        a.counted = a.rows * a.cols - t->padding;
        a.first_row = a.begin / a.cols;
        a.end_row = ceil_div(a.begin + a.t.numel, a.cols);
        a.t.packed = a.t.packed && a.cols % NEIGHBOURS == 0 && a.t.numel % NEIGHBOURS == 0;
        a.col_tiles = ceil_div(a.cols, TILE_COLS);
        a.tiles = ceil_div(a.end_row - a.first_row, TILE_ROWS) * a.col_tiles;
        a.tensor = i;

        const int64_t sums = column_sums_of(t);
        a.column_sums = -1;
        if (sums > 0) a.column_sums = column_sums;
        column_sums += sums;

        if (a.row) table_add(draft, ROWS, i, &a, ceil_div(a.rows, ROW_PART));
        table_add(draft, TILES, i, &a, a.tiles);
        if (sums > 0) table_add(draft, TALL, i, &a, ceil_div(a.cols, BLOCK_THREADS));
        table_add(draft, SUMS, i, &a, min(a.tiles, (int64_t)NORM_MAX_PARTS));
    }
}

static const AdafactorEntry *entries_of(TableRun run) {
    return (const AdafactorEntry *)run.entries;
}

static void launch_row_means(float *row_means, TableRun tensors) {
    LAUNCH(adafactor_row_means_kernel, (unsigned)tensors.n, BLOCK_THREADS, 0, cuda_compute_stream())
    (row_means, entries_of(tensors));
}

void backend_adafactor_statistics(UpdateList *list, Tensor control) {
    const UpdateTensor *tensors = list->tensors;
    const int n = list->n;
    int64_t floats_of_columns = 0;
    for (int i = 0; i < n; i++)
        if (tensors[i].rule == RULE_ADAFACTOR) floats_of_columns += column_sums_of(&tensors[i]);

    const UpdateTable *table = update_table("adafactor_statistics", list, TABLE_ADAFACTOR,
                                            sizeof(AdafactorEntry), describe_adafactor);
    if (table->num_groups == 0) return;

    const TableRun rows = table_run(table, table_group(table, ROWS), 0, n);
    const TableRun tiles = table_run(table, table_group(table, TILES), 0, n);
    const TableRun tall = table_run(table, table_group(table, TALL), 0, n);
    const TableRun sums = table_run(table, table_group(table, SUMS), 0, n);

    // The workspace: row_means (n) of each tensor; partials (n, NORM_MAX_PARTS), sums of u^2;
    // column_sums (tile rows, cols) of each tall matrix. cuda_size_optimizer (gpu_sizes.c) has
    // space for it: more than TILE_ROWS rows have fewer than twice rows / TILE_ROWS tiles.
    const int64_t floats = n + n * NORM_MAX_PARTS + floats_of_columns;
    float *row_means =
        (float *)cuda_scratch("adafactor_statistics", floats * (int64_t)sizeof(float));
    float *partials = row_means + n, *column_sums = partials + n * NORM_MAX_PARTS;
    const StepControl *decided = (const StepControl *)control.data;
    const cudaStream_t stream = cuda_compute_stream();

    DISPATCH(tensors[0].weight.dtype, E, {
        if (rows.n > 0) {
            LAUNCH(adafactor_rows_kernel<E>, rows.parts, BLOCK_THREADS, 0, stream)
            (entries_of(rows), rows.first, rows.n, decided);
        }
        LAUNCH(adafactor_columns_kernel<E>, tiles.parts, BLOCK_THREADS, 0, stream)
        (column_sums, entries_of(tiles), tiles.first, tiles.n, decided);
        if (tall.n > 0) {
            LAUNCH(adafactor_tall_columns_kernel, tall.parts, BLOCK_THREADS, 0, stream)
            (column_sums, entries_of(tall), tall.first, tall.n, decided);
        }
        launch_row_means(row_means, sums);
        LAUNCH(adafactor_rms_kernel<E>, sums.parts, BLOCK_THREADS, 0, stream)
        (partials, row_means, entries_of(sums), sums.first, sums.n, decided);
        LAUNCH(adafactor_rms_sums_kernel, (unsigned)sums.n, WARP, 0, stream)
        (partials, entries_of(sums), sums.first, decided);
    });
}

// The row means are recomputed: the workspace of adafactor_statistics is lost.
void cuda_adafactor_update(UpdateList *list, int first, int count, const UpdateStep *step,
                           Tensor control) {
    bool any = false;
    for (int i = first; i < first + count; i++)
        any = any || list->tensors[i].rule == RULE_ADAFACTOR;
    if (!any) return;
    const UpdateTable *table = update_table("optimizer_update", list, TABLE_ADAFACTOR,
                                            sizeof(AdafactorEntry), describe_adafactor);
    const TableRun sums = table_run(table, table_group(table, SUMS), first, count);
    const TableRun tiles = table_run(table, table_group(table, TILES), first, count);
    float *row_means = (float *)cuda_scratch("optimizer_update", list->n * (int64_t)sizeof(float));
    launch_row_means(row_means, sums);
    DISPATCH(list->tensors[0].weight.dtype, E, {
        LAUNCH(adafactor_update_kernel<E>, tiles.parts, BLOCK_THREADS, 0, cuda_compute_stream())
        (row_means, entries_of(tiles), tiles.first, tiles.n, *step,
         (const StepControl *)control.data);
    });
}
