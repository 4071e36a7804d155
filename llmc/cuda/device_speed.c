// The speed of light of this GPU, measured: one plain cuBLASLt product and one large copy. The figures that step times
// are held against. Keeps nothing: handle, plan and buffers are gone when it returns, and it works with what memory the
// model has left.
//
// Operands are random: a product of zeros switches no transistors, draws half the power and runs at clocks that no
// training step sees.
#include "llmc/base/rng.h"
#include "llmc/cuda/backend.h"

#include <cublasLt.h>
#include <stdlib.h>

// A square product, the smallest of these sides that takes MIN_SECONDS, so that launches do not count: 8192 on an H200
// (1.4 ms in bf16), 2048 on a T4 in fp32 (4 ms), 128 on the simulator.
enum { NUM_SIDES = 4 };
static const int64_t sides[NUM_SIDES] = {128, 512, 2048, 8192};
static const double MIN_SECONDS = 0.5e-3;

// Rounds: at least MIN_ROUNDS, then until the time is used up. The median counts. A GPU needs some 10 ms to raise its
// clocks; the rounds of the warm-up are not counted.
enum { MIN_ROUNDS = 3, MAX_ROUNDS = 200 };
static const double WARMUP_SECONDS = 0.03, MATMUL_SECONDS = 0.12, COPY_SECONDS = 0.05;

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// Seconds that work(arg) takes on the compute stream, once.
static double one_round(void (*work)(void *), void *arg, DeviceEvent *start, DeviceEvent *stop) {
    device_event_record(start, STREAM_COMPUTE);
    work(arg);
    device_event_record(stop, STREAM_COMPUTE);
    device_event_wait(stop);
    return device_event_seconds(start, stop);
}

// The median over `budget` seconds of rounds, after a warm-up of at least one. The first round is the slowest by far
// (code is loaded) and may be all the warm-up there is.
static double median_seconds(void (*work)(void *), void *arg, double warmup, double budget) {
    double seconds[MAX_ROUNDS], spent = 0;
    int rounds = 0;
    Error err;
    DeviceEvent *start = device_event_create(&err), *stop = device_event_create(&err);
    REQUIRE_MEMORY(start && stop, "events");
    do warmup -= one_round(work, arg, start, stop);
    while (warmup > 0);
    while (rounds < MAX_ROUNDS && (rounds < MIN_ROUNDS || spent < budget)) {
        seconds[rounds] = one_round(work, arg, start, stop);
        spent += seconds[rounds++];
    }
    device_event_destroy(start), device_event_destroy(stop);
    qsort(seconds, (size_t)rounds, sizeof *seconds, by_value);
    return seconds[rounds / 2];
}

// ------------------------------------------------------------------------------------------------------------- matmul

#define LT_CHECK(call)                                                                                                 \
    do {                                                                                                               \
        const cublasStatus_t lt_status_ = (call);                                                                      \
        REQUIRE(lt_status_ == CUBLAS_STATUS_SUCCESS, "%s: cuBLAS status %d", #call, (int)lt_status_);                  \
    } while (0)

enum { WORKSPACE_BYTES = 32 << 20 }; // what cuBLAS recommends for Hopper; enough everywhere

typedef struct {
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t layout; // of all three matrices: square, the same type
    cublasLtMatmulAlgo_t algo;
    char *a, *b, *out, *workspace;
} Product;

static cudaDataType_t cuda_type(DType dtype) {
    return dtype == DTYPE_BF16 ? CUDA_R_16BF : dtype == DTYPE_FP16 ? CUDA_R_16F : CUDA_R_32F;
}

// The library's own first choice, as a caller that does not tune would get it. False where it has none.
static bool choose_algorithm(Product *p) {
    const size_t workspace = WORKSPACE_BYTES;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t result;
    int found = 0;
    LT_CHECK(cublasLtMatmulPreferenceCreate(&preference));
    LT_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                                  sizeof workspace));
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(p->handle, p->desc, p->layout, p->layout, p->layout,
                                                                 p->layout, preference, 1, &result, &found);
    LT_CHECK(cublasLtMatmulPreferenceDestroy(preference));
    p->algo = result.algo;
    return status == CUBLAS_STATUS_SUCCESS && found == 1;
}

// out = a^T b in column-major terms: the form of matmul_forward, rows times rows.
static void make_product(Product *p, DType dtype, int64_t side) {
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const bool tf32 = dtype == DTYPE_FP32 && cuda_backend.options.tf32 && cuda_backend.compute_capability >= 80;
    const uint64_t n = (uint64_t)side;
    LT_CHECK(cublasLtMatmulDescCreate(&p->desc, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F));
    LT_CHECK(cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed));
    LT_CHECK(cublasLtMatrixLayoutCreate(&p->layout, cuda_type(dtype), n, n, side));
}

static void destroy_product(Product *p) {
    LT_CHECK(cublasLtMatrixLayoutDestroy(p->layout));
    LT_CHECK(cublasLtMatmulDescDestroy(p->desc));
}

static void run_product(void *arg) {
    const Product *p = (const Product *)arg;
    const float one = 1.0f, zero = 0.0f;
    LT_CHECK(cublasLtMatmul(p->handle, p->desc, &one, p->a, p->layout, p->b, p->layout, &zero, p->out, p->layout,
                            p->out, p->layout, &p->algo, p->workspace, WORKSPACE_BYTES, cuda_compute_stream()));
}

