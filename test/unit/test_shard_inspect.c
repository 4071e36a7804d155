// Looking into one shard: tokens from anywhere, counts, the first bad token and the checksum in one pass.

#include "llmc/base/atomic_file.h"
#include "llmc/run/data_tools.h"
#include "test/fixture.h"

enum { BLOCK = 1 << 18, TOKENS = 2 * BLOCK + 5 }; // shard_scan reads BLOCK tokens at a time

static uint32_t tokens[TOKENS];

static int setup(void **state) {
    tmp_setup(state);
    for (int i = 0; i < TOKENS; i++) tokens[i] = (uint32_t)i * 7919u % 50000;
    return 0;
}

TestFixture test_all = {setup, tmp_teardown};

static const char *write_shard(int token_bytes, int64_t vocab, int64_t eot) {
    const char *path = tmp_file("a.bin");
    Error err;
    ShardWriter *w = shard_writer_open(path, token_bytes, vocab, eot, 0, &err);
    assert_non_null(w);
    static uint16_t narrow[TOKENS];
    for (int i = 0; i < TOKENS; i++) narrow[i] = (uint16_t)tokens[i];
    assert_true(shard_writer_append(w, token_bytes == 2 ? (const void *)narrow : tokens, TOKENS, &err));
    assert_true(shard_writer_commit(w, &err));
    return path;
}

TEST(tokens_of_both_widths_are_read_from_anywhere) {
    for (int token_bytes = 2; token_bytes <= 4; token_bytes += 2) {
        ShardSet set;
        Error err;
        assert_true(shards_open(&set, write_shard(token_bytes, 0, -1), 1, &err));
        const int64_t places[][2] = {{0, 1}, {1, 1000}, {TOKENS - 1, 1}, {TOKENS, 0}, {0, TOKENS}, {BLOCK - 3, 7}};
        for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
            const int64_t first = places[i][0], n = places[i][1];
            uint32_t *out = malloc((size_t)(n + 1) * sizeof *out);
            out[n] = 77;
            assert_true(shard_read(&set.shards[0], first, n, out, &err));
            for (int64_t k = 0; k < n; k++) assert_int_equal(out[k], tokens[first + k]);
            assert_int_equal(out[n], 77);
            free(out);
        }
        shards_close(&set);
    }
}

TEST(one_pass_counts_documents_and_gives_the_checksum_of_the_file) {
    int64_t documents = 0, bytes;
    uint32_t largest = 0;
    for (int i = 0; i < TOKENS; i++) {
        documents += tokens[i] == 42;
        if (tokens[i] > largest) largest = tokens[i];
    }
    for (int token_bytes = 2; token_bytes <= 4; token_bytes += 2) {
        const char *path = write_shard(token_bytes, 0, 42);
        ShardSet set;
        ShardScan scan;
        Error err;
        uint64_t checksum;
        assert_true(shards_open(&set, path, 1, &err));
        assert_true(shard_scan(&set.shards[0], 0, 42, &scan, &err));
        assert_true(file_checksum(path, &bytes, &checksum, &err));
        assert_true(scan.xxh3 == checksum);
        assert_int_equal(scan.bytes, bytes);
        assert_int_equal(scan.version, token_bytes == 2 ? 1 : 2);
        assert_int_equal(scan.documents, documents);
        assert_int_equal(scan.largest, largest);
        assert_int_equal(scan.first_bad, -1);
        assert_true(shard_scan(&set.shards[0], largest + 1, -1, &scan, &err));
        assert_int_equal(scan.documents, 0);
        assert_int_equal(scan.first_bad, -1);
        shards_close(&set);
    }
}

TEST(the_first_bad_token_is_found_wherever_it_stands) {
    const int places[] = {0, 1, BLOCK - 1, BLOCK, 2 * BLOCK + 4};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const uint32_t before = tokens[places[i]], last = tokens[TOKENS - 1];
        tokens[places[i]] = 60000, tokens[TOKENS - 1] = 60001;
        ShardSet set;
        ShardScan scan;
        Error err;
        assert_true(shards_open(&set, write_shard(2, 0, -1), 1, &err));
        assert_true(shard_scan(&set.shards[0], 50257, -1, &scan, &err));
        assert_int_equal(scan.first_bad, places[i]);
        assert_int_equal(scan.bad_value, places[i] == TOKENS - 1 ? 60001 : 60000);
        shards_close(&set);
        tokens[places[i]] = before, tokens[TOKENS - 1] = last;
    }
}

TEST(a_file_that_shrinks_under_the_scan_is_named) {
    const char *path = write_shard(2, 0, -1);
    ShardSet set;
    ShardScan scan;
    Error err;
    assert_true(shards_open(&set, path, 1, &err));
    assert_int_equal(truncate(path, 1024 + 2 * BLOCK + 10), 0);
    assert_false(shard_scan(&set.shards[0], 0, -1, &scan, &err));
    assert_non_null(strstr(err.text, "a.bin: the file ends at byte"));
    shards_close(&set);
}

TEST(the_tokenizer_is_the_one_given_or_the_one_that_the_vocabulary_implies) {
    ShardSet set;
    Error err;
    const char *path = write_shard(4, 60000, 42);
    assert_true(shards_open(&set, path, 1, &err));
    assert_null(shard_tokenizer("", path, &set, &err));
    assert_non_null(strstr(err.text, "no tokenizer stands beside the shards"));
    assert_null(shard_tokenizer(tmp_file("missing.json"), path, &set, &err));
    set.vocab = BYTE_VOCAB;
    Tokenizer *t = shard_tokenizer("", path, &set, &err);
    assert_non_null(t);
    assert_int_equal(tokenizer_vocab(t), BYTE_VOCAB);
    tokenizer_free(t);
    shards_close(&set);
}
