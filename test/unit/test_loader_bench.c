// What a model waits for a loader, from the times of its reads: by hand.
#include "llmc/run/loader_bench.h"
#include "test/test.h"

#include <math.h>

enum { COUNT = 1000 };
static double fill[COUNT];

static double share(int ring, double step) { return loader_wait_share(fill, COUNT, ring, step); }

static void fill_with(double seconds) {
    for (int i = 0; i < COUNT; i++) fill[i] = seconds;
}

#define ASSERT_SHARE(actual, expected) assert_true(fabs((actual) - (expected)) < 1e-9)

TEST(a_reader_that_is_fast_enough_is_never_waited_for) {
    fill_with(1);
    ASSERT_SHARE(share(4, 3), 0);
    ASSERT_SHARE(share(3, 3), 0);
    ASSERT_SHARE(share(4, 1), 0);
}

// The buffer of the batch before may still be copied, so with two the reader begins when the model asks.
TEST(with_a_ring_of_two_each_batch_is_waited_for) {
    fill_with(1);
    ASSERT_SHARE(share(2, 3), 0.25);
    ASSERT_SHARE(share(2, 1), 0.5);
}

TEST(a_slow_reader_sets_the_pace) {
    fill_with(4);
    // Each step takes 4 s instead of 1.
    for (int ring = 3; ring <= 8; ring++) ASSERT_SHARE(share(ring, 1), 0.75);
}

// The buffer for batch 500 is free when batch 502 - R is asked for, R - 2 steps before batch 500 is.
TEST(a_ring_hides_one_slow_read_as_far_as_it_goes) {
    for (int ring = 3; ring <= 8; ring++) {
        fill_with(0);
        fill[500] = ring - 2;
        ASSERT_SHARE(share(ring, 1), 0);
        fill[500] = ring - 2 + 0.5;
        ASSERT_SHARE(share(ring, 1), 0.5 / (COUNT - ring + 0.5));
    }
}

TEST(no_batch_is_left_to_wait_for) {
    fill_with(1);
    ASSERT_SHARE(loader_wait_share(fill, 4, 4, 1), 0);
    ASSERT_SHARE(loader_wait_share(fill, 0, 2, 1), 0);
}
