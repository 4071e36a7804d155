// A tiny GPT-2 against PyTorch: logits, losses, every gradient, ten steps of AdamW, with and
// without steps that are skipped, and of Muon, from files that dev/golden/generate.py wrote (its
// head lists them). First the fp64 specification, then the backend in each dtype it has.
#include "test/golden/golden_case.h"

static const char model_path[] = "test/golden/tiny_gpt2",
                  expected_path[] = "test/golden/expected.safetensors",
                  optimizers_path[] = "test/golden/optimizers.safetensors";

static struct {
    SafetensorsFile *expected, *optimizers;
    WeightsFile *weights;
    ModelConfig config;
    Parameter *table;
    int count;
    uint16_t *windows; // (STEPS, B, T+1), memory the device can copy from
} golden;

// ------------------------------------------------------------------------------------------- files

// A tensor of expected.safetensors or optimizers.safetensors; the caller frees it.
static double *expected(const char *prefix, const char *name, int64_t *n) {
    char full[128];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    SafetensorsFile *file = golden.expected;
    const SafetensorsEntry *e = safetensors_find(file, full);
    if (!e) e = safetensors_find(file = golden.optimizers, full);
    if (!e) op_fail("%s and %s hold no %s", expected_path, optimizers_path, full);
    return golden_values(file, e, n);
}

// Weight i as the file has it, in our layout, all of its rows; the caller frees it.
static double *start_weight(int i) {
    Error err;
    int64_t n = parameter_numel(&golden.table[i]);
    float *values = malloc((size_t)n * sizeof *values);
    double *wide = calloc((size_t)n + 1, sizeof *wide);
    if (!weights_file_read(golden.weights, &golden.table[i], 0, golden.table[i].rows, values, &err))
        op_fail("%s", err.text);
    for (int64_t j = 0; j < n; j++) wide[j] = (double)values[j];
    free(values);
    return wide;
}

static int open_files(void **state) {
    Error err;

    if (op_group_setup(state) != 0) return -1;
    golden.expected = safetensors_open(expected_path, &err);
    golden.optimizers = golden.expected ? safetensors_open(optimizers_path, &err) : NULL;
    golden.weights = golden.optimizers ? weights_file_open(model_path, &err) : NULL;
    golden.windows =
        golden.weights ? host_alloc((size_t)STEPS * WINDOWS * sizeof(uint16_t), &err) : NULL;
    if (!golden.windows) {
        print_error("%s\n", err.text);
        return -1;
    }

    golden.config = *weights_file_config(golden.weights);
    golden.count = parameter_count(&golden.config);
    golden.table = parameter_table(&golden.config);

    int64_t n;
    double *windows = expected("", "windows", &n);
    for (int64_t i = 0; i < STEPS * WINDOWS; i++) golden.windows[i] = (uint16_t)windows[i];
    free(windows);
    return 0;
}

static int close_files(void **state) {
    safetensors_close(golden.expected), safetensors_close(golden.optimizers),
        weights_file_close(golden.weights);
    free(golden.table), host_free(golden.windows);
    return op_group_teardown(state);
}
TestFixture test_all = {open_files, close_files};

static void check(const char *name, const double *got, const double *want, int64_t n,
                  double tolerance) {
    double error = op_relative_error(got, want, n);
    if (!(error <= tolerance))
        op_fail("%s: relative error %.3g, at most %.3g", name, error, tolerance);
}

// ----------------------------------------------------------------------------------- specification

TEST(the_specification_agrees_with_pytorch) {
    enum { MAX_TENSORS = 64 };
    double *params[MAX_TENSORS], *grads[MAX_TENSORS], losses[B * T];
    int32_t windows[WINDOWS];
    int64_t n;
    assert_true(golden.count <= MAX_TENSORS);
    for (int i = 0; i < WINDOWS; i++) windows[i] = golden.windows[i];
    for (int i = 0; i < golden.count; i++) {
        params[i] = start_weight(i);
        grads[i] = malloc((size_t)parameter_numel(&golden.table[i]) * sizeof(double));
    }
    double *logits = malloc((size_t)(B * T * golden.config.V) * sizeof *logits);
    ref_gpt2(&golden.config, params, windows, B, T, losses, logits, grads);

    const double stored = 1e-7; // fp32 in the files
    double *want = expected("", "logits", &n);
    check("logits", logits, want, n, stored);
    free(want), want = expected("", "losses", &n);
    check("losses", losses, want, n, stored);
    free(want), free(logits);
    for (int i = 0; i < golden.count; i++) {
        want = expected("grad.", golden.table[i].name, &n);
        check(golden.table[i].name, grads[i], want, n, stored);
        free(want), free(params[i]), free(grads[i]);
    }
}

