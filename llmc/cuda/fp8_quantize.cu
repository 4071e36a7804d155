// Quantisation to fp8: the largest magnitude of a tensor, its scale, its codes and their transpose.
// The matmuls that take them are in matmul.c; formats, scales and slots in llmc/number.h.
//
// An op is two launches: largest_kernel measures and sets the slot, quantize_kernel reads the scale
// from it.
//
// A maximum does not depend on the order in which it is taken, so atomics do not harm repeatability
// here, and it is taken of bits: magnitudes of floating numbers order like the integers that their
// bits are, and NaN above inf, where a maximum of floats would lose it. So NaN shows in the amax of
// the slot, as it does in the codes.
#include "llmc/cuda/intrinsics.cuh"

// ---------------------------------------------------------------------------------- magnitude bits

// The larger of m and the magnitudes in a word, or in a vector, as the bits of T without sign.
template <class T>
static __device__ __forceinline__ unsigned larger_magnitude(unsigned m, unsigned word) {
    if constexpr (sizeof(T) == 4)
        return max(m, word & 0x7fffffffu);
    else
        return max(m, max(word & 0x7fffu, word >> 16 & 0x7fffu));
}
template <class T, int N>
static __device__ __forceinline__ unsigned larger_magnitude(unsigned m, const Vector<T, N> &x) {
    unsigned words[sizeof x / 4];
    memcpy(words, (const void *)&x, sizeof x);
    for (int i = 0; i < (int)sizeof x / 4; i++) m = larger_magnitude<T>(m, words[i]);
    return m;
}

// The maximum over a block of WARPS warps, in thread 0. Every thread takes part.
template <int WARPS> static __device__ __forceinline__ unsigned block_maximum(unsigned v) {
    __shared__ unsigned of_warp[WARPS];
    for (int offset = WARP / 2; offset > 0; offset /= 2)
        v = max(v, __shfl_xor_sync(ALL_LANES, v, offset));
    if (threadIdx.x % WARP == 0) of_warp[threadIdx.x / WARP] = v;
    __syncthreads();
    for (int w = 0; w < WARPS && threadIdx.x == 0; w++) v = max(v, of_warp[w]);
    return v;
}

// ------------------------------------------------------------------------------- largest magnitude

// 8 blocks fill a multiprocessor; 4 loads of 16 bytes a thread in flight are 128 KB there, of which
// an H200 needs 25.
enum { LARGEST_THREADS = 256, LARGEST_LOADS = 4, MAX_BLOCKS_PER_SM = 8 };

// The maximum over the blocks that are done, and how many they are. Zero when the kernel begins and
// when it ends.
static __device__ unsigned largest_so_far, blocks_done;

// amax of in into the slot, and its scale from that. Blocks take packs of 16 bytes in turn, 1024 at
// a time. The last block to finish writes the slot. Bytes: 16 a pack.
template <class T>
static __global__ void __launch_bounds__(LARGEST_THREADS)
    largest_kernel(Fp8Slot *slot, const T *in, int64_t packs, DType format) {
    wait_for_the_grid_before();
    constexpr int W = PACK<T>;
    const int64_t thread = (int64_t)blockIdx.x * LARGEST_THREADS + threadIdx.x;
    const int64_t step = (int64_t)gridDim.x * LARGEST_THREADS;
    unsigned m = 0;
    for (int64_t i = thread; i < packs; i += LARGEST_LOADS * step) {
        Vector<T, W> x[LARGEST_LOADS];
        for (int j = 0; j < LARGEST_LOADS; j++)
            x[j] = load_or_zero<T, W>(in + (i + j * step) * W, i + j * step < packs);
        for (int j = 0; j < LARGEST_LOADS; j++) m = larger_magnitude(m, x[j]);
    }
    // as the bits of a float, exactly
    if constexpr (sizeof(T) == 2) m = __float_as_uint(unpack_two<T>(m).x);
    m = block_maximum<LARGEST_THREADS / WARP>(m);
    if (threadIdx.x > 0) return;
    atomicMax(&largest_so_far, m);
    __threadfence();
    // the last one finds that and sets it to 0
    if (atomicInc(&blocks_done, gridDim.x - 1) < gridDim.x - 1) return;
    __threadfence();
    fp8_slot_record(slot, __uint_as_float(atomicExch(&largest_so_far, 0u)), format);
}

