// Shared memory: for every block a fresh piece per declaration, filled with 0xFF (NaN in every floating type), between
// red zones that AddressSanitizer watches, counted against what a block of the device may have.
#include "dev/sim/block.h"
#include "dev/sim/runtime.h"

namespace sim {
enum { RED_ZONE = 64, STATIC_LIMIT = 48 << 10, DYNAMIC_ALIGNMENT = 1024 };

void shared_memory_reset(Block *b) {
    asan_poison(b->memory, b->shared_top);
    b->shared_top = b->shared_bytes = 0;
    b->dynamic_shared = nullptr;
    b->epoch++;
}

static void *take(Block *b, size_t bytes, size_t alignment, const char *name) {
    if (alignment < 16) alignment = 16;
    const size_t at = (b->shared_top + RED_ZONE + alignment - 1) / alignment * alignment;
    b->shared_bytes += bytes;
    const size_t limit = (size_t)device_model().shared_per_block;
    if (b->shared_bytes > limit)
        fatal("%s: %zu bytes of shared memory in one block, the device has %zu", name, b->shared_bytes, limit);
    if (at + bytes > SHARED_ARENA) fatal("%s: too many shared variables", name);
    b->shared_top = at + bytes;
    char *p = b->memory + at;
    asan_unpoison(p, bytes);
    tsan_forget(p, bytes);
    quiet_fill(p, 0xff, bytes);
    msan_uninitialised(p, bytes);
    return p;
}

void *SharedSlot::get(size_t bytes, size_t alignment, const char *name) {
    Block *b = running_block;
    if (!b) fatal("shared variable %s used outside a kernel", name);
    if (epoch == b->epoch) return address;
    if (bytes > STATIC_LIMIT) fatal("%s: %zu bytes; static shared memory ends at %d", name, bytes, (int)STATIC_LIMIT);
    address = take(b, bytes, alignment, name);
    epoch = b->epoch;
    return address;
}

void *dynamic_shared() {
    Block *b = running_block;
    if (!b) fatal("dynamic shared memory used outside a kernel");
    if (!b->dynamic_shared) b->dynamic_shared = take(b, b->config->shared_bytes, DYNAMIC_ALIGNMENT, "dynamic");
    return b->dynamic_shared;
}
} // namespace sim
