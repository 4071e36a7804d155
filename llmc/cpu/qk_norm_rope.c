// QK-norm and RoPE: what happens to q and k between the qkv projection and attention, in one pass
// over them, forward and backward.
//
// A row of qkv, all heads of one token, is one task: its cosines and sines stay in the L1 cache. A
// head is read twice, for its norm and for the rotation, the second time from that cache. Pair j of
// a head is (x_j, x_(j+HS/2)): vectors of the lower half meet vectors of the upper half, and no
// lanes are shuffled.
#include "llmc/base/arithmetic.h"
#include "llmc/base/error.h"
#include "llmc/cpu/cpu.h"
#include "llmc/cpu/row_sums.h"
#include "llmc/cpu/simd.h"

void backend_rope_table(Tensor table, float base) {
    ops_rope_angles(table.data, table.shape[0], table.shape[2], base);
}

// Rows of packed q, k and v, and what both passes need beside them.
typedef struct {
    int64_t N, T, columns, HS, num_q, num_k; // num_q, num_k: heads
    const float *table;                      // the row of position 0 of a sequence
    const void *weights[2];                  // of q and k; NULL: no norm
    float *rstd;                             // (N, num_q + num_k)
} QkRows;

static QkRows qk_rows(Tensor packed, Tensor rstd, Tensor q_weight, Tensor k_weight, Tensor table,
                      Heads heads, int64_t first) {
    const int64_t N = tensor_rows(packed), HS = 2 * table.shape[2];
    QkRows s = {.N = N,
                .T = 1,
                .columns = tensor_cols(packed),
                .HS = HS,
                .num_q = heads.NH,
                .num_k = heads.NKV,
                .table = (const float *)table.data + first * HS,
                .weights = {q_weight.data, k_weight.data}};
    if (packed.rank > 2) s.T = N / packed.shape[0];
    if (q_weight.data) s.rstd = rstd.data;
    return s;
}

// The statement with HS as a constant where it is one of the usual sizes: the loops over a head
// unroll.
#define WITH_HEAD_SIZE(HS, size, ...)                                                              \
    do {                                                                                           \
        if ((size) == 64) {                                                                        \
            const int64_t HS = 64;                                                                 \
            __VA_ARGS__;                                                                           \
        } else if ((size) == 128) {                                                                \
            const int64_t HS = 128;                                                                \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            const int64_t HS = (size);                                                             \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)

// ----------------------------------------------------------------------------------------- forward

// The rotation by an angle of which c and s are cosine and sine. Backward: by -s.
static ALWAYS_INLINE V rotated_low(V a, V b, V c, V s) { return vfma(a, c, -(b * s)); }
static ALWAYS_INLINE V rotated_high(V a, V b, V c, V s) { return vfma(a, s, b * c); }

// Element i of an array, so that all of a head is at constant distances from its first element.
static ALWAYS_INLINE void *head_at(const void *p, int64_t i, DType E) {
    return (char *)p + i * (int64_t)dtype_size(E);
}

// One head, of HS elements. weight NULL: no norm. Returns rstd.
static ALWAYS_INLINE float rotate_head(void *out, const void *in, const void *weight,
                                       const float *cosines, int64_t HS, float eps, DType E) {
    const int64_t half = HS / 2;
    const float *sines = cosines + half;
    V rstd = vsplat(1.0f);
    if (weight) {
        V low = vzero(), high = vzero();
        EACH_LANES(j, k, half, {
            const V a = vload_first(k, in, j, E), b = vload_first(k, in, half + j, E);
            low = vfma(a, a, low);
            high = vfma(b, b, high);
        });
        rstd = 1.0f / vsqrt(vsplat(vsum(low + high) / (float)HS + eps));
    }
    EACH_LANES(j, k, half, {
        V a = vload_first(k, in, j, E), b = vload_first(k, in, half + j, E);
        if (weight) {
            a = a * rstd * vload_first(k, weight, j, E);
            b = b * rstd * vload_first(k, weight, half + j, E);
        }
        const V c = vload_first_f32(k, cosines + j), s = vload_first_f32(k, sines + j);
        vstore_first(k, out, j, rotated_low(a, b, c, s), E);
        vstore_first(k, out, half + j, rotated_high(a, b, c, s), E);
    });
    return rstd[0];
}

static ALWAYS_INLINE void rotate_row(const QkRows *s, void *out, const void *in, int64_t row,
                                     int64_t HS, float eps, DType E) {
    const int64_t heads = s->num_q + s->num_k, first = row * s->columns;
    const float *cosines = s->table + row % s->T * HS;
    for (int64_t h = 0; h < heads; h++) {
        void *to = head_at(out, first + h * HS, E), *from = head_at(in, first + h * HS, E);
        if (s->rstd)
            s->rstd[row * heads + h] =
                rotate_head(to, from, s->weights[h >= s->num_q], cosines, HS, eps, E);
        else
            rotate_head(to, from, NULL, cosines, HS, eps, E);
    }
    const int64_t values = first + heads * HS;
    if (out != in)
        memcpy(head_at(out, values, E), head_at(in, values, E),
               (size_t)(s->num_k * HS) * dtype_size(E));
}

void backend_qk_norm_rope_forward(Tensor out, Tensor rstd, Tensor qkv, Tensor q_weight,
                                  Tensor k_weight, Tensor table, Heads heads, float eps,
                                  Tensor position) {
    const int64_t start = position.data ? *(const int32_t *)position.data : 0;
    const QkRows s = qk_rows(qkv, rstd, q_weight, k_weight, table, heads, start);
    REQUIRE(start >= 0 && start + s.T <= table.shape[0],
            "qk_norm_rope_forward: positions %lld to %lld of %lld", (long long)start,
            (long long)(start + s.T), (long long)table.shape[0]);
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < s.N; row++)
        WITH_DTYPE(E, qkv.dtype,
                   WITH_HEAD_SIZE(HS, s.HS, rotate_row(&s, out.data, qkv.data, row, HS, eps, E)));
}

