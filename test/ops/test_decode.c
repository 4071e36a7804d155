// kv_cache_store and attention_decode against the specification.
#include "test/ops/op_test.h"
#include <math.h>

TestFixture test_all = {op_group_setup, op_group_teardown};

// B C NH maxT position NKV: the first token; one head; head sizes 5, 7, 24, 48, 64, 128 and up to
// 520, of which a GPU's
// kernel reads some in one go, some in several, some element by element; the last position of a
// cache and one in the middle; one below, at and above the borders of chunks of 64 keys; many
// chunks; more heads than one launch takes.
static const struct Case {
    int64_t B, C, NH, maxT, position, NKV;
} cases[] = {
    {1, 16, 1, 1, 0, 1},           {2, 15, 3, 9, 4, 3},      {3, 21, 3, 40, 39, 3},
    {1, 64, 1, 64, 63, 1},         {1, 64, 1, 100, 64, 1},   {2, 128, 2, 65, 64, 2},
    {1, 48, 2, 130, 126, 2},       {1, 192, 3, 300, 299, 3}, {2, 128, 1, 200, 127, 1},
    {1, 200, 1, 140, 128, 1},      {1, 300, 1, 70, 69, 1},   {5, 48, 1, 80, 70, 1},
    {1, 7, 7, 129, 128, 7},        {1, 520, 1, 66, 65, 1},   {1, 64, 1, 700, 640, 1},
    {1, 4100, 4100, 66, 65, 4100},
};
enum { NUM_CASES = sizeof cases / sizeof *cases };

// The same with 2, 3 and 8 heads of q for one of k and v; heads wider than what a block of a GPU
// takes at a time, in packs and not.
static const struct Case grouped[] = {{2, 16, 2, 9, 4, 1},      {1, 63, 9, 40, 39, 3},
                                      {2, 512, 8, 130, 128, 1}, {3, 128, 4, 70, 0, 2},
                                      {1, 608, 2, 66, 65, 1},   {2, 44, 4, 70, 66, 2}};
enum { NUM_GROUPED = sizeof grouped / sizeof *grouped };

static int64_t head_size(const struct Case *c) { return c->C / c->NH; }
static int64_t columns(const struct Case *c) {
    return (c->NH + 2 * c->NKV) * head_size(c);
} // of qkv

static void begin(const struct Case *c, DType dtype, const char *what) {
    OpsShape shape = {.B = c->B,
                      .T = c->maxT,
                      .C = c->C,
                      .NH = c->NH,
                      .Vp = 128,
                      .num_tensors = 1,
                      .dtype = dtype};
    shape.NKV = c->NKV;
    shape.sequences = c->B;
    op_begin(shape, "%s B=%d C=%d NH=%d NKV=%d maxT=%d position=%d", what, (int)c->B, (int)c->C,
             (int)c->NH, (int)c->NKV, (int)c->maxT, (int)c->position);
}

static OpDims cache_dims(const struct Case *c) {
    return DIMS(c->B, 2 * c->NKV, c->maxT, head_size(c));
}

static OpTensor position_tensor(int64_t position) {
    OpTensor t = op_tokens("position", DIMS(1), 1);
    t.tokens[0] = (int32_t)position;
    op_upload(&t);
    return t;
}

// A cache whose first `filled` positions hold random numbers and whose others are NaN: to be
// written before read.
static OpTensor partly_filled_cache(const struct Case *c, DType dtype, const char *name,
                                    int64_t filled, double scale) {
    OpTensor cache = op_inout(dtype, name, cache_dims(c), scale);
    const int64_t HS = c->C / c->NH, rows = tensor_numel(cache.t) / HS;
    for (int64_t row = 0; row < rows; row++)
        for (int64_t d = 0; d < HS; d++)
            if (row % c->maxT >= filled) cache.v[row * HS + d] = (double)NAN;
    op_upload(&cache);
    return cache;
}

// Equal bits, where NaN (not yet written) equals NaN.
static void check_cache(OpTensor cache) {
    const double *got = op_download(cache);
    for (int64_t i = 0; i < tensor_numel(cache.t); i++)
        if (!(got[i] == cache.v[i] || (isnan(got[i]) && isnan(cache.v[i]))))
            op_fail("cache element %lld is %g, not %g", (long long)i, got[i], cache.v[i]);
}

