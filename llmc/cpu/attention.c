// Causal attention: its shape, the views of its heads and the workspace; forward, backward, and one
// query per sequence for decoding. ops.h has the formulas.
//
// A task of the forward pass is one head of one sequence; of the backward pass and of decoding, one
// key head with the query heads that read it. A thread has scratch for one task. Within a task the
// order of work is fixed, and tasks write to disjoint memory, so the bits do not depend on the
// number of threads.

#include "llmc/cpu/cpu.h"
#include "llmc/cpu/tile_matmul.h"

#include <math.h>
#include <omp.h>

// A row of qkv has NH heads of q, then NKV of k, then NKV of v. Query head h reads key head h / (NH
// / NKV).
typedef struct {
    int64_t B, T, NH, NKV, HS;
    int64_t group; // NH / NKV
    DType dtype;
    float scale; // of the scores: 1 / sqrt(HS)
} AttentionShape;

// Takes the next `bytes` bytes of base, aligned to 64, and moves *end past them. With base NULL it
// only counts.
static inline void *scratch_take(char *base, int64_t *end, int64_t bytes) {
    int64_t offset = cpu_part(end, bytes);
    if (base) return base + offset;
    return NULL;
}

static LeftOperand take_left(char *base, int64_t *end, int64_t rows, int64_t depth) {
    return (LeftOperand){scratch_take(base, end, rows * depth * 4), depth};
}
static RightOperand take_right(char *base, int64_t *end, int64_t depth, int64_t columns) {
    return (RightOperand){scratch_take(base, end, depth * columns * 4), depth * LANES};
}
static TileResult take_result(char *base, int64_t *end, int64_t rows, int64_t columns) {
    return (TileResult){scratch_take(base, end, rows * columns * 4), columns, LANES};
}

static AttentionShape attention_shape(Tensor qkv, Heads heads) {
    const int64_t HS = qkv.shape[2] / (heads.NH + 2 * heads.NKV);
    return (AttentionShape){.B = qkv.shape[0],
                            .T = qkv.shape[1],
                            .NH = heads.NH,
                            .NKV = heads.NKV,
                            .HS = HS,
                            .group = heads.NH / heads.NKV,
                            .dtype = qkv.dtype,
                            .scale = 1.0f / sqrtf((float)HS)};
}

// The (T,HS) matrix of one head of sequence b in t, of whose rows it is number `head` of `heads`.
static MatrixView attention_head(AttentionShape s, Tensor t, int64_t b, int64_t head,
                                 int64_t heads) {
    const int64_t stride = heads * s.HS, first = b * s.T * stride + head * s.HS;
    return (MatrixView){.data = (char *)t.data + (size_t)first * dtype_size(s.dtype),
                        .rows = s.T,
                        .columns = s.HS,
                        .stride = stride,
                        .dtype = s.dtype};
}

// ----------------------------------------------------------------------------------------- forward

// attention_forward: softmax(Q K^T * scale) V for one head at a time, in panels of 8 queries.
//
//                  keys ->                     one panel, 8 queries x keys:
//                +---------------------+       scores = Q K^T
//      queries   |x..                  |       P      = exp(scores * scale - maximum of the row)
//         |      |xx..                 |       out    = P V / sum of the row
//         v      |xxx..                |
//                |xxxx..               |       A panel ends with the group of keys that holds its
//         panel  |xxxxx..              |       diagonal: that group (.) is computed in full and
//                |                     |       masked. Keys further right are skipped.
//
// A row of scores is complete when its softmax runs, so there is no running maximum and nothing
// to rescale. 8 x T scores stay in the cache; T x T never exist. K and V are packed 32 keys at a
// time, just before the first panel that sees them, and stay packed for all panels below.

enum { PACK_KEYS = 32 };
_Static_assert(PACK_KEYS % PANEL_ROWS == 0 && PACK_KEYS % LANES == 0,
               "panels and their last groups end inside");

typedef struct {
    MatrixView q, k, v, out; // (T,HS)
    float *lse;              // (T)
    float scale;
} ForwardHead;

