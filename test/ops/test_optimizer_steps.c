// The tests hold for a step of every optimizer, whatever its rule: the weight decay is the
// documented one, and a step that is skipped leaves no trace in the updates after it.
#include "llmc/model/model_state.h"
#include "llmc/train/optimizer.h"
#include "test/ops/random_model.h"
#include "test/unit/same_model.h"
#include <math.h>

enum { SPAN = 8, WINDOWS = 4 };

static uint16_t *windows; // (WINDOWS, 1, SPAN + 1), memory the device can copy from

static int setup(void **state) {
    if (op_group_setup(state) != 0) return -1;
    windows = random_windows(STREAM_TOKENS, WINDOWS * (SPAN + 1), V);
    return windows ? 0 : -1;
}
static int teardown(void **state) {
    host_free(windows);
    return op_group_teardown(state);
}
TestFixture test_all = {setup, teardown};

typedef struct {
    Model *model;
    Optimizer *optimizer;
} Run;

static Run run_make(OptimizerKind kind, DType dtype, float weight_decay) {
    OptimizerOptions options = {.momentum = 0.95f, .seed = 7};
    optimizer_default_rates(kind, (double)weight_decay, options.rates);
    Error err;
    ModelOptions o = random_model_options(dtype, true, 1, 0);
    o.T = SPAN, o.optimizer = kind;
    Run run = {.model = make_model_of(o)};
    run.optimizer = optimizer_create(run.model, &options, &err);
    if (!run.optimizer) op_fail("%s", err.text);
    return run;
}

static void run_free(Run *run) {
    optimizer_destroy(run->optimizer);
    model_destroy(run->model);
}

// A step on that window; overflow: a gradient is not finite.
static void run_step(Run *run, int window, double lr, bool overflow) {
    const float bad = INFINITY;
    model_load_batch(run->model, windows + window * (SPAN + 1), 1, SPAN, sizeof *windows);
    model_forward_backward(run->model, SPAN, true);
    device_sync();
    if (overflow)
        model_write_bytes(run->model, model_tensors(run->model)[3].grad, 4, sizeof bad, &bad);
    optimizer_norm(run->optimizer);
    optimizer_step(run->optimizer, lr, SPAN, false);
    assert_int_equal(model_get_control(run->model).skip, overflow ? SKIP_NONFINITE : SKIP_NONE);
}

// ------------------------------------------------------------------------------------ weight decay

static float *weight_of(const Model *model, int i) {
    const Parameter *p = &model_parameters(model)[i];
    float *values = malloc((size_t)parameter_numel(p) * sizeof *values);
    assert_true(model_get_weight(model, i, 0, p->rows, values, NULL));
    return values;
}

// The relative error of (without - with) / lr against decay w. A weight, of size 0.15, and what is
// taken from it, at most 0.1, are each off by a few 2^-24 of that; a tenth of 0.15 is compared:
// 1e-5 is ten times it. Adafactor's factors come from two passes that are the same in both runs.
static void check_decay(const Parameter *p, const float *before, const float *without,
                        const float *with, double lr, double decay) {
    double error = 0.0, size = 0.0;
    for (int64_t j = 0; j < parameter_numel(p); j++) {
        const double want = lr * decay * (double)before[j];
        error += pow((double)without[j] - (double)with[j] - want, 2.0),
            size += pow(lr * (double)before[j], 2.0);
    }
    if (!(sqrt(error / size) <= 1e-5))
        op_fail("%s: the decay is off by %.3g of the weight, at most 1e-5", p->name,
                sqrt(error / size));
}

static void decay_case(OptimizerKind kind, DType dtype) {
    const double lr = 0.1, decay = 1.0;
    Run start = run_make(kind, dtype, 0.0f), without = run_make(kind, dtype, 0.0f),
        with = run_make(kind, dtype, (float)decay);
    run_step(&without, 0, lr, false), run_step(&with, 0, lr, false);

    for (int i = 0; i < model_num_tensors(start.model); i++) {
        const Parameter *p = &model_parameters(start.model)[i];
        float *before = weight_of(start.model, i), *a = weight_of(without.model, i),
              *b = weight_of(with.model, i);
        check_decay(p, before, a, b, lr, p->spec->group == GROUP_VECTOR ? 0.0 : decay);
        free(before), free(a), free(b);
    }

    run_free(&start), run_free(&without), run_free(&with);
}

// Where weights are fp32, which nothing rounds but the update itself: with a master, or in fp32.
OP_TEST(weight_decay_takes_lr_c_w_from_matrices_and_embeddings_and_nothing_from_vectors) {
    for (int kind = 0; kind < OPTIMIZER_COUNT; kind++)
        if (optimizer_has_master((OptimizerKind)kind) || dtype == DTYPE_FP32)
            decay_case((OptimizerKind)kind, dtype);
}

// ----------------------------------------------------------------------------------- skipped steps

// Moments, bias corrections and random bits are those of the updates that were made.
OP_TEST(updates_after_skipped_steps_are_those_of_a_run_without_them) {
    static const bool overflows[] = {true, true, false, false, true, false, false};
    for (int kind = 0; kind < OPTIMIZER_COUNT; kind++) {
        Run whole = run_make((OptimizerKind)kind, dtype, 0.1f),
            skipping = run_make((OptimizerKind)kind, dtype, 0.1f);
        for (int i = 0, window = 0; i < (int)(sizeof overflows / sizeof *overflows); i++) {
            run_step(&skipping, window, 1e-2, overflows[i]);
            if (overflows[i]) continue;
            run_step(&whole, window, 1e-2, false);
            assert_same_model(skipping.model, whole.model);
            window++;
        }
        run_free(&whole), run_free(&skipping);
    }
}
