// Shared by the attention kernels: the assignment of blocks to heads and the layout of a head. For
// tensor cores: tiles in shared memory, their loading, and products of a tile with fragments.
// Private to flash_*.cu and plain_attention.cu.
//
// A tile is some rows of one head: HEAD 16-bit elements a row, HEAD the head size rounded up to 32,
// 64, 96 or 128; columns beyond the head size and rows beyond T are zero. 16-byte chunks of a row
// are permuted by the row number, so the chunks of one column in eight rows are in eight different
// bank groups: neither ldmatrix nor the 16-byte stores that fill a tile have bank conflicts. A warp
// owns M * 16 rows of the output; fragments as in intrinsics.cuh.
#pragma once
#include "llmc/cuda/attention.h"
#include "llmc/cuda/intrinsics.cuh"

enum { FLASH_WARPS = 4, FLASH_THREADS = FLASH_WARPS * WARP };

// Kernel parameters by architecture. Ampere and later: k16 products, tiles loaded by cp.async in
// two stages, 32 rows per warp, since a 16-row warp would load a byte from shared memory for every
// 32 multiply-adds, the limit of an A100 and too few for an H100. Turing: fp16, k8 products, the
// next tile is held in registers because 64 KB have space for one stage only.
struct Ampere {
    static constexpr bool AMPERE = true;
    static constexpr int STAGES = 2;
};
struct Turing {
    static constexpr bool AMPERE = false;
    static constexpr int STAGES = 1;
};

// Whether Arch matches the architecture being compiled; other kernels compile to a trap.
template <class Arch> static constexpr bool flash_compiled = Arch::AMPERE == (HAS_AMPERE != 0);

// ---------------------------------------------------------------------------- the division of work

// Blocks of one head read the same keys and values, so they should run at the same time, while
// these are in L2. The heaviest blocks should run first, so that no multiprocessor ends with one.
// So heads are scheduled in groups of about four blocks per multiprocessor, two at a time (T =
// 1024, HS = 64 on 132 of them: 66 heads, 17 MB of keys and values); in a group the heaviest blocks
// (rank 0) of all heads come first.
static inline FlashShape flash_grouped(FlashShape s, int64_t blocks_per_head) {
    const int64_t heads = 4 * cuda_backend.num_sms / blocks_per_head;
    s.group = (int)max_i64(1, min_i64(heads, s.heads));
    return s;
}
struct FlashBlock {
    int head, rank;
};
static __device__ __forceinline__ FlashBlock flash_block(const FlashShape &s, int blocks_per_head) {
    const int group = (int)blockIdx.x / (s.group * blocks_per_head);
    const int rest = (int)blockIdx.x % (s.group * blocks_per_head);
    const int first = group * s.group, heads = min(s.group, s.heads - first);
    return {first + rest % heads, rest / heads};
}
// The number in the grid of the block with this head and rank.
static __device__ __forceinline__ int flash_place(const FlashShape &s, int blocks_per_head,
                                                  int head, int rank) {
    const int group = head / s.group, first = group * s.group,
              heads = min(s.group, s.heads - first);
    return first * blocks_per_head + rank * heads + head - first;
}

// The number of this warp, in a form that the compiler knows to be uniform across lanes.
static __device__ __forceinline__ int warp_index(void) {
    return __shfl_sync(ALL_LANES, (int)threadIdx.x / WARP, 0);
}

