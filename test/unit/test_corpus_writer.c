// The corpus writer: every token lands in its side's shards in order.

#include "llmc/text/corpus_shards.h"
#include "llmc/text/vocabulary.h"
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
    assert_ok(corpus_writer_append(&w, CORPUS_TRAIN, tokens, 3, &err) &&
              corpus_writer_finish(&w, &err));

    ShardSet set;
    assert_ok(shards_open(&set, tmp_file("train_*.bin"), 2, &err));
    uint32_t back[3];

    assert_int_equal(set.token_bytes, 4);
    assert_int_equal(set.vocab, 70000);
    assert_true(shards_read_window(&set, 0, 70000, back, &err));
    assert_memory_equal(back, tokens, sizeof tokens);
    shards_close(&set);
}

TEST(a_missing_directory_is_named) {
    tmpdir_remove(&tmp);
    const uint16_t token = 1;
    assert_error(corpus_writer_append(&w, CORPUS_TRAIN, &token, 1, &err),
                 "train_000000.bin: cannot write the shard: No such file or directory");
}
