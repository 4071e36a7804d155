// Files and directories that are whole or not there, and the messages when they cannot be made.

#include "llmc/base/atomic_file.h"
#include "llmc/base/directory.h"
#include "llmc/base/file.h"
#include "llmc/base/files_match.h"
#include "llmc/base/path.h"
#include "test/unit/store_fixture.h"

#include <fcntl.h>
#include <xxhash.h>

TestFixture test_each = {setup, tmp_teardown};

static void assert_content(const char *path, const char *expected) {
    size_t n;
    AUTO_FREE char *text = file_read_all(path, 1 << 20, &n, &err);
    assert_non_null(text);
    assert_int_equal(n, strlen(expected));
    assert_string_equal(text, expected);
}

TEST(a_file_appears_only_when_it_is_committed_and_an_abandoned_one_leaves_the_old_one) {
    const char *path = tmp_file("file");
    AtomicFile *f = atomic_file_create(path, &err);
    assert_non_null(f);

    assert_true(atomic_file_write(f, "hello ", 6, &err));
    assert_false(file_exists(path));
    assert_true(atomic_file_write(f, "world", 5, &err));
    assert_true(atomic_file_commit(f, NULL, NULL, &err));
    assert_content(path, "hello world");

    f = atomic_file_create(path, &err);
    assert_true(atomic_file_write(f, "new", 3, &err));
    atomic_file_abandon(f);
    assert_content(path, "hello world");
    assert_int_equal(entries_of(tmp.path), 1);
}

// Pieces around the buffer's 1 MiB, so that every path of the buffer is taken.
TEST(bytes_and_checksum_are_those_of_the_content) {
    const char *path = tmp_file("file");
    const size_t pieces[] = {1, 1 << 20,       17, (1 << 20) - 18, 3, (3 << 20) + 5,
                             0, (1 << 20) - 1, 100};

    size_t total = 0;
    for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++) total += pieces[i];
    AUTO_FREE unsigned char *data = malloc(total);
    for (size_t i = 0; i < total; i++) data[i] = (unsigned char)(i * 2654435761u >> 13);

    AtomicFile *f = atomic_file_create(path, &err);
    for (size_t i = 0, at = 0; i < sizeof pieces / sizeof pieces[0]; at += pieces[i++])
        assert_true(atomic_file_write(f, data + at, pieces[i], &err));
    int64_t bytes, read_bytes;
    uint64_t checksum, read_checksum;

    assert_true(atomic_file_commit(f, &bytes, &checksum, &err));
    assert_int_equal(bytes, total);
    assert_true(checksum == XXH3_64bits(data, total));
    assert_true(file_checksum(path, &read_bytes, &read_checksum, &err));
    assert_int_equal(read_bytes, total);
    assert_true(read_checksum == checksum);

    size_t n;
    AUTO_FREE char *back = file_read_all(path, total, &n, &err);
    assert_int_equal(n, total);
    assert_memory_equal(back, data, total);
}

// RLIMIT_FSIZE makes write(2) fail as a full disk does: at some byte, after a short write.
TEST(a_failed_write_is_remembered_and_cleaned_up) {
    const char *path = tmp_file("file");
    assert_true(file_write_atomic(path, "old", 3, &err));

    limit_file_size(3 << 20);
    AUTO_FREE char *data = calloc(1, 2 << 20);
    AtomicFile *f = atomic_file_create(path, &err);
    bool first = atomic_file_write(f, data, 2 << 20, &err),
         second = atomic_file_write(f, data, 2 << 20, &err);
    bool third = atomic_file_write(f, "x", 1, NULL),
         committed = atomic_file_commit(f, NULL, NULL, &err);

    limit_file_size(RLIM_INFINITY);
    assert_true(first && !second && !third && !committed);
    assert_message("file: cannot write: File too large");

    assert_content(path, "old");
    assert_int_equal(entries_of(tmp.path), 1);
}