// ---------------------------------------------------------------------- quantisation and transpose

// A block has 128 rows of 64 columns: 16 KB of 16-bit elements in 1024 loads of 16 bytes, 8 a
// thread, all in flight. Rows of the tile are whole lines of 128 bytes in `in`, rows of its
// transpose in `transposed`; in q they are two sectors. A store has four words, 16 codes.
enum { ROWS = 128, COLS = 64, THREADS = 128, CODES = 16, ROW_WORDS = COLS / 4 };

// The place in shared memory of the word with the codes 4 word .. 4 word + 3 of a row of the
// tile. The pieces of 16 bytes are permuted by bits 5 and 6 of the row. A row is half of the 32
// banks, an even one the lower, an odd one the upper half, and none of the accesses meets a
// conflict:
//   what a thread has quantised, 4 or 8 bytes: 16 threads write two rows, or 32 do
//   16 bytes of a row (store_code_rows): 8 threads read two rows
//   words of columns (transpose_piece): lane = 8 (word % 4) + group. The four even groups read an
//     even row, each in another piece, thanks to the permutation; the four odd ones an odd row
static __device__ __forceinline__ int tile_word(int row, int word) {
    return row * ROW_WORDS + (word ^ row / 32 * 4);
}

// 16 codes, as the words that they are made and moved in.
typedef Vector<unsigned, CODES / 4> CodeWords;

// Quantises 16 bytes of elements; the codes go to `to`, 4 or 8 bytes.
template <class F, class T, int W>
static __device__ __forceinline__ void encode_piece(unsigned *to, const Vector<T, W> &piece,
                                                    float scale) {
    float x[W];
    Vector<unsigned, W / 4> codes;
    to_floats(x, piece);
    for (int i = 0; i < W / 4; i++) {
        const float *v = x + 4 * i;
        const unsigned low = fp8_encode_two<F>(v[0] * scale, v[1] * scale);
        const unsigned high = fp8_encode_two<F>(v[2] * scale, v[3] * scale);
        codes.v[i] = low | high << 16;
    }
    store_vector(to, codes);
}

// The tile as it is into q (N,K): threads take pieces of 16 codes in turn, 4 a row.
static __device__ __forceinline__ void store_code_rows(uint8_t *q, const unsigned *tile,
                                                       int64_t row0, int64_t col0, int64_t N,
                                                       int64_t K) {
    constexpr int ROW_PIECES = COLS / CODES;
    for (int i = (int)threadIdx.x; i < ROWS * ROW_PIECES; i += THREADS) {
        const int row = i / ROW_PIECES, piece = i % ROW_PIECES;
        const int64_t at = row0 + row, col = col0 + piece * CODES;
        const CodeWords codes = load_vector<unsigned, CODES / 4>(tile + tile_word(row, 4 * piece));
        if (at < N && col < K) store_vector(reinterpret_cast<unsigned *>(q + at * K + col), codes);
    }
}

// Stores the transpose of the tile into transposed (K,N): a thread has 16 rows of 4 columns, 8
// threads the 128 bytes of a column. Odd groups read their rows in pairs the other way round, to
// stay in other banks than even ones; the selectors of the first exchange put that right.
static __device__ __forceinline__ void store_columns(uint8_t *transposed, const unsigned *tile,
                                                     int64_t row0, int64_t col0, int64_t N,
                                                     int64_t K) {
    constexpr int GROUPS = ROWS / CODES;
    static_assert(THREADS == GROUPS * ROW_WORDS, "a piece each");
    const int group = (int)threadIdx.x % GROUPS, word = (int)threadIdx.x / GROUPS, odd = group % 2;
    // bytes 0 and 1, 2 and 3 of two words
    const unsigned low = odd ? 0x1504 : 0x5140, high = odd ? 0x3726 : 0x7362;
    CodeWords columns[4];
    UNROLL (i, 4) {
        unsigned in[4];
        UNROLL (j, 4) in[j] = tile[tile_word(CODES * group + 4 * i + (j ^ odd), word)];
        const unsigned upper01 = __byte_perm(in[0], in[1], low),
                       lower01 = __byte_perm(in[2], in[3], low);
        const unsigned upper23 = __byte_perm(in[0], in[1], high),
                       lower23 = __byte_perm(in[2], in[3], high);
        columns[0].v[i] = __byte_perm(upper01, lower01, 0x5410);
        columns[1].v[i] = __byte_perm(upper01, lower01, 0x7632);
        columns[2].v[i] = __byte_perm(upper23, lower23, 0x5410);
        columns[3].v[i] = __byte_perm(upper23, lower23, 0x7632);
    }
    UNROLL (c, 4) {
        const int64_t at = col0 + 4 * word + c, first = row0 + CODES * group;
        if (at < K && first < N)
            store_vector(reinterpret_cast<unsigned *>(transposed + at * N + first), columns[c]);
    }
}

