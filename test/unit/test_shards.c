// Token shards: what is written is read back, windows tile the files, and no file, however broken,
// does more than leave a message.

#include "llmc/data/shards.h"
#include "test/fixture.h"

#include <fcntl.h>

static Error err;

// ----------------------------------------------------------------------------------------- helpers

TestFixture test_each = {tmp_setup, tmp_teardown};

// The first words of a header, zeros up to file_bytes.
static const char *write_header(const char *name, const int32_t header[8], off_t file_bytes) {
    const char *path = tmp_file(name);
    int32_t h[SHARD_HEADER_INTS] = {0};
    memcpy(h, header, 8 * sizeof *h);
    write_bytes(path, h, sizeof h);
    assert_int_equal(truncate(path, file_bytes), 0);
    return path;
}

// Token i of n is first + i, in token_bytes each. Too large for a stack: static.
enum { MOST_TOKENS = 1000 };
static const void *counting_tokens(int token_bytes, int64_t n, int64_t first) {
    static uint16_t narrow[MOST_TOKENS];
    static uint32_t wide[MOST_TOKENS];
    assert_in_range(n, 0, MOST_TOKENS);
    for (int64_t i = 0; i < n; i++)
        narrow[i] = (uint16_t)(first + i), wide[i] = (uint32_t)(first + i);
    return token_bytes == 2 ? (const void *)narrow : (const void *)wide;
}

// A shard made here, byte by byte (ShardWriter has tests of its own, and its fsync is slow).
static const char *make_shard(const char *name, int token_bytes, int64_t vocab, int64_t eot,
                              int64_t n, int64_t first) {
    unsigned char bytes[SHARD_HEADER_BYTES + 4 * MOST_TOKENS] = {0};
    int32_t h[8] = {SHARD_MAGIC, token_bytes == 2 ? 1 : 2, token_bytes == 2 ? (int32_t)n : 4,
                    (int32_t)vocab};
    h[6] = (int32_t)eot + 1;
    if (token_bytes == 4) memcpy(&h[4], &n, sizeof n);
    memcpy(bytes, h, sizeof h);
    memcpy(bytes + SHARD_HEADER_BYTES, counting_tokens(token_bytes, n, first),
           (size_t)(n * token_bytes));
    write_bytes(tmp_file(name), bytes, SHARD_HEADER_BYTES + (size_t)(n * token_bytes));
    return tmp_file(name);
}

static const char *commit_shard(const char *name, int token_bytes, int64_t vocab, int64_t eot,
                                int64_t n, int64_t first) {
    ShardWriter *w = shard_writer_open(tmp_file(name), token_bytes, vocab, eot, &err);
    assert_non_null(w);
    const char *tokens = counting_tokens(token_bytes, n, first);
    assert_true(shard_writer_append(w, tokens, n / 3, &err));
    assert_true(shard_writer_append(w, tokens + n / 3 * token_bytes, n - n / 3, &err));
    assert_true(shard_writer_commit(w, &err));
    return tmp_file(name);
}

// Each of the words is in the message.
static void assert_open_fails(const char *pattern, int64_t T, const char *const *words) {
    ShardSet set;
    assert_false(shards_open(&set, pattern, T, &err));
    for (; *words; words++) assert_message(*words);
    assert_null(set.shards);
    shards_close(&set);
}
#define ASSERT_OPEN_FAILS(pattern, T, ...)                                                         \
    assert_open_fails(pattern, T, (const char *const[]){__VA_ARGS__, NULL})

static ShardSet open_shards(const char *pattern, int64_t T) {
    ShardSet set;
    assert_ok(shards_open(&set, pattern, T, &err));
    return set;
}

// ----------------------------------------------------------------------------------------- reading