typedef struct {
    RightOperand keys_t; // K^T: HS x T
    RightOperand values; // V: T x HS
    // one panel
    LeftOperand queries; // Q: 8 x HS
    TileResult scores;   // 8 x T
    LeftOperand probs;   // P: 8 x T, each row over its row of scores
    TileResult out;      // P V: 8 x HS
} ForwardScratch;

// Bytes of workspace that one thread needs. With base also the places of its operands.
static int64_t forward_layout(ForwardScratch *s, char *base, int64_t T, int64_t HS, DType dtype) {
    int64_t T_padded = round_up(T, PACK_KEYS), HS_padded = round_up(HS, LANES);
    int64_t head_words = round_up(depth_words(HS, dtype), LANES),
            key_words = depth_words(T_padded, dtype);
    // one vector more than a power of two: rows do not share their cache sets
    int64_t row = T_padded + LANES;
    int64_t end = 0;
    s->keys_t = take_right(base, &end, head_words, T_padded);
    s->values = take_right(base, &end, key_words, HS_padded);
    s->queries = take_left(base, &end, PANEL_ROWS, head_words);
    s->scores = take_result(base, &end, PANEL_ROWS, row);
    s->probs = (LeftOperand){(uint32_t *)s->scores.data, row};
    s->out = take_result(base, &end, PANEL_ROWS, HS_padded);
    return end;
}

// scores -> P in place, with the maximum (times scale) and the sum of each row. The panel's first
// query is q0, its last group of keys begins with the key `diagonal`.
static ALWAYS_INLINE void softmax_panel(const ForwardScratch *s, int64_t q0, int64_t diagonal,
                                        float scale, float max[PANEL_ROWS], float sum[PANEL_ROWS],
                                        DType E) {
    V lane_max[PANEL_ROWS];
    for (int r = 0; r < PANEL_ROWS; r++) {
        float *group = s->scores.data + r * s->scores.row_stride + diagonal;
        int seen = lanes(q0 + r + 1 - diagonal);
        lane_max[r] = vfirst(seen, vload_f32(group), vsplat(-INFINITY));
        vstore_f32(group, lane_max[r]);
    }
    for (int64_t j = 0; j < diagonal;
         j += LANES) // all rows at once: 8 chains of maxima hide each other's latency
        for (int r = 0; r < PANEL_ROWS; r++)
            lane_max[r] =
                vmax(lane_max[r], vload_f32(s->scores.data + r * s->scores.row_stride + j));

    for (int r = 0; r < PANEL_ROWS; r++) {
        float *row = s->scores.data + r * s->scores.row_stride;
        V lane_sum = vzero();
        max[r] = vmax_lane(lane_max[r]) * scale;
        for (int64_t j = 0; j <= diagonal; j += LANES) {
            V p = vexp_nonpositive(vfma(vload_f32(row + j), vsplat(scale), vsplat(-max[r])));
            lane_sum += p;
            // no wider than scores: the store never overtakes the load
            vstore(row, j, p, packed_dtype(E));
        }
        sum[r] = vsum(lane_sum);
    }
}

static ALWAYS_INLINE void forward_head(const ForwardScratch *s, const ForwardHead *head, DType E) {
    const int64_t T = head->q.rows, HS = head->q.columns;
    for (int64_t q0 = 0; q0 < T; q0 += PANEL_ROWS) {
        const int64_t diagonal = q0 / LANES * LANES, num_keys = diagonal + LANES;
        float max[PANEL_ROWS], sum[PANEL_ROWS];

        if (q0 % PACK_KEYS == 0) {
            pack_right_transposed(right_from_column(s->keys_t, q0), head->k, q0, PACK_KEYS);
            pack_right(right_from_word(s->values, depth_words(q0, E)), head->v, q0, PACK_KEYS);
        }
        pack_left(s->queries, head->q, q0, PANEL_ROWS);
        tile_matmul(s->scores, s->queries, s->keys_t, PANEL_ROWS, num_keys, depth_words(HS, E),
                    false, E);
        softmax_panel(s, q0, diagonal, head->scale, max, sum, E);
        tile_matmul(s->out, s->probs, s->values, PANEL_ROWS, round_up(HS, LANES),
                    depth_words(num_keys, E), false, E);

        for (int r = 0; r < PANEL_ROWS && q0 + r < T; r++) {
            head->lse[q0 + r] = max[r] + logf(sum[r]);
            V inverse = vsplat(1.0f / sum[r]);
            for (int64_t j = 0; j < HS; j += LANES)
                vstore_first(lanes(HS - j), head->out.data, (q0 + r) * head->out.stride + j,
                             vload_f32(s->out.data + r * s->out.row_stride + j) * inverse, E);
        }
    }
}

