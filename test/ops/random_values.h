// Random weights and tokens for models, the same for the same TEST_SEED.
#pragma once
#include "llmc/base/random.h"
#include "llmc/model/model.h"
#include "llmc/model/model_state.h"
#include "test/ops/op_test.h"
#include <stdlib.h>

// Tensor i takes stream + i. N(0, size^2), around 1 for layernorm weights.
static inline void random_weights(Model *model, uint64_t stream, float size) {
    for (int i = 0; i < model_num_tensors(model); i++) {
        const Parameter *p = &model_parameters(model)[i];
        const int64_t n = parameter_numel(p);

        float *values = malloc((size_t)n * sizeof *values);
        for (int64_t j = 0; j < n; j++) {
            const Philox bits = philox(op_seed(), stream + (uint64_t)i, (uint64_t)j);
            float normal[2];
            philox_normal2(bits.v[0], bits.v[1], normal);
            values[j] = size * normal[0] + (p->spec->init == INIT_ONE ? 1.0f : 0.0f);
            if (j / p->cols >= p->file_rows) values[j] = 0.0f; // rows of wte beyond V
        }

        model_set_weight(model, i, 0, p->rows, values);
        free(values);
    }
}

// n tokens of a vocabulary, in memory the device can copy from: host_free. NULL if there is none.
static inline uint16_t *random_windows(uint64_t stream, int64_t n, uint32_t vocabulary) {
    Error err;
    uint16_t *windows = host_alloc((size_t)n * sizeof *windows, &err);
    for (int64_t i = 0; windows && i < n; i++)
        windows[i] = (uint16_t)(philox(op_seed(), stream, (uint64_t)i).v[0] % vocabulary);
    return windows;
}
