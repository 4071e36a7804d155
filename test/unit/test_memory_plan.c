// The arena's layout, against the one that the definition in memory_plan.h gives, found the slow
// way, and against the lower bound for models as they are trained; what recomputation and gradients
// in the compute dtype save, and what generation takes.
#include "llmc/base/random.h"
#include "llmc/model/model.h"
#include "test/test.h"
#include "test/unit/device_fixture.h"
#include <math.h>
#include <string.h>

static Error err;

static void destroy_plan(MemoryPlan **plan) { memory_plan_destroy(*plan); }
#define PLAN AUTO(destroy_plan) MemoryPlan *

TestFixture test_all = {start_device, stop_device};

static ModelOptions options_of(const char *descriptor, int64_t B, int64_t T) {
    ModelOptions o = {.dtype = DTYPE_BF16, .master = true, .train = true, .B = B, .T = T};
    assert_true(model_config_parse(&o.config, descriptor, &err));
    model_config_set_vocab(&o.config, GPT2_VOCAB);
    return o;
}

static MemoryPlan *plan_of(const char *descriptor, int64_t B, int set) {
    ModelOptions o = options_of(descriptor, B, 1024);
    o.sequences = 1, o.recompute = recompute_all(set);
    for (int64_t l = 0; l < o.config.L / 3; l++)
        o.recompute.blocks[l] |= RECOMPUTE_GELU | RECOMPUTE_LAYERNORM;
    return model_plan(&o);
}

static const char *const MODELS[] = {"d6", "d12", "d24", "d36", "d48"};
static const int SETS[] = {0,
                           RECOMPUTE_GELU,
                           RECOMPUTE_GELU | RECOMPUTE_LAYERNORM,
                           RECOMPUTE_GELU | RECOMPUTE_LAYERNORM | RECOMPUTE_FC |
                               RECOMPUTE_ATTENTION,
                           RECOMPUTE_QKV | RECOMPUTE_ATTPROJ,
                           RECOMPUTE_BLOCK};
enum { NUM_MODELS = 5, NUM_SETS = 6 };

// 2% of the activations are 2 sequences of 100: what -b auto may lose to gaps.
TEST(the_gaps_are_less_than_2_percent_of_the_activations) {
    for (int m = 0; m < NUM_MODELS; m++)
        for (int s = 0; s < NUM_SETS; s++)
            for (int64_t B = 1; B <= 16; B *= 4) {
                PLAN plan = plan_of(MODELS[m], B, SETS[s]);
                const int64_t gaps = memory_plan_total(plan) - memory_plan_live_peak(plan, NULL);
                const double share =
                    (double)gaps / (double)memory_plan_class_bytes(plan, MEM_ACTIVATIONS);
                if (gaps < 0 || share > 0.02)
                    fail_msg("%s -b %lld set %d: %.2f%% of the activations", MODELS[m],
                             (long long)B, SETS[s], 100 * share);
            }
}

// -------------------------------------------------------------------- the definition, the slow way

typedef struct {
    int64_t bytes, offset;
    int first, last, handle;
} Slow;

static int larger_first(const void *a, const void *b) {
    const Slow *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    return (x->handle > y->handle) - (x->handle < y->handle);
}

// Whether e at this offset meets none of the n that are placed.
static bool is_free(const Slow *placed, int n, const Slow *e, int64_t offset) {
    for (int i = 0; i < n; i++) {
        const Slow *p = &placed[i];
        const bool together = p->first <= e->last && e->first <= p->last;
        if (together && offset < p->offset + p->bytes && p->offset < offset + e->bytes)
            return false;
    }
    return true;
}

// Each at the lowest offset, of base and the ends of those placed before, where nothing alive at
// the same time stands.
static void assert_each_stands_at_the_lowest_offset(const MemoryPlan *plan) {
    const int count = memory_plan_count(plan);
    Slow *items = malloc((size_t)count * sizeof *items);
    int n = 0;
    int64_t base = 0;
    assert_non_null(items);

    for (int i = 0; i < count; i++) {
        const PlannedTensor t = memory_plan_tensor(plan, i);
        if (t.first_use == PLAN_ALWAYS)
            base += t.bytes;
        else
            items[n++] = (Slow){t.bytes, 0, t.first_use, t.last_use, i};
    }

    qsort(items, (size_t)n, sizeof *items, larger_first);
    for (int i = 0; i < n; i++) {
        Slow *e = &items[i];
        e->offset = is_free(items, i, e, base) ? base : INT64_MAX;
        for (int j = 0; j < i; j++) {
            const int64_t end = items[j].offset + items[j].bytes;
            if (end < e->offset && is_free(items, i, e, end)) e->offset = end;
        }

        assert_true(memory_plan_offset(plan, e->handle) == e->offset);
        assert_int_equal(e->offset % PLAN_ALIGNMENT, 0);
        assert_true(e->offset + e->bytes <= memory_plan_total(plan));
    }

    free(items);
}

