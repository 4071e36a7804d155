// The corpus writer: every byte of every document lands on exactly one side, in order, and where depends on the
// document alone.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "llmc/tokens/corpus_writer.h"
#include "llmc/tokens/shards.h"
#include "test/unit/tmpdir.h"

#include <stdlib.h>
#include <string.h>

static TmpDir dir;
static Tokenizer *tokenizer;

static int set_up(void **state) {
    (void)state;
    dir = tmpdir_make();
    return (tokenizer = tokenizer_bytes(NULL)) ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    tokenizer_free(tokenizer);
    tmpdir_remove(&dir);
    return 0;
}

static CorpusWriter *create(double val_fraction, int64_t shard_tokens, bool cut_all) {
    const CorpusOptions options = {.directory = dir.path,
                                   .tokenizer = tokenizer,
                                   .val_fraction = val_fraction,
                                   .shard_tokens = shard_tokens,
                                   .cut_all = cut_all};
    Error err;
    CorpusWriter *w = corpus_writer_create(&options, &err);
    assert_non_null(w);
    return w;
}

static void add(CorpusWriter *w, const char *text, int64_t size) {
    Error err;
    int64_t n = size < CORPUS_BLOCK ? size : CORPUS_BLOCK;
    assert_true(corpus_writer_begin_document(w, text, n, size, &err));
    for (int64_t done = 0; done < size; done += n) {
        n = size - done < CORPUS_BLOCK ? size - done : CORPUS_BLOCK;
        assert_true(corpus_writer_add_text(w, text + done, n, &err));
    }
}

static CorpusTotals commit(CorpusWriter *w) {
    Error err;
    CorpusTotals totals;
    if (!corpus_writer_commit(w, &totals, &err)) fail_msg("%s", err.text);
    return totals;
}

// The text of all shards of a side, '|' for end-of-text; malloced.
static char *side_text(const char *pattern) {
    ShardSet set;
    Error err;
    if (!shards_open(&set, tmpdir_file(&dir, pattern), 1, &err)) fail_msg("%s", err.text);
    char *text = calloc((size_t)set.num_tokens + 1, 1), *out = text;
    assert_non_null(text);
    for (int64_t w = 0; w < set.num_windows; w++) {
        uint16_t t[2];
        assert_true(shards_read_window(&set, w, BYTE_VOCAB, t, &err));
        const char *path;
        int64_t offset;
        shards_locate(&set, w, &path, &offset);
        for (int i = offset == 0 ? 0 : 1; i < 2; i++) *out++ = t[i] == BYTE_EOT ? '|' : (char)t[i];
    }
    shards_close(&set);
    return text;
}

static bool has(const char *pattern, const char *text) {
    char *all = side_text(pattern);
    bool found = strstr(all, text) != NULL;
    free(all);
    return found;
}

// Documents "document 0.", "document 1.", ...
static const char *short_document(int i) {
    static char text[64];
    snprintf(text, sizeof text, "document %d.", i);
    return text;
}

static void short_documents_are_drawn_with_the_stated_share(void **state) {
    (void)state;
    enum { N = 4000 };
    CorpusWriter *w = create(0.1, 1 << 20, false);
    for (int i = 0; i < N; i++) add(w, short_document(i), (int64_t)strlen(short_document(i)));
    CorpusTotals totals = commit(w);
    char *val = side_text("val_*.bin");
    int64_t drawn = 0;
    for (char *c = val; *c; c++) drawn += *c == '|';
    free(val);
    // Binomial: mean 400, standard deviation 19; six of them.
    assert_in_range(drawn, 400 - 114, 400 + 114);
    assert_int_equal(totals.documents, N);
    assert_int_equal(totals.train_tokens + totals.val_tokens, totals.bytes + N);
}

static void more_documents_move_none_of_the_others_and_equal_ones_stay_together(void **state) {
    (void)state;
    CorpusWriter *w = create(0.5, 1 << 20, false);
    for (int i = 0; i < 40; i++) add(w, short_document(i), (int64_t)strlen(short_document(i)));
    commit(w);
    bool in_val[40];
    for (int i = 0; i < 40; i++) {
        in_val[i] = has("val_*.bin", short_document(i));
        assert_true(has("train_*.bin", short_document(i)) != in_val[i]);
    }
    w = create(0.5, 1 << 20, false);
    for (int i = 79; i >= 0; i--) { // in another order, with others between, each twice
        add(w, short_document(i), (int64_t)strlen(short_document(i)));
        add(w, short_document(i), (int64_t)strlen(short_document(i)));
    }
    commit(w);
    for (int i = 0; i < 40; i++) {
        assert_true(has("val_*.bin", short_document(i)) == in_val[i]);
        assert_true(has("train_*.bin", short_document(i)) != in_val[i]);
    }
}

