// Grids: runs the blocks of a launch on OS threads in the order that the schedule asks for, and
// ends the program with the place when something is wrong or takes too long.
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
#include <sys/time.h>
#include <unistd.h>

namespace sim {
// ------------------------------------------------------------------------------------ fatal errors

void print_place() {
    if (!running_block || !running_block->launch) return;
    fprintf(stderr, "sim: in kernel %s (PTX of sm_%d), block (%u,%u,%u) thread (%u,%u,%u)\n",
            readable_name(running_block->launch->kernel), running_block->launch->kernel->arch,
            blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
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
static int time_limit; // seconds of its processors that a grid may take, 0: no limit
static void on_timer(int) {
    fatal("a kernel ran for longer than SIM_TIMEOUT = %d seconds", time_limit);
}

// Counts what this process computes: on a busy machine a kernel may take as long as it needs.
static void set_timer(int seconds) {
    const struct itimerval timer = {{0, 0}, {seconds, 0}};
    if (time_limit > 0) setitimer(ITIMER_PROF, &timer, nullptr);
}

// Sanitizers print the kernel, block and thread beside their reports.
#ifdef SIM_TSAN
extern "C" void __tsan_on_report(void *) { print_place(); }
#endif
#ifdef SIM_ASAN
extern "C" void __ubsan_on_report() { print_place(); }
#endif

#ifdef SIM_MSAN // marking freed memory, tens of MB a test case, costs more than the test;
                // AddressSanitizer sees such use
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
    signal(SIGPROF, on_timer);

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

// ----------------------------------------------------------------------------------------- profile

// SIM_PROFILE=1: at exit a line per kernel.
struct KernelTime {
    uint64_t launches = 0;
    double seconds = 0;
};
static Counts total;
static uint64_t launches;
static std::map<std::string, KernelTime> *kernel_times;

static void print_profile() {
    fprintf(stderr,
            "sim: %lu launches, %lu blocks, %lu threads, %lu switches, %lu warp operations, %lu "
            "barriers\n",
            launches, total.blocks, total.threads, total.switches, total.warp_ops, total.barriers);
    for (const auto &[name, time] : *kernel_times)
        fprintf(stderr, "sim: %-48.48s %7lu launches %9.3f ms, %8.1f us each\n", name.c_str(),
                time.launches, time.seconds * 1e3, time.seconds / (double)time.launches * 1e6);
}
static bool profiling() {
    static const bool on = setting("SIM_PROFILE") != nullptr;
    if (on && !kernel_times) {
        kernel_times = new std::map<std::string, KernelTime>;
        atexit(print_profile);
    }
    return on;
}

// ------------------------------------------------------------------------------------------- grids

struct Grid {
    const Launch *launch;
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
    block_begin_grid(b, grid->launch);

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

static void run_grid(const Launch &l) {
    static const uint64_t failing = (uint64_t)setting_number("SIM_STICKY", 0);
    if (++launches == failing) launch_fails();
    if (sticky_error()) return;
    clock_advance(KERNEL_MS);

    Grid grid = {&l, (uint64_t)l.grid.x * l.grid.y * l.grid.z, 7919, 1, {0}};
    while (std::gcd(grid.stride, grid.blocks) != 1) grid.stride++;
    const auto begin = std::chrono::steady_clock::now();
    const uint64_t threads = grid.blocks * l.block.x * l.block.y * l.block.z;
    int workers = schedule.asked_for || threads < 4096 ? 1 : worker_count();
    if ((uint64_t)workers > grid.blocks) workers = (int)grid.blocks;
    grid.per_turn = grid.blocks / (16 * (uint64_t)workers) + 1;

    set_timer(time_limit * workers);
    run_on_workers(workers, run_blocks, &grid);
    set_timer(0);

    if (!profiling()) return;
    KernelTime &time = (*kernel_times)[readable_name(l.kernel)];
    time.launches++;
    time.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// ---------------------------------------------------------------------------------------- launches

static void run_launch(void *p) { run_grid(*(Launch *)p); }
static void destroy_launch(void *p) {
    Launch *launch = (Launch *)p;
    delete[] launch->params;
    delete launch;
}

void submit(const Launch &launch) {
    Launch now = launch;
    if (stream_runs_at_once(launch.stream)) {
        stream_enqueue(launch.stream, {launch.kernel->name, run_launch, &now, [](void *) {}});
        return;
    }
    char *params = new char[launch.kernel->param_bytes + 1];
    memcpy(params, launch.params, launch.kernel->param_bytes);
    now.params = params;
    stream_enqueue(launch.stream,
                   {launch.kernel->name, run_launch, new Launch(now), destroy_launch});
}
} // namespace sim

extern "C" void sim_set_schedule(SimOrder order, uint64_t seed) {
    using namespace sim;
    schedule.order = order == SIM_REVERSE  ? ORDER_REVERSE
                     : order == SIM_RANDOM ? ORDER_RANDOM
                                           : ORDER_FORWARD;
    schedule.seed = (seed * 2 + 1) * 0x9E3779B97F4A7C15u;
    schedule.asked_for = order != SIM_ANY_ORDER;
}
