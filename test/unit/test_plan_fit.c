// -b auto and -r auto against exhaustive search: every micro-batch and every choice of the ladder
// is planned, for five model sizes on devices of 8 to 141 GB. What the planner takes is the best of
// all that fit.
#include "llmc/base/format.h"
#include "llmc/model/parameters.h"
#include "llmc/plan/plan_fit.h"
#include "llmc/plan/plan_memory.h"
#include "test/fixture.h"
#include "test/unit/device_fixture.h"
#include "test/unit/plan_case.h"

static Error err;

TestFixture test_all = {start_device, stop_device};

static const char *const MODELS[] = {"d6", "d12", "d24", "d36", "d48"}; // 30M to 1558M parameters
static const double DEVICES[] = {8e9, 16e9, 24e9, 40e9, 80e9, 141e9};
#ifdef __SANITIZE_ADDRESS__ // plans of large models are longer, not other, and take minutes there
enum { NUM_MODELS = 3 };
#else
enum { NUM_MODELS = 5 };
#endif
enum { NUM_DEVICES = 6, MOST = 1024 };

// A Hopper: chunks of the logits that shrink where one more is needed, and a workspace of cuDNN's
// that is refused from some micro-batch on, so that memory does not only grow with B. Good until
// the next call.
static const PlannedSizes *sizes_of(double memory) {
    static GpuSpec gpu;
    static PlannedSizes sizes;
    gpu = (GpuSpec){.name = "fake", .memory = memory, .num_sms = 132, .compute_capability = 90};
    sizes = plan_sizes(&gpu, ATTENTION_AUTO);
    return &sizes;
}

static ModelOptions sampling(const char *descriptor, int64_t B) {
    ModelOptions o = model_of(descriptor, B, 1024);
    o.sequences = 1;
    return o;
}

// Every micro-batch is planned, until what shrinks as B grows, logits of 1 GiB and cuDNN's eighth
// of the memory, cannot bring it back under the limit.
static int64_t largest_by_search(const ModelOptions *model, double room, int64_t most) {
    const double shrinks = 0x1p30 + room / 8;
    int64_t largest = 0;
    for (int64_t B = 1; B <= most; B++) {
        const double total = total_at(model, B);
        if (total <= room) largest = B;
        if (total > room + shrinks) break;
    }
    return largest;
}

// ------------------------------------------------------------------------------------- micro-batch

TEST(the_largest_batch_of_all_that_fit_is_taken) {
    for (int m = 0; m < NUM_MODELS; m++)
        for (int d = 0; d < NUM_DEVICES; d++) {
            const int level = (m + d) % 4;
            ModelOptions model = sampling(MODELS[m], 1);
            char text[2] = {(char)('0' + level), 0};

            model.sizes = sizes_of(DEVICES[d]);
            model.recompute = recompute_all(recompute_level_set(level));

            const int64_t expected = largest_by_search(&model, DEVICES[d], MOST);
            const bool fits = plan_fit(&model, true, text, DEVICES[d], MOST, &err);

            assert_true(fits == (expected > 0));
            if (fits && model.B != expected)
                fail_msg("%s -r %d, %g GB: -b %lld, but %lld fit", MODELS[m], level,
                         DEVICES[d] / 1e9, (long long)model.B, (long long)expected);
        }
}

// Sequences that are small beside logits and workspace, with which the search has to go down by
// many.
TEST(the_largest_batch_of_short_sequences_is_taken) {
    int far = 0;
    for (int d = 0; d < 4; d++) {
        const double room = 1.2e9 + 0.7e9 * d;
        ModelOptions model = model_of("d6", 1, 32);
        model.sizes = sizes_of(room);

        const int64_t expected = largest_by_search(&model, room, MOST);
        assert_true(expected > 0 && expected < MOST);
        assert_true(plan_fit(&model, true, "0", room, MOST, &err));
        assert_int_equal(model.B, expected);

        ModelOptions without = model;
        static const PlannedSizes none = {0};
        without.sizes = &none;
        far += total_at(&without, expected + 3) <= room; // those that the search begins with
    }

    assert_true(far > 0);
}

// Where a step is a power of two of sequences, only powers of two divide it.
TEST(a_batch_that_must_divide_a_step_is_the_power_of_two_below_the_largest) {
    static const struct {
        int64_t fits, divides;
    } cases[] = {{1, 1}, {3, 2}, {4, 4}, {7, 4}, {13, 8}, {31, 16}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ModelOptions model = sampling("d12", 1);
        const double room = total_at(&model, cases[i].fits);
        assert_true(plan_fit(&model, true, "0", room, 0, &err));
        assert_int_equal(model.B, cases[i].fits);
        assert_true(plan_fit_divisor(&model, "0", room, &err));
        assert_int_equal(model.B, cases[i].divides);
    }
}

