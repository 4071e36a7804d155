// The arena's layout: nothing alive at the same time overlaps, and little is wasted; what recomputation and gradients
// in the compute dtype save, and what generation takes.
#include "llmc/base/rng.h"
#include "llmc/model/gpt2.h"
#include "test/test.h"
#include "test/unit/device_fixture.h"

static Error err;

TestFixture test_all = {start_device, stop_device};

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

TEST(random_lifetimes_never_overlap) {
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

TEST(tensors_that_never_meet_share_bytes) {
    MemoryPlan *plan = memory_plan_create();
    int a = memory_plan_add(plan, MEM_ACTIVATIONS, "a", 1024, 0, 1);
    int b = memory_plan_add(plan, MEM_ACTIVATIONS, "b", 1024, 2, 3);
    memory_plan_solve(plan);
    assert_int_equal(memory_plan_offset(plan, a), memory_plan_offset(plan, b));
    assert_int_equal(memory_plan_total(plan), 1024);
    memory_plan_destroy(plan);
}

TEST(the_last_tick_is_included) {
    MemoryPlan *plan = memory_plan_create();
    memory_plan_add(plan, MEM_ACTIVATIONS, "a", 1024, 0, 2);
    memory_plan_add(plan, MEM_ACTIVATIONS, "b", 1024, 2, 3);
    memory_plan_solve(plan);
    assert_int_equal(memory_plan_total(plan), 2048);
    memory_plan_destroy(plan);
}

TEST(classes_sum_to_the_total) {
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

TEST(an_empty_plan_takes_nothing) {
    MemoryPlan *plan = memory_plan_create();
    memory_plan_solve(plan);
    assert_int_equal(memory_plan_total(plan), 0);
    memory_plan_destroy(plan);
}

// ------------------------------------------------------------------------------------------------------- recomputation

// What a set keeps of a block from the forward to the backward pass, in bytes a token: the table of doc/memory.md.
static int64_t kept_bytes(int set, int64_t C, int64_t NH, int64_t element) {
    const bool gelu = set & (AGAIN_GELU | AGAIN_FC);
    int64_t elements = C, numbers = 0; // residual1
    if (!(set & AGAIN_LAYERNORM)) elements += 2 * C, numbers += 4;
    if (!(set & AGAIN_QKV)) elements += 3 * C;
    if (!(set & AGAIN_ATTENTION)) elements += C, numbers += NH;
    if (!(set & AGAIN_ATTPROJ)) elements += C;
    if (!(set & AGAIN_FC)) elements += 4 * C;
    if (!gelu) elements += 4 * C;
    return elements * element + numbers * 4;
}

static int64_t peak_of(Gpt2Options options, int64_t L) {
    options.config.L = L;
    MemoryPlan *plan = gpt2_plan(&options);
    const int64_t peak = memory_plan_live_peak(plan) - memory_plan_class_bytes(plan, MEM_WEIGHTS) -
                         memory_plan_class_bytes(plan, MEM_GRADIENTS) - memory_plan_class_bytes(plan, MEM_OPTIMIZER) -
                         memory_plan_class_bytes(plan, MEM_MASTER) - memory_plan_class_bytes(plan, MEM_WORKSPACE);
    memory_plan_destroy(plan);
    return peak;
}

// Blocks more keep as much more; what one block needs while it runs is the same. Of 256 tokens every tensor is a
// multiple of the alignment.
TEST(a_block_keeps_what_its_set_leaves) {
    Gpt2Options options = {.dtype = DTYPE_BF16, .master = true, .train = true, .B = 2, .T = 128};
    options.config = (ModelConfig){.C = 128, .NH = 4, .max_T = 128};
    model_config_set_vocab(&options.config, 500);
    for (int set = 0; set < 64; set++) {
        options.recompute = recompute_all(set);
        const int64_t more = peak_of(options, 24) - peak_of(options, 12);
        assert_int_equal(more, 12 * 256 * kept_bytes(set, 128, 4, 2));
    }
    // Every second block: as much as 6 of each.
    options.recompute = recompute_all(0);
    for (int l = 0; l < 24; l += 2) options.recompute.blocks[l] = AGAIN_BLOCK;
    const int64_t more = peak_of(options, 24) - peak_of(options, 12);
    assert_int_equal(more, 6 * 256 * (kept_bytes(0, 128, 4, 2) + kept_bytes(AGAIN_BLOCK, 128, 4, 2)));
}

// At 124M, laying out costs at most a hundredth over what is alive at once.
TEST(no_set_takes_more_than_its_tensors_need) {
    Gpt2Options options = {.dtype = DTYPE_BF16, .master = true, .train = true, .B = 4, .T = 1024};
    assert_true(model_config_parse(&options.config, "d12", &err));
    model_config_set_vocab(&options.config, GPT2_VOCAB);
    for (int set = 0; set < 64; set++) {
        options.recompute = recompute_all(set);
        MemoryPlan *plan = gpt2_plan(&options);
        assert_true((double)memory_plan_total(plan) <= 1.01 * (double)memory_plan_live_peak(plan));
        memory_plan_destroy(plan);
    }
}

// -------------------------------------------------------------------------------------- gradients in the compute dtype

// 2 bytes a parameter less; in fp32 remain, while the backward pass runs, the gradients of one block and of wte.
TEST(gradients_in_the_compute_dtype_take_half_and_one_block) {
    Gpt2Options options = {.dtype = DTYPE_BF16, .master = true, .train = true, .B = 1, .T = 64};
    assert_true(model_config_parse(&options.config, "d12", &err));
    model_config_set_vocab(&options.config, GPT2_VOCAB);
    const ModelConfig *c = &options.config;
    const int64_t parameters = parameter_total(c), C = c->C, block = 12 * C * C + 13 * C, wte = c->Vp * C;
    int64_t total[2], gradients[2];
    for (int in_dtype = 0; in_dtype <= 1; in_dtype++) {
        options.gradients_in_dtype = in_dtype;
        MemoryPlan *plan = gpt2_plan(&options);
        total[in_dtype] = memory_plan_total(plan);
        gradients[in_dtype] = memory_plan_class_bytes(plan, MEM_GRADIENTS);
        memory_plan_destroy(plan);
    }
    const int64_t aligned = parameter_count(c) * PLAN_ALIGNMENT * 4;
    assert_true(gradients[0] >= 4 * parameters && gradients[0] <= 4 * parameters + aligned);
    assert_int_equal(gradients[1], gradients[0] / 2);
    const int64_t less = total[0] - total[1], scratch = 4 * (block + wte);
    assert_true(less >= gradients[1] - scratch - aligned);
}

// ---------------------------------------------------------------------------------------------------------- generation

static int64_t planned(Gpt2Options options, int64_t sequences) {
    assert_true(model_config_parse(&options.config, "d12", &err));
    model_config_set_vocab(&options.config, GPT2_VOCAB);
    options.dtype = DTYPE_FP32;
    options.sequences = sequences;
    MemoryPlan *plan = gpt2_plan(&options);
    const int64_t total = memory_plan_total(plan);
    memory_plan_destroy(plan);
    return total;
}

TEST(samples_beside_training_cost_no_memory) {
    for (int level = 0; level <= 3; level++) {
        const Gpt2Options options = {
            .master = true, .train = true, .B = 4, .T = 1024, .recompute = recompute_all(recompute_level_set(level))};
        assert_int_equal(planned(options, 1), planned(options, 0));
        assert_int_equal(planned(options, 4), planned(options, 0));
    }
}

// Without training there is little to share: keys and values of every position, 2 L C elements, and the logits. The
// blocks' own activations are those of one prompt, not of every sequence.
TEST(a_model_that_only_generates_takes_weights_and_cache) {
    const Gpt2Options options = {.B = 1, .T = 1024};
    const int64_t element = 4, Vp = 50304, cache = 2 * 12 * 768 * 1024 * element, logits = Vp * element;
    const int64_t tokens = 1024 * 4,
                  aligned = 2 * PLAN_ALIGNMENT; // cache and logits are multiples of it; tokens are not
    const int64_t more = planned(options, 9) - planned(options, 8);
    assert_true(more >= cache && more <= cache + logits + tokens + aligned);
}
