// The measured speed of light, which step times are compared with: the rate of a plain matmul and
// the bandwidth of a large copy. On top of ops.h and device.h, the same for both backends.
#pragma once
#include "llmc/base/error.h"
#include "llmc/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    double matmul_flops;   // FLOP/s in dtype
    double copy_bandwidth; // bytes/s, read + written, of buffers larger than the caches
} DeviceSpeed;

// Medians of some 0.3 s. memory is the size of the run that goes with it: on the CPU the buffers
// take at most max(memory, 32 MB), so for a small run the copy may stay in the caches, as the run
// itself does. On a GPU they take at most a quarter of the memory that was free at the start,
// whatever the run. They do not count for device_memory_peak.
bool speed_measure(DType dtype, size_t memory, DeviceSpeed *speed, Error *err);

#ifdef __cplusplus
}
#endif
