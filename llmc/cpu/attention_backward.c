// attention_backward. One task is one head of one sequence. Everything is computed transposed, keys x queries, so that
// P^T and dS^T come out as the left operands which dV and dK need:
//
//                  queries ->                  one panel, 8 keys x at most QUERY_BLOCK queries:
//                +---------+---------+--          scores^T = K Q^T                   dP^T = V dO^T
//         keys   |.xxxxxxxx|         |            P^T  = exp(scores^T * scale - lse)
//          |     | .xxxxxxx|         |            dS^T = P^T * (dP^T - delta)        delta = rowsum(dO * out)
//          v     |  .xxxxxx|         |            dV += P^T dO                       dK += dS^T Q
//                |    .xxxx|         |         one block, BLOCK_KEYS x QUERY_BLOCK:
//                +---------+---------+--          dQ^T += K^T dS^T
//                |         |.xxxxxxxx|
//
// Each product with P or dS needs it as one operand only, once. dV and dK of a block of keys are finished before the
// next block; only dQ^T is added to by all blocks, in the order of the keys. A panel's queries begin with the group of
// 16 that holds its diagonal; what lies further left is no work.
#include "llmc/cpu/attention.h"

#include <omp.h>

enum {
    BLOCK_KEYS = 64,
    QUERY_BLOCK = 256,
    PANEL_STRIDE = QUERY_BLOCK + LANES, // one vector more than a power of two: rows do not share their cache sets
};

typedef struct {
    // the whole head
    RightOperand queries_t, douts_t; // Q^T, dO^T: HS x T
    RightOperand queries, douts;     // Q, dO: T x HS
    TileResult dqueries_t;           // dQ^T: HS x T, before scale
    float *lse, *delta;              // (T), padded with 0
    // one block of keys
    LeftOperand keys, values;  // K, V: BLOCK_KEYS x HS
    LeftOperand keys_t;        // K^T: HS x BLOCK_KEYS
    TileResult dkeys, dvalues; // BLOCK_KEYS x HS, dK before scale
    RightOperand dscores;      // dS^T: BLOCK_KEYS x QUERY_BLOCK
    // one panel
    TileResult scores_t, dprobs_t; // 8 x QUERY_BLOCK
    LeftOperand probs_t, dscores_t; // the same memory: P^T over scores^T, dS^T over dP^T
} BackwardScratch;

static TileResult take_rows(char *base, int64_t *end, int64_t rows, int64_t stride) {
    return (TileResult){scratch_take(base, end, rows * stride * 4), stride, LANES};
}
static LeftOperand take_left(char *base, int64_t *end, int64_t rows, int64_t depth) {
    return (LeftOperand){scratch_take(base, end, rows * depth * 4), depth};
}
static RightOperand take_right(char *base, int64_t *end, int64_t depth, int64_t columns) {
    return (RightOperand){scratch_take(base, end, depth * columns * 4), depth * LANES};
}

static int64_t backward_layout(BackwardScratch *s, char *base, int64_t T, int64_t HS, DType dtype) {
    int64_t T16 = round_up(T, LANES), HS16 = round_up(HS, LANES);
    int64_t head_words = round_up(depth_words(HS, dtype), LANES), query_words = depth_words(T16, dtype);
    int64_t block_words = depth_words(BLOCK_KEYS, dtype);
    int64_t end = 0;
    s->queries_t = take_right(base, &end, head_words, T16);
    s->douts_t = take_right(base, &end, head_words, T16);
    s->queries = take_right(base, &end, query_words, HS16);
    s->douts = take_right(base, &end, query_words, HS16);
    s->dqueries_t = (TileResult){scratch_take(base, &end, T16 * HS16 * 4), LANES, HS16 * LANES};
    s->lse = scratch_take(base, &end, T16 * 4);
    s->delta = scratch_take(base, &end, T16 * 4);

    s->keys = take_left(base, &end, BLOCK_KEYS, head_words);
    s->values = take_left(base, &end, BLOCK_KEYS, head_words);
    s->keys_t = take_left(base, &end, HS16, block_words);
    s->dkeys = take_rows(base, &end, BLOCK_KEYS, HS16);
    s->dvalues = take_rows(base, &end, BLOCK_KEYS, HS16);
    s->dscores = take_right(base, &end, block_words, QUERY_BLOCK);

    s->scores_t = take_rows(base, &end, PANEL_ROWS, PANEL_STRIDE);
    s->dprobs_t = take_rows(base, &end, PANEL_ROWS, PANEL_STRIDE);
    s->probs_t = (LeftOperand){(uint32_t *)s->scores_t.data, s->scores_t.row_stride};
    s->dscores_t = (LeftOperand){(uint32_t *)s->dprobs_t.data, s->dprobs_t.row_stride};
    return end;
}

