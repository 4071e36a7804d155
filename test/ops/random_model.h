// The small GPT-2 of the tests of the whole model, with fresh random weights. Nothing in it is a
// multiple of 16; T goes beyond one block of attention; L = 3 has a first, a middle and a last
// block.
#pragma once
#include "test/ops/random_values.h"

enum { L = 3, C = 40, NH = 5, V = 61, MAX_T = 80, T = 70, MAX_TENSORS = 64 };
enum { STREAM_WEIGHTS = 1000, STREAM_TOKENS = 999 }; // one stream a tensor

// The options are for at most `batch` windows and `sequences` to decode; -r 0.
static inline ModelOptions random_model_options(DType dtype, bool train, int64_t batch,
                                                int64_t sequences) {
    ModelOptions options = {.config = {.max_T = MAX_T, .L = L, .NH = NH, .C = C},
                            .dtype = dtype,
                            .master = dtype != DTYPE_FP32,
                            .train = train,
                            .B = batch,
                            .T = T,
                            .seed = 42,
                            .sequences = sequences};
    model_config_set_vocab(&options.config, V);
    return options;
}

static inline Model *make_model_of(ModelOptions options) {
    Error err;
    Model *model = model_create(&options, &err);
    if (!model) op_fail("%s", err.text);
    // large enough that every part of the model matters
    random_weights(model, STREAM_WEIGHTS, 0.15f);
    return model;
}

static inline Model *make_model(DType dtype, bool train, int64_t batch, int64_t sequences) {
    return make_model_of(random_model_options(dtype, train, batch, sequences));
}

// Sets of ops number first .. first + L - 1 in the blocks, in each dtype in another order: as first
// goes up by L, all 64 have their turn, since 13 is odd.
static inline void recompute_mixed(ModelOptions *options, int first) {
    for (int l = 0; l < L; l++)
        options->recompute.blocks[l] = (uint8_t)((first + (l + (int)options->dtype) % L) * 13 % 64);
}
