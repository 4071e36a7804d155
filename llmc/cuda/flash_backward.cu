// Causal attention, backward, on tensor cores. Holds no state; owns nothing but scratch memory
// during a call.
//
// Dao, "FlashAttention-2", 2023, computes everything in one pass and adds dQ with atomics, whose
// order changes from run to run. Here two kernels each own their outputs, so every sum has a
// fixed order:
//
//   queries   a block has queries and walks over the keys up to the diagonal; first of all it forms
//             D = rowsum(dout * out), which it leaves in scratch memory for the other kernel
//                 S = Q K^T    P = exp(S - lse)    dP = dout V^T    dS = P * (dP - D)    dQ += dS K
//   keys      a block has keys and walks over the queries from the diagonal on, of one head after
//             the other that reads these keys; everything is transposed, so that P and dS come
//             out of the tensor cores in the form in which they go in again
//                 S^T = K Q^T    dP^T = V dout^T    dV += P^T dout    dK += dS^T Q
//
// Seven products instead of five, and two exponentials instead of one; but no fp32 dQ that every
// key block reads and writes (32 KB per 64 x 64 tile, which takes about as long as the two
// products), nothing to clear, no atomics.
#include "llmc/cuda/flash_tile.cuh"

// Accumulators, two tiles of scores and, for queries, both left factors must fit into 255
// registers. Shared memory of HEAD = 64 on Ampere: two resident tiles 32 KB, two stages of two
// tiles 16 KB.
template <class Arch, int HEAD> struct BackwardTile {
    static constexpr int M = Arch::AMPERE && HEAD <= 64 ? 2 : 1; // 16-row tiles of a warp
    static constexpr int ROWS = FLASH_WARPS * 16 * M;
    // Turing also holds a tile in registers
    static constexpr int ACROSS = !Arch::AMPERE && HEAD > 96 ? 16 : 32;
    static constexpr int SHARED_BYTES = (2 * ROWS + 2 * ACROSS * Arch::STAGES) * HEAD * 2;
};

// Where a block leaves the sums of the columns of its rows of dq, or of dk (part 0) and dv (part
// 1): sums (parts,blocks,HEAD) by the number of the block in the grid, which costs no register
// before it is needed. Rows beyond T are 0.
template <int HEAD> static __device__ __forceinline__ float *block_sums(float *sums, int part) {
    return sums + ((int64_t)part * gridDim.x + blockIdx.x) * HEAD;
}

// ------------------------------------------------------------------------------------- the queries

// For each query in this lane's fragments: lse * log2(e), and D, which lane 0 of four also stores.
// The four lanes of a row share its chunks. Loads have no branches, so that all of them are in
// flight at once; loads beyond T or the head size are redirected to valid elements and count as 0.
// So D of a query beyond T is 0, like its dout, and for any P its dS is 0.
template <class T, int M, int HEAD>
static __device__ __forceinline__ void row_statistics(float (&lse_log2e)[M][2], float (&D)[M][2],
                                                      float *delta, const float *lse,
                                                      const HeadRows<const T> &dout,
                                                      const HeadRows<const T> &out, int first_row) {
    const int lane = (int)threadIdx.x % WARP;
    UNROLL (m, M)
        UNROLL (r, 2) {
            const int row = first_row + 16 * m + 8 * r + lane / 4;
            const int64_t there = min(row, dout.rows - 1);
            float sum = 0.0f;
            UNROLL (across, HEAD / 32) {
                const int col = across * 32 + lane % 4 * 8;
                const bool counts = row < dout.rows && col < dout.cols;
                float x[8], y[8], chunk = 0.0f;
                to_floats(x,
                          load_vector<T, 8>(dout.first + there * dout.stride + (counts ? col : 0)));
                to_floats(y,
                          load_vector<T, 8>(out.first + there * out.stride + (counts ? col : 0)));
                UNROLL (i, 8) chunk = fmaf(x[i], y[i], chunk);
                sum += counts ? chunk : 0.0f;
            }
            D[m][r] = quad_sum(sum);
            lse_log2e[m][r] = row < dout.rows ? lse[there] * LOG2_E : 0.0f;
            if (row < dout.rows && lane % 4 == 0) delta[row] = D[m][r];
        }
}