TEST(a_written_shard_is_read_back) {
    for (int token_bytes = 2; token_bytes <= 4; token_bytes += 2) {
        const char *path = commit_shard("a.bin", token_bytes, 50257, 50256, 1000, 7);
        AUTO(shards_close) ShardSet set = open_shards(path, 9);

        assert_int_equal(set.count, 1);
        assert_int_equal(set.token_bytes, token_bytes);
        assert_int_equal(set.num_tokens, 1000);
        assert_int_equal(set.vocab, 50257);
        assert_int_equal(set.eot, 50256);
        assert_int_equal(set.num_windows, 111); // 999 / 9

        for (int64_t w = 0; w < set.num_windows; w++) {
            uint32_t out[10]; // room for either size
            assert_true(shards_read_window(&set, w, 50257, out, &err));
            for (int64_t i = 0; i < 10; i++) {
                assert_int_equal(token_bytes == 2 ? ((uint16_t *)out)[i] : out[i], 7 + 9 * w + i);
            }
        }
    }
}

TEST(two_byte_shards_are_version_1_of_llm_c_which_states_no_vocabulary) {
    const char *path = commit_shard("a.bin", 2, 0, -1, 3, 500);
    size_t n;
    AUTO_FREE unsigned char *bytes = read_bytes(path, &n);
    assert_int_equal(n, 1024 + 6);

    int32_t expected[256] = {20240520, 1, 3};
    const uint16_t tokens[3] = {500, 501, 502};

    assert_memory_equal(bytes, expected, 1024);
    assert_memory_equal(bytes + 1024, tokens, 6);

    AUTO(shards_close) ShardSet set = open_shards(path, 1);
    assert_int_equal(set.vocab, 0);
    assert_int_equal(set.eot, -1);
    assert_int_equal(set.num_windows, 2);
}

TEST(shards_are_sorted_by_name_and_windows_never_cross_a_file) {
    make_shard("s_002.bin", 2, 0, -1, 25, 2000); // 2 windows of T = 10
    make_shard("s_000.bin", 2, 300, -1, 31, 0);  // 3 windows
    make_shard("s_003.bin", 2, 0, 7, 11, 3000);  // 1 window
    make_shard("s_001.bin", 2, 300, 7, 5, 1000); // none

    AUTO(shards_close) ShardSet set = open_shards(tmp_file("s_*.bin"), 10);
    assert_int_equal(set.count, 4);
    assert_int_equal(set.num_tokens, 72);
    assert_int_equal(set.num_windows, 6);
    assert_int_equal(set.vocab, 300);
    assert_int_equal(set.eot, 7);

    const int first_token[6] = {0, 10, 20, 2000, 2010, 3000};
    const char *const name[6] = {"s_000.bin", "s_000.bin", "s_000.bin",
                                 "s_002.bin", "s_002.bin", "s_003.bin"};
    for (int64_t w = 0; w < 6; w++) {
        uint16_t out[11];
        assert_true(shards_read_window(&set, w, 65536, out, &err));
        for (int i = 0; i < 11; i++) assert_int_equal(out[i], first_token[w] + i);
        const char *path;
        int64_t offset;
        shards_locate(&set, w, &path, &offset);
        assert_string_equal(path, tmp_file(name[w]));
        assert_int_equal(offset, first_token[w] % 1000);
    }
}

TEST(a_token_beyond_the_vocabulary_is_named_with_file_and_offset) {
    for (int token_bytes = 2; token_bytes <= 4; token_bytes += 2) {
        AUTO(shards_close)
        ShardSet set = open_shards(make_shard("v.bin", token_bytes, 0, -1, 1000, 0), 100);
        uint32_t out[101];

        assert_true(shards_read_window(&set, 2, 301, out, &err)); // tokens 200..300
        assert_error(shards_read_window(&set, 2, 300, out, &err),
                     "v.bin: token 300 is 300, expected below the vocabulary size 300");
        // of 101 bad ones
        assert_error(shards_read_window(&set, 5, 256, out, &err), "v.bin: token 500 is 500");
    }
    AUTO(shards_close)
    // the first token is 0xFFFFFFFF
    ShardSet set = open_shards(make_shard("n.bin", 4, 0, -1, 100, -1), 10);
    uint32_t out[11];
    assert_error(shards_read_window(&set, 0, 50257, out, &err), "token 0 is 4294967295");
}

