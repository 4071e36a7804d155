// The arena's layout: nothing alive at the same time overlaps, and little is wasted; and what generation takes of it.
#include "llmc/base/rng.h"
#include "llmc/model/gpt2.h"

// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include "test/unit/device_fixture.h"

typedef struct {
    int handle, first, last;
    int64_t bytes;
} Item;

static void assert_no_overlap(const MemoryPlan *plan, const Item *items, int n) {
    for (int i = 0; i < n; i++) {
        const int64_t a = memory_plan_offset(plan, items[i].handle);
        assert_int_equal(a % PLAN_ALIGNMENT, 0);
        assert_true(a >= 0 && a + items[i].bytes <= memory_plan_total(plan));
        for (int j = 0; j < i; j++) {
            const int64_t b = memory_plan_offset(plan, items[j].handle);
            const bool together = items[i].first == PLAN_ALWAYS || items[j].first == PLAN_ALWAYS ||
                                  (items[i].first <= items[j].last && items[j].first <= items[i].last);
            if (together && items[i].bytes && items[j].bytes)
                assert_true(a + items[i].bytes <= b || b + items[j].bytes <= a);
        }
    }
}

static void random_lifetimes_never_overlap(void **state) {
    (void)state;
    enum { N = 60 };
    for (uint64_t round = 0; round < 200; round++) {
        MemoryPlan *plan = memory_plan_create();
        Item items[N];
        for (uint64_t i = 0; i < N; i++) {
            Philox r = philox(round, 99, i);
            Item *it = &items[i];
            it->first = r.v[0] % 8 == 0 ? PLAN_ALWAYS : (int)(r.v[1] % 30);
            it->last = it->first == PLAN_ALWAYS ? PLAN_ALWAYS : it->first + (int)(r.v[2] % 12);
            it->bytes = r.v[3] % 5000;
            it->handle = memory_plan_add(plan, MEM_ACTIVATIONS, "x", it->bytes, it->first, it->last);
        }
        memory_plan_solve(plan);
        assert_no_overlap(plan, items, N);
        assert_true(memory_plan_total(plan) >= memory_plan_live_peak(plan));
        memory_plan_destroy(plan);
    }
}

static void tensors_that_never_meet_share_bytes(void **state) {
    (void)state;
    MemoryPlan *plan = memory_plan_create();
    int a = memory_plan_add(plan, MEM_ACTIVATIONS, "a", 1024, 0, 1);
    int b = memory_plan_add(plan, MEM_ACTIVATIONS, "b", 1024, 2, 3);
    memory_plan_solve(plan);
    assert_int_equal(memory_plan_offset(plan, a), memory_plan_offset(plan, b));
    assert_int_equal(memory_plan_total(plan), 1024);
    memory_plan_destroy(plan);
}

static void the_last_tick_is_included(void **state) {
    (void)state;
    MemoryPlan *plan = memory_plan_create();
    memory_plan_add(plan, MEM_ACTIVATIONS, "a", 1024, 0, 2);
    memory_plan_add(plan, MEM_ACTIVATIONS, "b", 1024, 2, 3);
    memory_plan_solve(plan);
    assert_int_equal(memory_plan_total(plan), 2048);
    memory_plan_destroy(plan);
}

static void classes_sum_to_the_total(void **state) {
    (void)state;
    MemoryPlan *plan = memory_plan_create();
    memory_plan_add(plan, MEM_WEIGHTS, "w", 1000, PLAN_ALWAYS, PLAN_ALWAYS);
    memory_plan_add(plan, MEM_OPTIMIZER, "m", 3000, PLAN_ALWAYS, PLAN_ALWAYS);
    memory_plan_add(plan, MEM_ACTIVATIONS, "a", 5000, 0, 4);
    memory_plan_add(plan, MEM_ACTIVATIONS, "b", 600, 3, 9);
    memory_plan_solve(plan);
    int64_t sum = 0;
    for (int c = 0; c < MEM_CLASS_COUNT; c++) sum += memory_plan_class_bytes(plan, (MemoryClass)c);
    assert_int_equal(sum, memory_plan_total(plan));
    assert_int_equal(memory_plan_class_bytes(plan, MEM_WEIGHTS), 1024);
    memory_plan_destroy(plan);
}

static void an_empty_plan_takes_nothing(void **state) {
    (void)state;
    MemoryPlan *plan = memory_plan_create();
    memory_plan_solve(plan);
    assert_int_equal(memory_plan_total(plan), 0);
    memory_plan_destroy(plan);
}

// ---------------------------------------------------------------------------------------------------------- generation

static int64_t planned(Gpt2Options options, int64_t sequences) {
    Error err;
    assert_true(model_config_parse(&options.config, "d12", &err));
    model_config_set_vocab(&options.config, GPT2_VOCAB);
    options.dtype = DTYPE_FP32;
    options.sequences = sequences;
    MemoryPlan *plan = gpt2_plan(&options);
    const int64_t total = memory_plan_total(plan);
    memory_plan_destroy(plan);
    return total;
}

static void samples_beside_training_cost_no_memory(void **state) {
    (void)state;
    for (int level = RECOMPUTE_NONE; level <= RECOMPUTE_BLOCK; level++) {
        const Gpt2Options options = {.master = true, .train = true, .B = 4, .T = 1024, .recompute = level};
        assert_int_equal(planned(options, 1), planned(options, 0));
        assert_int_equal(planned(options, 4), planned(options, 0));
    }
}

// Without training there is little to share: keys and values of every position, 2 L C elements, and the logits. The
// blocks' own activations are those of one prompt, not of every sequence.
static void a_model_that_only_generates_takes_weights_and_cache(void **state) {
    (void)state;
    const Gpt2Options options = {.B = 1, .T = 1024};
    const int64_t element = 4, Vp = 50304, cache = 2 * 12 * 768 * 1024 * element, logits = Vp * element;
    const int64_t tokens = 1024 * 4,
                  aligned = 2 * PLAN_ALIGNMENT; // cache and logits are multiples of it; tokens are not
    const int64_t more = planned(options, 9) - planned(options, 8);
    assert_true(more >= cache && more <= cache + logits + tokens + aligned);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_lifetimes_never_overlap),
        cmocka_unit_test(tensors_that_never_meet_share_bytes),
        cmocka_unit_test(the_last_tick_is_included),
        cmocka_unit_test(classes_sum_to_the_total),
        cmocka_unit_test(an_empty_plan_takes_nothing),
        cmocka_unit_test(samples_beside_training_cost_no_memory),
        cmocka_unit_test(a_model_that_only_generates_takes_weights_and_cache),
    };
    return cmocka_run_group_tests(tests, start_device, stop_device);
}