int64_t attention_backward_scratch(int64_t T, int64_t HS, DType dtype) {
    BackwardScratch counted;
    return backward_layout(&counted, NULL, T, HS, dtype);
}

// One head: views of its inputs and outputs.
typedef struct {
    MatrixView q, k, v, out, dout, dq, dk, dv;
    const float *lse;
    float scale;
} Head;

// ------------------------------------------------------------------------------------------------------------- a panel

// Words of dS^T, as right operand, of rows r and r + 1 for 16 queries.
static ALWAYS_INLINE void store_row_pair(uint32_t *group, int64_t r, V row, V next_row, DType E) {
    if (E == DTYPE_BF16) {
        vstore_bits(group + r / 2 * LANES, vpair_bf16(row, next_row));
    } else {
        vstore_bits(group + r * LANES, (VU)row);
        vstore_bits(group + (r + 1) * LANES, (VU)next_row);
    }
}

// scores^T -> P^T and dP^T -> dS^T, in place, for 16 queries of a panel; dS^T also goes to the block's right operand.
// j: their place in the panel. past[r]: how many of them come before key r and do not see it.
static ALWAYS_INLINE void dscores_group(const BackwardScratch *s, uint32_t *block_group, int64_t j, V lse, V delta,
                                        float scale, int64_t unseen, DType E) {
    for (int r = 0; r < PANEL_ROWS; r += 2) {
        V ds[2];
        for (int i = 0; i < 2; i++) {
            float *score = s->scores_t.data + (r + i) * PANEL_STRIDE;
            float *dprob = s->dprobs_t.data + (r + i) * PANEL_STRIDE;
            V p = vexp(vfma(vload_f32(score + j), vsplat(scale), -lse));
            if (unseen >= 0) p = vfirst(lanes(unseen + r + i), vzero(), p);
            ds[i] = p * (vload_f32(dprob + j) - delta);
            vstore(score, j, p, E);
            vstore(dprob, j, ds[i], E);
        }
        store_row_pair(block_group, r, ds[0], ds[1], E);
    }
}

static TileResult result_from_row(TileResult c, int64_t row) {
    return (TileResult){c.data + row * c.row_stride, c.row_stride, c.group_stride};
}