static void store_case(const struct Case *c, DType dtype) {
    const int64_t first = c->position / 3, n = c->position + 1 - first;
    begin(c, dtype, "kv_cache_store");
    OpTensor cache = partly_filled_cache(c, dtype, "cache", first, 1.0);
    OpTensor qkv = op_input(dtype, "qkv", DIMS(c->B, n, columns(c)), 1.0);
    kv_cache_store(cache.t, qkv.t, first);
    ref_kv_cache_store(cache.v, qkv.v, c->B, n, c->NH, c->NKV, head_size(c), c->maxT, first);
    check_cache(cache);
    op_end();
}

OP_TEST(prompts_are_stored_where_they_belong_and_nothing_else_changes) {
    for (int i = 0; i < NUM_CASES; i++) store_case(&cases[i], dtype);
}

// slack: see large_scores_do_not_overflow.
static void decode_case(const struct Case *c, DType dtype, double scale, double slack) {
    begin(c, dtype, "attention_decode");
    OpTensor cache = partly_filled_cache(c, dtype, "cache", c->position, scale);
    OpTensor qkv = op_input(dtype, "qkv", DIMS(c->B, columns(c)), scale);
    OpTensor position = position_tensor(c->position),
             out = op_output(dtype, "out", DIMS(c->B, c->C));
    attention_decode(out.t, cache.t, qkv.t, position.t);
    ref_attention_decode(out.v, cache.v, qkv.v, c->B, c->NH, c->NKV, head_size(c), c->maxT,
                         c->position);
    op_check_scaled(out, dtype, slack);
    check_cache(cache);
    op_end();
}

OP_TEST(attention_decode_matches) {
    for (int i = 0; i < NUM_CASES; i++) decode_case(&cases[i], dtype, 1.0, 1.0);
}

OP_TEST(heads_that_share_keys_and_values_match) {
    for (int i = 0; i < NUM_GROUPED; i++) {
        store_case(&grouped[i], dtype);
        decode_case(&grouped[i], dtype, 1.0, 1.0);
    }
}

OP_TEST(slices_of_tensors_match) {
    for (int i = 4; i < 7; i++) {
        op_begin_tensors_at(8);
        store_case(&cases[i], dtype);
        op_begin_tensors_at(8);
        decode_case(&cases[i], dtype, 1.0, 1.0);
    }
}

// Scores of size 5^2 * sqrt(HS) / sqrt(HS) = 25, up to 100: exp overflows in fp32 without the
// maximum. A relative error of 2^-24 in a score of 100 is 6e-6 in its exponential, so the fp32
// tolerance is doubled.
OP_TEST(large_scores_do_not_overflow) {
    decode_case(&cases[5], dtype, 5.0, 2.0);
    decode_case(&cases[7], dtype, 5.0, 2.0);
}

// Equal scores of 152, whose exponentials no float can hold, in five chunks: the average of the
// values. The terms of that are exact, and 300 of them are added.
OP_TEST(chunks_of_large_equal_scores_are_averaged) {
    const struct Case *c = &cases[7];
    begin(c, dtype, "attention_decode of equal scores");
    OpTensor cache = partly_filled_cache(c, dtype, "cache", c->position, 1.0);
    OpTensor qkv = op_input(dtype, "qkv", DIMS(c->B, 3 * c->C), 1.0);

    for (int64_t i = 0; i < c->C * c->maxT; i++) // the keys of one sequence
        if (!isnan(cache.v[i])) cache.v[i] = 4.75;
    for (int64_t i = 0; i < 2 * c->C; i++) qkv.v[i] = i < c->C ? 4.0 : 4.75;
    op_upload(&cache), op_upload(&qkv);
    OpTensor position = position_tensor(c->position),
             out = op_output(dtype, "out", DIMS(c->B, c->C));

    attention_decode(out.t, cache.t, qkv.t, position.t);
    ref_attention_decode(out.v, cache.v, qkv.v, c->B, c->NH, c->NKV, head_size(c), c->maxT,
                         c->position);

    op_check(out, dtype);
    op_end();
}