// The (T,HS) matrix of one head, column `column` of `columns` in sequence b of a packed
// (B,T,columns,HS) tensor.
template <class T> struct HeadRows {
    T *first;
    int64_t stride;
    int rows, cols;
};
template <class T>
static __device__ __forceinline__ HeadRows<T> head_rows(T *tensor, const FlashShape &s, int b,
                                                        int column, int columns) {
    const int64_t stride = (int64_t)columns * s.HS;
    return {tensor + (int64_t)b * s.T * stride + (int64_t)column * s.HS, stride, s.T, s.HS};
}
// Rows of qkv or dqkv (B,T,NH + 2 NKV,HS) and of out or dout (B,T,NH,HS). Heads are counted over
// all sequences: B * NH of q and out, B * NKV of k and v.
template <class T>
static __device__ __forceinline__ HeadRows<T> q_rows(T *qkv, const FlashShape &s, int head) {
    return head_rows(qkv, s, head / s.NH, head % s.NH, s.NH + 2 * s.NKV);
}
template <class T>
static __device__ __forceinline__ HeadRows<T> k_rows(T *qkv, const FlashShape &s, int head) {
    return head_rows(qkv, s, head / s.NKV, s.NH + head % s.NKV, s.NH + 2 * s.NKV);
}
template <class T>
static __device__ __forceinline__ HeadRows<T> v_rows(T *qkv, const FlashShape &s, int head) {
    return head_rows(qkv, s, head / s.NKV, s.NH + s.NKV + head % s.NKV, s.NH + 2 * s.NKV);
}
template <class T>
static __device__ __forceinline__ HeadRows<T> out_rows(T *out, const FlashShape &s, int head) {
    return head_rows(out, s, head / s.NH, head % s.NH, s.NH);
}
// The head of k and v that a head of q reads.
static __device__ __forceinline__ int kv_head(const FlashShape &s, int head) {
    return head / (s.NH / s.NKV);
}

// ------------------------------------------------------------------------------------------- tiles

// The offset of chunk `chunk` of row `row` in a tile, in elements. 128-byte rows: 8 chunks,
// permuted by row % 8. 64- and 192-byte rows: two rows make 128 bytes of banks, so chunks are
// permuted in fours by row / 2 % 4.
template <int HEAD> struct TilePlace {
    static constexpr int PERMUTED = HEAD % 64 == 0 ? 8 : 4;
    static __device__ __forceinline__ int at(int row, int chunk) {
        return row * HEAD + ((chunk ^ (PERMUTED == 8 ? row & 7 : row >> 1 & 3)) << 3);
    }
    // The offset `chunks` later in the row of p = at(row, 0 or 1); chunks is even. One xor, so that
    // a loop over a row keeps one register instead of an address per step.
    static __device__ __forceinline__ int across(int p, int chunks) {
        return (p ^ ((chunks % PERMUTED) << 3)) + ((chunks - chunks % PERMUTED) << 3);
    }
};

// Copies tiles of ROWS rows from global to shared memory, one after another. LANES adjacent threads
// share a row, so that a warp reads 64 or 128 consecutive bytes of several rows. A thread stays in
// its columns and keeps a pointer, so a chunk costs a comparison and the copy. fetch starts the
// next tile; land, needed without cp.async, completes it.
template <class Arch, class T, int ROWS, int HEAD> struct TileCopy {
    static constexpr int LANES = TilePlace<HEAD>::PERMUTED, STEP = FLASH_THREADS / LANES;
    static constexpr int ACROSS = HEAD / 8 / LANES, DOWN = ROWS / STEP;
    static_assert(ROWS % STEP == 0, "every thread copies the same number of chunks");
    const T *source; // this thread's next chunk
    int step;        // STEP rows on
    int4 held[Arch::AMPERE ? 1 : ACROSS * DOWN];

    static __device__ __forceinline__ int row(void) { return (int)threadIdx.x / LANES; }
    static __device__ __forceinline__ int chunk(void) { return (int)threadIdx.x % LANES; }
    __device__ __forceinline__ void start(const HeadRows<const T> &from, int first) {
        source = from.first + (first + row()) * from.stride + chunk() * 8;
        step = STEP * (int)from.stride;
    }
    // The permutation of chunks repeats after STEP rows and after LANES chunks.
    static __device__ __forceinline__ T *place(T *tile, int down, int across) {
        return tile + TilePlace<HEAD>::at(row(), chunk()) + down * (STEP * HEAD) +
               across * (LANES * 8);
    }
    // rows_left, columns_left: the number from the thread's first chunk on. Elements beyond them
    // become 0.
    __device__ __forceinline__ void fetch(T *tile, int rows_left, int columns_left) {
        UNROLL (down, DOWN) {
            UNROLL (across, ACROSS) {
                const bool valid = down * STEP < rows_left && across * (LANES * 8) < columns_left;
                const T *from = source + across * (LANES * 8); // not read unless valid
                if constexpr (Arch::AMPERE)
                    copy_async(place(tile, down, across), from, valid);
                else
                    held[down * ACROSS + across] =
                        valid ? *(const int4 *)from : make_int4(0, 0, 0, 0);
            }
            source += step;
        }
    }
    __device__ __forceinline__ void land(T *tile) {
        if constexpr (!Arch::AMPERE)
            UNROLL (i, ACROSS * DOWN) *(int4 *)place(tile, i / ACROSS, i % ACROSS) = held[i];
    }
};

