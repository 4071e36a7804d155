// The cache of keys and values, and attention of one new token to it. Any floating dtype, any
// head size.
//
// A decoded token reads the whole cache once and does next to nothing with it. One sequence of 12
// heads would keep 12 blocks of a GPU busy, so each head's keys are cut into chunks of 64, a
// block each, which writes the maximum, sum and weighted values of its chunk:
//
//   keys of a head   | chunk 0 | chunk 1 | chunk 2 |..    length is known to the device alone:
//                         |         |         |           the grid has the chunks of maxT, and what
//   max, sum, sum of p v [.]       [.]       [.]          begins beyond the length ends at once
//                          \        |        /
//                    the block that finishes last adds them, in the order of the chunks
//
// The bits do not depend on which block that is, only on the head's keys. Its ticket is one
// integer a head, back at 0 when the head is done.
#include "llmc/cuda/intrinsics.cuh"

#include <math.h>

// 64 keys of 64 16-bit columns are 16 KB of keys and values, of which a thread has 8 x 16 bytes,
// all under way at once: four such blocks are twice the 25 KB that a multiprocessor of an H200 must
// have under way. T = 1024 and 12 heads make 192 blocks. More keys a block would leave
// multiprocessors idle, fewer would write more intermediate results.
enum { KEYS = DECODE_KEYS, DECODE_THREADS = 128 };

typedef struct {
    int NH, NKV, HS, maxT, chunks;
    float scale_log2e; // of the scores, for 2^x in place of e^x: log2(e) / sqrt(HS)
} DecodeShape;

// Heads of k and v that one launch serves. Zero when a kernel begins and when it ends.
enum { TICKETS = 4096 };
static __device__ unsigned tickets[TICKETS];

// The result of a chunk: HS sums of p v, the maximum of its scores times scale_log2e, the sum of p.
static __device__ int part_floats(int HS) { return HS + DECODE_EXTRA_FLOATS; }

// ----------------------------------------------------------------------------------------- storing

enum { STORE_THREADS = 256 };

// cache[b, h, first + t] = qkv[b, t, NH + h] for the 2 NKV heads of k and v. Thread i moves N
// elements, in the order of qkv: a warp reads neighbouring bytes and writes whole rows of heads.
// Bytes: 2 NKV HS elements a token read and written.
template <class T, int N>
static __global__ void __launch_bounds__(STORE_THREADS)
    kv_cache_store_kernel(T *cache, const T *qkv, int64_t n, int64_t first, int64_t packs,
                          DecodeShape s) {
    wait_for_the_grid_before();
    const int64_t i = (int64_t)blockIdx.x * STORE_THREADS + threadIdx.x;
    if (i >= packs) return;
    // elements of a row
    const int64_t queries = (int64_t)s.NH * s.HS, stored = (int64_t)2 * s.NKV * s.HS;
    const int64_t row = i / (stored / N), col = i % (stored / N) * N;
    const int64_t b = row / n, t = row % n, head = col / s.HS; // keys of all heads, then values
    const int64_t to = ((b * 2 * s.NKV + head) * s.maxT + first + t) * s.HS + col % s.HS;
    store_vector(cache + to, load_vector<T, N>(qkv + row * (queries + stored) + queries + col));
}

// ---------------------------------------------------------------------------------------- decoding

// Keys or values of one chunk of a head.
template <class T> struct ChunkRows {
    T *cached;      // row 0
    const T *fresh; // the new token's, which is not in the cache yet
    int rows, HS;   // in the chunk; columns
    int fresh_row;  // the new token's place, beyond the chunk if it stands in a later one
};

// N columns of a row from col on, or zeros beyond its ends.
template <class T, int N>
static __device__ __forceinline__ Vector<T, N> read_row(const ChunkRows<T> &from, int row,
                                                        int col) {
    const T *source =
        row == from.fresh_row ? from.fresh + col : from.cached + (int64_t)row * from.HS + col;
    return load_or_zero<T, N>(source, row < from.rows && col < from.HS);
}
// The same of the new token goes into the cache.
template <class T, int N>
static __device__ __forceinline__ void keep_row(const ChunkRows<T> &to, int row, int col,
                                                const Vector<T, N> &x) {
    if (row == to.fresh_row && col < to.HS) store_vector(to.cached + (int64_t)row * to.HS + col, x);
}

// Who has what: LANES neighbouring threads share a row, N columns each, so that a warp reads whole
// rows that lie one after the other; the block has ROWS rows at a time, a thread one row in each of
// ROUNDS.
template <int N, int LANES> struct Share {
    static constexpr int ROWS = DECODE_THREADS / LANES, ROUNDS = KEYS / ROWS, COLS = LANES * N;
    static __device__ __forceinline__ int row(int round) {
        return (int)threadIdx.x / LANES + round * ROWS;
    }
    static __device__ __forceinline__ int col(void) { return (int)threadIdx.x % LANES * N; }
};

