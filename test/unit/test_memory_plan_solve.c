// How good the layout of the arena is, for models as they are trained: against the lower bound, and against the layout
// that the definition in memory_plan.h gives, found the slow way.
#include "llmc/base/rng.h"
#include "llmc/model/gpt2.h"
#include "test/test.h"
#include "test/unit/device_fixture.h"

TestFixture test_all = {start_device, stop_device};

static MemoryPlan *plan_of(const char *descriptor, int64_t B, int set) {
    Error err;
    Gpt2Options o = {.dtype = DTYPE_BF16, .master = true, .train = true, .B = B, .T = 1024, .sequences = 1};
    assert_true(model_config_parse(&o.config, descriptor, &err));
    model_config_set_vocab(&o.config, GPT2_VOCAB);
    o.recompute = recompute_all(set);
    for (int64_t l = 0; l < o.config.L / 3; l++) o.recompute.blocks[l] |= AGAIN_GELU | AGAIN_LAYERNORM;
    return gpt2_plan(&o);
}

static const char *const MODELS[] = {"d6", "d12", "d24", "d36", "d48"};
static const int SETS[] = {0,
                           AGAIN_GELU,
                           AGAIN_GELU | AGAIN_LAYERNORM,
                           AGAIN_GELU | AGAIN_LAYERNORM | AGAIN_FC | AGAIN_ATTENTION,
                           AGAIN_QKV | AGAIN_ATTPROJ,
                           AGAIN_BLOCK};
enum { NUM_MODELS = 5, NUM_SETS = 6 };

// 2% of the activations are 2 sequences of 100: what -b auto may lose to gaps.
TEST(the_gaps_are_less_than_2_percent_of_the_activations) {
    for (int m = 0; m < NUM_MODELS; m++)
        for (int s = 0; s < NUM_SETS; s++)
            for (int64_t B = 1; B <= 16; B *= 4) {
                MemoryPlan *plan = plan_of(MODELS[m], B, SETS[s]);
                const int64_t gaps = memory_plan_total(plan) - memory_plan_live_peak(plan);
                const double share = (double)gaps / (double)memory_plan_class_bytes(plan, MEM_ACTIVATIONS);
                if (gaps < 0 || share > 0.02)
                    fail_msg("%s -b %lld set %d: %.2f%% of the activations", MODELS[m], (long long)B, SETS[s],
                             100 * share);
                memory_plan_destroy(plan);
            }
}

// ---------------------------------------------------------------------------------------- the definition, the slow way

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
        if (together && offset < p->offset + p->bytes && p->offset < offset + e->bytes) return false;
    }
    return true;
}

// Each at the lowest offset, of base and the ends of those placed before, where nothing alive at the same time stands.
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
    }
    free(items);
}

TEST(the_layout_is_the_lowest_place_for_each_the_largest_first) {
    for (int s = 0; s < NUM_SETS; s++) {
        MemoryPlan *plan = plan_of(s % 2 ? "d6" : "d12", 3, SETS[s]);
        assert_each_stands_at_the_lowest_offset(plan);
        memory_plan_destroy(plan);
    }
    for (uint64_t round = 0; round < 100; round++) {
        MemoryPlan *plan = memory_plan_create();
        for (uint64_t i = 0; i < 60; i++) {
            const Philox r = philox(round, 99, i);
            const int first = r.v[0] % 8 == 0 ? PLAN_ALWAYS : (int)(r.v[1] % 30);
            memory_plan_add(plan, MEM_ACTIVATIONS, "x", 1 + r.v[3] % 5000, first,
                            first == PLAN_ALWAYS ? PLAN_ALWAYS : first + (int)(r.v[2] % 12));
        }
        memory_plan_solve(plan);
        assert_each_stands_at_the_lowest_offset(plan);
        memory_plan_destroy(plan);
    }
}

// --------------------------------------------------------------------------------------------------- what was declared

TEST(the_live_peak_is_the_largest_sum_of_any_tick) {
    MemoryPlan *plan = plan_of("d6", 2, AGAIN_BLOCK);
    int64_t peak = 0;
    int at = 0;
    for (int tick = 0; tick < 400; tick++) {
        int64_t live = 0;
        for (int i = 0; i < memory_plan_count(plan); i++) {
            const PlannedTensor t = memory_plan_tensor(plan, i);
            if (t.first_use == PLAN_ALWAYS || (t.first_use <= tick && tick <= t.last_use)) live += t.bytes;
        }
        if (live > peak) peak = live, at = tick;
    }
    assert_true(memory_plan_live_peak(plan) == peak);
    assert_int_equal(memory_plan_peak_tick(plan), at);
    memory_plan_destroy(plan);
}
