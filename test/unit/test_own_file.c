// Files of the user's in the places of ours: what is written over, what is moved aside, and what
// the user is told.

#include "llmc/base/append_file.h"
#include "llmc/base/directory_lock.h"
#include "llmc/base/file.h"
#include "llmc/base/own_file.h"
#include "llmc/base/path.h"
#include "test/unit/store_fixture.h"

#include <fcntl.h>
#include <sys/file.h>

TestFixture test_each = {setup, tmp_teardown};

static const char MARK[] = "{\"mark\":";

static void assert_text(const char *path, const char *expected) {
    AUTO_FREE char *text = file_read_all(path, 1 << 20, NULL, &err);
    assert_non_null(text);
    assert_string_equal(text, expected);
}

static bool write_ours(const char *path, const char *text) {
    return own_file_write(path, MARK, text, strlen(text), &err);
}

TEST(a_file_of_ours_is_written_over_and_anything_else_is_moved_aside) {
    AUTO_FREE char *path = strdup(tmp_file("file.json"));
    assert_true(write_ours(path, "{\"mark\":1}"));
    assert_true(write_ours(path, "{\"mark\":2}"));
    assert_text(path, "{\"mark\":2}");
    assert_int_equal(entries_of(tmp.path), 1);

    write_text(path, "mine");
    assert_true(write_ours(path, "{\"mark\":3}"));
    assert_text(path, "{\"mark\":3}");
    assert_text(tmp_file("file.json.1"), "mine");

    write_text(path, "mine too");
    assert_true(write_ours(path, "{\"mark\":4}"));
    assert_text(tmp_file("file.json.1"), "mine");
    assert_text(tmp_file("file.json.2"), "mine too");
}

TEST(a_link_is_renamed_and_the_file_behind_it_is_not_touched) {
    AUTO_FREE char *path = strdup(tmp_file("file.json")), *target = strdup(tmp_file("notes"));
    write_text(target, "mine");
    assert_int_equal(symlink(target, path), 0);
    assert_true(write_ours(path, "{\"mark\":1}"));
    assert_text(path, "{\"mark\":1}");
    assert_text(target, "mine");
    assert_text(tmp_file("file.json.1"), "mine");
    assert_int_equal(symlink(tmp_file("absent"), tmp_file("dangling")), 0);
    assert_true(write_ours(tmp_file("dangling"), "{\"mark\":1}"));
    assert_false(file_exists(tmp_file("absent")));
}

TEST(a_lock_and_a_log_do_not_follow_links) {
    AUTO_FREE char *lock = strdup(tmp_file(".lock")), *log = strdup(tmp_file("main.log"));
    AUTO_FREE char *target = strdup(tmp_file("notes"));
    int fd;
    AppendFile file = {.fd = -1};

    write_text(target, "process 7\n");
    assert_int_equal(symlink(target, lock), 0);
    assert_int_equal(symlink(target, log), 0);

    assert_error(directory_hold(tmp.path, &fd, &err),
                 ".lock: cannot be opened: Too many levels of symbolic links: it is a "
                 "link, and nothing is written through links");
    assert_error(append_file_open(&file, log, false, &err), "it is a link");

    append_file_close(&file);
    assert_text(target, "process 7\n");
}

TEST(a_lock_of_another_program_is_not_shown_and_not_cut) {
    AUTO_FREE char *lock = strdup(tmp_file(".lock"));
    int fd;
    write_text(lock, "secret");
    const int theirs = open(lock, O_RDONLY);
    assert_int_equal(flock(theirs, LOCK_EX), 0);
    assert_error(directory_hold(tmp.path, &fd, &err), "in use by another process");
    assert_text(lock, "secret");
    close(theirs);
    assert_error(directory_hold(tmp.path, &fd, &err), ".lock was not written by this program");
    assert_text(lock, "secret");
}