// One query after the other is what attention_forward computes at once. Both round the result once,
// 16-bit probabilities in attention_forward add one more: the tolerance of an op on either side.
OP_TEST(decoding_token_by_token_is_causal_attention) {
    const struct Case c = {2, 128, 2, 80, 79, 2};
    const int64_t T = c.maxT;
    begin(&c, dtype, "attention_decode after attention_forward");
    OpTensor qkv = op_input(dtype, "qkv", DIMS(c.B, T, 3 * c.C), 1.0);
    OpTensor all = op_output(dtype, "all", DIMS(c.B, T, c.C)),
             lse = op_output(DTYPE_FP32, "lse", DIMS(c.B, c.NH, T));
    OpTensor cache = partly_filled_cache(&c, dtype, "cache", 0, 1.0),
             out = op_output(dtype, "out", DIMS(c.B, c.C));
    OpTensor row = op_inout(dtype, "row", DIMS(c.B, 3 * c.C), 1.0), position = position_tensor(0);

    attention_forward(all.t, lse.t, qkv.t, heads_of((int)c.NH, (int)c.NH));
    const double *expected = op_download(all);
    double *got = malloc((size_t)(c.B * T * c.C) * sizeof *got);

    for (int64_t t = 0; t < T; t++) {
        for (int64_t b = 0; b < c.B; b++)
            for (int64_t i = 0; i < 3 * c.C; i++)
                row.v[b * 3 * c.C + i] = qkv.v[(b * T + t) * 3 * c.C + i];
        position.tokens[0] = (int32_t)t;
        op_upload(&row), op_upload(&position);
        attention_decode(out.t, cache.t, row.t, position.t);
        double *now = op_values(out.t);
        for (int64_t b = 0; b < c.B; b++)
            for (int64_t i = 0; i < c.C; i++) got[(b * T + t) * c.C + i] = now[b * c.C + i];
        free(now);
    }

    op_expect("out", op_relative_error(got, expected, c.B * T * c.C), 2.0 * op_tolerance(dtype));
    free(got);
    op_end();
}

// The last sequence of c in a cache and a qkv of its own, the cache with room for maxT positions.
static OpTensor decode_last(const struct Case *c, OpTensor cache, OpTensor qkv, OpTensor position,
                            int64_t maxT, DType dtype, const char *name) {
    const struct Case alone = {1, c->C, c->NH, maxT, c->position, c->NKV};
    const int64_t HS = c->C / c->NH, last = c->B - 1;
    OpTensor own_cache = partly_filled_cache(&alone, dtype, "cache of one", 0, 1.0);
    OpTensor own_qkv = op_inout(dtype, "qkv of one", DIMS(1, 3 * c->C), 1.0),
             out = op_output(dtype, name, DIMS(1, c->C));
    for (int64_t i = 0; i < 3 * c->C; i++) own_qkv.v[i] = qkv.v[last * 3 * c->C + i];
    for (int64_t head = 0; head < 2 * c->NH; head++)
        for (int64_t i = 0; i < c->position * HS; i++)
            own_cache.v[head * maxT * HS + i] =
                cache.v[(last * 2 * c->NH + head) * c->maxT * HS + i];
    op_upload(&own_qkv), op_upload(&own_cache);
    attention_decode(out.t, own_cache.t, own_qkv.t, position.t);
    return out;
}

OP_TEST(a_sequence_has_the_same_bits_alone_beside_others_and_in_a_longer_cache) {
    const struct Case c = {3, 128, 2, 150, 140, 2}, largest = {3, 128, 2, 333, 140, 2};
    begin(&largest, dtype, "attention_decode in any company");

    OpTensor cache = partly_filled_cache(&c, dtype, "cache", c.position, 1.0);
    OpTensor qkv = op_input(dtype, "qkv", DIMS(c.B, 3 * c.C), 1.0),
             position = position_tensor(c.position);
    OpTensor out = op_output(dtype, "out", DIMS(c.B, c.C));

    attention_decode(out.t, cache.t, qkv.t, position.t);
    OpTensor last = {.t = tensor_slice_rows(out.t, c.B - 1, 1)};
    op_check_same_bits(last, decode_last(&c, cache, qkv, position, c.maxT, dtype, "out alone"));
    op_check_same_bits(
        last, decode_last(&c, cache, qkv, position, largest.maxT, dtype, "out of a longer cache"));
    op_end();
}
