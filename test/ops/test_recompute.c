// The backward pass does not read what was not kept: the model has a memory plan of its own, in
// which no two tensors share bytes and all of them begin as NaN. Where the backward pass read a
// tensor before it was computed again, or one that nothing computes, gradients would be NaN.
// (test_model.c has the shared plan, where a wrong lifetime shows.)
//
// The functions of memory_plan.h stand here a second time; the library's are not linked in.
#include "llmc/base/arithmetic.h"
#include "llmc/base/error.h"
#include "llmc/device.h"
#include "llmc/model/model_object.h"
#include "llmc/model/model_state.h"
#include "test/ops/random_model.h"
#include <math.h>

// ---------------------------------------------------------------------- a plan that shares nothing

enum { MAX_PLANNED = 1024 };

struct MemoryPlan {
    PlannedTensor tensors[MAX_PLANNED];
    int count;
};

const char *memory_class_name(MemoryClass c) { return (void)c, "unshared"; }

MemoryPlan *memory_plan_create(void) { return calloc(1, sizeof(MemoryPlan)); }
void memory_plan_destroy(MemoryPlan *plan) { free(plan); }

int memory_plan_add(MemoryPlan *plan, MemoryClass c, const char *name, int64_t bytes, int first_use,
                    int last_use) {
    REQUIRE(plan->count < MAX_PLANNED, "more tensors than this plan has room for");
    const int64_t rounded = round_up(bytes, PLAN_ALIGNMENT);
    plan->tensors[plan->count] = (PlannedTensor){c, name, rounded, first_use, last_use};
    return plan->count++;
}

void memory_plan_solve(MemoryPlan *plan) { (void)plan; }

int64_t memory_plan_offset(const MemoryPlan *plan, int handle) {
    int64_t offset = 0;
    for (int i = 0; i < handle; i++) offset += plan->tensors[i].bytes;
    return offset;
}

int64_t memory_plan_total(const MemoryPlan *plan) { return memory_plan_offset(plan, plan->count); }
int64_t memory_plan_class_bytes(const MemoryPlan *plan, MemoryClass c) {
    return (void)c, memory_plan_total(plan);
}
int64_t memory_plan_live_peak(const MemoryPlan *plan, int *tick) {
    return (void)tick, memory_plan_total(plan);
}
int memory_plan_count(const MemoryPlan *plan) { return plan->count; }
PlannedTensor memory_plan_tensor(const MemoryPlan *plan, int handle) {
    return plan->tensors[handle];
}

// --------------------------------------------------------------------------------------- the tests

static uint16_t *window; // (T+1), memory the device can copy from

static int setup(void **state) {
    if (op_group_setup(state) != 0) return -1;
    window = random_windows(STREAM_TOKENS, T + 1, V);
    return window ? 0 : -1;
}

static int teardown(void **state) {
    host_free(window);
    return op_group_teardown(state);
}
TestFixture test_all = {setup, teardown};

// Every tensor that does not live always becomes NaN, in all floating dtypes.
static void poison(const Model *model) {
    Error err;
    for (int i = 0; i < model->plan->count; i++) {
        const PlannedTensor *t = &model->plan->tensors[i];
        if (t->first_use == PLAN_ALWAYS || t->bytes == 0) continue;
        void *nan = host_alloc((size_t)t->bytes, &err);
        assert_non_null(nan);
        memset(nan, 0xFF, (size_t)t->bytes);
        copy_h2d(model_at(model, i), nan, (size_t)t->bytes, STREAM_COMPUTE);
        device_sync();
        host_free(nan);
    }
}

// All gradients of one micro-step in memory that nobody has written before, as one number.
static uint64_t digest_of_step(ModelOptions options) {
    Model *model = make_model_of(options);
    uint64_t digest = 0;

    poison(model);
    model_load_batch(model, window, 1, T, sizeof *window);
    model_forward_backward(model, T, true);
    device_sync();

    for (int i = 0; i < model_num_tensors(model); i++)
        digest = op_digest(digest, (OpTensor){.t = model_tensors(model)[i].grad});

    double *dwte = op_values(model_tensors(model)[0].grad);
    for (int e = 0; e < V * C; e++) assert_true(isfinite(dwte[e]));
    free(dwte);

    model_destroy(model);
    return digest;
}

OP_TEST(nothing_is_read_that_was_not_kept) {
    DeviceOptions device = op_device_options();
    device.gelu_fusion = GELU_FUSION_NONE; // GELU in an epilogue is not repeated
    op_restart_device(device);

    ModelOptions options = random_model_options(dtype, true, 1, 0);
    for (int in_dtype = 0; in_dtype <= 1; in_dtype++) {
        options.gradients_in_dtype = in_dtype;
        options.recompute = recompute_all(0);
        const uint64_t kept = digest_of_step(options);
        for (int first = 0; first <= RECOMPUTE_BLOCK; first += L) {
            recompute_mixed(&options, first);
            if (digest_of_step(options) != kept)
                op_fail("sets of ops from %d on: other bits", first);
            if (in_dtype && first > 12) break; // the same reads
        }
    }
}
