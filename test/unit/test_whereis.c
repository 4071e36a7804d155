// A step has read the windows that follow from what the run left behind: the same as the loader
// reads, whatever happened to the run; and logs have every kind of damage.

#include "llmc/base/directory.h"
#include "test/unit/mutate.h"

int whereis_main(int argc, char **argv);
#define main whereis_main
#include "data/whereis.c"
#undef main

enum { T = 4, WINDOWS = 23, SEED = 1337 };

TestFixture test_all = {tmp_setup, tmp_teardown};

// A run event: started after start_step, step_windows a step, B at a time.
static int run_event(char *out, size_t size, int start_step, int step_windows, int B, int overfit) {
    return snprintf(
        out, size,
        "{\"event\":\"run\",\"time\":1.5,\"options\":{\"train-data\":\"x*.bin\",\"tokenizer\":\"\","
        "\"overfit\":%d,\"seed\":%d},\"model\":{\"T\":%d,\"B\":%d},\"train\":{\"tokens\":93,"
        "\"windows\":%d,"
        "\"shards\":1},\"start_step\":%d,\"total_steps\":99,\"tokens_per_step\":%d}\n",
        overfit, SEED, T, B, WINDOWS, start_step, step_windows * T);
}

// The same of a mixture of two, since position 6, before which 4 and 2 windows were drawn.
static int mixture_event(char *out, size_t size, const char *weight) {
    return snprintf(
        out, size,
        "{\"event\":\"run\",\"time\":1.5,\"options\":{\"train-data\":\"x:2,y:1\",\"overfit\":0,"
        "\"seed\":%d},"
        "\"model\":{\"T\":%d,\"B\":2},\"train\":{\"tokens\":186,\"windows\":%d,\"shards\":2,"
        "\"start\":6,"
        "\"sources\":[{\"name\":\"x\",\"share\":0.667,\"weight\":%s,\"drawn\":4},{\"name\":\"y\","
        "\"share\":0.333,"
        "\"weight\":1,\"drawn\":2}]},\"start_step\":0,\"total_steps\":99,\"tokens_per_step\":%d}\n",
        SEED, T, 2 * WINDOWS, weight, 6 * T);
}

static cJSON *starts; // of the log at hand

static int free_starts(void **state) {
    (void)state;
    cJSON_Delete(starts), starts = NULL;
    return 0;
}
TestFixture test_each = {NULL, free_starts};

static bool read_starts(const char *text, size_t n, Error *err) {
    write_bytes(tmp_file("main.log"), text, n);
    free_starts(NULL);
    starts = cJSON_CreateArray();
    return read_log(tmp_file("main.log"), starts, err);
}

static bool find(int64_t step, Start *start, int64_t *position, Error *err) {
    return find_step("main.log", starts, step, start, position, err);
}

static int64_t window_at(const Start *s, int64_t position) {
    return shuffle_window(s->overfit ? position % s->step_windows : position, s->num_windows,
                          (uint64_t)s->seed);
}

static void assert_position(int64_t step, int64_t expected, int64_t step_windows) {
    int64_t position;
    Start start;
    Error err;
    assert_ok(find(step, &start, &position, &err));
    assert_int_equal(position, expected);
    assert_int_equal(start.step_windows, step_windows);
}

TEST(positions_add_up_over_resumes_with_other_batches) {
    char log[16384];
    int n = run_event(log, sizeof log, 0, 5, 2, 0);
    n += sprintf(log + n, "{\"event\":\"step\",\"time\":1.5,\"step\":1,\"loss\":1}\n");
    n += run_event(log + n, sizeof log - (size_t)n, 10, 7, 2, 0);
    n += snprintf(log + n, sizeof log - (size_t)n, // -x 0 reads nothing
                  "{\"event\":\"run\",\"options\":{},\"model\":{},\"start_step\":20,\"tokens_per_"
                  "step\":4}\n");
    // killed before its first checkpoint,
    n += run_event(log + n, sizeof log - (size_t)n, 20, 1, 1, 0);
    n += run_event(log + n, sizeof log - (size_t)n, 20, 3, 2, 0); // and started again

    Error err;
    assert_ok(read_starts(log, (size_t)n, &err));

    assert_position(1, 0, 5);
    assert_position(10, 45, 5);
    assert_position(11, 50, 7);
    assert_position(20, 113, 7);
    assert_position(21, 120, 3);
    assert_position(30, 147, 3); // still to come
}

