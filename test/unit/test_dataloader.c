// The data loader: the right windows in the right order, however they are cut into batches; errors
// when they are due; an end at any moment.

#include "llmc/data/dataloader.h"
#include "test/fixture.h"

static Error err;
static const void *got; // of the last call of dataloader_next
static int64_t count;

enum { T = 4, WINDOWS_PER_FILE = 25, FILES = 2, WINDOWS = FILES * WINDOWS_PER_FILE };

static Sources shards;     // window w begins with token w * T, all below 65536
static DataLoader *loader; // the one that was opened last

static void write_shard(const char *path, int first_token) {
    uint16_t tokens[WINDOWS_PER_FILE * T + 1];
    for (int i = 0; i <= WINDOWS_PER_FILE * T; i++) tokens[i] = (uint16_t)(first_token + i);
    ShardWriter *w = shard_writer_open(path, 2, 0, -1, &err);
    assert_non_null(w);
    assert_true(shard_writer_append(w, tokens, WINDOWS_PER_FILE * T + 1, &err));
    assert_true(shard_writer_commit(w, &err));
}

static int open_data(void **state) {
    tmp_setup(state);
    write_shard(tmp_file("a.bin"), 0);
    write_shard(tmp_file("b.bin"), WINDOWS_PER_FILE * T);
    return sources_open(&shards, tmp_file("*.bin"), T, &err) ? 0 : -1;
}

static int close_data(void **state) {
    dataloader_destroy(loader), loader = NULL;
    sources_close(&shards);
    return tmp_teardown(state);
}
TestFixture test_each = {open_data, close_data};

static DataLoaderOptions options_of(int64_t batch, int64_t step) {
    return (DataLoaderOptions){.sources = &shards,
                               .vocab = 65536,
                               .batch_windows = batch,
                               .step_windows = step,
                               .seed = 1337,
                               .shuffle = true};
}

static void open_loader(DataLoaderOptions options) {
    dataloader_destroy(loader);
    assert_ok(loader = dataloader_create(&options, &err));
}

// Counts the windows of a batch that must be there.
static int64_t next_count(void) {
    assert_ok(dataloader_next(loader, &got, &count, &err));
    return count;
}

// Finds the window that these T + 1 tokens are; fails if they are none.
static int64_t window_of(const uint16_t *tokens) {
    for (int i = 0; i <= T; i++) assert_int_equal(tokens[i], tokens[0] + i);
    assert_int_equal(tokens[0] % T, 0);
    return tokens[0] / T;
}

// The next n windows of the loader, which must end with a whole batch.
static void read_windows(int64_t *out, int64_t n) {
    for (int64_t done = 0; done < n;) {
        assert_in_range(next_count(), 1, n - done);
        for (int64_t i = 0; i < count; i++)
            out[done++] = window_of((const uint16_t *)got + i * (T + 1));
    }
}

TEST(windows_come_in_the_order_of_seed_and_position) {
    enum { N = 3 * WINDOWS }; // three epochs
    int64_t windows[N];
    open_loader(options_of(3, 10));
    read_windows(windows, N);
    for (int64_t p = 0; p < N; p++) assert_int_equal(windows[p], shuffle_window(p, WINDOWS, 1337));
}

TEST(without_shuffle_windows_come_in_file_order_and_start_over) {
    enum { N = 2 * WINDOWS + 10 };
    int64_t windows[N];
    DataLoaderOptions options = options_of(5, 5);
    options.shuffle = false;
    open_loader(options);
    read_windows(windows, N);
    for (int64_t p = 0; p < N; p++) assert_int_equal(windows[p], p % WINDOWS);
}

TEST(the_batch_size_does_not_change_the_order) {
    enum { STEP = 12, N = 10 * STEP };
    int64_t reference[N], windows[N];
    open_loader(options_of(1, STEP));
    read_windows(reference, N);
    const int64_t sizes[] = {2, 5, 8, STEP, 1000};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        open_loader(options_of(sizes[i], STEP));
        read_windows(windows, N);
        assert_memory_equal(windows, reference, sizeof windows);
    }
}

TEST(the_last_batch_of_a_step_is_the_smaller_one) {
    open_loader(options_of(4, 10));
    const int64_t expected[] = {4, 4, 2, 4, 4, 2};
    for (int i = 0; i < 6; i++) assert_int_equal(next_count(), expected[i]);
}

TEST(a_loader_goes_on_from_the_position_of_another) {
    enum { STEP = 7, STEPS = 12 };
    for (int repeat = 0; repeat < 2; repeat++) {
        DataLoaderOptions options = options_of(3, STEP);
        options.repeat_first_step = repeat;

        int64_t whole[STEP * STEPS], parts[STEP * STEPS];
        open_loader(options);
        read_windows(whole, STEP * STEPS);

        for (int64_t step = 0; step < STEPS; step++) { // a new loader for every step
            open_loader(options);
            assert_int_equal(dataloader_position(loader), step * STEP);
            read_windows(parts + step * STEP, STEP);
            options.position = dataloader_position(loader);
        }

        assert_memory_equal(parts, whole, sizeof whole);
    }
}