TEST(a_shard_beyond_2_gib_is_read_to_its_end) {
    // 5 GB, all hole but the header and the last 8 bytes; windows of 1000 fit
    const int64_t tokens = 2500000001;
    int32_t h[8] = {SHARD_MAGIC, 2, 2};
    memcpy(&h[4], &tokens, sizeof tokens);
    const char *path = write_header("large.bin", h, 1024);
    // a file system without sparse or large files
    if (truncate(path, 1024 + 2 * tokens) != 0) skip();
    int fd = open(path, O_WRONLY);
    const uint16_t last[4] = {1, 2, 3, 4};
    assert_int_equal(pwrite(fd, last, sizeof last, 1024 + 2 * (tokens - 4)), 8);
    close(fd);

    AUTO(shards_close) ShardSet set = open_shards(path, 1000);
    assert_int_equal(set.num_tokens, tokens);
    assert_int_equal(set.num_windows, 2500000);
    uint16_t out[1001];
    assert_true(shards_read_window(&set, 2499999, 5, out, &err));
    assert_memory_equal(&out[997], last, sizeof last);
    assert_int_equal(out[996], 0);
    assert_true(shards_read_window(&set, 1500000, 1, out, &err)); // the hole reads as zeros
    const char *name;
    int64_t offset;
    shards_locate(&set, 2499999, &name, &offset);
    assert_int_equal(offset, 2499999000);
}

TEST(more_shards_than_the_soft_limit_of_descriptors_are_opened) {
    struct rlimit before;
    getrlimit(RLIMIT_NOFILE, &before);
    if (before.rlim_max < 300) skip();

    for (int i = 0; i < 100; i++) {
        char name[32];
        snprintf(name, sizeof name, "many_%03d.bin", i);
        write_header(name, (int32_t[8]){SHARD_MAGIC, 1, 11}, 1024 + 22);
    }

    limit_resource(RLIMIT_NOFILE, 64);
    AUTO(shards_close) ShardSet set = open_shards(tmp_file("many_*.bin"), 10);
    assert_int_equal(set.num_windows, 100);

    limit_resource(RLIMIT_NOFILE, before.rlim_cur);
}

// ----------------------------------------------------------------------------------- hostile files

static void assert_beside(const char *train, const char *expected) {
    char *found = shards_validation_pattern(train);
    assert_string_equal(found ? found : "", expected);
    free(found);
}

TEST(validation_shards_have_val_in_their_name_for_train) {
    assert_beside("data/shards/train_*.bin", "data/shards/val_*.bin");
    assert_beside("train_000000.bin", "val_*.bin");
    assert_beside("dev/data/fineweb10B/fineweb_train_*.bin",
                  "dev/data/fineweb10B/fineweb_val_*.bin");
    assert_beside("fineweb_train_00000[1-5].bin", "fineweb_val_*.bin");
    assert_beside("a/tiny_shakespeare_train.bin", "a/tiny_shakespeare_val.bin");
    assert_beside("a/*train_*.bin", "a/*val_*.bin");
    assert_beside("*/train*", "*/val*");
    assert_beside("train/train-1.2.bin", "train/val-*.bin");

    assert_beside("train/x.bin", ""); // the directory says nothing
    assert_beside("sh/*.bin", "");

    write_bytes(tmp_file("[x]train_1.bin"), "", 0); // a name that looks like a pattern
    char *found = shards_validation_pattern(tmp_file("[x]train_1.bin"));
    assert_non_null(strstr(found, "/\\[x]val_*.bin"));
    free(found);
}

