// QK-norm and RoPE: what happens to q and k between the qkv projection and attention, in one pass
// over them, forward and backward.
//
// Pair j of a head is (x_j, x_(j+HS/2)): a lane owns a pack of the lower half and the same pack of
// the upper half, so that no lanes exchange what they rotate. The lanes of a head, a power of two,
// add its squares. Heads that do not divide into such packs take a plain path, a block to a head,
// that reads a head again from the L1 cache.
#include "llmc/cuda/row_sums.cuh"
#include <stdlib.h>

enum { THREADS = 256, WARPS = THREADS / WARP };

// Packed rows (N, columns) of the q of num_q heads, then k, then v of num_k heads.
typedef struct {
    const float *table;      // (maxT,2,pairs)
    const int32_t *position; // NULL: 0
    int64_t columns;         // row n has position *position + n % T
    int N, T, HS, num_q, num_k;
    int heads;     // of a row that are processed: of q and k, and of v where it is copied
    int lane_bits; // lanes of a head: 1 << lane_bits; -1: the plain path
    float one_over_HS;
} QkHeads;

void backend_rope_table(Tensor table, float base) {
    float *values = (float *)malloc(tensor_bytes(table));
    REQUIRE_MEMORY(values, "rope_table");
    ops_rope_angles(values, table.shape[0], table.shape[2], base);
    CUDA_CHECK(cudaMemcpyAsync(table.data, values, tensor_bytes(table), cudaMemcpyHostToDevice,
                               cuda_compute_stream()));
    CUDA_CHECK(cudaStreamSynchronize(cuda_compute_stream()));
    free(values);
}

static __device__ __forceinline__ const float *angles_of(const QkHeads &s, int row) {
    return s.table + ((s.position ? (int64_t)*s.position : 0) + row % s.T) * s.HS;
}

// The rotation of N pairs by angles with these cosines and sines.
template <int N>
static __device__ __forceinline__ void rotate_pairs(float (&a)[N], float (&b)[N],
                                                    const float (&cosine)[N],
                                                    const float (&sine)[N]) {
    for (int k = 0; k < N; k++) {
        const float x = a[k];
        a[k] = x * cosine[k] - b[k] * sine[k];
        b[k] = b[k] * cosine[k] + x * sine[k];
    }
}

// Sum over the lanes of a head.
static __device__ __forceinline__ float head_sum(float v, int lanes) {
    for (int offset = lanes / 2; offset > 0; offset /= 2)
        v += __shfl_xor_sync(ALL_LANES, v, offset);
    return v;
}

// Cosines and sines of a lane's pairs; direction 1, or -1 for the rotation back.
template <int N> struct Angles {
    float cosine[N], sine[N];
    __device__ __forceinline__ Angles(const float *of_row, int pairs, int at, float direction) {
        to_floats(cosine, load_vector<float, N>(of_row + at));
        to_floats(sine, load_vector<float, N>(of_row + pairs + at));
        for (int k = 0; k < N; k++) sine[k] *= direction;
    }
};

// ----------------------------------------------------------------------------------------- forward

