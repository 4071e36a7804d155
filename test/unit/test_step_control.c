// The decision at the end of a step: what is skipped, what is clipped, how the windows and the loss
// scale move.

#include "llmc/step_control.h"
#include "test/test.h"

static const StepLimits NO_LIMITS = {0};

// One step with a single gradient tensor of this norm (before the loss scale) and this mean loss
// over 10 tokens.
static void step(StepControl *c, float loss, float norm, StepLimits limits) {
    float scaled = norm * c->loss_scale, sumsq = scaled * scaled;
    step_control_decide(c, &sumsq, 1, 10.0 * (double)loss, 10, limits);
}

// Fills both windows: losses 3 +- 0.1 and norms 1 +- 0.1 in turn, so mean 3 and 1, standard
// deviation 0.1.
static StepControl with_full_windows(void) {
    StepControl c = step_control_initial(1.0f);
    for (int i = 0; i < OUTLIER_WINDOW; i++) {
        float sign = i % 2 ? 1.0f : -1.0f;
        step(&c, 3.0f + 0.1f * sign, 1.0f + 0.1f * sign, NO_LIMITS);
    }
    return c;
}

static int window_holds(const OutlierWindow *w, float x) {
    int found = 0;
    for (int i = 0; i < w->count; i++) found += w->values[i] == x;
    return found;
}

// ----------------------------------------------------------------------------- what the host reads

TEST(the_loss_is_the_mean_and_the_norm_is_global) {
    StepControl c = step_control_initial(1.0f);
    const float sumsq[] = {9.0f, 0.0f, 16.0f};
    step_control_decide(&c, sumsq, 3, 21.0, 7, NO_LIMITS);
    assert_true(c.loss == 3.0f && c.norm == 5.0f);
    assert_int_equal(c.skip, SKIP_NONE);
    assert_int_equal(c.bad_tensor, -1);
    assert_true(c.grad_factor == 1.0f);
}

TEST(the_loss_scale_is_divided_out_and_a_gradient_above_the_limit_scaled_to_it) {
    static const struct {
        float loss_scale, clip, norm, grad_factor;
    } cases[] = {{1024, 0, 5, 1.0f / 1024},
                 {4, 1, 8, 0.25f / 8},
                 {4, 1, 0.5f, 0.25f}}; // powers of two: exact
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        StepControl c = step_control_initial(cases[i].loss_scale);
        step(&c, 3.0f, cases[i].norm, (StepLimits){.clip = cases[i].clip});
        assert_true(c.norm == cases[i].norm); // before clipping
        assert_true(c.grad_factor == cases[i].grad_factor);
    }
}

// -------------------------------------------------------------------------------------- not finite

TEST(what_is_not_finite_skips_and_names_the_first_tensor) {
    StepControl c = step_control_initial(1.0f);
    const float sumsq[] = {1.0f, 2.0f, NAN, INFINITY};
    step_control_decide(&c, sumsq, 4, 30.0, 10, NO_LIMITS);
    assert_int_equal(c.skip, SKIP_NONFINITE);
    assert_int_equal(c.bad_tensor, 2);
    assert_int_equal(c.skipped, 1);

    step(&c, 3.0f, 1.0f, NO_LIMITS);
    assert_int_equal(c.skip, SKIP_NONE);
    assert_int_equal(c.bad_tensor, -1);
    assert_int_equal(c.skipped, 1);

    step(&c, NAN, 1.0f, NO_LIMITS); // a loss is of no tensor
    assert_int_equal(c.skip, SKIP_NONFINITE);
    assert_int_equal(c.bad_tensor, -1);
}

TEST(values_that_are_not_finite_stay_out_of_the_windows) {
    StepControl c = with_full_windows(), before = c;
    step(&c, INFINITY, 1.0f, NO_LIMITS);
    step(&c, 3.0f, INFINITY, NO_LIMITS);
    assert_int_equal(c.skipped, 2);
    assert_memory_equal(&c.loss_window, &before.loss_window, sizeof c.loss_window);
    assert_memory_equal(&c.norm_window, &before.norm_window, sizeof c.norm_window);
}

// ---------------------------------------------------------------------------------------- outliers

