// A small GPT-2 with --fp8 on the running backend: its gradients against those of bf16, and that
// they are the same bits whatever is recomputed, evaluated or decoded in between, and after the
// scales went through a checkpoint.
#include "llmc/model/model_decode.h"
#include "test/ops/random_values.h"
#include <math.h>

// Multiples of 16 that are none of 64.
enum { L = 2, C = 48, NH = 3, V = 61, T = 16, B = 6, SPAN = T + 1, STEPS = 3, MAX_TENSORS = 64 };
enum { STREAM_WEIGHTS = 1000, STREAM_TOKENS = 900 }; // one stream a tensor and step

static uint16_t *windows; // (STEPS B, T+1), memory the device can copy from

static int setup(void **state) {
    if (op_group_setup(state) != 0) return -1;
    windows = random_windows(STREAM_TOKENS, STEPS * B * SPAN, V);
    return windows ? 0 : -1;
}

static int teardown(void **state) {
    host_free(windows);
    return op_group_teardown(state);
}
TestFixture test_all = {setup, teardown};

static void need_fp8(void) {
    if (device_facts()->supports[DTYPE_E4M3] && device_facts()->supports[DTYPE_BF16]) return;
    print_message("the device has no fp8\n");
    skip();
}

static int64_t d_ff; // of the models to be made; 0: 4 C

typedef enum { IN_BF16, IN_FP8 } Precision;

static Model *make_model(Precision precision, bool train, int recompute) {
    Error err;
    ModelOptions options = {.config = {.max_T = T, .L = L, .NH = NH, .C = C, .d_ff = d_ff},
                            .dtype = DTYPE_BF16,
                            .master = true,
                            .train = train,
                            .B = B,
                            .T = T,
                            .recompute = recompute_all(recompute_level_set(recompute)),
                            .sequences = 2,
                            .fp8 = precision != IN_BF16};

    model_config_set_vocab(&options.config, V);
    Model *model = model_create(&options, &err);
    if (!model) op_fail("%s", err.text);
    return model;
}

// Another draw in every step, and larger ones: the scales have to move.
static void set_weights(Model *model, int step) {
    random_weights(model, STREAM_WEIGHTS + (uint64_t)(step * MAX_TENSORS),
                   0.15f * (float)(step + 1));
}

static void run_micro_steps(Model *model, int step, int64_t batch) {
    for (int64_t b = 0; b < B; b += batch) {
        model_load_batch(model, windows + (step * B + b) * SPAN, B - b < batch ? B - b : batch, T,
                         sizeof *windows);
        model_forward_backward(model, B * T, b == 0);
    }
    device_sync();
}

static uint64_t digest_of(uint64_t digest, Tensor t) {
    return op_digest(digest, (OpTensor){.t = t});
}

// The digest is of the losses and all gradients.
static uint64_t digest_step(Model *model) {
    uint64_t digest = digest_of(0, model_sequence_losses(model));
    for (int i = 0; i < model_num_tensors(model); i++)
        digest = digest_of(digest, model_tensors(model)[i].grad);
    return digest;
}

// --------------------------------------------------------------------------------------- gradients

static void read_gradients(Model *model, double *gradients[MAX_TENSORS]) {
    for (int i = 0; i < model_num_tensors(model); i++)
        gradients[i] = op_values(model_tensors(model)[i].grad);
}

static double mean_loss(Model *model) {
    double *sums = op_values(model_sequence_losses(model)), loss = 0.0;
    for (int i = 0; i < B; i++) loss += sums[i] / (B * T);
    free(sums);
    return loss;
}

