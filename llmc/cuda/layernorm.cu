// LayerNorm forward and backward.
//
// Every row is read from memory once. Forward, it stays in registers until it is written: a warp holds rows of up to
// 2048 columns, a block rows of up to 4096. Backward, a block holds the row in shared memory. Longer rows, and rows
// that are not a multiple of 16 bytes, take a plain path that re-reads the row from the L1 cache. The gradients of
// weight and bias sum over all rows: each block sums its rows in order, and cuda_sum_partials adds the blocks in order.
// The number of blocks depends on N and C alone, so the bits depend only on the shape.
#include "llmc/cuda/intrinsics.cuh"

#define EPSILON 1e-5f

// A lane holds up to 64 columns of a row: more would not leave registers for the loads in flight. A block that owns a
// row has 8 columns per thread and at most 512 threads.
enum { WARP_ROW_MAX = 64 * WARP, BLOCK_ROW_MAX = 8 * 512 };

// Threads of a block that owns rows of C columns, 8 columns a thread.
static int block_row_threads(int64_t C) { return cuda_layernorm_row_threads(C); }

// Threads of a block of the plain path: few idle threads for short rows, 256 for long ones.
static int plain_threads(int64_t C) { return C < 256 ? (int)round_up(C, WARP) : 256; }

// ------------------------------------------------------------------------------------------------------------- forward

typedef struct {
    Tensor out, mean, rstd, in, weight, bias;
    int64_t N, C;
} LayerNormForward;

// 4 rows per block: small enough to fill a multiprocessor to its last warp on every architecture.
enum { FORWARD_WARPS = 4 };

// out = (in - mean) * rstd * weight + bias; rows (N,C), mean and rstd (N) fp32.
// A warp (or, IS_BLOCK_ROW, a block) owns a row; thread t of it owns the packs t, t + threads, ...: at most LANE_COLS
// columns, and more than LANE_COLS - 8, so only packs beyond these may be outside the row. All loads of a row are in
// flight before the first is used. The minimum number of blocks lets ptxas use 128 registers (64 with IS_BLOCK_ROW):
// left to itself it spills some of them to fit more blocks. Bytes: 2 * N * C elements + 8 N. in is not needed again
// soon; out is read by the next matmul.
template <class T, int LANE_COLS, bool IS_BLOCK_ROW>
static __global__ void __launch_bounds__(IS_BLOCK_ROW ? BLOCK_ROW_MAX / 8 : FORWARD_WARPS *WARP, IS_BLOCK_ROW ? 2 : 4)
    layernorm_forward_kernel(T *out, float *mean, float *rstd, const T *in, const T *weight, const T *bias, int64_t N,
                             int C, float one_over_C) {
    wait_for_the_grid_before();
    constexpr int W = PACK<T>, PACKS = LANE_COLS / W;
    const int threads = IS_BLOCK_ROW ? (int)blockDim.x : (int)WARP;
    const int64_t row = IS_BLOCK_ROW ? blockIdx.x : (int64_t)blockIdx.x * FORWARD_WARPS + threadIdx.x / WARP;
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

    float sum = 0.0f, sum_squares = 0.0f;
    for (int i = 0; i < PACKS; i++) {
        if (!is_inside(i)) continue;
        to_floats(x[i], a[i]);
        for (int k = 0; k < W; k++) sum += x[i][k];
    }
    const float row_mean = (IS_BLOCK_ROW ? block_sum(sum) : warp_sum(sum)) * one_over_C;
    for (int i = 0; i < PACKS; i++) {
        if (!is_inside(i)) continue;
        for (int k = 0; k < W; k++) {
            x[i][k] -= row_mean;
            sum_squares += x[i][k] * x[i][k];
        }
    }
    const float variance = (IS_BLOCK_ROW ? block_sum(sum_squares) : warp_sum(sum_squares)) * one_over_C;
    const float row_rstd = rsqrtf(variance + EPSILON);
    if (lane == 0) {
        mean[row] = row_mean;
        rstd[row] = row_rstd;
    }
    for (int i = 0; i < PACKS; i++) {
        if (!is_inside(i)) continue;
        to_floats(y, load_vector<T, W>(weight + (lane + i * threads) * W));
        for (int k = 0; k < W; k++) x[i][k] *= row_rstd * y[k];
        add_to(x[i], load_vector<T, W>(bias + (lane + i * threads) * W));
        store_vector(out + first + i * threads * W, from_floats<T>(x[i]));
    }
}