TEST(nothing_is_an_outlier_before_the_window_is_full) {
    StepControl c = step_control_initial(1.0f);
    const StepLimits limits = {.loss_z_limit = 1.0f, .norm_z_limit = 1.0f};
    for (int i = 0; i < OUTLIER_WINDOW; i++) {
        step(&c, i % 5 ? 3.0f : 300.0f, i % 7 ? 1.0f : 100.0f, limits);
        assert_int_equal(c.skip, SKIP_NONE);
        assert_true(c.loss_z == 0.0f && c.norm_z == 0.0f);
    }
}

TEST(z_scores_are_taken_against_the_window_before_the_value_enters) {
    StepControl c = with_full_windows();
    step(&c, 3.5f, 1.3f, NO_LIMITS);
    // (3.5 - 3) / 0.1 and (1.3 - 1) / 0.1; the window holds fp32 values, 1e-7 of 3 beside a
    // deviation of 0.1: 1e-5.
    assert_float_equal(c.loss_z, 5.0f, 1e-4f);
    assert_float_equal(c.norm_z, 3.0f, 1e-4f);
}

TEST(outliers_of_loss_and_norm_are_skipped_when_asked_for) {
    static const struct {
        float loss, norm;
        StepLimits limits;
        int skip;
    } cases[] = {
        {3.5f, 1.0f, {.loss_z_limit = 6.0f}, SKIP_NONE},
        {3.5f, 1.0f, {.loss_z_limit = 4.0f}, SKIP_LOSS_OUTLIER},
        {3.0f, 1.5f, {.norm_z_limit = 4.0f}, SKIP_NORM_OUTLIER},
        {2.0f, 0.5f, {.loss_z_limit = 4.0f, .norm_z_limit = 4.0f}, SKIP_NONE}}; // falls are welcome

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        StepControl c = with_full_windows();
        step(&c, cases[i].loss, cases[i].norm, cases[i].limits);
        assert_int_equal(c.skip, cases[i].skip);
        assert_int_equal(c.skipped, c.skip != SKIP_NONE);
    }
}

TEST(skipped_outliers_enter_the_window) {
    StepControl c = with_full_windows();
    const StepLimits limits = {.loss_z_limit = 4.0f};
    step(&c, 5.0f, 1.0f, limits);
    assert_int_equal(c.skip, SKIP_LOSS_OUTLIER);
    assert_int_equal(window_holds(&c.loss_window, 5.0f), 1);
    // so a lasting change of level is accepted in time
    int steps = 1;
    while (c.skip != SKIP_NONE && steps < OUTLIER_WINDOW) step(&c, 5.0f, 1.0f, limits), steps++;
    assert_in_range(steps, 2, OUTLIER_WINDOW / 4);
}

TEST(the_oldest_value_leaves_the_window) {
    StepControl c = step_control_initial(1.0f);
    step(&c, 7.0f, 1.0f, NO_LIMITS);
    for (int i = 1; i < OUTLIER_WINDOW; i++) step(&c, 3.0f, 1.0f, NO_LIMITS);
    assert_int_equal(window_holds(&c.loss_window, 7.0f), 1);
    step(&c, 3.0f, 1.0f, NO_LIMITS);
    assert_int_equal(window_holds(&c.loss_window, 7.0f), 0);
    assert_int_equal(c.loss_window.count, OUTLIER_WINDOW);
}

TEST(a_window_of_equal_values_has_no_outliers) {
    StepControl c = step_control_initial(1.0f);
    for (int i = 0; i < OUTLIER_WINDOW; i++) step(&c, 3.0f, 1.0f, NO_LIMITS);
    // deviation 0: z is 0, not inf
    step(&c, 4.0f, 2.0f, (StepLimits){.loss_z_limit = 1.0f, .norm_z_limit = 1.0f});
    assert_int_equal(c.skip, SKIP_NONE);
}

// -------------------------------------------------------------------------------------- loss scale

