// The whole model on the running backend, on fresh random weights and tokens: every choice of what
// is computed again gives the same gradients, micro-batches add up, in fp32 and in the compute
// dtype, and the gradient is the slope of the loss. test/golden compares with PyTorch.
#include "dev/sim/sim_control.h"
#include "llmc/base/error.h"
#include "llmc/device.h"
#include "llmc/model/model_object.h"
#include "llmc/model/model_state.h"
#include "test/ops/every_block.h"
#include "test/ops/random_model.h"
#include "test/reference/gradient_add.h"
#include <math.h>

enum { B = 8, SPAN = T + 1, MICRO_STEPS = 3 };

static uint16_t *windows; // (B, T+1), memory the device can copy from

static int setup(void **state) {
    if (op_group_setup(state) != 0) return -1;
    windows = random_windows(STREAM_TOKENS, B * SPAN, V);
    return windows ? 0 : -1;
}

static int teardown(void **state) {
    host_free(windows);
    return op_group_teardown(state);
}
TestFixture test_all = {setup, teardown};

// One step over all B sequences in micro-batches of `batch`.
static void run_step(Model *model, int64_t batch) {
    for (int64_t b = 0; b < B; b += batch) {
        model_load_batch(model, windows + b * SPAN, batch, T, sizeof *windows);
        model_forward_backward(model, B * T, b == 0);
    }
    device_sync();
}

static uint64_t digest_of(Tensor t) { return op_digest(0, (OpTensor){.t = t}); }

// ----------------------------------------------------------------------------------- recomputation

// Gradients and losses after two micro-steps of one window, as one number each.
typedef struct {
    uint64_t tensors[MAX_TENSORS + 1];
} Digests;

static Digests digests_of(ModelOptions options) {
    Model *model = make_model_of(options);
    Digests d = {{0}};
    const int count = model_num_tensors(model);
    assert_true(count < MAX_TENSORS);

    for (int k = 0; k < 2; k++) {
        model_load_batch(model, windows + k * SPAN, 1, T, sizeof *windows);
        model_forward_backward(model, 2 * T, k == 0);
    }

    device_sync();
    for (int i = 0; i < count; i++) d.tensors[i] = digest_of(model_tensors(model)[i].grad);
    d.tensors[count] = digest_of(model_sequence_losses(model));

    model_destroy(model);
    return d;
}

static void check_same(ModelOptions options, Digests kept) {
    char text[RECOMPUTE_TEXT];
    const Digests again = digests_of(options);
    for (int i = 0; i <= parameter_count(&options.config); i++)
        if (again.tensors[i] != kept.tensors[i])
            op_fail("-r %s: other bits in tensor %d",
                    recompute_text(&options.recompute, L, text, sizeof text), i);
}

// Every set in some block beside two other ones, in each dtype in another; and the levels as they
// are. On the simulator, where a model takes seconds, nine sets, in which each op runs again and
// does not.
OP_TEST(every_set_of_ops_gives_the_same_bits) {
    op_without_fused_gelu();
    ModelOptions options = random_model_options(dtype, true, 1, 0);
    const Digests kept = digests_of(options);
    int stride = L;
    if (sim_set_schedule) stride = 8 * L;

    for (int first = 0; first <= RECOMPUTE_BLOCK; first += stride) {
        recompute_mixed(&options, first);
        check_same(options, kept);
    }
    for (int level = 1; level <= 3; level++) {
        options.recompute = recompute_all(recompute_level_set(level));
        check_same(options, kept);
    }
}

// Where a block repeats GELU, none has it in an epilogue, whatever is faster.
OP_TEST(a_gelu_that_runs_again_has_the_same_bits) {
    op_restart_device(op_device_options());
    ModelOptions options = random_model_options(dtype, true, 1, 0);
    assert_false(model_ops_shape(&options).gelu_again);
    options.recompute.blocks[0] = RECOMPUTE_GELU;
    assert_true(model_ops_shape(&options).gelu_again);
    const Digests one_block = digests_of(options);
    options.recompute = recompute_all(RECOMPUTE_GELU);
    check_same(options, one_block);
}

