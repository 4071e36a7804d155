// Small models for tests: any, one of random weights, and one that writes a given text. The device
// must be there.
#pragma once
#include "llmc/base/random.h"
#include "llmc/model/model.h"
#include "llmc/model/model_state.h"
#include "test/test.h"

enum { TINY_C = 64, TINY_L = 2, TINY_STREAM = 4711 };

// Models live until the test ends: TestFixture test_each = {.teardown = models_destroy};
static struct {
    Model *made[256];
    int count;
} models;

static inline int models_destroy(void **state) {
    (void)state;
    while (models.count > 0) model_destroy(models.made[--models.count]);
    return 0;
}

static inline Model *model_of(ModelOptions options) {
    Error why;
    Model *model = model_create(&options, &why);
    if (!model) fail_msg("%s", why.text);
    if (models.count == 256) fail_msg("more than 256 models in a test");
    return models.made[models.count++] = model;
}

// Every weight is its initial value rounded to the dtype, and a master weight the value itself.
static inline void check_initial_weights(const Model *model, uint64_t seed) {
    const ModelOptions *o = model_options(model);
    for (int i = 0; i < model_num_tensors(model); i++) {
        const Parameter *p = &model_parameters(model)[i];
        const int64_t n = parameter_numel(p), bytes = n * (int64_t)dtype_size(o->dtype);
        AUTO_FREE float *values = malloc((size_t)n * sizeof *values),
                        *read = malloc((size_t)n * sizeof *read);
        AUTO_FREE char *weight = malloc((size_t)bytes), *rounded = malloc((size_t)bytes);

        parameter_init_values(values, &o->config, p, i, seed, 0, n);
        for (int64_t k = 0; k < n; k++) // one at a time: many are converted by several threads
            convert_elements(rounded + k * (int64_t)dtype_size(o->dtype), o->dtype, &values[k],
                             DTYPE_FP32, 1);

        model_read_bytes(model, model_tensors(model)[i].weight, 0, bytes, weight);
        assert_memory_equal(weight, rounded, (size_t)bytes);
        model_get_weight(model, i, 0, p->rows, read, NULL);
        if (o->train && o->master) assert_memory_equal(read, values, (size_t)n * sizeof *read);
    }
}

static inline Model *tiny_create(int64_t V, int64_t B, int64_t T, int64_t sequences) {
    ModelOptions options = {.config = {.max_T = T, .L = TINY_L, .NH = 4, .C = TINY_C},
                            .dtype = DTYPE_FP32,
                            .B = B,
                            .T = T,
                            .sequences = sequences};
    model_config_set_vocab(&options.config, V);
    return model_of(options);
}

// Row r of tensor i: N(0, size^2), around 1 for the weights of layernorms.
static inline void tiny_random_row(const Parameter *p, int i, int64_t r, float size, float *row) {
    for (int64_t c = 0; c < p->cols; c++) {
        const Philox bits = philox(1, TINY_STREAM + (uint64_t)i, (uint64_t)(r * p->cols + c));
        float normal[2];
        philox_normal2(bits.v[0], bits.v[1], normal);
        row[c] = size * normal[0] + (p->spec->init == INIT_ONE ? 1.0f : 0.0f);
        if (r >= p->file_rows) row[c] = 0.0f; // rows of wte beyond V
    }
}

// Large enough weights that every token before matters for the next.
static inline Model *tiny_random(int64_t V, int64_t B, int64_t T, int64_t sequences) {
    Model *model = tiny_create(V, B, T, sequences);
    for (int i = 0; i < model_num_tensors(model); i++) {
        const Parameter *p = &model_parameters(model)[i];
        float *row = malloc((size_t)p->cols * sizeof *row);
        for (int64_t r = 0; r < p->rows; r++) {
            tiny_random_row(p, i, r, 0.15f, row);
            model_set_weight(model, i, r, 1, row);
        }
        free(row);
    }
    return model;
}

// A model whose likeliest token at position t (0 .. n-1) is tokens[t], by far, whatever stands
// before: its blocks add nothing, and the position's vector is ten times that of the token.
static inline Model *tiny_scripted(int64_t V, int64_t T, const int32_t *tokens, int64_t n) {
    Model *model = tiny_create(V, 1, T, 1); // all weights are 0
    const Parameter *table = model_parameters(model);
    float row[TINY_C];

    for (int64_t token = 0; token < V; token++) {
        tiny_random_row(&table[PARAM_WTE], PARAM_WTE, token, 1.0f, row);
        model_set_weight(model, PARAM_WTE, token, 1, row);
    }

    for (int64_t t = 0; t < n; t++) {
        tiny_random_row(&table[PARAM_WTE], PARAM_WTE, tokens[t], 10.0f, row);
        model_set_weight(model, PARAM_WPE, t, 1, row);
    }

    for (int c = 0; c < TINY_C; c++) row[c] = 1.0f;
    const int lnfw = parameter_index(&model_options(model)->config, PARAM_LNFW, -1);
    model_set_weight(model, lnfw, 0, TINY_C, row);
    return model;
}