// ---------------------------------------------------------------------------------------- backward

// QK_HEADS heads at a time share the vectors of cosines, sines, weights and sums: with 16 registers
// two are faster than one, three and four. Vectors of a block of rows, each half of a head: the
// sums of the gradients of the weights of q and of k; the gradient of the norm of these heads,
// until its mean is known.
enum { QK_HEADS = 2, QK_SUMS = 4, QK_VECTORS = QK_SUMS + 2 * QK_HEADS };

static int64_t qk_norm_bytes(int64_t blocks, int64_t HS) {
    return blocks * QK_VECTORS * round_up(HS / 2, LANES) * (int64_t)sizeof(float);
}

int64_t cpu_qk_norm_workspace(OpsShape shape) {
    return qk_norm_bytes(blocks_of_rows(shape.B * shape.T), ops_head_size(shape));
}

// One head of the gradient of RoPE alone, in place.
static ALWAYS_INLINE void rope_head_back(void *gradient, const float *cosines, int64_t HS,
                                         DType E) {
    const int64_t half = HS / 2;
    EACH_LANES(j, k, half, {
        const V a = vload_first(k, gradient, j, E), b = vload_first(k, gradient, half + j, E);
        const V c = vload_first_f32(k, cosines + j), s = -vload_first_f32(k, cosines + half + j);
        vstore_first(k, gradient, j, rotated_low(a, b, c, s), E);
        vstore_first(k, gradient, half + j, rotated_high(a, b, c, s), E);
    });
}

// `heads` neighbouring heads of the gradient, in place; their terms of the weight's gradient are
// added to sums (2, padded). dnorm (heads, 2, padded) is scratch.
static ALWAYS_INLINE void qk_norm_heads_back(int heads, void *gradient, const void *x,
                                             const float *rstd, const void *weight,
                                             const float *cosines, float *sums, float *dnorm,
                                             int64_t HS, DType E) {
    const int64_t half = HS / 2, padded = round_up(half, LANES);
    V low[QK_HEADS], high[QK_HEADS];
    for (int h = 0; h < heads; h++) low[h] = high[h] = vzero();
    EACH_LANES(j, k, half, {
        const V c = vload_first_f32(k, cosines + j), s = -vload_first_f32(k, cosines + half + j);
        const V wa = vload_first(k, weight, j, E), wb = vload_first(k, weight, half + j, E);
        V suma = vload_f32(sums + j), sumb = vload_f32(sums + padded + j);
        for (int h = 0; h < heads; h++) {
            const int64_t at = h * HS + j;
            float *to = dnorm + h * 2 * padded + j;
            const V a = vload_first(k, gradient, at, E), b = vload_first(k, gradient, half + at, E);
            const V da = rotated_low(a, b, c, s), db = rotated_high(a, b, c, s),
                    r = vsplat(rstd[h]);
            const V xa = vload_first(k, x, at, E) * r, xb = vload_first(k, x, half + at, E) * r;
            const V na = da * wa, nb = db * wb;
            suma = vfma(da, xa, suma);
            sumb = vfma(db, xb, sumb);
            vstore_f32(to, na);
            vstore_f32(to + padded, nb);
            low[h] = vfma(na, xa, low[h]);
            high[h] = vfma(nb, xb, high[h]);
        }
        vstore_f32(sums + j, suma);
        vstore_f32(sums + padded + j, sumb);
    });
    for (int h = 0; h < heads; h++) {
        // mean(dnorm * xhat) * rstd
        const V r = vsplat(rstd[h]), of_x = vsplat(vsum(low[h] + high[h]) / (float)HS) * r;
        const float *from = dnorm + h * 2 * padded;
        EACH_LANES(j, k, half, {
            const int64_t at = h * HS + j;
            const V xa = vload_first(k, x, at, E), xb = vload_first(k, x, half + at, E);
            vstore_first(k, gradient, at, (vload_f32(from + j) - xa * of_x) * r, E);
            vstore_first(k, gradient, half + at, (vload_f32(from + padded + j) - xb * of_x) * r, E);
        });
    }
}

