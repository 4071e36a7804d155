// The file of measured choices: it remembers, it forgives damage, and it never gets in the way.

#include "llmc/base/choices_file.h"
#include "llmc/base/file.h"
#include "test/fixture.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *cache_file;

static int fresh_directory(void **state) {
    tmp_setup(state);
    cache_file = tmp_file("tuning");
    setenv("PRETRAIN_CACHE", cache_file, 1);
    return 0;
}

static int remove_directory(void **state) {
    choices_file_close();
    return tmp_teardown(state);
}
TestFixture test_each = {fresh_directory, remove_directory};

static void put(const char *key, int value) { choices_file_put(key, &value, sizeof value); }

// Reads the file as another process sees it.
static int get_again(const char *key) {
    int value = -1;
    choices_file_close();
    return choices_file_get(key, &value, sizeof value) ? value : -1;
}

TEST(entries_survive_the_process_and_are_replaced) {
    assert_int_equal(get_again("a"), -1);
    put("a", 1), put("b, with spaces", 2), put("a", 3);
    assert_int_equal(get_again("a"), 3);
    assert_int_equal(get_again("b, with spaces"), 2);
    long other_size;
    assert_false(choices_file_get("a", &other_size, sizeof other_size));
}

// Runs get_again(key) with stderr in a file; its text, malloced.
static char *said_at(const char *key, int expected) {
    size_t size;
    const char *file = tmp_file("stderr");
    fflush(stderr);
    const int kept = dup(STDERR_FILENO), fd = open(file, O_CREAT | O_WRONLY | O_TRUNC, 0600);
    dup2(fd, STDERR_FILENO), close(fd);
    const int found = get_again(key);
    fflush(stderr);
    dup2(kept, STDERR_FILENO), close(kept);
    assert_int_equal(found, expected);
    return (char *)read_bytes(file, &size);
}

