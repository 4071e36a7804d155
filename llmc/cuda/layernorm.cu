// LayerNorm and RMSNorm, forward and backward: the same kernels, with IS_RMS without mean and bias.
//
// Every row is read from memory once and stays in registers until it is written: forward a warp
// holds rows of up to 2048 columns, backward of up to 768 (fp32: 512), and a block rows of up to
// 4096. Longer rows, and rows that are not a multiple of 16 bytes, take a plain path that re-reads
// the row from the L1 cache. The gradients of weight and bias, and the bias gradient of the linear
// layer before the residual addition, sum over all rows (row_sums.cuh). The number of blocks
// depends on N and C alone, so the bits depend only on the shape.
#include "llmc/cuda/row_sums.cuh"

// A lane holds up to 64 columns of a row: more would not leave registers for the loads in flight. A
// block that owns a row has 8 columns per thread and at most 512 threads.
enum { WARP_ROW_MAX = 64 * WARP, BLOCK_ROW_MAX = 8 * 512 };

// Threads of a block of the plain path: few idle threads for short rows, 256 for long ones.
static int plain_threads(int64_t C) { return (int)min_i64(round_up(C, WARP), 256); }

// ----------------------------------------------------------------------------------------- forward

typedef struct {
    Tensor out, mean, rstd, in, weight, bias; // mean and bias: absent with IS_RMS
    int64_t N, C;
    float eps;
} LayerNormForward;

// 4 rows per block: small enough to fill a multiprocessor to its last warp on every architecture.
enum { FORWARD_WARPS = 4 };

// out = (in - mean) * rstd * weight + bias; rows (N,C), mean and rstd (N) fp32. IS_RMS: out = in *
// rstd * weight. A warp (or, IS_BLOCK_ROW, a block) owns a row; thread t of it owns the packs t, t
// + threads, ...: at most LANE_COLS columns, and more than LANE_COLS - 8, so only packs beyond
// these may be outside the row. All loads of a row are in flight before the first is used. The
// minimum number of blocks lets ptxas use 128 registers (64 with IS_BLOCK_ROW): left to itself it
// spills some of them to fit more blocks. Bytes: 2 * N * C elements + 8 N (IS_RMS: 4 N). in is not
// needed again soon; out is read by the next matmul.
template <class T, int LANE_COLS, bool IS_BLOCK_ROW, bool IS_RMS>
static __global__ void __launch_bounds__(IS_BLOCK_ROW ? BLOCK_ROW_MAX / 8 : FORWARD_WARPS *WARP,
                                         IS_BLOCK_ROW ? 2 : 4)
    layernorm_forward_kernel(T *out, float *mean, float *rstd, const T *in, const T *weight,
                             const T *bias, int64_t N, int C, float one_over_C, float eps) {
    wait_for_the_grid_before();
    constexpr int W = PACK<T>, PACKS = LANE_COLS / W;
    const int threads = IS_BLOCK_ROW ? (int)blockDim.x : (int)WARP;
    const int64_t row =
        IS_BLOCK_ROW ? block_from_last() : block_from_last() * FORWARD_WARPS + threadIdx.x / WARP;
    if (row >= N) return; // whole warps, and no block barrier follows
    const int lane = (int)threadIdx.x % threads;
    const int64_t first = row * C + lane * W; // pack i begins i * threads * W further on
    const auto is_inside = [=](int i) {
        return (!IS_BLOCK_ROW && (i + 1) * W <= LANE_COLS - 8) || (lane + i * threads) * W < C;
    };

    Vector<T, W> a[PACKS];
    float x[PACKS][W], y[W];
    for (int i = 0; i < PACKS; i++)
        if (is_inside(i)) a[i] = load_vector<T, W, true>(in + first + i * threads * W);

    float sum = 0.0f, sum_squares = 0.0f, row_mean = 0.0f;
    for (int i = 0; i < PACKS; i++) {
        if (!is_inside(i)) continue;
        to_floats(x[i], a[i]);
        for (int k = 0; k < W; k++) sum += x[i][k];
    }
    if constexpr (!IS_RMS) row_mean = (IS_BLOCK_ROW ? block_sum(sum) : warp_sum(sum)) * one_over_C;
    for (int i = 0; i < PACKS; i++) {
        if (!is_inside(i)) continue;
        for (int k = 0; k < W; k++) {
            if constexpr (!IS_RMS) x[i][k] -= row_mean;
            sum_squares += x[i][k] * x[i][k];
        }
    }
    const float variance =
        (IS_BLOCK_ROW ? block_sum(sum_squares) : warp_sum(sum_squares)) * one_over_C;
    const float row_rstd = rsqrtf(variance + eps);
    if (lane == 0) {
        if constexpr (!IS_RMS) mean[row] = row_mean;
        rstd[row] = row_rstd;
    }
    for (int i = 0; i < PACKS; i++) {
        if (!is_inside(i)) continue;
        to_floats(y, load_vector<T, W>(weight + (lane + i * threads) * W));
        for (int k = 0; k < W; k++) x[i][k] *= row_rstd * y[k];
        if constexpr (!IS_RMS) add_to(x[i], load_vector<T, W>(bias + (lane + i * threads) * W));
        store_vector(out + first + i * threads * W, from_floats<T>(x[i]));
    }
}

