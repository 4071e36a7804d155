// A corpus that is prepared by runs which are killed: after any block the next one resumes at the last complete shard
// and ends with the same bytes; and what it finds in .tmp-prepare is never believed when it does not hold together.

#include "llmc/base/directory.h"
#include "llmc/base/file.h"
#include "llmc/base/path.h"
#include "llmc/text/corpus.h"
#include "test/unit/mutate.h"

#include <xxhash.h>

enum { FILES = 14, SHARD_TOKENS = 1500 };

static char out[PATH_MAX], text[PATH_MAX], said[1200];
static int kill_at, blocks;

static void on_progress(void *user, const CorpusProgress *progress) {
    (void)user, (void)progress;
    if (++blocks == kill_at) raise(SIGKILL);
}

static void on_notice(void *user, const char *notice) {
    (void)user;
    snprintf(said, sizeof said, "%s", notice);
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
            n += sprintf(bytes + n, i == 9 ? n ? "{\"text\": %d\n" : "{\"text\": \"a %d\"}\n" : "line %d.\n", i * n);
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
                           .on_progress = on_progress,
                           .on_notice = on_notice};
}

static int run(const CorpusOptions *options, Error *err) {
    CorpusResult result;
    said[0] = '\0', blocks = 0;
    const int status = corpus_run(options, &result, err);
    corpus_counts_clear(&result.counts);
    return status;
}

// In a process of its own, which dies when block number `at` has been written; true: it did.
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

// What an undisturbed run writes, and how many blocks it has.
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

static void kill_after_every_block(const CorpusOptions *options, int least) {
    int count, resumed = 0;
    const uint64_t expected = whole(options, &count);
    for (int at = 1; at <= count; at++) {
        assert_true(run_killed(options, at));
        if (at % 2 == 0 && at < count / 2) assert_true(run_killed(options, 3)); // and once more, soon after
        assert_whole(options, expected);
        resumed += strstr(said, "resuming an unfinished run after ") != NULL;
    }
    assert_true(resumed >= least);
}

TEST(a_run_killed_after_any_block_ends_with_the_same_bytes) {
    Tokenizer *t = tokenizer_bytes(NULL);
    const CorpusOptions options = options_of(t);
    kill_after_every_block(&options, FILES - 4);
    tokenizer_free(t);
}

TEST(a_run_that_trains_its_vocabulary_keeps_it) {
    const CorpusOptions options = options_of(NULL);
    kill_after_every_block(&options, FILES - 2);
}

// The state after a kill in the middle, for tests that change something before the next run.
static const char *interrupt(const CorpusOptions *options, int at) {
    assert_true(run_killed(options, at));
    return tmp_file("out/.tmp-prepare/manifest.json");
}

static void assert_starts_over(const CorpusOptions *options, const char *why) {
    Error err;
    if (run(options, &err) != EXIT_OK) fail_msg("%s", err.text);
    if (!strstr(said, why) || !strstr(said, "; starting over")) fail_msg("\"%s\" instead of \"%s\"", said, why);
    const uint64_t found = contents(out);
    start_over();
    assert_whole(options, found);
}

// A file is changed while the run is interrupted, or the run then asked for is another one.
static void assert_change_starts_over(const CorpusOptions *options, const CorpusOptions *other, const char *changed,
                                      const char *content, const char *why) {
    interrupt(options, options->tokenizer ? FILES - 2 : 2 * FILES); // all blocks are counted for a vocabulary before
    if (changed) write_bytes(tmp_file(changed), content, strlen(content));
    assert_starts_over(other, why);
}

TEST(what_has_changed_starts_over_and_is_named) {
    static const char shard[] = "out/.tmp-prepare/train_000001.bin", vocabulary[] = "out/.tmp-prepare/tokenizer.json";
    Tokenizer *t = tokenizer_bytes(NULL);
    const CorpusOptions options = options_of(t), trained = options_of(NULL);
    CorpusOptions other = options;
    other.val_fraction = 0.25;
    assert_change_starts_over(&options, &other, NULL, NULL, "the options changed");
    other = options, other.split_at = "line";
    assert_change_starts_over(&options, &other, NULL, NULL, "the options changed");
    other = options, other.shard_tokens++;
    assert_change_starts_over(&options, &other, NULL, NULL, "the options changed");
    assert_change_starts_over(&options, &trained, NULL, NULL, "the tokenizer changed");
    other = trained, other.vocab++;
    assert_change_starts_over(&trained, &other, NULL, NULL, "the tokenizer changed");
    assert_change_starts_over(&trained, &trained, vocabulary, "{\"version\"", "train:300: not valid JSON");
    assert_change_starts_over(&options, &options, "text/99.txt", "one more", "the inputs changed");
    assert_change_starts_over(&options, &options, "text/99.txt", "another.", "the inputs changed"); // by its time
    assert_change_starts_over(&options, &options, shard, "cut short", "train_000001.bin: does not have the ");
    interrupt(&options, FILES - 2);
    other = options, other.skip_bad = false;
    Error err;
    assert_int_equal(run(&other, &err), EXIT_BAD_INPUT);
    assert_non_null(strstr(said, "it skipped bad input, but --skip-bad is not given now; starting over"));
    tokenizer_free(t);
}

TEST(a_damaged_state_is_refused_or_gives_the_same_bytes) {
    Tokenizer *t = tokenizer_bytes(NULL);
    const CorpusOptions options = options_of(t);
    int count, refused = 0;
    const uint64_t expected = whole(&options, &count);
    size_t n;
    unsigned char *saved = read_bytes(interrupt(&options, FILES - 2), &n), *damaged = malloc(n + 3 * MUTATE_MAX_GROWTH);
    start_over();
    for (uint64_t round = 0; round < 80; round++) {
        // Over the shards of another kill: what comes later there is cut off, or missing.
        const char *path = interrupt(&options, round % 2 ? FILES - 1 : FILES - 4);
        const size_t before = n / 2; // the resume object is at the end
        memcpy(damaged, saved, n);
        write_bytes(path, damaged, before + mutate(damaged + before, n - before, n - before, round));
        assert_whole(&options, expected);
        refused += strstr(said, "starting over") != NULL;
    }
    free(saved), free(damaged);
    assert_in_range(refused, 40, 80);
    tokenizer_free(t);
}

static void write_shard(const char *path) {
    Error err;
    const uint16_t tokens[] = {1, 2, 3};
    ShardWriter *w = shard_writer_open(path, 2, 257, 256, 0, &err);
    if (!w || !shard_writer_append(w, tokens, 3, &err) || !shard_writer_commit(w, &err)) fail_msg("%s", err.text);
}

// Something in the way stands for a kill at that place.
TEST(a_run_that_was_ended_while_it_moved_its_shards_is_completed) {
    static const char *const obstacles[] = {"train_000001.bin", "tokenizer.json", "val_000001.bin", "manifest.json",
                                            "train_000077.bin"};
    Tokenizer *t = tokenizer_bytes(NULL);
    CorpusOptions options = options_of(t);
    options.force = true;
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
        assert_int_equal(run(&options, &err), EXIT_RUN_FAILED);
        assert_non_null(strstr(err.text, "finished shards are kept, and the same command resumes there"));
        assert_false(file_exists(tmp_file("out/manifest.json")) && i != 3);
        unlink(tmp_file(inside)), rmdir(tmp_file(name));
        assert_whole(&options, expected);
        assert_string_equal(said, "");
    }
    tokenizer_free(t);
}