TEST(files_are_the_same_whatever_their_names) {
    for (char name = 'a'; name <= 'c'; name++) // each of another length
        make_shard((char[]){name, '.', 'b', 'i', 'n', 0}, 2, 0, -1, 40 + name - 'a', 0);

    assert_int_equal(symlink(tmp_file("b.bin"), tmp_file("d1.bin")), 0);
    char hard[300];
    snprintf(hard, sizeof hard, "%s", tmp_file("c.bin"));
    assert_int_equal(link(hard, tmp_file("d2.bin")), 0);

    AUTO(shards_close)
    ShardSet all = open_shards(tmp_file("[abc].bin"), 10),
             linked = open_shards(tmp_file("d*.bin"), 10), a = open_shards(tmp_file("a.bin"), 10);

    const ShardsInBoth both = shards_in_both(&all, &linked);
    assert_int_equal(both.count, 2);
    assert_string_equal(both.first, tmp_file("b.bin"));
    assert_string_equal(both.twin, tmp_file("d1.bin"));
    assert_string_equal(both.other, tmp_file("a.bin"));
    assert_int_equal(shards_in_both(&a, &linked).count, 0);
}

TEST(a_copy_of_a_shard_is_the_same_data) {
    enum { TOKENS = 9000, BYTES = SHARD_HEADER_BYTES + 2 * TOKENS };

    AUTO_FREE unsigned char *bytes = calloc(BYTES, 1);
    memcpy(bytes, (const int32_t[]){SHARD_MAGIC, 1, TOKENS}, 3 * sizeof(int32_t));
    write_bytes(tmp_file("a.bin"), bytes, BYTES);
    write_bytes(tmp_file("b.bin"), bytes, BYTES);
    bytes[BYTES - 1] ^= 1;
    write_bytes(tmp_file("c.bin"), bytes, BYTES);

    AUTO(shards_close)
    ShardSet a = open_shards(tmp_file("a.bin"), 10), both = open_shards(tmp_file("[bc].bin"), 10),
             c = open_shards(tmp_file("c.bin"), 10);

    assert_int_equal(shards_in_both(&a, &both).count, 1);
    assert_string_equal(shards_in_both(&a, &both).twin, tmp_file("b.bin"));
    assert_int_equal(shards_in_both(&a, &c).count, 0);
}

// Field 2 counts tokens in version 1, bytes per token in version 2; 3 is the vocabulary, 6
// end-of-text + 1.
static uint64_t fingerprint_of(const char *pattern) {
    ShardSet set;
    assert_ok(shards_open(&set, pattern, 8, &err));
    const uint64_t fingerprint = set.fingerprint;
    shards_close(&set);
    return fingerprint;
}

TEST(shards_with_other_tokens_at_their_beginning_middle_or_end_have_another_fingerprint) {
    enum { TOKENS = 50000, BYTES = SHARD_HEADER_BYTES + 2 * TOKENS };
    static const size_t places[] = {SHARD_HEADER_BYTES, BYTES / 2, BYTES - 1};

    AUTO_FREE unsigned char *bytes = calloc(BYTES, 1);
    memcpy(bytes, (const int32_t[]){SHARD_MAGIC, 1, TOKENS}, 3 * sizeof(int32_t));
    write_bytes(tmp_file("a_0.bin"), bytes, BYTES);
    write_bytes(tmp_file("a_1.bin"), bytes, BYTES);

    const uint64_t same = fingerprint_of(tmp_file("a_*.bin"));
    assert_true(fingerprint_of(tmp_file("a_0.bin")) != same);

    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        bytes[places[i]] ^= 1;
        write_bytes(tmp_file("a_1.bin"), bytes, BYTES);
        if (fingerprint_of(tmp_file("a_*.bin")) == same) fail_msg("place %zu", i);
        bytes[places[i]] ^= 1;
    }

    write_bytes(tmp_file("a_1.bin"), bytes, BYTES);
    assert_true(fingerprint_of(tmp_file("a_*.bin")) == same);
}

