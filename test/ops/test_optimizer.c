// The end of the step against the specification: gradient_sumsq, step_control_update, adamw_update.
#include "llmc/base/rng.h"
#include "test/ops/op_test.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NUM_TENSORS = 5 };
// One element; less than a vector; no multiple of anything; beyond one block of any partial sum.
static const int64_t sizes[NUM_TENSORS] = {1, 7, 100, 4099, 70001};

static OpsShape shape(DType dtype) {
    return (OpsShape){.B = 8, .T = 16, .C = 64, .NH = 1, .Vp = 128, .num_tensors = NUM_TENSORS, .dtype = dtype};
}

// ----------------------------------------------------------------------------------------------------- gradient_sumsq

static void gradient_sumsq_matches(void **state) {
    DType dtype = op_dtype(state);
    op_begin(shape(dtype), "gradient_sumsq");
    Tensor grads[NUM_TENSORS];
    OpTensor sumsq = op_output(DTYPE_FP32, "sumsq", DIMS(NUM_TENSORS));
    for (int i = 0; i < NUM_TENSORS; i++) {
        OpTensor grad = op_input(dtype, "grad", DIMS(sizes[i]), pow(10.0, 2 - i)); // of very different sizes
        grads[i] = grad.t;
        sumsq.v[i] = ref_sumsq(grad.v, sizes[i]);
    }
    gradient_sumsq(sumsq.t, grads, NUM_TENSORS);
    const double *got = op_download(sumsq); // fp32 whatever the gradients are: each entry for itself
    for (int i = 0; i < NUM_TENSORS; i++) op_expect("sumsq", fabs(got[i] / sumsq.v[i] - 1.0), op_tolerance(DTYPE_FP32));
    op_end();
}

// The bad element is the first, the last, or in the middle of a tensor; the other entries are as before.
static void a_nonfinite_gradient_shows_in_its_entry_only(void **state) {
    DType dtype = op_dtype(state);
    static const float bad[3] = {INFINITY, -INFINITY, NAN};
    for (int which = 0; which < NUM_TENSORS; which++) {
        op_begin(shape(dtype), "gradient_sumsq with tensor %d not finite", which);
        Tensor grads[NUM_TENSORS];
        OpTensor sumsq = op_output(DTYPE_FP32, "sumsq", DIMS(NUM_TENSORS));
        for (int i = 0; i < NUM_TENSORS; i++) {
            OpTensor grad = op_input(dtype, "grad", DIMS(sizes[i]), 1.0);
            int64_t place[3] = {0, sizes[i] / 2, sizes[i] - 1};
            if (i == which) grad.v[place[which % 3]] = (double)bad[which % 3];
            op_upload(&grad);
            grads[i] = grad.t;
        }
        gradient_sumsq(sumsq.t, grads, NUM_TENSORS);
        const double *got = op_download(sumsq);
        for (int i = 0; i < NUM_TENSORS; i++) assert_true(isfinite(got[i]) == (i != which));
        op_end();
    }
}

// More tensors than a block has threads, which begin at any element of one buffer.
enum { NUM_SLICES = 300 };
static int64_t slice_size(int i) { return 1 + 13 * (i % 7) + (i == 200 ? 5000 : 0); }

static int64_t slices_size(void) {
    int64_t n = 0;
    for (int i = 0; i < NUM_SLICES; i++) n += slice_size(i);
    return n;
}

static Tensor slice(Tensor whole, int64_t begin, int64_t n) {
    char *data = (char *)whole.data + (size_t)begin * dtype_size(whole.dtype);
    return tensor_make(data, whole.dtype, whole.name, n, 0, 0, 0);
}

static void gradient_sumsq_of_many_unaligned_tensors_matches(void **state) {
    DType dtype = op_dtype(state);
    OpsShape s = shape(dtype);
    s.num_tensors = NUM_SLICES;
    op_begin(s, "gradient_sumsq of slices");
    OpTensor whole = op_input(dtype, "grad", DIMS(slices_size()), 1.0);
    OpTensor sumsq = op_output(DTYPE_FP32, "sumsq", DIMS(NUM_SLICES));
    Tensor grads[NUM_SLICES];
    for (int64_t i = 0, begin = 0; i < NUM_SLICES; begin += slice_size((int)i++)) {
        grads[i] = slice(whole.t, begin, slice_size((int)i));
        sumsq.v[i] = ref_sumsq(whole.v + begin, slice_size((int)i));
    }
    gradient_sumsq(sumsq.t, grads, NUM_SLICES);
    op_check(sumsq, DTYPE_FP32);
    op_end();
}

// ------------------------------------------------------------------------------------------------ step_control_update

