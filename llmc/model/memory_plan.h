// The memory plan: every tensor of the run is declared with its class, size and lifetime, and the
// plan gives each an offset in one arena, so that tensors whose lifetimes do not overlap may share
// bytes. The arena is allocated once, so out of memory after step 0 cannot happen. The plan owns no
// device memory, only offsets.
#pragma once
#include "llmc/base/error.h"
#include <stddef.h>
#include <stdint.h>

typedef enum {
    MEM_WEIGHTS,
    MEM_MASTER,
    MEM_GRADIENTS,
    MEM_OPTIMIZER,
    MEM_ACTIVATIONS,
    MEM_WORKSPACE,
    MEM_CLASS_COUNT
} MemoryClass;
const char *memory_class_name(MemoryClass c); // "weights", ...

enum { PLAN_ALIGNMENT = 256 };

typedef struct MemoryPlan MemoryPlan;
MemoryPlan *memory_plan_create(void);
void memory_plan_destroy(MemoryPlan *plan);

// Declares bytes that must exist from tick first_use to tick last_use, both included. Returns a
// handle >= 0. Ticks are the caller's own clock (one per op of a micro-step). PLAN_ALWAYS: for the
// whole run.
enum { PLAN_ALWAYS = -1 };
int memory_plan_add(MemoryPlan *plan, MemoryClass c, const char *name, int64_t bytes, int first_use,
                    int last_use);
static inline int memory_plan_add_always(MemoryPlan *plan, MemoryClass c, const char *name,
                                         int64_t bytes) {
    return memory_plan_add(plan, c, name, bytes, PLAN_ALWAYS, PLAN_ALWAYS);
}

// Lays everything out: permanent tensors first, in order; then the others, largest first, each at
// the lowest offset that no tensor alive at the same time occupies.
void memory_plan_solve(MemoryPlan *plan);

int64_t memory_plan_offset(const MemoryPlan *plan, int handle);
int64_t memory_plan_total(const MemoryPlan *plan); // arena bytes
// bytes of a class in the arena; the classes sum to memory_plan_total
int64_t memory_plan_class_bytes(const MemoryPlan *plan, MemoryClass c);
// The lower bound: the largest sum of bytes alive at any tick, permanent tensors included; *tick is
// the first one that reaches it (tick may be NULL). Known before the layout.
int64_t memory_plan_live_peak(const MemoryPlan *plan, int *tick);

// A declared tensor; handles are 0 .. memory_plan_count - 1.
typedef struct {
    MemoryClass memory_class;
    const char *name;
    int64_t bytes;           // rounded up to PLAN_ALIGNMENT
    int first_use, last_use; // PLAN_ALWAYS: permanent
} PlannedTensor;
int memory_plan_count(const MemoryPlan *plan);
PlannedTensor memory_plan_tensor(const MemoryPlan *plan, int handle);
