// The summary at the end of a run: which steps count, exact order statistics, what is left out when
// it is not known.
#include "llmc/log/run_summary.h"
#include "test/fixture.h"

static RunSummary s; // of each test

static int setup(void **state) {
    (void)state;
    s = (RunSummary){0};
    return 0;
}

static int teardown(void **state) {
    (void)state;
    run_summary_free(&s);
    return 0;
}

TestFixture test_each = {setup, teardown};

static void assert_printed(const char *expected) {
    Capture c = capture_start(stdout);
    RunLog *log = runlog_open(NULL, false, 0, 0, NULL);
    run_summary_print(&s, log);
    runlog_close(log);
    char *text = capture_end(&c);
    assert_string_equal(text, expected);
    free(text);
}

static cJSON *json_of_summary(void) {
    char *fields = run_summary_json(&s), text[1024];
    snprintf(text, sizeof text, "{\"event\":\"end\"%s}", fields);
    free(fields);
    cJSON *object = cJSON_Parse(text);
    assert_non_null(object);
    return object;
}

static void assert_absent(const char *const *keys, size_t count) {
    cJSON *object = json_of_summary();
    for (size_t i = 0; i < count; i++) assert_false(cJSON_HasObjectItem(object, keys[i]));
    cJSON_Delete(object);
}

static void assert_near(double x, double expected) { // step times are kept as floats
    assert_true(x > expected * (1 - 1e-6) && x < expected * (1 + 1e-6));
}

TEST(the_lines_are_those_of_the_header) {
    run_summary_energy(&s, 1e9);
    for (int i = 0; i < 5000; i++)
        run_summary_step(&s, i % 50 == 7 ? 0.7312 : 0.718, 524288,
                         0.423 / (i % 50 == 7 ? 0.7312 : 0.718));

    run_summary_validation(&s, 4500, 3.29);
    run_summary_validation(&s, 4750, 3.2811);
    run_summary_validation(&s, 5000, 3.30);
    run_summary_energy(&s, 1e9 + 0.7123 * 3.6e6);

    assert_printed(
        "summary     5000 steps, 2.621B tokens, 59m51s in steps | median 730.2K tok/s, mfu 58.9% | "
        "step p50 718.0 ms, p99 731.2 ms\n"
        "            best validation loss 3.2811 at step 4750 | 0.7123 kWh, 0.978 J/1K tokens\n");
}

TEST(order_statistics_are_exact_and_pass_over_the_first_step) {
    run_summary_step(&s, 99.0, 10, 0.5); // warms up
    // 1 .. 2000 ms, shuffled
    for (int i = 0; i < 2000; i++) run_summary_step(&s, (i * 7919 % 2000 + 1) * 1e-3, 10, 0.5);
    cJSON *object = json_of_summary();
    assert_near(json_number(object, "ms_p50"), 1000.0); // the 1000th of 2000
    assert_near(json_number(object, "ms_p99"), 1980.0);
    assert_near(json_number(object, "tokens_per_second_p50"), 10.0);
    assert_true(json_number(object, "steps") == 2001 && json_number(object, "tokens") == 20010);
    assert_near(json_number(object, "step_seconds"), 99.0 + 2001.0);
    cJSON_Delete(object);
}

TEST(a_single_step_is_all_there_is) {
    run_summary_step(&s, 0.25, 1000, 0);
    assert_printed("summary     1 step, 1.000K tokens, 0.2s in steps | median 4.000K tok/s | step "
                   "p50 250.0 ms, p99 "
                   "250.0 ms\n");
    cJSON *object = json_of_summary();
    assert_near(json_number(object, "ms_p99"), 250.0);
    cJSON_Delete(object);
}

TEST(what_is_not_known_is_left_out) {
    run_summary_step(&s, 0.25, 1000, 0);
    run_summary_energy(&s, 0);   // the sensor has no counter
    run_summary_energy(&s, 500); // one value is no difference
    run_summary_validation(&s, 3, (double)NAN);
    assert_absent((const char *[]){"mfu_p50", "best_val_loss", "best_val_step", "energy_joules"},
                  4);
}

TEST(a_counter_that_starts_anew_gives_no_energy) {
    run_summary_step(&s, 0.25, 1000, 0);
    run_summary_energy(&s, 5000);
    run_summary_energy(&s, 100); // the driver was loaded again
    assert_absent((const char *[]){"energy_joules"}, 1);
}

TEST(without_steps_nothing_is_said) {
    run_summary_validation(&s, 0, 3.5);
    assert_printed("");
    char *json = run_summary_json(&s);
    assert_string_equal(json, "");
    free(json);
}

TEST(the_time_of_a_step_is_that_of_the_last_half_minute) {
    StepTime t = {0};
    step_time_add(&t, 9.0); // pays for starting
    assert_float_equal(t.mean, 9.0, 1e-12);
    step_time_add(&t, 0.1);
    assert_float_equal(t.mean, 0.1, 1e-12);

    for (int i = 0; i < 3000; i++) step_time_add(&t, 0.1);
    step_time_add(&t, 3.0); // one slow step is one of 300
    assert_true(t.mean > 0.1 && t.mean < 0.115);
    // from now on all are slower: two minutes later that is known
    for (int i = 0; i < 600; i++) step_time_add(&t, 0.2);
    assert_float_equal(t.mean, 0.2, 0.005);

    t = (StepTime){0};
    // steps longer than the window: the last one counts most
    const double minutes[] = {100.0, 60.0, 80.0};
    for (int i = 0; i < 3; i++) step_time_add(&t, minutes[i]);
    assert_true(t.mean > 75.0 && t.mean < 80.0);
}
