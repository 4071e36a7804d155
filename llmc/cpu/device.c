// device.h on a CPU, first half: the life of the backend, the facts, memory. Streams, events and graphs are in
// device_stream.c, the measured speed in device_speed.c.
// Compiled without vector flags: device_init must be able to say that this processor lacks them.
#include "llmc/base/error.h"
#include "llmc/cpu/cpu.h"
#include "llmc/cpu/gemm.h"
#include "llmc/cpu/host_memory.h"

#include <limits.h>
#include <malloc.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

// ------------------------------------------------------------------------------------------------------------ the CPU

static void read_cpu_name(char *name, size_t size) {
    snprintf(name, size, "CPU");
    FILE *f = fopen("/proc/cpuinfo", "r");
    if (!f) return;
    char line[512];
    while (fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon) continue;
        line[strcspn(line, "\n")] = '\0';
        snprintf(name, size, "%s", colon + 1 + strspn(colon + 1, " \t"));
        break;
    }
    fclose(f);
}

static bool processor_has(CpuSimd simd) {
    if (simd == CPU_SIMD_NONE) return true;
#if defined(__x86_64__)
    bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("fma");
    return avx512 && (simd == CPU_SIMD_AVX512 || __builtin_cpu_supports("avx512bf16"));
#else
    return false;
#endif
}

// As the Makefile's SIMD calls them.
static const char *const simd_names[] = {"none", "avx512", "avx512bf16"};

static CpuSimd best_simd(void) {
    return processor_has(CPU_SIMD_AVX512_BF16) ? CPU_SIMD_AVX512_BF16
           : processor_has(CPU_SIMD_AVX512)    ? CPU_SIMD_AVX512
                                               : CPU_SIMD_NONE;
}

static bool check_processor(const char *name, Error *err) {
    if (processor_has(cpu_compiled_simd)) return true;
    return error_set(err,
                     "this program was built with SIMD=%s, which this processor (%s) does not have; build it with "
                     "`make SIMD=%s`",
                     simd_names[cpu_compiled_simd], name, simd_names[best_simd()]);
}

// Denormals to zero, in and out, in every worker: AdamW's moments decay into them, and each one costs over a hundred
// cycles. libgomp keeps its workers, and those that it starts later inherit the setting from this thread.
static void flush_denormals(void) {
#if defined(__x86_64__)
    enum { FTZ = 0x8000, DAZ = 0x0040 };
#pragma omp parallel
    _mm_setcsr(_mm_getcsr() | FTZ | DAZ);
#endif
}

// 0: OMP_NUM_THREADS if that is set, else the cores in this process's affinity mask; libgomp answers both.
enum { MAX_THREADS = 1024 };

static bool start_threads(int wanted, Error *err) {
    if (wanted < 0 || wanted > MAX_THREADS)
        return error_set(err, "%d threads: expected 1 to %d, or 0 for all cores", wanted, MAX_THREADS);
    omp_set_dynamic(0);
    cpu_backend.threads = wanted > 0 ? wanted : omp_get_max_threads();
    omp_set_num_threads(cpu_backend.threads);
    flush_denormals();
    return true;
}

// --------------------------------------------------------------------------------------------------- life and facts

static void fill_facts(DeviceFacts *f, const char *name, HostMemory memory) {
    f->backend = "cpu";
    f->units = cpu_backend.threads;
    snprintf(f->name, sizeof f->name, "%.100s, %d thread%s", name, f->units, f->units == 1 ? "" : "s");
    snprintf(f->libraries, sizeof f->libraries, "vector code %s, oneDNN %s, OpenMP", simd_names[cpu_compiled_simd],
             onednn_version());
    const CpuSimd best = best_simd();
    f->advice[0] = '\0';
    if (best > cpu_compiled_simd)
        snprintf(f->advice, sizeof f->advice,
                 "this processor has %s, this program was built with SIMD=%s: plain `make` builds the faster one",
                 simd_names[best], simd_names[cpu_compiled_simd]);
    f->memory_total = memory.total;
    f->memory_free = memory.available;
    f->supports[DTYPE_FP32] = f->supports[DTYPE_BF16] = f->supports[DTYPE_E4M3] = true;
    bool fast_bf16 = cpu_compiled_simd == CPU_SIMD_AVX512_BF16 && onednn_has_bf16();
    f->default_dtype = fast_bf16 ? DTYPE_BF16 : DTYPE_FP32;
}