// scores -> dS = P * (dP - D). P of a masked score is 0.
template <int M, int N8>
static __device__ __forceinline__ void query_gradients(float (&scores)[M][N8][4],
                                                       const float (&dP)[M][N8][4],
                                                       const float (&lse_log2e)[M][2],
                                                       const float (&D)[M][2], float scale_log2e) {
    UNROLL (m, M)
        UNROLL (n, N8)
            UNROLL (i, 4) {
                const float P =
                    exp2_approx(fmaf(scores[m][n][i], scale_log2e, -lse_log2e[m][i / 2]));
                scores[m][n][i] = P * (dP[m][n][i] - D[m][i / 2]);
            }
}

// The dQ part of dqkv (B,T,(NH + 2 NKV) HS), and delta (B,NH,T) = D. A block of four warps has ROWS
// queries of one head, a warp M * 16. Moves Q, dout, out and dQ once; K and V of a head from L2 for
// each of its query blocks.
template <class Arch, class T, int HEAD>
static __global__ void __launch_bounds__(FLASH_THREADS, 2)
    flash_backward_queries_kernel(T *dqkv, float *delta, float *sums, const T *dout, const T *out,
                                  const float *lse, const T *qkv, FlashShape s) {
    wait_for_the_grid_before();
    if constexpr (flash_compiled<Arch>) {
        typedef BackwardTile<Arch, HEAD> Tile;
        constexpr int M = Tile::M, ROWS = Tile::ROWS, KEYS = Tile::ACROSS;
        T *q_tile = reinterpret_cast<T *>(dynamic_shared_memory);
        const int blocks = (s.T + ROWS - 1) / ROWS;
        const FlashBlock block = flash_block(s, blocks);
        const int block_row = (blocks - 1 - block.rank) * ROWS, tile_row = warp_index() * 16 * M;
        const int first_row = block_row + tile_row;
        const int tiles = (min(block_row + ROWS, s.T) + KEYS - 1) / KEYS;

        const HeadRows<const T> dout_rows = out_rows(dout, s, block.head);
        TileStream<Arch, T, ROWS, HEAD> own;
        own.start(q_tile, q_rows(qkv, s, block.head), dout_rows, block_row);
        own.begin(0);
        TileStream<Arch, T, KEYS, HEAD> keys;
        const int kv = kv_head(s, block.head);
        keys.start(q_tile + 2 * ROWS * HEAD, k_rows(qkv, s, kv), v_rows(qkv, s, kv), 0);
        keys.begin(0);
        float lse_log2e[M][2], D[M][2], dQ[M][HEAD / 8][4];
        row_statistics<T, M, HEAD>(lse_log2e, D, delta + (int64_t)block.head * s.T,
                                   lse + (int64_t)block.head * s.T, dout_rows,
                                   out_rows(out, s, block.head), first_row);
        own.end(0);
        RowFragments<T, M, HEAD, true> q, d;
        q.set(own.a(0), tile_row);
        d.set(own.b(0), tile_row);
        clear(dQ);

        ROLLED (i, tiles) {
            keys.end(i);
            if (i + 1 < tiles) keys.begin(i + 1);
            const int first_key = i * KEYS;
            if (first_key < first_row + 16 * M) { // else every key is after the warp's last query
                float scores[M][KEYS / 8][4], dP[M][KEYS / 8][4];
                multiply_rows<Arch>(scores, q, keys.a(i));
                multiply_rows<Arch>(dP, d, keys.b(i));
                if (first_key + KEYS > first_row + 1)
                    mask_scores<QUERY_ROWS>(scores, first_row, first_key);
                query_gradients(scores, dP, lse_log2e, D, s.scale_log2e);
                multiply_add<Arch, T>(dQ, scores, keys.a(i));
            }
        }
        store_head_rows(q_rows(dqkv, s, block.head), first_row, dQ, s.scale, q_tile, tile_row);
        if (sums) {
            __syncthreads();
            store_column_sums<Arch, T, ROWS, HEAD>(block_sums<HEAD>(sums, 0), s.HS, q_tile);
        }
    } else {
        __trap();
    }
}

