// Looking into one shard with data/shard: tokens from anywhere, counts, the first bad token.

#include "test/fixture.h"

int shard_main(int argc, char **argv);
#define main shard_main
#include "data/shard.c"
#undef main

enum { TOKENS = 2 * BLOCK + 5 };

static Look look;

static uint32_t tokens[TOKENS];

static int setup(void **state) {
    tmp_setup(state);
    for (int i = 0; i < TOKENS; i++) tokens[i] = (uint32_t)i * 7919u % 50000;
    return 0;
}
TestFixture test_all = {setup, tmp_teardown};

static ShardSet set;
static Error err;

static int close_shard(void **state) {
    (void)state;
    shards_close(&set);
    return 0;
}
TestFixture test_each = {NULL, close_shard};

// A shard of the tokens as they are now, open as the one of the set.
static const Shard *open_shard(int token_bytes) {
    static uint16_t narrow[TOKENS];
    for (int i = 0; i < TOKENS; i++) narrow[i] = (uint16_t)tokens[i];
    ShardWriter *w = shard_writer_open(tmp_file("a.bin"), token_bytes, 0, -1, &err);
    assert_non_null(w);
    assert_ok(
        shard_writer_append(w, token_bytes == 2 ? (const void *)narrow : tokens, TOKENS, &err));
    assert_ok(shard_writer_commit(w, &err));
    shards_close(&set);
    assert_ok(shards_open(&set, tmp_file("a.bin"), 1, &err));
    return &set.shards[0];
}

TEST(tokens_of_both_widths_are_read_from_anywhere) {
    for (int token_bytes = 2; token_bytes <= 4; token_bytes += 2) {
        const Shard *shard = open_shard(token_bytes);
        const int64_t places[][2] = {{0, 1},      {1, 1000},      {TOKENS - 1, 1},
                                     {TOKENS, 0}, {5, BLOCK - 1}, {BLOCK - 3, 7}};

        for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
            const int64_t first = places[i][0], n = places[i][1];
            look.block[n] = 77;
            assert_ok(read_block(&look, shard, first, n, &err));
            for (int64_t k = 0; k < n; k++) assert_int_equal(look.block[k], tokens[first + k]);
            assert_int_equal(look.block[n], 77);
        }
    }
}

TEST(one_pass_counts_documents_and_finds_the_largest) {
    int64_t documents = 0;
    uint32_t largest = 0;
    for (int i = 0; i < TOKENS; i++) {
        documents += tokens[i] == 42;
        if (tokens[i] > largest) largest = tokens[i];
    }

    for (int token_bytes = 2; token_bytes <= 4; token_bytes += 2) {
        const Shard *shard = open_shard(token_bytes);
        assert_ok(scan_shard(&look, shard, 0, 42, &err));
        assert_int_equal(look.num_eot, documents);
        assert_int_equal(look.largest, largest);

        assert_ok(scan_shard(&look, shard, largest + 1, -1, &err));
        assert_int_equal(look.num_eot, 0);
    }
}

TEST(the_first_bad_token_is_found_wherever_it_stands) {
    const int places[] = {0, 1, BLOCK - 1, BLOCK, 2 * BLOCK + 4};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const uint32_t before = tokens[places[i]], last = tokens[TOKENS - 1];
        tokens[places[i]] = 60000, tokens[TOKENS - 1] = 60001;
        char expected[80];
        snprintf(expected, sizeof expected,
                 "token %d (byte %d) is %d, expected below the vocabulary, 50257", places[i],
                 1024 + 2 * places[i], places[i] == TOKENS - 1 ? 60001 : 60000);
        assert_error(scan_shard(&look, open_shard(2), 50257, -1, &err), expected);
        tokens[places[i]] = before, tokens[TOKENS - 1] = last;
    }
}

TEST(a_file_that_shrinks_under_the_scan_is_named) {
    const Shard *shard = open_shard(2);
    assert_int_equal(truncate(shard->path, 1024 + 2 * BLOCK + 10), 0);
    assert_error(scan_shard(&look, shard, 0, -1, &err), "a.bin: the file ends at byte");
}
