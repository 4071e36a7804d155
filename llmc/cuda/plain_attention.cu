// Causal attention on the ordinary units: fp32, and the head sizes that tensor cores do not take.
// Any floating dtype, any head size; sums in fp32. Holds no state.
//
// 64 queries against 64 keys at a time, 256 threads as 16 x 16, and two 64 x 64 tiles of fp32 in
// shared memory: 34 KB, two blocks on every GPU but Turing's. Tiles are loaded again rather than
// kept. Head sizes are walked in slices of 64 columns: scores sum over all slices, and each block
// produces one slice of its result, so that beyond 64 columns scores are computed once a slice. The
// backward pass is split in two kernels like the one in flash_backward.cu.
#include "llmc/cuda/flash_tile.cuh"

enum { TILE = 64, SIDE = 16, PER = TILE / SIDE, PITCH = TILE + 4, PLAIN_THREADS = SIDE * SIDE };

// ------------------------------------------------------------------------------------------- tiles

// A tile is 64 rows of 64 floats and 4 more, so that 16-byte reads of one column of many rows, and
// of many columns of one row, meet no bank conflict.
typedef Vector<float, 4> Four;
static __device__ __forceinline__ Four read_four(const float *tile, int row, int col) {
    return load_vector<float, 4>(tile + row * PITCH + col);
}

// Rows row.., columns col.. of a head into a tile; zeros beyond its ends. Neighbouring threads read
// neighbouring elements, and eight loads of a thread are in flight at once. Call between barriers,
// so that no thread still reads the old contents and all see the new.
template <class T>
static __device__ __forceinline__ void load_tile(float *tile, const HeadRows<const T> &from,
                                                 int row, int col) {
    constexpr int STEP = PLAIN_THREADS / TILE, AT_ONCE = 8;
    const int c = (int)threadIdx.x % TILE, r = (int)threadIdx.x / TILE;
    const T *source = from.first + (row + r) * from.stride + col + c;
    const int rows_left = col + c < from.cols ? from.rows - row - r : 0;
    __syncthreads();
    ROLLED (part, TILE / STEP / AT_ONCE) {
        const int first = part * AT_ONCE * STEP;
        T held[AT_ONCE];
        UNROLL (i, AT_ONCE)
            held[i] = first + i * STEP < rows_left ? source[(first + i * STEP) * from.stride]
                                                   : from_float<T>(0.0f);
        UNROLL (i, AT_ONCE) tile[(first + r + i * STEP) * PITCH + c] = to_float(held[i]);
    }
    __syncthreads();
}

// A thread's share of a 64 x 64 product, 4 x 4: rows y + 16 i, columns x + 16 j (scores) or 4 x + j
// (results).
struct Share {
    float v[PER][PER];
};
static __device__ __forceinline__ int share_x(void) { return (int)threadIdx.x % SIDE; }
static __device__ __forceinline__ int share_y(void) { return (int)threadIdx.x / SIDE; }

// share += a b: elements (y + 16 i, 4 x + j). Sums over the 64 columns of a, which are the rows of
// b.
static __device__ __forceinline__ void multiply_plain(Share &share, float *a, float *b) {
    ROLLED (chunk, TILE / 4) {
        Four left[PER];
        for (int i = 0; i < PER; i++) left[i] = read_four(a, share_y() + SIDE * i, 4 * chunk);
        for (int k = 0; k < 4; k++) {
            const Four right = read_four(b, 4 * chunk + k, 4 * share_x());
            for (int i = 0; i < PER; i++)
                for (int j = 0; j < PER; j++)
                    share.v[i][j] = fmaf(left[i].v[k], right.v[j], share.v[i][j]);
        }
    }
}

// scores = a b^T over all columns of the head, slice by slice: elements (y + 16 i, x + 16 j). The
// tiles then hold the last slice of both.
template <class T>
static __device__ __forceinline__ void head_product(Share &share, float *a_tile,
                                                    const HeadRows<const T> &a, int a_row,
                                                    float *b_tile, const HeadRows<const T> &b,
                                                    int b_row) {
    share = Share{};
    for (int col = 0; col < a.cols; col += TILE) {
        load_tile(a_tile, a, a_row, col);
        load_tile(b_tile, b, b_row, col);
        const int cols = min((int)TILE, a.cols - col);
        for (int chunk = 0; chunk * 4 < cols; chunk++) {
            Four left[PER], right[PER];
            for (int i = 0; i < PER; i++)
                left[i] = read_four(a_tile, share_y() + SIDE * i, 4 * chunk);
            for (int i = 0; i < PER; i++)
                right[i] = read_four(b_tile, share_x() + SIDE * i, 4 * chunk);
            for (int i = 0; i < PER; i++)
                for (int j = 0; j < PER; j++)
                    for (int k = 0; k < 4; k++)
                        share.v[i][j] = fmaf(left[i].v[k], right[j].v[k], share.v[i][j]);
        }
    }
}

