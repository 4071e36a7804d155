// Multiple choice: the form of the files and damage to it, and the scores against a plain pass for
// every completion. What transformers answers: test/e2e/test_evaluation.py.
#include "llmc/base/error.h"
#include "llmc/base/random.h"
#include "llmc/base/signals.h"
#include "llmc/model/model_state.h"
#include "llmc/train/choices.h"
#include "test/fixture.h"
#include "test/unit/tiny_model.h"

#include <fcntl.h>
#include <math.h>

enum { V = 80, T = 100, EXAMPLES = 23, HEADER = 1024, MOST_WORDS = 40000 };

static Error err;

// ---------------------------------------------------------------------------------- files, written

typedef struct {
    int32_t header[HEADER / 4];
    uint16_t words[MOST_WORDS];
    int64_t n;
} File;

static void put_text(File *f, int64_t n, uint64_t stream) {
    f->words[f->n++] = (uint16_t)n;
    for (int64_t i = 0; i < n; i++)
        f->words[f->n++] = (uint16_t)(philox(3, stream, (uint64_t)i).v[0] % V);
}

static void put_example(File *f, int label, int completions, int64_t context,
                        const int64_t *lengths) {
    const int64_t begin = f->n, i = f->header[2]++;
    const uint16_t head[] = {65535, 0, (uint16_t)i, (uint16_t)label, (uint16_t)completions};
    memcpy(f->words + begin, head, sizeof head);
    f->n += 5;
    put_text(f, context, (uint64_t)(100 * i));
    for (int k = 0; k < completions; k++) put_text(f, lengths[k], (uint64_t)(100 * i + 1 + k));
    f->words[begin + 1] = (uint16_t)(2 * (f->n - begin));
    if (2 * (f->n - begin) > f->header[3]) f->header[3] = (int32_t)(2 * (f->n - begin));
}

static File *file_begin(void) {
    static File f;
    memset(&f, 0, sizeof f);
    f.header[0] = 20240522, f.header[1] = 1;
    return &f;
}

// 2 to 16 completions, lengths from 1 to beyond a context of 32, labels all over.
static File *file_of_all_kinds(void) {
    File *f = file_begin();
    for (int i = 0; i < EXAMPLES; i++) {
        int64_t lengths[CHOICES_MAX];
        const int completions = i == 7 ? 16 : 2 + i % 5;
        for (int k = 0; k < completions; k++) lengths[k] = 1 + (i * 7 + k * 11) % 30;
        put_example(f, i % completions, completions, 1 + i * 17 % 90, lengths);
    }
    return f;
}

static const char *write_file(const File *f, const char *name) {
    const char *path = tmp_file(name);
    char *content = malloc(HEADER + (size_t)f->n * 2);
    memcpy(content, f->header, HEADER);
    memcpy(content + HEADER, f->words, (size_t)f->n * 2);
    write_bytes(path, content, HEADER + (size_t)f->n * 2);
    free(content);
    return path;
}

static ChoiceSets opened(const File *f) {
    ChoiceSets sets;
    if (!choices_open(&sets, write_file(f, "set.bin"), V, &err)) fail_msg("%s", err.text);
    return sets;
}

static void refused_path(const char *path, const char *words) {
    ChoiceSets sets;
    assert_error(choices_open(&sets, path, V, &err), words);
    choices_close(&sets);
}

// ------------------------------------------------------------------------------------ reading them

TEST(files_are_read_as_they_were_written) {
    const File *f = file_of_all_kinds();
    ChoiceSets sets = opened(f);
    assert_int_equal(sets.count, 1);
    assert_string_equal(choices_name(sets.sets[0]), "set");
    assert_int_equal(choices_count(sets.sets[0]), EXAMPLES);

    const uint16_t *w = f->words;
    for (int i = 0; i < EXAMPLES; i++) {
        const ChoiceExample e = choices_example(sets.sets[0], i);
        assert_int_equal(e.label, w[3]);
        assert_int_equal(e.completions, w[4]);

        w += 5;
        assert_int_equal(e.context_tokens, *w);
        assert_memory_equal(e.context, w + 1, *w * 2u);
        w += 1 + *w;
        for (int k = 0; k < e.completions; k++) {
            assert_int_equal(e.completion_tokens[k], *w);
            assert_memory_equal(e.completion[k], w + 1, *w * 2u);
            w += 1 + *w;
        }
    }

    choices_close(&sets);
}

