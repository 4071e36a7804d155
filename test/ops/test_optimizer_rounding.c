// How updated weights and moments are rounded: stochastically, with the documented bits and without
// bias; by Kahan's compensation, which loses nothing; to 8 bits, with the codes of llmc/number.h,
// which never let an update blow up.
#include "llmc/base/arithmetic.h"
#include "llmc/base/random.h"
#include "test/ops/optimizer_case.h"
#include <math.h>

TestFixture test_all = {op_group_setup, op_group_teardown};

// Half-word e % 8, lower halves first, of philox(seed, stream + k * 2^20, updates * 2^40 + e / 8).
static uint32_t random_bits(UpdateParams p, int32_t updates, int stream, int k, int64_t e) {
    const uint64_t number = STREAM_ROUNDING + (uint64_t)stream + (uint64_t)k * (1 << 20);
    const Philox words = philox(p.seed, number, ((uint64_t)updates << 40) + (uint64_t)e / 8);
    return words.v[e % 8 / 2] >> (e % 2 * 16) & 0xFFFFu;
}

// Without memory: m is the gradient, v its square, both exact in fp32 as every backend computes
// them, and the direction of a gradient of -1 is -1.
static UpdateParams without_memory(void) {
    UpdateParams p = update_params;
    p.moments[0] = (MomentRates){.eps = 1e-8f};
    return p;
}

// ------------------------------------------------------------------------- weights, stochastically

enum { NUM_ROUNDED = 65536, ROUNDED_STREAM = 3 };

// Equal weights of 1 are moved to 1 + fraction * ulp; returns how many rounded up, in values what
// came out.
static int64_t round_many(DType dtype, double fraction, UpdateParams p, int32_t updates,
                          double *values) {
    const double ulp = ulp_of(1.0, dtype);
    op_begin(optimizer_shape(dtype, 1, 0), "stochastic rounding of 1 + %g ulp", fraction);
    UpdateCase x = parameter_make((UpdateSpec){.rule = RULE_ADAMW,
                                               .dtype = dtype,
                                               .grad = DTYPE_FP32,
                                               .state = DTYPE_FP32,
                                               .rows = NUM_ROUNDED,
                                               .rate = 1.0f,
                                               .stream = ROUNDED_STREAM});
    for (int64_t i = 0; i < NUM_ROUNDED; i++) x.weight.v[i] = 1.0, x.grad.v[i] = -1.0;
    op_upload(&x.weight), op_upload(&x.grad);
    p.learning_rate = (float)(fraction * ulp);
    Tensor control = control_with(1.0f, SKIP_NONE);
    control_set(control, updates, p, 1.0f);
    update_once(&x.update, 1, p, control);
    memcpy(values, op_download(x.weight), NUM_ROUNDED * sizeof *values);
    op_end();
    int64_t up = 0;
    for (int64_t i = 0; i < NUM_ROUNDED; i++) {
        if (values[i] != 1.0 && values[i] != 1.0 + ulp)
            op_fail("%g is no neighbour of 1 + %g ulp", values[i], fraction);
        up += values[i] != 1.0;
    }
    return up;
}

OP_TEST(stochastic_rounding_is_unbiased) {
    if (dtype == DTYPE_FP32) return; // nothing is rounded
    static double values[NUM_ROUNDED];
    UpdateParams p = without_memory();
    p.seed = op_seed();
    static const double fractions[] = {0.0625, 0.3, 0.5, 0.9};
    for (int i = 0; i < 4; i++)
        op_expect_share(round_many(dtype, fractions[i], p, UPDATES, values), NUM_ROUNDED,
                        fractions[i]);
}

OP_TEST(stochastic_rounding_depends_on_seed_and_number_of_the_update_alone) {
    if (dtype == DTYPE_FP32) return; // nothing is rounded
    static double first[NUM_ROUNDED], second[NUM_ROUNDED];

    UpdateParams p = without_memory();
    round_many(dtype, 0.5, p, UPDATES, first);
    round_many(dtype, 0.5, p, UPDATES, second);
    assert_memory_equal(first, second, sizeof first);

    p.seed++;
    round_many(dtype, 0.5, p, UPDATES, second);
    assert_memory_not_equal(first, second, sizeof first);

    p.seed--;
    round_many(dtype, 0.5, p, UPDATES + 1, second);
    assert_memory_not_equal(first, second, sizeof first);
}

