// The data order: a permutation for every n and key, other orders for other keys and epochs,
// nothing favoured.

#include "llmc/data/dataloader.h"
#include "test/test.h"

#include <math.h>

// Every value of [0, n) exactly once.
static void assert_permutation(int64_t n, uint64_t key) {
    AUTO_FREE uint8_t *seen = calloc((size_t)n, 1);
    assert_non_null(seen);
    for (int64_t i = 0; i < n; i++) {
        int64_t x = shuffle_permute(i, n, key);
        assert_true(x >= 0 && x < n);
        assert_int_equal(seen[x]++, 0);
    }
}

TEST(every_n_is_permuted_for_many_keys) {
    for (int64_t n = 1; n <= 70; n++)
        for (uint64_t key = 0; key < 50; key++) assert_permutation(n, key * 0x123456789ABCDEFu);
    const int64_t sizes[] = {1000, 4095, 4096, 4097, 65535, 65536, 65537, 1000003};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) assert_permutation(sizes[i], 42 + i);
}

static int by_value(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

TEST(a_huge_n_stays_inside_and_never_collides) {
    enum { SAMPLES = 50000 };
    const int64_t sizes[] = {((int64_t)1 << 32) + 1, 1000000000007, ((int64_t)1 << 62) - 1};
    AUTO_FREE int64_t *values = malloc(SAMPLES * sizeof *values);
    assert_non_null(values);

    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        for (int64_t i = 0; i < SAMPLES; i++) {
            values[i] = shuffle_permute(i % 2 ? sizes[s] - 1 - i : i, sizes[s], 7);
            assert_true(values[i] >= 0 && values[i] < sizes[s]);
        }

        qsort(values, SAMPLES, sizeof *values, by_value);
        for (int i = 1; i < SAMPLES; i++) assert_true(values[i - 1] < values[i]);
    }
}

// How many of n positions hold the same value in two random permutations: Poisson with mean 1 for
// large n. More than 15 has a probability below 1e-13.
static void assert_unrelated(int64_t same) { assert_in_range(same, 0, 15); }

TEST(other_keys_and_seeds_give_other_orders) {
    int64_t same_seed = 0;
    for (int64_t p = 0; p < 3000; p++)
        same_seed += shuffle_window(p, 3000, 1) == shuffle_window(p, 3000, 2);
    assert_unrelated(same_seed);

    for (uint64_t key = 0; key < 20; key++) {
        int64_t same = 0, same_high = 0;
        for (int64_t i = 0; i < 5000; i++) {
            int64_t x = shuffle_permute(i, 5000, key);
            same += x == shuffle_permute(i, 5000, key + 1);
            same_high += x == shuffle_permute(i, 5000, key ^ (uint64_t)1 << 63);
        }
        assert_unrelated(same);
        assert_unrelated(same_high);
    }
}

TEST(every_epoch_reads_everything_once_in_another_order) {
    enum { N = 3000, EPOCHS = 4 };
    static int64_t order[EPOCHS][N];

    for (int e = 0; e < EPOCHS; e++) {
        static uint8_t seen[N];
        for (int64_t i = 0; i < N; i++) seen[i] = 0;
        for (int64_t i = 0; i < N; i++) {
            order[e][i] = shuffle_window((int64_t)e * N + i, N, 1337);
            assert_in_range(order[e][i], 0, N - 1);
            assert_int_equal(seen[order[e][i]]++, 0);
        }

        for (int f = 0; f < e; f++) {
            int64_t same = 0;
            for (int i = 0; i < N; i++) same += order[e][i] == order[f][i];
            assert_unrelated(same);
        }
    }
}

// Chi-square of counts[n] against `expected` each. For a uniform source it has n-1 degrees of
// freedom and passes df + 2 sqrt(20 df) + 40 with probability below exp(-20) = 2e-9 (Laurent and
// Massart, 2000, lemma 1).
static void assert_uniform(const int64_t *counts, int64_t n, double expected) {
    double chi2 = 0, df = (double)(n - 1);
    for (int64_t i = 0; i < n; i++)
        chi2 += ((double)counts[i] - expected) * ((double)counts[i] - expected) / expected;
    assert_true(chi2 < df + 2 * sqrt(20 * df) + 40);
}

TEST(a_position_gets_every_window_equally_often) {
    enum { KEYS = 20000 };
    const int64_t sizes[] = {2, 3, 5, 7, 10, 17, 64, 100};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        for (int64_t p = 0, n = sizes[s]; p < n; p++) {
            int64_t counts[100] = {0};
            for (uint64_t seed = 0; seed < KEYS; seed++) counts[shuffle_window(p, n, seed)]++;
            assert_uniform(counts, n, (double)KEYS / (double)n);
        }
    }
}

TEST(neighbours_in_the_data_are_not_neighbours_in_the_order) {
    // The distance from one position to the next, modulo n, is any of 1..n-1: a shuffle that keeps
    // runs fails here.
    enum { N = 1 << 16, BINS = 64 };
    int64_t counts[BINS] = {0};
    for (int64_t p = 0; p + 1 < N; p++) {
        int64_t step = shuffle_window(p + 1, N, 99) - shuffle_window(p, N, 99);
        counts[((step + N) % N) * BINS / N]++;
    }
    assert_uniform(counts, BINS, (double)(N - 1) / BINS);
}

TEST(the_order_of_earlier_versions_is_kept) {
    // A checkpoint stores a position only: these values may never change.
    const int64_t expected[] = {436, 673, 202, 156, 190, 731, 322, 675};
    for (int64_t p = 0; p < 8; p++)
        assert_int_equal(shuffle_window(p + 995, 1000, 1337), expected[p]);
}
