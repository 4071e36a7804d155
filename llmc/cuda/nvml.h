// NVML, the library behind nvidia-smi: clocks, power, energy, temperature, throttling. Optional:
// loaded from the driver with dlopen at run time, never linked; without it there are no sensors.
#pragma once
#include "llmc/device.h"

typedef struct CudaNvml CudaNvml;

// For the GPU at this PCI bus address ("00000000:1B:00.0"); path is the library, NULL the driver's.
// NULL if NVML is missing or does not know the GPU.
CudaNvml *cuda_nvml_open(const char *path, const char *pci_bus_id);
void cuda_nvml_close(CudaNvml *nvml); // NULL is fine
void nvml_shutdown(void); // called by device_shutdown: closes what device_sensors opened

// Reads the sensors; fields that NVML does not report are 0.
void cuda_nvml_read(const CudaNvml *nvml, DeviceSensors *sensors);

// NVML's bits of reasons as words: "power cap, thermal"; "" for none, and for an idle GPU or clocks
// that the user set.
const char *cuda_throttle_text(unsigned long long reasons, char *buf, size_t size);
