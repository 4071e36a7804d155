// Layout of the arena. Greedy by size with lifetimes, as in static tensor planners (Pisarchyk, Lee, "Efficient Memory
// Management for Deep Neural Net Inference", 2020): within a few percent of the lower bound for a transformer.
#include "llmc/model/memory_plan.h"

#include "llmc/base/checked.h"
#include <stdlib.h>

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
    MemoryPlan *plan = (MemoryPlan *)calloc(1, sizeof *plan);
    REQUIRE(plan, "no memory for a memory plan");
    return plan;
}

void memory_plan_destroy(MemoryPlan *plan) {
    if (plan) free(plan->entries);
    free(plan);
}

int memory_plan_add(MemoryPlan *plan, MemoryClass c, const char *name, int64_t bytes, int first_use, int last_use) {
    REQUIRE(bytes >= 0 && (first_use == PLAN_ALWAYS || first_use <= last_use), "memory plan: %s", name);
    if (plan->count == plan->capacity) {
        plan->capacity = plan->capacity ? 2 * plan->capacity : 256;
        plan->entries = (Entry *)realloc(plan->entries, (size_t)plan->capacity * sizeof(Entry));
        REQUIRE(plan->entries, "no memory for a memory plan");
    }
    plan->entries[plan->count] = (Entry){c, name, round_up(bytes, PLAN_ALIGNMENT), -1, first_use, last_use};
    return plan->count++;
}

static bool alive_together(const Entry *a, const Entry *b) {
    return a->first_use <= b->last_use && b->first_use <= a->last_use;
}

static int by_offset(const void *a, const void *b) {
    int64_t x = (*(Entry *const *)a)->offset, y = (*(Entry *const *)b)->offset;
    return (x > y) - (x < y);
}

// Largest first; among equals the order of declaration, so that the layout is the same on every machine.
static int by_size(const void *a, const void *b) {
    const Entry *x = *(Entry *const *)a, *y = *(Entry *const *)b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    return (x > y) - (x < y);
}

// The lowest gap at or above base between placed tensors that live at the same time as e.
static int64_t lowest_gap(const Entry *e, Entry **placed, int num_placed, int64_t base) {
    int64_t offset = base;
    for (int i = 0; i < num_placed; i++) { // placed is sorted by offset
        if (!alive_together(e, placed[i])) continue;
        if (placed[i]->offset - offset >= e->bytes) break;
        int64_t end = placed[i]->offset + placed[i]->bytes;
        if (end > offset) offset = end;
    }
    return offset;
}

void memory_plan_solve(MemoryPlan *plan) {
    plan->total = 0;
    for (int c = 0; c < MEM_CLASS_COUNT; c++) plan->class_bytes[c] = 0;
    Entry **sorted = (Entry **)malloc(((size_t)plan->count + 1) * sizeof *sorted);
    Entry **placed = (Entry **)malloc(((size_t)plan->count + 1) * sizeof *placed);
    REQUIRE(sorted && placed, "no memory for a memory plan");
    int num_sorted = 0;
    for (int i = 0; i < plan->count; i++) {
        Entry *e = &plan->entries[i];
        if (e->first_use != PLAN_ALWAYS) {
            sorted[num_sorted++] = e;
            continue;
        }
        e->offset = plan->total;
        plan->total += e->bytes;
        plan->class_bytes[e->class] += e->bytes;
    }
    qsort(sorted, (size_t)num_sorted, sizeof *sorted, by_size);
    const int64_t base = plan->total;
    for (int i = 0; i < num_sorted; i++) {
        Entry *e = sorted[i];
        e->offset = lowest_gap(e, placed, i, base);
        placed[i] = e;
        qsort(placed, (size_t)i + 1, sizeof *placed, by_offset);
        if (e->offset + e->bytes > plan->total) plan->total = e->offset + e->bytes;
    }
    plan->class_bytes[MEM_ACTIVATIONS] += plan->total - base; // what lives and dies within a micro-step
    free(sorted);
    free(placed);
}

int64_t memory_plan_offset(const MemoryPlan *plan, int handle) { return plan->entries[handle].offset; }
int64_t memory_plan_total(const MemoryPlan *plan) { return plan->total; }
int64_t memory_plan_class_bytes(const MemoryPlan *plan, MemoryClass c) { return plan->class_bytes[c]; }

int64_t memory_plan_live_peak(const MemoryPlan *plan) {
    int64_t permanent = 0, peak = 0;
    for (int i = 0; i < plan->count; i++)
        if (plan->entries[i].first_use == PLAN_ALWAYS) permanent += plan->entries[i].bytes;
    for (int i = 0; i < plan->count; i++) { // the sum can only rise where a tensor begins
        int tick = plan->entries[i].first_use;
        if (tick == PLAN_ALWAYS) continue;
        int64_t live = 0;
        for (int j = 0; j < plan->count; j++) {
            const Entry *e = &plan->entries[j];
            if (e->first_use != PLAN_ALWAYS && e->first_use <= tick && tick <= e->last_use) live += e->bytes;
        }
        if (live > peak) peak = live;
    }
    return permanent + peak;
}