static void a_long_document_gives_its_last_part_from_a_line_on(void **state) {
    (void)state;
    enum { LINES = 20000 }; // 300,000 bytes: several blocks
    char *text = calloc(LINES + 1, 15);
    assert_non_null(text);
    for (int i = 0; i < LINES; i++) snprintf(text + 15 * i, 16, "this is %06d\n", i);
    CorpusWriter *w = create(0.2, 1 << 20, false);
    add(w, text, 15 * LINES);
    CorpusTotals totals = commit(w);
    assert_int_equal(totals.bytes, 15 * LINES);
    char *train = side_text("train_*.bin"), *val = side_text("val_*.bin");
    assert_int_equal(train[0], '|');
    assert_int_equal(val[0], '|');
    assert_int_equal(strlen(train + 1) % 15, 0);
    // The cut is at 80% of the bytes, moved on to the next end of a line.
    assert_in_range(strlen(val + 1), 15 * LINES / 5 - 15, 15 * LINES / 5);
    assert_memory_equal(train + 1, text, strlen(train + 1));
    assert_string_equal(val + 1, text + strlen(train + 1));
    free(text), free(train), free(val);
}

static void cut_all_divides_the_shortest_text_into_two_parts(void **state) {
    (void)state;
    for (int64_t size = 2; size < 40; size++) {
        const char *text = "aa\nb\n\nccc ddd \xE2\x82\xAC\xE2\x82\xAC eeee\nffff";
        if (size > (int64_t)strlen(text)) break;
        CorpusWriter *w = create(0.3, 1 << 20, true);
        add(w, text, size);
        CorpusTotals totals = commit(w);
        assert_true(totals.train_tokens >= 2 && totals.val_tokens >= 2); // end-of-text and at least a byte
        char *train = side_text("train_*.bin"), *val = side_text("val_*.bin");
        assert_int_equal(strlen(train + 1) + strlen(val + 1), size);
        assert_memory_equal(train + 1, text, strlen(train + 1));
        assert_memory_equal(val + 1, text + strlen(train + 1), strlen(val + 1));
        free(train), free(val);
    }
}

static void characters_are_not_cut_where_no_line_ends(void **state) {
    (void)state;
    static const char euro[3] = {'\xE2', '\x82', '\xAC'};
    char text[300];
    for (int i = 0; i < 100; i++) memcpy(text + 3 * i, euro, sizeof euro);
    for (int percent = 5; percent < 96; percent += 7) {
        CorpusWriter *w = create(percent / 100.0, 1 << 20, true);
        add(w, text, sizeof text);
        assert_int_equal((commit(w).val_tokens - 1) % 3, 0);
    }
}

static void full_shards_are_followed_by_others(void **state) {
    (void)state;
    char text[5000];
    for (int i = 0; i < 5000; i++) text[i] = (char)('a' + i % 26);
    CorpusWriter *w = create(0.5, 1024, true);
    add(w, text, 5000); // each side: end-of-text and 2500 bytes in shards of 1024, 1024 and 453
    CorpusTotals totals = commit(w);
    assert_int_equal(totals.train_tokens, 2501);
    assert_int_equal(totals.train_shards, 3);
    assert_int_equal(totals.val_shards, 3);
    ShardSet set;
    Error err;
    assert_true(shards_open(&set, tmpdir_file(&dir, "train_*.bin"), 16, &err));
    assert_int_equal(set.count, 3);
    assert_int_equal(set.shards[0].num_tokens, 1024);
    assert_int_equal(set.shards[2].num_tokens, 453);
    assert_int_equal(set.vocab, BYTE_VOCAB);
    assert_int_equal(set.eot, BYTE_EOT);
    shards_close(&set);
    char *train = side_text("train_*.bin");
    assert_memory_equal(train + 1, text, 2500);
    free(train);
}

static void an_abandoned_corpus_leaves_no_unfinished_shard(void **state) {
    (void)state;
    CorpusWriter *w = create(0.5, 1 << 20, true);
    add(w, "some text", 9);
    corpus_writer_abandon(w);
    corpus_writer_abandon(NULL);
    assert_int_equal(rmdir(dir.path), 0); // it is empty
}

static void a_missing_directory_is_named(void **state) {
    (void)state;
    tmpdir_remove(&dir);
    CorpusWriter *w = create(0.5, 1 << 20, true);
    Error err;
    assert_false(corpus_writer_begin_document(w, "text", 4, 4, &err));
    assert_non_null(strstr(err.text, "train_000000.bin: cannot write the shard: No such file or directory"));
    corpus_writer_abandon(w);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(short_documents_are_drawn_with_the_stated_share),
        TEST(more_documents_move_none_of_the_others_and_equal_ones_stay_together),
        TEST(a_long_document_gives_its_last_part_from_a_line_on),
        TEST(cut_all_divides_the_shortest_text_into_two_parts),
        TEST(characters_are_not_cut_where_no_line_ends),
        TEST(full_shards_are_followed_by_others),
        TEST(an_abandoned_corpus_leaves_no_unfinished_shard),
        TEST(a_missing_directory_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