static uint64_t contents_of(const char *pattern) {
    ShardSet set;
    assert_ok(shards_open(&set, pattern, 8, &err));
    const uint64_t contents = set.contents;
    shards_close(&set);
    return contents;
}

TEST(a_change_anywhere_in_shards_that_are_read_whole_changes_their_contents) {
    enum { TOKENS = 700000, BYTES = SHARD_HEADER_BYTES + 2 * TOKENS };

    AUTO_FREE unsigned char *bytes = calloc(BYTES, 1);
    memcpy(bytes, (const int32_t[]){SHARD_MAGIC, 1, TOKENS}, 3 * sizeof(int32_t));
    write_bytes(tmp_file("a_0.bin"), bytes, BYTES);
    write_bytes(tmp_file("a_1.bin"), bytes, BYTES);

    const uint64_t same = contents_of(tmp_file("a_*.bin")),
                   fingerprint = fingerprint_of(tmp_file("a_*.bin"));

    for (size_t place = SHARD_HEADER_BYTES; place < BYTES; place += 99991) {
        bytes[place] ^= 1;
        write_bytes(tmp_file("a_1.bin"), bytes, BYTES);
        if (contents_of(tmp_file("a_*.bin")) == same) fail_msg("place %zu", place);
        bytes[place] ^= 1;
    }

    write_bytes(tmp_file("a_1.bin"), bytes, BYTES); // at another time
    assert_true(contents_of(tmp_file("a_*.bin")) == same);
    assert_true(fingerprint_of(tmp_file("a_*.bin")) == fingerprint);
}

// A file of holes, whose bytes are not read: its time tells.
TEST(a_larger_shard_that_was_written_again_has_other_contents) {
    enum { TOKENS = SHARDS_WHOLE_BYTES / 2 + 1000 };
    const int32_t header[SHARD_HEADER_INTS] = {SHARD_MAGIC, 1, TOKENS};
    const char *path = tmp_file("large.bin");

    write_bytes(path, header, sizeof header);
    assert_int_equal(truncate(path, SHARD_HEADER_BYTES + 2 * (off_t)TOKENS), 0);

    const uint64_t before = contents_of(path), fingerprint = fingerprint_of(path);
    assert_true(contents_of(path) == before);

    const int fd = open(path, O_WRONLY);
    assert_int_equal(pwrite(fd, "\1", 1, SHARD_HEADER_BYTES + 20000000), 1);
    assert_int_equal(futimens(fd, (const struct timespec[]){{1, 0}, {1, 0}}), 0);
    close(fd);

    assert_true(contents_of(path) != before);
    assert_true(fingerprint_of(path) == fingerprint);
}

TEST(counts_that_overflow_are_refused) {
    // Times 2 or 4 these wrap to small or negative sizes.
    const uint64_t counts[] = {1ull << 63,       1ull << 62, 1ull << 61,
                               (1ull << 63) - 1, UINT64_MAX, (1ull << 62) + 64};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        for (int token_bytes = 2; token_bytes <= 4; token_bytes += 2) {
            int32_t h[8] = {SHARD_MAGIC, 2, token_bytes};
            memcpy(&h[4], &counts[i], 8);
            ASSERT_OPEN_FAILS(write_header("huge.bin", h, 1024 + 256), 8, "huge.bin", "token count",
                              "header field 4");
        }
    }
}

