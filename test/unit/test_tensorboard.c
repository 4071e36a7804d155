// Event files for TensorBoard: framing and checksums against a reader written here from the
// format's description, what a full disk leaves, the names that files get. That the real
// TensorBoard reads them: test/e2e/test_watching.py.
#include "llmc/log/runlog.h"
#include "llmc/log/tensorboard.h"
#include "test/fixture.h"

#include <math.h>
#include <sys/resource.h>
#include <time.h>

static Error err;

// ----------------------------------------------------------------------------------------- helpers

// CRC-32C one bit at a time, without a table.
static uint32_t crc32c(const uint8_t *data, size_t n) {
    uint32_t crc = 0xFFFFFFFFu;
    for (size_t i = 0; i < n; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ 0x82F63B78u : crc >> 1;
    }
    return crc ^ 0xFFFFFFFFu;
}

static uint32_t masked(uint32_t crc) { return (crc >> 15 | crc << 17) + 0xA282EAD8u; }

// The names of the event files of a directory, sorted; returns how many there are.
static int event_files(char names[4][256]) {
    struct dirent **entries;
    const int n = scandir(tmp.path, &entries, NULL, alphasort);
    int found = 0;
    for (int i = 0; i < n; i++) {
        if (strstr(entries[i]->d_name, "tfevents") && found < 4)
            snprintf(names[found++], 256, "%s", entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
    return found;
}

static struct {
    uint8_t *data;
    size_t size, at;
} file; // the only event file of the directory, and how far it was read

// Finds its next event and the length of it; NULL at the end. Fails where a length or a checksum is
// wrong.
static const uint8_t *next_event(uint64_t *length) {
    char names[4][256] = {""};
    uint32_t crc;

    if (!file.data) {
        assert_int_equal(event_files(names), 1);
        file.data = read_bytes(tmp_file(names[0]), &file.size);
    }
    if (file.at == file.size) return NULL;

    assert_true(file.at + 12 <= file.size);
    memcpy(length, file.data + file.at, 8);
    memcpy(&crc, file.data + file.at + 8, 4);
    assert_int_equal(crc, masked(crc32c(file.data + file.at, 8)));

    const uint8_t *event = file.data + file.at + 12;
    assert_true(file.at + 12 + *length + 4 <= file.size);
    memcpy(&crc, event + *length, 4);
    assert_int_equal(crc, masked(crc32c(event, *length)));

    file.at += 12 + *length + 4;
    return event;
}

// The first event after the two with which every file begins.
static const uint8_t *first_record(uint64_t *length) {
    next_event(length), next_event(length);
    return next_event(length);
}

static int forget_file(void **state) {
    free(file.data);
    memset(&file, 0, sizeof file);
    return tmp_teardown(state);
}

TestFixture test_each = {tmp_setup, forget_file};

// Is this run of bytes in the event?
static bool holds(const uint8_t *event, uint64_t length, const void *bytes, size_t n) {
    for (uint64_t i = 0; i + n <= length; i++)
        if (memcmp(event + i, bytes, n) == 0) return true;
    return false;
}

static TensorBoard *open_in(int64_t first_step) {
    TensorBoard *tb = tensorboard_open(tmp.path, first_step, &err);
    if (!tb) fail_msg("%s", err.text);
    return tb;
}

static void one_scalar(TensorBoard *tb, int64_t step, const char *tag, double value) {
    tensorboard_begin(tb, step);
    tensorboard_scalar(tb, tag, value);
    if (!tensorboard_end(tb, &err)) fail_msg("%s", err.text);
}

// ------------------------------------------------------------------------------------------- tests

TEST(the_checksum_of_this_test_is_castagnoli) {
    // the check value of the CRC catalogue
    assert_int_equal(crc32c((const uint8_t *)"123456789", 9), 0xE3069283u);
    const uint8_t zeros[32] = {0};
    assert_int_equal(crc32c(zeros, 32), 0x8A9136AAu); // RFC 3720, B.4
}

TEST(a_file_begins_with_its_version_and_the_step_it_starts_at) {
    const time_t before = time(NULL);
    TensorBoard *tb = open_in(299);
    one_scalar(tb, 300, "train/loss", 3.25);
    tensorboard_close(tb);

    uint64_t length = 0;
    const uint8_t *event = next_event(&length);
    assert_true(holds(event, length,
                      "\x1A\x0D"
                      "brain.Event:2",
                      15));

    event = next_event(&length);
    // wall_time, step 300 (0xAC 0x02), session_log of two bytes {status: START}, and nothing else
    assert_memory_equal(event + 9, "\x10\xAC\x02\x3A\x02\x08\x01", 7);
    assert_int_equal(length, 16);

    double wall_time;
    memcpy(&wall_time, event + 1, 8);
    assert_true(wall_time >= (double)before && wall_time <= (double)time(NULL) + 1);
}

TEST(a_record_holds_all_scalars_of_a_step) {
    TensorBoard *tb = open_in(-1);

    tensorboard_begin(tb, 5);
    tensorboard_scalar(tb, "a", 1.0);
    tensorboard_scalar(tb, "b/c", 1e300); // more than a float holds: inf
    assert_true(tensorboard_end(tb, &err));

    tensorboard_begin(tb, 6);
    assert_true(tensorboard_end(tb, &err)); // nothing in it: no record
    tensorboard_close(tb);

    uint64_t length = 0;
    const uint8_t *event = first_record(&length);
    static const char expected[] = "\x10\x05\x2A\x16" // step 5, a summary of 22 bytes
                                   "\x0A\x08\x0A\x01"
                                   "a\x15\x00\x00\x80\x3F"
                                   "\x0A\x0A\x0A\x03"
                                   "b/c\x15\x00\x00\x80\x7F";

    assert_int_equal(length, 9 + sizeof expected - 1);
    assert_memory_equal(event + 9, expected, sizeof expected - 1);
    assert_null(next_event(&length));
}

TEST(a_text_is_shown_letter_by_letter) {
    TensorBoard *tb = open_in(0);
    tensorboard_begin(tb, 1);
    static const char text[] = "# no title\n\x1b[2J <b>\xFF";
    tensorboard_text(tb, "sample/1", text, sizeof text - 1);
    assert_true(tensorboard_end(tb, &err));
    tensorboard_close(tb);
    uint64_t length = 0;
    const uint8_t *event = first_record(&length);
    static const char shown[] = "    # no title\n    \\x1B[2J <b>\\xFF";
    assert_true(holds(event, length, shown, sizeof shown - 1));
    assert_true(holds(event, length, "\x4A\x0A\x0A\x06\x0A\x04text\x20\x02", 12));
}

TEST(files_sort_in_the_order_of_the_runs) {
    // A run on a machine whose clock is an hour ahead, and a name of somebody else's.
    const long ahead = (long)time(NULL) + 3600;
    char name[128];
    snprintf(name, sizeof name, "events.out.tfevents.%010ld.other.1.0", ahead);
    fclose(fopen(tmp_file(name), "w"));
    fclose(fopen(tmp_file("events.out.tfevents.99999999999999999999.x"), "w"));

    tensorboard_close(open_in(0));
    tensorboard_close(open_in(0)); // within the same second

    char names[4][256] = {""};
    assert_int_equal(event_files(names), 4);
    assert_string_equal(names[0], name);
    for (int i = 1; i < 3; i++)
        assert_int_equal(strtol(names[i] + strlen("events.out.tfevents."), NULL, 10), ahead + i);
}

TEST(a_directory_that_is_not_there_is_an_error_with_the_path) {
    assert_error(tensorboard_open(tmp_file("none"), 0, &err), "/none/events.out.tfevents.");
    assert_non_null(strstr(err.text, "cannot be written: No such file"));
}

// A limit on the file size stands for a full disk.
TEST(a_full_disk_costs_whole_records_only) {
    struct rlimit before, small;
    getrlimit(RLIMIT_FSIZE, &before);
    small = before;
    signal(SIGXFSZ, SIG_IGN);

    TensorBoard *tb = open_in(0);
    bool written[12];
    for (int i = 0; i < 12; i++) {
        // First not even the two records at the beginning fit, then some do, then there is room
        // again.
        small.rlim_cur = i < 2 ? 50 : 300;
        setrlimit(RLIMIT_FSIZE, i < 11 ? &small : &before);
        tensorboard_begin(tb, i);
        tensorboard_scalar(tb, "loss", 0.5);
        written[i] = tensorboard_end(tb, &err);
    }

    setrlimit(RLIMIT_FSIZE, &before);
    tensorboard_close(tb);
    assert_true(!written[0] && !written[1] && written[2] && written[3] && !written[9] &&
                !written[10] && written[11]);

    int expected = 2;
    for (int i = 0; i < 12; i++) expected += written[i];
    uint64_t length = 0;
    int records = 0;
    while (next_event(&length)) records++;
    assert_int_equal(records, expected);
    assert_non_null(strstr(err.text, "cannot write"));
}
