// Runs one block: decides which thread runs next, and holds the meetings of threads (barriers and
// warp operations).
//
// Threads run one after another on one stack and return from it. Only a thread that has to wait
// keeps its stack: then the next one gets another. A kernel without barriers is so a plain loop
// over its threads, and nobody had to know. A warp operation is a meeting: lanes leave their
// values, the last one computes all results. The lanes expected are those of the mask that have not
// exited; a barrier expects all threads that have not exited. ThreadSanitizer builds compile this
// file without instrumentation and with SIM_TSAN; it must not use std templates, of which the
// linker might take the instrumented copy.
#include "dev/sim/block.h"
#include "dev/sim/ptx.h"
#include "dev/sim/runtime.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

__thread uint3 threadIdx, blockIdx;
__thread dim3 blockDim, gridDim;

namespace sim {
__thread Block *running_block;
Schedule schedule;

static unsigned lane_bit(int thread) { return 1u << (thread % WARP_LANES); }

// ----------------------------------------------------------------------------------- who runs next

static unsigned random_number(Block *b) { // xorshift64
    b->random ^= b->random << 13;
    b->random ^= b->random >> 7;
    b->random ^= b->random << 17;
    return (unsigned)(b->random >> 11);
}

// One of the bits of `set`: the next after `after`, the next below it, or any. Begins anew at the
// end.
static inline int pick_bit(Block *b, unsigned set, int after) {
    switch (schedule.order) {
    case ORDER_FORWARD: {
        const unsigned above = after < 0 || after >= 31 ? 0 : set & ~((2u << after) - 1);
        return __builtin_ctz(above ? above : set);
    }
    case ORDER_REVERSE: {
        const unsigned below = after <= 0 || after > 31 ? 0 : set & ((1u << after) - 1);
        return 31 - __builtin_clz(below ? below : set);
    }
    default:
        for (unsigned skip = random_number(b) % (unsigned)__builtin_popcount(set); skip > 0; skip--)
            set &= set - 1;
        return __builtin_ctz(set);
    }
}

// The thread that runs next, -1 when none is ready. Stays in the warp as long as it can.
static inline int pick_thread(Block *b) {
    int warp = b->current / WARP_LANES, lane = b->current % WARP_LANES;
    if (schedule.order == ORDER_RANDOM || !b->warp[warp].ready) {
        if (!b->ready_warps) return -1;
        const int next = pick_bit(b, b->ready_warps, warp);
        if (next != warp) warp = next, lane = schedule.order == ORDER_REVERSE ? WARP_LANES : -1;
    }
    return warp * WARP_LANES + pick_bit(b, b->warp[warp].ready, lane);
}

static int tsan_fiber_of(const Block *b, int thread) {
    const int fiber = b->tsan_first + thread;
    return fiber < b->tsan_fibers ? fiber : fiber - b->tsan_fibers;
}
static inline void set_current(Block *b, int thread) {
    b->current = thread;
    threadIdx = b->thread_index[thread];
    if (b->tsan) tsan_switch(b->tsan->fiber[tsan_fiber_of(b, thread)]);
}
static inline void wake(Block *b, int warp, unsigned lanes) {
    b->warp[warp].ready |= lanes;
    b->ready_warps |= 1u << warp;
}
static inline void current_sleeps(Block *b) {
    const int warp = b->current / WARP_LANES;
    b->warp[warp].ready &= ~lane_bit(b->current);
    if (!b->warp[warp].ready) b->ready_warps &= ~(1u << warp);
}

[[noreturn]] static void deadlock(Block *b) {
    fprintf(stderr, "sim: %d of %d threads are alive and all of them wait\n", b->live, b->threads);
    for (int w = 0; w < b->warps; w++) {
        const Warp *warp = &b->warp[w];
        if (warp->at_barrier)
            fprintf(stderr, "sim:   warp %2d: lanes %08x wait in __syncthreads at %s:%d\n", w,
                    warp->at_barrier, b->barrier_file, b->barrier_line);
        for (unsigned p = warp->pending; p; p &= p - 1) {
            const Meeting *m = &warp->meeting[__builtin_ctz(p)];
            fprintf(stderr,
                    "sim:   warp %2d: lanes %08x of mask %08x (alive: %08x) wait in a warp "
                    "operation at %s:%d\n",
                    w, m->arrived, m->mask, warp->live, m->file, m->line);
        }
    }
    fatal("deadlock");
}

// ------------------------------------------------------------------------------------------ fibers

static void run_threads();

// The stacks lie behind one another, each above a page that must not be touched.
static Fiber *make_fiber(Block *b, int index) {
    char *guard = b->memory + SHARED_ARENA + (size_t)index * (STACK_BYTES + GUARD_BYTES);
    if (index >= MAX_STACKS || mprotect(guard, GUARD_BYTES, PROT_NONE))
        fatal("no memory for the stack of a thread");
    Fiber *fiber = new Fiber;
    fiber->stack = guard + GUARD_BYTES;
    fiber->stack_bytes = STACK_BYTES;
    fiber_prepare(fiber, run_threads, (size_t)(index % 61) * 192);
    return fiber;
}
static Fiber *take_fiber(Block *b, int thread) {
    if (!OWN_STACKS)
        return b->idle_fibers > 0 ? b->idle[--b->idle_fibers] : make_fiber(b, b->fibers++);
    Fiber **own = &b->tsan->own_stack[tsan_fiber_of(b, thread)];
    if (!*own) *own = make_fiber(b, b->fibers++);
    return *own;
}
static void give_back_fiber(Block *b, Fiber *fiber) {
    if (!OWN_STACKS) b->idle[b->idle_fibers++] = fiber;
}

// The thread that runs next, its first time on a fiber of its own if it has not started.
static inline Fiber *fiber_to_run(Block *b, int thread) {
    Warp *warp = &b->warp[thread / WARP_LANES];
    if (warp->fresh & lane_bit(thread)) {
        warp->fresh &= ~lane_bit(thread);
        b->fiber[thread] = take_fiber(b, thread);
    }
    return b->fiber[thread];
}

// The current thread cannot go on: others run until somebody has woken it.
static __attribute__((noinline)) void wait(Block *b) {
    current_sleeps(b);
    Fiber *self = b->fiber[b->current];
    const int next = pick_thread(b);
    if (next < 0) deadlock(b);
    Fiber *to = fiber_to_run(b, next);
    b->counts.switches++;
    set_current(b, next);
    fiber_switch(self, to);
}

// ---------------------------------------------------------------------------------------- meetings

static void hold_meeting(Block *b, int warp_index, int key) {
    Warp *warp = &b->warp[warp_index];
    Meeting *m = &warp->meeting[key];
    const unsigned lanes = m->arrived;
    m->arrived = 0;
    m->round++;
    warp->pending &= ~(1u << key);
    m->complete(warp->value, warp->argument, lanes, warp->result);
    wake(b, warp_index, lanes);
    b->counts.warp_ops++;
}

static void pass_barrier(Block *b) {
    for (int w = 0; w < b->warps; w++) {
        if (b->warp[w].at_barrier) wake(b, w, b->warp[w].at_barrier);
        b->warp[w].at_barrier = 0;
    }
    for (int op = 0; op < 4; op++) b->barrier_value[op] = b->barrier_sum[op];
    b->barrier_arrived = 0;
    b->barriers++;
    b->counts.barriers++;
}

// Who exits is no longer expected in warp operations. In barriers everybody is: the hardware
// forgives an early exit, CUDA's rules do not.
static void exit_thread(Block *b) {
    const int w = b->current / WARP_LANES;
    Warp *warp = &b->warp[w];
    if (b->barrier_arrived)
        fatal("divergent __syncthreads: some threads wait at %s:%d, this one has ended",
              b->barrier_file, b->barrier_line);

    warp->live &= ~lane_bit(b->current);
    current_sleeps(b);
    b->live--;

    for (unsigned p = warp->pending; p; p &= p - 1) {
        const int key = __builtin_ctz(p);
        if ((warp->meeting[key].mask & warp->live) == warp->meeting[key].arrived)
            hold_meeting(b, w, key);
    }
}

// Every fiber does this: it runs threads, one after another, on the same stack as long as a fresh
// one is next.
static void run_threads() {
    fiber_started(nullptr);
    for (;;) {
        Block *b = running_block;
        b->launch->kernel->run(b->launch->params);
        exit_thread(b);

        Fiber *self = b->fiber[b->current];
        const int next = pick_thread(b);
        if (next < 0 && b->live) deadlock(b);
        if (!OWN_STACKS && next >= 0 && b->warp[next / WARP_LANES].fresh & lane_bit(next)) {
            b->warp[next / WARP_LANES].fresh &= ~lane_bit(next);
            b->fiber[next] = self;
            set_current(b, next);
            continue;
        }

        Fiber *to = next < 0 ? &b->caller : fiber_to_run(b, next);
        give_back_fiber(b, self);
        if (next < 0) {
            if (b->tsan) tsan_switch(b->tsan->stream);
        } else {
            b->counts.switches++;
            set_current(b, next);
        }

        fiber_switch(self, to);
    }
}

// ------------------------------------------------------------------------------- what kernels call

void expect_whole_warp(unsigned lanes, const char *operation) {
    if (lanes != ~0u) fatal("%s takes all lanes of a warp, here are %08x", operation, lanes);
}
bool copies_at_once() { return schedule.order == ORDER_REVERSE; }
unsigned lane_id() { return running_block ? (unsigned)running_block->current % WARP_LANES : 0; }

uint64_t warp_op(unsigned mask, uint64_t value, unsigned argument, CompleteFn f, int line,
                 const char *file, bool orders_memory) {
    Block *b = running_block;
    if (!b) fatal("warp operation outside a kernel at %s:%d", file, line);
    const int w = b->current / WARP_LANES, lane = b->current % WARP_LANES,
              key = mask ? __builtin_ctz(mask) : 0;
    Warp *warp = &b->warp[w];
    Meeting *m = &warp->meeting[key];
    if (!(mask >> lane & 1))
        fatal("lane %d calls a warp operation with mask %08x, which leaves it out, at %s:%d", lane,
              mask, file, line);
    if (!m->arrived) {
        m->mask = mask, m->complete = f, m->line = line, m->file = file;
        warp->pending |= 1u << key;
    } else if (m->mask != mask || m->complete != f) {
        fatal("lanes of a warp meet in different warp operations: %s:%d (mask %08x) and %s:%d "
              "(mask %08x)",
              m->file, m->line, m->mask, file, line, mask);
    }
    m->arrived |= 1u << lane;
    warp->value[lane] = value;
    warp->argument[lane] = argument;
    char *sync = &b->sync->meeting[w][key][m->round & 1];
    if (orders_memory) tsan_release(sync);
    if (m->arrived == (mask & warp->live)) {
        if (orders_memory) tsan_acquire(sync);
        hold_meeting(b, w, key);
        if (orders_memory) tsan_release(sync);
    } else {
        wait(b);
    }
    if (orders_memory) tsan_acquire(sync);
    return warp->result[lane];
}

int block_op(int predicate, BlockOp op, int line, const char *file) {
    Block *b = running_block;
    if (!b) fatal("__syncthreads outside a kernel at %s:%d", file, line);
    if (b->live < b->threads)
        fatal("divergent __syncthreads: %d threads have ended, this one is at %s:%d",
              b->threads - b->live, file, line);

    if (!b->barrier_arrived) {
        b->barrier_line = line, b->barrier_file = file;
        b->barrier_sum[BLOCK_COUNT] = 0, b->barrier_sum[BLOCK_AND] = 1,
        b->barrier_sum[BLOCK_OR] = 0;
    } else if (b->barrier_line != line || b->barrier_file != file) {
        fatal("divergent __syncthreads: some threads wait at %s:%d, this one is at %s:%d",
              b->barrier_file, b->barrier_line, file, line);
    }

    b->barrier_sum[BLOCK_COUNT] += predicate != 0;
    b->barrier_sum[BLOCK_AND] &= predicate != 0;
    b->barrier_sum[BLOCK_OR] |= predicate != 0;

    char *sync = &b->sync->barrier[b->barriers & 1];
    tsan_release(sync);
    if (++b->barrier_arrived == b->threads) {
        pass_barrier(b);
    } else {
        b->warp[b->current / WARP_LANES].at_barrier |= lane_bit(b->current);
        wait(b);
    }
    tsan_acquire(sync);
    return b->barrier_value[op];
}

// ------------------------------------------------------------------------------------------ blocks

static __thread Block *own_block;

Block *block_of_this_thread() {
    if (own_block) return own_block;
    const size_t bytes = SHARED_ARENA + (size_t)MAX_STACKS * (STACK_BYTES + GUARD_BYTES);
    Block *b = (Block *)calloc(1, sizeof(Block));
    char *memory = (char *)mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!b || memory == MAP_FAILED) fatal("no memory for a block");
    b->memory = memory;
    b->sync = (SyncPoints *)(memory + SHARED_ARENA - sizeof(SyncPoints));
    tsan_heap(memory, bytes);
    return own_block = b;
}

