// The corpus writer: every token lands in its side's shards in order, and a writer that died can be taken up at the
// place where it was last synced, whatever it did after that.

#include "llmc/text/corpus.h"
#include "llmc/text/tokenizer_internal.h"
#include "test/fixture.h"

#include <xxhash.h>

enum { SHARD_TOKENS = 100, VOCAB = 5000, EOT = 7 };

static const Tokenizer narrow = {.count = VOCAB, .eot = EOT}, wide = {.count = 70000, .eot = EOT};
static CorpusWriter w;
static Error err;

static int set_up(void **state) {
    tmp_setup(state);
    w = (CorpusWriter){.directory = tmp.path, .tokenizer = &narrow, .shard_tokens = SHARD_TOKENS};
    return 0;
}

static int tear_down(void **state) {
    corpus_writer_free(&w);
    return tmp_teardown(state);
}
TestFixture test_each = {set_up, tear_down};

// Appends the numbers from `from` to `to` - 1 as tokens of a side.
static void append(CorpusSide side, int from, int to) {
    for (int i = from; i < to; i++) {
        const uint16_t token = (uint16_t)i;
        assert_ok(corpus_writer_append(&w, side, &token, 1, &err));
    }
}

static void assert_side_counts_up_to(CorpusSide side, int count) {
    char pattern[40];
    snprintf(pattern, sizeof pattern, "%s_*.bin", corpus_side_names[side]);
    ShardSet set;
    assert_ok(shards_open(&set, tmp_file(pattern), 1, &err));
    assert_int_equal(set.num_tokens, count);
    assert_int_equal(set.count, (count + SHARD_TOKENS - 1) / SHARD_TOKENS);
    assert_int_equal(set.vocab, VOCAB);
    assert_int_equal(set.eot, EOT);
    for (int64_t i = 0; i < set.num_windows; i++) {
        uint16_t tokens[2];
        const char *path;
        int64_t offset;
        shards_locate(&set, i, &path, &offset);
        int number = atoi(strrchr(path, '_') + 1);
        assert_true(shards_read_window(&set, i, VOCAB, tokens, &err));
        assert_int_equal(tokens[0], number * SHARD_TOKENS + offset);
        assert_int_equal(tokens[1], tokens[0] + 1);
    }
    shards_close(&set);
}

TEST(full_shards_are_followed_by_others_and_have_the_checksums_of_their_files) {
    append(CORPUS_TRAIN, 0, 350);
    append(CORPUS_VAL, 0, 100);
    assert_ok(corpus_writer_finish(&w, &err));
    assert_side_counts_up_to(CORPUS_TRAIN, 350);
    assert_side_counts_up_to(CORPUS_VAL, 100);
    const CorpusShards *train = &w.side[CORPUS_TRAIN];
    assert_int_equal(train->count, 4);
    assert_int_equal(train->shards[3].tokens, 50);
    assert_int_equal(train->shards[3].bytes, 1024 + 2 * 50);
    size_t bytes;
    unsigned char *file = read_bytes(tmp_file("train_000000.bin"), &bytes);
    assert_int_equal(train->shards[0].bytes, bytes);
    assert_true(train->shards[0].xxh3 == XXH3_64bits(file, bytes));
    free(file);
}

TEST(tokens_of_large_vocabularies_take_four_bytes) {
    const uint32_t tokens[] = {7, 65536, 69999};
    w.tokenizer = &wide;
    assert_ok(corpus_writer_append(&w, CORPUS_TRAIN, tokens, 3, &err) && corpus_writer_finish(&w, &err));
    ShardSet set;
    assert_ok(shards_open(&set, tmp_file("train_*.bin"), 2, &err));
    uint32_t back[3];
    assert_int_equal(set.token_bytes, 4);
    assert_int_equal(set.vocab, 70000);
    assert_true(shards_read_window(&set, 0, 70000, back, &err));
    assert_memory_equal(back, tokens, sizeof tokens);
    shards_close(&set);
}

// A writer syncs after `synced` tokens and dies after `died`; another one goes on and writes up to 350.
static void die_and_continue(int synced, int died) {
    append(CORPUS_TRAIN, 0, synced);
    append(CORPUS_VAL, 0, synced / 2);
    assert_true(corpus_writer_sync(&w, &err));
    CorpusWriter noted = w; // as the manifest keeps it
    for (CorpusSide side = 0; side < CORPUS_SIDES; side++) {
        CorpusShards *s = &noted.side[side];
        const size_t bytes = (size_t)s->count * sizeof *s->shards;
        s->open = NULL, s->shards = memcpy(malloc(bytes + 1), s->shards ? s->shards : (void *)s, bytes);
    }
    append(CORPUS_TRAIN, synced, died);
    append(CORPUS_VAL, synced / 2, died / 2);
    corpus_writer_free(&w); // leaves its files as a killed one would
    w = noted;
    assert_ok(corpus_writer_continue(&w, &err));
    append(CORPUS_TRAIN, synced, 350);
    append(CORPUS_VAL, synced / 2, 175);
    assert_ok(corpus_writer_finish(&w, &err));
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
    append(CORPUS_TRAIN, 0, 250);
    assert_true(corpus_writer_sync(&w, &err));
    CorpusShards *train = &w.side[CORPUS_TRAIN];
    shard_writer_leave(train->open), train->open = NULL;
    train->open_tokens = 60;
    assert_error(corpus_writer_continue(&w, &err), "holds fewer than the 60 tokens");
    unlink(tmp_file("train_000002.bin"));
    assert_error(corpus_writer_continue(&w, &err), "train_000002.bin: cannot write the shard: No such file");
    assert_int_equal(truncate(tmp_file("train_000001.bin"), 1000), 0);
    assert_error(corpus_writer_continue(&w, &err), "train_000001.bin: does not have the 1224 bytes");
}

TEST(a_missing_directory_is_named) {
    tmpdir_remove(&tmp);
    const uint16_t token = 1;
    assert_error(corpus_writer_append(&w, CORPUS_TRAIN, &token, 1, &err),
                 "train_000000.bin: cannot write the shard: No such file or directory");
}