// Loaders of one group each read what one loader of all groups reads, and agree about the position
// after a step.
TEST(loaders_of_groups_share_the_windows_of_each_step) {
    enum { STEP = 19, STEPS = 5, BATCH = 2 };
    int64_t whole[STEP * STEPS], windows[STEP * STEPS];

    open_loader(options_of(BATCH, STEP));
    read_windows(whole, STEP * STEPS);

    for (int64_t groups = 1; groups <= STEP; groups += 3)
        for (int64_t first = 0; first < groups; first++)
            for (int64_t n = 1; first + n <= groups; n += 2) {
                DataLoaderOptions options = options_of(BATCH, STEP);
                options.groups = groups, options.first_group = first, options.group_count = n;
                open_loader(options);

                for (int64_t step = 0; step < STEPS; step++)
                    for (int64_t g = first; g < first + n; g++) {
                        const int64_t begin = STEP * g / groups, end = STEP * (g + 1) / groups;
                        read_windows(windows, end - begin); // batches end where the group ends
                        assert_memory_equal(windows, whole + step * STEP + begin,
                                            (size_t)(end - begin) * sizeof *windows);
                        assert_int_equal(dataloader_position(loader),
                                         g + 1 < first + n ? step * STEP + end : (step + 1) * STEP);
                    }
            }
}

TEST(repeat_first_step_reads_the_same_step_again) {
    enum { STEP = 6 };
    int64_t first[STEP], again[STEP];
    DataLoaderOptions options = options_of(4, STEP);
    options.repeat_first_step = true;

    open_loader(options);
    read_windows(first, STEP);
    for (int64_t p = 0; p < STEP; p++) assert_int_equal(first[p], shuffle_window(p, WINDOWS, 1337));

    for (int step = 1; step < 10; step++) {
        read_windows(again, STEP);
        assert_memory_equal(again, first, sizeof first);
    }
    assert_int_equal(dataloader_position(loader), 10 * STEP);
}

TEST(a_buffer_stays_untouched_until_the_second_next_call) {
    for (int ring = 2; ring <= 5; ring++) {
        DataLoaderOptions options = options_of(2, 2);
        options.ring = ring;
        open_loader(options);
        const uint16_t *before = NULL;

        for (int64_t call = 0; call < 200; call++) {
            assert_int_equal(next_count(), 2);
            if (call % 20 == 0) usleep(2000); // time for the reader to do harm
            for (int64_t i = 0; i < 2; i++) {
                assert_int_equal(window_of((const uint16_t *)got + i * (T + 1)),
                                 shuffle_window(2 * call + i, WINDOWS, 1337));
                if (!before) continue;
                assert_int_equal(window_of(before + i * (T + 1)),
                                 shuffle_window(2 * call - 2 + i, WINDOWS, 1337));
            }
            before = got;
        }
    }
}

TEST(an_error_comes_when_its_batch_is_due_and_stays) {
    DataLoaderOptions options = options_of(5, 10);
    options.shuffle = false;
    // Window 32 is the last good one: the batch of windows 30 to 34 fails.
    options.vocab = 33 * T + 1;

    for (int ring = 2; ring <= 12; ring += 5) {
        options.ring = ring;
        open_loader(options);
        usleep(3000); // long enough for the reader to meet the bad token early
        int64_t windows[30];

        read_windows(windows, 30);
        for (int call = 0; call < 3; call++) {
            // Token 33 T + 1 of all is token 33 T + 1 - 25 T of the second file.
            assert_error(dataloader_next(loader, &got, &count, &err),
                         "b.bin: token 33 is 133, expected below the vocabulary size 133");
            assert_int_equal(dataloader_position(loader), 30);
        }
    }
}

TEST(a_file_cut_under_the_loader_ends_in_an_error) {
    open_loader(options_of(8, 8));
    assert_int_equal(truncate(tmp_file("a.bin"), 1024), 0);
    int calls = 0;
    while (dataloader_next(loader, &got, &count, &err)) assert_in_range(++calls, 1, 100);
    assert_message("a.bin: cannot read");
}

TEST(a_loader_can_be_destroyed_at_any_moment) {
    for (int i = 0; i < 300; i++) {
        DataLoaderOptions options = options_of(1 + i % 9, 1 + i % 13);
        options.ring = 2 + i % 4;
        if (i % 5 == 4) options.vocab = 20; // a reader that has ended with an error
        open_loader(options);
        if (i % 3 == 1) usleep((useconds_t)(i % 11) * 100); // the reader is blocked on a full ring
        for (int call = 0; call < i % 8; call++) {
            if (!dataloader_next(loader, &got, &count, &err)) break;
        }
    }
    dataloader_destroy(NULL);
}

TEST(the_time_spent_waiting_is_counted_from_the_first_batch_on) {
    open_loader(options_of(1, 1));
    assert_true(dataloader_wait_seconds(loader) == 0);
    for (int i = 0; i < 100; i++) next_count();
    const double waited = dataloader_wait_seconds(loader);
    next_count();
    assert_true(waited >= 0 && dataloader_wait_seconds(loader) >= waited);
}

int main(void) {
    alarm(1200); // a deadlock ends the program
    return test_run();
}