// 1 + 5/16 ulp is exact in fp32: it goes up exactly where the element's half-word is at least 11/16
// of 2^16.
OP_TEST(stochastic_rounding_adds_the_documented_bits) {
    if (dtype == DTYPE_FP32) return; // nothing is rounded
    static double values[NUM_ROUNDED];
    const UpdateParams p = without_memory();
    round_many(dtype, 0.3125, p, UPDATES, values);
    for (int64_t e = 0; e < NUM_ROUNDED; e++)
        if ((values[e] > 1.0) !=
            (random_bits(p, UPDATES, ROUNDED_STREAM, 0, e) >= 65536u * 11 / 16))
            op_fail("element %d", (int)e);
}

// ------------------------------------------------------------------------- moments, stochastically

static float as_float(double x) { return (float)x; }

static uint16_t bf16_with_bits(float x, uint32_t random) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + random) >> 16);
}

// m = g and v = g^2, with the bits of k = 1 and 2, each for itself.
OP_TEST(bf16_moments_add_the_documented_bits) {
    enum { N = 20011, STREAM = 9 };
    op_begin(optimizer_shape(dtype, 1, 0), "bits of bf16 moments");
    UpdateCase x = parameter_make((UpdateSpec){.rule = RULE_ADAMW,
                                               .dtype = dtype,
                                               .grad = DTYPE_FP32,
                                               .state = DTYPE_BF16,
                                               .rows = N,
                                               .rate = 1.0f,
                                               .stream = STREAM});

    const UpdateParams p = without_memory();
    update_once(&x.update, 1, p, control_with(1.0f, SKIP_NONE));
    static uint16_t m[N], v[N];
    op_read(m, x.m.t), op_read(v, x.v.t);

    for (int64_t e = 0; e < N; e++) {
        const float g = as_float(x.grad.v[e]), square = g * g;
        if (m[e] != bf16_with_bits(g, random_bits(p, UPDATES, STREAM, 1, e)))
            op_fail("m of element %d", (int)e);
        if (v[e] != bf16_with_bits(square, random_bits(p, UPDATES, STREAM, 2, e)))
            op_fail("v of element %d", (int)e);
    }
    op_end();
}

OP_TEST(bf16_moments_are_unbiased) {
    static const double fractions[] = {0.125, 0.5, 0.75};
    for (int i = 0; i < 3; i++) {
        op_begin(optimizer_shape(dtype, 1, 0), "moments of 1 + %g ulp", fractions[i]);
        UpdateCase x = parameter_make((UpdateSpec){.rule = RULE_SGD,
                                                   .dtype = dtype,
                                                   .grad = DTYPE_FP32,
                                                   .state = DTYPE_BF16,
                                                   .rows = NUM_ROUNDED,
                                                   .rate = 1.0f});

        for (int64_t e = 0; e < NUM_ROUNDED; e++) x.grad.v[e] = 1.0 + fractions[i] * 0x1p-7;
        op_upload(&x.grad);
        UpdateParams p = without_memory();
        p.momentum = 0.0f, p.seed = op_seed() + 1;
        update_once(&x.update, 1, p, control_with(1.0f, SKIP_NONE));

        const double *m = op_download(x.m);
        int64_t up = 0;
        for (int64_t e = 0; e < NUM_ROUNDED; e++) up += m[e] != 1.0;

        op_end();
        op_expect_share(up, NUM_ROUNDED, fractions[i]);
    }
}

// ------------------------------------------------------------------------------------------- Kahan

// 1000 updates of `size` ulps each from weights of 1; what weight + compensation are then.
static void kahan_steps(DType dtype, double size, double *sums, int64_t n) {
    op_begin(optimizer_shape(dtype, 1, 0), "1000 updates of %g ulp", size);
    UpdateCase x = parameter_make((UpdateSpec){.rule = RULE_ADAMW,
                                               .dtype = dtype,
                                               .grad = dtype,
                                               .state = DTYPE_BF16,
                                               .keep = WEIGHT_AND_COMPENSATION,
                                               .rows = n,
                                               .rate = 1.0f});

    for (int64_t i = 0; i < n; i++)
        x.weight.v[i] = 1.0, x.compensation.v[i] = 0.0, x.grad.v[i] = -1.0;
    op_upload(&x.weight), op_upload(&x.compensation), op_upload(&x.grad);

    Tensor control = control_with(1.0f, SKIP_NONE);
    UpdateParams p = without_memory();
    p.learning_rate = (float)(size * ulp_of(1.0, dtype));
    // to nearest, the weight would never move
    assert_true(ref_round(1.0 + (double)p.learning_rate, dtype) == 1.0);

    UpdateList list = update_list(&x.update, 1);
    for (int32_t update = 1; update <= 1000; update++) {
        control_set(control, update, p, 1.0f);
        optimizer_update(&list, 0, 1, p, control);
    }
    update_list_free(&list);

    double *weight = op_values(x.weight.t), *compensation = op_values(x.compensation.t);
    for (int64_t i = 0; i < n; i++) sums[i] = weight[i] + compensation[i];
    free(weight), free(compensation);
    op_end();
}

