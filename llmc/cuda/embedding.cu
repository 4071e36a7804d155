// Token and position embeddings and their gradients. Tokens are trusted: the host checked them when
// it read the data.
//
// The gradient of a token's row sums over the positions of the token: one position or all of them.
// The positions are sorted by token and cut into tiles of TILE, so every block has the same work
// for any text. A run of equal tokens inside a tile is added to its row at once. A run that crosses
// tiles leaves one fp32 sum in each of them, and a last kernel adds these in order. No float
// atomics: the order of every sum depends on the tokens alone.
//
// Bytes, with u the bytes of dout (N,C): forward 2 u, the minimum. Backward 2 u (once for tokens,
// once for positions), each row of dwte that occurs and each row of dwpe once read and once
// written, and at most u / 8 (16-bit dout; fp32: u / 16) for the sums of runs between tiles.
#include "llmc/cuda/intrinsics.cuh"

// ----------------------------------------------------------------------------------------- forward

enum { ROW_THREADS = 256 }; // streaming kernels: each thread moves N elements of a row, 16 bytes

// Thread i owns elements [c, c + N) of row n = i / (C / N). Reads 4 bytes of token a row, a row of
// wte and one of wpe (which stays in L2, and may be NULL), writes a row of out.
template <class T, int N>
static __global__ void __launch_bounds__(ROW_THREADS)
    embedding_forward_kernel(T *out, const int32_t *tokens, const T *wte, const T *wpe, int rows,
                             int context, int C) {
    wait_for_the_grid_before();
    const unsigned i = blockIdx.x * ROW_THREADS + threadIdx.x, per_row = (unsigned)(C / N);
    const unsigned n = i / per_row, c = i % per_row * N;
    if (n >= (unsigned)rows) return;
    float sum[N];
    to_floats(sum, load_vector<T, N>(wte + (int64_t)tokens[n] * C + c));
    if (wpe) add_to(sum, load_vector<T, N>(wpe + (int64_t)(n % (unsigned)context) * C + c));
    store_vector(out + (int64_t)n * C + c, from_floats<T, N>(sum));
}

// Blocks of ROW_THREADS for one thread to every `width` elements of `rows` rows.
static dim3 row_blocks(const char *op, int64_t rows, int64_t C, int width) {
    const int64_t threads = rows * (C / width);
    REQUIRE(threads < (int64_t)1 << 31, "%s: %lld rows of %lld channels", op, (long long)rows,
            (long long)C);
    return dim3((unsigned)ceil_div(threads, ROW_THREADS));
}

void backend_embedding_forward(Tensor out, Tensor tokens, Tensor wte, Tensor wpe) {
    const int rows = (int)tensor_numel(tokens), C = (int)tensor_cols(wte),
              context = (int)tensor_cols(tokens);
    const bool packed = pack_aligned(out.data, C, out.dtype) &&
                        pack_aligned(wte.data, C, wte.dtype) &&
                        pack_aligned(wpe.data, C, wpe.dtype);
    DISPATCH_PACKS(wte.dtype, packed, T, N, {
        const dim3 grid = row_blocks("embedding_forward", rows, C, N);
        LAUNCH((embedding_forward_kernel<T, N>), grid, ROW_THREADS, 0, cuda_compute_stream())
        ((T *)out.data, (const int32_t *)tokens.data, (const T *)wte.data, (const T *)wpe.data,
         rows, context, C);
    });
}

// ----------------------------------------------------------------------------------- with its norm

enum { ROW_WARPS = ROW_THREADS / WARP };