// Rounding to m bits of mantissa is wrong by 2^-m / sqrt(12) of the power of two below a number,
// rms, and numbers are 1.53 times that power, rms: 2.4% in e4m3, 4.7% in e5m2. A matmul adds the
// squares of its two operands' errors: 3.3% forward, 5.3% backward. The gradient of the first block
// has passed through 4 L matmuls forward and 4 L backward:
//   sqrt(8 (0.033^2 + 0.053^2)) = 18%, if every one is passed on in full;
// twice that is allowed for layernorm, GELU and softmax, where errors may grow, and for vectors,
// which average over few of them (8 seeds: 3 to 24%). No less than half a percent is expected:
// without fp8 the bits would be the same.
enum { FULL_ROUNDING = 18 }; // percent
static void check_gradients(void) {
    double *expected[MAX_TENSORS], *gradients[MAX_TENSORS], loss = 0.0;
    for (int precision = IN_BF16; precision <= IN_FP8; precision++) {
        Model *model = make_model((Precision)precision, true, 0);
        set_weights(model, 0);
        run_micro_steps(model, 0, B);
        read_gradients(model, precision == IN_BF16 ? expected : gradients);

        if (precision == IN_BF16) loss = mean_loss(model);
        if (fabs(mean_loss(model) / loss - 1.0) > 0.01 * FULL_ROUNDING)
            op_fail("loss %g, in bf16 %g", mean_loss(model), loss);

        for (int i = 0; precision != IN_BF16 && i < model_num_tensors(model); i++) {
            const Parameter *p = &model_parameters(model)[i];
            const double error = op_relative_error(gradients[i], expected[i], parameter_numel(p));
            if (!(error >= 0.005 && error <= 0.02 * FULL_ROUNDING))
                op_fail("%s is off by %g", p->name, error);
            free(gradients[i]);
        }

        for (int i = 0; precision == IN_FP8 && i < model_num_tensors(model); i++) free(expected[i]);
        model_destroy(model);
    }
}

TEST(gradients_in_fp8_are_those_of_bf16_within_its_rounding) {
    need_fp8();
    check_gradients();
    d_ff = 80; // narrower than qkv
    check_gradients();
    d_ff = 0;
}

TEST(a_d_ff_that_fp8_cannot_multiply_is_refused) {
    need_fp8();
    Error err;
    ModelOptions options = {.config = {.max_T = T, .L = L, .NH = NH, .C = C, .d_ff = 72},
                            .dtype = DTYPE_BF16,
                            .B = B,
                            .T = T,
                            .fp8 = true};
    assert_false(model_check_options(&options, &err));
    assert_non_null(strstr(err.text, "--fp8: d_ff = 72 is not a multiple of 16; use --d-ff 80"));
}

// The scales of other micro-batches may differ, by powers of two: that moves no number but the
// smallest. What differs are sums in bf16, by their last bit; a step of e4m3 is 32 of those, so
// that one number in 32 may be rounded to the other side, by a whole step, where rounding is wrong
// by 1 / sqrt(12) steps. That makes sqrt(12 / 32) = 61% of the error of fp8 itself at most, 11%.
// (Mostly sums do not differ at all: 1e-7, and 2% in one of 8 seeds.)
TEST(micro_steps_add_up_to_one) {
    need_fp8();
    double *once[MAX_TENSORS] = {0}, *summed[MAX_TENSORS] = {0};

    Model *model = make_model(IN_FP8, true, 0);
    set_weights(model, 0);
    run_micro_steps(model, 0, B);
    read_gradients(model, once);
    run_micro_steps(model, 0, 4); // 4 and a short one of 2
    read_gradients(model, summed);

    for (int i = 0; i < model_num_tensors(model); i++) {
        const Parameter *p = &model_parameters(model)[i];
        const double error = op_relative_error(summed[i], once[i], parameter_numel(p));
        if (!(error <= 0.11)) op_fail("%s differs by %g", p->name, error);
        free(once[i]), free(summed[i]);
    }

    model_destroy(model);
}

// --------------------------------------------------------------------------------------- same bits

// These may happen between two steps without a trace.
typedef enum { NOTHING, EVALUATION, DECODING } Between;

static void evaluate(Model *model) {
    model_load_batch(model, windows + B * SPAN, B, T, sizeof *windows);
    model_forward(model);
    device_sync();
}

static void decode(Model *model, float *logits) {
    const int32_t prompts[2 * 5] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, next[2] = {11, 12};
    model_decode_start(model, prompts, 5, 2, logits);
    model_decode_step(model, next, logits);
}