// out = qkv with q and k normalised, if there are weights, then rotated; v copied, unless s.heads
// leaves it out; out may be qkv. Direction -1: the gradient of the rotation alone. rstd (N, num_q +
// num_k). Head i of all belongs to the threads i * lanes to (i + 1) * lanes - 1, each with two
// loads of 16 bytes in flight. Bytes: 2 elements for each of the heads; the table is read from
// caches, where the heads of a row share its row of 4 * HS bytes.
template <class T>
static __global__ void __launch_bounds__(THREADS)
    qk_norm_rope_kernel(T *out, float *rstd, const T *qkv, const T *q_weight, const T *k_weight,
                        QkHeads s, float eps, float direction) {
    wait_for_the_grid_before();
    constexpr int W = PACK<T>;
    const unsigned thread = (unsigned)block_from_last() * THREADS + threadIdx.x,
                   i = thread >> s.lane_bits;
    const int row = (int)(i / (unsigned)s.heads), head = (int)(i % (unsigned)s.heads),
              pairs = s.HS / 2;
    const int lanes = 1 << s.lane_bits, column = (int)threadIdx.x % lanes * W;
    const bool inside = row < s.N && column < pairs, is_value = head >= s.num_q + s.num_k;
    const int64_t at = (int64_t)row * s.columns + head * s.HS + column;
    Vector<T, W> low = load_or_zero<T, W, true>(qkv + at, inside);
    Vector<T, W> high = load_or_zero<T, W, true>(qkv + at + pairs, inside);
    float a[W], b[W];
    to_floats(a, low);
    to_floats(b, high);
    if (q_weight) { // for all lanes, or for none
        float squares = 0.0f, w[W];
        for (int k = 0; k < W; k++) squares += a[k] * a[k] + b[k] * b[k];
        const float of_head = rsqrtf(head_sum(squares, lanes) * s.one_over_HS + eps);
        if (inside && column == 0 && !is_value)
            rstd[(int64_t)row * (s.num_q + s.num_k) + head] = of_head;
        const T *weight = (head < s.num_q ? q_weight : k_weight) + column;
        to_floats(w, load_or_zero<T, W>(weight, inside));
        for (int k = 0; k < W; k++) a[k] *= of_head * w[k];
        to_floats(w, load_or_zero<T, W>(weight + pairs, inside));
        for (int k = 0; k < W; k++) b[k] *= of_head * w[k];
    }
    if (!inside) return;
    if (!is_value) {
        const Angles<W> angles(angles_of(s, row), pairs, column, direction);
        rotate_pairs(a, b, angles.cosine, angles.sine);
        low = from_floats<T>(a);
        high = from_floats<T>(b);
    }
    store_vector(out + at, low);
    store_vector(out + at + pairs, high);
}

// The same for any head size and any alignment: a block to a head, a thread to every blockDim-th
// pair.
template <class T>
static __global__ void __launch_bounds__(THREADS)
    qk_norm_rope_plain_kernel(T *out, float *rstd, const T *qkv, const T *q_weight,
                              const T *k_weight, QkHeads s, float eps, float direction) {
    wait_for_the_grid_before();
    const int i = (int)block_from_last(), row = i / s.heads, head = i % s.heads, pairs = s.HS / 2;
    const int64_t at = (int64_t)row * s.columns + head * s.HS;
    const bool is_value = head >= s.num_q + s.num_k, is_normed = q_weight && !is_value;
    const T *weight = head < s.num_q ? q_weight : k_weight;
    float of_head = 1.0f;
    if (is_normed) {
        float squares = 0.0f;
        for (int j = (int)threadIdx.x; j < s.HS; j += (int)blockDim.x) {
            const float x = to_float(qkv[at + j]);
            squares += x * x;
        }
        of_head = rsqrtf(block_sum(squares) / (float)s.HS + eps);
        if (threadIdx.x == 0) rstd[(int64_t)row * (s.num_q + s.num_k) + head] = of_head;
    }
    for (int j = (int)threadIdx.x; j < pairs; j += (int)blockDim.x) {
        float a[1] = {to_float(qkv[at + j])}, b[1] = {to_float(qkv[at + pairs + j])};
        if (is_normed) {
            a[0] *= of_head * to_float(weight[j]);
            b[0] *= of_head * to_float(weight[pairs + j]);
        }
        if (!is_value) {
            const Angles<1> angles(angles_of(s, row), pairs, j, direction);
            rotate_pairs(a, b, angles.cosine, angles.sine);
        }
        out[at + j] = from_float<T>(a[0]);
        out[at + pairs + j] = from_float<T>(b[0]);
    }
}

static QkHeads qk_heads(Tensor packed, Tensor table, Heads heads, Tensor position,
                        bool with_values) {
    const int64_t HS = 2 * table.shape[2];
    QkHeads s = {};
    s.table = (const float *)table.data;
    s.position = (const int32_t *)position.data;
    s.columns = tensor_cols(packed);
    s.N = (int)tensor_rows(packed);
    s.T = 1;
    if (packed.rank > 2) s.T = (int)packed.shape[1];
    s.HS = (int)HS;
    s.num_q = heads.NH;
    s.num_k = heads.NKV;
    s.heads = heads.NH + heads.NKV;
    if (with_values) s.heads += heads.NKV;
    s.one_over_HS = 1.0f / (float)HS;
    return s;
}

