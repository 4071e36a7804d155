// The end of the step before the update, against the specification: gradient_sumsq,
// step_control_update.
#include "dev/sim/sim_control.h"
#include "test/ops/op_cases.h"

TestFixture test_all = {op_group_setup, op_group_teardown};

enum { NUM_TENSORS = 5 };
// One element; less than a vector; no multiple of anything; beyond one block of any partial sum.
static const int64_t sizes[NUM_TENSORS] = {1, 7, 100, 4099, 70001};

static OpsShape shape(DType dtype) {
    return (OpsShape){
        .B = 8, .T = 16, .C = 64, .NH = 1, .Vp = 128, .num_tensors = NUM_TENSORS, .dtype = dtype};
}

// ---------------------------------------------------------------------------------- gradient_sumsq

// The last tensor has more parts than a warp has lanes.
OP_TEST(gradient_sumsq_matches) {
    static const int64_t large[] = {3, 600001};
    sumsq_case(dtype, sizes, NUM_TENSORS);
    op_begin_tensors_at(8);
    sumsq_case(dtype, sizes, NUM_TENSORS);
    sumsq_case(dtype, large, 2);
}

// Gradients of two dtypes in one call, as models with fp32 gradients of some tensors have them.
OP_TEST(gradient_sumsq_of_both_dtypes_matches) {
    op_begin(shape(dtype), "gradient_sumsq of both dtypes");
    UpdateTensor tensors[NUM_TENSORS] = {0};
    OpTensor sumsq = op_output(DTYPE_FP32, "sumsq", DIMS(NUM_TENSORS));
    for (int i = 0; i < NUM_TENSORS; i++) {
        OpTensor grad = op_input(i % 2 ? DTYPE_FP32 : dtype, "grad", DIMS(sizes[i]), 1.0);
        tensors[i].grad = grad.t, sumsq.v[i] = ref_sumsq(grad.v, sizes[i]);
    }
    sumsq_once(sumsq.t, tensors, NUM_TENSORS);
    op_check(sumsq, DTYPE_FP32);
    op_end();
}

// More tensors than a block has threads, which begin at any element of one buffer.
enum { NUM_SLICES = 300 };
static int64_t slice_size(int i) { return 1 + 13 * (i % 7) + (i == 200 ? 5000 : 0); }

static int64_t slices_size(void) {
    int64_t n = 0;
    for (int i = 0; i < NUM_SLICES; i++) n += slice_size(i);
    return n;
}

OP_TEST(gradient_sumsq_of_many_unaligned_tensors_matches) {
    OpsShape s = shape(dtype);
    s.num_tensors = NUM_SLICES;
    op_begin(s, "gradient_sumsq of slices");
    OpTensor whole = op_input(dtype, "grad", DIMS(slices_size()), 1.0);
    OpTensor sumsq = op_output(DTYPE_FP32, "sumsq", DIMS(NUM_SLICES));

    static UpdateTensor tensors[NUM_SLICES];
    for (int64_t i = 0, begin = 0; i < NUM_SLICES; begin += slice_size((int)i++)) {
        tensors[i].grad = tensor_slice_elements(whole.t, begin, slice_size((int)i));
        sumsq.v[i] = ref_sumsq(whole.v + begin, slice_size((int)i));
    }

    sumsq_once(sumsq.t, tensors, NUM_SLICES);
    op_check(sumsq, DTYPE_FP32);
    op_end();
}

