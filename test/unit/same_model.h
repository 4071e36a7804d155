// Two models bit by bit: weights, and what their optimizer keeps.
#pragma once
#include "llmc/model/gpt2.h"
#include "test/test.h"

static inline void assert_same_bytes(Gpt2 *a, Tensor x, Gpt2 *b, Tensor y, const char *what) {
    const size_t bytes = tensor_bytes(x);
    char *left = malloc(bytes), *right = malloc(bytes);
    gpt2_read_bytes(a, x, 0, (int64_t)bytes, left);
    gpt2_read_bytes(b, y, 0, (int64_t)bytes, right);
    if (memcmp(left, right, bytes) != 0)
        fail_msg("%s of %s differs with --optimizer %s", what, x.name, optimizer_name(gpt2_options(a)->optimizer));
    free(left);
    free(right);
}

// But for SLOT_RMS, which is scratch of a step.
static inline void assert_same_model(Gpt2 *a, Gpt2 *b) {
    for (int i = 0; i < gpt2_num_tensors(a); i++) {
        UpdateTensor x = gpt2_tensors(a)[i], y = gpt2_tensors(b)[i];
        assert_same_bytes(a, x.weight, b, y.weight, "the weight");
        for (int slot = 0; slot < NUM_STATE_SLOTS; slot++) {
            const Tensor s = *state_slot_tensor(&x, (StateSlot)slot);
            if (s.data && slot != SLOT_RMS)
                assert_same_bytes(a, s, b, *state_slot_tensor(&y, (StateSlot)slot), state_slot_name((StateSlot)slot));
        }
    }
}