// The neighbouring heads of q (part 0) or of k (part 1) of a row, from `first` to `end`. vectors:
// (QK_VECTORS, padded).
static ALWAYS_INLINE void qk_norm_part_back(const QkRows *s, void *gradient, const void *x,
                                            int64_t row, int part, int64_t first, int64_t end,
                                            float *vectors, int64_t HS, DType E) {
    const int64_t padded = round_up(HS / 2, LANES);
    const float *cosines = s->table + row % s->T * HS,
                *rstd = s->rstd + row * (s->num_q + s->num_k);
    float *sums = vectors + part * 2 * padded, *dnorm = vectors + QK_SUMS * padded;
    int64_t h = first;
    for (; h + QK_HEADS <= end; h += QK_HEADS) {
        const int64_t at = row * s->columns + h * HS;
        qk_norm_heads_back(QK_HEADS, head_at(gradient, at, E), head_at(x, at, E), rstd + h,
                           s->weights[part], cosines, sums, dnorm, HS, E);
    }
    for (; h < end; h++) {
        const int64_t at = row * s->columns + h * HS;
        qk_norm_heads_back(1, head_at(gradient, at, E), head_at(x, at, E), rstd + h,
                           s->weights[part], cosines, sums, dnorm, HS, E);
    }
}

static ALWAYS_INLINE void rotate_row_back(const QkRows *s, void *gradient, const void *x,
                                          int64_t row, float *vectors, int64_t HS, DType E) {
    const int64_t heads = s->num_q + s->num_k;
    const float *cosines = s->table + row % s->T * HS;
    if (s->rstd) {
        qk_norm_part_back(s, gradient, x, row, 0, 0, s->num_q, vectors, HS, E);
        qk_norm_part_back(s, gradient, x, row, 1, s->num_q, heads, vectors, HS, E);
        return;
    }
    for (int64_t h = 0; h < heads; h++)
        rope_head_back(head_at(gradient, row * s->columns + h * HS, E), cosines, HS, E);
}

void backend_qk_norm_rope_backward(Tensor dqkv, Gradient dq_weight, Gradient dk_weight, Tensor qkv,
                                   Tensor rstd, Tensor q_weight, Tensor k_weight, Tensor table,
                                   Heads heads) {
    const QkRows s = qk_rows(dqkv, rstd, q_weight, k_weight, table, heads, 0);
    const int64_t rows = rows_of_block(s.N), blocks = ceil_div(s.N, rows);
    const int64_t half = s.HS / 2, padded = round_up(half, LANES), stride = QK_VECTORS * padded;
    const Gradient gradients[2] = {dq_weight, dk_weight};
    // (blocks, QK_VECTORS, padded)
    float *partial = cpu_scratch("qk_norm_rope_backward", qk_norm_bytes(blocks, s.HS));
#pragma omp parallel
    {
#pragma omp for schedule(static)
        for (int64_t b = 0; b < blocks; b++) {
            float *vectors = partial + b * stride;
            memset(vectors, 0, (size_t)stride * sizeof *vectors);
            for (int64_t row = b * rows; row < min_i64((b + 1) * rows, s.N); row++)
                WITH_DTYPE(
                    E, dqkv.dtype,
                    WITH_HEAD_SIZE(HS, s.HS,
                                   rotate_row_back(&s, dqkv.data, qkv.data, row, vectors, HS, E)));
        }
#pragma omp for schedule(static)
        for (int sum = 0; sum < QK_SUMS; sum++)
            for (int64_t j = 0; s.rstd && j < half; j += LANES) {
                Gradient part = gradients[sum / 2];
                part.to = tensor_slice_elements(part.to, sum % 2 * half, half);
                add_blocks(part, j, lanes(half - j), partial + sum * padded + j, blocks, stride);
            }
    }
}
