// The corpus writer: every token lands in its side's shards in order, and a writer that died can be taken up at the
// place where it was last synced, whatever it did after that.

#include "llmc/data/shards.h"
#include "llmc/text/corpus.h"
#include "test/fixture.h"

#include <xxhash.h>

enum { SHARD_TOKENS = 100, VOCAB = 5000 };

static CorpusShards shards[CORPUS_SIDES]; // of the open writer

static int set_up(void **state) {
    memset(shards, 0, sizeof shards);
    return tmp_setup(state);
}

static int tear_down(void **state) {
    free(shards[0].shards), free(shards[1].shards);
    return tmp_teardown(state);
}
TestFixture test_each = {set_up, tear_down};

static CorpusWriter *open_writer(int token_bytes) {
    const CorpusWriterOptions options = {.directory = tmp.path,
                                         .token_bytes = token_bytes,
                                         .vocab = token_bytes == 4 ? 70000 : VOCAB,
                                         .eot = 7,
                                         .shard_tokens = SHARD_TOKENS};
    Error err;
    CorpusWriter *w = corpus_writer_open(&options, shards, &err);
    if (!w) fail_msg("%s", err.text);
    return w;
}

// Appends the numbers from `from` to `to` - 1 as tokens of a side.
static void append(CorpusWriter *w, CorpusSide side, int from, int to) {
    Error err;
    for (int i = from; i < to; i++) {
        const uint16_t token = (uint16_t)i;
        if (!corpus_writer_append(w, side, &token, 1, &err)) fail_msg("%s", err.text);
    }
}

static void finish(CorpusWriter *w) {
    Error err;
    if (!corpus_writer_finish(w, &err)) fail_msg("%s", err.text);
    corpus_writer_free(w);
}

static void assert_side_counts_up_to(CorpusSide side, int count) {
    char pattern[40];
    snprintf(pattern, sizeof pattern, "%s_*.bin", corpus_side_names[side]);
    ShardSet set;
    Error err;
    if (!shards_open(&set, tmp_file(pattern), 1, &err)) fail_msg("%s", err.text);
    assert_int_equal(set.num_tokens, count);
    assert_int_equal(set.count, (count + SHARD_TOKENS - 1) / SHARD_TOKENS);
    assert_int_equal(set.vocab, VOCAB);
    assert_int_equal(set.eot, 7);
    for (int64_t w = 0; w < set.num_windows; w++) {
        uint16_t tokens[2];
        const char *path;
        int64_t offset;
        shards_locate(&set, w, &path, &offset);
        int number = atoi(strrchr(path, '_') + 1);
        assert_true(shards_read_window(&set, w, VOCAB, tokens, &err));
        assert_int_equal(tokens[0], number * SHARD_TOKENS + offset);
        assert_int_equal(tokens[1], tokens[0] + 1);
    }
    shards_close(&set);
}

// A copy of what there is of a side, as the manifest keeps it.
static CorpusShards copy_of(const CorpusShards *side) {
    CorpusShards copy = *side;
    const size_t bytes = (size_t)side->count * sizeof *copy.shards;
    copy.capacity = copy.count + 1;
    copy.shards = malloc((size_t)copy.capacity * sizeof *copy.shards);
    if (bytes > 0) memcpy(copy.shards, side->shards, bytes);
    return copy;
}

TEST(full_shards_are_followed_by_others) {
    CorpusWriter *w = open_writer(2);
    append(w, CORPUS_TRAIN, 0, 350);
    append(w, CORPUS_VAL, 0, 100);
    finish(w);
    assert_side_counts_up_to(CORPUS_TRAIN, 350);
    assert_side_counts_up_to(CORPUS_VAL, 100);
}

TEST(the_checksum_is_that_of_the_file) {
    CorpusWriter *w = open_writer(2);
    append(w, CORPUS_TRAIN, 0, 150);
    Error err;
    assert_true(corpus_writer_finish(w, &err));
    const CorpusShards *train = &shards[CORPUS_TRAIN];
    assert_int_equal(train->count, 2);
    assert_int_equal(train->shards[1].tokens, 50);
    assert_int_equal(train->shards[1].bytes, 1024 + 2 * 50);
    size_t bytes;
    unsigned char *file = read_bytes(tmp_file("train_000000.bin"), &bytes);
    assert_int_equal(train->shards[0].bytes, bytes);
    assert_true(train->shards[0].xxh3 == XXH3_64bits(file, bytes));
    free(file);
    corpus_writer_free(w);
}