OP_TEST(kahan_keeps_what_a_thousand_small_updates_add_up_to) {
    if (dtype == DTYPE_FP32) return; // nothing is lost
    enum { N = 257 };
    double sums[N];
    const double ulp = ulp_of(1.0, dtype);

    // The updates are 1/64 ulp each: compensation is a small multiple of that, exact in the dtype,
    // so nothing at all may go.
    kahan_steps(dtype, 1.0 / 64, sums, N);
    for (int i = 0; i < N; i++) assert_true(sums[i] == 1.0 + 1000.0 / 64 * ulp);

    // The updates are of any size: each step rounds compensation, at most half an ulp of a number
    // with as many bits, to a half of its ulp.
    const double size = 0.0123;
    kahan_steps(dtype, size, sums, N);
    for (int i = 0; i < N; i++)
        assert_true(fabs(sums[i] - 1.0 - 1000 * size * ulp) <= 1000 * ulp * ulp / 4);
}

// ------------------------------------------------------------------------------------------ 8 bits

// Numbers whose quotients by the largest one meet every code of both maps, and the floats around
// every border.
static int64_t hard_values(float *x, int64_t n) {
    int64_t count = 0;
    for (int is_signed = 0; is_signed < 2; is_signed++)
        for (int code = 1; code < 256; code++) {
            const double low = decode8((uint8_t)(code - 1), is_signed),
                         high = decode8((uint8_t)code, is_signed);
            // Second moments are squares.
            const float border = (float)(is_signed ? 0.5 * (low + high) : sqrt(0.5 * (low + high)));
            float around = border;
            for (int k = 0; k < 4; k++) around = nextafterf(around, -2.0f);
            for (int k = 0; k < 9; k++, around = nextafterf(around, 2.0f)) x[count++] = around;
            x[count++] = (float)(is_signed ? high : sqrt(high));
        }

    for (float y = 1e-9f; y < 1.0f; y *= 1.01f, count++) x[count] = count % 2 ? y : -y;
    x[count++] = 0.0f, x[count++] = -0.0f;
    assert_true(count <= n);
    return count;
}

// The largest number of each block is 1 (once 3), at its start: m / scale and v / scale are the
// hard values themselves.
OP_TEST(states_in_8_bits_have_the_codes_of_the_shared_header) {
    enum { ROOM = 1 << 13, N = ROOM / 256 * 257 };
    static float hard[ROOM];
    const int64_t count = hard_values(hard, ROOM);
    const int64_t blocks = ceil_div(count, STATE_BLOCK - 1), n = count + blocks;

    op_begin(optimizer_shape(dtype, 1, 0), "codes of 8-bit states");
    UpdateCase x = parameter_make((UpdateSpec){.rule = RULE_ADAMW,
                                               .dtype = dtype,
                                               .grad = DTYPE_FP32,
                                               .state = DTYPE_U8,
                                               .rows = n,
                                               .rate = 1.0f});

    static float g[N];
    int64_t next = 0;
    for (int64_t i = 0; i < n; i++) {
        const float scale = i / STATE_BLOCK == 3 ? 3.0f : 1.0f,
                    sign = i / STATE_BLOCK % 2 ? -1.0f : 1.0f;
        g[i] = i % STATE_BLOCK == 0 ? sign * scale : hard[next++] * scale;
        x.grad.v[i] = (double)g[i];
    }
    op_upload(&x.grad);

    update_once(&x.update, 1, without_memory(), control_with(1.0f, SKIP_NONE));
    static uint8_t m[N], v[N];
    static float m_scale[N / STATE_BLOCK + 1], v_scale[N / STATE_BLOCK + 1];
    op_read(m, x.m.t), op_read(v, x.v.t), op_read(m_scale, x.m_scale.t),
        op_read(v_scale, x.v_scale.t);

    for (int64_t i = 0; i < n; i++) {
        const float scale = i / STATE_BLOCK == 3 ? 3.0f : 1.0f, square = g[i] * g[i];
        assert_true(m_scale[i / STATE_BLOCK] == scale && v_scale[i / STATE_BLOCK] == scale * scale);
        const int want_m = dynamic8_encode_signed(g[i] / scale),
                  want_v = dynamic8_encode_unsigned(square / (scale * scale));
        if (m[i] != want_m) op_fail("m: %.9g has the code %d, not %d", (double)g[i], m[i], want_m);
        if (v[i] != want_v)
            op_fail("v: %.9g has the code %d, not %d", (double)square, v[i], want_v);
    }
    op_end();
}