// What the op leaves behind is what the shared function decides, on every path: plain, clipped, outlier, not finite.
static void step_control_update_decides_as_the_host_would(void **state) {
    (void)state;
    enum { B = 8, STEPS = OUTLIER_WINDOW + 8 };
    const StepLimits limits = {.clip = 1.5f, .loss_z_limit = 4.0f, .norm_z_limit = 4.0f, .scale_growth_interval = 50};
    op_begin(shape(DTYPE_FP32), "step_control_update");
    StepControl want = step_control_initial(1024.0f), got;
    Tensor control = op_control(want);
    OpTensor sumsq = op_inout(DTYPE_FP32, "sumsq", DIMS(NUM_TENSORS), 1.0);
    OpTensor losses = op_inout(DTYPE_FP32, "sequence_losses", DIMS(B), 1.0);
    int skipped = 0;
    for (int step = 0; step < STEPS; step++) {
        double norm = step == STEPS - 4 ? 100.0 : 1.0 + 0.7 * sin(step);
        float host_sumsq[NUM_TENSORS];
        double loss_sum = 0.0;
        for (int b = 0; b < B; b++) losses.v[b] = (step == STEPS - 2 ? 500.0 : 50.0) + sin(7.0 * step + b);
        for (int i = 0; i < NUM_TENSORS; i++) sumsq.v[i] = norm * norm * 1024.0 * 1024.0 / NUM_TENSORS;
        if (step % 60 == 59) sumsq.v[2] = (double)INFINITY;
        if (step == 20) losses.v[B - 1] = (double)NAN;
        op_upload(&sumsq), op_upload(&losses);
        for (int i = 0; i < NUM_TENSORS; i++) host_sumsq[i] = (float)sumsq.v[i];
        for (int b = 0; b < B; b++) loss_sum += losses.v[b];
        step_control_update(control, sumsq.t, losses.t, B * 16, limits);
        step_control_decide(&want, host_sumsq, NUM_TENSORS, loss_sum, B * 16, limits);
        op_read(&got, control);
        // z-scores are fp64 sums that a device may contract into fma; everything else is exact.
        if (want.loss_z != 0.0f) assert_true(fabsf(got.loss_z - want.loss_z) <= 1e-6f * fabsf(want.loss_z));
        if (want.norm_z != 0.0f) assert_true(fabsf(got.norm_z - want.norm_z) <= 1e-6f * fabsf(want.norm_z));
        got.loss_z = want.loss_z, got.norm_z = want.norm_z;
        assert_memory_equal(&got, &want, sizeof got);
        skipped += want.skip != SKIP_NONE;
    }
    assert_int_equal(skipped, 5); // steps 20, 59, 119, and the two outliers at the end
    op_end();
}

// ------------------------------------------------------------------------------------------------------- adamw_update

typedef struct {
    OpTensor weight, master, grad, m, v;
} State;

// Weights are small against the learning rate, so that an error of the update is not hidden by the weight itself.
static State make_state(DType dtype, DType grad, int64_t n, bool with_master) {
    State s = {
        .weight = op_inout(dtype, "weight", DIMS(n), 0.02),
        .grad = op_input(grad, "grad", DIMS(n), 0.5),
        .m = op_inout(DTYPE_FP32, "m", DIMS(n), 0.3),
        .v = op_inout(DTYPE_FP32, "v", DIMS(n), 0.3),
    };
    for (int64_t i = 0; i < n; i++) s.v.v[i] *= s.v.v[i]; // second moments are not negative
    op_upload(&s.v);
    if (with_master) s.master = op_inout(DTYPE_FP32, "master", DIMS(n), 0.02);
    return s;
}

static AdamWTensor tensor_of(State s, float weight_decay) {
    Tensor master = s.master.v ? s.master.t : tensor_none();
    return (AdamWTensor){s.weight.t, master, s.grad.t, s.m.t, s.v.t, weight_decay};
}

static const AdamWParams params = {
    .learning_rate = 0.1f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-3f, .step = 3, .seed = 42};

static Tensor control_with(float grad_factor, int32_t skip) {
    StepControl c = step_control_initial(1.0f);
    c.grad_factor = grad_factor, c.skip = skip;
    return op_control(c);
}