// The same for any C and any alignment: a block owns a row; a thread owns every blockDim-th column
// and makes three passes over them.
template <class T, bool IS_RMS>
static __global__ void __launch_bounds__(256)
    layernorm_forward_plain_kernel(T *out, float *mean, float *rstd, const T *in, const T *weight,
                                   const T *bias, int64_t C, float eps) {
    wait_for_the_grid_before();
    const int64_t row = block_from_last(), first = row * C;
    float sum = 0.0f, sum_squares = 0.0f, row_mean = 0.0f;
    for (int64_t c = threadIdx.x; c < C && !IS_RMS; c += blockDim.x) sum += to_float(in[first + c]);
    if constexpr (!IS_RMS) row_mean = block_sum(sum) / (float)C;
    for (int64_t c = threadIdx.x; c < C; c += blockDim.x) {
        const float centered = to_float(in[first + c]) - row_mean;
        sum_squares += centered * centered;
    }
    const float row_rstd = rsqrtf(block_sum(sum_squares) / (float)C + eps);
    for (int64_t c = threadIdx.x; c < C; c += blockDim.x)
        out[first + c] =
            from_float<T>((to_float(in[first + c]) - row_mean) * row_rstd * to_float(weight[c]) +
                          (IS_RMS ? 0.0f : to_float(bias[c])));
    if (threadIdx.x == 0) {
        if constexpr (!IS_RMS) mean[row] = row_mean;
        rstd[row] = row_rstd;
    }
}

template <class T, int LANE_COLS, bool IS_BLOCK_ROW, bool IS_RMS>
static void launch_forward(const LayerNormForward *a) {
    int64_t blocks = ceil_div(a->N, FORWARD_WARPS), threads = FORWARD_WARPS * WARP;
    if (IS_BLOCK_ROW) {
        blocks = a->N;
        threads = round_up(ceil_div(a->C, LANE_COLS), WARP);
    }
    LAUNCH((layernorm_forward_kernel<T, LANE_COLS, IS_BLOCK_ROW, IS_RMS>), (unsigned)blocks,
           (unsigned)threads, 0, cuda_compute_stream())
    ((T *)a->out.data, (float *)a->mean.data, (float *)a->rstd.data, (const T *)a->in.data,
     (const T *)a->weight.data, (const T *)a->bias.data, a->N, (int)a->C, 1.0f / (float)a->C,
     a->eps);
}

// The minimum columns per lane that hold the row, from LANE_COLS on: C = 768 needs 24, 1024 32,
// 1280 40, 1600 56.
template <class T, bool IS_RMS, int LANE_COLS = 8>
static void launch_forward_packs(const LayerNormForward *a) {
    if (a->C > WARP_ROW_MAX) return launch_forward<T, 8, true, IS_RMS>(a);
    if (a->C <= LANE_COLS * WARP) return launch_forward<T, LANE_COLS, false, IS_RMS>(a);
    if constexpr (LANE_COLS * WARP < WARP_ROW_MAX)
        launch_forward_packs<T, IS_RMS, LANE_COLS + 8>(a);
}

