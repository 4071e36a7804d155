// device.h on a CPU: threads, facts, memory, and streams. Streams run their work immediately, so an
// event is a time and a graph is empty.
#include "llmc/device.h"
#include "llmc/base/error.h"
#include "llmc/base/format.h"
#include "llmc/base/limits.h"
#include "llmc/base/signals.h"
#include "llmc/cpu/collectives_mpi.h"
#include "llmc/cpu/cpu.h"
#include "llmc/cpu/host_memory.h"
#include "llmc/cpu/onednn.h"

#include <limits.h>
#include <malloc.h>
#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

// ---------------------------------------------------------------------------------- life and facts

// Denormals to zero, in and out, in every worker: AdamW's moments decay into them, and each one
// costs over a hundred cycles. libgomp keeps its workers, and those that it starts later inherit
// the setting from this thread. Returns the number of workers.
static int prepare_workers(void) {
    int workers = 1;
#if defined(__x86_64__)
    enum { FTZ = 0x8000, DAZ = 0x0040 };
#pragma omp parallel
    _mm_setcsr(_mm_getcsr() | FTZ | DAZ);
#elif defined(__aarch64__)
    enum { FZ = 1 << 24 };
#pragma omp parallel
    {
        uint64_t control;
        __asm__ volatile("mrs %0, fpcr" : "=r"(control));
        __asm__ volatile("msr fpcr, %0" : : "r"(control | FZ));
    }
#endif

#pragma omp parallel
    {
        if (omp_get_thread_num() > 0) signals_block(); // the main thread handles them
#pragma omp single
        workers = omp_get_num_threads();
    }
    return workers;
}

enum { MAX_THREADS = 1024 };

// Starts `wanted` threads; or if that is 0 OMP_NUM_THREADS (of several numbers the first), if that
// is a number above 0; or one for each processor of this process, and *quota says whether that is
// less than it sees. libgomp ends the program where a thread cannot be started, so that is tried
// first. cpu_backend.threads is what it gives: OMP_THREAD_LIMIT may leave fewer.
static bool start_threads(int wanted, double *quota, Error *err) {
    const char *variable = getenv("OMP_NUM_THREADS");
    const bool given = variable && strtol(variable, NULL, 10) > 0;
    const double limit = !given && wanted <= 0 ? ceil(limits_quota("")) : INFINITY;
    *quota = 0;

    if (wanted < 0 || wanted > MAX_THREADS)
        return error_set(err, "%d threads: expected 1 to %d, or 0 for all cores", wanted,
                         MAX_THREADS);

    int threads = wanted;
    if (wanted <= 0) threads = omp_get_max_threads(); // libgomp knows the variable and the affinity
    if (given && threads > MAX_THREADS)
        return error_set(err, "OMP_NUM_THREADS=%s: expected 1 to %d", variable, MAX_THREADS);

    if (limit < threads) {
        threads = (int)limit;
        *quota = limits_quota("");
    }
    if (!limits_check_threads(threads - 1, err)) return false;

    omp_set_dynamic(0);
    omp_set_max_active_levels(1); // OMP_MAX_ACTIVE_LEVELS=0 allows none
    omp_set_num_threads(threads);
    cpu_backend.threads = prepare_workers();
    omp_set_num_threads(
        cpu_backend
            .threads); // oneDNN divides its work among that many, and a part would be left out
    return true;
}

// libgomp lets an idle thread spin for 300000 rounds: milliseconds in which it keeps the core from
// threads that have work. Two trainers at once on 2 cores (6 layers, C=384, B=8, T=256, bf16) reach
// 1244 tok/s each with that and 2090 with 1000 rounds; one alone is as fast with either (medians of
// five: 81% and 83% of the matmul rate).
static const char spin_rounds[] = "1000";

void device_prepare_process(char **argv) {
    bool changed = false;
    // Stacks of threads are as large as limits_start makes them: smaller ones overflow, larger ones
    // may not be started.
    static const char *const sizes[] = {"OMP_STACKSIZE", "GOMP_STACKSIZE"};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (getenv(sizes[i])) changed |= unsetenv(sizes[i]) == 0;
    if (!getenv("GOMP_SPINCOUNT") && !getenv("OMP_WAIT_POLICY"))
        changed |= setenv("GOMP_SPINCOUNT", spin_rounds, 1) == 0;
    if (!changed) return;
    char program[PATH_MAX]; // by its own name, so that ps and pkill still find it
    const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length <= 0) return;
    program[length] = '\0';
    execv(program, argv); // returns only on failure; the run then continues without the setting
}