// ----------------------------------------------------------------------------------------- backend

static Limits limits_of(DType dtype) { return golden_limits(dtype); }

static Model *load_model_for(OptimizerKind optimizer, DType dtype) {
    return golden_model(model_path, &golden.config, optimizer, dtype, "0");
}

static Model *load_model(DType dtype) { return load_model_for(OPTIMIZER_ADAMW, dtype); }

static void micro_step(Model *model, int step) { golden_micro_step(model, golden.windows, step); }

// The decoder from prompts of every length, and token by token from one: row t of the logits each
// time.
OP_TEST(logits_agree_with_pytorch) {
    Model *model = load_model(dtype);
    int64_t V = golden.config.V, n;
    double *want = expected("", "logits", &n), *got = malloc((size_t)n * sizeof *got);
    for (int grown = 0; grown < 2; grown++) {
        golden_logits(model, golden.windows, V, grown, got);
        check(grown ? "logits, token by token" : "logits of prompts", got, want, n,
              limits_of(dtype).logits);
    }
    free(want), free(got);
    model_destroy(model);
}

OP_TEST(losses_agree_with_pytorch) {
    Model *model = load_model(dtype);
    int64_t n;
    double *want = expected("", "losses", &n), sums[B];
    ref_sequence_losses(sums, want, B, T, false);

    micro_step(model, 0);
    double *got = op_values(model_sequence_losses(model));
    check("losses of forward and backward", got, sums, B, limits_of(dtype).losses);
    free(got);

    model_load_batch(model, golden.windows, B, T, sizeof(uint16_t));
    model_forward(model);
    got = op_values(model_sequence_losses(model));
    check("losses of forward alone", got, sums, B, limits_of(dtype).losses);

    free(got), free(want);
    model_destroy(model);
}

OP_TEST(every_gradient_agrees_with_pytorch) {
    Model *model = load_model(dtype);
    micro_step(model, 0);
    for (int i = 0; i < golden.count; i++) {
        int64_t n, all = parameter_numel(&golden.table[i]);
        double *want = expected("grad.", golden.table[i].name, &n),
               *got = op_values(model_tensors(model)[i].grad);

        for (int64_t j = 0; j < all; j++) got[j] /= loss_scale_of(dtype);
        check(golden.table[i].name, got, want, n, limits_of(dtype).gradients);
        for (int64_t j = n; j < all; j++) assert_true(got[j] == 0.0); // the padded vocabulary
        free(want), free(got);
    }
    model_destroy(model);
}

static Optimizer *make_optimizer(Model *model) {
    int64_t n;
    Error err;
    double *adamw = expected("", "adamw", &n), *muon = expected("", "muon", &n);
    const bool is_muon = model_options(model)->optimizer == OPTIMIZER_MUON;
    OptimizerOptions options = {.momentum = (float)muon[0], .limits.clip = (float)adamw[4]};
    optimizer_default_rates(model_options(model)->optimizer, is_muon ? muon[1] : adamw[3],
                            options.rates);

    for (int i = 0; i < NUM_GROUPS; i++)
        options.rates[i].beta1 = adamw[0], options.rates[i].beta2 = adamw[1],
        options.rates[i].eps = adamw[2];

    free(adamw), free(muon);
    Optimizer *optimizer = optimizer_create(model, &options, &err);
    if (!optimizer) op_fail("%s", err.text);
    return optimizer;
}

