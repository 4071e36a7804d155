// Causal attention, forward, on tensor cores; also the host code shared by both passes: supported
// shapes and the arguments of the kernels. Holds no state. The backward pass is in
// flash_backward.cu.
//
// Dao, "FlashAttention-2", 2023: one block for ROWS queries of one head walks over the keys up to
// its diagonal, KEYS at a time, and keeps for every query the running maximum and sum of its
// exponentials:
//
//            K0     K1     K2     K3           S = Q K^T / sqrt(HS), masked on the diagonal;
//        +------+------+                       m' = max(m, rowmax S)
//     Q0 | S    | \ .. |                       P = exp(S - m');  r = exp(m - m')
//        +------+------+------+------+         sum = r sum + rowsum P;  O = r O + P V
//     Q1 | S    | S    | S    | \ .. |         out = O / sum;  lse = m + log sum
//        +------+------+------+------+
#include "llmc/cuda/flash_tile.cuh"

#include <math.h>

// -------------------------------------------------------------------------------------- the kernel

// Shared memory of HEAD = 64 on Ampere: Q 16 KB, two stages of K and V 32 KB. Registers hold O, S
// (or P) and, up to 64 columns, Q; for more columns only half the keys fit.
template <class Arch, int HEAD> struct ForwardTile {
    static constexpr int M = Arch::AMPERE ? 2 : 1; // 16-row tiles of a warp
    static constexpr int ROWS = FLASH_WARPS * 16 * M;
    static constexpr int KEYS = HEAD <= 64 ? 64 : 32;
    static constexpr bool HOLD_Q = HEAD <= 64;
};

// The running statistics of a warp's queries: lane 4 g + t has rows g and g + 8 of each 16, columns
// as in a C fragment. max is in units of S; sum is of this lane's columns only.
template <int M, int HEAD> struct ForwardState { float out[M][HEAD / 8][4], max[M][2], sum[M][2]; };

// Scores become exponentials relative to the new maximum; sums relative to the old one are
// rescaled. The first tile has key 0, which every query sees, so the maximum is finite from then
// on.
template <int M, int N8, int HEAD>
static __device__ __forceinline__ void flash_softmax_step(float (&scores)[M][N8][4],
                                                          ForwardState<M, HEAD> &state,
                                                          float scale_log2e) {
    UNROLL (m, M)
        UNROLL (r, 2) {
            float largest = state.max[m][r];
            UNROLL (n, N8)
                largest = fmaxf(largest, fmaxf(scores[m][n][2 * r], scores[m][n][2 * r + 1]));
            largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 2));
            const float shrink = exp2_approx((state.max[m][r] - largest) * scale_log2e);
            const float offset = largest * scale_log2e;
            float sum = state.sum[m][r] * shrink;
            UNROLL (n, N8)
                UNROLL (e, 2) {
                    float *score = &scores[m][n][2 * r + e];
                    *score = exp2_approx(fmaf(*score, scale_log2e, -offset));
                    sum += *score;
                }
            UNROLL (n, HEAD / 8)
                UNROLL (e, 2) state.out[m][n][2 * r + e] *= shrink;
            state.max[m][r] = largest;
            state.sum[m][r] = sum;
        }
}

// out / sum, and lse = scale max + log sum: max is of Q K^T, without the scale.
template <int M, int HEAD>
static __device__ __forceinline__ void finish_rows(ForwardState<M, HEAD> &state, float *lse,
                                                   int first_row, const FlashShape &s) {
    const int lane = (int)threadIdx.x % WARP;
    UNROLL (m, M)
        UNROLL (r, 2) {
            const int row = first_row + 16 * m + 8 * r + lane / 4;
            const float sum = quad_sum(state.sum[m][r]), inverse = 1.0f / sum;
            UNROLL (n, HEAD / 8)
                UNROLL (e, 2) state.out[m][n][2 * r + e] *= inverse;
            if (lane % 4 == 0 && row < s.T) lse[row] = state.max[m][r] * s.scale + logf(sum);
        }
}