// ----------------------------------------------------------------------------------- recomputation

TEST(the_ladder_has_each_set_and_each_mixture_once_and_the_cheapest_first) {
    const ModelOptions model = sampling("d12", 1);
    const int named[] = {0, RECOMPUTE_GELU, RECOMPUTE_GELU | RECOMPUTE_LAYERNORM,
                         RECOMPUTE_GELU | RECOMPUTE_LAYERNORM | RECOMPUTE_FC, RECOMPUTE_BLOCK};

    RecomputeChoice *ladder;
    const int n = plan_ladder(&ladder, &model.config, model.T), sets = 8;
    // mixtures of two: 1 to 11 blocks of the one
    assert_int_equal(n, sets + sets * (sets - 1) / 2 * 11);

    for (int a = 0; a < 5; a++)
        for (int b = 0; b < 5; b++)
            for (int64_t count = 1; count <= 12; count++) {
                int found = 0;
                for (int i = 0; i < n; i++)
                    found += ladder[i].first_set == named[b] && ladder[i].set == named[a] &&
                             ladder[i].count == count;
                assert_int_equal(found, a == b ? count == 12 : a < b && count < 12);
            }

    for (int i = 1; i < n; i++) {
        const RecomputeChoice *x = &ladder[i - 1], *y = &ladder[i];
        assert_true(x->flops < y->flops || (x->flops == y->flops && x->elements <= y->elements));
    }

    free(ladder);
}

// A plan of each choice of the ladder shows what it takes.
static double *ladder_bytes(ModelOptions model, const RecomputeChoice *ladder, int n) {
    double *totals = malloc((size_t)n * sizeof *totals);
    assert_non_null(totals);
    for (int i = 0; i < n; i++) {
        model.recompute = plan_recompute(&ladder[i], model.config.L);
        totals[i] = plan_total(&model);
    }
    return totals;
}

static void check_auto(const char *name, const ModelOptions *model, const RecomputeChoice *ladder,
                       const double *totals, int n, double room) {
    const RecomputeChoice *best = NULL;
    for (int i = 0; i < n; i++) {
        const RecomputeChoice *c = &ladder[i];
        if (totals[i] <= room && (!best || c->flops < best->flops ||
                                  (c->flops == best->flops && c->elements < best->elements)))
            best = c;
    }
    ModelOptions chosen = *model;
    const bool fits = plan_fit(&chosen, false, "auto", room, 0, &err);
    if (fits != (best != NULL))
        fail_msg("%s in %g GB: %s", name, room / 1e9, fits ? "chosen" : err.text);
    if (!best) return;
    assert_true(plan_total(&chosen) <= room);
    assert_int_equal(chosen.B, model->B);
    assert_true(recompute_flops_per_token(&chosen.recompute, &model->config, model->T) ==
                best->flops);
    assert_true(recompute_elements_per_token(&chosen.recompute, &model->config) == best->elements);
}

TEST(the_least_flops_and_then_the_least_bytes_of_all_choices_are_taken) {
    const int64_t batches[] = {256, 32, 16, 6, 2};

    for (int m = 0; m < NUM_MODELS; m++) {
        RecomputeChoice *ladder;
        ModelOptions model = sampling(MODELS[m], batches[m]);
        model.sizes = sizes_of(24e9);
        const int n = plan_ladder(&ladder, &model.config, model.T);
        double *totals = ladder_bytes(model, ladder, n);

        for (int d = 0; d < NUM_DEVICES; d++)
            check_auto(MODELS[m], &model, ladder, totals, n, DEVICES[d]);

        // The choice is narrow between what everything kept takes and the least of all.
        double least = totals[0], all = totals[0];
        for (int i = 1; i < n; i++) least = totals[i] < least ? totals[i] : least;
        for (int part = 0; part <= 8; part++)
            check_auto(MODELS[m], &model, ladder, totals, n, least + (all - least) * part / 8);

        free(totals);
        free(ladder);
    }
}

// -------------------------------------------------------------------------------------------- both

// Whether a choice without matmuls and attention fits with B sequences; *elements: the least it
// moves.
static bool fits_without_flops(const ModelOptions *model, int64_t B, double room,
                               double *elements) {
    RecomputeChoice *ladder;
    const int n = plan_ladder(&ladder, &model->config, model->T);
    ModelOptions m = *model;
    bool fits = false;
    m.B = B;
    for (int i = 0; i < n && !fits; i++) { // the cheapest first
        if (ladder[i].flops > 0) break;
        m.recompute = plan_recompute(&ladder[i], m.config.L);
        fits = plan_total(&m) <= room;
        *elements = ladder[i].elements;
    }
    free(ladder);
    return fits;
}

