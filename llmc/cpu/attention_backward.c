// attention_backward: gradients of one head at a time, in blocks of keys x queries. All is computed transposed, keys by
// queries, so that P^T and dS^T come out as the left operands that dV and dK need.
//
//                  queries ->                    one panel, 8 keys x the queries of a block:
//                +---------+---------+---            scores^T = K Q^T                  dP^T = V dO^T
//         keys   |..xxxxxxx|         |               P^T  = exp(scores^T * scale - lse)
//          |     |  ..xxxxx|         |               dS^T = P^T * (dP^T - delta),      delta = rowsum(dO * out)
//          v     |    ..xxx|         |               dV  += P^T dO                     dK += dS^T Q
//                |      ..x|         |           one block, BLOCK_KEYS x BLOCK_QUERIES:
//                +---------+---------+---            dQ^T += K^T dS^T
//                |         |..xxxxxxx|
//
// A panel begins with the group of 16 queries that holds its diagonal: that group (.) is computed in full and masked.
// What lies further left is no work. dV and dK of a block of keys are complete before the next block of keys begins;
// dQ^T collects from all blocks, in the order of the keys. The factor scale of dQ and dK comes at the end.
#include "llmc/cpu/attention.h"

#include <omp.h>

// Larger blocks of keys add to dQ^T less often, larger blocks of queries to dK and dV. With 256 queries two panels in
// fp32 (17 KB) and a block of dS^T in bf16 (32 KB) still lie near the core; 128 are 1 to 4% slower, 512 are no faster.
enum {
    BLOCK_KEYS = 64,
    BLOCK_QUERIES = 256,
    PANEL_STRIDE = BLOCK_QUERIES + LANES, // one vector more than a power of two: rows do not share their cache sets
};
_Static_assert(BLOCK_KEYS % 32 == 0 && BLOCK_QUERIES >= BLOCK_KEYS, "a diagonal lies in one block of queries");

typedef struct {
    MatrixView q, k, v, out, dout, dq, dk, dv; // (T,HS)
    const float *lse;                          // (T)
    float scale;
} Head;

typedef struct {
    // the whole head
    RightOperand queries_t, douts_t; // Q^T, dO^T: HS x T
    RightOperand queries, douts;     // Q, dO: T x HS
    TileResult dqueries_t;           // dQ^T: HS x T, by groups of queries
    float *lse, *delta;              // (T), padded with 0
    // one block of keys
    LeftOperand keys, values;  // K, V: BLOCK_KEYS x HS
    LeftOperand keys_t;        // K^T: HS x BLOCK_KEYS
    TileResult dkeys, dvalues; // dK, dV: BLOCK_KEYS x HS
    RightOperand dscores_t;    // dS^T: BLOCK_KEYS x BLOCK_QUERIES
    // one panel: 8 x BLOCK_QUERIES
    TileResult scores_panel, dprobs_panel;  // scores^T, dP^T
    LeftOperand probs_panel, dscores_panel; // P^T over scores^T, dS^T over dP^T
} Scratch;

static LeftOperand take_left(char *base, int64_t *end, int64_t rows, int64_t depth) {
    return (LeftOperand){scratch_take(base, end, rows * depth * 4), depth};
}
static RightOperand take_right(char *base, int64_t *end, int64_t depth, int64_t columns) {
    return (RightOperand){scratch_take(base, end, depth * columns * 4), depth * LANES};
}
static TileResult take_result(char *base, int64_t *end, int64_t rows, int64_t columns) {
    return (TileResult){scratch_take(base, end, rows * columns * 4), columns, LANES};
}

static int64_t scratch_layout(Scratch *s, char *base, int64_t T, int64_t HS, DType dtype) {
    int64_t T_padded = round_up(T, LANES), HS_padded = round_up(HS, LANES);
    int64_t head_words = round_up(depth_words(HS, dtype), LANES), query_words = depth_words(T_padded, dtype);
    int64_t block_words = depth_words(BLOCK_KEYS, dtype);
    int64_t end = 0;
    s->queries_t = take_right(base, &end, head_words, T_padded);
    s->douts_t = take_right(base, &end, head_words, T_padded);
    s->queries = take_right(base, &end, query_words, HS_padded);
    s->douts = take_right(base, &end, query_words, HS_padded);
    s->dqueries_t = (TileResult){scratch_take(base, &end, T_padded * HS_padded * 4), LANES, HS_padded * LANES};
    s->lse = scratch_take(base, &end, T_padded * 4);
    s->delta = scratch_take(base, &end, T_padded * 4);

    s->keys = take_left(base, &end, BLOCK_KEYS, head_words);
    s->values = take_left(base, &end, BLOCK_KEYS, head_words);
    s->keys_t = take_left(base, &end, HS_padded, block_words);
    s->dkeys = take_result(base, &end, BLOCK_KEYS, HS_padded);
    s->dvalues = take_result(base, &end, BLOCK_KEYS, HS_padded);
    s->dscores_t = take_right(base, &end, block_words, BLOCK_QUERIES);

    s->scores_panel = take_result(base, &end, PANEL_ROWS, PANEL_STRIDE);
    s->dprobs_panel = take_result(base, &end, PANEL_ROWS, PANEL_STRIDE);
    s->probs_panel = (LeftOperand){(uint32_t *)s->scores_panel.data, PANEL_STRIDE};
    s->dscores_panel = (LeftOperand){(uint32_t *)s->dprobs_panel.data, PANEL_STRIDE};
    return end;
}

