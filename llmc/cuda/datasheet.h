// The abilities of a GPU, derived from the attributes that the driver reports: the datasheet's
// FLOP/s from multiprocessors x clock x operations per clock, memory bandwidth from clock x bus
// width. Pure arithmetic: no GPU is asked.
#pragma once
#include "llmc/tensor.h"

typedef struct {
    char name[128];         // "NVIDIA H200"
    int compute_capability; // major * 10 + minor
    int num_sms;            // multiprocessors
    int clock_khz;          // highest clock of the multiprocessors; 0 = not told
    int memory_clock_khz;   // 0 = not told
    int memory_bus_bits;
} GpuAttributes;

// Dense FLOP/s (2 per multiply-add) with fp32 accumulation, as the datasheet counts them; 0 =
// unknown. fp32 uses the TF32 tensor cores if tf32 is set and the GPU has them.
double gpu_peak_flops(const GpuAttributes *gpu, DType dtype, bool tf32);

// Whether fp8 matmuls are available: on tensor cores from sm_89, in cuBLASLt from 12.1, for
// Blackwell from 12.8 (versions in the library's encoding, 120803 is 12.8.3).
bool gpu_has_fp8(int compute_capability, size_t cublaslt_version);

// Bytes per second between chip and memory, as the datasheet counts them; 0 = unknown.
double gpu_peak_bandwidth(const GpuAttributes *gpu);

// CUDA's version encoding as text: 13000 is "13.0", 12040 is "12.4". Returns buf.
const char *cuda_version_text(int version, char *buf, size_t size);