template <bool IS_RMS>
static void launch_norm_forward(Tensor out, Tensor mean, Tensor rstd, Tensor in, Tensor weight,
                                Tensor bias, float eps) {
    const int64_t C = tensor_numel(weight), N = tensor_numel(in) / C;
    const LayerNormForward a = {out, mean, rstd, in, weight, bias, N, C, eps};
    const void *rows[] = {out.data, in.data, weight.data, bias.data};
    bool packs = C <= BLOCK_ROW_MAX;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        packs = packs && pack_aligned(rows[i], C, in.dtype);
    if (packs) {
        DISPATCH(in.dtype, T, (launch_forward_packs<T, IS_RMS>(&a)));
    } else {
        DISPATCH(in.dtype, T, {
            LAUNCH((layernorm_forward_plain_kernel<T, IS_RMS>), (unsigned)N, plain_threads(C), 0,
                   cuda_compute_stream())
            ((T *)out.data, (float *)mean.data, (float *)rstd.data, (const T *)in.data,
             (const T *)weight.data, (const T *)bias.data, C, eps);
        });
    }
}

void backend_layernorm_forward(Tensor out, Tensor mean, Tensor rstd, Tensor in, Tensor weight,
                               Tensor bias, float eps) {
    launch_norm_forward<false>(out, mean, rstd, in, weight, bias, eps);
}

void backend_rmsnorm_forward(Tensor out, Tensor rstd, Tensor in, Tensor weight, float eps) {
    launch_norm_forward<true>(out, tensor_none(), rstd, in, weight, tensor_none(), eps);
}

// ---------------------------------------------------------------------------------------- backward

// sums: of dout * xhat, of dout (not with IS_RMS) and, unless absent, of din: dweight, dbias,
// din_sum.
typedef struct {
    Tensor din, dout, in, mean, rstd, weight;
    RowSums sums;
    int64_t N, C;
    bool add_residual;
} LayerNormBackward;

template <bool IS_RMS>
constexpr int DIN_SUM = IS_RMS ? 1 : 2; // the place of the sum of din, the last one

// Rows of up to 24 columns a lane (16 in fp32) belong to a warp, which needs no barrier. More sums
// would not leave registers for the loads: a longer row belongs to a block, 8 columns a thread.
enum { BACKWARD_LANE_COLS = 24, BACKWARD_LANE_COLS_FP32 = 16, BACKWARD_BLOCK_COLS = 8 };
enum { BACKWARD_WARPS = 8, BACKWARD_ROW_THREADS = BLOCK_ROW_MAX / BACKWARD_BLOCK_COLS };

// Sums of two numbers over the warps of a block, warps in order: `slot` alternates, so that one
// barrier serves a row.
static __device__ __forceinline__ float2 block_pair_sum(float2 (&slot)[BACKWARD_ROW_THREADS / WARP],
                                                        float2 v) {
    const int warps = (int)blockDim.x / WARP;
    float2 total = make_float2(0.0f, 0.0f);
    v = make_float2(warp_sum(v.x), warp_sum(v.y));
    if (threadIdx.x % WARP == 0) slot[threadIdx.x / WARP] = v;
    __syncthreads();
    for (int w = 0; w < BACKWARD_ROW_THREADS / WARP; w++) { // unrolled: all are read at once
        if (w >= warps) continue;
        total.x += slot[w].x;
        total.y += slot[w].y;
    }
    return total;
}

// A thread's share of a row: packs of in, dout and, with add_residual, din; and the row's
// statistics.
template <class T, int PACKS> struct BackwardRow {
    Vector<T, PACK<T>> x[PACKS], dy[PACKS], residual[PACKS];
    float mean, rstd;
};

// The partial sums of a block that owns whole rows: every column belongs to one thread.
template <int SUMS, int PACKS, int W, class Column, class Inside>
static __device__ __forceinline__ void store_block_sums(float *partial,
                                                        const float (&of_columns)[SUMS][PACKS][W],
                                                        int count, int C, Column column,
                                                        Inside is_inside) {
#pragma unroll
    for (int s = 0; s < SUMS; s++) {
        if (s >= count) continue;
        for (int i = 0; i < PACKS; i++)
            if (is_inside(i))
                store_vector(partial + s * C + column(i), from_floats<float>(of_columns[s][i]));
    }
}

// The partial sums of a block whose warps own rows: adds those of the warps, in order. of_warps is
// the block's shared memory.
template <int SUMS, int PACKS, int W, int WARPS, int COLUMNS, class Column>
static __device__ __forceinline__ void store_warp_sums(float *partial,
                                                       const float (&of_columns)[SUMS][PACKS][W],
                                                       float (&of_warps)[WARPS][COLUMNS], int count,
                                                       int C, Column column) {
#pragma unroll
    for (int s = 0; s < SUMS; s++) {
        if (s >= count) continue;
        for (int i = 0; i < PACKS; i++)
            store_vector(&of_warps[threadIdx.x / WARP][column(i)],
                         from_floats<float>(of_columns[s][i]));
        __syncthreads();
        for (int c = (int)threadIdx.x; c < C; c += WARPS * WARP) {
            float total = 0.0f;
            for (int k = 0; k < WARPS; k++) total += of_warps[k][c];
            partial[s * C + c] = total;
        }
        __syncthreads();
    }
}