int64_t attention_backward_scratch(int64_t T, int64_t HS, DType dtype) {
    Scratch counted;
    return scratch_layout(&counted, NULL, T, HS, dtype);
}

// ----------------------------------------------------------------------------------------------------- a panel of keys

// Rows r and r + 1 of one group of dS^T as words of the right operand.
static ALWAYS_INLINE void store_two_rows(uint32_t *group, int r, V row, V next_row, DType E) {
    if (E == DTYPE_BF16) {
        vstore_bits(group + r / 2 * LANES, vpair_bf16(row, next_row));
    } else {
        vstore_bits(group + r * LANES, (VU)row);
        vstore_bits(group + (r + 1) * LANES, (VU)next_row);
    }
}

// scores^T -> P^T and dP^T -> dS^T, in place, for 16 queries: column j of the panel and one group of dS^T. On the
// diagonal the first `unseeing` + r queries stand before the key of row r; elsewhere unseeing is negative.
static ALWAYS_INLINE void dscores_group(const Scratch *s, uint32_t *group, int64_t j, V lse, V delta, float scale,
                                        int64_t unseeing, DType E) {
    for (int r = 0; r < PANEL_ROWS; r += 2) {
        V ds[2];
        for (int i = 0; i < 2; i++) {
            float *score = s->scores_panel.data + (r + i) * PANEL_STRIDE;
            float *dprob = s->dprobs_panel.data + (r + i) * PANEL_STRIDE;
            V p = vexp_nonpositive(vfma(vload_f32(score + j), vsplat(scale), -lse));
            if (unseeing >= 0) p = vfirst(lanes(unseeing + r + i), vzero(), p);
            ds[i] = p * (vload_f32(dprob + j) - delta);
            vstore(score, j, p, E);
            vstore(dprob, j, ds[i], E);
        }
        store_two_rows(group, r, ds[0], ds[1], E);
    }
}

// Rows key .. key + 7 of the block of keys that begins with k0, against queries [q_first, q_end).
static ALWAYS_INLINE void backward_panel(const Scratch *s, const Head *head, int64_t k0, int64_t key, int64_t q_first,
                                         int64_t q_end, DType E) {
    int64_t HS = head->q.columns, diagonal = (k0 + key) / LANES * LANES;
    int64_t q0 = q_first > diagonal ? q_first : diagonal, num_queries = q_end - q0;

    tile_matmul(s->scores_panel, left_from_row(s->keys, key), right_from_column(s->queries_t, q0), PANEL_ROWS,
                num_queries, depth_words(HS, E), false, E);
    tile_matmul(s->dprobs_panel, left_from_row(s->values, key), right_from_column(s->douts_t, q0), PANEL_ROWS,
                num_queries, depth_words(HS, E), false, E);

    RightOperand dscores = right_from_word(s->dscores_t, depth_words(key, E));
    for (int64_t q = q_first; q < q_end; q += LANES) {
        uint32_t *group = right_from_column(dscores, q - q_first).words;
        V lse = vload_f32(s->lse + q), delta = vload_f32(s->delta + q);
        if (q < q0) // left of the diagonal: other panels of this block have work there
            memset(group, 0, (size_t)(depth_words(PANEL_ROWS, E) * LANES) * sizeof *group);
        else if (q == diagonal)
            dscores_group(s, group, q - q0, lse, delta, head->scale, k0 + key - q, E);
        else
            dscores_group(s, group, q - q0, lse, delta, head->scale, -1, E);
    }

    bool accumulate = q_first > k0;
    int64_t first_word = depth_words(q0, E), depth = depth_words(num_queries, E);
    tile_matmul(result_from_row(s->dvalues, key), s->probs_panel, right_from_word(s->douts, first_word), PANEL_ROWS,
                round_up(HS, LANES), depth, accumulate, E);
    tile_matmul(result_from_row(s->dkeys, key), s->dscores_panel, right_from_word(s->queries, first_word), PANEL_ROWS,
                round_up(HS, LANES), depth, accumulate, E);
}