OP_TEST(what_runs_again_changes_no_gradient_in_the_compute_dtype) {
    op_without_fused_gelu();
    ModelOptions options = random_model_options(dtype, true, 1, 0);
    options.gradients_in_dtype = true;
    const Digests kept = digests_of(options);
    const char *const sets[] = {"1",  "2", "3", "fc+qkv", "layernorm+attention", "fc+qkvx1,attproj",
                                "3/2"};
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++) {
        Error err;
        assert_true(recompute_parse(&options.recompute, sets[i], L, &err));
        check_same(options, kept);
    }
}

// ------------------------------------------------------------------------- other blocks and widths

// The gradients of the specification for the weights as the model stores them.
static void check_against_specification(const char *block, const ModelOptions *options) {
    enum { WINDOWS = 2 };
    const double scale = options->dtype == DTYPE_FP16 ? 1024 : 1;
    double *params[MAX_TENSORS], *grads[MAX_TENSORS], *rounded[MAX_TENSORS];
    int32_t tokens[WINDOWS * SPAN];

    Model *model = make_model_of(*options);
    const StepControl control = step_control_initial((float)scale);
    model_set_control(model, &control);
    model_load_batch(model, windows, WINDOWS, T, sizeof *windows);
    model_forward_backward(model, WINDOWS * T, true);
    device_sync();

    const int count = model_num_tensors(model);
    for (int i = 0; i < WINDOWS * SPAN; i++) tokens[i] = windows[i];
    for (int i = 0; i < count; i++) {
        params[i] = op_values(model_tensors(model)[i].weight);
        const size_t bytes = (size_t)parameter_numel(&model_parameters(model)[i]) * sizeof(double);
        grads[i] = malloc(bytes), rounded[i] = malloc(bytes);
    }

    ref_gpt2_stored(&options->config, options->dtype, scale, params, tokens, WINDOWS, T, NULL,
                    rounded);
    ref_gpt2(&options->config, params, tokens, WINDOWS, T, NULL, NULL, grads);

    for (int i = 0; i < count; i++) {
        const Parameter *p = &model_parameters(model)[i];
        double *found = op_values(model_tensors(model)[i].grad);
        const int64_t n = parameter_numel(p);
        for (int64_t j = 0; j < n; j++) found[j] /= scale, rounded[i][j] /= scale;
        const double error = op_relative_error(found, grads[i], n);
        const double limit =
            op_limit_of_gradient(options->dtype, op_relative_error(rounded[i], grads[i], n));
        if (!(error <= limit))
            op_fail("%s: %s: relative error %.3g, at most %.3g", block, p->name, error, limit);
        free(found), free(params[i]), free(grads[i]), free(rounded[i]);
    }
    model_destroy(model);
}

// Every block that a configuration describes; over the dtypes, each with every level of -r.
OP_TEST(every_block_has_the_gradients_of_the_specification) {
    op_without_fused_gelu();
    for (int i = 0; i < NUM_BLOCKS; i++) {
        ModelOptions options = random_model_options(dtype, true, 2, 0);
        options.config = block_of_shape(i, L, C, NH, V, MAX_T, 0);
        check_against_specification(every_block[i].descriptor, &options);
        const Digests kept = digests_of(options);
        options.recompute = recompute_all(recompute_level_set(1 + (i + (int)dtype) % 3));
        check_same(options, kept);
    }
}

// Heads of 64, for which a GPU has attention of its own, that together are no wider than the model
// or wider; RoPE with biases of q and k, whose gradients are those before the rotation. T is no
// multiple of a tile.
OP_TEST(heads_of_64_have_the_gradients_of_the_specification) {
    static const char *const blocks[] = {"starcoder2:d12,HS=64,NKV=1", "qwen2:d12,HS=64,NKV=1",
                                         "d12", "qwen3:d12,HS=64"};
    op_without_fused_gelu();
    for (int i = 0; i < 4; i++) {
        Error err;
        ModelOptions options = random_model_options(dtype, true, 2, 0);
        assert_true(model_config_parse(&options.config, blocks[i], &err));
        options.config.L = 1, options.config.C = 64, options.config.NH = i < 2 ? 2 : 1,
        options.config.max_T = MAX_T;
        model_config_set_vocab(&options.config, V);
        check_against_specification(blocks[i], &options);
    }
}

