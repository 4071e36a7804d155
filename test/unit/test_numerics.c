// model_numerics counts a small model, against tensors whose values are known: every class once,
// over all blocks and micro-steps; updates as they were made; nothing where it was not asked for.

#include "llmc/model/model.h"
#include "llmc/model/model_numerics.h"
#include "llmc/model/model_state.h"
#include "test/test.h"
#include "test/unit/device_fixture.h"
#include "test/unit/tiny_model.h"

#include <math.h>

static Error err;

TestFixture test_each = {.teardown = models_destroy}, test_all = {start_device, stop_device};

enum { L = 3, C = 64, V = 100, T = 16, B = 4 };

static ModelOptions options_of(DType dtype, bool master) {
    ModelOptions options = {.config = {.max_T = T, .L = L, .NH = 2, .C = C},
                            .dtype = dtype,
                            .master = master,
                            .train = true,
                            .B = B,
                            .T = T,
                            .numerics = true};
    model_config_set_vocab(&options.config, V);
    return options;
}

static Model *make(const ModelOptions *options) {
    Model *model = model_of(*options);
    model_init_weights(model, 1);
    return model;
}

static void micro_step(Model *model, bool first) {
    uint16_t *windows = host_alloc(sizeof(uint16_t) * B * (T + 1), &err);
    assert_non_null(windows);
    for (int i = 0; i < B * (T + 1); i++) windows[i] = (uint16_t)(i * 7 % V);
    model_load_batch(model, windows, B, T, sizeof *windows);
    model_forward_backward(model, (int64_t)2 * B * T, first);
    device_sync();
    host_free(windows);
}

// The row of that name; NULL: there is none.
static const NumericsRow *row_named(Model *model, const char *name) {
    static NumericsRow rows[NUMERICS_MAX_ROWS];
    const int n = model_numerics_read(model, rows);
    for (int i = 0; i < n; i++)
        if (strcmp(rows[i].name, name) == 0) return &rows[i];
    return NULL;
}

static double count_of(Model *model, const char *name) {
    const NumericsRow *row = row_named(model, name);
    return row ? row->stats.count : 0.0;
}

TEST(only_a_model_that_wants_numerics_has_room_for_them) {
    ModelOptions options = options_of(DTYPE_FP32, false);
    MemoryPlan *with = model_plan(&options);
    options.numerics = false;
    MemoryPlan *without = model_plan(&options);
    assert_true(memory_plan_total(with) > memory_plan_total(without));
    memory_plan_destroy(with), memory_plan_destroy(without);
    Model *model = make(&options);
    NumericsRow rows[NUMERICS_MAX_ROWS];
    assert_int_equal(model_numerics_read(model, rows), 0);
}

static void count_two_micro_steps(int again) {
    ModelOptions options = options_of(DTYPE_FP32, false);
    options.recompute = recompute_all(again);
    Model *model = make(&options);

    micro_step(model, true); // not observed
    model_observe(model, true);
    micro_step(model, true), micro_step(model, false);
    model_observe(model, false);
    micro_step(model, false); // not observed

    const struct {
        const char *name;
        int width;
    } classes[] = {{"qkv.in", C},        {"qkv.out", 3 * C}, {"qkv.gradient", 3 * C},
                   {"attproj.in", C},    {"attproj.out", C}, {"attproj.gradient", C},
                   {"fc.in", C},         {"fc.out", 4 * C},  {"fc.gradient", 4 * C},
                   {"fcproj.in", 4 * C}, {"fcproj.out", C},  {"fcproj.gradient", C}};

    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++) {
        const double want = 2.0 * L * B * T * classes[i].width;
        if (count_of(model, classes[i].name) != want)
            fail_msg("%s: %g elements, not %g", classes[i].name, count_of(model, classes[i].name),
                     want);
    }

    // The rows of layernorm with its initial weights have mean square 1, but for the 1e-5 it adds
    // to variances of about 0.02^2 and more, 1e-5 / 4e-4 at most.
    const TensorStats *s = &row_named(model, "qkv.in")->stats;
    assert_true(s->sumsq / s->count > 0.97 && s->sumsq / s->count < 1.0001);
    assert_null(row_named(model, "wte.weight")); // nobody counted it

    model_observe(model, true); // counts begin at 0
    assert_null(row_named(model, "qkv.in"));
}