template <class T, int N, int ROUNDS> struct Held { Vector<T, N> v[ROUNDS]; };
template <class T, int N, int LANES>
static __device__ __forceinline__ Held<T, N, Share<N, LANES>::ROUNDS> read_rows(
    const ChunkRows<T> &from, int col) {
    typedef Share<N, LANES> S;
    Held<T, N, S::ROUNDS> held;
    for (int i = 0; i < S::ROUNDS; i++) held.v[i] = read_row<T, N>(from, S::row(i), col);
    return held;
}

// scores[row] = q . key * scale for the rows of the chunk, -inf after them. New keys are kept.
template <class T, int N, int LANES>
static __device__ __forceinline__ void score_chunk(float *scores, const T *q,
                                                   const ChunkRows<T> &keys, float scale) {
    typedef Share<N, LANES> S;
    float score[S::ROUNDS] = {};
    for (int col = S::col(); col < keys.HS; col += S::COLS) {
        const Held<T, N, S::ROUNDS> k = read_rows<T, N, LANES>(keys, col);
        float query[N], key[N];
        to_floats(query, load_vector<T, N>(q + col));
        for (int i = 0; i < S::ROUNDS; i++) {
            to_floats(key, k.v[i]);
            for (int j = 0; j < N; j++) score[i] = fmaf(query[j], key[j], score[i]);
            keep_row(keys, S::row(i), col, k.v[i]);
        }
    }
    for (int i = 0; i < S::ROUNDS; i++) {
        for (int offset = LANES / 2; offset > 0; offset /= 2)
            score[i] += __shfl_xor_sync(ALL_LANES, score[i], offset);
        if (S::col() == 0) scores[S::row(i)] = S::row(i) < keys.rows ? score[i] * scale : -INFINITY;
    }
    __syncthreads();
}

// total[c] = sum of p v over the rows of the chunk, for columns first + c; held: what the thread
// has of these. New values are kept. Ends with a barrier.
template <class T, int N, int LANES>
static __device__ __forceinline__ void weigh_chunk(
    float *total, const float *scores, float max, const ChunkRows<T> &values, int first,
    const Held<T, N, Share<N, LANES>::ROUNDS> &held) {
    typedef Share<N, LANES> S;
    __shared__ float sums[S::ROWS][S::COLS];
    float sum[N] = {}, value[N];
    for (int i = 0; i < S::ROUNDS; i++) {
        const float p = exp2_approx(scores[S::row(i)] - max);
        to_floats(value, held.v[i]);
        for (int j = 0; j < N; j++) sum[j] = fmaf(p, value[j], sum[j]);
        keep_row(values, S::row(i), first + S::col(), held.v[i]);
    }
    for (int j = 0; j < N; j++) sums[S::row(0)][S::col() + j] = sum[j];
    __syncthreads();
    for (int c = (int)threadIdx.x; c < S::COLS && first + c < values.HS; c += DECODE_THREADS) {
        float all = 0.0f;
        for (int r = 0; r < S::ROWS; r++) all += sums[r][c];
        total[first + c] = all;
    }
    __syncthreads();
}

// out (HS) of the parts of `chunks` chunks, added in their order: thread c has columns c, c + 128,
// ... Past L1, where what other blocks wrote does not arrive.
template <class T>
static __device__ __forceinline__ void add_parts(T *out, const float *parts, int chunks, int HS) {
    const int size = part_floats(HS);
    float max = -INFINITY;
    for (int i = 0; i < chunks; i++) max = fmaxf(max, __ldcg(parts + i * size + HS));
    for (int c = (int)threadIdx.x; c < HS; c += DECODE_THREADS) {
        float sum = 0.0f, all = 0.0f;
        for (int i = 0; i < chunks; i++) {
            const float weight = exp2_approx(__ldcg(parts + i * size + HS) - max);
            sum = fmaf(weight, __ldcg(parts + i * size + c), sum);
            all = fmaf(weight, __ldcg(parts + i * size + HS + 1), all);
        }
        out[c] = from_float<T>(sum / all);
    }
}

