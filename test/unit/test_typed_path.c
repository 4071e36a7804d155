// Paths that are typed and pasted: a shell gives back what was quoted, glob what was escaped,
// whatever bytes a name has.
#include "llmc/base/directory.h"
#include "llmc/base/files_match.h"
#include "llmc/base/path.h"
#include "llmc/base/typed_path.h"
#include "test/fixture.h"

#include <limits.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

TestFixture test_each = {tmp_setup, tmp_teardown};

static const char *const names[] = {
    "plain-1.0_a", "two words", "it's",     "\"quoted\"", "$HOME",           "~",
    "-dash",       "a*b",       "[x]",      "what?",      "back\\slash",     "a;b&c",
    "new\nline",   "\x1b[31m",  "\xff\xfe", "\xc2\x85",   "umlaut \xc3\xbc", "#",
    "!!",          "(a)",       "'"};
enum { NAMES = sizeof names / sizeof *names };

// Bash reads the word.
static void read_word(const char *word, char *out, size_t size) {
    char command[4096];
    snprintf(command, sizeof command, "bash -c 'printf %%s \"$1\"; printf .' - %s >%s", word,
             tmp_file("word"));
    write_bytes(tmp_file("script"), command, strlen(command));
    snprintf(command, sizeof command, "bash %s", tmp_file("script"));
    assert_int_equal(system(command), 0);
    FILE *f = fopen(tmp_file("word"), "r");
    const size_t n = fread(out, 1, size - 1, f);
    fclose(f);
    assert_true(n > 0 && out[n - 1] == '.');
    out[n - 1] = '\0';
}

TEST(a_quoted_path_is_one_word_on_one_line_and_the_same_for_a_shell) {
    for (int i = 0; i < NAMES; i++) {
        char back[256], expected[256];
        const QuotedPath q = path_quoted(names[i]);
        assert_null(strpbrk(q.text, "\n\x1b"));
        read_word(q.text, back, sizeof back);
        snprintf(expected, sizeof expected, "%s%s", names[i][0] == '-' ? "./" : "", names[i]);
        assert_string_equal(back, expected);
    }
    assert_string_equal(path_quoted("runs/a-1.bin").text, "runs/a-1.bin"); // nothing to quote
    assert_string_equal(path_quoted("a/train_*.bin").text, "'a/train_*.bin'");
    assert_string_equal(path_quoted("").text, "''");
}

TEST(a_path_too_long_for_any_system_is_cut) {
    char *path = calloc(1, 5 * PATH_MAX);
    memset(path, '\x01', 5 * PATH_MAX - 1);
    const QuotedPath q = path_quoted(path);
    assert_true(strlen(q.text) < 4 * PATH_MAX + 8 && q.text[strlen(q.text) - 1] == '\'');
    free(path);
}

static void assert_matches(const char *pattern, const char *expected) {
    char **found;
    int count;
    assert_true(files_match(pattern, &found, &count, NULL));
    assert_int_equal(count, 1);
    assert_string_equal(found[0], expected);
    directory_list_free(found, count);
}

TEST(an_escaped_path_matches_itself_alone) {
    char files[NAMES][300];
    for (int i = 0; i < NAMES; i++) {
        snprintf(files[i], sizeof files[i], "%s", tmp_file(names[i]));
        assert_int_equal(mkdir(files[i], 0755), 0);
    }

    for (int i = 0; i < NAMES; i++) {
        char *escaped = path_escaped(files[i]), *in = path_join(escaped, "t*_1.bin"),
             *file = path_join(files[i], "train_1.bin"), *numbered = path_numbered(file);
        write_bytes(file, "", 0);

        assert_matches(escaped, files[i]);
        assert_matches(in, file);
        assert_matches(numbered, file);

        free(escaped), free(in), free(numbered), free(file);
    }
}

TEST(files_of_one_corpus_differ_in_their_number) {
    const char *const cases[][2] = {{"a/train_000012.bin", "a/train_*.bin"},
                                    {"fineweb_val_000000.bin", "fineweb_val_*.bin"},
                                    {"tiny_shakespeare_train.bin", "tiny_shakespeare_train.bin"},
                                    {"gpt2.bin", "gpt2.bin"},
                                    {"1.bin", "1.bin"},
                                    {"[a]/x-7.bin", "\\[a]/x-*.bin"},
                                    {"a.1/x", "a.1/x"}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *found = path_numbered(cases[i][0]);
        assert_string_equal(found, cases[i][1]);
        free(found);
    }
}

static void assert_typed(const char *directory, const char *path, const char *expected) {
    char *found = path_typed_in(directory, path);
    assert_string_equal(found, expected);
    free(found);
}

TEST(a_path_is_looked_for_where_it_was_typed_then_left_as_it_is) {
    char there[300], expected[400];
    // what has to be escaped in a pattern, and not in a name
    snprintf(there, sizeof there, "%s", tmp_file("[ru*n]"));
    assert_int_equal(mkdir(there, 0755), 0);

    assert_typed(there, "train_*.bin", "train_*.bin");
    snprintf(expected, sizeof expected, "%s/train_1.bin", there);
    write_bytes(expected, "", 0);
    assert_typed(there, "train_1.bin", expected);

    char *escaped = path_escaped(there);
    snprintf(expected, sizeof expected, "%s/train_*.bin", escaped);
    assert_typed(there, "train_*.bin", expected);
    assert_typed(there, "/no/such", "/no/such");

    free(escaped);
}

TEST(tools_of_the_checkout_are_found_from_anywhere) {
    char *here = path_working_directory();
    assert_string_equal(path_of_tool("scripts/plot_memory.py").text, "scripts/plot_memory.py");
    assert_int_equal(chdir(tmp.path), 0);
    assert_true(path_of_tool("scripts/plot_memory.py").text[0] == '/');
    assert_string_equal(path_of_tool("data/no_such").text, "data/no_such");
    assert_int_equal(chdir(here), 0);
    free(here);
}

TEST(a_tilde_at_the_beginning_is_the_home_directory) {
    static const char *const paths[][2] = {{"~", "/h"},
                                           {"~/a/*.bin", "/h/a/*.bin"},
                                           {"a/~", "a/~"},
                                           {"./~/a", "./~/a"},
                                           {"~no_such_user/a", "~no_such_user/a"},
                                           {"", ""}};

    assert_int_equal(setenv("HOME", "/h", 1), 0);
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        AUTO_FREE char *found = path_from_home(paths[i][0]);
        assert_string_equal(found, paths[i][1]);
    }

    const struct passwd *root = getpwnam("root");
    assert_non_null(root);
    AUTO_FREE char *of_user = path_from_home("~root/a"), *expected = path_join(root->pw_dir, "a");
    assert_string_equal(of_user, expected);

    assert_int_equal(unsetenv("HOME"), 0);
    AUTO_FREE char *without = path_from_home("~/a"); // from the list of users
    assert_int_equal(without[0], '/');
}