void device_address(int number, char address[64]) {
    (void)number;
    address[0] = '\0';
}

bool device_init(const DeviceOptions *options, Error *err) {
    REQUIRE(!cpu_backend.ready, "device_init: called twice");
    char name[100] = "CPU", line[512];
    HostMemory memory;
    FILE *cpuinfo = fopen("/proc/cpuinfo", "r");

    while (cpuinfo && fgets(line, sizeof line, cpuinfo)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon) continue;
        line[strcspn(line, "\n")] = '\0';
        snprintf(name, sizeof name, "%s", colon + 1 + strspn(colon + 1, " \t"));
        break;
    }
    if (cpuinfo) fclose(cpuinfo);

    CpuCodeChoice wanted;
    double quota; // of processor time, if that decided the number of threads; else 0
    if (!cpu_find_code(&wanted, name, err) || !host_memory_read("", &memory, err) ||
        !start_threads(options->threads, &quota, err))
        return false;

    cpu_backend.onednn = onednn_create(wanted, err);
    if (!cpu_backend.onednn) return false;

    DeviceFacts *f = &cpu_backend.facts;
    f->backend = "cpu";
    f->units = cpu_backend.threads;
    int n = snprintf(f->name, sizeof f->name, "%.70s, %d thread%s", name, f->units,
                     format_plural(f->units));
    if (quota > 0)
        snprintf(f->name + n, sizeof f->name - (size_t)n, " (a quota of %.3g processors)", quota);
    snprintf(f->libraries, sizeof f->libraries, "vector code %s, oneDNN %s, OpenMP",
             cpu_backend.code_name, onednn_version());

    f->memory_total = memory.total;
    f->memory_free = memory.available;
    enum { SMALLEST_CACHE = 16 << 20 }; // where the kernel tells of none, or of a share
    const size_t cache = host_cache_bytes("");
    f->cache_bytes = max_size(cache, SMALLEST_CACHE);

    f->supports[DTYPE_FP32] = f->supports[DTYPE_BF16] = f->supports[DTYPE_E4M3] = true;
    f->widens_bf16 = cpu_backend.code_choice > CPU_AVX512BF16 || !onednn_has_bf16();
    f->default_dtype = DTYPE_BF16;
    if (f->widens_bf16) f->default_dtype = DTYPE_FP32;

    cpu_backend.resident_at_init = host_memory_status("VmRSS:");
    cpu_backend.ready = true;
    return true;
}

void device_shutdown(void) {
    cpu_comm_shutdown();
    onednn_destroy(cpu_backend.onednn);
    memset(&cpu_backend, 0, sizeof cpu_backend);
}

const DeviceFacts *device_facts(void) {
    REQUIRE(cpu_backend.ready, "device_facts before device_init");
    return &cpu_backend.facts;
}

// ------------------------------------------------------------------------------------------ memory

enum { ALIGNMENT = 256, HUGE_PAGE = 2 << 20 };

void *device_alloc(size_t bytes, Error *err) {
    HostMemory memory;
    if (!host_memory_read("", &memory, err)) return NULL;

    const bool large = bytes >= 2 * HUGE_PAGE;
    const size_t alignment = large ? HUGE_PAGE : ALIGNMENT;
    // Linux overcommits and kills later, so an allocation that does not fit is refused here.
    char *p = bytes <= memory.available ? memalign(alignment, max_size(bytes, 1)) : NULL;

    if (!p) {
        error_set(err,
                  "out of memory: %zu bytes (%.2f GB) requested, %zu (%.2f GB) free of %zu; use a "
                  "smaller micro-batch "
                  "or model, or end other programs",
                  bytes, (double)bytes * 1e-9, memory.available, (double)memory.available * 1e-9,
                  memory.total);
        return NULL;
    }
    // a hint: 4 KiB pages work too
    if (large) madvise(p, bytes / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
        // All pages are touched by the threads that will use them. The first touch of a page costs
        // about 1.2 s per GiB in a fresh virtual machine, and places it near its core. Huge pages
        // need a quarter of that on memory seen before.
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < bytes; i += HUGE_PAGE) memset(p + i, 0, min_size(bytes - i, HUGE_PAGE));
    return p;
}

void device_free(void *p) { free(p); }

size_t device_memory_free(void) {
    HostMemory memory;
    Error ignored;
    if (host_memory_read("", &memory, &ignored)) return memory.available;
    return cpu_backend.facts.memory_free;
}