// Two matrices that a block traverses together, ROWS rows at a time: keys and values, or queries
// and dout. After start and begin(0), for each tile i:  end(i), begin(i + 1) if there is one, work
// on a(i) and b(i).
template <class Arch, class T, int ROWS, int HEAD> struct TileStream {
    static constexpr int ELEMENTS = Arch::STAGES * 2 * ROWS * HEAD;
    typedef TileCopy<Arch, T, ROWS, HEAD> Copy;
    T *tiles;
    Copy copy_a, copy_b;
    int rows_left, columns_left; // from this thread's first chunk of the next tile on

    __device__ __forceinline__ void start(T *shared, const HeadRows<const T> &from_a,
                                          const HeadRows<const T> &from_b, int first) {
        tiles = shared;
        copy_a.start(from_a, first), copy_b.start(from_b, first);
        rows_left = from_a.rows - first - Copy::row(),
        columns_left = from_a.cols - Copy::chunk() * 8;
    }
    __device__ __forceinline__ T *a(int i) const {
        return tiles + i % Arch::STAGES * (2 * ROWS * HEAD);
    }
    __device__ __forceinline__ T *b(int i) const { return a(i) + ROWS * HEAD; }
    __device__ __forceinline__ void begin(int i) {
        copy_a.fetch(a(i), rows_left, columns_left), copy_b.fetch(b(i), rows_left, columns_left);
        rows_left -= ROWS;
        if constexpr (Arch::AMPERE) copy_async_commit();
    }
    // Called by every thread of the block. Afterwards tile i is visible to all of them, and no
    // thread still reads tile i - 1.
    __device__ __forceinline__ void end(int i) {
        if constexpr (Arch::AMPERE) {
            copy_async_wait<0>();
        } else {
            __syncthreads(); // one place for all tiles: the last readers must be through
            copy_a.land(a(i)), copy_b.land(b(i));
        }
        __syncthreads();
    }
};

// A tile that stays in shared memory. Loaded by every thread of the block, all of which may read it
// afterwards.
template <class Arch, int ROWS, int HEAD, class T>
static __device__ __forceinline__ void tile_load(T *tile, const HeadRows<const T> &from,
                                                 int first) {
    TileCopy<Arch, T, ROWS, HEAD> copy;
    copy.start(from, first);
    copy.fetch(tile, from.rows - first - copy.row(), from.cols - copy.chunk() * 8);
    if constexpr (Arch::AMPERE)
        copy_async_commit(), copy_async_wait<0>();
    else
        copy.land(tile);
    __syncthreads();
}

// ---------------------------------------------------------------------------------------- products

template <class Arch, class T>
static __device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                           uint32_t b1) {
    if constexpr (Arch::AMPERE) {
        mma_m16n8k16<T>(c, a, b0, b1);
    } else { // the fragments of k16 are two k8 fragments side by side
        mma_m16n8k8(c, a[0], a[1], b0);
        mma_m16n8k8(c, a[2], a[3], b1);
    }
}

// M * 16 rows of a tile as the left factor of products over its columns: HELD in registers, or
// loaded each time.
template <class T, int M, int HEAD, bool HELD> struct RowFragments {
    uint32_t held[HELD ? HEAD / 16 : 1][M][4];
    const T *tile;
    int place; // of this lane's row and chunk for the first 16 x 16 elements

    __device__ __forceinline__ void load(uint32_t (&a)[M][4], int k) const {
        UNROLL (m, M)
            ldmatrix_x4(a[m], tile + TilePlace<HEAD>::across(place, 2 * k) + 16 * m * HEAD);
    }
    __device__ __forceinline__ void set(const T *from, int first) {
        const int lane = (int)threadIdx.x % WARP;
        tile = from, place = TilePlace<HEAD>::at(first + (lane & 15), lane >> 4);
        if constexpr (HELD)
            UNROLL (k, HEAD / 16) load(held[k], k);
    }
    // Columns 16 k .. 16 k + 15.
    __device__ __forceinline__ void get(uint32_t (&a)[M][4], int k) const {
        if constexpr (HELD)
            UNROLL (i, M * 4) a[i / 4][i % 4] = held[k][i / 4][i % 4];
        else
            load(a, k);
    }
};

