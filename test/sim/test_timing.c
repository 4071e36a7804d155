// cuda_choose on a clock that stands still but for the choices that are measured: which one it
// takes, how often it runs each, and what it leaves out.
#include "dev/sim/sim_control.h"
#include "llmc/cuda/tuning.h"
#include "llmc/ops.h"
#include "test/test.h"
#include <cuda_runtime_api.h>

#include "test/unit/device_fixture.h"

TestFixture test_all = {start_device, stop_device};

enum { MOST = 4 };

// Choices that take these times: in the first run, which loads kernels; in every third of the
// others; in the rest.
typedef struct {
    double first[MOST], third[MOST], usual[MOST];
    int fails; // number of the choice that does not run; 0: none
    int wrong; // number of the choice whose results are wrong; 0: none
    int runs[MOST], checks;
    double now;
} Choices;

static bool work(void *context, int i) {
    Choices *c = context;
    const int run = c->runs[i]++;
    c->now += run == 0 ? c->first[i] : run % 3 == 1 ? c->third[i] : c->usual[i];
    sim_set_clock(c->now);
    return c->fails == 0 || i != c->fails;
}

static bool is_right(void *context, int i) {
    Choices *c = context;
    c->checks++;
    return c->wrong == 0 || i != c->wrong;
}

static int choose(Choices *c, int count, bool timed) {
    sim_set_clock(0.0);
    const int choice = cuda_choose(count, timed, work, is_right, c);
    sim_set_clock(-1.0);
    return choice;
}
static int fastest(Choices *c, int count) { return choose(c, count, true); }

static Choices steady(double a, double b, double c) {
    return (Choices){.first = {a, b, c}, .third = {a, b, c}, .usual = {a, b, c}};
}

static void expect_runs(const Choices *c, int a, int b, int d) {
    const int expected[] = {a, b, d};
    for (int i = 0; i < 3; i++) assert_int_equal(c->runs[i], expected[i]);
}

// Besides the rounds each runs once, and a second time where nothing shows yet that the first was
// not slow.
TEST(the_fastest_is_taken_wherever_it_stands) {
    for (int i = 0; i < 3; i++) {
        Choices c = steady(1.0 - 0.1 * (i == 0), 1.0 - 0.1 * (i == 1), 1.0 - 0.1 * (i == 2));
        assert_int_equal(fastest(&c, 3), i);
        expect_runs(&c, 2 + 11, 1 + 11, 1 + 11); // 3 ms a round are little
    }
}

// A change of less than 0.5 % is not worth it: the same choice in every run is. Nor is one of less
// than 2 % of short times, which vary more.
TEST(the_first_is_kept_where_others_gain_nothing) {
    Choices c = steady(1.0, 0.998, 0.996), worth = steady(1.0, 0.994, 0.99);
    assert_int_equal(fastest(&c, 3), 0);
    assert_int_equal(fastest(&worth, 3), 1);
    Choices brief = steady(0.1, 0.099, 0.0985), worth_brief = steady(0.1, 0.097, 0.096);
    assert_int_equal(fastest(&brief, 3), 0);
    assert_int_equal(fastest(&worth_brief, 3), 1);
}

// Code is loaded at the first run of a kernel.
TEST(a_first_run_that_is_slow_is_no_reason) {
    for (int i = 0; i < 3; i++) {
        Choices c = steady(1.0, 1.0, 1.0);
        c.first[i] = 10.0;
        c.third[1] = c.usual[1] = 0.5;
        assert_int_equal(fastest(&c, 3), 1);
    }
}

// Every third run is disturbed, or lucky.
TEST(the_median_counts) {
    Choices slowed = steady(1.0, 0.9, 1.0), lucky = steady(1.0, 1.1, 1.1);
    slowed.third[1] = 2.0;
    assert_int_equal(fastest(&slowed, 3), 1);
    lucky.third[1] = lucky.third[2] = 0.85;
    assert_int_equal(fastest(&lucky, 3), 0);
}

