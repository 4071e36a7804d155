// The whole model on the running backend, on fresh random weights and tokens: every recompute level gives the same
// gradients, micro-batches add up, and the gradient is the slope of the loss. test/golden compares with PyTorch.
#include "llmc/base/error.h"
#include "llmc/base/rng.h"
#include "llmc/device.h"
#include "llmc/model/gpt2.h"
#include "test/ops/op_test.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

// Nothing is a multiple of 16; T goes beyond one block of attention; L = 3 has a first, a middle and a last block.
enum { L = 3, C = 40, NH = 5, V = 61, MAX_T = 80, T = 70, B = 8, SPAN = T + 1 };
enum { STREAM_WEIGHTS = 1000, STREAM_TOKENS = 999 }; // of this test: one stream a tensor

static uint16_t *windows; // (B, T+1), memory the device can copy from

static int setup(void **state) {
    Error err;
    if (op_group_setup(state) != 0) return -1;
    windows = host_alloc(B * SPAN * sizeof *windows, &err);
    if (!windows) return -1;
    for (uint64_t i = 0; i < B * SPAN; i++) windows[i] = (uint16_t)(philox(op_seed(), STREAM_TOKENS, i).v[0] % V);
    return 0;
}

static int teardown(void **state) {
    host_free(windows);
    return op_group_teardown(state);
}

// Values N(0, 0.15^2), around 1 for layernorm weights: large enough that every part of the model matters.
static void set_random_weights(Gpt2 *model) {
    for (int i = 0; i < gpt2_num_tensors(model); i++) {
        const Parameter *p = &gpt2_parameters(model)[i];
        int64_t n = parameter_numel(p);
        float *values = malloc((size_t)n * sizeof *values);
        for (int64_t j = 0; j < n; j++) {
            Philox bits = philox(op_seed(), STREAM_WEIGHTS + (uint64_t)i, (uint64_t)j);
            float normal[2];
            philox_normal2(bits.v[0], bits.v[1], normal);
            values[j] = 0.15f * normal[0] + (p->spec->init == INIT_ONE ? 1.0f : 0.0f);
            if (j / p->cols >= p->file_rows) values[j] = 0.0f; // rows of wte beyond V
        }
        gpt2_set_state(model, i, STATE_WEIGHT, 0, p->rows, values);
        free(values);
    }
}

static Gpt2 *make_model(DType dtype, bool train, int64_t batch, int recompute) {
    Error err;
    Gpt2Options options = {.config = {.max_T = MAX_T, .L = L, .NH = NH, .C = C},
                           .dtype = dtype,
                           .master = dtype != DTYPE_FP32,
                           .train = train,
                           .B = batch,
                           .T = T,
                           .recompute = recompute};
    model_config_set_vocab(&options.config, V);
    Gpt2 *model = gpt2_create(&options, &err);
    if (!model) fail_msg("%s", err.text);
    set_random_weights(model);
    return model;
}

// One step over all B sequences in micro-batches of `batch`.
static void run_step(Gpt2 *model, int64_t batch) {
    for (int64_t b = 0; b < B; b += batch) {
        gpt2_load_batch(model, windows + b * SPAN, batch, sizeof *windows);
        gpt2_forward_backward(model, B * T, b == 0);
    }
    device_sync();
}

// The bytes of a device tensor; the caller frees them with host_free.
static void *bytes_of(Tensor t) {
    Error err;
    void *bytes = host_alloc(tensor_bytes(t), &err);
    if (!bytes) fail_msg("%s", err.text);
    device_copy_to_host(bytes, t.data, tensor_bytes(t), STREAM_COMPUTE);
    device_sync();
    return bytes;
}

// A device tensor as fp64; the caller frees it.
static double *values_of(Tensor t) {
    int64_t n = tensor_numel(t);
    char *bytes = bytes_of(t);
    double *values = malloc((size_t)n * sizeof *values);
    for (int64_t i = 0; i < n; i++) {
        float value;
        convert_elements(&value, DTYPE_FP32, bytes + (size_t)i * dtype_size(t.dtype), t.dtype, 1);
        values[i] = (double)value;
    }
    host_free(bytes);
    return values;
}

static uint64_t digest_of(Tensor t) {
    void *bytes = bytes_of(t);
    uint64_t digest = XXH3_64bits(bytes, tensor_bytes(t));
    host_free(bytes);
    return digest;
}

// ----------------------------------------------------------------------------------------------------- recomputation

enum { MAX_TENSORS = 64 };

static void every_recompute_level_gives_the_same_bits(void **state) {
    DType dtype = op_dtype(state);
    uint64_t kept[MAX_TENSORS];
    for (int level = RECOMPUTE_NONE; level <= RECOMPUTE_BLOCK; level++) {
        Gpt2 *model = make_model(dtype, true, B, level);
        int count = gpt2_num_tensors(model);
        assert_true(count < MAX_TENSORS);
        run_step(model, B);
        for (int i = 0; i <= count; i++) {
            bool losses = i == count;
            uint64_t digest = digest_of(losses ? gpt2_sequence_losses(model) : gpt2_gradients(model)[i]);
            if (level == RECOMPUTE_NONE) kept[i] = digest;
            if (digest != kept[i])
                fail_msg("level %d: other bits in %s", level, losses ? "the losses" : gpt2_parameters(model)[i].name);
        }
        gpt2_destroy(model);
    }
}

// -------------------------------------------------------------------------------------------------------- accumulation

// The sums are the same up to the order of summation, which costs a few roundings of one op; where gradients have the
// compute dtype, they are rounded after each of the eight micro-steps: sqrt(8) times the error of one rounding.
static void eight_micro_steps_of_one_are_one_of_eight(void **state) {
    DType dtype = op_dtype(state);
    Gpt2 *whole = make_model(dtype, true, B, 0), *parts = make_model(dtype, true, 1, 0);
    run_step(parts, 1); // each model has set its workspace when it was made: the last one made runs first
    gpt2_destroy(parts);
    gpt2_destroy(whole);

    double *gradients[MAX_TENSORS];
    whole = make_model(dtype, true, B, 0);
    int count = gpt2_num_tensors(whole);
    run_step(whole, B);
    for (int i = 0; i < count; i++) gradients[i] = values_of(gpt2_gradients(whole)[i]);
    for (int64_t batch = 4; batch >= 1; batch -= 3) {
        run_step(whole, batch);
        for (int i = 0; i < count; i++) {
            const Parameter *p = &gpt2_parameters(whole)[i];
            double *now = values_of(gpt2_gradients(whole)[i]);
            double error = op_relative_error(now, gradients[i], parameter_numel(p));
            double limit = op_tolerance(dtype) * (gpt2_gradients(whole)[i].dtype == DTYPE_FP32 ? 1.0 : 2.0);
            if (!(error <= limit)) fail_msg("%s: micro-batches of %d differ by %g", p->name, (int)batch, error);
            free(now);
        }
    }
    for (int i = 0; i < count; i++) free(gradients[i]);
    gpt2_destroy(whole);
}