// STEPS steps, each with other weights, in micro-steps of 4 and 2 sequences.
static void run_steps(Model *model, Between between, uint64_t digests[STEPS]) {
    float logits[2 * V];
    for (int step = 0; step < STEPS; step++) {
        set_weights(model, step);
        if (between == EVALUATION) evaluate(model);
        run_micro_steps(model, step, 4);
        digests[step] = digest_step(model);
        if (between == EVALUATION) evaluate(model);
        if (between == DECODING) decode(model, logits);
    }
}

static void check_bits(const uint64_t expected[STEPS], Model *model, Between between,
                       const char *what) {
    uint64_t digests[STEPS];
    run_steps(model, between, digests);
    model_destroy(model);
    for (int step = 0; step < STEPS; step++)
        if (digests[step] != expected[step]) op_fail("%s: other bits in step %d", what, step);
}

TEST(steps_have_the_same_bits_whatever_is_recomputed_evaluated_or_decoded) {
    need_fp8();
    uint64_t expected[STEPS];
    Model *model = make_model(IN_FP8, true, 0);
    run_steps(model, NOTHING, expected);
    model_destroy(model);
    check_bits(expected, make_model(IN_FP8, true, 0), NOTHING, "a second run");
    check_bits(expected, make_model(IN_FP8, true, 0), EVALUATION, "evaluation");
    check_bits(expected, make_model(IN_FP8, true, 0), DECODING, "decoding");
    check_bits(expected, make_model(IN_FP8, true, 1), NOTHING, "-r 1");
    check_bits(expected, make_model(IN_FP8, true, 2), NOTHING, "-r 2");
    check_bits(expected, make_model(IN_FP8, true, 3), NOTHING, "-r 3");
}

TEST(a_model_for_forward_only_gives_the_losses_of_training_in_fp8) {
    need_fp8();
    Model *model = make_model(IN_FP8, true, 0);
    set_weights(model, 0);
    run_micro_steps(model, 0, B);
    const uint64_t trained = digest_of(0, model_sequence_losses(model));
    model_destroy(model);

    model = make_model(IN_FP8, false, 0);
    set_weights(model, 0);
    model_load_batch(model, windows, B, T, sizeof *windows);
    model_forward(model);
    device_sync();

    assert_true(digest_of(0, model_sequence_losses(model)) == trained);
    model_destroy(model);
}

TEST(the_decoder_stays_in_bf16) {
    need_fp8();
    float logits[2][2 * V];
    for (int i = 0; i < 2; i++) {
        Model *model = make_model(i == 0 ? IN_BF16 : IN_FP8, true, 0);
        set_weights(model, 0);
        if (i == 1) run_micro_steps(model, 0, B);
        decode(model, logits[i]);
        model_destroy(model);
    }
    assert_memory_equal(logits[0], logits[1], sizeof logits[0]);
}

// One weight is inf or nan: the loss and the gradients of its block are not finite, and the update
// will be skipped.
TEST(a_weight_that_is_not_finite_is_found_by_the_check_of_the_step) {
    need_fp8();
    for (int i = 0; i < 2; i++) {
        Model *model = make_model(IN_FP8, true, 0);
        const int fcw = parameter_index(&model_options(model)->config, PARAM_FCW, 0);
        float row[C] = {0};
        row[3] = i ? NAN : INFINITY;

        set_weights(model, 0);
        model_set_weight(model, fcw, 7, 1, row);
        run_micro_steps(model, 0, B);

        UpdateList list = update_list(model_tensors(model), model_num_tensors(model));
        const Tensor sumsq = tensor_slice_elements(model_norm(model), 0, list.n);
        gradient_sumsq(sumsq, &list);
        update_list_free(&list);
        step_control_update(model_control(model), sumsq, model_sequence_losses(model), B * T,
                            (StepLimits){0});

        assert_int_equal(model_get_control(model).skip, SKIP_NONFINITE);
        model_destroy(model);
    }
}
