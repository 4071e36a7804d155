// How fast this GPU is: its datasheet peak, from a table of operations per clock and multiprocessor; its measured peak,
// against which step times are compared; and its sensors during a run. Keeps nothing but NVML: handle, plan and buffers
// of a measurement are freed when it returns, and it uses only memory that the model has left free.
#include "llmc/base/arithmetic.h"
#include "llmc/cuda/backend.h"

#include <cublasLt.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ------------------------------------------------------------------------------------------------------- the datasheet

// FLOP a clock and multiprocessor, dense, accumulated in fp32; 0 = the hardware has none.
//
// geforce_halves: cards sold as GeForce run their tensor cores at half this rate when they accumulate in fp32. No
// attribute tells them from the professional cards with the same chip; their name does.
//
// tensor_clock: the clock that the datasheet's tensor core FLOP/s were counted at, as a fraction of the highest clock
// the driver reports. They are the same but for the large chips, which do not hold that clock with the tensor cores
// busy: an H200 or H100 SXM reports 1980 MHz, which would make 1070 TFLOP/s, and is sold with 989 (132 multiprocessors
// x 4096 x 1830 MHz); an H100 PCIe reports 1755 MHz and is sold with 756, the same fraction. A B200 reports 1965 MHz
// and is sold with 2250. Plain fp32 is counted at the highest clock on all of them.
typedef struct {
    int compute_capability;
    int fp8, fp16, bf16, tf32, fp32;
    bool geforce_halves;
    double tensor_clock;
} UnitRates;

static const UnitRates rates[] = {
    {75, 0, 1024, 0, 0, 128, true, 1.0},               // T4, RTX 2080 Ti, Quadro RTX
    {80, 0, 2048, 2048, 1024, 128, false, 1.0},        // A100, A30
    {86, 0, 1024, 1024, 512, 256, true, 1.0},          // A10, A40, RTX 3090
    {87, 0, 1024, 1024, 512, 256, false, 1.0},         // Orin
    {89, 2048, 1024, 1024, 512, 256, true, 1.0},       // L4, L40S, RTX 4090
    {90, 8192, 4096, 4096, 2048, 256, false, 0.924},   // H100, H200
    {100, 16384, 8192, 8192, 4096, 256, false, 0.944}, // B200; also for 10.3
    {120, 2048, 1024, 1024, 512, 256, true, 1.0},      // RTX PRO 6000, RTX 5090; also for 12.1
};

// The row of this capability, or that of the nearest older one of the same generation.
static const UnitRates *rates_of(int compute_capability) {
    const UnitRates *found = NULL;
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++)
        if (rates[i].compute_capability <= compute_capability &&
            rates[i].compute_capability / 10 == compute_capability / 10)
            found = &rates[i];
    return found;
}

double gpu_peak_flops(const GpuAttributes *gpu, DType dtype, bool tf32) {
    const UnitRates *r = rates_of(gpu->compute_capability);
    if (!r) return 0.0;
    const bool tensor_cores = dtype != DTYPE_FP32 || (tf32 && r->tf32 > 0);
    const bool fp8 = dtype == DTYPE_E4M3 || dtype == DTYPE_E5M2;
    double per_clock = fp8                   ? r->fp8
                       : dtype == DTYPE_FP16 ? r->fp16
                       : dtype == DTYPE_BF16 ? r->bf16
                       : dtype != DTYPE_FP32 ? 0
                       : tensor_cores        ? r->tf32
                                             : r->fp32;
    if (tensor_cores && r->geforce_halves && strstr(gpu->name, "GeForce")) per_clock /= 2;
    return per_clock * gpu->num_sms * 1e3 * gpu->clock_khz * (tensor_cores ? r->tensor_clock : 1.0);
}

bool gpu_has_fp8(int compute_capability, size_t cublaslt_version) {
    if (compute_capability < 89) return false;
    return cublaslt_version >= (compute_capability < 100 ? 120100u : 120800u);
}

