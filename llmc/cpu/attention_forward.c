// attention_forward: softmax(Q K^T * scale) V for one head at a time, in panels of 8 queries.
//
//                  keys ->                       one panel, 8 queries x keys:
//                +---------------------+             scores = Q K^T
//      queries   |x..                  |             P      = exp(scores * scale - maximum of the row)
//         |      |xx..                 |             out    = P V / sum of the row
//         v      |xxx..                |
//                |xxxx..               |         A panel ends with the group of 16 keys that holds its diagonal: that
//         panel  |xxxxx..              |         group (.) is computed in full and masked. What lies further right is
//                |                     |         no work.
//
// A row of scores is whole when its softmax runs, so there is no running maximum and nothing to rescale. 8 x T scores
// stay in the cache; T x T never exist. K and V are packed 32 keys at a time, just before the first panel that sees
// them, and stay packed for all panels below.
#include "llmc/cpu/attention.h"

#include <omp.h>

enum { PACK_KEYS = 32 };
_Static_assert(PACK_KEYS % PANEL_ROWS == 0 && PACK_KEYS % LANES == 0, "panels and their last groups end inside");

typedef struct {
    MatrixView q, k, v, out; // (T,HS)
    float *lse;              // (T)
    float scale;
} Head;

typedef struct {
    RightOperand keys_t; // K^T: HS x T
    RightOperand values; // V: T x HS
    // one panel
    LeftOperand queries; // Q: 8 x HS
    TileResult scores;   // 8 x T
    LeftOperand probs;   // P: 8 x T, each row over its row of scores
    TileResult out;      // P V: 8 x HS
} Scratch;

static int64_t scratch_layout(Scratch *s, char *base, int64_t T, int64_t HS, DType dtype) {
    int64_t T_padded = round_up(T, PACK_KEYS), HS_padded = round_up(HS, LANES);
    int64_t head_words = round_up(depth_words(HS, dtype), LANES), key_words = depth_words(T_padded, dtype);
    int64_t row = T_padded + LANES; // one vector more than a power of two: rows do not share their cache sets
    int64_t end = 0;
    s->keys_t = (RightOperand){scratch_take(base, &end, T_padded * head_words * 4), head_words * LANES};
    s->values = (RightOperand){scratch_take(base, &end, HS_padded * key_words * 4), key_words * LANES};
    s->queries = (LeftOperand){scratch_take(base, &end, PANEL_ROWS * head_words * 4), head_words};
    s->scores = (TileResult){scratch_take(base, &end, PANEL_ROWS * row * 4), row, LANES};
    s->probs = (LeftOperand){(uint32_t *)s->scores.data, row};
    s->out = (TileResult){scratch_take(base, &end, PANEL_ROWS * HS_padded * 4), HS_padded, LANES};
    return end;
}

int64_t attention_forward_scratch(int64_t T, int64_t HS, DType dtype) {
    Scratch counted;
    return scratch_layout(&counted, NULL, T, HS, dtype);
}

// scores -> P in place, with the maximum (times scale) and the sum of each row. The panel's first query is q0, its last
// group of keys begins with the key `diagonal`.
static ALWAYS_INLINE void softmax_panel(const Scratch *s, int64_t q0, int64_t diagonal, float scale,
                                        float max[PANEL_ROWS], float sum[PANEL_ROWS], DType E) {
    V lane_max[PANEL_ROWS];
    for (int r = 0; r < PANEL_ROWS; r++) {
        float *group = s->scores.data + r * s->scores.row_stride + diagonal;
        int seen = lanes(q0 + r + 1 - diagonal);
        lane_max[r] = vfirst(seen, vload_f32(group), vsplat(-INFINITY));
        vstore_f32(group, lane_max[r]);
    }
    for (int64_t j = 0; j < diagonal; j += LANES) // all rows at once: 8 chains of maxima hide each other's latency
        for (int r = 0; r < PANEL_ROWS; r++)
            lane_max[r] = vmax(lane_max[r], vload_f32(s->scores.data + r * s->scores.row_stride + j));

    for (int r = 0; r < PANEL_ROWS; r++) {
        float *row = s->scores.data + r * s->scores.row_stride;
        V lane_sum = vzero();
        max[r] = vmax_lane(lane_max[r]) * scale;
        for (int64_t j = 0; j <= diagonal; j += LANES) {
            V p = vexp_nonpositive(vfma(vload_f32(row + j), vsplat(scale), vsplat(-max[r])));
            lane_sum += p;
            vstore(row, j, p, E); // elements of E are no wider than scores: the store never overtakes the load
        }
        sum[r] = vsum(lane_sum);
    }
}