void backend_attention_forward(Tensor out, Tensor lse, Tensor qkv, Heads heads) {
    const char *op = "attention_forward";
    const AttentionShape s = attention_shape(qkv, heads);
    const int64_t row = s.NH + 2 * s.NKV; // heads in a row of qkv
    ForwardScratch counted;
    const int64_t scratch_bytes = forward_layout(&counted, NULL, s.T, s.HS, s.dtype);
    char *scratch = cpu_scratch(op, cpu_threads() * scratch_bytes);

#pragma omp parallel for schedule(dynamic, 1) num_threads(cpu_threads())
    for (int64_t task = 0; task < s.B * s.NH; task++) {
        const int64_t b = task / s.NH, h = task % s.NH, key = s.NH + h / s.group,
                      value = key + s.NKV;
        ForwardScratch mine;
        forward_layout(&mine, scratch + omp_get_thread_num() * scratch_bytes, s.T, s.HS, s.dtype);
        REQUIRE(mine.scores.data, "%s: no scratch memory", op);
        const ForwardHead head = {
            .q = attention_head(s, qkv, b, h, row),
            .k = attention_head(s, qkv, b, key, row),
            .v = attention_head(s, qkv, b, value, row),
            .out = attention_head(s, out, b, h, s.NH),
            .lse = (float *)lse.data + task * s.T,
            .scale = s.scale,
        };
        tile_matmul_begin();
        WITH_DTYPE(E, s.dtype, forward_head(&mine, &head, E));
        tile_matmul_end();
    }
}

// ---------------------------------------------------------------------------------------- backward

// attention_backward: gradients of one head at a time, in blocks of keys x queries. Everything is
// transposed, keys by queries, so that P^T and dS^T come out as the left operands that dV and dK
// need.
//
//                  queries ->              one panel, 8 keys x the queries of a block:
//                +---------+---------+---    scores^T = K Q^T              dP^T = V dO^T
//         keys   |..xxxxxxx|         |       P^T  = exp(scores^T * scale - lse)
//          |     |  ..xxxxx|         |       dS^T = P^T * (dP^T - delta),  delta = rowsum(dO * out)
//          v     |    ..xxx|         |       dV  += P^T dO                 dK += dS^T Q
//                |      ..x|         |     one block, BLOCK_KEYS x BLOCK_QUERIES:
//                +---------+---------+---    dQ^T += K^T dS^T
//                |         |..xxxxxxx|
//
// A panel begins with the group of queries that holds its diagonal: that group (.) is computed in
// full and masked. Queries further left are skipped. dV and dK of a block of keys are complete
// before the next block of keys begins; dQ^T accumulates over all blocks, in the order of the
// keys. dQ and dK are multiplied by scale at the end.
// Where several query heads read a key head, they follow each other, and dV and dK of all keys
// stay in fp32 until the last of them has added to them.

// Larger blocks of keys add to dQ^T less often, larger blocks of queries to dK and dV. With 256
// queries two panels in fp32 (17 KB) and a block of dS^T in bf16 (32 KB) still fit in the near
// caches; 128 are 1 to 4% slower, 512 are no faster.
enum {
    BLOCK_KEYS = 64,
    BLOCK_QUERIES = 256,
    PANEL_STRIDE = BLOCK_QUERIES +
                   LANES, // one vector more than a power of two: rows do not share their cache sets
};
_Static_assert(BLOCK_KEYS % 32 == 0 && BLOCK_QUERIES >= BLOCK_KEYS,
               "a diagonal lies in one block of queries");