// din = or += rstd * (dnorm - mean_C(dnorm) - xhat * mean_C(dnorm * xhat)) for all rows, and the
// sums; IS_RMS: without mean_C(dnorm), and xhat = in * rstd. The warps of the grid (or,
// IS_BLOCK_ROW, its blocks) take rows in turn, thread t of a warp the packs t, t + threads, ... of
// each: at most LANE_COLS columns, only the last 8 of which may be outside the row. The sums of its
// columns stay in registers from the first row to the last. While a row is computed, the next ones
// are being loaded: a warp's next row, at C = 768 in 16 bits 9 x 16 bytes a lane, 37 KB a
// multiprocessor at any moment; of a block's rows the next three (fp32: two), at C = 1280 in three
// blocks 69 KB. din is summed before it is rounded. Bytes: 3 (with add_residual 4) * N * C elements
// + 8 N; 4 * blocks * sums.count * C of partial sums, written and read.
template <class T, int LANE_COLS, bool IS_BLOCK_ROW, bool IS_RMS>
static __global__ void __launch_bounds__(IS_BLOCK_ROW ? BACKWARD_ROW_THREADS : BACKWARD_WARPS *WARP,
                                         1)
    layernorm_backward_kernel(T *din, float *partials, RowSums sums, const T *dout, const T *in,
                              const float *mean, const float *rstd, const T *weight, int N, int C,
                              float one_over_C, bool add_residual) {
    wait_for_the_grid_before();
    constexpr int W = PACK<T>, PACKS = LANE_COLS / W, ROW_WARPS = IS_BLOCK_ROW ? 1 : BACKWARD_WARPS;
    constexpr int BLOCK_AHEAD = sizeof(T) == 4 ? 2 : 3, AHEAD = IS_BLOCK_ROW ? BLOCK_AHEAD : 1;
    __shared__ float2 row_sums[2][BACKWARD_ROW_THREADS / WARP];
    // stored as vectors
    __shared__ alignas(16) float of_warps[ROW_WARPS][IS_BLOCK_ROW ? 1 : LANE_COLS * WARP];
    const int threads = IS_BLOCK_ROW ? (int)blockDim.x : (int)WARP,
              lane = (int)threadIdx.x % threads;
    const int warp = IS_BLOCK_ROW ? 0 : (int)threadIdx.x / WARP,
              stride = (int)gridDim.x * ROW_WARPS;
    const auto column = [=](int i) { return (lane + i * threads) * W; };
    const auto is_inside = [=](int i) { return (i + 1) * W <= LANE_COLS - 8 || column(i) < C; };
    // packs outside the row are 0, and so is what is computed from them
    const auto load = [=](int row) {
        BackwardRow<T, PACKS> r;
        const int64_t at = (int64_t)row * C;
        for (int i = 0; i < PACKS; i++) {
            const bool there = row >= 0 && is_inside(i);
            r.x[i] = load_or_zero<T, W, true>(in + at + column(i), there);
            r.dy[i] = load_or_zero<T, W, true>(dout + at + column(i), there);
            r.residual[i] = load_or_zero<T, W, true>(din + at + column(i), there && add_residual);
        }
        r.mean = IS_RMS || row < 0 ? 0.0f : mean[row];
        r.rstd = row < 0 ? 0.0f : rstd[row];
        return r;
    };
    float of_columns[DIN_SUM<IS_RMS> + 1][PACKS][W] = {};

    int buffer = 0;
    const auto compute = [&](int row, const BackwardRow<T, PACKS> &r) {
        const float shift = IS_RMS ? 0.0f : -r.mean * r.rstd; // xhat = in * rstd + shift
        float2 sum = make_float2(0.0f, 0.0f);                 // of dnorm, of dnorm * xhat
        float a[W], d[W], w[W], dx[W];
        for (int i = 0; i < PACKS; i++) {
            to_floats(a, r.x[i]);
            to_floats(d, r.dy[i]);
            to_floats(w, load_or_zero<T, W>(weight + column(i), is_inside(i)));
            for (int k = 0; k < W; k++) {
                const float d_xhat = d[k] * (a[k] * r.rstd + shift);
                if constexpr (!IS_RMS) sum.x += d[k] * w[k];
                sum.y += d_xhat * w[k];
                of_columns[0][i][k] += d_xhat;
                if constexpr (!IS_RMS) of_columns[1][i][k] += d[k];
            }
        }
        if constexpr (IS_BLOCK_ROW)
            sum = block_pair_sum(row_sums[buffer], sum);
        else
            sum = make_float2(IS_RMS ? 0.0f : warp_sum(sum.x), warp_sum(sum.y));
        buffer ^= 1;
        // rstd * (dnorm - mean(dnorm) - xhat * mean(dnorm xhat)) = dnorm * rstd + in * slope +
        // offset
        const float slope = -r.rstd * r.rstd * sum.y * one_over_C;
        const float offset = IS_RMS ? 0.0f : -r.rstd * (sum.x + shift * sum.y) * one_over_C;
        for (int i = 0; i < PACKS; i++) {
            if (!is_inside(i)) continue;
            to_floats(a, r.x[i]);
            to_floats(d, r.dy[i]);
            to_floats(w, load_vector<T, W>(weight + column(i)));
            to_floats(dx, r.residual[i]);
            for (int k = 0; k < W; k++) {
                dx[k] += d[k] * w[k] * r.rstd + (a[k] * slope + offset);
                of_columns[DIN_SUM<IS_RMS>][i][k] += dx[k];
            }
            store_vector(din + (int64_t)row * C + column(i), from_floats<T>(dx));
        }
    };

    int row = N - 1 - ((int)blockIdx.x * ROW_WARPS + warp);
    BackwardRow<T, PACKS> next[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; k++) next[k] = load(row - k * stride);
    while (row >= 0) {
#pragma unroll
        for (int k = 0; k < AHEAD; k++) { // unrolled: each row has registers of its own
            if (row < 0) continue;
            const BackwardRow<T, PACKS> r = next[k];
            next[k] = load(row - AHEAD * stride);
            compute(row, r);
            row -= stride;
        }
    }

    float *partial = partials + (int64_t)blockIdx.x * sums.count * C;
    if constexpr (IS_BLOCK_ROW)
        store_block_sums(partial, of_columns, sums.count, C, column, is_inside);
    else
        store_warp_sums(partial, of_columns, of_warps, sums.count, C, column);
    finish_row_sums<4>(partials, sums, C);
}