// BACKWARD: rows (N,C) holds the gradient of what the forward pass wrote there, and becomes that of
// the rows of wte. A warp owns a row, a lane N columns of every 32 N. It reads the row of wte, and
// backward that of the gradient, twice, the second time from the L1 cache. Bytes: u forward, 2 u
// backward, and the rows of wte that occur. Launch: ROW_WARPS rows to a block.
template <class T, int N, bool BACKWARD>
static __global__ void __launch_bounds__(ROW_THREADS)
    embedding_norm_kernel(T *rows, const int32_t *tokens, const T *wte, int count, int C,
                          float one_over_C, float eps) {
    wait_for_the_grid_before();
    const int n = (int)(blockIdx.x * ROW_WARPS + threadIdx.x / WARP),
              first = (int)(threadIdx.x % WARP) * N;
    if (n >= count) return; // whole warps
    const T *e = wte + (int64_t)tokens[n] * C;
    T *row = rows + (int64_t)n * C;
    float x[N], d[N], squares = 0.0f, products = 0.0f, along = 0.0f;
    for (int c = first; c < C; c += WARP * N) {
        to_floats(x, load_vector<T, N>(e + c));
        for (int k = 0; k < N; k++) squares += x[k] * x[k];
        if constexpr (!BACKWARD) continue;
        to_floats(d, load_vector<T, N>(row + c));
        for (int k = 0; k < N; k++) products += d[k] * x[k];
    }
    const float rstd = rsqrtf(warp_sum(squares) * one_over_C + eps);
    // of e in the gradient
    if constexpr (BACKWARD) along = warp_sum(products) * one_over_C * rstd * rstd;
    for (int c = first; c < C; c += WARP * N) {
        to_floats(x, load_vector<T, N>(e + c));
        if constexpr (BACKWARD) {
            to_floats(d, load_vector<T, N>(row + c));
            for (int k = 0; k < N; k++) x[k] = d[k] - x[k] * along;
        }
        for (int k = 0; k < N; k++) x[k] *= rstd;
        store_vector(row + c, from_floats<T, N>(x));
    }
}

template <bool BACKWARD>
static void launch_embedding_norm(Tensor rows, Tensor tokens, Tensor wte, float eps) {
    const int64_t count = tensor_numel(tokens), C = tensor_cols(wte);
    const bool packed =
        pack_aligned(rows.data, C, rows.dtype) && pack_aligned(wte.data, C, wte.dtype);
    REQUIRE(count < (int64_t)1 << 31, "embedding_norm: %lld rows", (long long)count);
    DISPATCH_PACKS(wte.dtype, packed, T, N, {
        LAUNCH((embedding_norm_kernel<T, N, BACKWARD>), (unsigned)ceil_div(count, ROW_WARPS),
               ROW_THREADS, 0, cuda_compute_stream())
        ((T *)rows.data, (const int32_t *)tokens.data, (const T *)wte.data, (int)count, (int)C,
         1.0f / (float)C, eps);
    });
}

void backend_embedding_norm_forward(Tensor out, Tensor tokens, Tensor wte, float eps) {
    launch_embedding_norm<false>(out, tokens, wte, eps);
}

void backend_embedding_norm_backward(Tensor dout, Tensor tokens, Tensor wte, float eps) {
    launch_embedding_norm<true>(dout, tokens, wte, eps);
}

// ---------------------------------------------------------------------------------------- the sort
// The positions of a batch sorted by their token, in one launch: a counting sort in which
// no block needs the result of another. Stable, and the same from run to run.
//
// Token t belongs to block t mod BLOCKS: frequent tokens have small numbers, neighbours in number
// go to different blocks. Every block reads all tokens, twice, and writes the positions of its own
// tokens only; the tokens of the blocks before it, which it counts on the way, give the offset.
// Reads are many but cheap: 67 MB from the L2 cache for 65,536 positions, in one launch, against
// six launches on 2 MB for a radix sort of 16-bit keys.

// 16 warps: each counts for itself in shared memory, up to 512 tokens a block, 32 KB.
enum { SORT_THREADS = 512, SORT_WARPS = SORT_THREADS / WARP, MAX_OWN = SORT_THREADS };
// About one block a multiprocessor, fewer for few positions, more only where a block would own more
// than MAX_OWN tokens.
enum { ENOUGH_BLOCKS = 128, POSITIONS_OF_A_BLOCK = 512 };

