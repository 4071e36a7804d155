// NVML, the library behind nvidia-smi: clocks, power, energy, temperature, throttling. Optional: found by dlopen in the
// driver's files at run time, never linked; without it there are no sensors.
#pragma once
#include "llmc/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CudaNvml CudaNvml;

// For the GPU at this PCI bus address ("00000000:1B:00.0"); path is the library, NULL the driver's. NULL where there is
// no NVML, or it does not know the GPU.
CudaNvml *cuda_nvml_open(const char *path, const char *pci_bus_id);
void cuda_nvml_close(CudaNvml *nvml); // NULL is fine

// What NVML tells; fields that it does not tell are 0.
void cuda_nvml_read(const CudaNvml *nvml, DeviceSensors *sensors);

// NVML's bits of reasons as words: "power cap, thermal"; "" for none, and for an idle GPU or clocks that the user set.
const char *cuda_throttle_text(unsigned long long reasons, char *buf, size_t size);

#ifdef __cplusplus
}
#endif