static void adamw_case(DType dtype, DType grad, bool with_master) {
    op_begin(shape(dtype), "adamw_update with %s gradients%s", dtype_name(grad), with_master ? " and master" : "");
    State s[NUM_TENSORS];
    AdamWTensor tensors[NUM_TENSORS];
    float decay[NUM_TENSORS] = {0.1f, 0.0f, 0.1f, 0.0f, 0.5f};
    for (int i = 0; i < NUM_TENSORS; i++) {
        s[i] = make_state(dtype, grad, sizes[i], with_master);
        tensors[i] = tensor_of(s[i], decay[i]);
    }
    adamw_update(tensors, NUM_TENSORS, params, control_with(0.25f, SKIP_NONE));
    for (int i = 0; i < NUM_TENSORS; i++) {
        double *updated = with_master ? s[i].master.v : s[i].weight.v;
        ref_adamw_update(updated, s[i].m.v, s[i].v.v, s[i].grad.v, sizes[i], (double)decay[i], params, 0.25);
        if (with_master) {
            op_check(s[i].master, DTYPE_FP32);
            memcpy(s[i].weight.v, s[i].master.v, (size_t)sizes[i] * sizeof(double));
        }
        // Stochastic rounding is off by up to an ulp instead of half of one, sqrt(2) times the error of nearest.
        op_check_scaled(s[i].weight, dtype, with_master ? 1.0 : 1.5);
        op_check(s[i].m, DTYPE_FP32);
        op_check(s[i].v, DTYPE_FP32);
    }
    op_end();
}

static void adamw_update_matches(void **state) {
    DType dtype = op_dtype(state);
    adamw_case(dtype, DTYPE_FP32, false);
    if (dtype == DTYPE_FP32) return;
    adamw_case(dtype, DTYPE_FP32, true);
    adamw_case(dtype, dtype, true);
    adamw_case(dtype, dtype, false);
}

static void adamw_update_of_many_unaligned_tensors_matches(void **state) {
    DType dtype = op_dtype(state);
    OpsShape plan = shape(dtype);
    plan.num_tensors = NUM_SLICES;
    op_begin(plan, "adamw_update of slices");
    State s = make_state(dtype, DTYPE_FP32, slices_size(), dtype != DTYPE_FP32);
    AdamWTensor tensors[NUM_SLICES];
    for (int64_t i = 0, begin = 0; i < NUM_SLICES; begin += slice_size((int)i++)) {
        const int64_t n = slice_size((int)i);
        Tensor master = s.master.v ? slice(s.master.t, begin, n) : tensor_none();
        tensors[i] =
            (AdamWTensor){slice(s.weight.t, begin, n), master, slice(s.grad.t, begin, n), slice(s.m.t, begin, n),
                          slice(s.v.t, begin, n),      0.1f};
    }
    adamw_update(tensors, NUM_SLICES, params, control_with(0.25f, SKIP_NONE));
    OpTensor updated = s.master.v ? s.master : s.weight;
    ref_adamw_update(updated.v, s.m.v, s.v.v, s.grad.v, slices_size(), (double)0.1f, params, 0.25);
    op_check(updated, DTYPE_FP32);
    op_check(s.m, DTYPE_FP32);
    op_check(s.v, DTYPE_FP32);
    op_end();
}

static void the_weight_is_the_master_rounded_to_nearest(void **state) {
    DType dtype = op_dtype(state);
    if (dtype == DTYPE_FP32) return; // no master beside fp32
    op_begin(shape(dtype), "master and weight");
    State s = make_state(dtype, DTYPE_FP32, 4099, true);
    AdamWTensor tensor = tensor_of(s, 0.1f);
    adamw_update(&tensor, 1, params, control_with(1.0f, SKIP_NONE));
    const double *master = op_download(s.master), *weight = op_download(s.weight);
    for (int i = 0; i < 4099; i++) assert_true(weight[i] == ref_round(master[i], dtype));
    op_end();
}

static void a_skipped_step_leaves_every_byte(void **state) {
    DType dtype = op_dtype(state);
    op_begin(shape(dtype), "adamw_update of a skipped step");
    State s = make_state(dtype, DTYPE_FP32, 4099, dtype != DTYPE_FP32);
    s.grad.v[17] = (double)NAN;
    op_upload(&s.grad);
    AdamWTensor tensor = tensor_of(s, 0.1f);
    const OpTensor touched[] = {s.weight, s.m, s.v, s.master};
    int count = s.master.v ? 4 : 3;
    uint64_t before = 0, after = 0;
    for (int i = 0; i < count; i++) before = op_digest(before, touched[i]);
    adamw_update(&tensor, 1, params, control_with(1.0f, SKIP_NONFINITE));
    for (int i = 0; i < count; i++) after = op_digest(after, touched[i]);
    assert_true(before == after);
    op_end();
}

// ------------------------------------------------------------------------------------------------ stochastic rounding