// Standard normal numbers, a block of them over and over: what a chip sees of a row does not depend on the others.
static bool fill_random(char *device, DType dtype, int64_t numel, Error *err) {
    enum { BLOCK = 1 << 16 };
    const int64_t size = (int64_t)dtype_size(dtype), block = numel < BLOCK ? numel : BLOCK;
    char *host = (char *)host_alloc((size_t)(block * size), err);
    if (!host) return false;
    for (int64_t i = 0; i < block; i += 2) {
        float pair[2];
        const Philox bits = philox(1, STREAM_INIT, (uint64_t)i);
        philox_normal2(bits.v[0], bits.v[1], pair);
        convert_elements(host + i * size, dtype, pair, DTYPE_FP32, 2);
    }
    device_copy_to_device(device, host, (size_t)(block * size), STREAM_COMPUTE);
    for (int64_t done = block; done < numel; done *= 2)
        cuda_copy(device + done * size, device, (size_t)((done < numel - done ? done : numel - done) * size));
    device_sync();
    host_free(host);
    return true;
}

// Bytes that a measurement may take: a quarter of what is free. The smallest side is tried whatever is left.
static int64_t spare_bytes(void) {
    size_t free_bytes, total;
    CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total));
    return (int64_t)(free_bytes / 4);
}

static int64_t side_bytes(DType dtype, int64_t side) {
    return 3 * side * side * (int64_t)dtype_size(dtype) + WORKSPACE_BYTES;
}

// The seconds of one product, quickly; with care if that is long enough, or if this is the last side there is.
static bool measure_side(cublasLtHandle_t handle, DType dtype, int64_t side, bool last, double *seconds, Error *err) {
    const int64_t matrix = side * side * (int64_t)dtype_size(dtype);
    char *memory = (char *)device_alloc((size_t)side_bytes(dtype, side), err);
    if (!memory) return false;
    Product p = {handle, NULL, NULL, {{0}}, memory, memory + matrix, memory + 2 * matrix, memory + 3 * matrix};
    bool ok = fill_random(memory, dtype, 2 * side * side, err);
    if (ok) {
        make_product(&p, dtype, side);
        ok = choose_algorithm(&p) || error_set(err, "cuBLASLt has no plain %s product for this GPU", dtype_name(dtype));
        if (ok) *seconds = median_seconds(run_product, &p, 0, 0);
        if (ok && (last || *seconds >= MIN_SECONDS))
            *seconds = median_seconds(run_product, &p, WARMUP_SECONDS, MATMUL_SECONDS);
        destroy_product(&p);
    }
    device_free(memory);
    return ok;
}

static bool measure_matmul(DType dtype, double *flops, Error *err) {
    cublasLtHandle_t handle;
    bool ok = true, last = false;
    LT_CHECK(cublasLtCreate(&handle));
    for (int i = 0; ok && !last; i++) {
        double seconds = 0;
        last = i + 1 == NUM_SIDES || side_bytes(dtype, sides[i + 1]) > spare_bytes();
        ok = measure_side(handle, dtype, sides[i], last, &seconds, err);
        last = last || seconds >= MIN_SECONDS;
        *flops = 2.0 * (double)(sides[i] * sides[i] * sides[i]) / seconds;
    }
    LT_CHECK(cublasLtDestroy(handle));
    return ok;
}

// --------------------------------------------------------------------------------------------------------------- copy

typedef struct {
    char *dst, *src;
    size_t bytes;
} Copy;

static void run_copy(void *arg) {
    const Copy *c = (const Copy *)arg;
    cuda_copy(c->dst, c->src, c->bytes);
}

// Source and destination are as large as it takes for a copy of COPY_ROUND: that moves 30 times what the L2 cache of an
// H200 holds, and five times that of an RTX 4090, so that no round lives on what the last one left.
enum { SMALLEST_COPY = 4 << 20, LARGEST_COPY = 1 << 30 };
static const double COPY_ROUND = 0.4e-3;

static bool measure_copy_of(int64_t bytes, bool last, double *seconds, Error *err) {
    char *memory = (char *)device_alloc((size_t)(2 * bytes), err);
    if (!memory) return false;
    Copy c = {memory, memory + bytes, (size_t)bytes};
    *seconds = median_seconds(run_copy, &c, 0, 0);
    if (last || *seconds >= COPY_ROUND) *seconds = median_seconds(run_copy, &c, 0, COPY_SECONDS);
    device_free(memory);
    return true;
}

static bool measure_copy(double *bandwidth, Error *err) {
    bool ok = true, last = false;
    for (int64_t bytes = SMALLEST_COPY; ok && !last; bytes *= 4) {
        double seconds = 0;
        last = bytes == LARGEST_COPY || 2 * 4 * bytes > spare_bytes();
        ok = measure_copy_of(bytes, last, &seconds, err);
        last = last || seconds >= COPY_ROUND;
        *bandwidth = 2.0 * (double)bytes / seconds;
    }
    return ok;
}

bool device_measure_speed(DType dtype, size_t memory, DeviceSpeed *speed, Error *err) {
    (void)memory;
    if (!device_facts()->supports[dtype])
        return error_set(err, "%s: %s does not compute in it", dtype_name(dtype), device_facts()->name);
    const size_t peak = cuda_backend.allocated_peak; // these buffers are no part of the training
    const bool ok = measure_matmul(dtype, &speed->matmul_flops, err) && measure_copy(&speed->copy_bandwidth, err);
    cuda_backend.allocated_peak = peak;
    return ok;
}