// After each step; the norms are those before the scale.
TEST(the_loss_scale_halves_with_each_overflow_and_doubles_after_enough_finite_steps_in_a_row) {
    static const struct {
        int interval;
        float initial, norms[9], scales[9];
    } cases[] = {
        {3, 4, {INFINITY, INFINITY, INFINITY}, {2, 1, 1}}, // down to one
        {3, 8, {1, 1, 1, 1, 1, NAN, 1, 1, 1}, {8, 8, 16, 16, 16, 8, 8, 8, 16}},
        {1, 0x1p23f, {0x1p-20f, 0x1p-20f, 0x1p-20f}, {0x1p24f, 0x1p24f, 0x1p24f}}, // and no further
        {0, 8, {INFINITY, 1, 1, 1, 1, 1, 1, 1, 1}, {8, 8, 8, 8, 8, 8, 8, 8, 8}},   // fixed
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        StepControl c = step_control_initial(cases[i].initial);
        for (int k = 0; k < 9 && cases[i].scales[k] > 0; k++) {
            const float before = c.loss_scale;
            step(&c, 3.0f, cases[i].norms[k],
                 (StepLimits){.scale_growth_interval = cases[i].interval});
            assert_true(c.loss_scale == cases[i].scales[k]);
            assert_int_equal(c.skip, isfinite(cases[i].norms[k]) ? SKIP_NONE : SKIP_NONFINITE);
            // that of the gradients at hand
            if (c.skip == SKIP_NONE) assert_true(c.grad_factor == 1.0f / before);
        }
    }
}

TEST(a_fixed_loss_scale_never_moves) {
    StepControl c = step_control_initial(8.0f);
    for (int i = 0; i < 5000; i++) step(&c, 3.0f, 1.0f, NO_LIMITS);
    assert_true(c.loss_scale == 8.0f);
}

// ----------------------------------------------------------------------------------------- updates

// The factors are those of pow, rounded to fp32: an error of 1e-14 in fp64 would show in one value
// of 10^6 or fewer.
TEST(factors_of_an_update_are_functions_of_its_number) {
    const StepLimits limits = {
        .moments = {{0.9f, 0.999f, 0}, {0.8f, 0.95f, 0}, {0.7f, 0.9f, 0}, {0.96f, 0.99f, 0}}};
    StepControl c = step_control_initial(1.0f);

    for (int update = 1; update <= 20000; update++) {
        step(&c, 3.0f, 1.0f, limits);
        const double take = pow(update, -0.8);
        assert_int_equal(c.updates, update);
        for (int i = 0; i < UPDATE_GROUPS; i++) {
            const double b1 = (double)limits.moments[i].beta1, b2 = (double)limits.moments[i].beta2;
            assert_true(c.m_correction[i] == (float)(1.0 / (1.0 - pow(b1, update))));
            assert_true(c.v_correction[i] == (float)(1.0 / (1.0 - pow(b2, update))));
        }
        assert_true(c.keep == (float)(1.0 - take) && c.take == (float)take);
    }

    c.updates = INT32_MAX - 1; // the last one there is
    step(&c, 3.0f, 1.0f, limits);
    for (int i = 0; i < UPDATE_GROUPS; i++)
        assert_true(c.m_correction[i] == 1.0f && c.v_correction[i] == 1.0f);
    assert_float_equal(c.take / (float)pow(INT32_MAX, -0.8), 1.0f, 1e-6f);
}

TEST(skipped_steps_of_every_kind_are_no_updates) {
    StepControl c = with_full_windows();
    const StepLimits limits = {
        .loss_z_limit = 4.0f, .norm_z_limit = 4.0f, .moments = {{0.9f, 0.95f, 0}}};

    step(&c, 3.0f, 1.0f, limits);
    const StepControl before = c;
    step(&c, NAN, 1.0f, limits);
    step(&c, 3.0f, INFINITY, limits);
    step(&c, 4.0f, 1.0f, limits);
    step(&c, 3.0f, 2.0f, limits);

    assert_int_equal(c.skipped, 4);
    assert_int_equal(c.updates, before.updates);
    assert_true(c.m_correction[0] == before.m_correction[0] &&
                c.v_correction[0] == before.v_correction[0]);

    step(&c, 3.0f, 1.0f, limits);
    assert_int_equal(c.updates, before.updates + 1);
    assert_true(c.v_correction[0] < before.v_correction[0]);
}
