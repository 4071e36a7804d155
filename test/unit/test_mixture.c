// Mixtures: what their text says, the shares of every prefix of a run, and the same draws however
// they are reached.
#include "llmc/base/random.h"
#include "llmc/data/dataloader.h"
#include "llmc/data/sources.h"
#include "llmc/number.h"
#include "test/fixture.h"

#include <math.h>

static Error err;
static Mixture mixture;

static int free_mixture(void **state) {
    (void)state;
    mixture_free(&mixture);
    return 0;
}
TestFixture test_each = {NULL, free_mixture}, test_all = {tmp_setup, tmp_teardown};

static const Mixture *parse(const char *text) {
    mixture_free(&mixture);
    assert_ok(mixture_parse(&mixture, text, &err));
    return &mixture;
}

// Weights as integers, without a text.
static Mixture mixture_of(int count, const int64_t *weights) {
    Mixture m = {.count = count};
    for (int i = 0; i < count; i++) m.total += m.weights[i] = weights[i];
    return m;
}

// -------------------------------------------------------------------------------------------- text

TEST(a_text_names_each_source_with_its_share) {
    const struct {
        const char *text;
        int count;
        const char *patterns[3], *names[3];
        int64_t weights[3];
    } cases[] = {
        {"web/train_*.bin:0.7,code/train_*.bin:0.3",
         2,
         {"web/train_*.bin", "code/train_*.bin"},
         {"web", "code"},
         {7, 3}},
        {"a/t.bin:2,b/t.bin:4,c/t.bin:6",
         3,
         {"a/t.bin", "b/t.bin", "c/t.bin"},
         {"a", "b", "c"},
         {1, 2, 3}},
        {"d/a.bin:1,d/b.bin:2", 2, {"d/a.bin", "d/b.bin"}, {"a.bin", "b.bin"}, {1, 2}},
        {"x/x/t:1,x/t:1",
         2,
         {"x/x/t", "x/t"},
         {"x/x/t", "x/t"},
         {1, 1}}, // nothing is left of the second
        {"a:b.bin:0.999,c\\,d.bin:0.001",
         2,
         {"a:b.bin", "c\\,d.bin"},
         {"a:b.bin", "c\\,d.bin"},
         {999, 1}},
        {"a:1e6,b:1", 2, {"a", "b"}, {"a", "b"}, {999999, 1}}, // in millionths
        {"a:0.333333,b:0.333333,c:0.333334",
         3,
         {"a", "b", "c"},
         {"a", "b", "c"},
         {333333, 333333, 333334}},
        {"train_*.bin:0.5", 1, {"train_*.bin"}, {"train_*.bin"}, {1}},
        {"a,b/train_*.bin", 1, {"a,b/train_*.bin"}, {"a,b/train_*.bin"}, {1}},
        {"s3:train.bin", 1, {"s3:train.bin"}, {"s3:train.bin"}, {1}},
        {"", 1, {""}, {""}, {1}},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const Mixture *m = parse(cases[i].text);
        assert_int_equal(m->count, cases[i].count);
        for (int k = 0; k < m->count; k++) {
            assert_string_equal(m->patterns[k], cases[i].patterns[k]);
            assert_string_equal(m->names[k], cases[i].names[k]);
            assert_int_equal(m->weights[k], cases[i].weights[k]);
        }
    }
}

TEST(files_that_have_the_whole_text_as_their_name_or_pattern_are_one_source) {
    write_text(tmp_file("a:0.5,b:0.5"), "x");
    assert_int_equal(parse(tmp_file("a:0.5,b:0.5"))->count, 1);
    assert_int_equal(parse(tmp_file("a*0.5,b:0.5"))->count, 1);
    assert_int_equal(parse(tmp_file("c:0.5,b:0.5"))->count, 2);
}

TEST(a_mixture_has_at_most_32_corpora) {
    char text[1024] = "", *at = text;
    for (int i = 0; i <= MIXTURE_MAX; i++) at += sprintf(at, "%s%d:1", i ? "," : "", i);
    assert_error(mixture_parse(&mixture, text, &err), "more than 32 corpora");
}

static char *put_before(const void *context, const char *pattern) {
    char *result = NULL;
    assert_true(strcmp(pattern, "no") == 0 ||
                asprintf(&result, "%s/%s", (const char *)context, pattern) > 0);
    return result;
}