// Tokens whose loads a lane issues before it looks at the first: few warps run here, and the L2
// cache is far.
enum { AHEAD = 8 };

// token[j] of position p + 32 j, -1 from `end` on.
static __device__ __forceinline__ void load_ahead(int (&token)[AHEAD], const int32_t *tokens, int p,
                                                  int end) {
    for (int j = 0; j < AHEAD; j++) token[j] = p + j * WARP < end ? tokens[p + j * WARP] : -1;
}

// Exclusive sum over the threads of the block.
static __device__ int block_exclusive_sum(int v) {
    __shared__ int total[SORT_WARPS];
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    int inclusive = v;
    for (int offset = 1; offset < WARP; offset *= 2) {
        const int below = __shfl_up_sync(ALL_LANES, inclusive, offset);
        if (lane >= offset) inclusive += below;
    }
    if (lane == WARP - 1) total[warp] = inclusive;
    __syncthreads();
    int before = 0;
    for (int w = 0; w < warp; w++) before += total[w];
    return before + inclusive - v;
}

// tokens (N) i32 in [0, Vp). order (N) i32: all positions; equal tokens are adjacent, in order of
// position. The order of different tokens is unspecified. The warp reads the positions [begin, end)
// in order, 32 at a time. Launch: BLOCKS blocks (a power of two, 1 << shift) of SORT_THREADS.
// Position p is looked at by lane p % 32 of the warp that owns its section, in every block.
static __global__ void __launch_bounds__(SORT_THREADS)
    token_sort_kernel(int32_t *order, const int32_t *tokens, int N, int shift) {
    wait_for_the_grid_before();
    __shared__ int next[SORT_WARPS][MAX_OWN]; // occurrences of an own token in a section, then
                                              // where its next one goes
    __shared__ int before_block[1]; // positions whose tokens belong to the blocks before this one
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, own = (int)blockIdx.x;
    // positions of a warp, a multiple of 32
    const int section = ((N + SORT_THREADS - 1) / SORT_THREADS) * WARP;
    const int begin = min(N, warp * section), end = min(N, begin + section),
              mask = (1 << shift) - 1;

    for (int w = 0; w < SORT_WARPS; w++) next[w][threadIdx.x] = 0;
    if (threadIdx.x == 0) before_block[0] = 0;
    __syncthreads();

    int before = 0, token[AHEAD];
    for (int at = begin; at < end; at += AHEAD * WARP) {
        load_ahead(token, tokens, at + lane, end);
        for (int j = 0; j < AHEAD; j++) {
            if (token[j] < 0) continue;
            before += (token[j] & mask) < own;
            if ((token[j] & mask) == own) atomicAdd(&next[warp][token[j] >> shift], 1);
        }
    }
    atomicAdd(before_block, before);
    __syncthreads();

    // Thread i turns the counts of own token i into places: tokens in order, the sections of a
    // token in order.
    int count = 0;
    for (int w = 0; w < SORT_WARPS; w++) count += next[w][threadIdx.x];
    int place = before_block[0] + block_exclusive_sum(count);
    for (int w = 0; w < SORT_WARPS; w++) {
        const int occurrences = next[w][threadIdx.x];
        next[w][threadIdx.x] = place;
        place += occurrences;
    }
    __syncthreads();

    for (int at = begin; at < end; at += AHEAD * WARP) { // all lanes stay: they meet in the votes
        load_ahead(token, tokens, at + lane, end);
        for (int j = 0; j < AHEAD; j++) {
            const bool mine = token[j] >= 0 && (token[j] & mask) == own;
            if (__ballot_sync(ALL_LANES, mine) == 0) continue;
            // Lanes with the same token: the lowest takes their places from the counter, each goes
            // after those below.
            const unsigned same = __match_any_sync(ALL_LANES, mine ? token[j] : -1);
            const int leader = __ffs((int)same) - 1;
            int first = 0;
            if (mine && lane == leader)
                first = atomicAdd(&next[warp][token[j] >> shift], __popc(same));
            first = __shfl_sync(ALL_LANES, first, leader);
            if (mine) order[first + __popc(same & ((1u << lane) - 1))] = at + j * WARP + lane;
        }
    }
}

