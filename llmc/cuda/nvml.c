// See nvml.h, and device_sensors of device.h on top of it. The few functions of NVML that the
// sensors need are declared here: NVIDIA's nvml.h comes with some toolkits only, the library with
// every driver. Its interface is stable: names that end in _v2 were added next to the old ones,
// which stay.
#include "llmc/cuda/nvml.h"

#include "llmc/base/format.h"
#include "llmc/cuda/backend.h"
#include "llmc/cuda/library_loader.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// nvml.h: nvmlReturn_t is an int, 0 for success; nvmlDevice_t is a pointer.
typedef void *NvmlGpu;
enum { NVML_CLOCK_SM = 1, NVML_CLOCK_MEMORY = 2, NVML_TEMPERATURE_GPU = 0 };

struct CudaNvml {
    void *library;
    NvmlGpu gpu;
    int (*shutdown)(void);
    int (*clock)(NvmlGpu, int type, unsigned *mhz);
    int (*power)(NvmlGpu, unsigned *milliwatts);
    // since the driver was loaded; Volta and newer
    int (*energy)(NvmlGpu, unsigned long long *millijoules);
    int (*temperature)(NvmlGpu, int sensor, unsigned *celsius);
    int (*throttle)(NvmlGpu, unsigned long long *reasons); // NULL where the driver has neither name
};

CudaNvml *cuda_nvml_open(const char *path, const char *pci_bus_id) {
    int (*init)(void) = NULL;
    int (*find)(const char *, NvmlGpu *) = NULL;
    const char *file = path ? path : "libnvidia-ml.so.1";
    CudaNvml *nvml = (CudaNvml *)calloc(1, sizeof *nvml);
    if (!nvml) return NULL;

    const LibraryFunction functions[] = {
        {"nvmlInit_v2", &init},
        {"nvmlShutdown", &nvml->shutdown},
        {"nvmlDeviceGetHandleByPciBusId_v2", &find},
        {"nvmlDeviceGetClockInfo", &nvml->clock},
        {"nvmlDeviceGetPowerUsage", &nvml->power},
        {"nvmlDeviceGetTotalEnergyConsumption", &nvml->energy},
        {"nvmlDeviceGetTemperature", &nvml->temperature},
    };

    // since driver 535
    const LibraryFunction throttle = {"nvmlDeviceGetCurrentClocksEventReasons", &nvml->throttle};
    const LibraryFunction older = {"nvmlDeviceGetCurrentClocksThrottleReasons", &nvml->throttle};

    nvml->library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (nvml->library &&
        library_functions(nvml->library, file, functions, sizeof functions / sizeof *functions,
                          NULL) &&
        init() == 0) {
        if (!library_functions(nvml->library, file, &throttle, 1, NULL))
            (void)library_functions(nvml->library, file, &older, 1, NULL);
        if (find(pci_bus_id, &nvml->gpu) == 0) return nvml;
        nvml->shutdown();
    }

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
            used +=
                (size_t)snprintf(buf + used, size - used, "%s%s", used ? ", " : "", words[i].word);
    return buf;
}

void cuda_nvml_read(const CudaNvml *nvml, DeviceSensors *sensors) {
    unsigned value = 0;
    unsigned long long wide = 0;
    memset(sensors, 0, sizeof *sensors);
    if (nvml->clock(nvml->gpu, NVML_CLOCK_SM, &value) == 0) sensors->sm_clock_mhz = value;
    if (nvml->clock(nvml->gpu, NVML_CLOCK_MEMORY, &value) == 0) sensors->memory_clock_mhz = value;
    if (nvml->power(nvml->gpu, &value) == 0) sensors->power_watts = value * 1e-3;
    if (nvml->temperature(nvml->gpu, NVML_TEMPERATURE_GPU, &value) == 0)
        sensors->temperature_c = value;
    if (nvml->energy(nvml->gpu, &wide) == 0) sensors->energy_joules = (double)wide * 1e-3;
    if (nvml->throttle && nvml->throttle(nvml->gpu, &wide) == 0)
        cuda_throttle_text(wide, sensors->throttle, sizeof sensors->throttle);
}

static CudaNvml *opened; // by the first device_sensors
static bool is_missing;  // it was looked for and is not there

void nvml_shutdown(void) {
    cuda_nvml_close(opened);
    opened = NULL;
    is_missing = false;
}

bool device_sensors(DeviceSensors *sensors) {
    memset(sensors, 0, sizeof *sensors);
    if (!opened && !is_missing) {
        opened = cuda_nvml_open(NULL, cuda_backend.facts.id);
        is_missing = !opened;
    }
    if (opened) cuda_nvml_read(opened, sensors);
    return opened != NULL;
}