// The same for any C and any alignment: a block owns a row; a thread owns every blockDim-th column and makes three
// passes over them.
template <class T>
static __global__ void __launch_bounds__(256)
    layernorm_forward_plain_kernel(T *out, float *mean, float *rstd, const T *in, const T *weight, const T *bias,
                                   int64_t C) {
    wait_for_the_grid_before();
    const int64_t row = blockIdx.x, first = row * C;
    float sum = 0.0f, sum_squares = 0.0f;
    for (int64_t c = threadIdx.x; c < C; c += blockDim.x) sum += to_float(in[first + c]);
    const float row_mean = block_sum(sum) / (float)C;
    for (int64_t c = threadIdx.x; c < C; c += blockDim.x) {
        const float centered = to_float(in[first + c]) - row_mean;
        sum_squares += centered * centered;
    }
    const float row_rstd = rsqrtf(block_sum(sum_squares) / (float)C + EPSILON);
    for (int64_t c = threadIdx.x; c < C; c += blockDim.x)
        out[first + c] =
            from_float<T>((to_float(in[first + c]) - row_mean) * row_rstd * to_float(weight[c]) + to_float(bias[c]));
    if (threadIdx.x == 0) {
        mean[row] = row_mean;
        rstd[row] = row_rstd;
    }
}

template <class T, int LANE_COLS, bool IS_BLOCK_ROW> static void launch_forward(const LayerNormForward *a) {
    const int64_t blocks = IS_BLOCK_ROW ? a->N : ceil_div(a->N, FORWARD_WARPS);
    const int threads = IS_BLOCK_ROW ? block_row_threads(a->C) : FORWARD_WARPS * WARP;
    LAUNCH((layernorm_forward_kernel<T, LANE_COLS, IS_BLOCK_ROW>), (unsigned)blocks, threads, 0, cuda_compute_stream())
    ((T *)a->out.data, (float *)a->mean.data, (float *)a->rstd.data, (const T *)a->in.data, (const T *)a->weight.data,
     (const T *)a->bias.data, a->N, (int)a->C, 1.0f / (float)a->C);
}

template <class T> static void launch_forward_plain(const LayerNormForward *a) {
    LAUNCH(layernorm_forward_plain_kernel<T>, (unsigned)a->N, plain_threads(a->C), 0, cuda_compute_stream())
    ((T *)a->out.data, (float *)a->mean.data, (float *)a->rstd.data, (const T *)a->in.data, (const T *)a->weight.data,
     (const T *)a->bias.data, a->C);
}

// The minimum columns per lane that hold the row: C = 768 needs 24, 1024 32, 1280 40, 1600 56.
template <class T> static void launch_forward_packs(const LayerNormForward *a) {
    if (a->C > WARP_ROW_MAX) return launch_forward<T, 8, true>(a);
    switch (ceil_div(a->C, 8 * WARP)) {
    case 1:
        return launch_forward<T, 8, false>(a);
    case 2:
        return launch_forward<T, 16, false>(a);
    case 3:
        return launch_forward<T, 24, false>(a);
    case 4:
        return launch_forward<T, 32, false>(a);
    case 5:
        return launch_forward<T, 40, false>(a);
    case 6:
        return launch_forward<T, 48, false>(a);
    case 7:
        return launch_forward<T, 56, false>(a);
    default:
        return launch_forward<T, 64, false>(a);
    }
}