TEST(steps_that_were_taken_back_are_forgotten) {
    char log[8192]; // after step 10 with 7 a step to 20; step 20's checkpoint was damaged, so on
                    // from 10 again
    int n = run_event(log, sizeof log, 0, 5, 2, 0);
    n += run_event(log + n, sizeof log - (size_t)n, 10, 7, 2, 0);
    n += run_event(log + n, sizeof log - (size_t)n, 20, 9, 2, 0);
    n += run_event(log + n, sizeof log - (size_t)n, 10, 2, 2, 0);
    Error err;
    assert_ok(read_starts(log, (size_t)n, &err));
    assert_position(10, 45, 5);
    assert_position(21, 50 + 20, 2);
}

TEST(an_unfinished_last_line_is_no_error) {
    char log[4096];
    int n = run_event(log, sizeof log, 0, 5, 2, 0);
    n += run_event(log + n, sizeof log - (size_t)n, 3, 7, 2, 0);
    Error err;
    assert_ok(read_starts(log, (size_t)n - 20, &err));
    assert_position(5, 20, 5);
}

// The windows that the loader really reads, told by their first tokens.
static void compare_with_loader(int batch, int step_windows, int steps, bool overfit) {
    static uint16_t tokens[WINDOWS * T + 1];
    for (int i = 0; i <= WINDOWS * T; i++) tokens[i] = (uint16_t)i;

    const char *path = tmp_file("x.bin");
    Error err;
    ShardWriter *w = shard_writer_open(path, 2, 0, -1, &err);
    assert_true(shard_writer_append(w, tokens, WINDOWS * T + 1, &err) &&
                shard_writer_commit(w, &err));

    Sources set;
    assert_true(sources_open(&set, path, T, &err));
    const DataLoaderOptions options = {.sources = &set,
                                       .vocab = 65536,
                                       .batch_windows = batch,
                                       .step_windows = step_windows,
                                       .seed = SEED,
                                       .shuffle = true,
                                       .repeat_first_step = overfit};

    DataLoader *loader = dataloader_create(&options, &err);
    char log[4096];
    assert_ok(read_starts(log, (size_t)run_event(log, sizeof log, 0, step_windows, batch, overfit),
                          &err));

    for (int step = 1; step <= steps; step++) {
        int64_t position = 0, done = 0;
        Start s;
        assert_ok(find(step, &s, &position, &err));
        while (done < step_windows) {
            const void *windows;
            int64_t count;
            assert_true(dataloader_next(loader, &windows, &count, &err));
            for (int64_t i = 0; i < count; i++, done++) {
                assert_int_equal(((const uint16_t *)windows)[i * (T + 1)],
                                 window_at(&s, position + done) * T);
                // the micro-batch that whereis prints
                assert_int_equal(done / s.B, (done - i) / s.B);
            }
        }
    }

    dataloader_destroy(loader);
    sources_close(&set);
}

TEST(the_windows_are_those_of_the_loader) {
    compare_with_loader(3, 7, 12, false); // over three epochs
    compare_with_loader(8, 5, 12, false); // B larger than a step
    compare_with_loader(3, 7, 12, true);
    compare_with_loader(5, 30, 4, true); // more windows a step than there are
}

