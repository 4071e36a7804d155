// Token by token: the decoder of the model on the running backend, on fresh random weights and
// tokens. Its logits are those of the whole forward pass, whatever the way there and whoever is
// beside; its cache shares memory with training and does not touch what training computes.
#include "dev/sim/sim_control.h"
#include "llmc/device.h"
#include "llmc/model/model_decode.h"
#include "llmc/model/model_state.h"
#include "test/ops/random_model.h"

enum { S = 3, SPAN = T + 1 };

static uint16_t *windows;        // (S, T+1), memory the device can copy from
static int32_t tokens[S * SPAN]; // the same

static int setup(void **state) {
    if (op_group_setup(state) != 0) return -1;
    windows = random_windows(STREAM_TOKENS, S * SPAN, V);
    for (int i = 0; windows && i < S * SPAN; i++) tokens[i] = windows[i];
    return windows ? 0 : -1;
}

static int teardown(void **state) {
    host_free(windows);
    return op_group_teardown(state);
}
TestFixture test_all = {setup, teardown};

// ----------------------------------------------------------------------------------------- helpers

// n tokens from position `first` on of `count` sequences from `s` on, as model_decode_* take them.
static const int32_t *taken(int s, int count, int first, int n) {
    static int32_t some[S * SPAN];
    for (int i = 0; i < count; i++)
        memcpy(some + i * n, tokens + (s + i) * SPAN + first, (size_t)n * sizeof *some);
    return some;
}

static void start(Model *model, int s, int count, int n, float *logits) {
    model_decode_start(model, taken(s, count, 0, n), n, count, logits);
    assert_int_equal(model_decode_length(model), n);
}

static void step(Model *model, int s, int count, float *logits) {
    const int n = (int)model_decode_length(model);
    model_decode_step(model, taken(s, count, n, 1), logits);
    assert_int_equal(model_decode_length(model), n + 1);
}

// The logits (S,T,V) of the specification for the weights as the model stores them.
static double *specified_logits(const Model *model) {
    double *params[MAX_TENSORS], losses[S * T], *logits = malloc(S * T * V * sizeof *logits);
    const int count = model_num_tensors(model);
    for (int i = 0; i < count; i++) params[i] = op_values(model_tensors(model)[i].weight);
    ref_gpt2(&model_options(model)->config, params, tokens, S, T, losses, logits, NULL);
    for (int i = 0; i < count; i++) free(params[i]);
    return logits;
}

// Logits of all sequences at one position against the specification. In fp32 thirty ops in a row,
// each good to 1e-6, whose errors add as squares: 1e-5. Below, every stored value is rounded: the
// residual stream and its branches about ten times on the way up, and the layernorms and the head
// weigh these errors by up to 2: four tolerances of one op. Of the 61 logits of one row that is a
// statement with a tail, as in op_limit: twice as much.
static void check_row(const float *got, const double *want, int position, DType dtype,
                      const char *how) {
    const double limit = dtype == DTYPE_FP32 ? 1e-5 : 4.0 * op_tolerance(dtype);
    for (int s = 0; s < S; s++) {
        double row[V];
        for (int v = 0; v < V; v++) row[v] = (double)got[s * V + v];
        const double error = op_relative_error(row, want + (s * T + position) * V, V);
        if (!(error <= 2.0 * limit))
            op_fail("%s: logits of sequence %d after %d tokens: relative error %.3g, at most %.3g",
                    how, s, position + 1, error, 2.0 * limit);
    }
}

static void assert_same_logits(const float *a, const float *b, int rows) {
    assert_memory_equal(a, b, (size_t)(rows * V) * sizeof *a);
}

// ------------------------------------------------------------------------------------------- tests

static void check_positions(ModelOptions options) {
    const DType dtype = options.dtype;
    Model *model = make_model_of(options);
    double *want = specified_logits(model);
    float logits[S * V];

    start(model, 0, S, 1, logits);
    check_row(logits, want, 0, dtype, "one token");
    for (int t = 1; t < T; t++) {
        step(model, 0, S, logits);
        check_row(logits, want, t, dtype, "token by token");
    }

    // what goes through at once is rounded up to a multiple of 32
    const int prompts[] = {2, 32, 33, 34, 63, T - 1, T};
    for (int i = 0; i < 7; i++) {
        start(model, 0, S, prompts[i], logits);
        check_row(logits, want, prompts[i] - 1, dtype, "a prompt");
        if (prompts[i] == T) break;
        step(model, 0, S, logits);
        check_row(logits, want, prompts[i], dtype, "the token after a prompt");
    }

    free(want);
    model_destroy(model);
}

OP_TEST(every_position_has_the_logits_of_the_specification) {
    check_positions(random_model_options(dtype, false, 1, S));
}

OP_TEST(an_mlp_that_is_narrower_than_qkv_has_the_logits_of_the_specification) {
    ModelOptions options = random_model_options(dtype, false, 1, S);
    options.config.d_ff = 72;
    check_positions(options);
}