// n equal weights of 1 are moved to 1 + fraction * ulp; returns how many rounded up, in values (n) what came out.
static int64_t round_many(DType dtype, int64_t n, double fraction, AdamWParams p, double *values) {
    double ulp = dtype == DTYPE_BF16 ? 0x1p-7 : 0x1p-10;
    op_begin(shape(dtype), "stochastic rounding of 1 + %g ulp", fraction);
    State s = {.weight = op_inout(dtype, "weight", DIMS(n), 0.0), .grad = op_input(DTYPE_FP32, "grad", DIMS(n), 0.0)};
    s.m = op_inout(DTYPE_FP32, "m", DIMS(n), 0.0), s.v = op_inout(DTYPE_FP32, "v", DIMS(n), 0.0);
    for (int64_t i = 0; i < n; i++) s.weight.v[i] = 1.0, s.grad.v[i] = -1.0;
    op_upload(&s.weight), op_upload(&s.grad);
    AdamWTensor tensor = tensor_of(s, 0.0f);
    p.learning_rate = (float)(fraction * ulp), p.eps = 1e-8f; // the direction is -1 on the first step
    adamw_update(&tensor, 1, p, control_with(1.0f, SKIP_NONE));
    memcpy(values, op_download(s.weight), (size_t)n * sizeof *values);
    op_end();
    int64_t up = 0;
    for (int64_t i = 0; i < n; i++) {
        if (values[i] != 1.0 && values[i] != 1.0 + ulp)
            op_fail("%g is no neighbour of 1 + %g ulp", values[i], fraction);
        up += values[i] != 1.0;
    }
    return up;
}

enum { NUM_ROUNDED = 65536 };

static void stochastic_rounding_is_unbiased(void **state) {
    DType dtype = op_dtype(state);
    if (dtype == DTYPE_FP32) return; // nothing is rounded
    static double values[NUM_ROUNDED];
    AdamWParams p = params;
    p.step = 1, p.seed = op_seed();
    // n independent draws that round up with probability f: the share has a standard deviation of sqrt(f (1-f) / n),
    // and leaves six of them once in 5e8 runs.
    static const double fractions[] = {0.0625, 0.3, 0.5, 0.9};
    for (int i = 0; i < 4; i++) {
        double f = fractions[i], share = (double)round_many(dtype, NUM_ROUNDED, f, p, values) / NUM_ROUNDED;
        double limit = 6.0 * sqrt(f * (1.0 - f) / NUM_ROUNDED);
        if (fabs(share - f) > limit) op_fail("%g rounded up in a share of %g (limit %g)", f, share, limit);
    }
}

static void stochastic_rounding_depends_on_seed_and_step_alone(void **state) {
    DType dtype = op_dtype(state);
    if (dtype == DTYPE_FP32) return; // nothing is rounded
    static double first[NUM_ROUNDED], second[NUM_ROUNDED];
    AdamWParams p = params;
    p.step = 1, p.beta1 = p.beta2 = 0.0f; // without memory the direction is -1 at every step
    round_many(dtype, NUM_ROUNDED, 0.5, p, first);
    round_many(dtype, NUM_ROUNDED, 0.5, p, second);
    assert_memory_equal(first, second, sizeof first);
    p.seed++;
    round_many(dtype, NUM_ROUNDED, 0.5, p, second);
    assert_memory_not_equal(first, second, sizeof first);
    p.seed--, p.step++;
    round_many(dtype, NUM_ROUNDED, 0.5, p, second);
    assert_memory_not_equal(first, second, sizeof first);
}

// 1 + 5/16 ulp is exact in fp32: it goes up exactly where the element's half-word is at least 11/16 of 2^16.
static void stochastic_rounding_adds_the_documented_bits(void **state) {
    DType dtype = op_dtype(state);
    if (dtype == DTYPE_FP32) return; // nothing is rounded
    static double values[NUM_ROUNDED];
    AdamWParams p = params;
    p.step = 7, p.beta1 = p.beta2 = 0.0f; // without memory the direction is -1 at every step
    round_many(dtype, NUM_ROUNDED, 0.3125, p, values);
    for (int64_t e = 0; e < NUM_ROUNDED; e++) {
        Philox words = philox(p.seed, STREAM_ROUNDING, ((uint64_t)p.step << 40) + (uint64_t)e / 8);
        uint32_t half_word = words.v[e % 8 / 2] >> (e % 2 * 16) & 0xFFFFu;
        if ((values[e] > 1.0) != (half_word >= 65536u * 11 / 16)) op_fail("element %d", (int)e);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        OP_TEST(gradient_sumsq_matches),
        OP_TEST(gradient_sumsq_of_many_unaligned_tensors_matches),
        OP_TEST(a_nonfinite_gradient_shows_in_its_entry_only),
        cmocka_unit_test_teardown(step_control_update_decides_as_the_host_would, op_teardown),
        OP_TEST(adamw_update_matches),
        OP_TEST(adamw_update_of_many_unaligned_tensors_matches),
        OP_TEST(the_weight_is_the_master_rounded_to_nearest),
        OP_TEST(a_skipped_step_leaves_every_byte),
        OP_TEST(stochastic_rounding_is_unbiased),
        OP_TEST(stochastic_rounding_depends_on_seed_and_step_alone),
        OP_TEST(stochastic_rounding_adds_the_documented_bits),
    };
    return cmocka_run_group_tests(tests, op_group_setup, op_group_teardown);
}