// Softmax does not see a shift of all scores of a row, so the gradient of the key bias is zero.
// AdamW divides the rounding noise that is left by its own size and takes full steps in random
// directions: there is nothing to compare.
static bool is_key_bias(const Parameter *p, int64_t j) {
    return p->spec == &parameter_specs[PARAM_QKVB] && j / golden.config.C == 1;
}

// How far each weight tensor is from PyTorch's, as a share of the way it went in ten steps: weights
// that did not move at all would be wrong by 1.
static void check_final_weights(const Model *model, const char *prefix, double tolerance) {
    for (int i = 0; i < golden.count; i++) {
        const Parameter *p = &golden.table[i];
        int64_t n;
        double *want = expected(prefix, p->name, &n), *start = start_weight(i);
        float *now = malloc((size_t)parameter_numel(p) * sizeof *now);
        model_get_weight(model, i, 0, p->rows, now, NULL);

        double error = 0.0, way = 0.0;
        for (int64_t j = 0; j < n; j++) {
            if (is_key_bias(p, j)) continue;
            error += pow((double)now[j] - want[j], 2.0);
            way += pow(want[j] - start[j], 2.0);
        }

        if (!(sqrt(error / way) <= tolerance))
            op_fail("%s after %d steps: off by %.3g of its way, at most %.3g", p->name, STEPS,
                    sqrt(error / way), tolerance);
        free(want), free(start), free(now);
    }
}

OP_TEST(ten_adamw_steps_agree_with_pytorch) {
    Limits limits = limits_of(dtype);
    Model *model = load_model(dtype);
    Optimizer *optimizer = make_optimizer(model);
    int64_t n;
    double *rates = expected("", "learning_rates", &n), losses[STEPS], norms[STEPS];

    golden_ten_steps(model, optimizer, golden.windows, rates, losses, norms);
    double *want_losses = expected("", "step_losses", &n), *want_norms = expected("", "norms", &n);

    check("losses of ten steps", losses, want_losses, STEPS, limits.step_losses);
    check("gradient norms of ten steps", norms, want_norms, STEPS, limits.norms);
    check_final_weights(model, "final.", limits.moved);

    free(rates), free(want_losses), free(want_norms);
    optimizer_destroy(optimizer);
    model_destroy(model);
}

// Where skip is set a gradient is not finite.
static void ten_steps(Model *model, Optimizer *optimizer, const bool skip[STEPS]) {
    const float bad = INFINITY;
    int64_t n;
    double *rates = expected("", "learning_rates", &n);
    for (int step = 0; step < STEPS; step++) {
        micro_step(model, step);
        if (skip[step]) model_write_bytes(model, model_tensors(model)[3].grad, 4, sizeof bad, &bad);
        optimizer_norm(optimizer);
        optimizer_step(optimizer, rates[step], B * T, false);
        assert_int_equal(model_get_control(model).skip, skip[step] ? SKIP_NONFINITE : SKIP_NONE);
    }
    free(rates);
}

static void check_ten_steps(OptimizerKind kind, DType dtype, const bool skip[STEPS],
                            const char *prefix, double limit) {
    Model *model = load_model_for(kind, dtype);
    Optimizer *optimizer = make_optimizer(model);
    ten_steps(model, optimizer, skip);
    check_final_weights(model, prefix, limit);
    optimizer_destroy(optimizer);
    model_destroy(model);
}

// The count of updates, which the bias correction depends on, leaves out what GradScaler would have
// skipped. Errors of updates add as squares and the way as their sum, so fewer updates are off by a
// larger share of it.
OP_TEST(adamw_with_skipped_steps_agrees_with_pytorch) {
    int64_t n;
    double *skipped = expected("", "skipped", &n);
    bool skip[STEPS] = {false};
    for (int64_t i = 0; i < n; i++) skip[(int)skipped[i]] = true;
    check_ten_steps(OPTIMIZER_ADAMW, dtype, skip, "adamw.",
                    limits_of(dtype).moved * sqrt(STEPS / (STEPS - (double)n)));
    free(skipped);
}

OP_TEST(ten_muon_steps_agree_with_pytorch) {
    check_ten_steps(OPTIMIZER_MUON, dtype, (bool[STEPS]){false}, "muon.", limits_of(dtype).moved);
}