// More tokens than ENOUGH in a micro-step are worth no recomputation, fewer are worth what repeats
// no matmul.
TEST(both_auto_take_the_largest_batch_that_repeats_no_matmul_and_stop_where_it_is_enough) {
    enum { ENOUGH = 65536 };
    int with_flops = 0, without = 0, enough = 0;
    for (int m = 0; m < NUM_MODELS; m++)
        for (int d = 0; d < NUM_DEVICES; d++) {
            ModelOptions model = sampling(MODELS[m], 1);
            double elements = 0;
            model.sizes = sizes_of(DEVICES[d]);

            // Nothing is computed again.
            const int64_t kept = largest_by_search(&model, DEVICES[d], MOST);
            if (kept * model.T >= ENOUGH) {
                assert_true(plan_fit(&model, true, "auto", DEVICES[d], MOST, &err));
                assert_int_equal(model.B, kept);
                for (int l = 0; l < model.config.L; l++)
                    assert_int_equal(model.recompute.blocks[l], 0);
                enough++;
                continue;
            }

            // then B = 1 with blocks again does not
            if (!plan_fit(&model, true, "auto", DEVICES[d], MOST, &err)) {
                model.recompute = recompute_all(RECOMPUTE_BLOCK);
                assert_true(total_at(&model, 1) > DEVICES[d]);
                continue;
            }

            assert_true(plan_total(&model) <= DEVICES[d]);
            const double flops =
                recompute_flops_per_token(&model.recompute, &model.config, model.T);
            if (flops > 0) {
                assert_int_equal(model.B, 1);
                assert_false(fits_without_flops(&model, 1, DEVICES[d], &elements));
                with_flops++;
                continue;
            }

            assert_true(model.B >= kept && model.B * model.T <= ENOUGH);
            for (int64_t more = 1; more <= 2 && (model.B + more) * model.T <= ENOUGH; more++)
                assert_false(fits_without_flops(&model, model.B + more, DEVICES[d], &elements));
            assert_true(fits_without_flops(&model, model.B, DEVICES[d], &elements));
            assert_true(recompute_elements_per_token(&model.recompute, &model.config) == elements);
            without++;
        }

    assert_true(with_flops + without > 2 * NUM_MODELS && enough > NUM_MODELS);
}

// Room for one sequence of 774M with its blocks computed again, and for none without.
TEST(where_no_sequence_fits_without_matmuls_again_one_fits_with_them) {
    ModelOptions model = sampling("d36", 1);
    model.recompute = recompute_all(RECOMPUTE_GELU | RECOMPUTE_LAYERNORM);
    const double room = plan_total(&model) - 1;
    assert_true(plan_fit(&model, true, "auto", room, 512, &err));
    assert_int_equal(model.B, 1);
    assert_true(plan_total(&model) <= room);
    assert_true(recompute_flops_per_token(&model.recompute, &model.config, model.T) > 0);
}

// The linker sends every call of model_plan through here: see the Makefile.
static int plans;
MemoryPlan *__real_model_plan(const ModelOptions *options);
MemoryPlan *__wrap_model_plan(const ModelOptions *options);
MemoryPlan *__wrap_model_plan(const ModelOptions *options) {
    plans++;
    return __real_model_plan(options);
}

// The ladder has 1324 choices, -b 1024 values: one plan for each set and a few around the edge are
// enough.
TEST(a_choice_for_1558M_makes_few_plans) {
    ModelOptions model = sampling("d48", 1);
    model.sizes = sizes_of(40e9);
    plans = 0;
    assert_true(plan_fit(&model, true, "auto", 40e9, 1024, &err));
    assert_in_range(plans, 8, 24); // 15
    plans = 0;
    assert_true(plan_fit(&model, false, "auto", 30e9, 1024, &err));
    assert_in_range(plans, 8, 16); // 9
}

