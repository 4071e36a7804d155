// A corpus that is prepared by runs which are killed: what they leave is no corpus, and the next
// run makes a whole one.

#include "llmc/base/directory.h"
#include "llmc/base/file.h"
#include "llmc/base/path.h"
#include "llmc/data/shards.h"
#include "llmc/text/corpus.h"
#include "test/fixture.h"

#include <xxhash.h>

enum { FILES = 14, SHARD_TOKENS = 1500 };

static char out[PATH_MAX / 2], text[PATH_MAX / 2];
static int kill_at, blocks;

static void on_progress(void *user, const CorpusProgress *progress) {
    (void)user, (void)progress;
    if (++blocks == kill_at) raise(SIGKILL);
}

// Files of a few hundred bytes, each a block and a document of its own, and lines, one of them bad.
static int set_up(void **state) {
    tmp_setup(state);
    snprintf(out, sizeof out, "%s", tmp_file("out"));
    snprintf(text, sizeof text, "%s", tmp_file("text"));
    mkdir(text, 0777);

    for (int i = 0; i < FILES; i++) {
        char name[40], bytes[900];
        snprintf(name, sizeof name, "text/%02d.%s", i, i == 9 ? "jsonl" : "txt");
        int n = 0;
        while (n < 700)
            n += sprintf(bytes + n,
                         i == 9 ? n ? "{\"text\": %d\n" : "{\"text\": \"a %d\"}\n" : "line %d.\n",
                         i * n);
        write_bytes(tmp_file(name), bytes, (size_t)n);
    }
    return 0;
}
TestFixture test_each = {set_up, tmp_teardown};

static CorpusOptions options_of(const Tokenizer *t) {
    static char *const arguments[] = {text};
    return (CorpusOptions){.inputs = {.arguments = arguments, .count = 1, .output = out},
                           .field = "text",
                           .val_fraction = 0.2,
                           .skip_bad = true,
                           .threads = 2,
                           .tokenizer = t,
                           .vocab = 300,
                           .vocab_option = "",
                           .tool = "",
                           .tool_options = "",
                           .shard_tokens = SHARD_TOKENS,
                           .on_progress = on_progress};
}

static int run(const CorpusOptions *options, Error *err) {
    CorpusResult result;
    blocks = 0;
    const int status = corpus_run(options, &result, err);
    corpus_counts_clear(&result.counts);
    return status;
}

// A process of its own runs this, and dies when block number `at` has been written; true: it did.
static bool run_killed(const CorpusOptions *options, int at) {
    const pid_t child = fork();
    if (child == 0) {
        Error err;
        kill_at = at;
        _exit(run(options, &err));
    }
    int status;
    waitpid(child, &status, 0);
    assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) == EXIT_OK);
    return WIFSIGNALED(status);
}

// XXH3 of all names and contents.
static uint64_t contents(const char *directory) {
    char **names;
    int count;
    uint64_t sum = 0;
    Error err;
    if (!directory_list(directory, &names, &count, &err)) fail_msg("%s", err.text);

    for (int i = 0; i < count; i++) {
        char *path = path_join(directory, names[i]);
        int64_t bytes;
        uint64_t checksum;
        if (!file_checksum(path, &bytes, &checksum, &err)) fail_msg("%s", err.text);
        sum += XXH3_64bits_withSeed(names[i], strlen(names[i]), checksum);
        free(path);
    }

    directory_list_free(names, count);
    return sum;
}

static void start_over(void) {
    TmpDir dir;
    snprintf(dir.path, sizeof dir.path, "%s", out);
    tmpdir_remove(&dir);
}

// Finds what an undisturbed run writes, and how many blocks it has.
static uint64_t whole(const CorpusOptions *options, int *count) {
    Error err;
    if (run(options, &err) != EXIT_OK) fail_msg("%s", err.text);
    *count = blocks;
    const uint64_t sum = contents(out);
    start_over();
    return sum;
}

static void assert_whole(const CorpusOptions *options, uint64_t expected) {
    Error err;
    if (run(options, &err) != EXIT_OK) fail_msg("%s", err.text);
    assert_true(contents(out) == expected);
    start_over();
}

static bool has_file(const char *name) {
    char path[80];
    snprintf(path, sizeof path, "out/%s", name);
    return file_exists(tmp_file(path));
}

static void kill_after_every_block(const CorpusOptions *options) {
    int count;
    const uint64_t expected = whole(options, &count);
    for (int at = 1; at <= count; at++) {
        assert_true(run_killed(options, at));
        // and once more, soon after
        if (at % 2 == 0 && at < count / 2) assert_true(run_killed(options, 3));
        assert_false(has_file("manifest.json") || has_file("train_000000.bin") ||
                     has_file("val_000000.bin"));
        assert_whole(options, expected);
    }
}