// ---------------------------------------------------------------------------------------- the keys

// scores -> P^T, dP -> dS^T; lse and D of the tile's queries, which are the columns here, come from
// shared memory.
template <int M, int N8>
static __device__ __forceinline__ void key_gradients(float (&scores)[M][N8][4],
                                                     float (&dP)[M][N8][4], const float *lse_log2e,
                                                     const float *D, float scale_log2e) {
    const int t = (int)threadIdx.x % 4;
    UNROLL (n, N8)
        UNROLL (i, 2) {
            const int column = 8 * n + 2 * t + i;
            const float column_lse = lse_log2e[column], column_D = D[column];
            UNROLL (m, M)
                UNROLL (r, 2) {
                    const int at = 2 * r + i;
                    const float P = exp2_approx(fmaf(scores[m][n][at], scale_log2e, -column_lse));
                    scores[m][n][at] = P;
                    dP[m][n][at] = P * (dP[m][n][at] - column_D);
                }
        }
}

// The dK and dV parts of dqkv. A block of four warps has ROWS keys of one head of k and v, a warp M
// * 16, and adds up the heads of q that read them in their order. Moves K, V, dK and dV once; Q and
// dout of a head from L2 for each of its key blocks. Queries beyond T add nothing: their Q and dout
// are 0, so the other factors, dout and dS, are 0 too.
template <class Arch, class T, int HEAD>
static __global__ void __launch_bounds__(FLASH_THREADS, 2)
    flash_backward_keys_kernel(T *dqkv, float *sums, const T *dout, const float *lse,
                               const float *delta, const T *qkv, FlashShape s) {
    wait_for_the_grid_before();
    if constexpr (flash_compiled<Arch>) {
        typedef BackwardTile<Arch, HEAD> Tile;
        constexpr int M = Tile::M, ROWS = Tile::ROWS, QUERIES = Tile::ACROSS;
        T *k_tile = reinterpret_cast<T *>(dynamic_shared_memory);
        __shared__ float statistics[2][2][QUERIES]; // two stages of lse * log2(e) and D
        T *v_tile = k_tile + ROWS * HEAD;
        const FlashBlock block = flash_block(s, (s.T + ROWS - 1) / ROWS);
        const int block_key = block.rank * ROWS, tile_row = warp_index() * 16 * M,
                  first_key = block_key + tile_row;
        // the first begins on the diagonal
        const int tiles = (s.T - block_key + QUERIES - 1) / QUERIES;
        // The first threads load lse, the next ones D, one tile ahead.
        const int which = (int)threadIdx.x / QUERIES, column = (int)threadIdx.x % QUERIES;

        TileStream<Arch, T, ROWS, HEAD> own;
        own.start(k_tile, k_rows(qkv, s, block.head), v_rows(qkv, s, block.head), block_key);
        own.begin(0);
        // with cp.async it arrives with the first tile of queries
        if constexpr (!Arch::AMPERE) own.end(0);
        RowFragments<T, M, HEAD, false> k, v;
        k.set(k_tile, tile_row);
        v.set(v_tile, tile_row);
        float dK[M][HEAD / 8][4], dV[M][HEAD / 8][4];
        clear(dK);
        clear(dV);

        // The heads of q that read these keys. head is all that is kept from one to the next:
        // registers are short.
        const int sharing = s.NH / s.NKV;
        int head = block.head * sharing;
        do {
            const float *statistic = (which == 0 ? lse : delta) + (int64_t)head * s.T;
            float next =
                which < 2 && block_key + column < s.T ? statistic[block_key + column] : 0.0f;
            TileStream<Arch, T, QUERIES, HEAD> queries;
            __syncthreads(); // the last readers of the head before are through
            queries.start(v_tile + ROWS * HEAD, q_rows(qkv, s, head), out_rows(dout, s, head),
                          block_key);
            queries.begin(0);

            ROLLED (i, tiles) {
                const int first_query = block_key + i * QUERIES;
                if (which < 2) statistics[i % 2][which][column] = which == 0 ? next * LOG2_E : next;
                queries.end(i);
                if (i + 1 < tiles) {
                    queries.begin(i + 1);
                    const int query = first_query + QUERIES + column;
                    if (which < 2) next = query < s.T ? statistic[query] : 0.0f;
                }
                // else every query is before the warp's first key
                if (first_query + QUERIES > first_key) {
                    float scores[M][QUERIES / 8][4], dP[M][QUERIES / 8][4];
                    multiply_rows<Arch>(scores, k, queries.a(i));
                    multiply_rows<Arch>(dP, v, queries.b(i));
                    if (first_query < first_key + 16 * M - 1)
                        mask_scores<KEY_ROWS>(scores, first_key, first_query);
                    key_gradients(scores, dP, statistics[i % 2][0], statistics[i % 2][1],
                                  s.scale_log2e);
                    multiply_add<Arch, T>(dV, scores, queries.b(i));
                    multiply_add<Arch, T>(dK, dP, queries.a(i));
                }
            }
        } while (++head % sharing != 0);
        const int kv = head / sharing - 1;
        store_head_rows(k_rows(dqkv, s, kv), first_key, dK, s.scale, k_tile, tile_row);
        store_head_rows(v_rows(dqkv, s, kv), first_key, dV, 1.0f, v_tile, tile_row);
        if (sums) {
            __syncthreads();
            store_column_sums<Arch, T, ROWS, HEAD>(block_sums<HEAD>(sums, 0), s.HS, k_tile);
            store_column_sums<Arch, T, ROWS, HEAD>(block_sums<HEAD>(sums, 1), s.HS, v_tile);
        }
    } else {
        __trap();
    }
}

