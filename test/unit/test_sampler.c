// Sampling from logits: temperature, top-k, reproducibility.
#include "llmc/train/sampler.h"

// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
// clang-format on

static const float logits[5] = {1.0f, 3.0f, 2.0f, -4.0f, 2.5f};

static void temperature_zero_takes_the_most_likely_token(void **state) {
    (void)state;
    SamplerOptions o = {.temperature = 0.0, .seed = 1};
    for (uint64_t i = 0; i < 20; i++) assert_int_equal(sample_from_logits(logits, 5, &o, i), 1);
}

static void top_k_leaves_out_the_rest(void **state) {
    (void)state;
    SamplerOptions o = {.temperature = 5.0, .top_k = 2, .seed = 1};
    int seen[5] = {0};
    for (uint64_t i = 0; i < 400; i++) seen[sample_from_logits(logits, 5, &o, i)]++;
    assert_true(seen[1] > 0 && seen[4] > 0);
    assert_int_equal(seen[0] + seen[2] + seen[3], 0);
}

static void frequencies_follow_the_softmax(void **state) {
    (void)state;
    enum { N = 20000 };
    SamplerOptions o = {.temperature = 1.5, .seed = 3, .stream = 9};
    int seen[5] = {0};
    double p[5], sum = 0;
    for (int i = 0; i < 5; i++) sum += p[i] = exp(logits[i] / 1.5);
    for (uint64_t i = 0; i < N; i++) seen[sample_from_logits(logits, 5, &o, i)]++;
    for (int i = 0; i < 5; i++) { // five standard deviations of a binomial count
        const double expected = N * p[i] / sum, sd = sqrt(expected * (1 - p[i] / sum));
        assert_true(fabs(seen[i] - expected) < 5 * sd + 1);
    }
}

static void a_sample_is_a_function_of_seed_stream_and_place(void **state) {
    (void)state;
    SamplerOptions a = {.temperature = 2.0, .seed = 3, .stream = 1}, b = a;
    int different = 0;
    b.stream = 2;
    for (uint64_t i = 0; i < 100; i++) {
        assert_int_equal(sample_from_logits(logits, 5, &a, i), sample_from_logits(logits, 5, &a, i));
        different += sample_from_logits(logits, 5, &a, i) != sample_from_logits(logits, 5, &b, i);
    }
    assert_true(different > 0);
}

static void logits_that_are_not_finite_still_give_a_token(void **state) {
    (void)state;
    const float bad[3] = {NAN, NAN, NAN}, huge[3] = {INFINITY, 0.0f, -INFINITY};
    SamplerOptions o = {.temperature = 1.0, .top_k = 2};
    for (uint64_t i = 0; i < 20; i++) {
        const int32_t a = sample_from_logits(bad, 3, &o, i), b = sample_from_logits(huge, 3, &o, i);
        assert_true(a >= 0 && a < 3 && b >= 0 && b < 3);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(temperature_zero_takes_the_most_likely_token),
        cmocka_unit_test(top_k_leaves_out_the_rest),
        cmocka_unit_test(frequencies_follow_the_softmax),
        cmocka_unit_test(a_sample_is_a_function_of_seed_stream_and_place),
        cmocka_unit_test(logits_that_are_not_finite_still_give_a_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