static ALWAYS_INLINE void forward_panel(const Scratch *s, const Head *head, int64_t q0, DType E) {
    int64_t T = head->q.rows, HS = head->q.columns;
    int64_t diagonal = q0 / LANES * LANES, num_keys = diagonal + LANES;
    float max[PANEL_ROWS], sum[PANEL_ROWS];

    pack_left(s->queries, head->q, q0, PANEL_ROWS);
    tile_matmul(s->scores, s->queries, s->keys_t, PANEL_ROWS, num_keys, depth_words(HS, E), false, E);
    softmax_panel(s, q0, diagonal, head->scale, max, sum, E);
    tile_matmul(s->out, s->probs, s->values, PANEL_ROWS, round_up(HS, LANES), depth_words(num_keys, E), false, E);

    for (int r = 0; r < PANEL_ROWS && q0 + r < T; r++) {
        head->lse[q0 + r] = max[r] + logf(sum[r]);
        V inverse = vsplat(1.0f / sum[r]);
        for (int64_t j = 0; j < HS; j += LANES)
            vstore_first(lanes(HS - j), head->out.data, (q0 + r) * head->out.stride + j,
                         vload_f32(s->out.data + r * s->out.row_stride + j) * inverse, E);
    }
}

static ALWAYS_INLINE void forward_head(const Scratch *s, const Head *head, DType E) {
    for (int64_t q0 = 0; q0 < head->q.rows; q0 += PANEL_ROWS) {
        if (q0 % PACK_KEYS == 0) {
            pack_right_transposed(right_from_column(s->keys_t, q0), head->k, q0, PACK_KEYS);
            pack_right(right_from_word(s->values, depth_words(q0, E)), head->v, q0, PACK_KEYS);
        }
        forward_panel(s, head, q0, E);
    }
}

void attention_forward(Tensor out, Tensor lse, Tensor qkv, int num_heads) {
    const char *op = "attention_forward";
    AttentionShape s = attention_shape(op, qkv, num_heads);
    tensor_check(op, out, s.dtype, s.B * s.T * s.NH * s.HS);
    tensor_check(op, lse, DTYPE_FP32, s.B * s.NH * s.T);
    int64_t scratch_bytes = attention_forward_scratch(s.T, s.HS, s.dtype);
    char *scratch = cpu_scratch(op, cpu_threads() * scratch_bytes);

#pragma omp parallel for schedule(dynamic, 1) num_threads(cpu_threads())
    for (int64_t task = 0; task < s.B * s.NH; task++) {
        int64_t b = task / s.NH, h = task % s.NH;
        Scratch mine;
        scratch_layout(&mine, scratch + omp_get_thread_num() * scratch_bytes, s.T, s.HS, s.dtype);
        REQUIRE(mine.scores.data, "%s: no scratch memory", op);
        const Head head = {
            .q = attention_head(s, qkv, b, h, 0, 3),
            .k = attention_head(s, qkv, b, h, 1, 3),
            .v = attention_head(s, qkv, b, h, 2, 3),
            .out = attention_head(s, out, b, h, 0, 1),
            .lse = (float *)lse.data + task * s.T,
            .scale = s.scale,
        };
        WITH_DTYPE(E, s.dtype, forward_head(&mine, &head, E));
    }
}