// ----------------------------------------------------------------------------------- bias gradient

// dbias ((NH + 2 NKV) HS) = or += the sums that the blocks of both kernels left: those of q, then
// of k and of v, whose grids are those of the shapes q and kv. A block has the columns of one head
// (blockIdx.x): LANES threads take 16 bytes of a row, the rows of all sequences are dealt to GROUPS
// of them, 8 in flight, and the groups are added in order. Moves 4 bytes twice for ROWS elements of
// dqkv: 1/32 of them at 128 rows.
enum { SUM_THREADS = 256, SUMS_IN_FLIGHT = 8 };
template <int HEAD>
static __global__ void __launch_bounds__(SUM_THREADS)
    flash_bias_kernel(void *dbias, DType dtype, bool add, const float *sums, int blocks,
                      FlashShape q, FlashShape kv) {
    wait_for_the_grid_before();
    constexpr int LANES = HEAD / 4, GROUPS = SUM_THREADS / LANES;
    __shared__ float groups[GROUPS][HEAD];
    FlashShape s = q;
    int h = (int)blockIdx.x, heads_a_row = q.NH;
    int64_t heads_before = 0; // in sums
    if (h >= q.NH) {
        s = kv;
        heads_a_row = q.NKV;
        heads_before = q.heads + (int64_t)((h - q.NH) / q.NKV) * kv.heads;
        h = (h - q.NH) % q.NKV;
    }
    const int lane = (int)threadIdx.x % LANES, mine = (int)threadIdx.x / LANES,
              rows = s.heads / heads_a_row * blocks;
    float sum[4] = {};
    for (int row = mine; mine < GROUPS && row < rows; row += GROUPS * SUMS_IN_FLIGHT) {
        Vector<float, 4> x[SUMS_IN_FLIGHT];
        for (int j = 0; j < SUMS_IN_FLIGHT; j++) {
            const int at = row + j * GROUPS, head = at / blocks * heads_a_row + h;
            const float *from =
                sums + (heads_before * blocks + flash_place(s, blocks, head, at % blocks)) * HEAD;
            x[j] = load_or_zero<float, 4>(from + lane * 4, at < rows);
        }
        for (int j = 0; j < SUMS_IN_FLIGHT; j++) add_to(sum, x[j]);
    }
    for (int k = 0; k < 4 && mine < GROUPS; k++) groups[mine][lane * 4 + k] = sum[k];
    __syncthreads();
    const int column = (int)threadIdx.x;
    if (column >= s.HS) return;
    float total = 0.0f;
    for (int g = 0; g < GROUPS; g++) total += groups[g][column];
    put_gradient_of(dtype, dbias, (int64_t)blockIdx.x * s.HS + column, total, add);
}