// The same for any C and any alignment: a block processes its rows one after another, a thread
// every blockDim-th column; the partial sums of its columns are in memory, private to the thread.
// Two blocks: as in the forward pass.
template <class T, bool IS_RMS>
static __global__ void __launch_bounds__(256, 2)
    layernorm_backward_plain_kernel(T *din, float *partials, RowSums sums, const T *dout,
                                    const T *in, const float *mean, const float *rstd,
                                    const T *weight, int64_t N, int64_t C, bool add_residual) {
    wait_for_the_grid_before();
    float *dweight = partials + (int64_t)blockIdx.x * sums.count * C, *dbias = dweight + C;
    float *of_din = dweight + DIN_SUM<IS_RMS> * C;
    const int64_t last = N - 1 - blockIdx.x;
    for (int64_t row = last; row >= 0; row -= gridDim.x) {
        const bool is_first = row == last;
        const T *x = in + row * C, *dy = dout + row * C;
        const float row_mean = IS_RMS ? 0.0f : mean[row];
        float sum = 0.0f, sum_xhat = 0.0f;
        for (int64_t c = threadIdx.x; c < C; c += blockDim.x) {
            const float d = to_float(dy[c]), xhat = (to_float(x[c]) - row_mean) * rstd[row];
            if (!IS_RMS) sum += d * to_float(weight[c]);
            sum_xhat += d * to_float(weight[c]) * xhat;
            dweight[c] = is_first ? d * xhat : dweight[c] + d * xhat;
            if (!IS_RMS) dbias[c] = is_first ? d : dbias[c] + d;
        }
        if (!IS_RMS) sum = block_sum(sum) / (float)C;
        sum_xhat = block_sum(sum_xhat) / (float)C;
        for (int64_t c = threadIdx.x; c < C; c += blockDim.x) {
            const float xhat = (to_float(x[c]) - row_mean) * rstd[row];
            float dx = (to_float(dy[c]) * to_float(weight[c]) - sum - xhat * sum_xhat) * rstd[row];
            if (add_residual) dx += to_float(din[row * C + c]);
            din[row * C + c] = from_float<T>(dx);
            if (sums.count > DIN_SUM<IS_RMS>) of_din[c] = is_first ? dx : of_din[c] + dx;
        }
    }
    finish_row_sums<1>(partials, sums, C);
}