TEST(a_run_killed_after_any_block_leaves_no_corpus_and_the_next_one_makes_it) {
    Tokenizer *t = tokenizer_bytes(NULL);
    const CorpusOptions options = options_of(t);
    kill_after_every_block(&options);
    tokenizer_free(t);
}

TEST(a_run_that_trains_its_vocabulary_may_be_killed_too) {
    const CorpusOptions options = options_of(NULL);
    kill_after_every_block(&options);
}

TEST(another_request_may_follow_a_run_that_was_killed) {
    Tokenizer *t = tokenizer_bytes(NULL);
    const CorpusOptions options = options_of(t);
    CorpusOptions other = options;
    other.shard_tokens = 5000; // fewer shards
    int count;
    const uint64_t expected = whole(&other, &count);
    assert_true(run_killed(&options, FILES));
    assert_whole(&other, expected);
    tokenizer_free(t);
}

TEST(a_corpus_outlives_a_run_that_was_killed_before_it_replaced_it) {
    Tokenizer *t = tokenizer_bytes(NULL);
    const CorpusOptions options = options_of(t);
    CorpusOptions other = options;
    Error err;

    if (run(&options, &err) != EXIT_OK) fail_msg("%s", err.text);
    const uint64_t expected = contents(out);

    other.force = true, other.val_fraction = 0.3;
    assert_true(run_killed(&other, FILES - 2));

    assert_int_equal(run(&options, &err), EXIT_BAD_INPUT);
    assert_non_null(strstr(err.text, "shards of an earlier run"));
    assert_true(contents(out) == expected); // without what the run has left

    tokenizer_free(t);
}

static void write_shard(const char *path) {
    Error err;
    const uint16_t tokens[] = {1, 2, 3};
    ShardWriter *w = shard_writer_open(path, 2, 257, 256, &err);
    if (!w || !shard_writer_append(w, tokens, 3, &err) || !shard_writer_commit(w, &err))
        fail_msg("%s", err.text);
}

// Something in the way stands for a call that fails there.
TEST(a_run_that_fails_while_it_moves_its_shards_takes_them_back) {
    static const char *const obstacles[] = {"train_000001.bin", "tokenizer.json", "val_000001.bin",
                                            "manifest.json", "train_000077.bin"};
    Tokenizer *t = tokenizer_bytes(NULL);
    const CorpusOptions options = options_of(t);
    CorpusOptions forced = options;
    forced.force = true;

    int count;
    const uint64_t expected = whole(&options, &count);

    for (size_t i = 0; i < sizeof obstacles / sizeof *obstacles; i++) {
        char name[60], inside[80];
        Error err;
        snprintf(name, sizeof name, "out/%s", obstacles[i]);
        snprintf(inside, sizeof inside, "%s/in", name);

        mkdir(out, 0777), mkdir(tmp_file(name), 0777);
        write_bytes(tmp_file(inside), "x", 1);
        write_shard(tmp_file("out/val_000099.bin")); // what an earlier run left
        assert_int_equal(run(&forced, &err), EXIT_RUN_FAILED);
        unlink(tmp_file(inside)), rmdir(tmp_file(name));

        // An obstacle to the manifest stops the run before it removes anything.
        if (i == 3) unlink(tmp_file("out/val_000099.bin"));
        assert_int_equal(rmdir(out), 0);
        assert_whole(&options, expected);
    }

    tokenizer_free(t);
}

TEST(a_run_that_was_killed_while_it_moved_its_shards_is_replaced_without_force) {
    Tokenizer *t = tokenizer_bytes(NULL);
    const CorpusOptions options = options_of(t);
    static const char *const last[] = {"manifest.json", "val_000000.bin", "tokenizer.json",
                                       "train_000001.bin"};

    int count;
    const uint64_t expected = whole(&options, &count);

    for (int moved_back = 1; moved_back <= (int)(sizeof last / sizeof *last); moved_back++) {
        Error err;
        if (run(&options, &err) != EXIT_OK) fail_msg("%s", err.text);

        mkdir(tmp_file("out/.tmp-prepare"), 0777);
        for (int i = 0; i < moved_back; i++) {
            char from[60], to[80];
            snprintf(from, sizeof from, "%s/%s", out, last[i]);
            snprintf(to, sizeof to, "%s/.tmp-prepare/%s", out, last[i]);
            assert_int_equal(rename(from, to), 0);
        }

        if (moved_back % 2) assert_true(run_killed(&options, 2));
        assert_whole(&options, expected);
    }

    tokenizer_free(t);
}