// Narrower than qkv, and wider than 4 C.
OP_TEST(an_mlp_of_any_width_has_the_gradients_of_the_specification) {
    op_without_fused_gelu();
    for (int64_t d_ff = 72; d_ff <= 200; d_ff += 128) {
        ModelOptions options = random_model_options(dtype, true, 2, 0);
        options.config.d_ff = d_ff;
        check_against_specification("d_ff", &options);
        const Digests kept = digests_of(options);
        for (int level = 1; level <= 3; level++) {
            options.recompute = recompute_all(recompute_level_set(level));
            check_same(options, kept);
        }
    }
}

// ------------------------------------------------------------------------------------ accumulation

static double sum_of(Tensor t) {
    double *values = op_values(t), sum = 0.0;
    for (int64_t i = 0; i < tensor_numel(t); i++) sum += values[i];
    free(values);
    return sum;
}

// The sums are the same up to the order of summation and, below fp32, up to matmuls that were cut
// differently for another number of rows: the tolerance of one op. Gradients themselves are summed
// in fp32.
OP_TEST(eight_micro_steps_of_one_are_one_of_eight) {
    double *once[MAX_TENSORS];
    Model *model = make_model(dtype, true, B, 0);
    int count = model_num_tensors(model);
    run_step(model, B);
    double loss = sum_of(model_sequence_losses(model));
    for (int i = 0; i < count; i++) once[i] = op_values(model_tensors(model)[i].grad);

    for (int64_t batch = 4; batch >= 1; batch -= 3) {
        run_step(model, batch);
        Tensor losses = tensor_slice_first(model_sequence_losses(model), batch);
        assert_true(fabs(sum_of(losses) - loss) <= op_tolerance(dtype) * loss);
        for (int i = 0; i < count; i++) {
            const Parameter *p = &model_parameters(model)[i];
            double *now = op_values(model_tensors(model)[i].grad);
            double error = op_relative_error(now, once[i], parameter_numel(p));
            if (!(error <= 2 * op_tolerance(dtype))) // each of the two may be off by one
                op_fail("%s: micro-batches of %d differ by %g", p->name, (int)batch, error);
            free(now);
        }
    }

    for (int i = 0; i < count; i++) free(once[i]);
    model_destroy(model);
}

// ------------------------------------------------------------------ gradients in the compute dtype

static void micro_step(Model *model, int number, bool first) {
    model_load_batch(model, windows + number * SPAN, 1, T, sizeof *windows);
    model_forward_backward(model, MICRO_STEPS * T, first);
    device_sync();
}

// The gradient after each micro-step is the specification's sum of what stood there and of the
// gradient that the micro-step alone gives in fp32: nothing else is rounded. The bits go on from
// step to step.
OP_TEST(they_are_fp32_gradients_of_micro_steps_each_rounded_once) {
    ModelOptions options = random_model_options(dtype, true, 1, 0);
    Model *alone = make_model_of(options);
    options.gradients_in_dtype = true;
    Model *model = make_model_of(options);

    const int count = model_num_tensors(model);
    double *sums[MAX_TENSORS];
    for (int i = 0; i < count; i++)
        sums[i] = calloc((size_t)parameter_numel(&model_parameters(model)[i]), sizeof(double));

    for (uint32_t k = 0; k < 2 * MICRO_STEPS; k++) { // two steps
        const bool first = k % MICRO_STEPS == 0;
        micro_step(alone, (int)k, true);
        micro_step(model, (int)k, first);
        for (int i = 0; i < count; i++) {
            const int64_t n = parameter_numel(&model_parameters(model)[i]);
            double *own = op_values(model_tensors(alone)[i].grad),
                   *got = op_values(model_tensors(model)[i].grad);
            assert_int_equal(model_tensors(model)[i].grad.dtype, dtype);
            ref_gradient_add(sums[i], own, n, !first, dtype, options.seed, i, k);
            for (int64_t e = 0; e < n && dtype != DTYPE_FP32; e++)
                if (got[e] != sums[i][e])
                    op_fail("micro-step %d: element %lld of %s is %.9g, expected %.9g", (int)k,
                            (long long)e, model_parameters(model)[i].name, got[e], sums[i][e]);
            free(own), free(got);
        }
    }

    assert_int_equal(model_get_control(model).micro_steps,
                     dtype == DTYPE_FP32 ? 0 : 2 * MICRO_STEPS);
    assert_int_equal(model_get_control(alone).micro_steps, 0);
    for (int i = 0; i < count; i++) free(sums[i]);
    model_destroy(model);
    model_destroy(alone);
}