template <class T, int LANE_COLS, bool IS_BLOCK_ROW, bool IS_RMS>
static void launch_backward(const LayerNormBackward *a, float *partials) {
    int64_t threads = BACKWARD_WARPS * WARP;
    if (IS_BLOCK_ROW) threads = round_up(ceil_div(a->C, LANE_COLS), WARP);
    LAUNCH((layernorm_backward_kernel<T, LANE_COLS, IS_BLOCK_ROW, IS_RMS>),
           (unsigned)cuda_layernorm_blocks(a->N, a->C), (unsigned)threads, 0, cuda_compute_stream())
    ((T *)a->din.data, partials, a->sums, (const T *)a->dout.data, (const T *)a->in.data,
     (const float *)a->mean.data, (const float *)a->rstd.data, (const T *)a->weight.data, (int)a->N,
     (int)a->C, 1.0f / (float)a->C, a->add_residual);
}

template <class T, bool IS_RMS>
static void launch_backward_packs(const LayerNormBackward *a, float *partials) {
    constexpr int MOST = sizeof(T) == 4 ? BACKWARD_LANE_COLS_FP32 : BACKWARD_LANE_COLS;
    const int64_t lane_cols = round_up(ceil_div(a->C, WARP), 8);
    if (lane_cols > MOST) return launch_backward<T, BACKWARD_BLOCK_COLS, true, IS_RMS>(a, partials);
    if (lane_cols <= 8) return launch_backward<T, 8, false, IS_RMS>(a, partials);
    if (lane_cols <= 16) return launch_backward<T, 16, false, IS_RMS>(a, partials);
    if constexpr (MOST > 16) launch_backward<T, MOST, false, IS_RMS>(a, partials);
}

template <bool IS_RMS>
static void launch_norm_backward(const char *op, const LayerNormBackward *a) {
    float *partials = (float *)cuda_scratch(op, cuda_size_layernorm(a->N, a->C));
    const void *rows[] = {a->din.data, a->dout.data, a->in.data, a->weight.data};
    bool packs = a->C <= BLOCK_ROW_MAX;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        packs = packs && pack_aligned(rows[i], a->C, a->in.dtype);
    if (packs) {
        DISPATCH(a->in.dtype, T, (launch_backward_packs<T, IS_RMS>(a, partials)));
    } else {
        DISPATCH(a->in.dtype, T, {
            LAUNCH((layernorm_backward_plain_kernel<T, IS_RMS>),
                   (unsigned)cuda_layernorm_blocks(a->N, a->C), plain_threads(a->C), 0,
                   cuda_compute_stream())
            ((T *)a->din.data, partials, a->sums, (const T *)a->dout.data, (const T *)a->in.data,
             (const float *)a->mean.data, (const float *)a->rstd.data, (const T *)a->weight.data,
             a->N, a->C, a->add_residual);
        });
    }
}

void backend_layernorm_backward(Gradient din, Gradient dweight, Gradient dbias, Gradient din_sum,
                                Tensor dout, Tensor in, Tensor mean, Tensor rstd, Tensor weight) {
    const int64_t C = tensor_numel(weight), N = tensor_numel(in) / C;
    RowSums sums = {{sum_into(dweight), sum_into(dbias), sum_into(din_sum)}, 2};
    if (din_sum.to.data) sums.count = 3;
    const LayerNormBackward a = {din.to, dout, in, mean, rstd, weight, sums, N, C, din.add};
    launch_norm_backward<false>("layernorm_backward", &a);
}

void backend_rmsnorm_backward(Gradient din, Gradient dweight, Gradient din_sum, Tensor dout,
                              Tensor in, Tensor rstd, Tensor weight) {
    const int64_t C = tensor_numel(weight), N = tensor_numel(in) / C;
    RowSums sums = {{sum_into(dweight), sum_into(din_sum)}, 1};
    if (din_sum.to.data) sums.count = 2;
    const LayerNormBackward a = {din.to, dout, in, tensor_none(), rstd, weight,
                                 sums,   N,    C,  din.add};
    launch_norm_backward<true>("rmsnorm_backward", &a);
}