OP_TEST(a_block_of_zeros_stays_zero) {
    enum { N = 300 };
    op_begin(optimizer_shape(dtype, 1, 0), "8-bit states of zeros");
    UpdateCase x = parameter_make((UpdateSpec){.rule = RULE_ADAMW,
                                               .dtype = dtype,
                                               .grad = DTYPE_FP32,
                                               .state = DTYPE_U8,
                                               .rows = N,
                                               .rate = 1.0f});

    for (int i = 0; i < N; i++) x.grad.v[i] = x.m_values[i] = x.v_values[i] = 0.0;
    op_upload(&x.grad);
    upload8(x.m_values, x.m, &x.m_scale, true), upload8(x.v_values, x.v, &x.v_scale, false);

    const double *before = op_download(x.weight);
    update_once(&x.update, 1, update_params, control_with(1.0f, SKIP_NONE));
    const double *after = op_download(x.weight);
    assert_memory_equal(before, after, N * sizeof *before); // 0 / (0 + eps)

    parameter_read(&x);
    for (int i = 0; i < N; i++) assert_true(x.m_values[i] == 0.0 && x.v_values[i] == 0.0);
    op_end();
}

// Gradients of all sizes once, then 0, beside a neighbour whose gradients go on and hold up the
// scale of the block: the worst place for 8-bit moments, since small ones are rounded again and
// again. AdamW's own update is at most m / sqrt(v) = (1-b1) / sqrt(1-b2) times the corrections at
// the first step and shrinks from there on, since b1 < sqrt(b2). A first moment is rounded up
// by 5.5 at most (0.1 to 0.55, in the decade of a single cell), a second moment down by 0.55 /
// 0.325 (in the decade of two cells), its root by 1.3: no update is larger than 7.2 times AdamW's
// first.
OP_TEST(updates_under_8_bit_states_stay_bounded_when_gradients_stop) {
    if (dtype != DTYPE_FP32) return; // the weight tells the update exactly
    enum { N = STATE_BLOCK, STEPS = 200 };
    op_begin(optimizer_shape(dtype, 1, 0), "gradients that stop");
    UpdateCase x = parameter_make((UpdateSpec){.rule = RULE_ADAMW,
                                               .dtype = dtype,
                                               .grad = DTYPE_FP32,
                                               .state = DTYPE_U8,
                                               .rows = N,
                                               .rate = 1.0f});

    for (int i = 0; i < N; i++) {
        x.weight.v[i] = x.m_values[i] = x.v_values[i] = 0.0;
        x.grad.v[i] = (i % 2 ? 1.0 : -1.0) * pow(10.0, -9.0 * i / N); // 1 .. 1e-9
    }
    op_upload(&x.weight), op_upload(&x.grad);
    upload8(x.m_values, x.m, &x.m_scale, true), upload8(x.v_values, x.v, &x.v_scale, false);

    Tensor control = control_with(1.0f, SKIP_NONE);
    UpdateParams p = update_params;
    p.learning_rate = 1.0f, p.moments[0].eps = 1e-12f;
    double before[N] = {0}, largest = 0.0;
    for (int update = 1; update <= STEPS; update++) {
        control_set(control, update, p, 1.0f);
        update_once(&x.update, 1, p, control);
        double *now = op_values(x.weight.t);
        for (int i = 1; i < N; i++) largest = fmax(largest, fabs(now[i] - before[i]));
        memcpy(before, now, sizeof before);
        free(now);

        for (int i = 1; i < N && update == 1; i++) x.grad.v[i] = 0.0;
        if (update == 1) op_upload(&x.grad);
    }

    if (!(largest <= 7.2)) op_fail("an update of %g times the learning rate", largest);
    op_end();
}