typedef struct {
    MatrixView q, k, v, out, dout, dq, dk, dv; // (T,HS)
    const float *lse;                          // (T)
    float scale;
    int64_t number, of_group; // of the query heads of this key head
} BackwardHead;

typedef struct {
    // the whole head
    RightOperand queries_t, douts_t; // Q^T, dO^T: HS x T
    RightOperand queries, douts;     // Q, dO: T x HS
    TileResult dqueries_t;           // dQ^T: HS x T, by groups of queries
    float *lse, *delta;              // (T), padded with 0
    // one block of keys
    LeftOperand keys, values; // K, V: BLOCK_KEYS x HS
    LeftOperand keys_t;       // K^T: HS x BLOCK_KEYS
    // dK, dV: BLOCK_KEYS x HS, or of all keys where query heads share them
    TileResult dkeys, dvalues;
    RightOperand dscores_t; // dS^T: BLOCK_KEYS x BLOCK_QUERIES
    // one panel: 8 x BLOCK_QUERIES
    TileResult scores_panel, dprobs_panel;  // scores^T, dP^T
    LeftOperand probs_panel, dscores_panel; // P^T over scores^T, dS^T over dP^T
} BackwardScratch;

// group: query heads of a key head.
static int64_t backward_layout(BackwardScratch *s, char *base, int64_t T, int64_t HS, int64_t group,
                               DType dtype) {
    int64_t T_padded = round_up(T, LANES), HS_padded = round_up(HS, LANES);
    const int64_t kept_keys = group > 1 ? round_up(T, BLOCK_KEYS) : BLOCK_KEYS;
    int64_t head_words = round_up(depth_words(HS, dtype), LANES),
            query_words = depth_words(T_padded, dtype);
    int64_t block_words = depth_words(BLOCK_KEYS, dtype);
    int64_t end = 0;
    s->queries_t = take_right(base, &end, head_words, T_padded);
    s->douts_t = take_right(base, &end, head_words, T_padded);
    s->queries = take_right(base, &end, query_words, HS_padded);
    s->douts = take_right(base, &end, query_words, HS_padded);
    s->dqueries_t =
        (TileResult){scratch_take(base, &end, T_padded * HS_padded * 4), LANES, HS_padded * LANES};
    s->lse = scratch_take(base, &end, T_padded * 4);
    s->delta = scratch_take(base, &end, T_padded * 4);

    s->keys = take_left(base, &end, BLOCK_KEYS, head_words);
    s->values = take_left(base, &end, BLOCK_KEYS, head_words);
    s->keys_t = take_left(base, &end, HS_padded, block_words);
    s->dkeys = take_result(base, &end, kept_keys, HS_padded);
    s->dvalues = take_result(base, &end, kept_keys, HS_padded);
    s->dscores_t = take_right(base, &end, block_words, BLOCK_QUERIES);

    s->scores_panel = take_result(base, &end, PANEL_ROWS, PANEL_STRIDE);
    s->dprobs_panel = take_result(base, &end, PANEL_ROWS, PANEL_STRIDE);
    s->probs_panel = (LeftOperand){(uint32_t *)s->scores_panel.data, PANEL_STRIDE};
    s->dscores_panel = (LeftOperand){(uint32_t *)s->dprobs_panel.data, PANEL_STRIDE};
    return end;
}

// --------------------------------------------------------------------------------- a panel of keys