void backend_layernorm_forward(Tensor out, Tensor mean, Tensor rstd, Tensor in, Tensor weight, Tensor bias) {
    const int64_t C = tensor_numel(weight), N = tensor_numel(in) / C;
    const LayerNormForward a = {out, mean, rstd, in, weight, bias, N, C};
    const void *rows[] = {out.data, in.data, weight.data, bias.data};
    bool packs = C <= BLOCK_ROW_MAX;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) packs = packs && pack_aligned(rows[i], C, in.dtype);
    if (packs) {
        DISPATCH(in.dtype, T, launch_forward_packs<T>(&a));
    } else {
        DISPATCH(in.dtype, T, launch_forward_plain<T>(&a));
    }
}

// ------------------------------------------------------------------------------------------------------------ backward

typedef struct {
    Tensor din, dout, in, mean, rstd, weight;
    int64_t N, C;
    bool add_residual;
} LayerNormBackward;

// Rows are dealt to blocks in groups, block b takes the groups b, b + blocks, .... All blocks together have 96K
// threads, 768 on each of 128 multiprocessors, the maximum at 80 registers per thread. Their partial sums are 6 MB for
// every C, 1.6% of the bytes at C = 768, N = 65536. Short inputs get fewer blocks, so that each has 16 rows to amortise
// its partial sums. The number depends on N and C alone, never on the GPU, because it determines the order of
// additions.
enum { BACKWARD_THREADS = 768, TOTAL_THREADS = LAYERNORM_TOTAL_THREADS, MIN_BLOCK_ROWS = LAYERNORM_MIN_BLOCK_ROWS };

static int64_t backward_blocks(int64_t N, int64_t C) {
    const int64_t most = ceil_div(TOTAL_THREADS, block_row_threads(C)), wanted = ceil_div(N, MIN_BLOCK_ROWS);
    return wanted < most ? wanted : most;
}

