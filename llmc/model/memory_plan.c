// Layout of the arena. Greedy by size with lifetimes, as in static tensor planners (Pisarchyk, Lee,
// "Efficient Memory Management for Deep Neural Net Inference", 2020): within a few percent of the
// lower bound for a transformer.
#include "llmc/model/memory_plan.h"

#include "llmc/base/arithmetic.h"
#include <stdlib.h>
#include <string.h>

typedef struct {
    MemoryClass class;
    const char *name;
    int64_t bytes, offset;
    int first_use, last_use;
} Entry;

struct MemoryPlan {
    Entry *entries;
    int count, capacity;
    int64_t total;
    int64_t class_bytes[MEM_CLASS_COUNT];
};

static const char *const class_names[MEM_CLASS_COUNT] = {"weights",   "master",      "gradients",
                                                         "optimizer", "activations", "workspace"};
const char *memory_class_name(MemoryClass c) { return class_names[c]; }

MemoryPlan *memory_plan_create(void) {
    MemoryPlan *plan = calloc(1, sizeof *plan);
    REQUIRE_MEMORY(plan, "a memory plan");
    return plan;
}

void memory_plan_destroy(MemoryPlan *plan) {
    if (plan) free(plan->entries);
    free(plan);
}

int memory_plan_add(MemoryPlan *plan, MemoryClass c, const char *name, int64_t bytes, int first_use,
                    int last_use) {
    REQUIRE(bytes >= 0 && (first_use == PLAN_ALWAYS || first_use <= last_use), "memory plan: %s",
            name);
    if (plan->count == plan->capacity) {
        plan->capacity = (int)max_i64(2 * plan->capacity, 256);
        plan->entries = (Entry *)realloc(plan->entries, (size_t)plan->capacity * sizeof(Entry));
        REQUIRE_MEMORY(plan->entries, "a memory plan");
    }
    plan->entries[plan->count] =
        (Entry){c, name, round_up(bytes, PLAN_ALIGNMENT), -1, first_use, last_use};
    return plan->count++;
}

// The fields of a placed tensor that the search below reads.
typedef struct {
    int64_t offset, end;
    int first_use, last_use;
} Placed;

// Largest first; among equals the order of declaration, so that the layout is the same on every
// machine.
static int by_size(const void *a, const void *b) {
    const Entry *x = *(Entry *const *)a, *y = *(Entry *const *)b;
    if (x->bytes == y->bytes) return (x > y) - (x < y);
    return (x->bytes < y->bytes) - (x->bytes > y->bytes);
}

// The lowest gap of e's size at or above base, between tensors placed before that live at the same
// time as e.
static int64_t lowest_gap(const Entry *e, const Placed *placed, int n, int64_t base) {
    int64_t offset = base;
    for (const Placed *p = placed; p < placed + n; p++) {
        if (p->first_use > e->last_use || p->last_use < e->first_use) continue;
        if (p->offset - offset >= e->bytes) break;
        offset = max_i64(offset, p->end);
    }
    return offset;
}

// Inserts e into n tensors sorted by offset, after those with the same offset.
static void insert_placed(Placed *placed, int n, const Entry *e) {
    int low = 0, high = n;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (placed[middle].offset <= e->offset)
            low = middle + 1;
        else
            high = middle;
    }
    memmove(placed + low + 1, placed + low, (size_t)(n - low) * sizeof *placed);
    placed[low] = (Placed){e->offset, e->offset + e->bytes, e->first_use, e->last_use};
}

void memory_plan_solve(MemoryPlan *plan) {
    plan->total = 0;
    for (int c = 0; c < MEM_CLASS_COUNT; c++) plan->class_bytes[c] = 0;
    // tensors with limited lifetimes
    Entry **passing = malloc(((size_t)plan->count + 1) * sizeof *passing);
    REQUIRE_MEMORY(passing, "a memory plan");

    int n = 0;
    for (int i = 0; i < plan->count; i++) {
        Entry *e = &plan->entries[i];
        if (e->first_use != PLAN_ALWAYS) {
            passing[n++] = e;
            continue;
        }
        e->offset = plan->total;
        plan->total += e->bytes;
        plan->class_bytes[e->class] += e->bytes;
    }

    const int64_t base = plan->total;
    Placed *placed = malloc(((size_t)n + 1) * sizeof *placed); // sorted by offset
    REQUIRE_MEMORY(placed, "a memory plan");
    qsort(passing, (size_t)n, sizeof *passing, by_size);
    for (int i = 0; i < n; i++) {
        Entry *e = passing[i];
        e->offset = lowest_gap(e, placed, i, base);
        insert_placed(placed, i, e);
        plan->total = max_i64(plan->total, e->offset + e->bytes);
    }
    plan->class_bytes[MEM_ACTIVATIONS] += plan->total - base;

    free(placed);
    free(passing);
}

int64_t memory_plan_offset(const MemoryPlan *plan, int handle) {
    return plan->entries[handle].offset;
}
int64_t memory_plan_total(const MemoryPlan *plan) { return plan->total; }
int64_t memory_plan_class_bytes(const MemoryPlan *plan, MemoryClass c) {
    return plan->class_bytes[c];
}

int memory_plan_count(const MemoryPlan *plan) { return plan->count; }

PlannedTensor memory_plan_tensor(const MemoryPlan *plan, int handle) {
    const Entry *e = &plan->entries[handle];
    return (PlannedTensor){e->class, e->name, e->bytes, e->first_use, e->last_use};
}

// Adds tensors at their first tick and subtracts them after their last.
int64_t memory_plan_live_peak(const MemoryPlan *plan, int *tick) {
    int ticks = 1;
    for (int i = 0; i < plan->count; i++)
        if (plan->entries[i].last_use + 2 > ticks) ticks = plan->entries[i].last_use + 2;
    int64_t *change = calloc((size_t)ticks, sizeof *change);
    REQUIRE_MEMORY(change, "a memory plan");

    for (int i = 0; i < plan->count; i++) {
        const Entry *e = &plan->entries[i];
        if (e->first_use == PLAN_ALWAYS) {
            change[0] += e->bytes;
            continue;
        }
        change[e->first_use] += e->bytes;
        change[e->last_use + 1] -= e->bytes;
    }

    int64_t live = 0, peak = 0;
    if (tick) *tick = 0;
    for (int t = 0; t < ticks; t++) {
        live += change[t];
        if (live > peak) {
            peak = live;
            if (tick) *tick = t;
        }
    }
    free(change);
    return peak;
}
