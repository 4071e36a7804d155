// The handle of the CPU backend and the workspace that all ops share. It owns no memory: the workspace belongs to the
// caller. Also measures this machine's peak rates, which step times are compared with: one plain library matmul and
// one large copy. The measurement frees its buffers before it returns.
#include "llmc/cpu/cpu.h"

#include "llmc/base/arithmetic.h"
#include "llmc/cpu/gemm.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

CpuBackend cpu_backend;

int cpu_threads(void) {
    REQUIRE(cpu_backend.ready, "an op before device_init");
    return cpu_backend.threads;
}

const CpuCode *cpu_code(void) {
    REQUIRE(cpu_backend.ready, "an op before device_init");
    return cpu_backend.code;
}

const BackendOps *backend_ops(void) { return &cpu_code()->ops; }

void backend_order(const OpOperands *operands) { (void)operands; } // all work is done when its op returns

int64_t ops_workspace_bytes(OpsShape shape) { return cpu_code()->workspace_bytes(shape); }

int64_t ops_head_chunk_rows(OpsShape shape) { return min_i64(shape.B * shape.T, HEAD_CHUNK_ROWS); }

void update_list_free(UpdateList *list) { (void)list; } // each op makes its tables, in the workspace

void ops_set_workspace(void *device_memory, int64_t bytes) {
    REQUIRE((uintptr_t)device_memory % 64 == 0, "the workspace is not 64-byte aligned");
    cpu_backend.workspace = device_memory;
    cpu_backend.workspace_bytes = bytes;
    cpu_backend.workspace_used = 0;
    // Not that of an earlier workspace, which may be freed.
    if (cpu_backend.onednn) onednn_set_scratch(cpu_backend.onednn, device_memory, bytes);
}

void *cpu_scratch(const char *op, int64_t bytes) {
    REQUIRE(bytes <= cpu_backend.workspace_bytes, "%s: needs %lld bytes of workspace, ops_set_workspace gave %lld", op,
            (long long)bytes, (long long)cpu_backend.workspace_bytes);
    cpu_backend.workspace_used = round_up(bytes, 64);
    return bytes > 0 ? cpu_backend.workspace : NULL;
}

bool backend_computes(DType dtype) { return dtype == DTYPE_FP32 || dtype == DTYPE_BF16; }

// --------------------------------------------------------------------------------------------------------------- speed

enum { M = 1024, N = 3072, K = 768 };

// Repetitions: at least the first, then until the budget or the second is reached.
enum { MIN_RUNS = 3, MAX_RUNS = 25 };
static const double MATMUL_SECONDS = 0.15, COPY_SECONDS = 0.08;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

// Median seconds of work(arg), after one call that is not counted; if that alone takes several budgets, its seconds.
static double median_seconds(void (*work)(void *), void *arg, double budget) {
    double seconds[MAX_RUNS], start = now();
    int runs = 0;
    work(arg);
    if (now() - start > 4 * budget) return now() - start;
    while (runs < MAX_RUNS && (runs < MIN_RUNS || now() - start < budget)) {
        double begin = now();
        work(arg);
        seconds[runs++] = now() - begin;
    }
    return median_of(seconds, runs);
}

// ------------------------------------------------------------------------------------------------------------- matmul

typedef struct {
    Matrix dst, a, b;
} Operands;

// One library call where the library has one: no pieces, no bias. As in matmul_forward, b is a transposed view.
static void run_matmul(void *arg) {
    const Operands *o = arg;
    if (!onednn_matmul(cpu_backend.onednn, M, N, K, o->dst, o->a, o->b, NULL, false))
        cpu_code()->gemm(M, N, K, o->dst, o->a, o->b, NULL, false);
}

// Small varied values: multiplying zeros draws less power and flatters the clock.
static void fill(Tensor t) {
    float values[K];
    for (int64_t i = 0; i < tensor_rows(t); i++) {
        for (int j = 0; j < K; j++) values[j] = (float)((i * 31 + j * 17) % 61 - 30) * 0x1p-5f;
        Tensor row = tensor_slice_rows(t, i, 1);
        convert_elements(row.data, row.dtype, values, DTYPE_FP32, K);
    }
}

static bool measure_matmul(DType dtype, double *flops, Error *err) {
    size_t size = dtype_size(dtype);
    char *memory = device_alloc((size_t)(M * K + N * K + M * N) * size, err);
    if (!memory) return false;
    Tensor a = tensor_make(memory, dtype, "a", M, K, 0, 0);
    Tensor b = tensor_make(memory + (size_t)(M * K) * size, dtype, "b", N, K, 0, 0);
    Tensor dst = tensor_make(memory + (size_t)(M * K + N * K) * size, dtype, "dst", M, N, 0, 0);
    fill(a), fill(b);
    Operands o = {matrix_of(dst, N), matrix_of(a, K), matrix_transposed(matrix_of(b, K))};
    *flops = 2.0 * M * N * K / median_seconds(run_matmul, &o, MATMUL_SECONDS);
    device_free(memory);
    return true;
}

// --------------------------------------------------------------------------------------------------------------- copy

typedef struct {
    char *dst, *src;
    size_t bytes;
} Copy;

enum { COPY_PIECE = 1 << 20, SMALLEST_COPY = 16 << 20 };

static void run_copy(void *arg) {
    const Copy *c = arg;
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < c->bytes; i += COPY_PIECE) memcpy(c->dst + i, c->src + i, COPY_PIECE);
}

static bool measure_copy(size_t most, double *bandwidth, Error *err) {
    size_t bytes = 2 * host_cache_bytes(""); // four times it passes through
    if (bytes < 32 << 20) bytes = 32 << 20;
    if (bytes > most / 2) bytes = most / 2 > SMALLEST_COPY ? most / 2 : SMALLEST_COPY;
    bytes = bytes / COPY_PIECE * COPY_PIECE;
    char *memory = device_alloc(2 * bytes, err);
    if (!memory) return false;
    Copy c = {memory, memory + bytes, bytes};
    *bandwidth = 2.0 * (double)bytes / median_seconds(run_copy, &c, COPY_SECONDS);
    device_free(memory);
    return true;
}

bool device_measure_speed(DType dtype, size_t memory, DeviceSpeed *speed, Error *err) {
    if (!device_facts()->supports[dtype])
        return error_set(err, "%s: the CPU computes in fp32 or bf16", dtype_name(dtype));
    device_memory_peak(); // remembers the peak so far: the buffers below must not count in it
    bool ok = measure_matmul(dtype, &speed->matmul_flops, err) && measure_copy(memory, &speed->copy_bandwidth, err);
    host_memory_reset_peak();
    return ok;
}
