// NVML of three drivers: THROTTLE is the name under which it tells why the clocks are held down, or
// some other.
int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **gpu);
int nvmlDeviceGetClockInfo(void *gpu, int type, unsigned *mhz);
int nvmlDeviceGetPowerUsage(void *gpu, unsigned *milliwatts);
int nvmlDeviceGetTotalEnergyConsumption(void *gpu, unsigned long long *millijoules);
int nvmlDeviceGetTemperature(void *gpu, int sensor, unsigned *celsius);
int THROTTLE(void *gpu, unsigned long long *reasons);

int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **gpu) { return *gpu = (void *)bus, 0; }
int nvmlDeviceGetClockInfo(void *gpu, int type, unsigned *mhz) {
    return *mhz = gpu ? 1000u + (unsigned)type : 0, 0;
}
int nvmlDeviceGetPowerUsage(void *gpu, unsigned *milliwatts) { return *milliwatts = 700000, !gpu; }
int nvmlDeviceGetTotalEnergyConsumption(void *gpu, unsigned long long *millijoules) {
    return *millijoules = 5000, !gpu;
}
int nvmlDeviceGetTemperature(void *gpu, int sensor, unsigned *celsius) {
    return *celsius = 60u + (unsigned)sensor, !gpu;
}
int THROTTLE(void *gpu, unsigned long long *reasons) { return *reasons = 0x4, !gpu; }
