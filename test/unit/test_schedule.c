// The learning rate schedule: its ends are exact, its shape is monotonic, odd cases stay finite.
#include "llmc/train/schedule.h"
#include "test/test.h"

#include <math.h>

static const ScheduleKind KINDS[] = {SCHEDULE_COSINE, SCHEDULE_LINEAR, SCHEDULE_CONSTANT,
                                     SCHEDULE_WSD, SCHEDULE_TRAPEZOID};
enum { NUM_KINDS = sizeof KINDS / sizeof KINDS[0] };

static Schedule schedule(ScheduleKind kind, double f, int64_t warmup, int64_t total) {
    return (Schedule){
        .kind = kind, .max_lr = 6e-4, .final_fraction = f, .warmup = warmup, .total = total};
}

TEST(the_last_step_has_the_final_lr_to_the_last_bit) {
    const double fractions[] = {0.0, 0.1, 1.0 / 3.0, 0.7, 1.0};
    const int64_t totals[] = {1, 2, 3, 10, 997, 100000};
    for (int k = 0; k < NUM_KINDS; k++) {
        if (KINDS[k] == SCHEDULE_CONSTANT) continue;
        for (size_t i = 0; i < 30; i++) {
            Schedule s = schedule(KINDS[k], fractions[i / 6], totals[i % 6] / 10, totals[i % 6]);
            assert_true(schedule_lr(&s, s.total - 1) == s.max_lr * s.final_fraction);
            assert_true(schedule_lr(&s, s.total + 1000) == s.max_lr * s.final_fraction);
        }
    }
}

TEST(warm_up_is_linear_and_reaches_the_maximum_exactly) {
    for (int k = 0; k < NUM_KINDS; k++) {
        Schedule s = schedule(KINDS[k], 0.1, 7, 100);
        assert_true(schedule_lr(&s, -5) == schedule_lr(&s, 0));

        for (int64_t step = 0; step < 7; step++) {
            // one division and one product: two roundings of half an ulp, relative error below
            // 2^-52
            double expected = s.max_lr * (double)(step + 1) / 7.0;
            assert_true(fabs(schedule_lr(&s, step) - expected) <= 0x1p-51 * expected);
        }

        assert_true(schedule_lr(&s, 6) == s.max_lr);
        assert_true(schedule_lr(&s, 7) == s.max_lr);
    }
}

TEST(after_the_warm_up_it_never_rises_and_stays_between_its_ends) {
    for (int k = 0; k < NUM_KINDS; k++)
        for (int64_t total = 1; total < 60; total++)
            for (int64_t warmup = 0; warmup < total; warmup += 1 + total / 7) {
                Schedule s = schedule(KINDS[k], 0.1, warmup, total);
                for (int64_t step = warmup; step < total; step++) {
                    double lr = schedule_lr(&s, step);
                    assert_true(lr <= s.max_lr && lr >= s.max_lr * s.final_fraction);
                    if (step > warmup) assert_true(lr <= schedule_lr(&s, step - 1));
                }
            }
}

TEST(the_formulas_hold_in_the_middle) {
    // 101 steps, no warm-up: step 50 is p = 1/2. A dozen roundings: 1e-15 relative is ample, 1e-12
    // is asked.
    const double f = 0.2, max = 6e-4, tolerance = 1e-12 * max;
    Schedule cosine = schedule(SCHEDULE_COSINE, f, 0, 101);
    assert_true(fabs(schedule_lr(&cosine, 50) - max * (f + (1 - f) * 0.5)) < tolerance);
    assert_true(fabs(schedule_lr(&cosine, 25) - max * (f + (1 - f) * (1 + sqrt(0.5)) / 2)) <
                tolerance);
    Schedule linear = schedule(SCHEDULE_LINEAR, f, 0, 101);
    assert_true(fabs(schedule_lr(&linear, 50) - max * (1 - (1 - f) * 0.5)) < tolerance);
    Schedule constant = schedule(SCHEDULE_CONSTANT, f, 0, 101);
    assert_true(schedule_lr(&constant, 50) == max && schedule_lr(&constant, 100) == max);
}

TEST(wsd_decays_over_the_last_fifth) {
    Schedule s = schedule(SCHEDULE_WSD, 0.0, 10, 1000);
    assert_true(schedule_lr(&s, 799) == s.max_lr);
    assert_true(schedule_lr(&s, 800) < s.max_lr);
    // step 849 is a quarter of the way from 799 to 999: 1 - sqrt(1/4) is left
    assert_true(fabs(schedule_lr(&s, 849) - 0.5 * s.max_lr) < 1e-12 * s.max_lr);
}

TEST(trapezoid_decays_linearly_over_the_last_65_percent) {
    Schedule s = schedule(SCHEDULE_TRAPEZOID, 0.05, 10, 1000);
    assert_true(schedule_lr(&s, 349) == s.max_lr);
    assert_true(schedule_lr(&s, 350) < s.max_lr);
    // step 674 is half of the way from 349 to 999: half of the 95% are left
    assert_true(fabs(schedule_lr(&s, 674) - (0.05 + 0.95 * 0.5) * s.max_lr) < 1e-12 * s.max_lr);
}

TEST(odd_lengths_give_finite_rates) {
    const int64_t pairs[][2] = {{0, 0}, {0, 1}, {1, 1}, {5, 1}, {5, 5},
                                {9, 5}, {5, 6}, {0, 2}, {1, 2}, {700, 0}};
    for (int k = 0; k < NUM_KINDS; k++)
        for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
            Schedule s = schedule(KINDS[k], 0.1, pairs[i][0], pairs[i][1]);
            for (int64_t step = -1; step < 12; step++) {
                double lr = schedule_lr(&s, step);
                assert_true(isfinite(lr) && lr >= 0.0 && lr <= s.max_lr);
            }
        }
}

TEST(a_warm_up_beyond_the_run_only_rises) {
    Schedule s = schedule(SCHEDULE_COSINE, 0.0, 10, 5);
    assert_true(schedule_lr(&s, 4) == s.max_lr * 0.5);
    assert_true(schedule_lr(&s, 400) == s.max_lr * 0.5);
}

TEST(a_peak_or_an_end_that_no_step_has_is_known) {
    const struct {
        ScheduleKind kind;
        double final_fraction;
        int64_t warmup, total;
        bool peak, end;
    } cases[] = {
        {SCHEDULE_COSINE, 0.1, 0, 1, false, true},    {SCHEDULE_COSINE, 1, 0, 1, true, true},
        {SCHEDULE_CONSTANT, 0.1, 0, 1, true, true},   {SCHEDULE_COSINE, 0.1, 0, 2, true, true},
        {SCHEDULE_LINEAR, 0.1, 4, 4, true, false},    {SCHEDULE_LINEAR, 0.1, 3, 4, true, true},
        {SCHEDULE_CONSTANT, 0.1, 5, 4, false, false}, {SCHEDULE_WSD, 0, 2, 100, true, true},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const Schedule s =
            schedule(cases[i].kind, cases[i].final_fraction, cases[i].warmup, cases[i].total);
        assert_int_equal(schedule_reaches_peak(&s), cases[i].peak);
        assert_int_equal(schedule_reaches_end(&s), cases[i].end);
    }
}