TEST(shards_that_contradict_each_other_are_refused) {
    make_shard("c_0.bin", 2, 300, 5, 100, 0);
    make_shard("c_1.bin", 2, 301, 5, 100, 0);
    ASSERT_OPEN_FAILS(tmp_file("c_*.bin"), 8, "c_1.bin: vocabulary is 301", "c_0.bin states 300");
    make_shard("c_1.bin", 2, 300, 6, 100, 0);
    ASSERT_OPEN_FAILS(tmp_file("c_*.bin"), 8, "c_1.bin: end-of-text token is 6",
                      "c_0.bin states 5");
    make_shard("c_1.bin", 4, 300, 5, 100, 0);
    ASSERT_OPEN_FAILS(tmp_file("c_*.bin"), 8, "c_1.bin: bytes per token is 4", "c_0.bin states 2");
}

TEST(a_T_longer_than_every_file_is_refused) {
    make_shard("t_0.bin", 2, 0, -1, 40, 0);
    make_shard("t_1.bin", 2, 0, -1, 64, 0);
    ASSERT_OPEN_FAILS(tmp_file("t_*.bin"), 64, "t_1.bin", "64 tokens", "the most", "T = 64",
                      "at least 65");
    ASSERT_OPEN_FAILS(tmp_file("t_0.bin"), INT64_MAX / 2, "t_0.bin", "40 tokens");
    ASSERT_OPEN_FAILS(make_shard("empty.bin", 2, 0, -1, 0, 0), 1, "empty.bin", "0 tokens");
    AUTO(shards_close) ShardSet set = open_shards(tmp_file("t_*.bin"), 63);
    assert_int_equal(set.num_windows, 1);
}

TEST(a_file_that_shrinks_while_open_is_an_error_and_no_crash) {
    const char *path = make_shard("shrink.bin", 2, 0, -1, 1000, 0);
    AUTO(shards_close) ShardSet set = open_shards(path, 100);
    assert_int_equal(truncate(path, 1024 + 300), 0);
    uint16_t out[101];
    assert_true(shards_read_window(&set, 0, 65536, out, &err));
    assert_error(shards_read_window(&set, 1, 65536, out, &err),
                 "shrink.bin: cannot read 101 tokens at token 100: the file has become shorter");
}

// ----------------------------------------------------------------------------------------- writing

TEST(until_it_is_committed_a_file_is_no_shard) {
    const char *path = tmp_file("w.bin");
    ShardWriter *w = shard_writer_open(path, 2, 0, -1, &err);
    assert_non_null(w);

    assert_true(shard_writer_append(w, (uint16_t[2]){1, 2}, 2, &err));
    shard_writer_leave(w);
    ASSERT_OPEN_FAILS(path, 1, "w.bin", "not a token shard", "magic number");

    assert_non_null(w = shard_writer_open(path, 2, 0, -1, &err));
    assert_true(shard_writer_append(w, (uint16_t[3]){1, 3, 4}, 3, &err) &&
                shard_writer_commit(w, &err));

    AUTO(shards_close) ShardSet set = open_shards(path, 2);
    uint16_t tokens[3];
    assert_int_equal(set.num_tokens, 3);
    assert_true(shards_read_window(&set, 0, 65536, tokens, &err));
    assert_memory_equal(tokens, ((uint16_t[3]){1, 3, 4}), sizeof tokens);
    shard_writer_leave(NULL);
}

TEST(a_place_that_cannot_be_written_and_a_full_disk_are_reported_and_leave_no_shard) {
    assert_error(shard_writer_open(tmp_file("no/such/w.bin"), 2, 0, -1, &err),
                 "no/such/w.bin: cannot write the shard: No such file or directory");

    ShardWriter *w = shard_writer_open(tmp_file("full.bin"), 2, 0, -1, &err);
    assert_non_null(w);

    limit_file_size(8192);
    const uint16_t tokens[512] = {0};
    for (int i = 0; i < 100; i++) shard_writer_append(w, tokens, 512, &err);

    const bool committed = shard_writer_commit(w, &err);
    limit_file_size(RLIM_INFINITY);

    assert_false(committed);
    assert_message("full.bin: cannot write the shard");
    ASSERT_OPEN_FAILS(tmp_file("full.bin"), 1, "full.bin", "not a token shard");
}