OP_TEST(a_model_for_forward_only_gives_the_losses_of_training) {
    Model *model = make_model(dtype, true, B, 0);
    run_step(model, B);
    uint64_t trained = digest_of(model_sequence_losses(model));
    model_destroy(model);
    model = make_model(dtype, false, B, 0);
    model_load_batch(model, windows, B, T, sizeof *windows);
    model_forward(model);
    device_sync();
    assert_true(digest_of(model_sequence_losses(model)) == trained);
    model_destroy(model);
}

// ------------------------------------------------------------------------------------------- slope

// The mean loss with tensor index moved from its values w by h along direction d (both n).
static double loss_at(Model *model, int index, const float *w, const double *d, double h) {
    const Parameter *p = &model_parameters(model)[index];
    int64_t n = parameter_numel(p);
    float *moved = malloc((size_t)n * sizeof *moved);
    for (int64_t i = 0; i < n; i++) moved[i] = (float)((double)w[i] + h * d[i]);
    model_set_weight(model, index, 0, p->rows, moved);
    free(moved);
    model_load_batch(model, windows, B, T, sizeof *windows);
    model_forward(model);
    device_sync();
    return sum_of(model_sequence_losses(model)) / (B * T);
}

// Along its own gradient, the loss must rise by |gradient| a unit of length. Central differences at
// h and h/2 are extrapolated, so that the truncation is of order h^4 = 6e-6. The mean of 560 fp32
// losses carries noise of about 1e-7 from all roundings below it, which is 1e-7 / (h |gradient|) of
// the slope: 7e-5 for the smallest gradients, of size 0.03. Six such errors and some curvature stay
// below 1e-3; a gradient that misses a term is off by far more.
TEST(the_gradient_of_every_tensor_is_the_slope_of_the_loss) {
    const double h = 0.05;
    Model *model = make_model(DTYPE_FP32, true, B, 0);
    run_step(model, B);

    for (int i = 0; i < model_num_tensors(model); i++) {
        const Parameter *p = &model_parameters(model)[i];
        int64_t n = parameter_numel(p);
        double *d = op_values(model_tensors(model)[i].grad), norm = sqrt(ref_sumsq(d, n));
        float *w = malloc((size_t)n * sizeof *w);
        model_get_weight(model, i, 0, p->rows, w, NULL);

        for (int64_t j = 0; j < n; j++) d[j] /= norm;
        double wide = (loss_at(model, i, w, d, h) - loss_at(model, i, w, d, -h)) / (2.0 * h);
        double narrow = (loss_at(model, i, w, d, 0.5 * h) - loss_at(model, i, w, d, -0.5 * h)) / h;
        double slope = (4.0 * narrow - wide) / 3.0;
        model_set_weight(model, i, 0, p->rows, w);
        free(d), free(w);

        if (!(fabs(slope / norm - 1.0) <= 1e-3))
            op_fail("%s: the gradient says %g, the loss rises by %g", p->name, norm, slope);
    }
    model_destroy(model);
}