TEST(the_patterns_of_a_text_can_be_replaced) {
    static const struct {
        const char *text, *mapped;
    } cases[] = {
        {"a:0.70,b\\,c:3e-1", "x,y/a:0.70,x,y/b,c:3e-1"}, {"a,b", "x,y/a,b"}, {"a:1,no:1", NULL}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        AUTO_FREE char *mapped = mixture_map(cases[i].text, put_before, "x,y");
        if (!cases[i].mapped) {
            assert_null(mapped);
            continue;
        }

        AUTO_FREE char *plain = strdup(mapped); // without the backslashes
        char *to = plain;
        for (const char *p = mapped; *p; p++)
            if (*p != '\\') *to++ = *p;
        *to = '\0';
        assert_string_equal(plain, cases[i].mapped);

        if (i > 0) continue;
        const Mixture *m = parse(mapped);
        assert_int_equal(m->count, 2);
        assert_string_equal(m->patterns[1], "x\\,y/b\\,c");
    }
}

// ------------------------------------------------------------------------------------------- order

// Every prefix of n draws has share x n windows of each source, within 1 - 1/(2k-2), and each
// source its windows in order: so a permutation of them repeats none before all are drawn.
static void check_prefixes(const Mixture *m, int64_t n) {
    MixtureCursor cursor = {0};
    int64_t drawn[MIXTURE_MAX] = {0};
    const int64_t bound = 2 * m->count - 2;

    for (int64_t p = 0; p < n; p++) {
        const MixtureDraw draw = mixture_draw(m, &cursor, p);
        assert_int_equal(draw.index, drawn[draw.source]++);

        for (int i = 0; i < m->count;
             i++) // exactly: |drawn - w n / W| <= 1 - 1 / bound, times W x bound
            if (llabs(drawn[i] * m->total - m->weights[i] * (p + 1)) * bound >
                (bound - 1) * m->total)
                fail_msg("source %d of %d: %lld drawn of %lld, weight %lld of %lld", i, m->count,
                         (long long)drawn[i], (long long)p + 1, (long long)m->weights[i],
                         (long long)m->total);
    }
}

TEST(every_prefix_of_a_run_has_the_shares_within_one_window) {
    check_prefixes(parse("a:0.7,b:0.3"), 20000);
    check_prefixes(parse("a:0.999,b:0.001"), 20000);
    check_prefixes(parse("a:0.001,b:0.999"), 20000);
    check_prefixes(parse("a:1,b:1,c:1"), 20000);
    check_prefixes(parse("a:999999,b:1"), 2100000);
    check_prefixes(parse("a:3.14159,b:2.71828,c:1.41421,d:0.57721"), 20000);

    for (uint64_t round = 0; round < 200; round++) {
        int64_t weights[MIXTURE_MAX];
        const int count = round % 2 ? 16 : 2 + (int)(philox(3, 1, round).v[0] % (MIXTURE_MAX - 1));
        for (int i = 0; i < count; i++) // of very different sizes
            weights[i] = 1 + philox(3, 2, round * 64 + (uint64_t)i).v[0] % (i % 3 ? 30 : 30000);
        const Mixture m = mixture_of(count, weights);
        check_prefixes(&m, 3000);
    }
}

TEST(draws_are_the_same_in_any_order_and_far_into_a_run) {
    const Mixture *m = parse("a:0.61,b:0.3,c:0.09");
    enum { N = 1000 };
    const int64_t starts[] = {0, 7, (int64_t)1 << 40};

    for (int k = 0; k < 3; k++) {
        MixtureDraw all[N];
        int64_t before[MIXTURE_MAX], after[MIXTURE_MAX];
        MixtureCursor forward = {0}, jumping = {0};
        for (int p = 0; p < N; p++) all[p] = mixture_draw(m, &forward, starts[k] + p);

        for (uint64_t i = 0; i < 3 * N; i++) {
            const int p = (int)(philox(5, 1, i).v[0] % N);
            const MixtureDraw draw = mixture_draw(m, &jumping, starts[k] + p);
            assert_int_equal(draw.source, all[p].source);
            assert_int_equal(draw.index, all[p].index);
        }

        mixture_count(m, starts[k], before);
        for (int p = 0; p < N; p++) assert_int_equal(all[p].index, before[all[p].source]++);
        mixture_count(m, starts[k] + N, after);
        assert_memory_equal(before, after, (size_t)m->count * sizeof *after);
    }
}

TEST(draws_pinned_because_a_resumed_run_must_make_them_again) {
    static const char expected[] = "0102010210010201021001";
    const Mixture *m = parse("a:0.5,b:0.3,c:0.2");
    MixtureCursor cursor = {0};
    char drawn[sizeof expected] = "";
    for (int p = 0; expected[p]; p++) drawn[p] = (char)('0' + mixture_draw(m, &cursor, p).source);
    assert_string_equal(drawn, expected);
}