// out (B,T,NH HS), lse (B,NH,T) from qkv (B,T,(NH + 2 NKV) HS). A block of four warps has ROWS
// queries of one head, a warp M * 16 of them. Moves Q, out and lse once. Reads K and V of a head
// once from memory, and from L2 for each of its query blocks.
template <class Arch, class T, int HEAD>
static __global__ void __launch_bounds__(FLASH_THREADS, 2)
    flash_forward_kernel(T *out, float *lse, const T *qkv, FlashShape s) {
    wait_for_the_grid_before();
    if constexpr (flash_compiled<Arch>) {
        typedef ForwardTile<Arch, HEAD> Tile;
        constexpr int M = Tile::M, ROWS = Tile::ROWS, KEYS = Tile::KEYS;
        T *q_tile = reinterpret_cast<T *>(dynamic_shared_memory);
        const int blocks = (s.T + ROWS - 1) / ROWS;
        const FlashBlock block = flash_block(s, blocks);
        const int block_row = (blocks - 1 - block.rank) * ROWS, tile_row = warp_index() * 16 * M;
        const int first_row = block_row + tile_row;
        const int tiles = (min(block_row + ROWS, s.T) + KEYS - 1) / KEYS;

        TileStream<Arch, T, KEYS, HEAD> keys;
        const int kv = kv_head(s, block.head);
        keys.start(q_tile + ROWS * HEAD, k_rows(qkv, s, kv), v_rows(qkv, s, kv), 0);
        keys.begin(0);
        tile_load<Arch, ROWS, HEAD>(q_tile, q_rows(qkv, s, block.head), block_row);
        RowFragments<T, M, HEAD, Tile::HOLD_Q> queries;
        queries.set(q_tile, tile_row);
        ForwardState<M, HEAD> state;
        clear(state.out);
        UNROLL (i, 2 * M) {
            state.max[i / 2][i % 2] = -INFINITY;
            state.sum[i / 2][i % 2] = 0.0f;
        }

        ROLLED (i, tiles) {
            keys.end(i);
            if (i + 1 < tiles) keys.begin(i + 1);
            if (i * KEYS < first_row + 16 * M) { // else every key is after the warp's last query
                float scores[M][KEYS / 8][4];
                multiply_rows<Arch>(scores, queries, keys.a(i));
                if ((i + 1) * KEYS > first_row)
                    mask_scores<QUERY_ROWS>(scores, first_row, i * KEYS);
                flash_softmax_step(scores, state, s.scale_log2e);
                multiply_add<Arch, T>(state.out, scores, keys.b(i));
            }
        }
        finish_rows(state, lse + (int64_t)block.head * s.T, first_row, s);
        store_head_rows(out_rows(out, s, block.head), first_row, state.out, 1.0f, q_tile, tile_row);
    } else {
        __trap();
    }
}

template <class Arch, class T, int HEAD>
static void forward_launch(Tensor out, Tensor lse, Tensor qkv, FlashShape s) {
    typedef ForwardTile<Arch, HEAD> Tile;
    const int64_t blocks = ceil_div(s.T, Tile::ROWS); // of a head
    const size_t shared =
        (Tile::ROWS * HEAD + TileStream<Arch, T, Tile::KEYS, HEAD>::ELEMENTS) * sizeof(T);
    LAUNCH((flash_forward_kernel<Arch, T, HEAD>), dim3((unsigned)(s.heads * blocks)),
           dim3(FLASH_THREADS), shared, cuda_compute_stream())
    ((T *)out.data, (float *)lse.data, (const T *)qkv.data, flash_grouped(s, blocks));
}

// ---------------------------------------------------------------------------------------- the host

bool cuda_flash_supports(DType dtype, int64_t head_size) {
    const int capability = cuda_backend.compute_capability;
    const bool has_cores =
        (dtype == DTYPE_FP16 && capability >= 75) || (dtype == DTYPE_BF16 && capability >= 80);
    return has_cores && head_size % 8 == 0 && head_size <= 128; // rows of 16-byte chunks
}

FlashShape cuda_flash_shape(Tensor qkv, Heads heads) {
    FlashShape s = {};
    s.T = (int)qkv.shape[1];
    s.NH = heads.NH;
    s.NKV = heads.NKV;
    s.HS = (int)(qkv.shape[2] / (heads.NH + 2 * heads.NKV));
    s.heads = (int)qkv.shape[0] * heads.NH;
    s.scale = 1.0f / sqrtf((float)s.HS);
    s.scale_log2e = s.scale * LOG2_E;
    return s;
}

void cuda_flash_forward(Tensor out, Tensor lse, Tensor qkv, Heads heads) {
    const FlashShape s = cuda_flash_shape(qkv, heads);
    if (!cuda_flash_supports(qkv.dtype, s.HS)) {
        cuda_plain_attention_forward(out, lse, qkv, s);
        return;
    }
    FLASH_DISPATCH(qkv.dtype,
                   FLASH_DISPATCH_HEAD(s.HS, forward_launch<Arch, T, HEAD>(out, lse, qkv, s)));
}