TEST(tokens_of_large_vocabularies_take_four_bytes) {
    CorpusWriter *w = open_writer(4);
    const uint32_t tokens[] = {7, 65536, 69999};
    Error err;
    assert_true(corpus_writer_append(w, CORPUS_TRAIN, tokens, 3, &err));
    finish(w);
    ShardSet set;
    if (!shards_open(&set, tmp_file("train_*.bin"), 2, &err)) fail_msg("%s", err.text);
    uint32_t back[3];
    assert_int_equal(set.token_bytes, 4);
    assert_int_equal(set.vocab, 70000);
    assert_true(shards_read_window(&set, 0, 70000, back, &err));
    assert_memory_equal(back, tokens, sizeof tokens);
    shards_close(&set);
}

// A writer syncs after `synced` tokens and dies after `died`; another one goes on and writes up to 350.
static void die_and_continue(int synced, int died) {
    Error err;
    CorpusWriter *w = open_writer(2);
    append(w, CORPUS_TRAIN, 0, synced);
    append(w, CORPUS_VAL, 0, synced / 2);
    assert_true(corpus_writer_sync(w, &err));
    CorpusShards noted[CORPUS_SIDES] = {copy_of(&shards[0]), copy_of(&shards[1])};
    append(w, CORPUS_TRAIN, synced, died);
    append(w, CORPUS_VAL, synced / 2, died / 2);
    corpus_writer_free(w); // leaves its files as a killed one would
    free(shards[0].shards), free(shards[1].shards);
    memcpy(shards, noted, sizeof noted);
    w = open_writer(2);
    append(w, CORPUS_TRAIN, synced, 350);
    append(w, CORPUS_VAL, synced / 2, 175);
    finish(w);
    assert_side_counts_up_to(CORPUS_TRAIN, 350);
    assert_side_counts_up_to(CORPUS_VAL, 175);
}

TEST(a_writer_that_died_is_continued_where_it_was_synced) {
    // Inside a shard, at its end, in the next one, several further on; for both sides, of which one is half as long.
    static const int moments[][2] = {{0, 0},     {0, 30},    {20, 20},   {20, 90},   {40, 100},  {60, 340}, {100, 100},
                                     {100, 180}, {200, 200}, {200, 260}, {240, 300}, {300, 340}, {340, 340}};
    for (size_t i = 0; i < sizeof moments / sizeof moments[0]; i++) {
        die_and_continue(moments[i][0], moments[i][1]);
        tear_down(NULL);
        set_up(NULL);
    }
}

TEST(a_shard_that_is_missing_or_too_short_is_not_continued) {
    Error err;
    CorpusWriter *w = open_writer(2);
    append(w, CORPUS_TRAIN, 0, 250);
    assert_true(corpus_writer_sync(w, &err));
    corpus_writer_free(w);
    const CorpusWriterOptions options = {
        .directory = tmp.path, .token_bytes = 2, .vocab = VOCAB, .eot = 7, .shard_tokens = SHARD_TOKENS};
    shards[CORPUS_TRAIN].open_tokens = 60;
    assert_null(corpus_writer_open(&options, shards, &err));
    assert_non_null(strstr(err.text, "holds fewer than the 60 tokens"));
    unlink(tmp_file("train_000002.bin"));
    assert_null(corpus_writer_open(&options, shards, &err));
    assert_non_null(strstr(err.text, "train_000002.bin: cannot write the shard: No such file"));
    assert_int_equal(truncate(tmp_file("train_000001.bin"), 1000), 0);
    assert_null(corpus_writer_open(&options, shards, &err));
    assert_non_null(strstr(err.text, "train_000001.bin: is not the 1224 bytes"));
}

TEST(a_missing_directory_is_named) {
    CorpusWriter *w = open_writer(2);
    tmpdir_remove(&tmp);
    Error err;
    const uint16_t token = 1;
    assert_false(corpus_writer_append(w, CORPUS_TRAIN, &token, 1, &err));
    assert_non_null(strstr(err.text, "train_000000.bin: cannot write the shard: No such file or directory"));
    corpus_writer_free(w);
}