// ---------------------------------------------------------------------------------------- backward

// Rows whose loads a thread issues before it uses the first. Rows after the end count as zeros,
// without branches: a branch between the loads makes the compiler issue each one where it is used.
enum { ROWS_IN_FLIGHT = 8 };

// sum += N columns of `count` rows that are `stride` elements apart, in order.
template <class T, int N>
static __device__ __forceinline__ void add_strided_rows(float (&sum)[N], const T *row,
                                                        int64_t stride, int count) {
    for (int i = 0; i < count; i += ROWS_IN_FLIGHT) {
        Vector<T, N> x[ROWS_IN_FLIGHT];
        for (int j = 0; j < ROWS_IN_FLIGHT; j++)
            x[j] = load_or_zero<T, N>(row + (i + j) * stride, i + j < count);
        for (int j = 0; j < ROWS_IN_FLIGHT; j++) add_to(sum, x[j]);
    }
}

// -------------------------------------------------------------------------------- backward, tokens

// Sorted positions a block sums. 64: 1,024 tiles of three warps at N = 65,536 and C = 768, 23 warps
// for each of 132 multiprocessors; the sums between tiles cost u / 8 at most.
enum { TILE = EMBEDDING_TILE };
enum { TILE_THREADS = 256 }; // at most: a thread owns N columns
// The partials of a tile for runs that cross its ends: the run that began before it, and the one
// that began in it.
enum { BEGAN_BEFORE, BEGAN_HERE, PARTIALS };
static_assert((int)PARTIALS == (int)EMBEDDING_PARTIALS, "gpu_sizes.h");

// Block (x, y): tile x of the sorted positions, columns from y * blockDim.x * N. Thread: N columns,
// all rows of the tile. partials (tiles, PARTIALS, C) fp32. Reads each row of dout once and writes
// a partial for each end of the tile that a run crosses; runs inside the tile read and write a row
// of dwte.
template <class T, class G, int N>
static __global__ void __launch_bounds__(TILE_THREADS)
    token_tiles_kernel(G *dwte, float *partials, const T *dout, const int32_t *order,
                       const int32_t *tokens, int positions, int C) {
    wait_for_the_grid_before();
    __shared__ int place[TILE];     // rows of the tile in dout; 0 after the last one
    __shared__ int token[TILE + 2]; // token[1 + i] is its token; at both ends the tile's
                                    // neighbours, -1 for none
    const int first = (int)blockIdx.x * TILE, count = min((int)TILE, positions - first);
    for (int i = (int)threadIdx.x; i < TILE + 2; i += (int)blockDim.x) {
        const int at = first + i - 1;
        const bool inside = at >= 0 && at < positions;
        const int p = inside ? order[at] : 0;
        token[i] = inside ? tokens[p] : -1;
        if (i >= 1 && i <= TILE) place[i - 1] = p;
    }
    __syncthreads();
    const int c = (int)(blockIdx.y * blockDim.x + threadIdx.x) * N;
    if (c >= C) return;

    bool began_before = token[0] == token[1];
    float sum[N] = {};
    for (int i = 0; i < count; i += ROWS_IN_FLIGHT) {
        Vector<T, N> x[ROWS_IN_FLIGHT];
        for (int j = 0; j < ROWS_IN_FLIGHT; j++)
            x[j] = load_or_zero<T, N>(dout + (int64_t)place[i + j] * C + c, i + j < count);
        for (int j = 0; j < ROWS_IN_FLIGHT; j++) {
            const int r = i + j;
            add_to(sum, x[j]);
            const bool goes_on = token[r + 2] == token[r + 1];
            if (r >= count || (goes_on && r + 1 < count)) continue;
            if (began_before || goes_on) {
                const int which = began_before ? BEGAN_BEFORE : BEGAN_HERE;
                float *partial = partials + ((int64_t)blockIdx.x * PARTIALS + which) * C + c;
                store_vector(partial, from_floats<float, N>(sum));
            } else {
                add_vector<G, N>(dwte + (int64_t)token[r + 1] * C + c, sum);
            }
            began_before = false;
            for (int k = 0; k < N; k++) sum[k] = 0.0f;
        }
    }
}

