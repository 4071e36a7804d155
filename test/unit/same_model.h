// Two models bit by bit: weights, and what their optimizer keeps.
#pragma once
#include "llmc/model/model.h"
#include "llmc/model/model_state.h"
#include "test/test.h"

static inline void assert_same_bytes(Model *a, Tensor x, Model *b, Tensor y, const char *what) {
    const size_t bytes = tensor_bytes(x);
    char *left = malloc(bytes), *right = malloc(bytes);
    model_read_bytes(a, x, 0, (int64_t)bytes, left);
    model_read_bytes(b, y, 0, (int64_t)bytes, right);
    if (memcmp(left, right, bytes) != 0)
        fail_msg("%s of %s differs with --optimizer %s", what, x.name,
                 optimizer_name(model_options(a)->optimizer));
    free(left);
    free(right);
}

// But for SLOT_RMS, which is scratch of a step.
static inline void assert_same_model(Model *a, Model *b) {
    for (int i = 0; i < model_num_tensors(a); i++) {
        UpdateTensor x = model_tensors(a)[i], y = model_tensors(b)[i];
        assert_same_bytes(a, x.weight, b, y.weight, "the weight");
        for (int slot = 0; slot < NUM_STATE_SLOTS; slot++) {
            const Tensor s = *state_slot_tensor(&x, (StateSlot)slot);
            if (s.data && slot != SLOT_RMS)
                assert_same_bytes(a, s, b, *state_slot_tensor(&y, (StateSlot)slot),
                                  state_slot_name((StateSlot)slot));
        }
    }
}