// All threads see what the stream did before the launch, and the stream sees afterwards what they
// did.
static void tsan_begin_grid(Block *b) {
    void *stream = tsan_current_fiber();
    if (!stream) return;

    b->tsan = nullptr;
    for (TsanThreads &threads : b->tsan_threads)
        if (threads.stream == stream) b->tsan = &threads;
    if (!b->tsan) b->tsan = &b->tsan_threads[b->tsan_next++ % TSAN_STREAMS];
    b->tsan->stream = stream;
    tsan_release(&b->tsan->launch);

    const int wanted = 2 * b->threads < MIN_TSAN_FIBERS ? (int)MIN_TSAN_FIBERS : 2 * b->threads;
    b->tsan_fibers = wanted < MAX_THREADS ? wanted : (int)MAX_THREADS;
    b->tsan_first = 0;
    for (int i = 0; i < b->tsan_fibers; i++) {
        if (!b->tsan->fiber[i]) b->tsan->fiber[i] = tsan_new_fiber();
        tsan_switch(b->tsan->fiber[i]);
        tsan_acquire(&b->tsan->launch);
    }

    tsan_switch(stream);
}
static void tsan_end_grid(Block *b) {
    if (!b->tsan) return;
    for (int i = 0; i < b->tsan_fibers; i++) {
        tsan_switch(b->tsan->fiber[i]);
        tsan_release(&b->tsan->end);
    }
    tsan_switch(b->tsan->stream);
    tsan_acquire(&b->tsan->end);
}