// Four warps share the partials of a run: of a run over all 65,536 positions each adds 256.
enum { RUN_WARPS = 4, RUN_THREADS = RUN_WARPS * WARP, RUN_COLUMNS = 4 };

// Block (x, y): the run, if any, that begins in tile x and continues after it, columns from y *
// WARP * N. Lane: N columns. Each warp adds an equal share of the partials in order; the first warp
// adds these sums in order, and the result to the row of dwte. Reads the partials once.
template <class G, int N>
static __global__ void __launch_bounds__(RUN_THREADS)
    token_runs_kernel(G *dwte, const float *partials, const int32_t *order, const int32_t *tokens,
                      int positions, int C) {
    wait_for_the_grid_before();
    const int tile = (int)blockIdx.x, first = tile * TILE, behind = first + TILE,
              token = tokens[order[behind - 1]];
    if (tokens[order[behind]] != token) return;
    // began before
    if (tile > 0 && tokens[order[first]] == token && tokens[order[first - 1]] == token) return;
    int reach = 0; // later tiles that the run reaches into
    for (int found = RUN_THREADS; found == RUN_THREADS; reach += found) {
        const int at = (tile + 1 + reach + (int)threadIdx.x) * TILE;
        found =
            __syncthreads_count(at < positions && tokens[order[min(at, positions - 1)]] == token);
    }
    __shared__ float part[RUN_WARPS][WARP * N];
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const int c = ((int)blockIdx.y * WARP + lane) * N, share = (reach + RUN_WARPS - 1) / RUN_WARPS;
    const int begin = min(reach, warp * share), end = min(reach, begin + share);
    const int64_t stride = (int64_t)PARTIALS * C; // of tiles
    const float *here = partials + tile * stride + BEGAN_HERE * C + c;
    float sum[N] = {};
    if (c < C)
        add_strided_rows(sum, partials + (tile + 1 + begin) * stride + BEGAN_BEFORE * C + c, stride,
                         end - begin);
    for (int k = 0; k < N; k++) part[warp][k * WARP + lane] = sum[k];
    __syncthreads();
    if (warp > 0 || c >= C) return;
    const Vector<float, N> began = load_vector<float, N>(here);
    for (int k = 0; k < N; k++) {
        sum[k] = began.v[k];
        for (int w = 0; w < RUN_WARPS; w++) sum[k] += part[w][k * WARP + lane];
    }
    add_vector<G, N>(dwte + (int64_t)token * C + c, sum);
}