TEST(a_directory_or_a_device_in_the_way_is_an_error) {
    AUTO_FREE char *path = strdup(tmp_file("file.json"));
    assert_int_equal(mkdir(path, 0755), 0);
    assert_error(write_ours(path, "{\"mark\":1}"),
                 "file.json: cannot rename into place: Is a directory");
    assert_int_equal(entries_of(tmp.path), 1);
    assert_error(write_ours("/dev/null", "{\"mark\":1}"),
                 "/dev/null: cannot create: it exists and is not a plain file");
}

TEST(nothing_and_zeros_are_written_over_and_the_mark_must_be_near_the_beginning) {
    AUTO_FREE char *path = strdup(tmp_file("file.json"));
    static char large[OWN_FILE_MARK_BYTES + 100];

    write_text(path, "");
    assert_true(own_file_is(path, MARK));
    write_bytes(path, large, sizeof large); // after a loss of power
    assert_true(own_file_is(path, MARK));

    memset(large, ' ', sizeof large);
    memcpy(large + OWN_FILE_MARK_BYTES, MARK, strlen(MARK));
    write_bytes(path, large, sizeof large);
    assert_false(own_file_is(path, MARK));

    assert_false(own_file_is(tmp_file("absent"), MARK));
    assert_false(own_file_is(tmp.path, MARK));
}

TEST(a_directory_is_ours_if_each_file_in_it_is) {
    static const OwnFileKind kinds[] = {{"a.json", MARK}, {"b.bin", OWN_FILE_HEADER_MARK}};
    AUTO_FREE char *directory = strdup(tmp_file("dir")), *file = path_join(directory, "a.json");
    AUTO_FREE char *partial = path_join(directory, "b.bin.tmp-12"),
                   *other = path_join(directory, "b.bin.tmp-old");
    int32_t header[OWN_FILE_HEADER_INTS] = {7};

    own_file_mark_header(header);
    assert_int_equal(header[0], 7);

    assert_int_equal(mkdir(directory, 0755), 0);
    assert_true(own_directory_is(directory, kinds, 2, false, &err));
    write_text(file, "{\"mark\":1}");
    write_bytes(partial, header, sizeof header);
    assert_true(own_directory_is(directory, kinds, 2, false, &err));

    static char torn[3 * 4096]; // a loss of power has kept the second block of a file that was
                                // being written
    torn[5000] = 'x';
    write_bytes(partial, torn, sizeof torn);
    assert_true(own_directory_is(directory, kinds, 2, false, &err));
    torn[4000] = 'x';
    write_bytes(partial, torn, sizeof torn);
    assert_error(own_directory_is(directory, kinds, 2, false, &err),
                 "b.bin.tmp-12 in it was not written");
    torn[4000] = '\0';

    assert_int_equal(unlink(partial), 0);
    // a complete one has been made durable before it got its name
    write_bytes(file, torn, sizeof torn);
    assert_error(own_directory_is(directory, kinds, 2, false, &err),
                 "a.json in it was not written by this program");

    write_text(file, "mine");
    assert_true(own_directory_is(directory, kinds, 2, true, &err));
    assert_error(own_directory_is(directory, kinds, 2, false, &err),
                 "a.json in it was not written by this program");
    write_text(other, "mine");
    assert_false(own_directory_is(directory, kinds, 2, true, &err));
}

TEST(the_same_file_is_known_under_every_name) {
    AUTO_FREE char *a = strdup(tmp_file("a")), *b = strdup(tmp_file("b")),
                   *c = strdup(tmp_file("c"));
    write_text(a, "x");
    write_text(c, "x");
    assert_int_equal(link(a, b), 0);
    assert_true(path_is_same(a, b));
    assert_false(path_is_same(a, c));
    assert_false(path_is_same(a, tmp_file("absent")));
    assert_int_equal(symlink(a, tmp_file("d")), 0);
    assert_true(path_is_same(tmp_file("d"), b));
}