// ----------------------------------------------------------------------------------------------------- a block of keys

static ALWAYS_INLINE void store_rows(MatrixView m, int64_t first, int64_t count, TileResult from, float scale,
                                     DType E) {
    for (int64_t r = 0; r < count && first + r < m.rows; r++)
        for (int64_t j = 0; j < m.columns; j += LANES)
            vstore_first(lanes(m.columns - j), m.data, (first + r) * m.stride + j,
                         vload_f32(from.data + r * from.row_stride + j) * scale, E);
}

static ALWAYS_INLINE void backward_key_block(const Scratch *s, const Head *head, int64_t k0, DType E) {
    int64_t T = head->q.rows, T_padded = round_up(T, LANES);
    int64_t num_keys = T - k0 < BLOCK_KEYS ? round_up(T - k0, PANEL_ROWS) : BLOCK_KEYS;

    pack_left(s->keys, head->k, k0, num_keys);
    pack_left(s->values, head->v, k0, num_keys);
    pack_left_transposed(s->keys_t, head->k, k0, BLOCK_KEYS);
    for (int64_t q0 = k0; q0 < T_padded; q0 += BLOCK_QUERIES) {
        int64_t q_end = T_padded - q0 < BLOCK_QUERIES ? T_padded : q0 + BLOCK_QUERIES;
        for (int64_t key = 0; key < num_keys; key += PANEL_ROWS) backward_panel(s, head, k0, key, q0, q_end, E);
        tile_matmul(result_from_column(s->dqueries_t, q0), s->keys_t, s->dscores_t,
                    round_up(head->q.columns, PANEL_ROWS), q_end - q0, depth_words(num_keys, E), k0 > 0, E);
    }
    store_rows(head->dk, k0, BLOCK_KEYS, s->dkeys, head->scale, E);
    store_rows(head->dv, k0, BLOCK_KEYS, s->dvalues, 1.0f, E);
}

// ------------------------------------------------------------------------------------------------------------- a head

static ALWAYS_INLINE float dot_row(MatrixView a, MatrixView b, int64_t row, DType E) {
    V sum = vzero();
    for (int64_t j = 0; j < a.columns; j += LANES) {
        int n = lanes(a.columns - j);
        sum = vfma(vload_first(n, a.data, row * a.stride + j, E), vload_first(n, b.data, row * b.stride + j, E), sum);
    }
    return vsum(sum);
}

// Packs what all blocks of keys read, 16 queries at a time. The queries beyond T that fill the last group have Q, dO,
// lse and delta 0: P = 1 there, but dP = dS = 0 and dO = 0, so they add nothing to any gradient.
static ALWAYS_INLINE void prepare_queries(const Scratch *s, const Head *head, DType E) {
    for (int64_t t0 = 0; t0 < head->q.rows; t0 += LANES) {
        int64_t word = depth_words(t0, E);
        pack_right_transposed(right_from_column(s->queries_t, t0), head->q, t0, LANES);
        pack_right(right_from_word(s->queries, word), head->q, t0, LANES);
        pack_right_transposed(right_from_column(s->douts_t, t0), head->dout, t0, LANES);
        pack_right(right_from_word(s->douts, word), head->dout, t0, LANES);
        for (int64_t t = t0; t < t0 + LANES; t++) {
            bool inside = t < head->q.rows;
            s->delta[t] = inside ? dot_row(head->dout, head->out, t, E) : 0.0f;
            s->lse[t] = inside ? head->lse[t] : 0.0f;
            prefetch_row(head->out, t + LANES);
            if (t < BLOCK_KEYS) { // the first block of keys has no block before it that could ask
                prefetch_row(head->k, t);
                prefetch_row(head->v, t);
            }
        }
    }
}

static ALWAYS_INLINE void store_dqueries(const Scratch *s, const Head *head, DType E) {
    MatrixView dq = head->dq;
    for (int64_t q = 0; q < dq.rows; q += LANES)
        for (int64_t j = 0; j < dq.columns; j += LANES) {
            const float *from = result_from_row(result_from_column(s->dqueries_t, q), j).data;
            VU block[LANES];
            for (int i = 0; i < LANES; i++) block[i] = vload_bits(from + i * LANES);
            transpose_16x16(block);
            for (int i = 0; i < LANES && q + i < dq.rows; i++)
                vstore_first(lanes(dq.columns - j), dq.data, (q + i) * dq.stride + j, (V)block[i] * head->scale, E);
        }
}

static ALWAYS_INLINE void backward_head(const Scratch *s, const Head *head, DType E) {
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
        Scratch mine;
        scratch_layout(&mine, scratch + omp_get_thread_num() * scratch_bytes, s.T, s.HS, s.dtype);
        REQUIRE(mine.dqueries_t.data, "%s: no scratch memory", op);
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
