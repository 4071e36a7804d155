// The whole model on the running backend, on fresh random weights and tokens: every recompute level gives the same
// gradients, micro-batches add up, and the gradient is the slope of the loss. test/golden compares with PyTorch.
#include "llmc/base/error.h"
#include "llmc/device.h"
#include "test/ops/random_model.h"
#include <math.h>

enum { B = 8, SPAN = T + 1 };

static uint16_t *windows; // (B, T+1), memory the device can copy from

// GELU out of the epilogues: within them it may be taken of a value that was not rounded, here and not there as the
// speed of each shape decides, and the tests below compare shapes and bits.
static int setup(void **state) {
    Error err;
    if (op_group_setup(state) != 0) return -1;
    op_restart_device((DeviceOptions){.gelu_fusion = GELU_FUSION_NONE});
    windows = host_alloc(B * SPAN * sizeof *windows, &err);
    if (!windows) return -1;
    for (uint64_t i = 0; i < B * SPAN; i++) windows[i] = (uint16_t)(philox(op_seed(), STREAM_TOKENS, i).v[0] % V);
    return 0;
}

static int teardown(void **state) {
    host_free(windows);
    return op_group_teardown(state);
}

// One step over all B sequences in micro-batches of `batch`.
static void run_step(Gpt2 *model, int64_t batch) {
    for (int64_t b = 0; b < B; b += batch) {
        gpt2_load_batch(model, windows + b * SPAN, batch, sizeof *windows);
        gpt2_forward_backward(model, B * T, b == 0);
    }
    device_sync();
}

static uint64_t digest_of(Tensor t) { return op_digest(0, (OpTensor){.t = t}); }

// ----------------------------------------------------------------------------------------------------- recomputation

static void every_recompute_level_gives_the_same_bits(void **state) {
    DType dtype = op_dtype(state);
    uint64_t kept[MAX_TENSORS] = {0};
    for (int level = RECOMPUTE_NONE; level <= RECOMPUTE_BLOCK; level++) {
        Gpt2 *model = make_model(dtype, true, B, level, 0);
        int count = gpt2_num_tensors(model);
        assert_true(count < MAX_TENSORS);
        run_step(model, B);
        for (int i = 0; i <= count; i++) {
            bool losses = i == count;
            uint64_t digest = digest_of(losses ? gpt2_sequence_losses(model) : gpt2_gradients(model)[i]);
            if (level == RECOMPUTE_NONE) kept[i] = digest;
            if (digest != kept[i])
                op_fail("level %d: other bits in %s", level, losses ? "the losses" : gpt2_parameters(model)[i].name);
        }
        gpt2_destroy(model);
    }
}

// -------------------------------------------------------------------------------------------------------- accumulation

static double sum_of(Tensor t) {
    double *values = op_values(t), sum = 0.0;
    for (int64_t i = 0; i < tensor_numel(t); i++) sum += values[i];
    free(values);
    return sum;
}

// The sums are the same up to the order of summation and, below fp32, up to matmuls that were cut differently for
// another number of rows: the tolerance of one op. Gradients themselves are summed in fp32.
static void eight_micro_steps_of_one_are_one_of_eight(void **state) {
    DType dtype = op_dtype(state);
    double *once[MAX_TENSORS];
    Gpt2 *model = make_model(dtype, true, B, RECOMPUTE_NONE, 0);
    int count = gpt2_num_tensors(model);
    run_step(model, B);
    double loss = sum_of(gpt2_sequence_losses(model));
    for (int i = 0; i < count; i++) once[i] = op_values(gpt2_gradients(model)[i]);
    for (int64_t batch = 4; batch >= 1; batch -= 3) {
        run_step(model, batch);
        Tensor losses = tensor_slice_first(gpt2_sequence_losses(model), batch);
        assert_true(fabs(sum_of(losses) - loss) <= op_tolerance(dtype) * loss);
        for (int i = 0; i < count; i++) {
            const Parameter *p = &gpt2_parameters(model)[i];
            double *now = op_values(gpt2_gradients(model)[i]);
            double error = op_relative_error(now, once[i], parameter_numel(p));
            if (!(error <= op_tolerance(dtype)))
                op_fail("%s: micro-batches of %d differ by %g", p->name, (int)batch, error);
            free(now);
        }
    }
    for (int i = 0; i < count; i++) free(once[i]);
    gpt2_destroy(model);
}