// Keys k0 + key .. + 7 of the block that begins with k0, queries [q_first, q_end) of the query block.
static ALWAYS_INLINE void backward_panel(const BackwardScratch *s, const Head *head, int64_t k0, int64_t key,
                                         int64_t q_first, int64_t q_end, bool first_block, DType E) {
    int64_t HS = head->q.columns, HS16 = round_up(HS, LANES), first_key = k0 + key;
    int64_t diagonal = first_key / LANES * LANES; // the group of queries which see some of these keys, not all
    int64_t q0 = q_first > diagonal ? q_first : diagonal, num_queries = q_end - q0;

    tile_matmul(s->scores_t, left_from_row(s->keys, key), right_from_column(s->queries_t, q0), PANEL_ROWS, num_queries,
                depth_words(HS, E), false, E);
    tile_matmul(s->dprobs_t, left_from_row(s->values, key), right_from_column(s->douts_t, q0), PANEL_ROWS, num_queries,
                depth_words(HS, E), false, E);

    RightOperand block = right_from_word(s->dscores, depth_words(key, E));
    for (int64_t q = q_first; q < q0; q += LANES)
        memset(right_from_column(block, q - q_first).words, 0, (size_t)(depth_words(PANEL_ROWS, E) * LANES) * 4);
    for (int64_t q = q0; q < q_end; q += LANES) {
        uint32_t *block_group = right_from_column(block, q - q_first).words;
        V lse = vload_f32(s->lse + q), delta = vload_f32(s->delta + q);
        if (q == diagonal)
            dscores_group(s, block_group, q - q0, lse, delta, head->scale, first_key - q, E);
        else
            dscores_group(s, block_group, q - q0, lse, delta, head->scale, -1, E);
    }

    int64_t depth = depth_words(num_queries, E);
    tile_matmul(result_from_row(s->dvalues, key), s->probs_t, right_from_word(s->douts, depth_words(q0, E)),
                PANEL_ROWS, HS16, depth, !first_block, E);
    tile_matmul(result_from_row(s->dkeys, key), s->dscores_t, right_from_word(s->queries, depth_words(q0, E)),
                PANEL_ROWS, HS16, depth, !first_block, E);
}

// -------------------------------------------------------------------------------------------------------- a key block

static ALWAYS_INLINE void store_rows(MatrixView m, int64_t first, int64_t count, TileResult from, float scale,
                                     DType E) {
    for (int64_t r = 0; r < count && first + r < m.rows; r++)
        for (int64_t j = 0; j < m.columns; j += LANES)
            vstore_first(lanes(m.columns - j), m.data, (first + r) * m.stride + j,
                         vload_f32(from.data + r * from.row_stride + j) * scale, E);
}

static ALWAYS_INLINE void backward_key_block(const BackwardScratch *s, const Head *head, int64_t k0, DType E) {
    int64_t T = head->q.rows, T16 = round_up(T, LANES), HS = head->q.columns;
    int64_t num_keys = T - k0 < BLOCK_KEYS ? round_up(T - k0, PANEL_ROWS) : BLOCK_KEYS;

    pack_left(s->keys, head->k, k0, num_keys);
    pack_left(s->values, head->v, k0, num_keys);
    pack_left_transposed(s->keys_t, head->k, k0, BLOCK_KEYS);
    for (int64_t q0 = k0, q1; q0 < T16; q0 = q1) {
        q1 = T16 - q0 < QUERY_BLOCK ? T16 : q0 + QUERY_BLOCK;
        for (int64_t key = 0; key < num_keys; key += PANEL_ROWS)
            backward_panel(s, head, k0, key, q0, q1, q0 == k0, E);
        TileResult dqueries_t = {s->dqueries_t.data + q0 / LANES * s->dqueries_t.group_stride,
                                 s->dqueries_t.row_stride, s->dqueries_t.group_stride};
        tile_matmul(dqueries_t, s->keys_t, s->dscores, round_up(HS, PANEL_ROWS), q1 - q0, depth_words(num_keys, E),
                    k0 > 0, E);
    }
    store_rows(head->dk, k0, BLOCK_KEYS, s->dkeys, head->scale, E);
    store_rows(head->dv, k0, BLOCK_KEYS, s->dvalues, 1.0f, E);
}

// ------------------------------------------------------------------------------------------------------------- a head