TEST(the_layout_is_the_lowest_place_for_each_the_largest_first) {
    for (int s = 0; s < NUM_SETS; s++) {
        PLAN plan = plan_of(s % 2 ? "d6" : "d12", 3, SETS[s]);
        assert_each_stands_at_the_lowest_offset(plan);
    }

    for (uint64_t round = 0; round < 200; round++) {
        PLAN plan = memory_plan_create();
        for (uint64_t i = 0; i < 60; i++) {
            const Philox r = philox(round, 99, i);
            const int first = r.v[0] % 8 == 0 ? PLAN_ALWAYS : (int)(r.v[1] % 30);
            memory_plan_add(plan, MEM_ACTIVATIONS, "x", r.v[3] % 5000, first,
                            first == PLAN_ALWAYS ? PLAN_ALWAYS : first + (int)(r.v[2] % 12));
        }

        memory_plan_solve(plan);
        assert_each_stands_at_the_lowest_offset(plan);
    }
}

// ------------------------------------------------------------------------------- what was declared

TEST(the_live_peak_is_the_largest_sum_of_any_tick) {
    PLAN plan = plan_of("d6", 2, RECOMPUTE_BLOCK);
    int64_t peak = 0;
    int at = 0;

    for (int tick = 0; tick < 400; tick++) {
        int64_t live = 0;
        for (int i = 0; i < memory_plan_count(plan); i++) {
            const PlannedTensor t = memory_plan_tensor(plan, i);
            if (t.first_use == PLAN_ALWAYS || (t.first_use <= tick && tick <= t.last_use))
                live += t.bytes;
        }
        if (live > peak) peak = live, at = tick;
    }

    int tick;
    assert_true(memory_plan_live_peak(plan, &tick) == peak);
    assert_int_equal(tick, at);
}

TEST(classes_sum_to_the_total_and_an_empty_plan_takes_nothing) {
    PLAN empty = memory_plan_create();
    PLAN plan = memory_plan_create();

    memory_plan_solve(empty);
    assert_int_equal(memory_plan_total(empty), 0);

    memory_plan_add(plan, MEM_WEIGHTS, "w", 1000, PLAN_ALWAYS, PLAN_ALWAYS);
    memory_plan_add(plan, MEM_OPTIMIZER, "m", 3000, PLAN_ALWAYS, PLAN_ALWAYS);
    memory_plan_add(plan, MEM_ACTIVATIONS, "a", 5000, 0, 4);
    memory_plan_add(plan, MEM_ACTIVATIONS, "b", 600, 3, 9);
    memory_plan_solve(plan);

    int64_t sum = 0;
    for (int c = 0; c < MEM_CLASS_COUNT; c++) sum += memory_plan_class_bytes(plan, (MemoryClass)c);
    assert_int_equal(sum, memory_plan_total(plan));
    assert_int_equal(memory_plan_class_bytes(plan, MEM_WEIGHTS), 1024);
}

// The tensor of this name of the forward pass of a block.
static PlannedTensor tensor_of(const MemoryPlan *plan, const char *name, int block) {
    for (int i = 0; i < memory_plan_count(plan); i++)
        if (strcmp(memory_plan_tensor(plan, i).name, name) == 0 && block-- == 0)
            return memory_plan_tensor(plan, i);
    fail_msg("no %s", name);
    return (PlannedTensor){0};
}

// A matmul adds to the residual stream: its output begins while its operands are still alive.
TEST(a_sum_of_the_residual_stream_shares_no_memory_with_its_terms) {
    static const struct {
        const char *sum, *terms[2];
        int later; // blocks
    } cases[] = {{"residual2", {"residual1", "att"}, 0},
                 {"residual1", {"residual2", "gelu"}, 1},
                 {"final_residual", {"residual2", "gelu"}, -1}};

    ModelOptions options = options_of("d6", 1, 64);
    options.master = options.train = false;
    PLAN plan = model_plan(&options);

    for (int c = 0; c < 3; c++)
        for (int t = 0; t < 2; t++) {
            const int block = cases[c].later < 0 ? (int)options.config.L - 1 : 0;
            const PlannedTensor sum = tensor_of(plan, cases[c].sum, cases[c].later > 0 ? 1 : 0);
            const PlannedTensor term = tensor_of(plan, cases[c].terms[t], block);
            assert_true(term.first_use < sum.first_use && sum.first_use <= term.last_use);
        }
}

// ----------------------------------------------------------------------------------- recomputation

// A set keeps so much of a block from the forward to the backward pass, in bytes a token: the table
// of doc/memory.md.
static int64_t kept_bytes(int set, int64_t C, int64_t NH, int64_t element) {
    const bool gelu = set & (RECOMPUTE_GELU | RECOMPUTE_FC);
    int64_t elements = C, numbers = 0; // residual1
    if (!(set & RECOMPUTE_LAYERNORM)) elements += 2 * C, numbers += 4;
    if (!(set & RECOMPUTE_QKV)) elements += 3 * C;
    if (!(set & RECOMPUTE_ATTENTION)) elements += C, numbers += NH;
    if (!(set & RECOMPUTE_ATTPROJ)) elements += C;
    if (!(set & RECOMPUTE_FC)) elements += 4 * C;
    if (!gelu) elements += 4 * C;
    return elements * element + numbers * 4;
}