// A share of scores into a tile, as it is or transposed.
static __device__ __forceinline__ void store_tile(float *tile, const Share &share, bool transpose) {
    __syncthreads();
    for (int i = 0; i < PER; i++)
        for (int j = 0; j < PER; j++) {
            const int row = share_y() + SIDE * i, col = share_x() + SIDE * j;
            tile[transpose ? col * PITCH + row : row * PITCH + col] = share.v[i][j];
        }
    __syncthreads();
}

// A share of results, times factor, into rows row.., columns col.. of a head.
template <class T>
static __device__ __forceinline__ void store_share(const HeadRows<T> &to, int row, int col,
                                                   const Share &share, float factor) {
    for (int i = 0; i < PER; i++)
        for (int j = 0; j < PER; j++) {
            const int r = row + share_y() + SIDE * i, c = col + 4 * share_x() + j;
            if (r < to.rows && c < to.cols)
                to.first[r * to.stride + c] = from_float<T>(share.v[i][j] * factor);
        }
}

// Sum over the 16 threads of a row of shares, the same in all of them.
static __device__ __forceinline__ float row_sum(float v) {
    for (int offset = SIDE / 2; offset > 0; offset /= 2) v += __shfl_xor_sync(ALL_LANES, v, offset);
    return v;
}

// ----------------------------------------------------------------------------------------- forward

// One step of the online softmax (see flash_forward.cu): scores become exponentials, earlier sums
// are rescaled.
static __device__ __forceinline__ void plain_softmax_step(Share &scores, Share &result,
                                                          float *largest, float *sum, float scale,
                                                          int first_row, int first_key) {
    for (int i = 0; i < PER; i++) {
        float most = largest[i], total = 0.0f;
        for (int j = 0; j < PER; j++) {
            const bool seen = first_key + share_x() + SIDE * j <= first_row + share_y() + SIDE * i;
            scores.v[i][j] = seen ? scores.v[i][j] * scale : -INFINITY;
            most = fmaxf(most, scores.v[i][j]);
        }
        for (int offset = SIDE / 2; offset > 0; offset /= 2)
            most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, offset));
        const float shrink = expf(largest[i] - most);
        for (int j = 0; j < PER; j++) {
            scores.v[i][j] = expf(scores.v[i][j] - most);
            total += scores.v[i][j];
            result.v[i][j] *= shrink;
        }
        largest[i] = most;
        sum[i] = sum[i] * shrink + row_sum(total);
    }
}

// out (B,T,NH HS), lse (B,NH,T) from qkv (B,T,(NH + 2 NKV) HS). A block has 64 queries of one head
// and one slice of the output's columns; the first slice also writes lse. grid: (query blocks,
// heaviest first, heads; slices).
template <class T>
static __global__ void __launch_bounds__(PLAIN_THREADS, 2)
    plain_forward_kernel(T *out, float *lse, const T *qkv, FlashShape s) {
    wait_for_the_grid_before();
    __shared__ float4 a_tile4[TILE * PITCH / 4];
    __shared__ float4 b_tile4[TILE * PITCH / 4];
    float *a_tile = (float *)a_tile4, *b_tile = (float *)b_tile4;
    const int head = (int)blockIdx.x % s.heads, col = (int)blockIdx.y * TILE;
    const int first_row = ((s.T + TILE - 1) / TILE - 1 - (int)blockIdx.x / s.heads) * TILE;
    const int kv = kv_head(s, head);
    const HeadRows<const T> q = q_rows(qkv, s, head), k = k_rows(qkv, s, kv),
                            v = v_rows(qkv, s, kv);
    Share scores, result = {};
    float largest[PER], sum[PER];
    for (int i = 0; i < PER; i++) {
        largest[i] = -INFINITY;
        sum[i] = 0.0f;
    }

    for (int key = 0; key <= first_row; key += TILE) {
        head_product(scores, a_tile, q, first_row, b_tile, k, key);
        plain_softmax_step(scores, result, largest, sum, s.scale, first_row, key);
        store_tile(a_tile, scores, false);
        load_tile(b_tile, v, key, col);
        multiply_plain(result, a_tile, b_tile);
    }
    for (int i = 0; i < PER; i++) {
        const int row = first_row + share_y() + SIDE * i;
        const float inverse = 1.0f / sum[i];
        for (int j = 0; j < PER; j++) result.v[i][j] *= inverse;
        if (row < s.T && blockIdx.y == 0 && share_x() == 0)
            lse[(int64_t)head * s.T + row] = largest[i] + logf(sum[i]);
    }
    store_share(out_rows(out, s, head), first_row, col, result, 1.0f);
}