TEST(files_of_one_name_are_told_apart_by_their_place) {
    const TmpDir before = tmp, own = tmpdir_make();
    char pattern[4096];

    tmp = own;
    for (int i = 0; i < 3; i++) {
        const char *const directories[] = {"a", "b", "c"};
        char file[16];
        assert_int_equal(mkdir(tmp_file(directories[i]), 0755), 0);
        snprintf(file, sizeof file, "%s/arc.bin", directories[i]);
        write_file(file_of_all_kinds(), file);
    }

    snprintf(pattern, sizeof pattern, "%s/*/arc.bin", own.path);
    ChoiceSets sets;
    assert_true(choices_open(&sets, pattern, V, &err));
    assert_string_equal(choices_name(sets.sets[0]), "arc");
    assert_string_equal(choices_name(sets.sets[1]), "arc.2");
    assert_string_equal(choices_name(sets.sets[2]), "arc.3");
    choices_close(&sets);

    tmpdir_remove(&own);
    tmp = before;
}

TEST(a_pattern_opens_its_files_in_the_order_of_names) {
    const char *const names[] = {"zebra.bin", "arc.bin", "arc.challenge.bin", "Upper"};
    const char *const sorted[] = {"Upper", "arc", "arc.challenge", "zebra"};
    char pattern[4096];
    const TmpDir before = tmp, own = tmpdir_make();

    tmp = own;
    for (int i = 0; i < 4; i++) write_file(file_of_all_kinds(), names[i]);
    snprintf(pattern, sizeof pattern, "%s/*", own.path);

    ChoiceSets sets;
    assert_true(choices_open(&sets, pattern, V, &err));
    assert_int_equal(sets.count, 4);
    for (int i = 0; i < 4; i++) assert_string_equal(choices_name(sets.sets[i]), sorted[i]);

    choices_close(&sets);
    snprintf(pattern, sizeof pattern, "%s/none_*.bin", own.path);
    refused_path(pattern, "none_*.bin");

    tmpdir_remove(&own);
    tmp = before;
}

// ------------------------------------------------------------------------------------------ scores

static ChoiceSets all; // of all kinds

static int setup(void **state) {
    (void)state;
    if (!device_init(&(DeviceOptions){.threads = 1}, &err)) return -1;
    tmp = tmpdir_make();
    all = opened(file_of_all_kinds());
    return 0;
}

static int teardown(void **state) {
    (void)state;
    choices_close(&all);
    tmpdir_remove(&tmp);
    device_shutdown();
    return 0;
}
TestFixture test_all = {setup, teardown};

typedef struct {
    ChoiceScore score;
    double losses[EXAMPLES * CHOICES_MAX];
    int64_t tokens[EXAMPLES * CHOICES_MAX];
} Scored;

static void score(Model *model, const ChoiceSet *set, Scored *s) {
    if (!evaluate_choices(model, set, 0, &s->score, s->losses, s->tokens, &err))
        fail_msg("%s", err.text);
}

// One completion by itself: one window as long as the context, filled with tokens 1 behind the end.
static double plain_loss(Model *model, const ChoiceExample *e, int k, int64_t context_length,
                         bool *cut) {
    uint16_t *window = host_alloc((size_t)(context_length + 1) * sizeof *window, &err);
    float *losses = host_alloc((size_t)context_length * sizeof *losses, &err);
    const int64_t n = e->completion_tokens[k], room = context_length + 1 - n;
    const int64_t context = e->context_tokens < room ? e->context_tokens : room;
    *cut = context < e->context_tokens;
    for (int64_t i = 0; i <= context_length; i++) window[i] = 1;
    memcpy(window, e->context + e->context_tokens - context, (size_t)context * sizeof *window);
    memcpy(window + context, e->completion[k], (size_t)n * sizeof *window);
    model_load_batch(model, window, 1, context_length, sizeof *window);
    model_forward(model);
    copy_d2h(losses, model_token_losses(model).data, (size_t)context_length * sizeof *losses,
             STREAM_COMPUTE);
    device_sync();
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) sum += losses[context - 1 + i];
    host_free(window);
    host_free(losses);
    return sum;
}

// fp32 losses of other shapes of matmul: 1e-4 of a sum is what the project asks for, 1e-5 what
// rounding gives (about 10 roundings of 2^-24 on the way of a logit of size 10, each loss below 10
// nats, up to 30 of them).
TEST(losses_are_those_of_a_plain_pass_for_every_completion) {
    const int64_t contexts[] = {T, 33};
    for (int c = 0; c < 2; c++) {
        Model *model = tiny_random(V, 4, contexts[c], 0);
        static Scored s;
        int64_t correct = 0, correct_normalised = 0, examples_cut = 0;
        score(model, all.sets[0], &s);

        for (int i = 0; i < EXAMPLES; i++) {
            const ChoiceExample e = choices_example(all.sets[0], i);
            int best = 0, best_mean = 0;
            bool any_cut = false;
            double losses[CHOICES_MAX];

            for (int k = 0; k < e.completions; k++) {
                bool cut;
                losses[k] = plain_loss(model, &e, k, contexts[c], &cut);
                any_cut = any_cut || cut;
                assert_true(fabs(s.losses[i * CHOICES_MAX + k] / losses[k] - 1.0) < 1e-5);
                assert_int_equal(s.tokens[i * CHOICES_MAX + k], e.completion_tokens[k]);
                if (losses[k] < losses[best]) best = k;
                if (losses[k] * (double)e.completion_tokens[best_mean] <
                    losses[best_mean] * (double)e.completion_tokens[k])
                    best_mean = k;
            }

            correct += best == e.label, correct_normalised += best_mean == e.label,
                examples_cut += any_cut;
        }

        assert_int_equal(s.score.examples, EXAMPLES);
        assert_int_equal(s.score.correct, correct);
        assert_int_equal(s.score.correct_normalised, correct_normalised);
        assert_int_equal(s.score.cut, examples_cut);
        assert_true(c == 0 || examples_cut > 0);
        model_destroy(model);
    }
}