// out (B,NH HS) of qkv (B,(NH + 2 NKV) HS) and the cache, which takes up the new keys and values.
// Block (chunk, head of k and v) serves the heads of q that read it one after the other: the first
// takes the keys from memory, the others from L1. Bytes: 2 NKV HS elements for each position of
// each sequence, once; what passes between the blocks of a head is 3% of that (4 (HS + 2) bytes
// written and read a chunk, against 128 HS elements of 2 bytes).
template <class T, int N, int LANES>
static __global__ void __launch_bounds__(DECODE_THREADS)
    attention_decode_kernel(T *out, T *cache, const T *qkv, const int32_t *position, float *parts,
                            int first_head, DecodeShape s) {
    wait_for_the_grid_before();
    typedef Share<N, LANES> S;
    __shared__ float scores[KEYS];
    const int last_key = *position, first_key = (int)blockIdx.x * KEYS,
              kv = first_head + (int)blockIdx.y;
    if (first_key > last_key) return;
    const int b = kv / s.NKV, h = kv % s.NKV, sharing = s.NH / s.NKV;
    // of a row of qkv, in heads
    const int64_t head_size = (int64_t)s.maxT * s.HS, columns = s.NH + 2 * s.NKV;
    const T *k = qkv + (b * columns + s.NH + h) * s.HS;
    T *cached = cache + ((int64_t)b * 2 * s.NKV + h) * head_size + (int64_t)first_key * s.HS;
    const int fresh = last_key - first_key, rows = min((int)KEYS, fresh + 1);
    const ChunkRows<T> keys = {cached, k, rows, s.HS, fresh},
                       values = {cached + s.NKV * head_size, k + (int64_t)s.NKV * s.HS, rows, s.HS,
                                 fresh};
    const int size = part_floats(s.HS);

    // on the way while scores are computed
    Held<T, N, S::ROUNDS> held = read_rows<T, N, LANES>(values, S::col());
    int head = kv * sharing;
    do {
        float *part = parts + ((int64_t)head * s.chunks + blockIdx.x) * size;
        score_chunk<T, N, LANES>(scores, qkv + (head / s.NH * columns + head % s.NH) * s.HS, keys,
                                 s.scale_log2e);
        // Maximum of the scores, sum of p = 2^(score - maximum): by each warp for itself.
        const float a = scores[threadIdx.x % WARP], b = scores[threadIdx.x % WARP + WARP];
        const float max = warp_max(fmaxf(a, b)),
                    sum = warp_sum(exp2_approx(a - max) + exp2_approx(b - max));
        for (int first = 0; first < s.HS; first += S::COLS) {
            if (s.HS > S::COLS && first + head % sharing > 0)
                held = read_rows<T, N, LANES>(values, first + S::col());
            weigh_chunk<T, N, LANES>(part, scores, max, values, first, held);
        }
        if (threadIdx.x == 0) {
            part[s.HS] = max;
            part[s.HS + 1] = sum;
        }
    } while (++head % sharing != 0);
    const int chunks = last_key / KEYS + 1;
    if (finishes_last(&tickets[blockIdx.y], chunks))
        for (head -= sharing; head < (kv + 1) * sharing; head++)
            add_parts(out + (int64_t)head * s.HS, parts + (int64_t)head * s.chunks * size, chunks,
                      s.HS);
}

// ---------------------------------------------------------------------------------------- the host

// cache (B,2NKV,maxT,HS).
static DecodeShape decode_shape(Tensor cache, Tensor qkv) {
    const int HS = (int)cache.shape[3], maxT = (int)cache.shape[2], NKV = (int)cache.shape[1] / 2;
    const int NH = (int)(tensor_cols(qkv) / HS) - 2 * NKV;
    return {NH, NKV, HS, maxT, (int)ceil_div(maxT, KEYS), 1.44269504f / sqrtf((float)HS)};
}

void backend_kv_cache_store(Tensor cache, Tensor qkv, int64_t first) {
    const DecodeShape s = decode_shape(cache, qkv);
    const int64_t n = tensor_numel(qkv) / (cache.shape[0] * tensor_cols(qkv));
    const bool packed =
        pack_aligned(cache.data, s.HS, cache.dtype) && pack_aligned(qkv.data, s.HS, cache.dtype);
    DISPATCH_PACKS(cache.dtype, packed, T, N, {
        const int64_t packs = cache.shape[0] * n * 2 * s.NKV * s.HS / N;
        LAUNCH((kv_cache_store_kernel<T, N>), (unsigned)ceil_div(packs, STORE_THREADS),
               STORE_THREADS, 0, cuda_compute_stream())
        ((T *)cache.data, (const T *)qkv.data, n, first, packs, s);
    });
}

template <class T, int N, int LANES>
static void decode(Tensor out, Tensor cache, Tensor qkv, Tensor position, float *parts,
                   DecodeShape s) {
    const int64_t heads = cache.shape[0] * s.NKV, most = TICKETS;
    for (int64_t first = 0; first < heads; first += most) {
        const int64_t count = min_i64(heads - first, most);
        LAUNCH((attention_decode_kernel<T, N, LANES>), dim3((unsigned)s.chunks, (unsigned)count),
               DECODE_THREADS, 0, cuda_compute_stream())
        ((T *)out.data, (T *)cache.data, (const T *)qkv.data, (const int32_t *)position.data, parts,
         (int)first, s);
    }
}

void backend_attention_decode(Tensor out, Tensor cache, Tensor qkv, Tensor position) {
    const DecodeShape s = decode_shape(cache, qkv);
    const int64_t B = cache.shape[0];
    float *parts =
        (float *)cuda_scratch("attention_decode", cuda_size_decode(B, s.NH, s.HS, s.maxT));
    const bool packed =
        pack_aligned(cache.data, s.HS, cache.dtype) && pack_aligned(qkv.data, s.HS, cache.dtype);
    DISPATCH(cache.dtype, T, {
        if (!packed)
            decode<T, 1, 8>(out, cache, qkv, position, parts, s);
        else if (s.HS <= 8 * PACK<T>) // a row in one go: head size 64 of 16 bits
            decode<T, PACK<T>, 8>(out, cache, qkv, position, parts, s);
        else
            decode<T, PACK<T>, 16>(out, cache, qkv, position, parts, s);
    });
}
