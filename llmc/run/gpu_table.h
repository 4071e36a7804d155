// GPUs that people train on, with the figures of their datasheets: memory, dense peak, bandwidth. The planner reads it;
// a GPU that is really there is asked itself (device.h), never looked up here. Owns nothing.
#pragma once
#include "llmc/base/error.h"
#include "llmc/tensor.h"

typedef struct {
    const char *name;                     // "A100 80GB"
    const char *also;                     // another name for it on the command line: "a100"; NULL: none
    double memory;                        // bytes; a GB of a datasheet counted as 10^9: never more than there is
    double peak_bf16, peak_fp16, peak_32; // FLOP/s, dense, fp32 accumulation; 0: none. 32: on TF32 tensor cores
    double peak_fp8;                      // e4m3; 0: none
    double bandwidth;                     // bytes/s
    double link;                          // bytes/s from or to the host, one way: PCIe x16
    int units;                            // multiprocessors
    int compute_capability;               // 75, 80, 86, ...
} GpuSpec;

const GpuSpec *gpu_table(int *count);

// The GPU that a user means: by its name, whatever the case, spaces, dashes and "GB" (h200, rtx-4090, a100-80), or by
// its memory alone (24G, 16GB, 80GiB), which leaves everything else 0 and lends name as it was typed. text is `length`
// bytes. False and a message that names the nearest one and all there are.
typedef struct {
    GpuSpec spec;
    char name[32]; // spec.name of one that is only a size
} GpuChoice;
bool gpu_find(GpuChoice *gpu, const char *text, size_t length, Error *err);

// FLOP/s of the datasheet; 0: the GPU cannot compute in dtype, or nothing but its memory is known.
double gpu_spec_peak(const GpuSpec *gpu, DType dtype);

// dtype, or fp16 where the GPU has no bf16.
DType gpu_spec_dtype(const GpuSpec *gpu, DType dtype);