// c (M*16, N) = rows (M*16, HEAD) times the tile (N, HEAD) transposed.
template <class Arch, class T, int M, int N8, int HEAD, bool HELD>
static __device__ __forceinline__ void multiply_rows(float (&c)[M][N8][4],
                                                     const RowFragments<T, M, HEAD, HELD> &rows,
                                                     const T *tile) {
    const int lane = (int)threadIdx.x % WARP;
    const int place = TilePlace<HEAD>::at((lane & 7) + (lane >> 4 << 3), lane >> 3 & 1);
    UNROLL (i, M * N8 * 4) c[i / (N8 * 4)][i / 4 % N8][i % 4] = 0.0f;
    UNROLL (k, HEAD / 16) {
        uint32_t a[M][4], b[4];
        rows.get(a, k);
        UNROLL (n, N8 / 2) {
            ldmatrix_x4(b, tile + TilePlace<HEAD>::across(place, 2 * k) + 16 * n * HEAD);
            UNROLL (m, M) {
                mma<Arch, T>(c[m][2 * n], a[m], b[0], b[1]);
                mma<Arch, T>(c[m][2 * n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

// c (M*16, HEAD) += x (M*16, N), rounded to 16 bits, times the tile (N, HEAD).
template <class Arch, class T, int M, int N8, int HEAD8>
static __device__ __forceinline__ void multiply_add(float (&c)[M][HEAD8][4],
                                                    const float (&x)[M][N8][4], const T *tile) {
    constexpr int HEAD = HEAD8 * 8;
    const int lane = (int)threadIdx.x % WARP, place = TilePlace<HEAD>::at(lane & 15, lane >> 4);
    UNROLL (k, N8 / 2) {
        uint32_t a[M][4], b[4];
        UNROLL (m, M)
            UNROLL (i, 4)
                a[m][i] =
                    pack_two<T>(x[m][2 * k + i / 2][i % 2 * 2], x[m][2 * k + i / 2][i % 2 * 2 + 1]);
        UNROLL (n, HEAD8 / 2) {
            ldmatrix_x4_trans(b, tile + TilePlace<HEAD>::across(place, 2 * n) + 16 * k * HEAD);
            UNROLL (m, M) {
                mma<Arch, T>(c[m][2 * n], a[m], b[0], b[1]);
                mma<Arch, T>(c[m][2 * n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

template <int M, int N8> static __device__ __forceinline__ void clear(float (&c)[M][N8][4]) {
    UNROLL (i, M * N8 * 4) c[i / (N8 * 4)][i / 4 % N8][i % 4] = 0.0f;
}

// The causal mask of a tile of scores that meets the diagonal: -inf, of which the exponential is 0,
// for keys after the query. Rows are queries, or keys. Only those few tiles call it: a comparison
// and a selection per score cost a sixth of the backward pass. Keys beyond T are after every valid
// query.
enum ScoreRows { QUERY_ROWS, KEY_ROWS };
template <ScoreRows ROWS, int M, int N8>
static __device__ __forceinline__ void mask_scores(float (&scores)[M][N8][4], int first_row,
                                                   int first_column) {
    const int g = (int)threadIdx.x % WARP / 4, t = (int)threadIdx.x % 4;
    UNROLL (m, M)
        UNROLL (n, N8)
            UNROLL (i, 4) {
                const int row = first_row + 16 * m + 8 * (i / 2) + g,
                          column = first_column + 8 * n + 2 * t + i % 2;
                if (ROWS == QUERY_ROWS ? column > row : row > column) scores[m][n][i] = -INFINITY;
            }
}

// Rows first.. of a head = c times factor, rounded. Staged in the warp's own rows of a tile that is
// no longer needed, so that global memory gets 16-byte stores of whole rows.
template <class T, int M, int HEAD8>
static __device__ __forceinline__ void store_head_rows(const HeadRows<T> &to, int first,
                                                       const float (&c)[M][HEAD8][4], float factor,
                                                       T *tile, int tile_row) {
    constexpr int HEAD = HEAD8 * 8;
    const int lane = (int)threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    __syncwarp();
    UNROLL (m, M)
        UNROLL (n, HEAD8)
            UNROLL (r, 2) {
                const uint32_t pair =
                    pack_two<T>(c[m][n][2 * r] * factor, c[m][n][2 * r + 1] * factor);
                memcpy(
                    (void *)(tile + TilePlace<HEAD>::at(tile_row + 16 * m + 8 * r + g, n) + 2 * t),
                    &pair, 4);
            }
    __syncwarp();
    for (int i = lane; i < M * 16 * HEAD8; i += WARP) {
        const int row = i / HEAD8, chunk = i % HEAD8;
        if (first + row < to.rows && chunk * 8 < to.cols)
            *(int4 *)(to.first + (first + row) * to.stride + chunk * 8) =
                *(const int4 *)(tile + TilePlace<HEAD>::at(tile_row + row, chunk));
    }
}

// sums[0 .. columns) = the sums of the columns of a tile of ROWS rows, which all warps of the block
// have staged: of the elements as rounded. By the tensor cores, the tile transposed times ones, in
// half a per cent of the products of an average block. Warp w has the columns 16 w .. 16 w + 15,
// and those 64 further on.
template <class Arch, class T, int ROWS, int HEAD>
static __device__ __forceinline__ void store_column_sums(float *sums, int columns, const T *tile) {
    const int lane = (int)threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const int place = TilePlace<HEAD>::at((lane & 7) + (lane >> 4 << 3), lane >> 3 & 1);
    const uint32_t ones = pack_two<T>(1.0f, 1.0f);
    ROLLED (i, (HEAD / 16 + FLASH_WARPS - 1) / FLASH_WARPS) {
        const int block = i * FLASH_WARPS + warp_index();
        if (HEAD / 16 % FLASH_WARPS != 0 && block >= HEAD / 16) break;
        const T *from = tile + TilePlace<HEAD>::across(place, 2 * block);
        float c[4] = {};
        UNROLL (k, ROWS / 16) {
            uint32_t a[4];
            ldmatrix_x4_trans(a, from + 16 * k * HEAD);
            mma<Arch, T>(c, a, ones, ones);
        }
        const int column = 16 * block + 8 * t + g; // the product's columns are all the same
        if (t < 2 && column < columns) sums[column] = t == 0 ? c[0] : c[2];
    }
}

// Sum over the four lanes that share a row of a fragment, the same in all four.
static __device__ __forceinline__ float quad_sum(float v) {
    v += __shfl_xor_sync(ALL_LANES, v, 1);
    return v + __shfl_xor_sync(ALL_LANES, v, 2);
}

// ---------------------------------------------------------------------------------------- dispatch

// Runs the statements with the constant HEAD, the head size rounded up to one that kernels are
// built for. Four sizes keep the build short; a head size in between pays for the zeros.
#define FLASH_DISPATCH_HEAD(head_size, ...)                                                        \
    if ((head_size) <= 32) {                                                                       \
        constexpr int HEAD = 32;                                                                   \
        __VA_ARGS__;                                                                               \
    } else if ((head_size) <= 64) {                                                                \
        constexpr int HEAD = 64;                                                                   \
        __VA_ARGS__;                                                                               \
    } else if ((head_size) <= 96) {                                                                \
        constexpr int HEAD = 96;                                                                   \
        __VA_ARGS__;                                                                               \
    } else {                                                                                       \
        constexpr int HEAD = 128;                                                                  \
        __VA_ARGS__;                                                                               \
    }

// Runs the statements with Arch and T for this device and dtype, which cuda_flash_supports
// accepted.
#define FLASH_DISPATCH(dtype, ...)                                                                 \
    if (cuda_backend.compute_capability < 80) {                                                    \
        typedef Turing Arch;                                                                       \
        typedef fp16 T;                                                                            \
        __VA_ARGS__;                                                                               \
    } else if ((dtype) == DTYPE_FP16) {                                                            \
        typedef Ampere Arch;                                                                       \
        typedef fp16 T;                                                                            \
        __VA_ARGS__;                                                                               \
    } else {                                                                                       \
        typedef Ampere Arch;                                                                       \
        typedef bf16 T;                                                                            \
        __VA_ARGS__;                                                                               \
    }