// delta[t] = sum of dout[t] * out[t], and a copy of lse; both continue with 0 up to the next group of 16 queries. With
// zeros for Q and dO these queries give P = 1, dP = 0 and dS = 0: they add nothing to any gradient.
static ALWAYS_INLINE void prepare_queries(const BackwardScratch *s, const Head *head, DType E) {
    MatrixView o = head->out, d = head->dout;
    for (int64_t t0 = 0; t0 < o.rows; t0 += LANES) {
        int64_t word = depth_words(t0, E);
        pack_right_transposed(right_from_column(s->queries_t, t0), head->q, t0, LANES);
        pack_right(right_from_word(s->queries, word), head->q, t0, LANES);
        pack_right_transposed(right_from_column(s->douts_t, t0), head->dout, t0, LANES);
        pack_right(right_from_word(s->douts, word), head->dout, t0, LANES);
        for (int64_t t = t0; t < t0 + LANES; t++) {
            prefetch_row(o, t + LANES);
            if (t < BLOCK_KEYS) prefetch_row(head->k, t), prefetch_row(head->v, t);
            V sum = vzero();
            for (int64_t j = 0; j < o.columns && t < o.rows; j += LANES) {
                int n = lanes(o.columns - j);
                sum = vfma(vload_first(n, d.data, t * d.stride + j, E), vload_first(n, o.data, t * o.stride + j, E),
                           sum);
            }
            s->delta[t] = vsum(sum);
            s->lse[t] = t < o.rows ? head->lse[t] : 0.0f;
        }
    }
}

static ALWAYS_INLINE void store_dqueries(const BackwardScratch *s, const Head *head, DType E) {
    MatrixView dq = head->dq;
    for (int64_t q = 0; q < dq.rows; q += LANES)
        for (int64_t j = 0; j < dq.columns; j += LANES) {
            VU block[LANES];
            const float *group = s->dqueries_t.data + q / LANES * s->dqueries_t.group_stride + j * LANES;
            memcpy(block, group, sizeof block);
            transpose_16x16(block);
            for (int i = 0; i < LANES && q + i < dq.rows; i++)
                vstore_first(lanes(dq.columns - j), dq.data, (q + i) * dq.stride + j, (V)block[i] * head->scale, E);
        }
}

static ALWAYS_INLINE void backward_head(const BackwardScratch *s, const Head *head, DType E) {
    prepare_queries(s, head, E);
    for (int64_t k0 = 0; k0 < head->q.rows; k0 += BLOCK_KEYS) backward_key_block(s, head, k0, E);
    store_dqueries(s, head, E);
}

void attention_backward(Tensor dqkv, Tensor dout, Tensor out, Tensor lse, Tensor qkv, int num_heads) {
    const char *op = "attention_backward";
    AttentionShape s = attention_shape(op, qkv, num_heads);
    int64_t numel = s.B * s.T * s.NH * s.HS;
    tensor_check(op, dqkv, s.dtype, 3 * numel);
    tensor_check(op, dout, s.dtype, numel);
    tensor_check(op, out, s.dtype, numel);
    tensor_check(op, lse, DTYPE_FP32, s.B * s.NH * s.T);
    int64_t scratch_bytes = attention_backward_scratch(s.T, s.HS, s.dtype);
    char *scratch = cpu_scratch(op, cpu_threads() * scratch_bytes);

#pragma omp parallel for schedule(dynamic, 1) num_threads(cpu_threads())
    for (int64_t task = 0; task < s.B * s.NH; task++) {
        int64_t b = task / s.NH, h = task % s.NH;
        BackwardScratch mine;
        backward_layout(&mine, scratch + omp_get_thread_num() * scratch_bytes, s.T, s.HS, s.dtype);
        const Head head = {
            .q = attention_head(s, qkv, b, h, 0, 3),
            .k = attention_head(s, qkv, b, h, 1, 3),
            .v = attention_head(s, qkv, b, h, 2, 3),
            .out = attention_head(s, out, b, h, 0, 1),
            .dout = attention_head(s, dout, b, h, 0, 1),
            .dq = attention_head(s, dqkv, b, h, 0, 3),
            .dk = attention_head(s, dqkv, b, h, 1, 3),
            .dv = attention_head(s, dqkv, b, h, 2, 3),
            .lse = (const float *)lse.data + task * s.T,
            .scale = s.scale,
        };
        WITH_DTYPE(E, s.dtype, backward_head(&mine, &head, E));
    }
}