// dwte += ..., with N columns of dout to a thread.
template <class T, class G, int N>
static void tokens_backward(Tensor dwte, Tensor dout, Tensor tokens) {
    constexpr int RUN = N > 1 ? RUN_COLUMNS : 1; // columns of the fp32 partials to a thread
    const int64_t positions = tensor_numel(tokens), C = tensor_cols(dout),
                  tiles = ceil_div(positions, TILE);
    const CudaEmbeddingLayout l = cuda_size_embedding(positions, C);
    char *scratch = (char *)cuda_scratch("embedding_backward", l.end);
    int32_t *order = (int32_t *)(scratch + l.order);
    float *partials = (float *)(scratch + l.partials);
    const int32_t *token = (const int32_t *)tokens.data;
    const int64_t width = C / N, threads = min_i64(round_up(width, WARP), TILE_THREADS);
    const dim3 tile_grid((unsigned)tiles, (unsigned)ceil_div(width, threads));
    const dim3 run_grid((unsigned)tiles - 1, (unsigned)ceil_div(C, WARP * RUN));
    const cudaStream_t stream = cuda_compute_stream();

    REQUIRE(positions < (int64_t)1 << 30, "embedding_backward: %lld positions",
            (long long)positions);
    const int64_t useful = ceil_div(positions, POSITIONS_OF_A_BLOCK);
    int shift = 0; // of the number of blocks that sort
    while ((1 << shift < ENOUGH_BLOCKS && 1 << shift < useful) ||
           ceil_div(tensor_rows(dwte), 1 << shift) > MAX_OWN)
        shift++;

    LAUNCH(token_sort_kernel, 1 << shift, SORT_THREADS, 0, stream)
    (order, token, (int)positions, shift);
    LAUNCH((token_tiles_kernel<T, G, N>), tile_grid, (unsigned)threads, 0, stream)
    ((G *)dwte.data, partials, (const T *)dout.data, order, token, (int)positions, (int)C);
    if (tiles == 1) return;
    LAUNCH((token_runs_kernel<G, RUN>), run_grid, RUN_THREADS, 0, stream)
    ((G *)dwte.data, partials, order, token, (int)positions, (int)C);
}

// ----------------------------------------------------------------------------- backward, positions

// Thread i owns elements [c, c + N) of row t = i / (C / N) of dwpe and adds the B rows of dout that
// belong to it, in order. Reads dout once; reads (add) and writes rows of dwpe once.
template <class T, class G, int N>
static __global__ void __launch_bounds__(ROW_THREADS)
    position_rows_kernel(G *dwpe, const T *dout, int B, int context, int C, int rows, bool add) {
    wait_for_the_grid_before();
    const unsigned i = blockIdx.x * ROW_THREADS + threadIdx.x, per_row = (unsigned)(C / N);
    const int t = (int)(i / per_row), c = (int)(i % per_row) * N;
    if (t >= rows) return;
    float sum[N] = {};
    if (t < context) add_strided_rows(sum, dout + (int64_t)t * C + c, (int64_t)context * C, B);
    G *to = dwpe + (int64_t)t * C + c;
    if (add) {
        add_vector<G, N>(to, sum);
        return;
    }
    store_vector(to, from_floats<G, N>(sum));
}

template <class T, class G, int N>
static void positions_backward(Gradient dwpe, Tensor dout, Tensor tokens) {
    const int context = (int)tensor_cols(tokens), B = (int)tensor_rows(tokens),
              C = (int)tensor_cols(dout);
    const int rows = dwpe.add ? context : (int)tensor_rows(dwpe.to);
    const dim3 grid = row_blocks("embedding_backward", rows, C, N);
    LAUNCH((position_rows_kernel<T, G, N>), grid, ROW_THREADS, 0, cuda_compute_stream())
    ((G *)dwpe.to.data, (const T *)dout.data, B, context, C, rows, dwpe.add);
}

void backend_embedding_backward(Gradient dwte, Gradient dwpe, Tensor dout, Tensor tokens) {
    const bool packed = pack_aligned(dout.data, tensor_cols(dout), dout.dtype);
    if (!dwte.add) backend_tensor_fill(dwte.to, 0.0f);
    DISPATCH_PACKS(dout.dtype, packed && (uintptr_t)dwte.to.data % 16 == 0, T, N, {
        if (dwte.to.dtype == DTYPE_FP32)
            tokens_backward<T, float, N>(dwte.to, dout, tokens);
        else
            tokens_backward<T, T, N>(dwte.to, dout, tokens);
    });
    if (!dwpe.to.data) return;
    DISPATCH_PACKS(dout.dtype, packed && (uintptr_t)dwpe.to.data % 16 == 0, T, N, {
        if (dwpe.to.dtype == DTYPE_FP32)
            positions_backward<T, float, N>(dwpe, dout, tokens);
        else
            positions_backward<T, T, N>(dwpe, dout, tokens);
    });
}