double gpu_peak_bandwidth(const GpuAttributes *gpu) {
    return 2.0 * 1e3 * gpu->memory_clock_khz * gpu->memory_bus_bits / 8; // two transfers a clock
}

const char *cuda_version_text(int version, char *buf, size_t size) {
    snprintf(buf, size, "%d.%d", version / 1000, version % 1000 / 10);
    return buf;
}

const char *gpu_list_text(const char *archs, char *buf, size_t size) {
    size_t used = 0;
    buf[0] = '\0';
    while (*archs && used < size) {
        const int length = (int)strcspn(archs, " ");
        used += (size_t)snprintf(buf + used, size - used, "%ssm_%.*s", used ? ", " : "", length, archs);
        archs += length;
        archs += strspn(archs, " ");
    }
    return buf;
}

// ----------------------------------------------------------------------------------------------------------- measuring
// One plain cuBLASLt product and one large copy. Operands are random: a product of zeros switches no transistors, draws
// half the power and runs at clocks that no training step sees.

// A square product, the smallest of these sides that takes MIN_SECONDS, so that launches do not count: 8192 on an H200
// (1.4 ms in bf16), 2048 on a T4 in fp32 (4 ms), 128 on the simulator.
enum { NUM_SIDES = 4 };
static const int64_t sides[NUM_SIDES] = {128, 512, 2048, 8192};
static const double MIN_SECONDS = 0.5e-3;

// Rounds: at least MIN_ROUNDS, then until the time is used up. The median counts. A GPU needs some 10 ms to raise its
// clocks; the rounds of the warm-up are not counted.
enum { MIN_ROUNDS = 3, MAX_ROUNDS = 200 };
static const double WARMUP_SECONDS = 0.03, MATMUL_SECONDS = 0.12, COPY_SECONDS = 0.05;

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
    return median_of(seconds, rounds);
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
    copy_h2d(device, host, (size_t)(block * size), STREAM_COMPUTE);
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
    const size_t peak = cuda_backend.allocated_peak; // these buffers are not part of the training
    const bool ok = measure_matmul(dtype, &speed->matmul_flops, err) && measure_copy(&speed->copy_bandwidth, err);
    cuda_backend.allocated_peak = peak;
    return ok;
}

// ------------------------------------------------------------------------------------------------------------- sensors
// The few functions of NVML that the sensors need, declared here: nvml.h comes with some toolkits only, the library
// with every driver. Its interface is stable: names that end in _v2 were added next to the old ones, which stay.

// nvml.h: nvmlReturn_t is an int, 0 for success; nvmlDevice_t is a pointer.
typedef void *NvmlGpu;
enum { NVML_CLOCK_SM = 1, NVML_CLOCK_MEMORY = 2, NVML_TEMPERATURE_GPU = 0 };

struct CudaNvml {
    void *library;
    NvmlGpu gpu;
    int (*shutdown)(void);
    int (*clock)(NvmlGpu, int type, unsigned *mhz);
    int (*power)(NvmlGpu, unsigned *milliwatts);
    int (*energy)(NvmlGpu, unsigned long long *millijoules); // since the driver was loaded; Volta and newer
    int (*temperature)(NvmlGpu, int sensor, unsigned *celsius);
    int (*throttle)(NvmlGpu, unsigned long long *reasons); // NULL where the driver has neither name
};

// Reads the address of a function into a pointer to one, as POSIX has it.
static bool load(void *library, const char *name, void *function) {
    void *address = dlsym(library, name);
    memcpy(function, &address, sizeof address);
    return address != NULL;
}