TEST(the_score_does_not_depend_on_the_micro_batch) {
    static Scored first, s;
    for (int64_t B = 1; B <= 9; B += 2) {
        Model *model = tiny_random(V, B, T, 0);
        score(model, all.sets[0], &s);
        if (B == 1) first = s;

        assert_memory_equal(&s.score, &first.score, sizeof s.score);
        for (int i = 0; i < EXAMPLES; i++)
            for (int k = 0; k < choices_example(all.sets[0], i).completions; k++)
                assert_true(fabs(s.losses[i * CHOICES_MAX + k] / first.losses[i * CHOICES_MAX + k] -
                                 1.0) < 1e-5);

        model_destroy(model);
    }
}

TEST(fewer_examples_are_the_first_ones) {
    Model *model = tiny_random(V, 3, T, 0);
    int64_t before = 0;
    for (int64_t n = 1; n <= EXAMPLES; n++) {
        ChoiceScore s;
        assert_true(evaluate_choices(model, all.sets[0], n, &s, NULL, NULL, &err));
        assert_int_equal(s.examples, n);
        assert_in_range(s.correct, before, before + 1);
        before = s.correct;
    }
    model_destroy(model);
}

// Equal logits: every token costs ln V. By sum the shortest completion wins, by mean the first.
TEST(by_sum_short_completions_win_and_by_mean_they_do_not) {
    File *f = file_begin();
    put_example(f, 1, 3, 4, (int64_t[]){6, 2, 9});
    put_example(f, 0, 3, 4, (int64_t[]){8, 4, 4});
    put_example(f, 2, 3, 4, (int64_t[]){5, 5, 5});

    ChoiceSets sets = opened(f);
    Model *model = tiny_create(V, 2, T, 0);
    ChoiceScore s;

    assert_true(evaluate_choices(model, sets.sets[0], 0, &s, NULL, NULL, &err));
    assert_int_equal(s.correct, 1);
    assert_int_equal(s.correct_normalised, 1);

    model_destroy(model);
    choices_close(&sets);
}

// A weight of NaN: no completion is likelier than another, so none is right, label 0 neither.
TEST(a_model_of_nan_answers_nothing_right) {
    Model *model = tiny_random(V, 2, T, 0);
    float nan = NAN;
    model_set_weight(model, parameter_index(&model_options(model)->config, PARAM_LNFB, -1), 0, 1,
                     &nan);
    ChoiceScore s;
    assert_true(evaluate_choices(model, all.sets[0], 0, &s, NULL, NULL, &err));
    assert_int_equal(s.examples, EXAMPLES);
    assert_int_equal(s.correct, 0);
    assert_int_equal(s.correct_normalised, 0);
    model_destroy(model);
}

TEST(a_completion_longer_than_the_context_is_named) {
    File *f = file_begin();
    put_example(f, 0, 2, 50, (int64_t[]){20, 20});
    put_example(f, 0, 2, 1, (int64_t[]){20, 21});

    ChoiceSets sets = opened(f);
    Model *model = tiny_random(V, 2, 20, 0);
    ChoiceScore s;

    assert_true(evaluate_choices(model, sets.sets[0], 1, &s, NULL, NULL, &err));
    assert_int_equal(s.cut, 1);

    assert_error(choices_fit(&sets, 20, &err),
                 "example 1: completion 1 has 21 tokens, but the context is 20");
    assert_true(choices_fit(&sets, 21, &err));

    model_destroy(model);
    choices_close(&sets);
}

TEST(after_a_signal_there_is_no_score) {
    Model *model = tiny_random(V, 2, T, 0);
    ChoiceScore s;
    Capture line = capture_start(stderr); // of the handler
    signals_install();
    raise(SIGTERM);
    const bool ok = evaluate_choices(model, all.sets[0], 0, &s, NULL, NULL, &err);
    signals_install(); // forgets it
    free(capture_end(&line));
    assert_true(ok);
    assert_int_equal(s.examples, 0);
    model_destroy(model);
}