// libgomp lets a thread that has nothing to do spin for 300000 rounds: milliseconds in which it keeps the core from
// those that have work. Two trainers side by side on 2 cores (6 layers, C=384, B=8, T=256, bf16) reach 1244 tok/s each
// with that and 2090 with 1000 rounds; one alone is as fast with either (medians of five: 81% and 83% of the matmul
// rate).
static const char spin_rounds[] = "1000";

void device_prepare_process(char **argv) {
    if (getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY")) return;
    if (setenv("GOMP_SPINCOUNT", spin_rounds, 1) != 0) return;
    char program[PATH_MAX]; // by its own name, so that ps and pkill still find it
    const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length <= 0) return;
    program[length] = '\0';
    execv(program, argv); // returns only if it failed: then the run is as good as it can be without
}

bool device_init(const DeviceOptions *options, Error *err) {
    REQUIRE(!cpu_backend.ready, "device_init: called twice");
    char name[100];
    HostMemory memory;
    read_cpu_name(name, sizeof name);
    if (!check_processor(name, err) || !host_memory_read("", &memory, err)) return false;
    if (!start_threads(options->threads, err)) return false;
    cpu_backend.onednn = onednn_create(err);
    if (!cpu_backend.onednn) return false;
    cpu_backend.gemm_tiles = memalign(64, GEMM_TILES_BYTES);
    if (!cpu_backend.gemm_tiles) {
        device_shutdown();
        return error_set(err, "out of memory: %d bytes for matmul tiles", GEMM_TILES_BYTES);
    }
    fill_facts(&cpu_backend.facts, name, memory);
    cpu_backend.resident_at_init = host_memory_resident();
    cpu_backend.ready = true;
    return true;
}

void device_shutdown(void) {
    onednn_destroy(cpu_backend.onednn);
    free(cpu_backend.gemm_tiles);
    memset(&cpu_backend, 0, sizeof cpu_backend);
}

const DeviceFacts *device_facts(void) {
    REQUIRE(cpu_backend.ready, "device_facts before device_init");
    return &cpu_backend.facts;
}

// ------------------------------------------------------------------------------------------------------------ memory

enum { ALIGNMENT = 256, HUGE_PAGE = 2 << 20 };

// All pages, by the threads that will use them: the first touch of a page costs about 1.2 s per GiB in a fresh virtual
// machine, and places it near its core. Huge pages need a fourth of that on memory seen before.
static void touch(char *p, size_t bytes) {
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < bytes; i += HUGE_PAGE) memset(p + i, 0, bytes - i < HUGE_PAGE ? bytes - i : HUGE_PAGE);
}

void *device_alloc(size_t bytes, Error *err) {
    HostMemory memory;
    if (!host_memory_read("", &memory, err)) return NULL;
    bool large = bytes >= 2 * HUGE_PAGE;
    // Linux hands out more than it has and kills later: what does not fit is refused here.
    void *p = bytes > memory.available ? NULL : memalign(large ? HUGE_PAGE : ALIGNMENT, bytes ? bytes : 1);
    if (!p) {
        error_set(err,
                  "out of memory: %zu bytes (%.2f GB) asked, %zu (%.2f GB) free of %zu; use a smaller micro-batch "
                  "or model, or end other programs",
                  bytes, (double)bytes * 1e-9, memory.available, (double)memory.available * 1e-9, memory.total);
        return NULL;
    }
    if (large) madvise(p, bytes / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE); // a wish: 4 KiB pages work as well
    touch(p, bytes);
    return p;
}

void device_free(void *p) { free(p); }

// What the process holds in RAM beyond what it held when device_init returned, at most so far. It is the kernel's
// count (VmHWM), not the sum of what was asked for: scratch memory of libraries, loader buffers and whatever else the
// host side took since then are in it, so it says whether the plan told the truth. Not in it: the program's code and
// libraries, thread stacks and what came before device_init, and the buffers of device_measure_speed, which are gone
// when it returns.
// The kernel's count is exact to some hundred KB; that it never falls is seen to here.
size_t device_memory_peak(void) {
    size_t held = host_memory_resident_peak(), before = cpu_backend.resident_at_init;
    if (held > before && held - before > cpu_backend.peak) cpu_backend.peak = held - before;
    return cpu_backend.peak;
}

void *host_alloc(size_t bytes, Error *err) {
    void *p = memalign(64, bytes ? bytes : 1);
    if (!p) error_set(err, "out of memory: %zu bytes of host memory", bytes);
    return p;
}

void host_free(void *p) { free(p); }