static void a_model_for_forward_only_gives_the_losses_of_training(void **state) {
    DType dtype = op_dtype(state);
    Gpt2 *model = make_model(dtype, true, B, RECOMPUTE_NONE, 0);
    run_step(model, B);
    uint64_t trained = digest_of(gpt2_sequence_losses(model));
    gpt2_destroy(model);
    model = make_model(dtype, false, B, RECOMPUTE_NONE, 0);
    gpt2_load_batch(model, windows, B, sizeof *windows);
    gpt2_forward(model);
    device_sync();
    assert_true(digest_of(gpt2_sequence_losses(model)) == trained);
    gpt2_destroy(model);
}

// ------------------------------------------------------------------------------------------------------------- slope

// The mean loss with tensor index moved from its values w by h along direction d (both n).
static double loss_at(Gpt2 *model, int index, const float *w, const double *d, double h) {
    const Parameter *p = &gpt2_parameters(model)[index];
    int64_t n = parameter_numel(p);
    float *moved = malloc((size_t)n * sizeof *moved);
    for (int64_t i = 0; i < n; i++) moved[i] = (float)((double)w[i] + h * d[i]);
    gpt2_set_state(model, index, STATE_WEIGHT, 0, p->rows, moved);
    free(moved);
    gpt2_load_batch(model, windows, B, sizeof *windows);
    gpt2_forward(model);
    device_sync();
    return sum_of(gpt2_sequence_losses(model)) / (B * T);
}

// Along its own gradient, the loss must rise by |gradient| a unit of length. Central differences at h and h/2 are
// extrapolated, so that the truncation is of order h^4 = 2e-7. The mean of 560 fp32 losses carries noise of about 5e-8
// from all roundings below it, which is 5e-8 / (h |gradient|) of the slope: 5e-5 for the smallest gradients, of size
// 0.05. Six such errors and some curvature stay below 1e-3; a gradient that misses a term is off by far more.
static void the_gradient_of_every_tensor_is_the_slope_of_the_loss(void **state) {
    (void)state;
    const double h = 0.02;
    Gpt2 *model = make_model(DTYPE_FP32, true, B, RECOMPUTE_NONE, 0);
    run_step(model, B);
    for (int i = 0; i < gpt2_num_tensors(model); i++) {
        const Parameter *p = &gpt2_parameters(model)[i];
        int64_t n = parameter_numel(p);
        double *d = op_values(gpt2_gradients(model)[i]), norm = sqrt(ref_sumsq(d, n));
        float *w = malloc((size_t)n * sizeof *w);
        gpt2_get_state(model, i, STATE_WEIGHT, 0, p->rows, w);
        for (int64_t j = 0; j < n; j++) d[j] /= norm;
        double wide = (loss_at(model, i, w, d, h) - loss_at(model, i, w, d, -h)) / (2.0 * h);
        double narrow = (loss_at(model, i, w, d, 0.5 * h) - loss_at(model, i, w, d, -0.5 * h)) / h;
        double slope = (4.0 * narrow - wide) / 3.0;
        gpt2_set_state(model, i, STATE_WEIGHT, 0, p->rows, w);
        free(d), free(w);
        if (!(fabs(slope / norm - 1.0) <= 1e-3))
            op_fail("%s: the gradient says %g, the loss rises by %g", p->name, norm, slope);
    }
    gpt2_destroy(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        OP_TEST(every_recompute_level_gives_the_same_bits),
        OP_TEST(eight_micro_steps_of_one_are_one_of_eight),
        OP_TEST(a_model_for_forward_only_gives_the_losses_of_training),
        cmocka_unit_test(the_gradient_of_every_tensor_is_the_slope_of_the_loss),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