TEST(activations_are_counted_over_blocks_and_micro_steps) { count_two_micro_steps(0); }

TEST(what_is_computed_again_is_counted_once) {
    count_two_micro_steps(RECOMPUTE_GELU | RECOMPUTE_QKV);
    count_two_micro_steps(RECOMPUTE_BLOCK);
}

// Every element of a parameter.
static void set_all(Model *model, int index, float value) {
    const Parameter *p = &model_parameters(model)[index];
    const int64_t n = parameter_numel(p);
    AUTO_FREE float *values = malloc((size_t)n * sizeof *values);
    for (int64_t i = 0; i < n; i++) values[i] = value;
    model_set_weight(model, index, 0, p->rows, values);
}

TEST(weights_and_gradients_are_counted_by_kind) {
    const ModelOptions options = options_of(DTYPE_FP32, false);
    Model *model = make(&options);

    for (int l = 0; l < L; l++)
        set_all(model, parameter_index(&options.config, PARAM_FCW, l), (float)(l + 1));
    for (int i = 0; i < model_num_tensors(model); i++)
        tensor_fill(model_tensors(model)[i].grad, 0.0f);
    tensor_fill(model_tensors(model)[parameter_index(&options.config, PARAM_LNFB, -1)].grad,
                INFINITY);

    model_observe(model, true);
    model_numerics_gradients(model);

    const TensorStats weight = row_named(model, "fcw.weight")->stats,
                      none = row_named(model, "fcw.gradient")->stats,
                      broken = row_named(model, "lnfb.gradient")->stats;
    assert_true(weight.count == L * 4.0 * C * C && weight.amax == 3.0f &&
                weight.sumsq == 4.0 * C * C * (1 + 4 + 9));

    // The rows that pad the vocabulary are left out.
    const TensorStats wte = row_named(model, "wte.weight")->stats;
    assert_true(wte.count == (double)(options.config.V * C) &&
                options.config.V < options.config.Vp);

    assert_true(none.zero == none.count && none.sumsq == 0.0 && none.overflow == 0.0);
    assert_true(broken.overflow == C && broken.count == C && broken.amax == 0.0f);
}

// fc of the last block goes from 1 to 1.5, of the others stays at 1: a change of 0.5 / sqrt(3) of
// the weight's norm, in the master or, without one, in the weight; every number is exact in bf16.
TEST(an_update_is_what_changed_against_what_was_there) {
    for (int c = 0; c < 3; c++) {
        const ModelOptions options = options_of(c == 0 ? DTYPE_FP32 : DTYPE_BF16, c == 1);
        Model *model = make(&options);

        model_observe(model, true);
        for (int l = 0; l < L; l++)
            set_all(model, parameter_index(&options.config, PARAM_FCW, l), 1.0f);
        model_numerics_gradients(model);

        for (int l = 0; l < L; l++) {
            const int index = parameter_index(&options.config, PARAM_FCW, l);
            model_numerics_update_begin(model, index);
            if (l == L - 1) set_all(model, index, 1.5f);
            model_numerics_update_end(model, index);
        }

        const NumericsRow *row = row_named(model, "fcw.update");
        assert_true(row->stats.count == L * 4.0 * C * C &&
                    row->stats.zero == (L - 1) * 4.0 * C * C);
        assert_true(row->stats.amax == 0.5f);
        assert_true(fabs(model_numerics_ratio(row) - 0.5 / sqrt(3.0)) < 1e-15);
        assert_null(row_named(model, "fcb.update"));
    }
}

// A change of 2^-10 of a weight is lost in bf16, but not in its master.
TEST(an_update_is_seen_in_the_master) {
    for (int master = 0; master < 2; master++) {
        const ModelOptions options = options_of(DTYPE_BF16, master);
        Model *model = make(&options);
        model_observe(model, true);
        set_all(model, PARAM_WTE, 1.0f);
        model_numerics_update_begin(model, PARAM_WTE);
        set_all(model, PARAM_WTE, 1.0f + 0x1p-10f);
        model_numerics_update_end(model, PARAM_WTE);
        assert_true(row_named(model, "wte.update")->stats.amax == (master ? 0x1p-10f : 0.0f));
    }
}