// scores^T -> P^T and dP^T -> dS^T, in place, for a group of queries: column j of the panel and one
// group of dS^T. On the diagonal the first `unseeing` + r queries come before the key of row r;
// elsewhere unseeing is negative.
static ALWAYS_INLINE void dscores_group(const BackwardScratch *s, uint32_t *group, int64_t j, V lse,
                                        V delta, float scale, int64_t unseeing, DType E) {
    for (int r = 0; r < PANEL_ROWS; r += 2) {
        V ds[2];
        for (int i = 0; i < 2; i++) {
            float *score = s->scores_panel.data + (r + i) * PANEL_STRIDE;
            float *dprob = s->dprobs_panel.data + (r + i) * PANEL_STRIDE;
            V p = vexp_nonpositive(vfma(vload_f32(score + j), vsplat(scale), -lse));
            if (unseeing >= 0) p = vfirst(lanes(unseeing + r + i), vzero(), p);
            ds[i] = p * (vload_f32(dprob + j) - delta);
            vstore(score, j, p, packed_dtype(E));
            vstore(dprob, j, ds[i], packed_dtype(E));
        }
        // Rows r and r + 1 of one group of dS^T as words of the right operand.
        if (packed_dtype(E) == DTYPE_BF16) {
            vstore_bits(group + r / 2 * LANES, vpair_bf16(ds[0], ds[1]));
        } else {
            vstore_bits(group + r * LANES, (VU)ds[0]);
            vstore_bits(group + (r + 1) * LANES, (VU)ds[1]);
        }
    }
}

// Rows key .. key + 7 of the block of keys that begins with k0, against queries [q_first, q_end).
static ALWAYS_INLINE void backward_panel(const BackwardScratch *s, const BackwardHead *head,
                                         int64_t k0, int64_t key, int64_t q_first, int64_t q_end,
                                         DType E) {
    const int64_t kept = head->of_group > 1 ? k0 + key : key; // its row in dK and dV
    int64_t HS = head->q.columns, diagonal = (k0 + key) / LANES * LANES;
    int64_t q0 = max_i64(q_first, diagonal), num_queries = q_end - q0;

    tile_matmul(s->scores_panel, left_from_row(s->keys, key), right_from_column(s->queries_t, q0),
                PANEL_ROWS, num_queries, depth_words(HS, E), false, E);
    tile_matmul(s->dprobs_panel, left_from_row(s->values, key), right_from_column(s->douts_t, q0),
                PANEL_ROWS, num_queries, depth_words(HS, E), false, E);

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

    bool accumulate = q_first > k0 || head->number > 0;
    int64_t first_word = depth_words(q0, E), depth = depth_words(num_queries, E);
    tile_matmul(result_from_row(s->dvalues, kept), s->probs_panel,
                right_from_word(s->douts, first_word), PANEL_ROWS, round_up(HS, LANES), depth,
                accumulate, E);
    tile_matmul(result_from_row(s->dkeys, kept), s->dscores_panel,
                right_from_word(s->queries, first_word), PANEL_ROWS, round_up(HS, LANES), depth,
                accumulate, E);
}

// --------------------------------------------------------------------------------- a block of keys

static ALWAYS_INLINE void attention_store_gradient(MatrixView m, int64_t first, int64_t count,
                                                   TileResult from, float scale, DType E) {
    for (int64_t r = 0; r < count && first + r < m.rows; r++)
        for (int64_t j = 0; j < m.columns; j += LANES)
            vstore_first(lanes(m.columns - j), m.data, (first + r) * m.stride + j,
                         vload_f32(from.data + r * from.row_stride + j) * scale, E);
}

static ALWAYS_INLINE void backward_key_block(const BackwardScratch *s, const BackwardHead *head,
                                             int64_t k0, DType E) {
    int64_t T = head->q.rows, T_padded = round_up(T, LANES);
    const int64_t num_keys = T - k0 < BLOCK_KEYS ? round_up(T - k0, PANEL_ROWS) : BLOCK_KEYS;

    pack_left(s->keys, head->k, k0, num_keys);
    pack_left(s->values, head->v, k0, num_keys);
    pack_left_transposed(s->keys_t, head->k, k0, BLOCK_KEYS);
    for (int64_t q0 = k0; q0 < T_padded; q0 += BLOCK_QUERIES) {
        int64_t q_end = min_i64(q0 + BLOCK_QUERIES, T_padded);
        for (int64_t key = 0; key < num_keys; key += PANEL_ROWS)
            backward_panel(s, head, k0, key, q0, q_end, E);
        tile_matmul(result_from_column(s->dqueries_t, q0), s->keys_t, s->dscores_t,
                    round_up(head->q.columns, PANEL_ROWS), q_end - q0, depth_words(num_keys, E),
                    k0 > 0, E);
    }
    if (head->number < head->of_group - 1) return;
    const int64_t kept = head->of_group > 1 ? k0 : 0;
    attention_store_gradient(head->dk, k0, BLOCK_KEYS, result_from_row(s->dkeys, kept), head->scale,
                             E);
    attention_store_gradient(head->dv, k0, BLOCK_KEYS, result_from_row(s->dvalues, kept), 1.0f, E);
}