TEST(modes_follow_the_umask) {
    struct stat st;
    mode_t old = umask(0027);
    assert_true(file_write_atomic(tmp_file("file"), "", 0, &err));
    assert_true(directory_make(tmp_file("directory"), &err));
    umask(old);
    assert_int_equal(stat(tmp_file("file"), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0640);
    assert_int_equal(stat(tmp_file("directory"), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0750);
}

TEST(reading_refuses_large_missing_and_special_files_and_such_that_end_early) {
    const char *path = tmp_file("file"), *pipe_path = tmp_file("pipe");
    assert_true(file_write_atomic(path, "12345", 5, &err));
    assert_error(file_read_all(path, 4, NULL, &err), "5 bytes, expected at most 4");

    const int fd = open(path, O_RDONLY);
    char out[8];
    assert_true(file_read_at(fd, path, 1, out, 4, &err));
    assert_memory_equal(out, "2345", 4);
    assert_error(file_read_at(fd, path, 2, out, 4, &err),
                 "ends at byte 5, expected 4 bytes at offset 2");
    close(fd);

    assert_error(file_read_all(tmp_file("none"), 4, NULL, &err), "none: cannot open: No such file");
    assert_error(file_read_all(tmp.path, 1 << 20, NULL, &err), "not a plain file");

    assert_int_equal(mkfifo(pipe_path, 0600), 0);
    // and does not wait for a writer
    assert_error(file_read_all(pipe_path, 1 << 20, NULL, &err), "not a plain file");
}

// A pattern below which something cannot be read is no pattern that matches nothing.
TEST(a_pattern_names_files_in_the_order_of_their_bytes) {
    char **names;
    int count;

    for (const char *const *name = (const char *const[]){"b_1", "B_1", "a_1", "a_[1]", "c", NULL};
         *name; name++)
        assert_true(file_write_atomic(tmp_file(*name), "", 0, &err));

    assert_true(files_match(tmp_file("*_1"), &names, &count, &err));
    assert_int_equal(count, 3);
    assert_string_equal(strrchr(names[0], '/'), "/B_1");
    assert_string_equal(strrchr(names[1], '/'), "/a_1");
    assert_string_equal(strrchr(names[2], '/'), "/b_1");
    directory_list_free(names, count);

    // The name is taken as one, not as the pattern of a_1.
    assert_true(files_match(tmp_file("a_[1]"), &names, &count, &err));
    assert_int_equal(count, 1);
    assert_string_equal(strrchr(names[0], '/'), "/a_[1]");
    directory_list_free(names, count);

    for (const char *const *none = (const char *const[]){"d*", "no/*", "c/*", NULL}; *none;
         none++) {
        assert_true(files_match(tmp_file(*none), &names, &count, &err));
        assert_int_equal(count, 0);
    }

    enum { LONG = 1 << 20 }; // directories: glob would need a stack of as many frames
    char *deep = malloc(2 * LONG + 1);
    for (size_t i = 0; i < LONG; i++) memcpy(deep + 2 * i, "*/", 3);
    assert_error(files_match(deep, &names, &count, &err),
                 "a pattern of 2097152 bytes is longer than any path");
    free(deep);

    struct rlimit before;
    getrlimit(RLIMIT_NOFILE, &before);
    limit_resource(RLIMIT_NOFILE, 0); // no directory can be opened
    const bool found = files_match(tmp_file("*_1"), &names, &count, &err);
    limit_resource(RLIMIT_NOFILE, before.rlim_cur);

    assert_false(found);
    assert_message("cannot read the directory: Too many open files");
    assert_int_equal(count, 0);
}

TEST(what_is_missing_or_in_the_way_is_named) {
    assert_error(atomic_file_create(tmp_file("no/file"), &err),
                 "no/file: cannot create: No such file");
    assert_true(file_write_atomic(tmp_file("file"), "", 0, &err));
    assert_error(directory_make(tmp_file("file"), &err),
                 "file: cannot make the directory: Not a directory");
    assert_error(directory_make(tmp_file("file/below"), &err),
                 "file/below: cannot make the directory: Not a directory");
}

// The reason of reading a path, without the name of the temporary directory.
static const char *why_unread(const char *path) {
    static char text[sizeof err.text];
    assert_null(file_read_all(path, 1 << 20, NULL, &err));
    size_t n = 0;
    for (const char *p = err.text; *p; n++) {
        if (strncmp(p, tmp.path, strlen(tmp.path)) == 0) p += strlen(tmp.path) + 1;
        text[n] = *p ? *p++ : '\0';
    }
    text[n] = '\0';
    return text;
}

TEST(the_part_of_a_path_that_is_the_reason_is_named) {
    static char name[301], deep[5000];
    memset(name, 'n', 300);
    for (size_t n = 0; n < sizeof deep - 3; n += 2) memcpy(deep + n, "d/", 3);

    assert_true(directory_make(tmp_file("a/b"), &err));
    write_bytes(tmp_file("a/file"), "", 0);
    assert_int_equal(mkfifo(tmp_file("a/pipe"), 0600), 0);
    assert_int_equal(symlink("gone", tmp_file("a/dangling")), 0);
    assert_int_equal(symlink("loop", tmp_file("a/loop")), 0);

    const char *const cases[][2] = {
        {"none", "none: cannot open: No such file or directory"},
        {"a/none", "a/none: cannot open: No such file or directory"},
        {"a/c/d/f", "a/c/d/f: cannot open: No such file or directory: there is no 'a/c'"},
        {"a/file/f", "a/file/f: cannot open: Not a directory: 'a/file' is a file"},
        {"a/pipe/f", "a/pipe/f: cannot open: Not a directory: 'a/pipe' is a pipe"},
        {"a/file/", "a/file/: cannot open: Not a directory: 'a/file' is a file"},
        {"a/dangling", "a/dangling: cannot open: No such file or directory: 'a/dangling' is a link "
                       "to 'gone', which does "
                       "not exist"},
        {"a/dangling/f", "a/dangling/f: cannot open: No such file or directory: 'a/dangling' is a "
                         "link to 'gone', which "
                         "does not exist"},
        {"a/loop/f", "a/loop/f: cannot open: Too many levels of symbolic links: 'a/loop' is a link "
                     "that leads back to "
                     "itself"},
        {"a/b", "a/b: not a plain file but a directory"},
        {"a/pipe", "a/pipe: not a plain file but a pipe"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_string_equal(why_unread(tmp_file(cases[i][0])), cases[i][1]);

    why_unread(tmp_file(name));
    assert_message("File name too long: the name 'nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn...' has 300 "
                   "bytes, expected at most 255");
    assert_null(file_read_all(deep, 1, NULL, &err));
    assert_message("File name too long: the path has 4998 bytes, expected less than 4096");
    assert_null(file_read_all("/dev/null", 1, NULL, &err));
    assert_message("/dev/null: not a plain file but a device");
    assert_null(file_read_all("", 1, NULL, &err));
    assert_message(": cannot open: No such file or directory: the path is empty");
}

TEST(the_directory_that_may_not_be_entered_or_written_is_named) {
    if (geteuid() == 0) skip(); // root may do all
    assert_true(directory_make(tmp_file("closed/below"), &err));
    write_bytes(tmp_file("own"), "", 0);

    chmod(tmp_file("own"), 0);
    assert_string_equal(why_unread(tmp_file("own")), "own: cannot open: Permission denied");

    chmod(tmp_file("closed"), 0500);
    assert_error(atomic_file_create(tmp_file("closed/f"), &err), "/closed' may not be written");
    chmod(tmp_file("closed"), 0);
    assert_string_equal(
        why_unread(tmp_file("closed/below/f")),
        "closed/below/f: cannot open: Permission denied: 'closed' may not be entered");

    chmod(tmp_file("closed"), 0700);
}

TEST(a_directory_that_cannot_be_made_is_reported_with_the_first_reason) {
    write_bytes(tmp_file("file"), "", 0);
    assert_int_equal(symlink("gone", tmp_file("dangling")), 0);
    assert_error(directory_make(tmp_file("file/b/c"), &err), "/file' is a file");
    assert_error(directory_make(tmp_file("dangling/b"), &err),
                 "/dangling' is a link to 'gone', which does not exist");
    assert_error(directory_make("/proc/none/b", &err),
                 "/proc/none/b: cannot make the directory: No such file");
}

TEST(directories_are_made_with_their_parents_and_the_proof_that_one_is_writable_leaves_nothing) {
    assert_true(directory_make(tmp_file("a/b/c"), &err));
    assert_true(directory_make(tmp_file("a/b/c/"), &err));
    assert_true(file_exists(tmp_file("a/b/c")));
    assert_false(directory_make("", &err));

    const int before = entries_of(tmp_file(""));
    assert_true(directory_check_writable(tmp_file("out"), &err));
    assert_true(directory_check_writable(tmp_file("out/deep/er//"), &err));
    assert_int_equal(entries_of(tmp_file("")), before);

    assert_true(directory_make(tmp_file("there"), &err));
    assert_true(directory_check_writable(tmp_file("there"), &err));
    assert_true(directory_check_writable(tmp_file("there//below"), &err));
    assert_int_equal(entries_of(tmp_file("there")), 0); // and it is there

    assert_true(file_write_atomic(tmp_file("file"), "", 0, &err));
    assert_false(directory_check_writable(tmp_file("file"), &err));
}

static void make_directory_with(const char *name, const char *content) {
    char *directory = path_join(tmp.path, name), *file = path_join(directory, "file");
    assert_true(directory_make(directory, &err));
    assert_true(file_write_atomic(file, content, strlen(content), &err));
    free(file);
    free(directory);
}

TEST(a_committed_directory_takes_its_name_and_the_place_of_the_one_before) {
    for (int before = 0; before <= 1; before++) {
        if (before) make_directory_with("a", "old");
        make_directory_with(".tmp-a", "new");
        assert_true(directory_commit(tmp_file(".tmp-a"), tmp_file("a"), NULL, &err));
        assert_content(tmp_file("a/file"), "new");
        if (before) assert_content(tmp_file(".tmp-a/file"), "old");
        assert_int_equal(entries_of(tmp.path), 1 + before);
    }
}

TEST(a_directory_is_not_committed_over_a_file) {
    make_directory_with(".tmp-a", "new");
    assert_true(file_write_atomic(tmp_file("a"), "file", 4, &err));
    assert_error(directory_commit(tmp_file(".tmp-a"), tmp_file("a"), NULL, &err),
                 "a: cannot rename into place: Not a directory");
    assert_content(tmp_file("a"), "file");
}

TEST(a_directory_of_plain_files_is_removed_and_no_more) {
    make_directory_with("a", "x");
    make_directory_with("b/nested", "x");
    assert_true(directory_remove(tmp_file("a"), &err));
    assert_false(file_exists(tmp_file("a")));
    assert_error(directory_remove(tmp_file("b"), &err), "b/nested: cannot remove");
    assert_content(tmp_file("b/nested/file"), "x");
}