static int64_t peak_of(ModelOptions options, int64_t L) {
    options.config.L = L;
    PLAN plan = model_plan(&options);
    return memory_plan_live_peak(plan, NULL) - memory_plan_class_bytes(plan, MEM_WEIGHTS) -
           memory_plan_class_bytes(plan, MEM_GRADIENTS) -
           memory_plan_class_bytes(plan, MEM_OPTIMIZER) -
           memory_plan_class_bytes(plan, MEM_MASTER) - memory_plan_class_bytes(plan, MEM_WORKSPACE);
}

// Blocks more keep as much more; what one block needs while it runs is the same. Of 256 tokens
// every tensor is a multiple of the alignment.
TEST(a_block_keeps_what_its_set_leaves) {
    ModelOptions options = {.dtype = DTYPE_BF16, .master = true, .train = true, .B = 2, .T = 128};
    options.config = (ModelConfig){.C = 128, .NH = 4, .max_T = 128};
    model_config_set_vocab(&options.config, 500);

    for (int set = 0; set < 64; set++) {
        options.recompute = recompute_all(set);
        const int64_t more = peak_of(options, 24) - peak_of(options, 12);
        assert_int_equal(more, 12 * 256 * kept_bytes(set, 128, 4, 2));
    }
    // Every second block: as much as 6 of each.
    options.recompute = recompute_all(0);
    for (int l = 0; l < 24; l += 2) options.recompute.blocks[l] = RECOMPUTE_BLOCK;
    const int64_t more = peak_of(options, 24) - peak_of(options, 12);
    assert_int_equal(more,
                     6 * 256 * (kept_bytes(0, 128, 4, 2) + kept_bytes(RECOMPUTE_BLOCK, 128, 4, 2)));
}

// Laying out costs at most a hundredth over what is alive at once, at 124M.
TEST(no_set_takes_more_than_its_tensors_need) {
    ModelOptions options = options_of("d12", 4, 1024);
    for (int set = 0; set < 64; set++) {
        options.recompute = recompute_all(set);
        PLAN plan = model_plan(&options);
        assert_true((double)memory_plan_total(plan) <=
                    1.01 * (double)memory_plan_live_peak(plan, NULL));
    }
}

// ------------------------------------------------------------------ gradients in the compute dtype

// 2 bytes a parameter less; in fp32 remain, while the backward pass runs, the gradients of one
// block and of wte.
TEST(gradients_in_the_compute_dtype_take_half_and_one_block) {
    ModelOptions options = options_of("d12", 1, 64);
    const ModelConfig *c = &options.config;
    const int64_t parameters = parameter_total(c), C = c->C, block = 12 * C * C + 13 * C,
                  wte = c->Vp * C;
    int64_t total[2], gradients[2];

    for (int in_dtype = 0; in_dtype <= 1; in_dtype++) {
        options.gradients_in_dtype = in_dtype;
        PLAN plan = model_plan(&options);
        total[in_dtype] = memory_plan_total(plan);
        gradients[in_dtype] = memory_plan_class_bytes(plan, MEM_GRADIENTS);
    }

    const int64_t aligned = parameter_count(c) * PLAN_ALIGNMENT * 4;
    assert_true(gradients[0] >= 4 * parameters && gradients[0] <= 4 * parameters + aligned);
    assert_int_equal(gradients[1], gradients[0] / 2);

    const int64_t less = total[0] - total[1], scratch = 4 * (block + wte);
    assert_true(less >= gradients[1] - scratch - aligned);
}

// -------------------------------------------------------------------------------------- generation

static int64_t planned(ModelOptions options, int64_t sequences) {
    options.dtype = DTYPE_FP32, options.sequences = sequences;
    PLAN plan = model_plan(&options);
    return memory_plan_total(plan);
}

TEST(samples_beside_training_cost_no_memory) {
    for (int level = 0; level <= 3; level++) {
        ModelOptions options = options_of("d12", 4, 1024);
        options.recompute = recompute_all(recompute_level_set(level));
        assert_int_equal(planned(options, 1), planned(options, 0));
        assert_int_equal(planned(options, 4), planned(options, 0));
    }
}

// Without training there is little to share: keys and values of every position, 2 L C elements, and
// the logits. The blocks' own activations are those of one prompt, not of every sequence.
TEST(a_model_that_only_generates_takes_weights_and_cache) {
    ModelOptions options = options_of("d12", 1, 1024);
    options.master = options.train = false;
    const int64_t element = 4, Vp = 50304, cache = 2 * 12 * 768 * 1024 * element,
                  logits = Vp * element;
    const int64_t tokens = 1024 * 4,
                  // cache and logits are multiples of it; tokens are not
        aligned = 2 * PLAN_ALIGNMENT;
    const int64_t more = planned(options, 9) - planned(options, 8);
    assert_true(more >= cache && more <= cache + logits + tokens + aligned);
}
