// The small GPT-2 of the tests of the whole model, with fresh random weights. Nothing in it is a multiple of 16; T goes
// beyond one block of attention; L = 3 has a first, a middle and a last block.
#pragma once
#include "llmc/base/rng.h"
#include "llmc/model/gpt2.h"
#include "test/ops/op_test.h"
#include <stdlib.h>

enum { L = 3, C = 40, NH = 5, V = 61, MAX_T = 80, T = 70, MAX_TENSORS = 64 };
enum { STREAM_WEIGHTS = 1000, STREAM_TOKENS = 999 }; // one stream a tensor

// Values N(0, 0.15^2), around 1 for layernorm weights: large enough that every part of the model matters.
static inline void set_random_weights(Gpt2 *model) {
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
        gpt2_set_weight(model, i, 0, p->rows, values);
        free(values);
    }
}

// Of at most `batch` windows and `sequences` to decode; -r 0.
static inline Gpt2Options model_options(DType dtype, bool train, int64_t batch, int64_t sequences) {
    Gpt2Options options = {.config = {.max_T = MAX_T, .L = L, .NH = NH, .C = C},
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

static inline Gpt2 *make_model_of(Gpt2Options options) {
    Error err;
    Gpt2 *model = gpt2_create(&options, &err);
    if (!model) op_fail("%s", err.text);
    set_random_weights(model);
    return model;
}

static inline Gpt2 *make_model(DType dtype, bool train, int64_t batch, int64_t sequences) {
    return make_model_of(model_options(dtype, train, batch, sequences));
}