// Shared memory: static variables, then the dynamic part. What it holds when a block begins is not
// known: 0xFF is NaN in every floating type.
static void fresh_shared_memory(Block *b) {
    const Kernel *k = b->launch->kernel;
    const size_t bytes = k->dynamic_at + b->launch->shared_bytes;
    ptx::shared_end = ptx::SHARED_BASE + (uint32_t)bytes;
    if (bytes == 0) return;
    tsan_forget(b->memory, bytes);
    quiet_fill(b->memory, 0xff, bytes);
    msan_uninitialised(b->memory, bytes);
}

void block_begin_grid(Block *b, const Launch *launch) {
    b->launch = launch;
    blockDim = launch->block;
    gridDim = launch->grid;
    ptx::shared_bytes = b->memory;
    if (b->known_memory != memory_changes) memset(ptx::found, 0, sizeof ptx::found);
    b->known_memory = memory_changes;

    b->threads = (int)(launch->block.x * launch->block.y * launch->block.z);
    b->warps = (b->threads + WARP_LANES - 1) / WARP_LANES;
    for (int t = 0; t < b->threads; t++) {
        const unsigned i = (unsigned)t;
        b->thread_index[t] = uint3{i % launch->block.x, i / launch->block.x % launch->block.y,
                                   i / launch->block.x / launch->block.y};
    }

    running_block = b;
    tsan_begin_grid(b);
}