// ---------------------------------------------------------------------------------------- the host

typedef struct {
    float *delta, *sums; // sums: NULL without dbias
    Gradient dbias;
} BackwardRest;

template <class Arch, class T, int HEAD>
static void backward_launch(Tensor dqkv, Tensor dout, Tensor out, Tensor lse, Tensor qkv,
                            BackwardRest r, FlashShape s) {
    typedef BackwardTile<Arch, HEAD> Tile;
    static_assert(Tile::ROWS >= FLASH_MIN_ROWS, "the workspace has sums of as many blocks");
    const int64_t blocks_per_head = ceil_div(s.T, Tile::ROWS);
    FlashShape kv = s;
    kv.heads = s.heads / (s.NH / s.NKV);
    kv = flash_grouped(kv, blocks_per_head);
    s = flash_grouped(s, blocks_per_head);
    float *kv_sums = r.sums ? r.sums + s.heads * blocks_per_head * HEAD : NULL;
    LAUNCH((flash_backward_queries_kernel<Arch, T, HEAD>),
           dim3((unsigned)(s.heads * blocks_per_head)), dim3(FLASH_THREADS), Tile::SHARED_BYTES,
           cuda_compute_stream())
    ((T *)dqkv.data, r.delta, r.sums, (const T *)dout.data, (const T *)out.data,
     (const float *)lse.data, (const T *)qkv.data, s);
    LAUNCH((flash_backward_keys_kernel<Arch, T, HEAD>),
           dim3((unsigned)(kv.heads * blocks_per_head)), dim3(FLASH_THREADS), Tile::SHARED_BYTES,
           cuda_compute_stream())
    ((T *)dqkv.data, kv_sums, (const T *)dout.data, (const float *)lse.data, (const float *)r.delta,
     (const T *)qkv.data, kv);
    if (!r.sums) return;
    LAUNCH((flash_bias_kernel<HEAD>), dim3((unsigned)(s.NH + 2 * s.NKV)), dim3(SUM_THREADS), 0,
           cuda_compute_stream())
    (r.dbias.to.data, r.dbias.to.dtype, r.dbias.add, r.sums, (int)blocks_per_head, s, kv);
}

bool cuda_flash_backward(Tensor dqkv, Tensor dout, Tensor out, Tensor lse, Tensor qkv, Heads heads,
                         Gradient dbias) {
    const FlashShape s = cuda_flash_shape(qkv, heads);
    const CudaFlashLayout layout = cuda_size_flash(qkv.shape[0], s.NH, s.NKV, s.T, s.HS);
    char *scratch = (char *)cuda_scratch("attention_backward", layout.end);
    float *const sums = dbias.to.data ? (float *)(scratch + layout.sums) : NULL;
    const BackwardRest r = {(float *)scratch, sums, dbias};
    if (!cuda_flash_supports(qkv.dtype, s.HS)) {
        cuda_plain_attention_backward(dqkv, dout, out, lse, qkv, r.delta, s);
        return false;
    }
    FLASH_DISPATCH(qkv.dtype, FLASH_DISPATCH_HEAD(s.HS, backward_launch<Arch, T, HEAD>(
                                                            dqkv, dout, out, lse, qkv, r, s)));
    return sums != NULL;
}