TEST(a_mixture_is_drawn_as_the_run_has_drawn_it) {
    char log[4096];
    Error err;
    Start start;
    int64_t position;

    assert_ok(read_starts(log, (size_t)mixture_event(log, sizeof log, "2"), &err));
    assert_ok(find(2, &start, &position, &err));
    assert_int_equal(position, 6);
    assert_int_equal(start.mixture.count, 2);
    assert_int_equal(start.mixture.total, 3);

    MixtureCursor cursor = {0};
    const MixtureDraw draw = mixture_draw(&start.mixture, &cursor, position);
    assert_int_equal(draw.source, 0);
    assert_int_equal(draw.index, 4);

    assert_error(find(1, &start, &position, &err), "the mixture starts at window 6, after step 1");
    assert_ok(read_starts(log, (size_t)mixture_event(log, sizeof log, "0"), &err));
    assert_error(find(2, &start, &position, &err), "source 1: \"weight\" is 0");
}

TEST(what_is_missing_or_makes_no_sense_is_named) {
    const struct {
        const char *from, *to, *message;
    } cases[] = {
        {"\"tokens_per_step\":20", "\"tokens_per_step\":3", "\"tokens_per_step\" is 3"},
        {"\"tokens_per_step\":20", "\"tokens\":20", "\"tokens_per_step\" is missing"},
        {"\"start_step\":0", "\"start_step\":7", "the log begins after step 7"},
        {"\"start_step\":0", "\"start_step\":-1", "\"start_step\" is -1"},
        {"\"seed\":1337", "\"seed\":-3", "\"seed\" is -3"},
        {"\"T\":4", "\"T\":0", "\"T\" is 0"},
        {"\"train-data\":\"x*.bin\"", "\"train-data\":3", "\"train-data\" is 3"},
        {"\"event\":\"run\"", "\"event\":\"end\"", "has no training run"},
        {"\"time\"", "time", "main.log: not valid JSON"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char log[4096], changed[4096];
        run_event(log, sizeof log, 0, 5, 2, 0);

        const char *at = strstr(log, cases[i].from);
        assert_non_null(at);
        const int n = snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - log), log,
                               cases[i].to, at + strlen(cases[i].from));

        Error err;
        Start start;
        int64_t position;
        assert_error(read_starts(changed, (size_t)n, &err) && find(1, &start, &position, &err),
                     cases[i].message);
    }
}

TEST(a_log_that_cannot_be_read_says_why) {
    Error err;
    assert_ok(directory_make(tmp_file("run/main.log"), &err));
    starts = cJSON_CreateArray();
    assert_error(read_log(tmp_file("run/main.log"), starts, &err),
                 "main.log: cannot be read: Is a directory");
}

TEST(steps_before_the_first_and_beyond_all_numbers_are_refused) {
    char log[4096];
    Error err;
    Start start;
    int64_t position;
    assert_ok(read_starts(log, (size_t)run_event(log, sizeof log, 0, 5, 2, 0), &err));
    assert_error(find(0, &start, &position, &err), "STEP 0: expected 1 or more");
    assert_error(find(INT64_MAX, &start, &position, &err),
                 "expected 1 or more, and less than this");
}

TEST(damaged_logs_are_read_or_refused_but_never_believed_blindly) {
    char log[8192];
    int n = run_event(log, sizeof log, 0, 5, 2, 0);
    n += run_event(log + n, sizeof log - (size_t)n, 3, 7, 2, 0);

    for (uint64_t round = 0; round < 2000; round++) {
        unsigned char damaged[8192 + MUTATE_MAX_GROWTH];
        memcpy(damaged, log, (size_t)n);
        const size_t bytes = mutate(damaged, (size_t)n, (size_t)n, round);

        Error err = {""};
        Start start;
        int64_t position;
        if (read_starts((const char *)damaged, bytes, &err) && find(4, &start, &position, &err))
            assert_in_range(window_at(&start, position), 0, start.num_windows - 1);
        else
            assert_true(strlen(err.text) > 0);
    }
}