// ------------------------------------------------------------------------------------------ a head

// Packs the data that all blocks of keys read, a group of queries at a time. The queries beyond T
// that fill the last group have Q, dO, lse and delta 0: P = 1 there, but dP = dS = 0 and dO = 0, so
// they add nothing to any gradient.
static ALWAYS_INLINE void prepare_queries(const BackwardScratch *s, const BackwardHead *head,
                                          DType E) {
    for (int64_t t0 = 0; t0 < head->q.rows; t0 += LANES) {
        int64_t word = depth_words(t0, E);
        pack_right_transposed(right_from_column(s->queries_t, t0), head->q, t0, LANES);
        pack_right(right_from_word(s->queries, word), head->q, t0, LANES);
        pack_right_transposed(right_from_column(s->douts_t, t0), head->dout, t0, LANES);
        pack_right(right_from_word(s->douts, word), head->dout, t0, LANES);

        for (int64_t t = t0; t < t0 + LANES; t++) {
            const MatrixView dout = head->dout, out = head->out;
            const bool inside = t < dout.rows;
            V sum = vzero();
            for (int64_t j = 0; inside && j < dout.columns; j += LANES) {
                int n = lanes(dout.columns - j);
                sum = vfma(vload_first(n, dout.data, t * dout.stride + j, E),
                           vload_first(n, out.data, t * out.stride + j, E), sum);
            }

            s->delta[t] = vsum(sum);
            s->lse[t] = inside ? head->lse[t] : 0.0f;
            prefetch_row(out, t + LANES);
            if (t < BLOCK_KEYS) { // the first block of keys has no block before it that could ask
                prefetch_row(head->k, t);
                prefetch_row(head->v, t);
            }
        }
    }
}

static ALWAYS_INLINE void store_dqueries(const BackwardScratch *s, const BackwardHead *head,
                                         DType E) {
    MatrixView dq = head->dq;
    for (int64_t q = 0; q < dq.rows; q += LANES)
        for (int64_t j = 0; j < dq.columns; j += LANES) {
            const float *from = result_from_row(result_from_column(s->dqueries_t, q), j).data;
            VU block[LANES];
            for (int i = 0; i < LANES; i++) block[i] = vload_bits(from + i * LANES);
            transpose_square(block);
            for (int i = 0; i < LANES && q + i < dq.rows; i++)
                vstore_first(lanes(dq.columns - j), dq.data, (q + i) * dq.stride + j,
                             (V)block[i] * head->scale, E);
        }
}

