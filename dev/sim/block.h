// The block that an OS thread runs: its warps, its threads, where each of them stands. Internal to
// the simulator; block.cpp runs it, grid.cpp feeds it, kernels.cpp makes the launches.
#pragma once
#include "dev/sim/fiber.h"
#include "dev/sim/threads.h"

namespace sim {
enum { MAX_THREADS = 1024, WARP_LANES = 32, MAX_WARPS = MAX_THREADS / WARP_LANES };
enum { SHARED_ARENA = 256 << 10, GUARD_BYTES = 4096 };
// Sanitizers want larger frames.
#if defined(SIM_ASAN) || defined(SIM_MSAN) || defined(SIM_TSAN)
enum { STACK_BYTES = 256 << 10 };
#else
enum { STACK_BYTES = 64 << 10 };
#endif
// Under ThreadSanitizer every one of its fibers has a stack of its own: two CUDA threads on one
// stack would look like a race. There are at least this many fibers, and twice as many as threads
// where that is possible: blocks that follow each other share none.
#ifdef SIM_TSAN
constexpr bool OWN_STACKS = true;
#else
constexpr bool OWN_STACKS = false;
#endif
// Kernels of different streams share none either, as long as no more than TSAN_STREAMS have any.
enum {
    MIN_TSAN_FIBERS = 64,
    TSAN_STREAMS = 4,
    MAX_STACKS = OWN_STACKS ? TSAN_STREAMS * MAX_THREADS : MAX_THREADS
};

// A meeting of lanes in a warp operation. A warp holds 32 of them, keyed by the lowest lane of the
// mask, so that disjoint groups of lanes may meet at the same time.
struct Meeting {
    unsigned mask, arrived;
    unsigned round; // counts the meetings held here
    CompleteFn complete;
    int line;
    const char *file;
};

struct Warp {
    // Masks of lanes. fresh: not started yet. pending: lowest lanes of the meetings that wait for
    // somebody.
    unsigned live, ready, fresh, at_barrier, pending;
    Meeting meeting[WARP_LANES];
    uint64_t value[WARP_LANES], result[WARP_LANES];
    unsigned argument[WARP_LANES];
};

// A launch, with its arguments as the kernel reads them.
struct Launch {
    Kernel *kernel;
    dim3 grid, block;
    size_t shared_bytes; // dynamic
    cudaStream_t stream;
    const char *params;
};
void submit(const Launch &launch); // runs it in its stream; keeps a copy where that is later
const char *readable_name(Kernel *k);

// Addresses that stand for "what happened before" in ThreadSanitizer. Two of each kind, by parity:
// who wakes late must not see the next round. In memory that TSan forgets: blocks that follow each
// other are not ordered by them.
struct alignas(8) SyncPoints {
    char barrier[2], meeting[MAX_WARPS][WARP_LANES][2];
};

// ThreadSanitizer takes these for the threads of a stream's kernels. Three addresses stand for what
// happened before a launch, in a grid, and before the fences of its kernels.
struct TsanThreads {
    void *stream; // its fiber
    void *fiber[MAX_THREADS];
    Fiber *own_stack[MAX_THREADS];
    char launch, end, published;
};

struct Counts {
    uint64_t blocks, threads, switches, warp_ops, barriers;
};

struct Block {
    Warp warp[MAX_WARPS];
    unsigned ready_warps;              // those with a ready lane
    int threads, warps, live, current; // current: the thread that runs
    uint3 thread_index[MAX_THREADS];   // threadIdx of each thread
    int barrier_arrived, barrier_line; // __syncthreads
    const char *barrier_file;          //
    // by BlockOp: while threads arrive, and of the last barrier
    int barrier_sum[4], barrier_value[4];
    unsigned barriers; // barriers passed

    Fiber *fiber[MAX_THREADS]; // of each thread that has started
    Fiber caller;              // the OS thread's own stack
    Fiber *idle[MAX_THREADS + 1];
    int idle_fibers, fibers;

    const Launch *launch;  // null while no kernel runs
    uint64_t random;       // state of the generator of this block
    uint64_t known_memory; // memory_changes when this OS thread last looked

    char *memory; // of the block: SHARED_ARENA bytes of shared memory, then the stacks

    Counts counts;

    // The rest is for ThreadSanitizer: the order of things, and its view of the threads.
    SyncPoints *sync; // at the end of the shared memory
    // Thread t is fiber (tsan_first + t) % tsan_fibers of it. tsan_first is another one in every
    // block: if the threads 0 of all blocks were one fiber, races between them would not show.
    TsanThreads tsan_threads[TSAN_STREAMS], *tsan; // tsan: those of the stream that runs
    int tsan_fibers, tsan_first, tsan_next;
};

extern __thread Block *running_block; // null on the host side

// block.cpp. begin and end enclose the blocks of a grid that one OS thread runs.
Block *block_of_this_thread(); // made at its first use, never freed
void block_begin_grid(Block *b, const Launch *launch);
void block_run(Block *b, uint64_t index);
void block_end_grid(Block *b);

// The order in which blocks and threads run.
enum Order { ORDER_FORWARD, ORDER_REVERSE, ORDER_RANDOM };
struct Schedule {
    Order order;
    uint64_t seed;
    bool asked_for; // by a test or a user: then blocks run on one OS thread, in exactly this order
};
extern Schedule schedule;
} // namespace sim
