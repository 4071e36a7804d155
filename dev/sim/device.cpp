// The simulated GPU as the runtime describes it: model, attributes, versions, errors. The facts are
// those of a real GPU of the compute capability asked for, except the number of multiprocessors:
// grids are sized by it, and many blocks only make tests slow.
#include "dev/sim/runtime.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

namespace sim {
const char *setting(const char *name) {
    const char *value = getenv(name);
    return value && *value ? value : nullptr;
}
int setting_number(const char *name, int otherwise) {
    const char *text = setting(name);
    if (!text) return otherwise;
    char *end;
    const long value = strtol(text, &end, 10);
    if (*end || value < 1 || value > 1 << 30) fatal("%s=%s is no positive number", name, text);
    return (int)value;
}
bool setting_is(const char *name, const char *word) {
    const char *text = setting(name);
    if (text && strcmp(text, word) != 0) fatal("%s=%s: there is %s", name, text, word);
    return text != nullptr;
}
bool hardware_numbers() {
    static const bool on = setting_is("SIM_NUMERICS", "hardware");
    return on;
}

// ------------------------------------------------------------------------------------------- model

// Clocks in kHz (the highest), shared memory in KB, from NVIDIA's data sheets and the CUDA
// programming guide.
static const struct {
    int compute_capability, clock, memory_clock, bus_bits, shared_per_unit, shared_per_block,
        threads, blocks;
} models[] = {
    {75, 1590000, 5001000, 256, 64, 64, 1024, 16},     // T4
    {80, 1410000, 1593000, 5120, 164, 163, 2048, 32},  // A100 80 GB
    {86, 1695000, 9751000, 384, 100, 99, 1536, 16},    // RTX 3090
    {89, 2520000, 10501000, 384, 100, 99, 1536, 24},   // RTX 4090
    {90, 1980000, 2619000, 5120, 228, 227, 2048, 32},  // H100
    {100, 1965000, 3996000, 8192, 228, 227, 2048, 32}, // B200
    {120, 2407000, 14001000, 512, 100, 99, 1536, 24},  // RTX 5090
};

enum { CONTEXT_MB = 477 }; // half a GB, as a context with its modules may take

static DeviceModel read_model() {
    DeviceModel model = {};
    model.compute_capability = setting_number("SIM_CC", 90);
    model.num_sms = setting_number("SIM_SMS", 2);
    model.memory_bytes = (size_t)setting_number("SIM_MEMORY_MB", 4096) << 20;
    model.context_bytes = (size_t)setting_number("SIM_CONTEXT_MB", CONTEXT_MB) << 20;
    if (model.context_bytes >= model.memory_bytes)
        fatal("SIM_MEMORY_MB: the context alone takes SIM_CONTEXT_MB");
    for (const auto &m : models) {
        if (m.compute_capability != model.compute_capability) continue;
        model.clock_khz = m.clock;
        model.memory_clock_khz = m.memory_clock;
        model.bus_bits = m.bus_bits;
        model.shared_per_unit = m.shared_per_unit << 10;
        model.shared_per_block = m.shared_per_block << 10;
        model.threads_per_unit = m.threads;
        model.blocks_per_unit = m.blocks;
        model.reserved_shared = m.compute_capability >= 80 ? 1024 : 0;
        return model;
    }
    fatal("SIM_CC=%d: there are 75, 80, 86, 89, 90, 100, 120", model.compute_capability);
}
const DeviceModel &device_model() {
    static const DeviceModel model = read_model();
    return model;
}

int driver_version() { return setting_number("SIM_DRIVER", CUDART_VERSION); }

static int num_devices() {
    static const int count = setting_number("SIM_GPUS", 1);
    return count;
}
static bool exists(int device) { return device >= 0 && device < num_devices(); }
static int current_device;

// ------------------------------------------------------------------------------------------ errors

static cudaError_t last_error;

cudaError_t set_error(cudaError_t error) { return last_error = error; }
cudaError_t set_error(cudaError_t error, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "sim: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, " (%s)\n", cudaGetErrorName(error));
    va_end(arguments);
    return last_error = error;
}

static cudaError_t sticky;
cudaError_t sticky_error() { return sticky; }
void launch_fails() {
    sticky = set_error(cudaErrorIllegalAddress, "a launch fails, as SIM_STICKY asks");
}

static const char *refused; // the kernel of a launch whose error nobody has asked for
void note_refused_launch(const char *kernel) { refused = kernel; }
void expect_refusal_seen(const char *call) {
    if (refused)
        fatal("the launch of %s was refused and nobody looked at it before %s", refused, call);
}

static const struct {
    cudaError_t error;
    const char *name, *text;
} error_texts[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorMissingConfiguration, "cudaErrorMissingConfiguration",
     "__global__ function call is not configured"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice",
     "no kernel image is available for execution on the device"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorIllegalState, "cudaErrorIllegalState",
     "the operation cannot be performed in the present state"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
     "an illegal memory access was encountered"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureMerge, "cudaErrorStreamCaptureMerge",
     "operation would result in a merge of separate capture sequences"},
    {cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched",
     "capture was not ended in the same stream"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined",
     "capturing stream has unjoined work"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream"},
    {cudaErrorStreamCaptureImplicit, "cudaErrorStreamCaptureImplicit",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capturing stream"},
    {cudaErrorStreamCaptureWrongThread, "cudaErrorStreamCaptureWrongThread",
     "attempt to terminate a thread-local capture sequence from another thread"},
};
} // namespace sim

using namespace sim;

extern "C" {
cudaError_t cudaGetLastError(void) {
    const cudaError_t error = last_error;
    last_error = sticky;
    refused = nullptr;
    return error;
}
cudaError_t cudaPeekAtLastError(void) {
    refused = nullptr;
    return last_error;
}
const char *cudaGetErrorName(cudaError_t error) {
    for (const auto &e : error_texts)
        if (e.error == error) return e.name;
    return "unrecognized error code";
}
const char *cudaGetErrorString(cudaError_t error) {
    for (const auto &e : error_texts)
        if (e.error == error) return e.text;
    return "unrecognized error code";
}

// GPUs by number: all of the same model. A process uses one of them, and the memory is its own.
cudaError_t cudaGetDeviceCount(int *count) {
    *count = num_devices();
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
    if (!exists(device)) return set_error(cudaErrorInvalidDevice);
    current_device = device;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int *device) {
    *device = current_device;
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *version) {
    *version = driver_version();
    return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char *text, int length, int device) {
    if (!exists(device)) return set_error(cudaErrorInvalidDevice);
    snprintf(text, (size_t)length, "0000:%02X:00.0", (unsigned)device);
    return cudaSuccess;
}

// The attributes that somebody asks for.
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr which, int device) {
    if (!exists(device)) return set_error(cudaErrorInvalidDevice);
    const DeviceModel &m = device_model();
    const struct {
        cudaDeviceAttr attribute;
        int value;
    } attributes[] = {
        {cudaDevAttrComputeCapabilityMajor, m.compute_capability / 10},
        {cudaDevAttrComputeCapabilityMinor, m.compute_capability % 10},
        {cudaDevAttrMultiProcessorCount, m.num_sms},
        {cudaDevAttrClockRate, m.clock_khz},
        {cudaDevAttrMemoryClockRate, m.memory_clock_khz},
        {cudaDevAttrGlobalMemoryBusWidth, m.bus_bits},
        {cudaDevAttrL2CacheSize, 1 << 20}, // far below a real one: tests copy little
        {cudaDevAttrMaxSharedMemoryPerBlockOptin, m.shared_per_block},
    };

    for (const auto &a : attributes) {
        if (a.attribute != which) continue;
        *value = a.value;
        return cudaSuccess;
    }
    return set_error(cudaErrorInvalidValue, "cudaDeviceGetAttribute: attribute %d is not simulated",
                     (int)which);
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device) {
    if (!exists(device)) return set_error(cudaErrorInvalidDevice);
    const DeviceModel &m = device_model();
    // whoever asks for another property sees that it is not simulated
    memset((void *)p, 0xff, sizeof *p);
    snprintf(p->name, sizeof p->name, "CUDA simulator (CPU)");
    p->totalGlobalMem = m.memory_bytes;
    p->major = m.compute_capability / 10;
    p->minor = m.compute_capability % 10;
    p->multiProcessorCount = m.num_sms;
    return cudaSuccess;
}
}