// dbias is left to matmul_backward_weight: dq of a head is complete only after its last block of
// keys.
void backend_attention_backward(Tensor dqkv, Tensor dout, Tensor out, Tensor lse, Tensor qkv,
                                Heads heads, Gradient *dbias) {
    (void)dbias;
    const char *op = "attention_backward";
    const AttentionShape s = attention_shape(qkv, heads);
    const int64_t row = s.NH + 2 * s.NKV; // heads in a row of qkv
    BackwardScratch counted;
    const int64_t scratch_bytes = backward_layout(&counted, NULL, s.T, s.HS, s.group, s.dtype);
    char *scratch = cpu_scratch(op, cpu_threads() * scratch_bytes);

#pragma omp parallel for schedule(dynamic, 1) num_threads(cpu_threads())
    for (int64_t task = 0; task < s.B * s.NKV; task++) {
        const int64_t b = task / s.NKV, key = s.NH + task % s.NKV, value = key + s.NKV;
        BackwardScratch mine;
        backward_layout(&mine, scratch + omp_get_thread_num() * scratch_bytes, s.T, s.HS, s.group,
                        s.dtype);
        REQUIRE(mine.dqueries_t.data, "%s: no scratch memory", op);
        tile_matmul_begin();
        for (int64_t i = 0; i < s.group; i++) {
            const int64_t h = task % s.NKV * s.group + i;
            const BackwardHead head = {
                .q = attention_head(s, qkv, b, h, row),
                .k = attention_head(s, qkv, b, key, row),
                .v = attention_head(s, qkv, b, value, row),
                .out = attention_head(s, out, b, h, s.NH),
                .dout = attention_head(s, dout, b, h, s.NH),
                .dq = attention_head(s, dqkv, b, h, row),
                .dk = attention_head(s, dqkv, b, key, row),
                .dv = attention_head(s, dqkv, b, value, row),
                .lse = (const float *)lse.data + (b * s.NH + h) * s.T,
                .scale = s.scale,
                .number = i,
                .of_group = s.group,
            };
            WITH_DTYPE(E, s.dtype, {
                prepare_queries(&mine, &head, E);
                for (int64_t k0 = 0; k0 < s.T; k0 += BLOCK_KEYS)
                    backward_key_block(&mine, &head, k0, E);
                store_dqueries(&mine, &head, E);
            });
        }
        tile_matmul_end();
    }
}

// ---------------------------------------------------------------------------------------- decoding

// The cache of keys and values, and attention of one new token to it: q k^T and p V for one head of
// one sequence at a time. Memory-bound: the keys and values of a head are contiguous and are read
// once. Scores of a head stay in the workspace, so that its softmax sees them all. One task is one
// head with a fixed order of work, so the bits depend neither on the number of threads nor on what
// else is in the batch.

typedef struct {
    int64_t B, NKV, maxT, HS;
} CacheShape;

// The cache (B,2NKV,maxT,HS).
static CacheShape cache_shape(Tensor cache) {
    return (CacheShape){cache.shape[0], cache.shape[1] / 2, cache.shape[2], cache.shape[3]};
}

static char *element(Tensor t, int64_t i) {
    return (char *)t.data + (size_t)i * dtype_size(t.dtype);
}

// Position t of one of the 2 NKV heads of sequence b, which are the last heads of a row of qkv in
// the same order.
static char *cache_row(CacheShape s, Tensor cache, int64_t b, int64_t head, int64_t t) {
    return element(cache, ((b * 2 * s.NKV + head) * s.maxT + t) * s.HS);
}

void backend_kv_cache_store(Tensor cache, Tensor qkv, int64_t first) {
    const CacheShape s = cache_shape(cache);
    const int64_t n = tensor_rows(qkv) / s.B, width = tensor_cols(qkv), heads = 2 * s.NKV;
    const size_t row_bytes = (size_t)s.HS * dtype_size(cache.dtype);
#pragma omp parallel for schedule(static)
    for (int64_t task = 0; task < s.B * heads; task++) {
        const int64_t b = task / heads, h = task % heads;
        for (int64_t t = 0; t < n; t++)
            memcpy(cache_row(s, cache, b, h, first + t),
                   element(qkv, (b * n + t + 1) * width - (heads - h) * s.HS), row_bytes);
    }
}

// One head: q (HS), keys and values (length, HS), out (HS).
typedef struct {
    const void *q, *keys, *values;
    void *out;
    int64_t length, HS;
    float scale;
} DecodeHead;

// Columns of out that one walk over the values adds up.
enum { WALK = 4 * LANES };