void block_end_grid(Block *b) {
    tsan_end_grid(b);
    running_block = nullptr;
    b->launch = nullptr;
}

void block_run(Block *b, uint64_t index) {
    const dim3 grid = b->launch->grid;
    blockIdx = uint3{(unsigned)(index % grid.x), (unsigned)(index / grid.x % grid.y),
                     (unsigned)(index / grid.x / grid.y)};

    for (int w = 0; w < b->warps; w++) {
        const int lanes = b->threads - w * WARP_LANES;
        Warp *warp = &b->warp[w];
        warp->live = warp->ready = warp->fresh = lanes >= WARP_LANES ? ~0u : (1u << lanes) - 1;
        warp->at_barrier = warp->pending = 0;
    }
    b->ready_warps = b->warps == MAX_WARPS ? ~0u : (1u << b->warps) - 1;
    b->live = b->threads;
    b->barrier_arrived = 0;
    fresh_shared_memory(b);

    b->random = schedule.seed ^ (index + 1) * 0xD1B54A32D192ED03u;
    if (b->random == 0) b->random = 1;
    if (b->tsan_fibers) {
        b->tsan_first =
            (b->tsan_first + (b->threads < b->tsan_fibers ? b->threads : 7)) % b->tsan_fibers;
        tsan_forget(b->sync, sizeof *b->sync);
    }

    b->counts.blocks++;
    b->counts.threads += (uint64_t)b->threads;

    const int first = schedule.order == ORDER_FORWARD ? 0
                      : schedule.order == ORDER_REVERSE
                          ? b->threads - 1
                          : (int)(random_number(b) % (unsigned)b->threads);
    Fiber *fiber = fiber_to_run(b, first);
    set_current(b, first);

#ifdef SIM_ASAN
    if (!b->caller.stack) { // where AddressSanitizer finds itself again; a longjmp (cmocka's skip)
                            // asks for it
        pthread_attr_t attributes;
        pthread_getattr_np(pthread_self(), &attributes);
        pthread_attr_getstack(&attributes, (void **)&b->caller.stack, &b->caller.stack_bytes);
        pthread_attr_destroy(&attributes);
    }
#endif
    fiber_switch(&b->caller, fiber);
}
} // namespace sim