// A T4 that only evaluates: one sequence takes what decoding takes, and a thousand something else.
TEST(a_search_that_begins_with_the_wrong_slope_makes_few_plans) {
    for (int m = 0; m < NUM_MODELS; m++)
        for (int sequences = 0; sequences < 2; sequences++) {
            ModelOptions model = sampling(MODELS[m], 1);
            const GpuSpec *t4 = gpu_named("T4");
            const PlannedSizes sizes = plan_sizes(t4, ATTENTION_AUTO);
            const double room = t4->memory - plan_reserve(t4->memory);

            model.train = false, model.dtype = DTYPE_FP16, model.sizes = &sizes,
            model.sequences = sequences;

            plans = 0;
            const int64_t B = plan_largest_batch(&model, room, 0);
            if (plans > 24) fail_msg("%s: %d plans", MODELS[m], plans); // 6 to 17
            assert_true(B > 0 && total_at(&model, B) <= room && total_at(&model, B + 1) > room);
        }
}

TEST(the_largest_batch_of_an_evaluation_is_that_of_all_that_fit) {
    const double rooms[] = {0.4e9, 0.7e9, 1.5e9, 2e9, 3.1e9};
    for (int m = 0; m < 3; m++)
        for (int r = 0; r < 5; r++) {
            ModelOptions model = sampling(MODELS[m], 1);
            model.train = false, model.T = 256;
            model.sizes = sizes_of(rooms[r]);
            assert_int_equal(plan_largest_batch(&model, rooms[r], MOST),
                             largest_by_search(&model, rooms[r], MOST));
        }
}

TEST(evaluation_has_nothing_to_recompute) {
    ModelOptions model = sampling("d12", 4);
    model.train = false;
    assert_true(plan_fit(&model, true, "auto", 8e9, 0, &err));
    assert_int_equal(model.recompute.blocks[0], 0);
    assert_true(plan_total(&model) <= 8e9 && total_at(&model, model.B + 1) > 8e9);
}

// ------------------------------------------------------------------------------- when nothing fits

enum { FEWER_B = 1, RECOMPUTE = 2, OPTIMIZER = 4, GRADIENTS = 8, OFFLOAD = 16 };

// Whether these changes make it fit.
static bool fits_with(ModelOptions model, int changes, double room) {
    Error unused;
    if (changes & OPTIMIZER) model.optimizer = OPTIMIZER_ADAMW_8BIT, model.master = false;
    if (changes & GRADIENTS) model.gradients_in_dtype = true;
    if (changes & OFFLOAD) model.offload = true;
    return plan_fit(&model, (changes & FEWER_B) != 0, changes & RECOMPUTE ? "auto" : "0", room,
                    changes & FEWER_B ? model.B - 1 : 0, &unused);
}

static int bits(int n) { return __builtin_popcount((unsigned)n); }

TEST(the_message_names_the_first_change_that_would_fit) {
    static const char *const words[] = {"fits with -b ", "-r auto", "--optimizer adamw8bit -w 0",
                                        "--grad-dtype compute", "--offload optimizer"};
    // every change is needed in one of them
    static const double rooms[] = {1e9, 1.4e9, 2e9, 2.6e9, 7e9, 24e9, 80e9};

    int seen = 0;
    for (int m = 1; m < 3; m++)
        for (int i = 0; i < 7; i++) {
            const double room = rooms[i];
            ModelOptions model = sampling(MODELS[m], 64);
            int first = 0;
            model.sizes = sizes_of(room);

            if (plan_fit(&model, false, "0", room, 0, &err)) continue;
            for (int count = 1; count <= 5 && !first; count++)
                for (int r = 1; r < 32 && !first; r++)
                    if (bits(r) == count && fits_with(model, r, room)) first = r;

            if (first == 0) {
                assert_non_null(strstr(err.text, "use a smaller model or context"));
                continue;
            }

            for (int w = 0; w < 5; w++)
                if ((strstr(err.text, words[w]) != NULL) != (first >> w & 1))
                    fail_msg("%d: %s", first, err.text);
            seen |= first;
        }

    assert_int_equal(seen, FEWER_B | RECOMPUTE | OPTIMIZER | GRADIENTS | OFFLOAD);
}

TEST(the_message_says_what_is_needed_and_what_there_is) {
    ModelOptions model = sampling("d12", 8);
    model.recompute = recompute_all(0);
    assert_false(plan_fit(&model, false, "0", 4.0 * 0x1p30, 0, &err));
    char needs[64], bytes[32];
    snprintf(needs, sizeof needs, "not enough memory: -b 8 -r 0 needs %s,",
             format_bytes(plan_total(&model), bytes, sizeof bytes));
    if (!strstr(err.text, needs)) fail_msg("%s", err.text);
    assert_non_null(strstr(err.text, "only 4.00 GiB is available; it fits with -b "));
    assert_error(plan_fit(&model, true, "auto", 1e6, 0, &err),
                 "use a smaller model or context (-e, -t)");
    assert_error(plan_fit(&model, true, "5", 1e12, 0, &err), "-r 5");
}