TEST(after_a_change_of_weights_each_source_continues_where_it_was) {
    Mixture m = mixture_of(2, (int64_t[]){1, 3});
    m.start = 1000, m.drawn[0] = 700, m.drawn[1] = 300;
    int64_t drawn[MIXTURE_MAX], next[2] = {700, 300};
    MixtureCursor cursor = {0};
    for (int p = 1000; p < 1400; p++) {
        const MixtureDraw draw = mixture_draw(&m, &cursor, p);
        assert_int_equal(draw.index, next[draw.source]++);
    }
    mixture_count(&m, 1400, drawn);
    assert_int_equal(drawn[0], 800);
    assert_int_equal(drawn[1], 600);
}

// ------------------------------------------------------------------------------------------- files

enum { T = 4 };

// Tokens first, first + 1, ...
static void write_shard(const char *name, int first, int windows, int vocab, int token_bytes) {
    ShardWriter *w = shard_writer_open(tmp_file(name), token_bytes, vocab, -1, &err);
    assert_non_null(w);
    for (int i = first; i <= first + windows * T; i++) {
        const uint16_t narrow = (uint16_t)i;
        const uint32_t wide = (uint32_t)i;
        assert_true(
            shard_writer_append(w, token_bytes == 2 ? (const void *)&narrow : &wide, 1, &err));
    }
    assert_true(shard_writer_commit(w, &err));
}

static bool open_text(Sources *s, const char *first, const char *second) {
    AUTO_FREE char *text = NULL;
    assert_true(asprintf(&text, "%s/%s,%s/%s", tmp.path, first, tmp.path, second) > 0);
    return sources_open(s, text, T, &err);
}

TEST(the_loader_reads_each_source_in_the_order_of_a_run_on_it_alone) {
    enum { A = 50, B = 20, FIRST_B = 1000, STEP = 7, STEPS = 40, SEED = 1337 };
    Sources s;

    write_shard("a.bin", 0, A, 0, 2);
    write_shard("b.bin", FIRST_B, B, 0, 2);
    assert_ok(open_text(&s, "a.bin:0.6", "b.bin:0.4"));
    assert_int_equal(s.num_windows, A + B);
    assert_int_equal(s.num_shards, 2);

    for (int position = 0; position <= 3 * STEP; position += 3 * STEP) { // and resumed
        const DataLoaderOptions options = {.sources = &s,
                                           .vocab = 65536,
                                           .batch_windows = 3,
                                           .step_windows = STEP,
                                           .position = position,
                                           .seed = SEED,
                                           .shuffle = true};
        DataLoader *loader = dataloader_create(&options, &err);
        assert_non_null(loader);

        MixtureCursor cursor = {0};
        for (int64_t p = position; p < STEP * STEPS;) {
            const void *windows;
            int64_t count;
            assert_ok(dataloader_next(loader, &windows, &count, &err));
            for (int64_t i = 0; i < count; i++, p++) {
                const MixtureDraw draw = mixture_draw(&s.mixture, &cursor, p);
                const int64_t n = draw.source == 0 ? A : B, first = draw.source == 0 ? 0 : FIRST_B;
                assert_int_equal(((const uint16_t *)windows)[i * (T + 1)],
                                 first + T * shuffle_window(draw.index, n, SEED));
            }
        }
        dataloader_destroy(loader);
    }

    sources_close(&s);
}

// Else a corpus of a mixture could change under a resume, or differ from process to process,
// unseen.
TEST(the_checksum_of_a_mixture_is_that_of_every_source_and_of_their_order) {
    static const char *const texts[][2] = {{"a.bin:1", "b.bin:1"},
                                           {"c.bin:1", "b.bin:1"},
                                           {"a.bin:1", "c.bin:1"},
                                           {"b.bin:1", "a.bin:1"}};
    enum { TEXTS = sizeof texts / sizeof *texts };
    uint64_t seen[TEXTS];

    write_shard("a.bin", 0, 9, 0, 2);
    write_shard("b.bin", 100, 9, 0, 2);
    write_shard("c.bin", 200, 9, 0, 2);

    for (int i = 0; i < TEXTS; i++) {
        Sources s;
        assert_ok(open_text(&s, texts[i][0], texts[i][1]));
        seen[i] = s.fingerprint;
        sources_close(&s);

        for (int k = 0; k < i; k++)
            if (seen[k] == seen[i])
                fail_msg("%s, %s as %s, %s", texts[i][0], texts[i][1], texts[k][0], texts[k][1]);
    }
}