TEST(what_takes_half_as_long_again_is_dropped_at_once) {
    Choices c = steady(1.6, 1.0, 1.2), late = steady(1.0, 1.2, 1.6);
    assert_int_equal(fastest(&c, 3), 1);
    expect_runs(&c, 2, 1 + 11, 1 + 11);
    assert_int_equal(fastest(&late, 3), 0);
    expect_runs(&late, 2 + 11, 1 + 11, 2);
}

// 50 ms are enough for all; three rounds are made in any case.
TEST(slow_choices_are_measured_three_times) {
    Choices slow = steady(30.0, 29.0, 31.0), middle = steady(2.5, 2.5, 2.5);
    assert_int_equal(fastest(&slow, 3), 1);
    expect_runs(&slow, 2 + 3, 1 + 3, 1 + 3);
    assert_int_equal(fastest(&middle, 3), 0);
    expect_runs(&middle, 2 + 7, 1 + 7, 1 + 7); // 7.5 ms a round
}

// A choice takes no more than two seconds: what was not tried by then is not taken.
TEST(a_choice_takes_two_seconds_at_most) {
    Choices endless = steady(900.0, 890.0, 100.0), slow = steady(300.0, 290.0, 280.0);
    assert_int_equal(fastest(&endless, 3), 1);
    expect_runs(&endless, 2, 1, 0);
    assert_int_equal(fastest(&slow, 3), 2);
    expect_runs(&slow, 2 + 1, 1 + 1, 1 + 1);
}

TEST(what_does_not_run_is_not_taken) {
    Choices c = steady(1.0, 0.1, 1.0), none = steady(1.0, 1.0, 1.0);
    c.fails = 1;
    assert_int_equal(fastest(&c, 3), 0);
    assert_int_equal(c.runs[1], 1);
    none.fails = 1;
    assert_int_equal(fastest(&none, 1), 0);
}

// The winner alone is checked, and only what remains is timed again.
TEST(what_is_wrong_is_not_taken_though_it_is_the_fastest) {
    Choices c = steady(1.0, 0.5, 0.6), loses = steady(1.0, 1.2, 0.9),
            untimed = steady(1.0, 1.0, 1.0);
    c.wrong = loses.wrong = 1;

    assert_int_equal(fastest(&c, 3), 2);
    assert_int_equal(c.checks, 2);
    expect_runs(&c, 2 + 2, 1 + 11, 1 + 11 + 1 + 11);
    assert_int_equal(fastest(&loses, 3), 2);
    assert_int_equal(loses.checks, 1);

    assert_int_equal(choose(&untimed, 3, false), 0);
    expect_runs(&untimed, 0, 0, 0);

    loses.fails = 2;
    assert_int_equal(fastest(&loses, 3), 0);
}

// The host needs ten times as long to enqueue a way as it takes, but the stream is busy by then: 3
// % less are 3 % less.
TEST(the_time_of_a_launch_does_not_count) {
    Error err;
    char *workspace = device_alloc(1 << 20, &err);
    assert_non_null(workspace);
    ops_set_workspace(workspace, 1 << 20);
    sim_set_launch_latency(10.0);
    Choices c = steady(1.0, 0.97, 1.0);
    assert_int_equal(fastest(&c, 3), 1);
    sim_set_launch_latency(0.0);
    ops_set_workspace(NULL, 0);
    device_free(workspace);
}

// Memory for trials leaves some for what is loaded later.
TEST(trials_leave_memory_for_the_code_of_kernels) {
    const size_t MiB = (size_t)1 << 20;
    size_t free_bytes, total;
    void *most, *block;
    assert_int_equal(cudaMemGetInfo(&free_bytes, &total), cudaSuccess);
    assert_int_equal(cudaMalloc(&most, free_bytes - 300 * MiB), cudaSuccess);
    assert_non_null(cuda_memory_like(most, 32 * MiB, &block));
    assert_int_equal(cudaFree(block), cudaSuccess);
    assert_null(cuda_memory_like(most, 64 * MiB, &block));
    assert_int_equal(cudaFree(most), cudaSuccess);
}
