// attention_forward. One task is one head of one sequence; it goes through the queries in panels of 8 rows:
//
//                  keys ->                     one panel:  scores = Q K^T              8 x keys, fp32
//                +---------------------+                   P = exp(scores * scale - row maximum)
//      queries   |x..:                 |                   out = P V / row sum
//         |      |xx.:                 |
//         v      |xxx.:                |      A panel's scores end with the group of 16 keys that holds its diagonal:
//                |xxxx.:               |      that group (.) is computed in full and masked; further right is no work.
//         panel  |xxxxx.:              |      K and V are packed 32 keys at a time, just before the first panel that
//                |                     |      sees them, and stay packed for the panels below.
//
// A row of scores is whole when its softmax runs, so no running rescale is needed; 8 x T of them stay in the cache
// where 64 x T would not, and T x T never exists.
#include "llmc/cpu/attention.h"

#include <omp.h>

enum { PACK_KEYS = 32 };

typedef struct {
    LeftOperand queries; // one panel of Q: 8 x HS
    RightOperand keys;   // K^T: HS x T
    RightOperand values; // V: T x HS
    TileResult scores;   // one panel: 8 x T
    LeftOperand probs;   // the same memory: each row of P over its row of scores
    TileResult out;      // one panel: 8 x HS
} ForwardScratch;

static int64_t forward_layout(ForwardScratch *s, char *base, int64_t T, int64_t HS, DType dtype) {
    int64_t T32 = round_up(T, PACK_KEYS), HS16 = round_up(HS, LANES);
    int64_t head_words = round_up(depth_words(HS, dtype), LANES), key_words = depth_words(T32, dtype);
    // One vector more than a power of two: the rows of a panel would share their cache sets.
    int64_t scores_stride = T32 + LANES;
    int64_t end = 0;
    s->queries = (LeftOperand){scratch_take(base, &end, PANEL_ROWS * head_words * 4), head_words};
    s->keys = (RightOperand){scratch_take(base, &end, T32 * head_words * 4), head_words * LANES};
    s->values = (RightOperand){scratch_take(base, &end, HS16 * key_words * 4), key_words * LANES};
    s->scores = (TileResult){scratch_take(base, &end, PANEL_ROWS * scores_stride * 4), scores_stride, LANES};
    s->probs = (LeftOperand){(uint32_t *)s->scores.data, scores_stride};
    s->out = (TileResult){scratch_take(base, &end, PANEL_ROWS * HS16 * 4), HS16, LANES};
    return end;
}

int64_t attention_forward_scratch(int64_t T, int64_t HS, DType dtype) {
    ForwardScratch counted;
    return forward_layout(&counted, NULL, T, HS, dtype);
}

// scores[r] -> P[r] = exp(scores[r] * scale - max[r]), 0 beyond the diagonal; sum[r] of them. Row r is query row0 + r;
// num_keys ends the group of 16 keys in which the diagonals of all 8 rows lie.
static ALWAYS_INLINE void softmax_panel(const ForwardScratch *s, int64_t row0, int64_t num_keys, float scale,
                                        float max[PANEL_ROWS], float sum[PANEL_ROWS], DType E) {
    const int64_t stride = s->scores.row_stride, last = num_keys - LANES;
    const V never = vsplat(-INFINITY);

    // The diagonal group first: what it holds of the future becomes -inf.
    V lane_max[PANEL_ROWS];
    for (int r = 0; r < PANEL_ROWS; r++) {
        float *score = s->scores.data + r * stride + last;
        lane_max[r] = vfirst(lanes(row0 + r - last + 1), vload_f32(score), never);
        vstore_f32(score, lane_max[r]);
    }
    for (int64_t j = 0; j < last; j += LANES)
        for (int r = 0; r < PANEL_ROWS; r++)
            lane_max[r] = vmax(lane_max[r], vload_f32(s->scores.data + r * stride + j));

    for (int r = 0; r < PANEL_ROWS; r++) {
        float *score = s->scores.data + r * stride;
        max[r] = vmax_lane(lane_max[r]) * scale;
        V lane_sum = vzero();
        for (int64_t j = 0; j < num_keys; j += LANES) {
            V p = vexp(vfma(vload_f32(score + j), vsplat(scale), vsplat(-max[r])));
            lane_sum += p;
            vstore(score, j, p, E); // at most as wide as the scores: never ahead of the load
        }
        sum[r] = vsum(lane_sum);
    }
}

static ALWAYS_INLINE void forward_panel(const ForwardScratch *s, MatrixView out, float *lse, MatrixView q, int64_t row0,
                                        float scale, DType E) {
    int64_t HS = q.columns, num_keys = row0 / LANES * LANES + LANES;
    float max[PANEL_ROWS], sum[PANEL_ROWS];

    pack_left(s->queries, q, row0, PANEL_ROWS);
    tile_matmul(s->scores, s->queries, s->keys, PANEL_ROWS, num_keys, depth_words(HS, E), false, E);
    softmax_panel(s, row0, num_keys, scale, max, sum, E);
    tile_matmul(s->out, s->probs, s->values, PANEL_ROWS, round_up(HS, LANES), depth_words(num_keys, E), false, E);

    for (int r = 0; r < PANEL_ROWS && row0 + r < q.rows; r++) {
        lse[row0 + r] = max[r] + logf(sum[r]);
        V inverse = vsplat(1.0f / sum[r]);
        for (int64_t j = 0; j < HS; j += LANES)
            vstore_first(lanes(HS - j), out.data, (row0 + r) * out.stride + j,
                         vload_f32(s->out.data + r * s->out.row_stride + j) * inverse, E);
    }
}

static ALWAYS_INLINE void forward_head(const ForwardScratch *s, MatrixView out, float *lse, MatrixView q, MatrixView k,
                                       MatrixView v, float scale, DType E) {
    for (int64_t row0 = 0; row0 < q.rows; row0 += PANEL_ROWS) {
        if (row0 % PACK_KEYS == 0) {
            pack_right_transposed(right_from_column(s->keys, row0), k, row0, PACK_KEYS);
            pack_right(right_from_word(s->values, depth_words(row0, E)), v, row0, PACK_KEYS);
        }
        forward_panel(s, out, lse, q, row0, scale, E);
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
        ForwardScratch mine;
        forward_layout(&mine, scratch + omp_get_thread_num() * scratch_bytes, s.T, s.HS, s.dtype);
        MatrixView q = attention_head(s, qkv, b, h, 0, 3);
        MatrixView k = attention_head(s, qkv, b, h, 1, 3);
        MatrixView v = attention_head(s, qkv, b, h, 2, 3);
        WITH_DTYPE(E, s.dtype,
                   forward_head(&mine, attention_head(s, out, b, h, 0, 1), (float *)lse.data + task * s.T, q, k, v,
                                s.scale, E));
    }
}
