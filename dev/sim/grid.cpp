// Launches: checks the configuration, runs the blocks of a grid on OS threads in the order that the schedule asks for,
// and ends the program with the place when something is wrong or takes too long.
#include "dev/sim/block.h"
#include "dev/sim/runtime.h"
#include "dev/sim/sim_control.h"
#include "dev/sim/workers.h"

#include <atomic>
#include <chrono>
#include <map>
#include <numeric>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string>
#include <unistd.h>

namespace sim {
// ---------------------------------------------------------------------------------------------------- fatal errors

void print_place() {
    if (!running_block || !running_block->config) return;
    const LaunchConfig *c = running_block->config;
    fprintf(stderr, "sim: in kernel %s launched at %s:%d, block (%u,%u,%u) thread (%u,%u,%u)\n", c->kernel, c->file,
            c->line, blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
}

// Blocks on two threads may fail at once: the first one speaks.
void fatal(const char *format, ...) {
    static std::atomic_flag speaks = ATOMIC_FLAG_INIT;
    while (speaks.test_and_set()) pause();
    fflush(stdout);
    fprintf(stderr, "sim: ERROR: ");
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, "\n");
    abort(); // whose handler prints the place
}

static void on_abort(int) {
    print_place();
    signal(SIGABRT, SIG_DFL);
}
static int time_limit; // seconds a grid may take, 0: no limit
static void on_alarm(int) { fatal("a kernel ran for longer than SIM_TIMEOUT = %d seconds", time_limit); }

// Sanitizers print the kernel, block and thread beside their reports.
#ifdef SIM_TSAN
extern "C" void __tsan_on_report(void *) { print_place(); }
#endif
#ifdef SIM_ASAN
extern "C" void __ubsan_on_report() { print_place(); }
#endif

#ifdef SIM_MSAN // marking freed memory, tens of MB a test case, costs more than the test; AddressSanitizer sees such
                // use
extern "C" const char *__msan_default_options() { return "poison_in_free=0"; }
#endif

static void read_settings() {
#ifdef SIM_ASAN
    __sanitizer_set_death_callback(print_place);
#endif
#ifdef SIM_MSAN
    __msan_set_death_callback(print_place);
#endif
    signal(SIGABRT, on_abort); // also for assert() in a kernel
    time_limit = setting("SIM_TIMEOUT") ? atoi(setting("SIM_TIMEOUT")) : 100;
    if (time_limit > 0) signal(SIGALRM, on_alarm);
    const char *order = setting("SIM_SCHED");
    if (!order) return;
    if (strcmp(order, "fwd") == 0)
        sim_set_schedule(SIM_FORWARD, 0);
    else if (strcmp(order, "rev") == 0)
        sim_set_schedule(SIM_REVERSE, 0);
    else if (strncmp(order, "rand:", 5) == 0)
        sim_set_schedule(SIM_RANDOM, (uint64_t)atoll(order + 5));
    else
        fatal("SIM_SCHED=%s: there are fwd, rev, rand:N", order);
}
__attribute__((constructor)) static void start() { read_settings(); }

// ------------------------------------------------------------------------------------------------------------- profile

// SIM_PROFILE=1: at exit a line per kernel.
struct KernelTime {
    uint64_t launches = 0;
    double seconds = 0;
};
static Counts total;
static uint64_t launches;
static std::map<std::string, KernelTime> *kernel_times;

static void print_profile() {
    fprintf(stderr, "sim: %lu launches, %lu blocks, %lu threads, %lu switches, %lu warp operations, %lu barriers\n",
            launches, total.blocks, total.threads, total.switches, total.warp_ops, total.barriers);
    for (const auto &[name, time] : *kernel_times)
        fprintf(stderr, "sim: %-48.48s %7lu launches %9.3f ms, %8.1f us each\n", name.c_str(), time.launches,
                time.seconds * 1e3, time.seconds / (double)time.launches * 1e6);
}
static bool profiling() {
    static const bool on = setting("SIM_PROFILE") != nullptr;
    if (on && !kernel_times) {
        kernel_times = new std::map<std::string, KernelTime>;
        atexit(print_profile);
    }
    return on;
}

// --------------------------------------------------------------------------------------------------------------- grids

struct Grid {
    const LaunchConfig *config;
    const Closure *closure;
    uint64_t blocks, stride, per_turn; // stride: prime to blocks, visits all of them
    std::atomic<uint64_t> next;
};

static uint64_t block_index(const Grid &grid, uint64_t i) {
    switch (schedule.order) {
    case ORDER_FORWARD:
        return i;
    case ORDER_REVERSE:
        return grid.blocks - 1 - i;
    default:
        return (i * grid.stride + schedule.seed % grid.blocks) % grid.blocks;
    }
}

static void run_blocks(void *argument) {
    static std::atomic_flag adding = ATOMIC_FLAG_INIT;
    Grid *grid = (Grid *)argument;
    Block *b = block_of_this_thread();
    block_begin_grid(b, grid->config, grid->closure);
    for (;;) {
        const uint64_t first = grid->next.fetch_add(grid->per_turn);
        for (uint64_t i = first; i < first + grid->per_turn && i < grid->blocks; i++)
            block_run(b, block_index(*grid, i));
        if (first + grid->per_turn >= grid->blocks) break;
    }
    block_end_grid(b);
    while (adding.test_and_set()) {}
    total.blocks += b->counts.blocks;
    total.threads += b->counts.threads;
    total.switches += b->counts.switches;
    total.warp_ops += b->counts.warp_ops;
    total.barriers += b->counts.barriers;
    b->counts = {};
    adding.clear();
}

static void run_grid(const LaunchConfig &config, const Closure &closure) {
    Grid grid = {&config, &closure, (uint64_t)config.grid.x * config.grid.y * config.grid.z, 7919, 1, {0}};
    while (std::gcd(grid.stride, grid.blocks) != 1) grid.stride++;
    const auto begin = std::chrono::steady_clock::now();
    const uint64_t threads = grid.blocks * config.block.x * config.block.y * config.block.z;
    int workers = schedule.asked_for || threads < 4096 ? 1 : worker_count();
    if ((uint64_t)workers > grid.blocks) workers = (int)grid.blocks;
    grid.per_turn = grid.blocks / (16 * (uint64_t)workers) + 1;
    if (time_limit > 0) alarm((unsigned)time_limit);
    run_on_workers(workers, run_blocks, &grid);
    if (time_limit > 0) alarm(0);
    launches++;
    if (!profiling()) return;
    KernelTime &time = (*kernel_times)[config.kernel];
    time.launches++;
    time.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// ------------------------------------------------------------------------------------------------------------ launches

// A launch that waits in a stream or in a graph, with its own copy of the arguments.
struct Launch {
    LaunchConfig config;
    Closure closure;
};
static void run_launch(void *p) { run_grid(((Launch *)p)->config, ((Launch *)p)->closure); }
static void destroy_launch(void *p) {
    Launch *launch = (Launch *)p;
    launch->closure.destroy(launch->closure.closure);
    delete launch;
}

static bool configuration_fits(const LaunchConfig &c) {
    const uint64_t threads = (uint64_t)c.block.x * c.block.y * c.block.z;
    return threads > 0 && threads <= MAX_THREADS && c.block.z <= 64 && c.grid.x > 0 && c.grid.y > 0 && c.grid.z > 0 &&
           c.grid.x <= 2147483647u && c.grid.y <= 65535 && c.grid.z <= 65535 &&
           c.shared_bytes <= (size_t)device_model().shared_per_block;
}

void submit(const LaunchConfig &c, const Closure &closure) {
    if (running_block) fatal("kernel %s launched from inside a kernel", c.kernel);
    if (!configuration_fits(c)) {
        set_error(cudaErrorInvalidConfiguration, "%s <<<(%u,%u,%u), (%u,%u,%u), %zu bytes>>> at %s:%d", c.kernel,
                  c.grid.x, c.grid.y, c.grid.z, c.block.x, c.block.y, c.block.z, c.shared_bytes, c.file, c.line);
        return;
    }
    Launch now = {c, closure};
    if (stream_runs_at_once(c.stream)) {
        stream_enqueue(c.stream, {cudaGraphNodeTypeKernel, c.kernel, run_launch, &now, [](void *) {}});
        return;
    }
    Launch *later = new Launch(now);
    later->closure.closure = closure.clone(closure.closure);
    stream_enqueue(c.stream, {cudaGraphNodeTypeKernel, c.kernel, run_launch, later, destroy_launch});
}
} // namespace sim

extern "C" void sim_set_schedule(SimOrder order, uint64_t seed) {
    using namespace sim;
    schedule.order = order == SIM_REVERSE ? ORDER_REVERSE : order == SIM_RANDOM ? ORDER_RANDOM : ORDER_FORWARD;
    schedule.seed = (seed * 2 + 1) * 0x9E3779B97F4A7C15u;
    schedule.asked_for = order != SIM_ANY_ORDER;
}