// The bad element is the first, the last, or in the middle of a tensor; the other entries are as
// before.
OP_TEST(a_nonfinite_gradient_shows_in_its_entry_only) {
    static const float bad[3] = {INFINITY, -INFINITY, NAN};
    for (int which = 0; which < NUM_TENSORS; which++) {
        op_begin(shape(dtype), "gradient_sumsq with tensor %d not finite", which);
        UpdateTensor tensors[NUM_TENSORS] = {0};
        OpTensor sumsq = op_output(DTYPE_FP32, "sumsq", DIMS(NUM_TENSORS));
        for (int i = 0; i < NUM_TENSORS; i++) {
            OpTensor grad = op_input(dtype, "grad", DIMS(sizes[i]), 1.0);
            int64_t place[3] = {0, sizes[i] / 2, sizes[i] - 1};
            if (i == which) grad.v[place[which % 3]] = (double)bad[which % 3];
            op_upload(&grad);
            tensors[i].grad = grad.t;
        }

        sumsq_once(sumsq.t, tensors, NUM_TENSORS);
        const double *got = op_download(sumsq);
        for (int i = 0; i < NUM_TENSORS; i++) assert_true(isfinite(got[i]) == (i != which));
        op_end();
    }
}

// ----------------------------------------------------------------------------- step_control_update

// The op leaves behind what the shared function decides, on every path: plain, clipped, outlier,
// not finite.
static void step_control_case(int B) {
    enum { STEPS = OUTLIER_WINDOW + 8 };
    const StepLimits limits = {
        .clip = 1.5f, .loss_z_limit = 4.0f, .norm_z_limit = 4.0f, .scale_growth_interval = 50};
    op_begin(shape(DTYPE_FP32), "step_control_update of %d sequences", B);
    StepControl want = step_control_initial(1024.0f), got;
    Tensor control = op_control(want);
    OpTensor sumsq = op_inout(DTYPE_FP32, "sumsq", DIMS(NUM_TENSORS), 1.0);
    OpTensor losses = op_inout(DTYPE_FP32, "sequence_losses", DIMS(B), 1.0);
    int skipped = 0;

    for (int step = 0; step < STEPS; step++) {
        double norm = step == STEPS - 4 ? 100.0 : 1.0 + 0.7 * sin(step);
        float host_sumsq[NUM_TENSORS];
        double loss_sum = 0.0;

        for (int b = 0; b < B; b++)
            losses.v[b] = (step == STEPS - 2 ? 500.0 : 50.0) + sin(7.0 * step + b);
        for (int i = 0; i < NUM_TENSORS; i++)
            sumsq.v[i] = norm * norm * 1024.0 * 1024.0 / NUM_TENSORS;
        if (step % 60 == 59) sumsq.v[2] = (double)INFINITY;
        if (step == 20) losses.v[B - 1] = (double)NAN;

        op_upload(&sumsq), op_upload(&losses);
        for (int i = 0; i < NUM_TENSORS; i++) host_sumsq[i] = (float)sumsq.v[i];
        for (int b = 0; b < B; b++) loss_sum += losses.v[b];

        step_control_update(control, sumsq.t, losses.t, B * 16, limits);
        step_control_decide(&want, host_sumsq, NUM_TENSORS, loss_sum, B * 16, limits);
        op_read(&got, control);

        // z-scores are fp64 sums that a device may contract into fma; everything else is exact.
        if (want.loss_z != 0.0f)
            assert_true(fabsf(got.loss_z - want.loss_z) <= 1e-6f * fabsf(want.loss_z));
        if (want.norm_z != 0.0f)
            assert_true(fabsf(got.norm_z - want.norm_z) <= 1e-6f * fabsf(want.norm_z));
        got.loss_z = want.loss_z, got.norm_z = want.norm_z;
        assert_memory_equal(&got, &want, sizeof got);
        skipped += want.skip != SKIP_NONE;
    }

    assert_int_equal(skipped, 5); // steps 20, 59, 119, and the two outliers at the end
    op_end();
}

// There are as many sequences as in tests, and more than a block has threads.
TEST_WITH(step_control_update_decides_as_the_host_would, NULL, op_teardown) {
    step_control_case(8);
    step_control_case(300);
    for (uint64_t seed = 1; sim_set_schedule && seed <= 3;
         seed++) { // the order of the threads does not count
        sim_set_schedule(SIM_RANDOM, seed);
        step_control_case(300);
    }
    if (sim_set_schedule) sim_set_schedule(SIM_ANY_ORDER, 0);
}