static bool start_nvml(CudaNvml *nvml, const char *pci_bus_id) {
    int (*init)(void) = NULL, (*find)(const char *, NvmlGpu *) = NULL;
    void *library = nvml->library;
    const bool ok = load(library, "nvmlInit_v2", &init) && load(library, "nvmlShutdown", &nvml->shutdown) &&
                    load(library, "nvmlDeviceGetHandleByPciBusId_v2", &find) &&
                    load(library, "nvmlDeviceGetClockInfo", &nvml->clock) &&
                    load(library, "nvmlDeviceGetPowerUsage", &nvml->power) &&
                    load(library, "nvmlDeviceGetTotalEnergyConsumption", &nvml->energy) &&
                    load(library, "nvmlDeviceGetTemperature", &nvml->temperature);
    if (!load(library, "nvmlDeviceGetCurrentClocksEventReasons", &nvml->throttle)) // since driver 535; the older name:
        load(library, "nvmlDeviceGetCurrentClocksThrottleReasons", &nvml->throttle);
    if (!ok || init() != 0) return false;
    if (find(pci_bus_id, &nvml->gpu) == 0) return true;
    nvml->shutdown();
    return false;
}

CudaNvml *cuda_nvml_open(const char *path, const char *pci_bus_id) {
    CudaNvml *nvml = (CudaNvml *)calloc(1, sizeof *nvml);
    if (!nvml) return NULL;
    nvml->library = dlopen(path ? path : "libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (nvml->library && start_nvml(nvml, pci_bus_id)) return nvml;
    if (nvml->library) dlclose(nvml->library);
    free(nvml);
    return NULL;
}

void cuda_nvml_close(CudaNvml *nvml) {
    if (!nvml) return;
    nvml->shutdown();
    dlclose(nvml->library);
    free(nvml);
}

const char *cuda_throttle_text(unsigned long long reasons, char *buf, size_t size) {
    // nvmlClocksEventReason*. Left out: 0x1 idle, 0x2 clocks set by the user, 0x100 display.
    static const struct {
        unsigned long long bit;
        const char *word;
    } words[] = {{0x4, "power cap"}, {0x8, "hardware slowdown"}, {0x10, "sync boost"},
                 {0x20, "thermal"},  {0x40, "hardware thermal"}, {0x80, "power brake"}};
    size_t used = 0;
    buf[0] = '\0';
    for (size_t i = 0; i < sizeof words / sizeof *words && used < size; i++)
        if (reasons & words[i].bit)
            used += (size_t)snprintf(buf + used, size - used, "%s%s", used ? ", " : "", words[i].word);
    return buf;
}

void cuda_nvml_read(const CudaNvml *nvml, DeviceSensors *sensors) {
    unsigned value = 0;
    unsigned long long wide = 0;
    memset(sensors, 0, sizeof *sensors);
    if (nvml->clock(nvml->gpu, NVML_CLOCK_SM, &value) == 0) sensors->sm_clock_mhz = value;
    if (nvml->clock(nvml->gpu, NVML_CLOCK_MEMORY, &value) == 0) sensors->memory_clock_mhz = value;
    if (nvml->power(nvml->gpu, &value) == 0) sensors->power_watts = value * 1e-3;
    if (nvml->temperature(nvml->gpu, NVML_TEMPERATURE_GPU, &value) == 0) sensors->temperature_c = value;
    if (nvml->energy(nvml->gpu, &wide) == 0) sensors->energy_joules = (double)wide * 1e-3;
    if (nvml->throttle && nvml->throttle(nvml->gpu, &wide) == 0)
        cuda_throttle_text(wide, sensors->throttle, sizeof sensors->throttle);
}

bool device_sensors(DeviceSensors *sensors) {
    memset(sensors, 0, sizeof *sensors);
    if (!cuda_backend.nvml && !cuda_backend.no_nvml) {
        cuda_backend.nvml = cuda_nvml_open(NULL, cuda_backend.facts.id);
        cuda_backend.no_nvml = !cuda_backend.nvml;
    }
    if (cuda_backend.nvml) cuda_nvml_read(cuda_backend.nvml, sensors);
    return cuda_backend.nvml != NULL;
}