// The peak RAM of the process beyond its RAM when device_init returned. It is the kernel's count
// (VmHWM), not the sum of the requests. It includes scratch memory of libraries, loader buffers and
// all other host memory taken since then, so it verifies the plan. It excludes the program's code
// and libraries, thread stacks and allocations before device_init. The kernel's count is exact to
// some hundred KB; this function keeps it from decreasing.
size_t device_memory_peak(void) {
    size_t held = host_memory_status("VmHWM:"), before = cpu_backend.resident_at_init;
    if (held > before && held - before > cpu_backend.peak) cpu_backend.peak = held - before;
    return cpu_backend.peak;
}

// Sets the kernel's count to the bytes held now, where it supports that.
void device_memory_peak_restore(size_t peak) {
    FILE *f = fopen("/proc/self/clear_refs", "w");
    if (f) {
        fputs("5", f); // proc(5): resets the peak resident set size
        fclose(f);
    }
    cpu_backend.peak = peak;
}

void *host_alloc(size_t bytes, Error *err) {
    void *p = memalign(64, max_size(bytes, 1));
    if (!p) error_set(err, "out of memory: %zu bytes of host memory", bytes);
    return p;
}

void host_free(void *p) { free(p); }

// ----------------------------------------------------------------------------------------- streams

void copy_h2d(void *device_dst, const void *host_src, size_t bytes, Stream stream) {
    (void)stream;
    memcpy(device_dst, host_src, bytes);
}

// By all threads: one core does not fill the memory's bandwidth.
void device_copy(void *device_dst, const void *device_src, size_t bytes) {
    enum { PIECE = 1 << 20 };
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < bytes; i += PIECE)
        memcpy((char *)device_dst + i, (const char *)device_src + i, min_size(bytes - i, PIECE));
}

void copy_d2h(void *host_dst, const void *device_src, size_t bytes, Stream stream) {
    (void)stream;
    memcpy(host_dst, device_src, bytes);
}

void device_sync(void) {}

// ------------------------------------------------------------------------------------------ events

struct DeviceEvent {
    struct timespec time; // when it was recorded
};

DeviceEvent *device_event_create(Error *err) {
    DeviceEvent *event = calloc(1, sizeof *event);
    if (!event) error_set(err, "out of memory for an event");
    return event;
}

void device_event_destroy(DeviceEvent *event) { free(event); }

void device_event_record(DeviceEvent *event, Stream stream) {
    (void)stream;
    clock_gettime(CLOCK_MONOTONIC, &event->time);
}

void device_event_wait(DeviceEvent *event) { (void)event; }

bool device_event_done(DeviceEvent *event) {
    (void)event;
    return true;
}

void device_stream_wait(Stream stream, DeviceEvent *event) {
    (void)stream;
    (void)event;
}

double device_event_seconds(DeviceEvent *start, DeviceEvent *stop) {
    return (double)(stop->time.tv_sec - start->time.tv_sec) +
           (double)(stop->time.tv_nsec - start->time.tv_nsec) * 1e-9;
}

// ------------------------------------------------------------------------------------------ graphs

struct DeviceGraph {
    char nothing; // C has no empty structs
};

DeviceGraph *device_graph_create(Error *err) {
    DeviceGraph *graph = calloc(1, sizeof *graph);
    if (!graph) error_set(err, "out of memory for a graph");
    return graph;
}

void device_graph_destroy(DeviceGraph *graph) { free(graph); }

bool device_graph_replay(DeviceGraph *graph) {
    (void)graph;
    return false;
}

void device_graph_begin(DeviceGraph *graph) { (void)graph; }
void device_graph_end(DeviceGraph *graph) { (void)graph; }

// ------------------------------------------------------------------------------ tuning and sensors

// oneDNN's choices depend only on the processor, the number of threads and on itself.
char *device_tuning(void) {
    char *line = NULL;
    const int threads = cpu_backend.threads;
    const int length =
        asprintf(&line, "%s (instructions %#x), %d thread%s", cpu_backend.facts.libraries,
                 onednn_instructions(), threads, format_plural(threads));
    REQUIRE_MEMORY(length > 0, "the name of the vector code");
    return line;
}
bool device_restore_tuning(const char *lines) {
    char *here = device_tuning();
    // earlier versions did not name the threads
    const bool same = strncmp(lines, here, strlen(lines)) == 0;
    free(here);
    return same;
}

bool device_sensors(DeviceSensors *sensors) {
    memset(sensors, 0, sizeof *sensors);
    return false;
}
