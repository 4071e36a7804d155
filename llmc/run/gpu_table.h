// GPUs that people train on, with the figures of their datasheets: memory, dense peak, bandwidth. The planner reads it;
// a GPU that is really there is asked itself (device.h), never looked up here. Owns nothing.
#pragma once
#include "llmc/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    const char *name;
    double memory;                        // bytes; a GB of a datasheet counted as 10^9: never more than there is
    double peak_bf16, peak_fp16, peak_32; // FLOP/s, dense, fp32 accumulation; 0: none. 32: on TF32 tensor cores
    double bandwidth;                     // bytes/s
} GpuSpec;

const GpuSpec *gpu_table(int *count);

// FLOP/s of the datasheet; 0: the GPU cannot compute in dtype.
double gpu_spec_peak(const GpuSpec *gpu, DType dtype);

// dtype, or fp16 where the GPU has no bf16.
DType gpu_spec_dtype(const GpuSpec *gpu, DType dtype);

#ifdef __cplusplus
}
#endif