// din = or += rstd * (dnorm - mean_C(dnorm) - xhat * mean_C(dnorm * xhat)) for all rows; partials (blocks,2,C) fp32 =
// the block's sums of dout * xhat and of dout.
// A block owns ROWS rows at a time, thread t of it the packs t, t + threads, ... of each: 8 columns, whose weights and
// 16 partial sums stay in its registers throughout, so their number does not grow with C. The loads of ROWS rows are in
// flight together; in and dout are then kept in shared memory, unconverted and private to each thread. The two sums of
// a row also go through shared memory, warps in order; two buffers alternate, so that one barrier serves ROWS rows.
// Bytes: 3 (with add_residual 4) * N * C elements + 8 N + 8 * blocks * C.
template <class T, int MAX_THREADS>
static __global__ void __launch_bounds__(MAX_THREADS, BACKWARD_THREADS / MAX_THREADS)
    layernorm_backward_kernel(T *din, float *partials, const T *dout, const T *in, const float *mean, const float *rstd,
                              const T *weight, int N, int C, float one_over_C, bool add_residual) {
    wait_for_the_grid_before();
    constexpr int W = PACK<T>, PACKS = 8 / W, ROWS = 2 / PACKS, WARPS = MAX_THREADS / WARP;
    __shared__ float2 sums[2][WARPS][ROWS];                      // of dnorm, of dnorm * xhat over a warp's columns
    __shared__ Vector<T, W> staged[ROWS][PACKS][2][MAX_THREADS]; // in, dout
    const int threads = (int)blockDim.x, thread = (int)threadIdx.x;
    float dweight[PACKS][W] = {}, dbias[PACKS][W] = {}, w[PACKS][W] = {};
    int columns[PACKS]; // start of each pack; packs outside the row have weight 0 and read column 0
    bool is_inside[PACKS];
    for (int i = 0; i < PACKS; i++) {
        columns[i] = (thread + i * threads) * W;
        is_inside[i] = columns[i] < C;
        if (is_inside[i]) to_floats(w[i], load_vector<T, W>(weight + columns[i]));
        if (!is_inside[i]) columns[i] = 0;
    }
    // Missing warps count as 0, so that all sums are read without a loop.
    float2 *all_sums = &sums[0][0][0];
    for (int i = thread; i < 2 * WARPS * ROWS; i += threads) all_sums[i] = make_float2(0.0f, 0.0f);
    __syncthreads();

    int buffer = 0;
    for (int first = (int)blockIdx.x * ROWS; first < N; first += (int)gridDim.x * ROWS, buffer ^= 1) {
        const int rows = min(ROWS, N - first); // rows beyond the last re-read it
        Vector<T, W> x[ROWS][PACKS], dy[ROWS][PACKS], residual[ROWS][PACKS];
        float row_rstd[ROWS], shift[ROWS]; // xhat = in * rstd + shift
        int64_t at[ROWS];
        for (int j = 0; j < ROWS; j++) {
            const int row = min(first + j, N - 1);
            at[j] = (int64_t)row * C;
            for (int i = 0; i < PACKS; i++) {
                x[j][i] = load_vector<T, W, true>(in + at[j] + columns[i]);
                dy[j][i] = load_vector<T, W, true>(dout + at[j] + columns[i]);
                residual[j][i] = load_or_zero<T, W, true>(din + at[j] + columns[i], add_residual);
            }
            row_rstd[j] = rstd[row];
            shift[j] = -mean[row] * row_rstd[j];
        }
        for (int j = 0; j < ROWS; j++) {
            float sum = 0.0f, sum_xhat = 0.0f, a[W], d[W];
            for (int i = 0; i < PACKS; i++) {
                staged[j][i][0][thread] = x[j][i];
                staged[j][i][1][thread] = dy[j][i];
                to_floats(a, x[j][i]);
                to_floats(d, dy[j][i]);
                for (int k = 0; k < W && j < rows; k++) {
                    const float d_xhat = d[k] * (a[k] * row_rstd[j] + shift[j]);
                    sum += d[k] * w[i][k];
                    sum_xhat += d_xhat * w[i][k];
                    dweight[i][k] += d_xhat;
                    dbias[i][k] += d[k];
                }
            }
            sum = warp_sum(sum);
            sum_xhat = warp_sum(sum_xhat);
            if (thread % WARP == 0) sums[buffer][thread / WARP][j] = make_float2(sum, sum_xhat);
        }
        __syncthreads();
        float2 total[ROWS] = {};
        for (int warp = 0; warp < WARPS; warp++)
            for (int j = 0; j < ROWS; j++) {
                total[j].x += sums[buffer][warp][j].x;
                total[j].y += sums[buffer][warp][j].y;
            }
        for (int j = 0; j < ROWS; j++) {
            // rstd * (dnorm - mean(dnorm) - xhat * mean(dnorm xhat)) = dnorm * rstd + in * slope + offset
            const float slope = -row_rstd[j] * row_rstd[j] * total[j].y * one_over_C;
            const float offset = -row_rstd[j] * (total[j].x + shift[j] * total[j].y) * one_over_C;
            float a[W], d[W], dx[W];
            for (int i = 0; i < PACKS; i++) {
                if (j >= rows || !is_inside[i]) continue;
                to_floats(a, staged[j][i][0][thread]);
                to_floats(d, staged[j][i][1][thread]);
                to_floats(dx, residual[j][i]);
                for (int k = 0; k < W; k++) dx[k] += d[k] * w[i][k] * row_rstd[j] + (a[k] * slope + offset);
                store_vector(din + at[j] + columns[i], from_floats<T>(dx));
            }
        }
    }
    for (int i = 0; i < PACKS; i++) {
        if (!is_inside[i]) continue;
        float *partial = partials + (int64_t)blockIdx.x * 2 * C + columns[i];
        store_vector(partial, from_floats<float>(dweight[i]));
        store_vector(partial + C, from_floats<float>(dbias[i]));
    }
}