static ALWAYS_INLINE void decode_head(const DecodeHead *a, float *scores, DType E) {
    for (int64_t j = 0; j < a->length; j++) {
        V sum = vzero();
        EACH_LANES(
            i, k, a->HS,
            sum = vfma(vload_first(k, a->q, i, E), vload_first(k, a->keys, j * a->HS + i, E), sum));
        scores[j] = vsum(sum);
    }

    // Scores become exponentials. Lanes beyond the last key hold -inf, then 0.
    V largest = vsplat(-INFINITY), total = vzero();
    EACH_LANES(j, k, a->length,
               largest = vmax(largest, vfirst(k, vload_first_f32(k, scores + j), largest)));
    const float max = vmax_lane(largest) * a->scale;
    EACH_LANES(j, k, a->length, {
        V p =
            vexp_nonpositive(vfma(vload_first_f32(k, scores + j), vsplat(a->scale), vsplat(-max)));
        total += vfirst(k, p, vzero());
        vstore_first_f32(k, scores + j, p);
    });

    const V factor = vsplat(1.0f / vsum(total));
    for (int64_t first = 0; first < a->HS; first += WALK) {
        int used[WALK / LANES];
        V sum[WALK / LANES] = {0};
        for (int g = 0; g < WALK / LANES; g++) used[g] = lanes(a->HS - first - g * LANES);
        for (int64_t j = 0; j < a->length; j++)
            for (int g = 0; g < WALK / LANES; g++)
                sum[g] =
                    vfma(vsplat(scores[j]),
                         vload_first(used[g], a->values, j * a->HS + first + g * LANES, E), sum[g]);
        for (int g = 0; g < WALK / LANES; g++)
            vstore_first(used[g], a->out, first + g * LANES, sum[g] * factor, E);
    }
}

static int64_t attention_decode_scratch(int64_t T) {
    return round_up(T, LANES) * (int64_t)sizeof(float);
}

void backend_attention_decode(Tensor out, Tensor cache, Tensor qkv, Tensor position) {
    const char *op = "attention_decode";
    const CacheShape s = cache_shape(cache);
    const int64_t width = tensor_numel(qkv) / s.B, NH = width / s.HS - 2 * s.NKV,
                  group = NH / s.NKV;
    const int64_t at = *(const int32_t *)position.data,
                  scratch_bytes = attention_decode_scratch(s.maxT);
    REQUIRE(at >= 0 && at < s.maxT, "%s: position %lld in a cache of %lld", op, (long long)at,
            (long long)s.maxT);
    const size_t row_bytes = (size_t)s.HS * dtype_size(cache.dtype);
    char *scratch = cpu_scratch(op, cpu_threads() * scratch_bytes);

#pragma omp parallel for schedule(dynamic, 1) num_threads(cpu_threads())
    for (int64_t task = 0; task < s.B * s.NKV; task++) {
        const int64_t b = task / s.NKV, key = task % s.NKV, value = key + s.NKV;
        memcpy(cache_row(s, cache, b, key, at), element(qkv, b * width + (NH + key) * s.HS),
               row_bytes);
        memcpy(cache_row(s, cache, b, value, at), element(qkv, b * width + (NH + value) * s.HS),
               row_bytes);
        for (int64_t h = key * group; h < (key + 1) * group; h++) {
            const DecodeHead head = {
                .q = element(qkv, b * width + h * s.HS),
                .keys = cache_row(s, cache, b, key, 0),
                .values = cache_row(s, cache, b, value, 0),
                .out = element(out, (b * NH + h) * s.HS),
                .length = at + 1,
                .HS = s.HS,
                .scale = 1.0f / sqrtf((float)s.HS),
            };
            float *scores = (float *)(void *)(scratch + omp_get_thread_num() * scratch_bytes);
            WITH_DTYPE(E, cache.dtype, decode_head(&head, scores, E));
        }
    }
}

// --------------------------------------------------------------------------------------- workspace

int64_t cpu_attention_workspace(OpsShape shape) {
    ForwardScratch forward;
    BackwardScratch backward;
    const int64_t HS = ops_head_size(shape), group = shape.NH / ops_kv_heads(shape);
    int64_t bytes = max_i64(forward_layout(&forward, NULL, shape.T, HS, shape.dtype),
                            backward_layout(&backward, NULL, shape.T, HS, group, shape.dtype));
    if (shape.sequences > 0) bytes = max_i64(bytes, attention_decode_scratch(shape.T));
    return cpu_threads() * bytes;
}
