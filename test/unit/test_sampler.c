// Sampling from logits: temperature, top-k, top-p, reproducibility, logits that are not finite.
// Frequencies are held against exact probabilities, computed here by sorting; where chance is
// involved the bound is five standard deviations of the binomial count, which a right sampler
// misses once in 1.7 million comparisons.
#include "llmc/train/sampler.h"
#include "test/test.h"

#include <math.h>

enum { MANY = 64, DRAWS = 20000 };
static const float logits[5] = {1.0f, 3.0f, 2.0f, -4.0f, 2.5f};

static int likeliest_first(const void *a, const void *b, void *of) {
    const float *l = *(const float **)of;
    const int x = *(const int *)a, y = *(const int *)b;
    return l[x] != l[y] ? (l[x] < l[y]) - (l[x] > l[y]) : x - y;
}

// The definition: sort, softmax of the first k, the shortest beginning that sums to top_p.
static void probabilities(const float *l, int V, const SamplerOptions *o, double *p) {
    int order[MANY], n = V, kept = 0;
    for (int i = 0; i < V; i++) order[i] = i, p[i] = 0.0;
    qsort_r(order, (size_t)V, sizeof *order, likeliest_first, &l);
    if (o->top_k > 0 && o->top_k < V) n = (int)o->top_k;
    double sum = 0.0, mass = 0.0;
    for (int i = 0; i < n; i++) sum += exp((l[order[i]] - l[order[0]]) / o->temperature);
    while (kept < n && (o->top_p >= 1.0 || mass < o->top_p * sum))
        mass += exp((l[order[kept++]] - l[order[0]]) / o->temperature);
    for (int i = 0; i < kept; i++)
        p[order[i]] = exp((l[order[i]] - l[order[0]]) / o->temperature) / mass;
}

static void assert_frequencies(const float *l, int V, const SamplerOptions *o) {
    int seen[MANY] = {0};
    double p[MANY];
    probabilities(l, V, o, p);

    for (uint64_t i = 0; i < DRAWS; i++) seen[sample_from_logits(l, V, o, i)]++;
    for (int i = 0; i < V; i++) {
        const double expected = DRAWS * p[i], bound = 5.0 * sqrt(expected * (1.0 - p[i]));
        if (p[i] == 0.0 && seen[i] > 0)
            fail_msg("token %d is not in the set and was drawn %d times", i, seen[i]);
        if (fabs(seen[i] - expected) > bound + 1.0)
            fail_msg("token %d was drawn %d times, expected %.1f +- %.1f", i, seen[i], expected,
                     bound);
    }
}

// 64 logits of about N(0, 2^2) without a pattern; three of them are equal.
static void make_logits(float *l) {
    uint32_t x = 12345;
    for (int i = 0; i < MANY; i++) {
        double sum = 0.0;
        for (int k = 0; k < 12; k++)
            sum += (double)((x = x * 1664525u + 1013904223u) >> 8) * 0x1p-24;
        l[i] = (float)(2.0 * (sum - 6.0));
    }
    l[7] = l[40] = l[41];
}

TEST(frequencies_follow_the_softmax) {
    float l[MANY];
    make_logits(l);
    const double temperatures[] = {0.3, 1.0, 1.5, 20.0};
    for (int i = 0; i < 4; i++) {
        SamplerOptions o = {.temperature = temperatures[i], .seed = 3, .stream = 9, .top_p = 1.0};
        assert_frequencies(logits, 5, &o);
        assert_frequencies(l, MANY, &o);
    }
}

TEST(top_k_and_top_p_leave_out_the_rest_and_keep_the_proportions) {
    float l[MANY];
    make_logits(l);
    const int64_t top_k[] = {0, 1, 2, 10, 63, 64, 100};
    const double top_p[] = {1e-6, 0.3, 0.5, 0.9, 0.999, 1.0};
    for (int k = 0; k < 7; k++)
        for (int p = 0; p < 6; p++) {
            SamplerOptions o = {
                .temperature = 1.2, .top_k = top_k[k], .top_p = top_p[p], .seed = 17};
            o.stream = (uint64_t)(k * 6 + p);
            assert_frequencies(l, MANY, &o);
        }
}

// sum over tokens of (seen - expected)^2 / expected has the chi-square distribution with V - 1
// degrees of freedom: mean 63, standard deviation sqrt(2 * 63) = 11.2; beyond 63 + 5 * 11.2 = 119
// lies 2e-5 of it.
TEST(the_whole_distribution_passes_a_chi_square_test) {
    float l[MANY];
    double p[MANY], chi_square = 0.0;
    int seen[MANY] = {0};

    make_logits(l);
    SamplerOptions o = {.temperature = 3.0, .top_p = 1.0, .seed = 5};
    probabilities(l, MANY, &o, p);

    for (uint64_t i = 0; i < 5 * DRAWS; i++) seen[sample_from_logits(l, MANY, &o, i)]++;
    for (int i = 0; i < MANY; i++) {
        const double expected = 5 * DRAWS * p[i];
        assert_true(expected > 5.0); // the usual condition of the test
        chi_square += (seen[i] - expected) * (seen[i] - expected) / expected;
    }

    if (chi_square > 119.0) fail_msg("chi-square is %.1f", chi_square);
}