// The same for any C and any alignment: a block processes its rows one after another, a thread every blockDim-th
// column; the partial sums of its columns are in memory, private to the thread.
template <class T>
static __global__ void __launch_bounds__(256)
    layernorm_backward_plain_kernel(T *din, float *partials, const T *dout, const T *in, const float *mean,
                                    const float *rstd, const T *weight, int64_t N, int64_t C, bool add_residual) {
    wait_for_the_grid_before();
    float *dweight = partials + (int64_t)blockIdx.x * 2 * C, *dbias = dweight + C;
    for (int64_t row = blockIdx.x; row < N; row += gridDim.x) {
        const bool is_first = row == blockIdx.x;
        const T *x = in + row * C, *dy = dout + row * C;
        float sum = 0.0f, sum_xhat = 0.0f;
        for (int64_t c = threadIdx.x; c < C; c += blockDim.x) {
            const float d = to_float(dy[c]), xhat = (to_float(x[c]) - mean[row]) * rstd[row];
            sum += d * to_float(weight[c]);
            sum_xhat += d * to_float(weight[c]) * xhat;
            dweight[c] = is_first ? d * xhat : dweight[c] + d * xhat;
            dbias[c] = is_first ? d : dbias[c] + d;
        }
        sum = block_sum(sum) / (float)C;
        sum_xhat = block_sum(sum_xhat) / (float)C;
        for (int64_t c = threadIdx.x; c < C; c += blockDim.x) {
            const float xhat = (to_float(x[c]) - mean[row]) * rstd[row];
            const float dx = (to_float(dy[c]) * to_float(weight[c]) - sum - xhat * sum_xhat) * rstd[row];
            din[row * C + c] = from_float<T>(add_residual ? dx + to_float(din[row * C + c]) : dx);
        }
    }
}

template <class T, int MAX_THREADS> static void launch_backward(const LayerNormBackward *a, float *partials) {
    LAUNCH((layernorm_backward_kernel<T, MAX_THREADS>), (unsigned)backward_blocks(a->N, a->C), block_row_threads(a->C),
           0, cuda_compute_stream())
    ((T *)a->din.data, partials, (const T *)a->dout.data, (const T *)a->in.data, (const float *)a->mean.data,
     (const float *)a->rstd.data, (const T *)a->weight.data, (int)a->N, (int)a->C, 1.0f / (float)a->C, a->add_residual);
}

template <class T> static void launch_backward_packs(const LayerNormBackward *a, float *partials) {
    const int threads = block_row_threads(a->C);
    if (threads <= 128) return launch_backward<T, 128>(a, partials);
    if (threads <= 256) return launch_backward<T, 256>(a, partials);
    launch_backward<T, BLOCK_ROW_MAX / 8>(a, partials);
}

template <class T> static void launch_backward_plain(const LayerNormBackward *a, float *partials) {
    LAUNCH(layernorm_backward_plain_kernel<T>, (unsigned)backward_blocks(a->N, a->C), plain_threads(a->C), 0,
           cuda_compute_stream())
    ((T *)a->din.data, partials, (const T *)a->dout.data, (const T *)a->in.data, (const float *)a->mean.data,
     (const float *)a->rstd.data, (const T *)a->weight.data, a->N, a->C, a->add_residual);
}

void backend_layernorm_backward(Tensor din, Tensor dweight, Tensor dbias, Tensor dout, Tensor in, Tensor mean,
                                Tensor rstd, Tensor weight, bool add_residual, bool accumulate) {
    const int64_t C = tensor_numel(weight), N = tensor_numel(in) / C;
    const LayerNormBackward a = {din, dout, in, mean, rstd, weight, N, C, add_residual};
    float *partials = (float *)cuda_scratch("layernorm_backward", cuda_size_layernorm(N, C));
    const void *rows[] = {din.data, dout.data, in.data, weight.data};
    bool packs = C <= BLOCK_ROW_MAX;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) packs = packs && pack_aligned(rows[i], C, in.dtype);
    if (packs) {
        DISPATCH(in.dtype, T, launch_backward_packs<T>(&a, partials));
    } else {
        DISPATCH(in.dtype, T, launch_backward_plain<T>(&a, partials));
    }
    cuda_sum_partials(dweight, dbias, partials, backward_blocks(N, C), accumulate);
}