// ---------------------------------------------------------------------------------------- backward

// D = rowsum(dout * out) of a block's 64 queries, 16 threads a row, into shared memory; also lse. 0
// beyond T.
template <class T>
static __device__ __forceinline__ void plain_row_dots(float *D, const HeadRows<const T> &dout,
                                                      const HeadRows<const T> &out, int first_row) {
    for (int i = 0; i < PER; i++) {
        const int r = share_y() + SIDE * i, row = first_row + r;
        float sum = 0.0f;
        for (int c = share_x(); row < dout.rows && c < dout.cols; c += SIDE)
            sum = fmaf(to_float(dout.first[row * dout.stride + c]),
                       to_float(out.first[row * out.stride + c]), sum);
        sum = row_sum(sum);
        if (share_x() == 0) D[r] = sum;
    }
}

// P and dS of 64 queries against 64 keys. D and lse: of the tile's queries. Queries beyond T have
// dout = 0 and D = 0, and P = 1 at most.
static __device__ __forceinline__ void probabilities(Share &P, Share &dS, const float *lse,
                                                     const float *D, float scale, int first_row,
                                                     int first_key) {
    for (int i = 0; i < PER; i++)
        for (int j = 0; j < PER; j++) {
            const int r = share_y() + SIDE * i;
            const bool seen = first_key + share_x() + SIDE * j <= first_row + r;
            P.v[i][j] = seen ? expf(P.v[i][j] * scale - lse[r]) : 0.0f;
            dS.v[i][j] = P.v[i][j] * (dS.v[i][j] - D[r]);
        }
}

// The dQ part of dqkv, one slice of columns of 64 queries of a head, and delta (B,NH,T) = D. grid
// as forward.
template <class T>
static __global__ void __launch_bounds__(PLAIN_THREADS, 2)
    plain_backward_queries_kernel(T *dqkv, float *delta, const T *dout, const T *out,
                                  const float *lse, const T *qkv, FlashShape s) {
    wait_for_the_grid_before();
    __shared__ float4 a_tile4[TILE * PITCH / 4];
    __shared__ float4 b_tile4[TILE * PITCH / 4];
    __shared__ float D[TILE];
    __shared__ float row_lse[TILE];
    float *a_tile = (float *)a_tile4, *b_tile = (float *)b_tile4;
    const int head = (int)blockIdx.x % s.heads, col = (int)blockIdx.y * TILE;
    const int first_row = ((s.T + TILE - 1) / TILE - 1 - (int)blockIdx.x / s.heads) * TILE;
    const int kv = kv_head(s, head);
    const HeadRows<const T> q = q_rows(qkv, s, head), k = k_rows(qkv, s, kv),
                            v = v_rows(qkv, s, kv), d = out_rows(dout, s, head);
    plain_row_dots(D, d, out_rows(out, s, head), first_row);
    const int row = first_row + (int)threadIdx.x;
    if (threadIdx.x < TILE)
        row_lse[threadIdx.x] = row < s.T ? lse[(int64_t)head * s.T + row] : 0.0f;
    __syncthreads();
    if (threadIdx.x < TILE && row < s.T && blockIdx.y == 0)
        delta[(int64_t)head * s.T + row] = D[threadIdx.x];

    Share P, dS, dQ = {};
    for (int key = 0; key <= first_row; key += TILE) {
        head_product(P, a_tile, q, first_row, b_tile, k, key);
        head_product(dS, a_tile, d, first_row, b_tile, v, key);
        probabilities(P, dS, row_lse, D, s.scale, first_row, key);
        store_tile(a_tile, dS, false);
        load_tile(b_tile, k, key, col);
        multiply_plain(dQ, a_tile, b_tile);
    }
    store_share(q_rows(dqkv, s, head), first_row, col, dQ, s.scale);
}