TEST(among_equal_logits_the_lower_tokens_are_kept) {
    float equal[MANY];
    for (int i = 0; i < MANY; i++) equal[i] = 1.5f;
    SamplerOptions four = {.temperature = 1.0, .top_k = 4, .top_p = 1.0},
                   half = {.temperature = 1.0, .top_p = 0.5};

    int seen_by_k = 0, seen_by_p = 0;
    for (uint64_t i = 0; i < 1000; i++) {
        const int32_t a = sample_from_logits(equal, MANY, &four, i),
                      b = sample_from_logits(equal, MANY, &half, i);
        assert_in_range(a, 0, 3);
        assert_in_range(b, 0, MANY / 2 - 1);
        seen_by_k |= 1 << a;
        seen_by_p |= b == MANY / 2 - 1;
    }

    assert_int_equal(seen_by_k, 15);
    assert_int_equal(seen_by_p, 1);

    SamplerOptions greedy = {.temperature = 0.0, .top_p = 1},
                   tiny = {.temperature = 30.0, .top_p = 0x1p-20};
    for (uint64_t i = 0; i < 100; i++) { // the most likely token, and of equal ones the first
        assert_int_equal(sample_from_logits(equal, MANY, &greedy, i), 0);
        assert_int_equal(sample_from_logits(equal, MANY, &tiny, i), 0);
        assert_int_equal(sample_from_logits(logits, 5, &greedy, i), 1);
    }
}

TEST(the_order_of_the_logits_does_not_change_the_set) {
    float orders[3][MANY]; // rising, falling, organ pipes
    for (int i = 0; i < MANY; i++)
        orders[0][i] = (float)i, orders[1][i] = (float)-i,
        orders[2][i] = (float)(i < MANY / 2 ? i : MANY - i);
    SamplerOptions o = {.temperature = 8.0, .top_k = 20, .top_p = 0.7, .seed = 4};
    for (int i = 0; i < 3; i++) assert_frequencies(orders[i], MANY, &o);
}

// The long tail of a vocabulary: each token next to impossible, all of them together 50 of 100,000
// draws +- 5 * 7.07.
TEST(rare_tokens_together_are_drawn_as_often_as_they_should) {
    enum { V = 2000, N = 100000 };
    static float l[V];
    for (int i = 0; i < V; i++) l[i] = logf(2.5e-7f); // 1999 of them: 4.9975e-4
    l[77] = logf(1.0f - 4.9975e-4f);
    SamplerOptions o = {.temperature = 1.0, .top_p = 1.0, .seed = 8};
    int rare = 0;
    for (uint64_t i = 0; i < N; i++) rare += sample_from_logits(l, V, &o, i) != 77;
    const double expected = N * 4.9975e-4;
    if (fabs(rare - expected) > 5.0 * sqrt(expected)) fail_msg("%d, expected %.1f", rare, expected);
}

TEST(a_sample_is_a_function_of_seed_stream_and_place) {
    SamplerOptions a = {.temperature = 2.0, .seed = 3, .stream = 1, .top_p = 1.0}, b = a, c = a;
    int by_stream = 0, by_seed = 0;
    b.stream = 2, c.seed = 4;
    for (uint64_t i = 0; i < 100; i++) {
        assert_int_equal(sample_from_logits(logits, 5, &a, i),
                         sample_from_logits(logits, 5, &a, i));
        by_stream += sample_from_logits(logits, 5, &a, i) != sample_from_logits(logits, 5, &b, i);
        by_seed += sample_from_logits(logits, 5, &a, i) != sample_from_logits(logits, 5, &c, i);
    }
    assert_true(by_stream > 0 && by_seed > 0);
}

TEST(logits_that_are_not_finite_still_give_a_token) {
    const float bad[3] = {NAN, NAN, NAN}, lowest[3] = {-INFINITY, -INFINITY, -INFINITY};
    const float mixed[4] = {NAN, 0.0f, -INFINITY, NAN},
                huge[4] = {0.0f, INFINITY, -INFINITY, INFINITY};
    const double temperatures[] = {0.0, 1.0, 1e-300, 1e300};

    for (uint64_t i = 0; i < 96; i++) {
        SamplerOptions o = {.temperature = temperatures[i % 4], .top_k = (int64_t)(i / 4 % 3)};
        o.top_p = i % 2 ? 0.6 : 1.0;

        assert_int_equal(sample_from_logits(bad, 3, &o, i), 0);
        assert_int_equal(sample_from_logits(lowest, 3, &o, i), 0);
        assert_int_equal(sample_from_logits(mixed, 4, &o, i), 1);

        const int32_t token = sample_from_logits(huge, 4, &o, i);
        assert_true(token == 1 || token == 3);
    }
}
