// Optimizer state in host memory against the same state on the device: the same bits, step after
// step, whatever the optimizer, also where a step is skipped, or watched; and what is cut is the
// whole of it, once.
#include "dev/sim/sim_control.h"
#include "llmc/model/model_numerics.h"
#include "llmc/model/model_state.h"
#include "llmc/train/offload.h"
#include "llmc/train/optimizer.h"
#include "test/ops/random_model.h"
#include "test/unit/same_model.h"
#include <math.h>

enum { STEPS = 4, SPAN = 8 };

// C = 40: no tensor but the embeddings is a whole number of blocks of 8-bit states, and the state
// of most is no whole number of cache lines.
static Model *make(OptimizerKind optimizer, DType dtype, bool offload) {
    ModelOptions o = random_model_options(dtype, true, 1, 0);
    o.T = SPAN;
    o.optimizer = optimizer;
    o.offload = o.numerics = offload;
    return make_model_of(o);
}

static DeviceEvent *done; // all that a stream has to do

static uint16_t *windows; // (STEPS, 1, T + 1), memory the device can copy from

static int setup(void **state) {
    if (op_group_setup(state) != 0) return -1;
    Error err;
    windows = random_windows(STREAM_TOKENS, STEPS * (SPAN + 1), V);
    done = device_event_create(&err);
    return windows && done ? 0 : -1;
}

static void run_streams_late(bool late) {
    if (sim_set_lazy_streams) sim_set_lazy_streams(late);
}

static int teardown(void **state) {
    host_free(windows);
    device_event_destroy(done);
    return op_group_teardown(state);
}
TestFixture test_all = {setup, teardown};

// In the second step a gradient is not finite: it is skipped.
static void step(Model *model, Optimizer *optimizer, int number, bool watched) {
    const float bad = NAN;
    if (watched) model_observe(model, true);

    model_load_batch(model, windows + (number - 1) * (SPAN + 1), 1, SPAN, sizeof *windows);
    model_forward_backward(model, SPAN, true);
    if (number == 2) model_write_bytes(model, model_tensors(model)[3].grad, 4, 4, &bad);
    optimizer_norm(optimizer);
    optimizer_step(optimizer, 1e-3, SPAN, watched);

    // The stream that is waited for first runs ahead, as if the others were slow: the updates, or
    // the copies back.
    for (int i = 0; i < 2; i++) {
        device_event_record(done, (number + i) % 2 ? STREAM_COPY_BACK : STREAM_COMPUTE);
        device_event_wait(done);
    }

    if (watched) model_observe(model, false);
}

OP_TEST(state_in_host_memory_has_the_bits_of_state_on_the_device) {
    for (int kind = 0; kind < OPTIMIZER_COUNT; kind++) {
        Error err;
        if (!optimizer_is_elementwise((OptimizerKind)kind)) continue;
        Model *models[2];
        Optimizer *optimizers[2];
        for (int offload = 0; offload < 2; offload++) {
            OptimizerOptions options = {.momentum = 0.95f, .seed = 7};
            optimizer_default_rates((OptimizerKind)kind, 0.1, options.rates);
            models[offload] = make((OptimizerKind)kind, dtype, offload);
            optimizers[offload] = optimizer_create(models[offload], &options, &err);
            assert_non_null(optimizers[offload]);
        }

        run_streams_late(true); // a wait that is missing shows in the bits
        for (int number = 1; number <= STEPS; number++) {
            step(models[0], optimizers[0], number, false);
            step(models[1], optimizers[1], number, number == 3);
            assert_same_model(models[0], models[1]);
            assert_int_equal(model_get_control(models[1]).skip,
                             number == 2 ? SKIP_NONFINITE : SKIP_NONE);
        }

        run_streams_late(false);
        for (int offload = 0; offload < 2; offload++) {
            optimizer_destroy(optimizers[offload]);
            model_destroy(models[offload]);
        }
    }
}

// Each element of each parameter in one slice, in order; slices of a chunk inside one part of the
// buffer, apart.
OP_TEST(slices_cover_every_parameter_once) {
    for (int kind = 0; kind < OPTIMIZER_COUNT; kind++) {
        Error err;
        if (!optimizer_is_elementwise((OptimizerKind)kind)) continue;
        Model *model = make((OptimizerKind)kind, dtype, true);
        Offload *offload =
            offload_create(model, model_tensors(model), model_num_tensors(model), &err);

        int64_t bytes, at = 0;
        const char *buffer = model_offload_buffer(model, &bytes);
        int parameter = 0, cut = 0, slices = 0;
        const UpdateList *list = offload_slices(offload);
        assert_true(offload_chunks(offload) > OFFLOAD_PARTS); // every part is used again

        for (int c = 0; c < offload_chunks(offload); c++) {
            int first, n;
            offload_take(offload, c, &first, &n);
            assert_int_equal(first, slices);

            const char *end = buffer + c % OFFLOAD_PARTS * (bytes / OFFLOAD_PARTS),
                       *part_end = end + bytes / OFFLOAD_PARTS;
            for (int i = first; i < first + n; i++) {
                UpdateTensor t = list->tensors[i];
                assert_int_equal(t.stream, parameter);
                assert_int_equal(t.offset, at);
                assert_int_equal(t.offset % STATE_BLOCK, 0);
                for (int slot = 0; slot < NUM_STATE_SLOTS; slot++) {
                    const Tensor s = *state_slot_tensor(&t, (StateSlot)slot);
                    if (!s.data) continue;
                    assert_true((const char *)s.data >= end && (uintptr_t)s.data % 16 == 0);
                    end = (const char *)s.data + tensor_bytes(s);
                    assert_true(end <= part_end);
                }

                at += tensor_numel(t.weight);
                if (at < parameter_numel(&model_parameters(model)[parameter])) {
                    cut++;
                } else {
                    assert_int_equal(at, parameter_numel(&model_parameters(model)[parameter]));
                    parameter++, at = 0;
                }
            }
            slices += n;
        }

        assert_int_equal(slices, list->n);
        assert_int_equal(parameter, model_num_tensors(model));
        assert_true(cut > 0);

        device_sync();
        offload_destroy(offload);
        model_destroy(model);
    }
}