// lane_bits: a lane to each pack of half a head, and idle ones up to a power of two. Tensors may be
// absent.
static int lane_bits_of(const QkHeads *s, Tensor packed, Tensor other, Tensor q_weight,
                        Tensor k_weight, Tensor table) {
    const int64_t pairs = s->HS / 2, packs = pairs * (int64_t)dtype_size(packed.dtype) / 16;
    const void *rows[] = {packed.data, other.data, q_weight.data, k_weight.data};
    bool aligned = packs <= WARP && pack_aligned(table.data, pairs, DTYPE_FP32);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        aligned = aligned && pack_aligned(rows[i], pairs, packed.dtype);
    if (!aligned) return -1;
    int bits = 0;
    while (1 << bits < packs) bits++;
    return bits;
}

// Threads of a block of the plain path: few idle threads for short heads.
static int plain_head_threads(int HS) { return (int)min_i64(round_up(HS / 2, WARP), THREADS); }

template <class T>
static void launch_rotation(Tensor out, Tensor rstd, Tensor qkv, Tensor q_weight, Tensor k_weight,
                            const QkHeads *s, float eps, float direction) {
    const int64_t heads = (int64_t)s->N * s->heads, threads = heads << max_i64(s->lane_bits, 0);
    REQUIRE(threads < (int64_t)1 << 31, "qk_norm_rope: %d rows of %d heads", s->N, s->heads);
    if (s->lane_bits >= 0) {
        LAUNCH(qk_norm_rope_kernel<T>, (unsigned)ceil_div(threads, THREADS), THREADS, 0,
               cuda_compute_stream())
        ((T *)out.data, (float *)rstd.data, (const T *)qkv.data, (const T *)q_weight.data,
         (const T *)k_weight.data, *s, eps, direction);
    } else {
        LAUNCH(qk_norm_rope_plain_kernel<T>, (unsigned)heads, plain_head_threads(s->HS), 0,
               cuda_compute_stream())
        ((T *)out.data, (float *)rstd.data, (const T *)qkv.data, (const T *)q_weight.data,
         (const T *)k_weight.data, *s, eps, direction);
    }
}

void backend_qk_norm_rope_forward(Tensor out, Tensor rstd, Tensor qkv, Tensor q_weight,
                                  Tensor k_weight, Tensor table, Heads heads, float eps,
                                  Tensor position) {
    QkHeads s = qk_heads(qkv, table, heads, position, out.data != qkv.data);
    s.lane_bits = lane_bits_of(&s, qkv, out, q_weight, k_weight, table);
    DISPATCH(qkv.dtype, T, launch_rotation<T>(out, rstd, qkv, q_weight, k_weight, &s, eps, 1.0f));
}

// ---------------------------------------------------------------------------------------- backward

// A lane's share of a head.
template <class T> struct HeadPacks { Vector<T, PACK<T>> low, high; };
template <class T>
static __device__ __forceinline__ HeadPacks<T> load_head(const T *head, int pairs, bool inside) {
    return {load_or_zero<T, PACK<T>, true>(head, inside),
            load_or_zero<T, PACK<T>, true>(head + pairs, inside)};
}

// Half a head: sum += d * xhat; mean += d * xhat * weight.
template <class T, int N>
static __device__ __forceinline__ void add_weight_terms(float (&sum)[N], float &mean,
                                                        const float (&d)[N], const Vector<T, N> &x,
                                                        float rstd, const T *weight, bool inside) {
    float v[N], w[N];
    to_floats(v, x);
    to_floats(w, load_or_zero<T, N>(weight, inside));
    for (int k = 0; k < N; k++) {
        const float product = d[k] * (v[k] * rstd);
        sum[k] += product;
        mean += product * w[k];
    }
}
// d = rstd * (d * weight - xhat * mean). The weights are read again: registers are short.
template <class T, int N>
static __device__ __forceinline__ void norm_gradient(float (&d)[N], const Vector<T, N> &x,
                                                     float rstd, float mean, const T *weight,
                                                     bool inside) {
    float v[N], w[N];
    to_floats(v, x);
    to_floats(w, load_or_zero<T, N>(weight, inside));
    for (int k = 0; k < N; k++) d[k] = (d[k] * w[k] - v[k] * rstd * mean) * rstd;
}