// On a GPU the library may compute a product of another number of rows in another order.
static bool rows_are_computed_alike(void) {
    return strcmp(device_facts()->backend, "cpu") == 0 || sim_set_schedule != NULL;
}

OP_TEST(a_sequence_has_the_same_bits_alone_and_beside_others) {
    enum { PROMPT = 40, GROWN = 6 };
    if (!rows_are_computed_alike()) {
        print_message("the library chooses how it multiplies by the number of rows\n");
        skip();
    }

    Model *model = make_model(dtype, false, 1, S);
    float together[GROWN][S * V], alone[V];
    start(model, 0, S, PROMPT, together[0]);
    for (int i = 1; i < GROWN; i++) step(model, 0, S, together[i]);

    for (int s = 0; s < S; s++) {
        start(model, s, 1, PROMPT, alone);
        assert_same_logits(alone, together[0] + s * V, 1);
        for (int i = 1; i < GROWN; i++) {
            step(model, s, 1, alone);
            assert_same_logits(alone, together[i] + s * V, 1);
        }
    }
    model_destroy(model);
}

// Samples of one prompt: it is read once, and they part when their tokens do.
OP_TEST(sequences_with_one_prompt_are_alike_until_their_tokens_differ) {
    enum { PROMPT = 37 };
    Model *model = make_model(dtype, false, 1, S);
    int32_t prompts[S * PROMPT];
    float logits[S * V], first[V];

    start(model, 0, 1, PROMPT, first);
    for (int s = 0; s < S; s++) memcpy(prompts + s * PROMPT, tokens, PROMPT * sizeof *prompts);
    model_decode_start(model, prompts, PROMPT, S, logits);
    for (int s = 0; s < S; s++) assert_same_logits(logits, logits + s * V, 1);
    if (rows_are_computed_alike()) assert_same_logits(first, logits, 1);

    const int32_t next[S] = {5, 6, 5};
    model_decode_step(model, next, logits);
    assert_same_logits(logits, logits + 2 * V, 1);
    int parted = 0;
    for (int v = 0; v < V; v++) parted += logits[v] != logits[V + v];

    assert_true(parted > V / 2);
    model_destroy(model);
}

// Gradients and losses of a micro-step, as one number.
static uint64_t micro_step(Model *model) {
    model_load_batch(model, windows, S, T, sizeof *windows);
    model_forward_backward(model, S * T, true);
    device_sync();
    uint64_t digest = op_digest(0, (OpTensor){.t = model_sequence_losses(model)});
    for (int i = 0; i < model_num_tensors(model); i++)
        digest = op_digest(digest, (OpTensor){.t = model_tensors(model)[i].grad});
    return digest;
}

// Without GELU in the epilogue of a matmul, which depends on whether -r repeats it.
OP_TEST(training_and_decoding_share_memory_and_do_not_see_each_other) {
    float logits[2][2 * V], expected[2][2 * V];
    DeviceOptions device = op_device_options();
    device.gelu_fusion = GELU_FUSION_NONE;
    op_restart_device(device);

    Model *model = make_model(dtype, false, 1, 2); // never trains
    start(model, 0, 2, 50, expected[0]);
    step(model, 0, 2, expected[1]);
    model_destroy(model);

    for (int level = 0; level <= 3; level++) {
        ModelOptions options = random_model_options(dtype, true, S, 0); // never decodes
        options.recompute = recompute_all(recompute_level_set(level));
        model = make_model_of(options);
        const uint64_t trained = micro_step(model);
        model_destroy(model);

        options.sequences = 2;
        model = make_model_of(options);
        const int rounds = level == 0 ? 3 : 1; // the third replays what the second recorded
        for (int round = 0; round < rounds; round++) {
            if (micro_step(model) != trained) op_fail("level %d: other bits after decoding", level);
            assert_int_equal(model_decode_length(model), 0);
            start(model, 0, 2, 50, logits[0]);
            step(model, 0, 2, logits[1]);
            assert_memory_equal(logits, expected, sizeof logits);
        }
        model_destroy(model);
    }
}

OP_TEST(an_evaluation_ends_what_was_begun_and_takes_nothing_along) {
    Model *model = make_model(dtype, false, S, S);
    float before[S * V], after[S * V];
    model_load_batch(model, windows, S, T, sizeof *windows);
    model_forward(model);
    device_sync();
    const uint64_t losses = op_digest(0, (OpTensor){.t = model_token_losses(model)});

    start(model, 0, S, 20, before);
    assert_int_equal(model_decode_length(model), 20);
    model_load_batch(model, windows, S, T, sizeof *windows);
    assert_int_equal(model_decode_length(model), 0);

    model_forward(model);
    device_sync();
    assert_true(op_digest(0, (OpTensor){.t = model_token_losses(model)}) == losses);

    start(model, 0, S, 20, after);
    assert_same_logits(before, after, S);
    model_destroy(model);
}