// q (N,K) = in (N,K) * slot->scale in the format F, transposed (K,N) = its transpose; either may be
// NULL. Block (column of tiles, row of tiles), the rows of tiles from the last to the first:
// largest_kernel has just read the last ones, which are still in the L2 cache. Bytes: N K elements
// read, N K for each output written.
template <class T, class F>
static __global__ void __launch_bounds__(THREADS)
    quantize_kernel(uint8_t *q, uint8_t *transposed, const T *in, const Fp8Slot *slot, int64_t N,
                    int64_t K) {
    wait_for_the_grid_before();
    __shared__ uint4 shared[ROWS * ROW_WORDS / 4];
    unsigned *const tile = reinterpret_cast<unsigned *>(shared);
    constexpr int W = PACK<T>, LANES = COLS / W, PASS_ROWS = THREADS / LANES,
                  PASSES = ROWS / PASS_ROWS;
    const int64_t row0 = (int64_t)(gridDim.y - 1 - blockIdx.y) * ROWS,
                  col0 = (int64_t)blockIdx.x * COLS;
    // LANES threads a row
    const int row = (int)threadIdx.x / LANES, lane = (int)threadIdx.x % LANES;
    Vector<T, W> pieces[PASSES];
    const int64_t first = row0 + row, col = col0 + lane * W; // 0 outside
    UNROLL (i, PASSES)
        pieces[i] = load_or_zero<T, W, true>(in + (first + i * PASS_ROWS) * K + col,
                                             first + i * PASS_ROWS < N && col < K);
    const float scale = slot->scale;
    UNROLL (i, PASSES)
        encode_piece<F>(tile + tile_word(i * PASS_ROWS + row, lane * W / 4), pieces[i], scale);
    __syncthreads();
    if (q) store_code_rows(q, tile, row0, col0, N, K);
    if (transposed) store_columns(transposed, tile, row0, col0, N, K);
}

// ---------------------------------------------------------------------------------------- the host

void backend_fp8_quantize(Tensor q, Tensor transposed, Tensor in, Tensor slot, Fp8Scaling scaling) {
    const int64_t N = tensor_rows(in), K = tensor_cols(in);
    const cudaStream_t stream = cuda_compute_stream();
    Fp8Slot *of_scale = (Fp8Slot *)slot.data;
    const DType format = q.data ? q.dtype : transposed.dtype;

    REQUIRE(N <= (int64_t)ROWS * 65535, "fp8_quantize: %lld rows of %s are more than a grid has",
            (long long)N, in.name);
    REQUIRE(((uintptr_t)in.data | (uintptr_t)q.data | (uintptr_t)transposed.data) % 16 == 0,
            "fp8_quantize: %s or its codes are not 16-byte aligned", in.name);

    DISPATCH(in.dtype, T, {
        const T *from = (const T *)in.data;
        if (scaling != FP8_KEEP) {
            const int64_t packs = N * K / PACK<T>,
                          most = (int64_t)MAX_BLOCKS_PER_SM * cuda_backend.num_sms;
            const int64_t wanted = ceil_div(packs, LARGEST_THREADS * LARGEST_LOADS);
            LAUNCH(largest_kernel<T>, (unsigned)min_i64(wanted, most), LARGEST_THREADS, 0, stream)
            (of_scale, from, packs, format);
        }

        auto *quantize_to = quantize_kernel<T, E5M2>;
        if (format == DTYPE_E4M3) quantize_to = quantize_kernel<T, E4M3>;
        LAUNCH(quantize_to, dim3((unsigned)ceil_div(K, COLS), (unsigned)ceil_div(N, ROWS)), THREADS,
               0, stream)
        ((uint8_t *)q.data, (uint8_t *)transposed.data, from, of_scale, N, K);
    });
}