// The dK and dV parts of dqkv, one slice of columns of 64 keys of a head of k and v, added up over
// the heads of q that read them in their order. The first key blocks meet the most queries. grid:
// (key blocks, heads of k and v; slices).
template <class T>
static __global__ void __launch_bounds__(PLAIN_THREADS, 2)
    plain_backward_keys_kernel(T *dqkv, const T *dout, const float *lse, const float *delta,
                               const T *qkv, FlashShape s) {
    wait_for_the_grid_before();
    __shared__ float4 a_tile4[TILE * PITCH / 4];
    __shared__ float4 b_tile4[TILE * PITCH / 4];
    __shared__ float D[TILE];
    __shared__ float row_lse[TILE];
    float *a_tile = (float *)a_tile4, *b_tile = (float *)b_tile4;
    const int sharing = s.NH / s.NKV, kv_heads = s.heads / sharing;
    const int kv = (int)blockIdx.x % kv_heads, col = (int)blockIdx.y * TILE;
    const int first_key = (int)blockIdx.x / kv_heads * TILE;
    const HeadRows<const T> k = k_rows(qkv, s, kv), v = v_rows(qkv, s, kv);

    Share P, dS, dK = {}, dV = {};
    for (int head = kv * sharing; head < (kv + 1) * sharing; head++) {
        const HeadRows<const T> q = q_rows(qkv, s, head), d = out_rows(dout, s, head);
        for (int first_row = first_key; first_row < s.T; first_row += TILE) {
            const int row = first_row + (int)threadIdx.x;
            __syncthreads(); // the last tile's readers of D and row_lse are done
            if (threadIdx.x < TILE) {
                D[threadIdx.x] = row < s.T ? delta[(int64_t)head * s.T + row] : 0.0f;
                row_lse[threadIdx.x] = row < s.T ? lse[(int64_t)head * s.T + row] : 0.0f;
            }
            head_product(P, a_tile, q, first_row, b_tile, k, first_key);
            head_product(dS, a_tile, d, first_row, b_tile, v, first_key);
            probabilities(P, dS, row_lse, D, s.scale, first_row, first_key);
            store_tile(a_tile, P, true);
            load_tile(b_tile, d, first_row, col);
            multiply_plain(dV, a_tile, b_tile);
            store_tile(a_tile, dS, true);
            load_tile(b_tile, q, first_row, col);
            multiply_plain(dK, a_tile, b_tile);
        }
    }
    store_share(k_rows(dqkv, s, kv), first_key, col, dK, s.scale);
    store_share(v_rows(dqkv, s, kv), first_key, col, dV, 1.0f);
}

// ---------------------------------------------------------------------------------------- the host

static dim3 plain_grid(FlashShape s, int heads) {
    return dim3((unsigned)(heads * ceil_div(s.T, TILE)), (unsigned)ceil_div(s.HS, TILE));
}

void cuda_plain_attention_forward(Tensor out, Tensor lse, Tensor qkv, FlashShape s) {
    DISPATCH(
        qkv.dtype, T,
        LAUNCH(plain_forward_kernel<T>, plain_grid(s, s.heads), dim3(PLAIN_THREADS), 0,
               cuda_compute_stream())((T *)out.data, (float *)lse.data, (const T *)qkv.data, s));
}

void cuda_plain_attention_backward(Tensor dqkv, Tensor dout, Tensor out, Tensor lse, Tensor qkv,
                                   float *delta, FlashShape s) {
    const float *lse_data = (const float *)lse.data;
    DISPATCH(qkv.dtype, T,
             LAUNCH(plain_backward_queries_kernel<T>, plain_grid(s, s.heads), dim3(PLAIN_THREADS),
                    0, cuda_compute_stream())((T *)dqkv.data, delta, (const T *)dout.data,
                                              (const T *)out.data, lse_data, (const T *)qkv.data,
                                              s);
             LAUNCH(plain_backward_keys_kernel<T>, plain_grid(s, s.heads / (s.NH / s.NKV)),
                    dim3(PLAIN_THREADS), 0,
                    cuda_compute_stream())((T *)dqkv.data, (const T *)dout.data, lse_data,
                                           (const float *)delta, (const T *)qkv.data, s));
}