// dqkv, the gradient of the rotated heads, becomes that of the heads of x: rotated back, then
// rstd * (dnorm - xhat * mean(dnorm * xhat)); and the sums of d * xhat over all heads of q, over
// all of k. Rows are dealt to blocks one after another, from the last to the first; a block takes
// the heads of q in its rows, then those of k, THREADS / lanes at a time, so that a thread has the
// same columns of all its heads, and their sums in registers. In a block the sums of a warp's heads
// are added as a butterfly, then the warps in order. Three blocks a multiprocessor, each thread
// with four loads of 16 bytes in flight: 49 KB. Bytes: 3 elements for each of q and k, 4 for rstd
// of a head; 8 * blocks * HS of partial sums, written and read.
template <class T>
static __global__ void __launch_bounds__(THREADS, 3)
    qk_norm_backward_kernel(T *dqkv, float *partials, RowSums sums, const T *x, const float *rstd,
                            const T *q_weight, const T *k_weight, QkHeads s) {
    wait_for_the_grid_before();
    constexpr int W = PACK<T>;
    __shared__ alignas(16) float of_warps[WARPS][2 * WARP * W]; // stored as vectors
    const int pairs = s.HS / 2, lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const int lanes = 1 << s.lane_bits, column = lane % lanes * W;
    const int rows = (s.N - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;
    for (int part = 0; part < 2; part++) {
        const int heads = part == 0 ? s.num_q : s.num_k, before = part == 0 ? 0 : s.num_q;
        const T *weight = (part == 0 ? q_weight : k_weight) + column;
        float sum_a[W] = {}, sum_b[W] = {};
        for (int at = warp * WARP >> s.lane_bits; at < rows * heads; at += THREADS >> s.lane_bits) {
            const int i = at + (lane >> s.lane_bits), head = before + i % heads;
            const int row = s.N - 1 - ((int)blockIdx.x + i / heads * (int)gridDim.x);
            const bool inside = i < rows * heads && column < pairs;
            const int64_t first = (int64_t)row * s.columns + head * s.HS + column;
            const HeadPacks<T> d = load_head(dqkv + first, pairs, inside),
                               in = load_head(x + first, pairs, inside);
            const float of_head = inside ? rstd[(int64_t)row * (s.num_q + s.num_k) + head] : 0.0f;
            float a[W], b[W], mean = 0.0f; // of dnorm * xhat
            to_floats(a, d.low);
            to_floats(b, d.high);
            const Angles<W> angles(angles_of(s, inside ? row : 0), pairs, inside ? column : 0,
                                   -1.0f);
            rotate_pairs(a, b, angles.cosine, angles.sine);
            add_weight_terms(sum_a, mean, a, in.low, of_head, weight, inside);
            add_weight_terms(sum_b, mean, b, in.high, of_head, weight + pairs, inside);
            mean = head_sum(mean, lanes) * s.one_over_HS;
            norm_gradient(a, in.low, of_head, mean, weight, inside);
            norm_gradient(b, in.high, of_head, mean, weight + pairs, inside);
            if (!inside) continue;
            store_vector(dqkv + first, from_floats<T>(a));
            store_vector(dqkv + first + pairs, from_floats<T>(b));
        }
        for (int offset = lanes; offset < WARP; offset *= 2)
            for (int k = 0; k < W; k++) {
                sum_a[k] += __shfl_xor_sync(ALL_LANES, sum_a[k], offset);
                sum_b[k] += __shfl_xor_sync(ALL_LANES, sum_b[k], offset);
            }
        if (lane < lanes && column < pairs) {
            store_vector(&of_warps[warp][column], from_floats<float>(sum_a));
            store_vector(&of_warps[warp][pairs + column], from_floats<float>(sum_b));
        }
        __syncthreads();
        for (int c = (int)threadIdx.x; c < s.HS; c += THREADS) {
            float total = 0.0f;
            for (int w = 0; w < WARPS; w++) total += of_warps[w][c];
            partials[((int64_t)blockIdx.x * 2 + part) * s.HS + c] = total;
        }
        __syncthreads();
    }
    finish_row_sums<4>(partials, sums, s.HS);
}

// The same for any head size and any alignment: a block processes the heads of its rows one after
// another, a thread every blockDim-th pair; the partial sums of its columns are in memory, private
// to the thread.
template <class T>
static __global__ void __launch_bounds__(THREADS)
    qk_norm_backward_plain_kernel(T *dqkv, float *partials, RowSums sums, const T *x,
                                  const float *rstd, const T *q_weight, const T *k_weight,
                                  QkHeads s) {
    wait_for_the_grid_before();
    const int pairs = s.HS / 2, heads = s.num_q + s.num_k;
    float *partial = partials + (int64_t)blockIdx.x * 2 * s.HS;
    for (int j = (int)threadIdx.x; j < pairs; j += (int)blockDim.x)
        partial[j] = partial[pairs + j] = partial[s.HS + j] = partial[s.HS + pairs + j] = 0.0f;
    for (int row = s.N - 1 - (int)blockIdx.x; row >= 0; row -= (int)gridDim.x)
        for (int head = 0; head < heads; head++) {
            const T *weight = head < s.num_q ? q_weight : k_weight,
                    *in = x + (int64_t)row * s.columns + head * s.HS;
            T *gradient = dqkv + (int64_t)row * s.columns + head * s.HS;
            float *sum = partial + (head < s.num_q ? 0 : s.HS), mean = 0.0f;
            const float of_head = rstd[(int64_t)row * heads + head];
            for (int j = (int)threadIdx.x; j < pairs; j += (int)blockDim.x) {
                const Angles<1> angles(angles_of(s, row), pairs, j, -1.0f);
                float a[1] = {to_float(gradient[j])}, b[1] = {to_float(gradient[pairs + j])};
                rotate_pairs(a, b, angles.cosine, angles.sine);
                const float da = a[0] * to_float(in[j]) * of_head,
                            db = b[0] * to_float(in[pairs + j]) * of_head;
                sum[j] += da;
                sum[pairs + j] += db;
                mean += da * to_float(weight[j]) + db * to_float(weight[pairs + j]);
            }
            mean = block_sum(mean) / (float)s.HS;
            for (int j = (int)threadIdx.x; j < pairs; j += (int)blockDim.x) {
                const Angles<1> angles(angles_of(s, row), pairs, j, -1.0f);
                float a[1] = {to_float(gradient[j])}, b[1] = {to_float(gradient[pairs + j])};
                rotate_pairs(a, b, angles.cosine, angles.sine);
                const float xa = to_float(in[j]) * of_head, xb = to_float(in[pairs + j]) * of_head;
                gradient[j] = from_float<T>((a[0] * to_float(weight[j]) - xa * mean) * of_head);
                gradient[pairs + j] =
                    from_float<T>((b[0] * to_float(weight[pairs + j]) - xb * mean) * of_head);
            }
        }
    finish_row_sums<1>(partials, sums, s.HS);
}

void backend_qk_norm_rope_backward(Tensor dqkv, Gradient dq_weight, Gradient dk_weight, Tensor qkv,
                                   Tensor rstd, Tensor q_weight, Tensor k_weight, Tensor table,
                                   Heads heads) {
    const Tensor none = tensor_none();
    QkHeads s = qk_heads(dqkv, table, heads, none, false);
    s.lane_bits = lane_bits_of(&s, dqkv, qkv, q_weight, k_weight, table);
    if (!q_weight.data) {
        DISPATCH(dqkv.dtype, T, launch_rotation<T>(dqkv, none, dqkv, none, none, &s, 0.0f, -1.0f));
        return;
    }
    const RowSums sums = {{sum_into(dq_weight), sum_into(dk_weight)}, 2};
    float *partials = (float *)cuda_scratch("qk_norm_rope_backward", cuda_size_qk_norm(s.N, s.HS));
    const unsigned blocks = (unsigned)cuda_qk_norm_blocks(s.N);
    DISPATCH(dqkv.dtype, T, {
        T *gradient = (T *)dqkv.data;
        const T *in = (const T *)qkv.data, *wq = (const T *)q_weight.data,
                *wk = (const T *)k_weight.data;
        if (s.lane_bits >= 0)
            LAUNCH(qk_norm_backward_kernel<T>, blocks, THREADS, 0, cuda_compute_stream())
        (gradient, partials, sums, in, (const float *)rstd.data, wq, wk, s);
        else LAUNCH(qk_norm_backward_plain_kernel<T>, blocks, plain_head_threads(s.HS), 0,
                    cuda_compute_stream())(gradient, partials, sums, in, (const float *)rstd.data,
                                           wq, wk, s);
    });
}
