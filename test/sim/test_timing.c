// cuda_fastest on a clock that stands still but for the choices that are measured: which one it takes, how often it
// runs each, and what it leaves out.
#include "dev/sim/sim_control.h"
#include "llmc/cuda/tuning.h"
#include "test/test.h"

#include "test/unit/device_fixture.h"

TestFixture test_all = {start_device, stop_device};

enum { MOST = 4 };

// Choices that take these times: in the first run, which loads kernels; in every third of the others; in the rest.
typedef struct {
    double first[MOST], third[MOST], usual[MOST];
    int fails; // number of the choice that does not run; 0: none
    int runs[MOST];
    double now;
} Choices;

static bool work(void *context, int i) {
    Choices *c = context;
    const int run = c->runs[i]++;
    c->now += run == 0 ? c->first[i] : run % 3 == 0 ? c->third[i] : c->usual[i];
    sim_set_clock(c->now);
    return c->fails == 0 || i != c->fails;
}

static int fastest(Choices *c, int count) {
    sim_set_clock(0.0);
    const int choice = cuda_fastest(count, work, c);
    sim_set_clock(-1.0);
    return choice;
}

static Choices steady(double a, double b, double c) {
    return (Choices){.first = {a, b, c}, .third = {a, b, c}, .usual = {a, b, c}};
}

TEST(the_fastest_is_taken_wherever_it_stands) {
    for (int i = 0; i < 3; i++) {
        Choices c = steady(1.0 - 0.1 * (i == 0), 1.0 - 0.1 * (i == 1), 1.0 - 0.1 * (i == 2));
        assert_int_equal(fastest(&c, 3), i);
        for (int j = 0; j < 3; j++) assert_int_equal(c.runs[j], 1 + 11); // 3 ms a round are little
    }
}

// A change of less than 0.5 % is not worth it: the same choice in every run is. Nor is one of less than 2 % of short
// times, which vary more.
TEST(the_first_is_kept_where_others_gain_nothing) {
    Choices c = steady(1.0, 0.998, 0.996), worth = steady(1.0, 0.994, 0.99);
    assert_int_equal(fastest(&c, 3), 0);
    assert_int_equal(fastest(&worth, 3), 1);
    Choices brief = steady(0.1, 0.099, 0.0985), worth_brief = steady(0.1, 0.097, 0.096);
    assert_int_equal(fastest(&brief, 3), 0);
    assert_int_equal(fastest(&worth_brief, 3), 1);
}

TEST(the_first_round_does_not_count) {
    Choices c = steady(1.0, 0.5, 1.0);
    c.first[1] = 10.0;
    assert_int_equal(fastest(&c, 3), 1);
}

// Every third run is disturbed, or lucky.
TEST(the_median_counts) {
    Choices slowed = steady(1.0, 0.9, 1.0), lucky = steady(1.0, 1.1, 1.1);
    slowed.third[1] = 2.0;
    assert_int_equal(fastest(&slowed, 3), 1);
    lucky.third[1] = lucky.third[2] = 0.85;
    assert_int_equal(fastest(&lucky, 3), 0);
}

TEST(what_is_far_behind_after_two_rounds_is_dropped) {
    Choices c = steady(1.4, 1.0, 1.2);
    assert_int_equal(fastest(&c, 3), 1);
    assert_int_equal(c.runs[0], 1 + 2);
    assert_int_equal(c.runs[1], 1 + 11);
    assert_int_equal(c.runs[2], 1 + 11);
}

// 50 ms are enough for all; three rounds are made in any case.
TEST(slow_choices_are_measured_three_times) {
    Choices slow = steady(30.0, 29.0, 31.0), middle = steady(2.5, 2.5, 2.5);
    assert_int_equal(fastest(&slow, 3), 1);
    for (int i = 0; i < 3; i++) assert_int_equal(slow.runs[i], 1 + 3);
    assert_int_equal(fastest(&middle, 3), 0);
    assert_int_equal(middle.runs[0], 1 + 6); // 7.5 ms a round
}

TEST(what_does_not_run_is_not_taken) {
    Choices c = steady(1.0, 0.1, 1.0), none = steady(1.0, 1.0, 1.0);
    c.fails = 1;
    assert_int_equal(fastest(&c, 3), 0);
    assert_int_equal(c.runs[1], 1);
    none.fails = 1;
    assert_int_equal(fastest(&none, 1), 0);
}