// The test has a process of its own, before the other tests damage the file: the message comes once
// in each process.
TEST(an_edited_line_is_measured_again_and_that_is_said_once) {
    size_t size;
    const pid_t child = fork();
    if (child == 0) {
        put("one", 1), put("two", 2);
        AUTO_FREE char *whole = said_at("one", 1);
        if (whole && *whole) fail_msg("%s", whole);

        char *text = (char *)read_bytes(cache_file, &size);
        char *digit = strchr(text, '\t') + 1; // of the first line, which is the newest entry
        *digit = *digit == '0' ? '1' : '0';   // another value: the checksum tells
        write_bytes(cache_file, text, size);
        free(text);

        AUTO_FREE char *first = said_at("two", -1), *again = said_at("one", 1);
        assert_non_null(strstr(first, ": 1 damaged line, "));
        assert_non_null(strstr(first, cache_file));
        assert_string_equal(again ? again : "", "");
        _exit(0);
    }

    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

// A checkpoint keeps what a run used. What was not asked for is no part of it, and what stands in
// the file does not count.
TEST(what_a_run_used_is_taken_before_the_file) {
    put("a", 1), put("b", 2);
    assert_int_equal(get_again("a"), 1);

    char *used = choices_file_used(), lines[200];
    assert_memory_equal(used, "a\t01000000\t", 11);
    assert_int_equal(strlen(used), 20);
    snprintf(lines, sizeof lines, "damaged\n%s", used);
    free(used);

    put("a", 3);
    choices_file_restore(lines);

    int value = 0;
    assert_true(choices_file_get("a", &value, sizeof value));
    assert_int_equal(value, 1);
    assert_true(choices_file_get("b", &value, sizeof value));
    assert_int_equal(value, 2);
}

// Lines of a checkpoint count, lines of the file are measured again; neither is damage.
TEST(lines_from_before_there_was_a_checksum_count_in_checkpoints_only) {
    static const char old[] = "a\t01000000\n";
    int value = 0;
    write_bytes(cache_file, old, strlen(old));
    AUTO_FREE char *said = said_at("a", -1);
    assert_string_equal(said ? said : "", "");
    put("b", 2);
    assert_int_equal(get_again("b"), 2);
    choices_file_restore(old);
    assert_true(choices_file_get("a", &value, sizeof value));
    assert_int_equal(value, 1);
}

// How many of first, second and third, which are 1, 2, 3, are lost or, *other of them, have another
// value.
static int lost(int *other) {
    const int found[] = {get_again("first"), get_again("second"), get_again("third")};
    int missing = 0;
    *other = 0;
    for (int i = 0; i < 3; i++) {
        missing += found[i] != i + 1;
        *other += found[i] != i + 1 && found[i] != -1;
    }
    return missing;
}

// Cut at every length, the file gives whole entries or none, and takes new ones; a flipped bit
// spoils one line, or two where the end of a line is hit.
TEST(damage_costs_what_was_damaged) {
    put("first", 1), put("second", 2), put("third", 3);
    size_t size;
    AUTO_FREE char *text = (char *)read_bytes(cache_file, &size);

    for (size_t bit = 0; bit < 8 * size; bit++) {
        text[bit / 8] = (char)(text[bit / 8] ^ 1 << bit % 8);
        write_bytes(cache_file, text, size);
        int other;
        assert_in_range(lost(&other), 0, 2);
        assert_int_equal(other, 0);
        text[bit / 8] = (char)(text[bit / 8] ^ 1 << bit % 8);
    }

    for (size_t length = 0; length <= size; length++) {
        write_bytes(cache_file, text, length);
        int other;
        const int missing = lost(&other);
        assert_int_equal(other, 0);
        if (length == size) assert_int_equal(missing, 0);
    }

    write_bytes(cache_file, text, size / 2);
    choices_file_close();
    put("fourth", 4);
    assert_int_equal(get_again("third"), 3); // the newest stands first
    assert_int_equal(get_again("fourth"), 4);
}

TEST(garbage_is_skipped) {
    put("good", 7);
    size_t size;
    AUTO_FREE char *line = (char *)read_bytes(cache_file, &size);

    static const char empty_fields[] = {'\n', '\t', '\t', '\n', '\n', 0,
                                        '\n', '\t', '0',  '0',  '\n'};
    static char file[300000];
    size_t n = 0;

    memset(file, 'x', 200000), n = 200000; // one very long line
    for (size_t i = 0; i < sizeof empty_fields; i++) file[n++] = empty_fields[i];
    for (int i = 0; i < 3000; i++) file[n++] = (char)(i * 7919 >> 3);
    file[n++] = '\n';

    memcpy(file + n, line, size), n += size;
    write_bytes(cache_file, file, n);
    assert_int_equal(get_again("good"), 7);
}

TEST(keys_that_would_break_lines_and_values_too_large_are_not_kept) {
    put("tab\there", 1), put("line\nbreak", 1), put("", 1), put("fine", 2);
    char long_key[CHOICES_KEY_MAX + 1] = {0}, large[CHOICES_VALUE_MAX + 1] = {0};
    memset(long_key, 'k', CHOICES_KEY_MAX);
    put(long_key, 1);
    choices_file_put("large", large, sizeof large);

    assert_int_equal(get_again("tab\there"), -1);
    assert_int_equal(get_again(long_key), -1);
    assert_int_equal(get_again("fine"), 2);

    long_key[CHOICES_KEY_MAX - 1] = 0;
    choices_file_put(long_key, large, CHOICES_VALUE_MAX);
    choices_file_close();
    assert_true(choices_file_get(long_key, large, CHOICES_VALUE_MAX));
}

TEST(a_file_that_cannot_be_used_is_no_error) {
    const char *places[] = {"off", "/dev/null", "/nonexistent/directory/tuning", tmp.path};

    for (int i = 0; i < 4; i++) {
        setenv("PRETRAIN_CACHE", places[i], 1);
        choices_file_close();
        put("kept in memory", 5), put("this too", 6);
        int value = 0;
        assert_true(choices_file_get("kept in memory", &value, sizeof value));
        assert_int_equal(value, 5);
        assert_int_equal(get_again("kept in memory"), -1);
    }

    struct stat st;
    assert_true(stat("/dev/null", &st) == 0 && S_ISCHR(st.st_mode));
    assert_int_equal(access("off", F_OK), -1);

    // nobody writes into it: reading would wait for ever
    assert_int_equal(mkfifo(cache_file, 0600), 0);
    setenv("PRETRAIN_CACHE", cache_file, 1);
    assert_int_equal(get_again("anything"), -1);
}

TEST(a_file_of_others_is_moved_and_not_overwritten) {
    static const char mine[] = "a file of the user's\n";
    write_bytes(cache_file, mine, sizeof mine - 1);
    put("a", 1);
    assert_int_equal(get_again("a"), 1);
    size_t bytes;
    Error err;
    AUTO_FREE char *kept = file_read_all(tmp_file("tuning.1"), 100, &bytes, &err);
    assert_non_null(kept);
    assert_string_equal(kept, mine);
}

TEST(a_file_that_is_too_large_for_choices_stays) {
    enum { BYTES = 5 << 20 };
    char *large = calloc(1, BYTES);
    assert_non_null(large);
    memset(large, 'x', BYTES);
    write_bytes(cache_file, large, BYTES);
    choices_file_close();
    put("a", 1);
    struct stat st;
    assert_int_equal(stat(cache_file, &st), 0);
    assert_int_equal(st.st_size, BYTES);
    free(large);
}

TEST(the_default_place_is_made) {
    unsetenv("PRETRAIN_CACHE");
    setenv("XDG_CACHE_HOME", tmp_file("cache"), 1);

    put("a", 1);
    assert_int_equal(get_again("a"), 1);
    assert_int_equal(access(tmp_file("cache/pretrain.cu/tuning"), R_OK), 0);

    setenv("XDG_CACHE_HOME", "relative", 1); // to be ignored
    setenv("HOME", tmp.path, 1);
    put("b", 2);
    assert_int_equal(access(tmp_file(".cache/pretrain.cu/tuning"), R_OK), 0);

    unsetenv("HOME");
    assert_int_equal(get_again("b"), -1);
    put("c", 3);
    unsetenv("XDG_CACHE_HOME");
}

// One that has read the file before another wrote to it keeps what that one found.
TEST(what_another_process_found_meanwhile_stays) {
    int status;
    put("ours", 1);
    const pid_t other = fork();
    if (other == 0) {
        put("theirs", 2);
        _exit(0);
    }
    assert_true(waitpid(other, &status, 0) == other && status == 0);
    put("ours again", 3);
    assert_int_equal(get_again("theirs"), 2);
    assert_true(get_again("ours") == 1 && get_again("ours again") == 3);
}

// Writers at the same time: at every moment the file is whole. What one replaced by the other's
// view may be lost, but the last writer's own entries stand.
TEST(processes_share_the_file) {
    enum { WRITERS = 4, ENTRIES = 25 };
    pid_t writers[WRITERS];

    for (int w = 0; w < WRITERS; w++) {
        writers[w] = fork();
        if (writers[w] == 0) {
            char key[32];
            for (int i = 0; i < ENTRIES; i++) {
                snprintf(key, sizeof key, "writer %d entry %d", w, i);
                put(key, i);
            }
            _exit(0);
        }
    }

    int status, failed = 0;
    for (int w = 0; w < WRITERS; w++)
        failed += waitpid(writers[w], &status, 0) != writers[w] || status != 0;
    assert_int_equal(failed, 0);

    size_t size;
    AUTO_FREE char *text = (char *)read_bytes(cache_file, &size);
    char key[32];
    int lines = 0, found = 0;

    for (size_t i = 0; i < size; i++) lines += text[i] == '\n';
    for (int w = 0; w < WRITERS; w++)
        for (int i = 0; i < ENTRIES; i++) {
            snprintf(key, sizeof key, "writer %d entry %d", w, i);
            found += get_again(key) == i;
        }

    assert_int_equal(found, lines); // every line is whole
    assert_true(
        // A process keeps its own in memory, so the last writer wrote all of its own.
        found >= ENTRIES);
}
