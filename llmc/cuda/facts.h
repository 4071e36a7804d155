// What a GPU can do at most, derived from what it says of itself: FLOP/s of the datasheet from multiprocessors x clock
// x operations a clock, memory bandwidth from clock x bus width. Pure arithmetic, so that it is tested without a GPU;
// no CUDA header is needed here.
#pragma once
#include "llmc/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    char name[128];         // "NVIDIA H200"
    int compute_capability; // major * 10 + minor
    int units;              // multiprocessors
    int clock_khz;          // highest clock of the multiprocessors; 0 = not told
    int memory_clock_khz;   // 0 = not told
    int memory_bus_bits;
} GpuAttributes;

// Dense FLOP/s (2 a multiply-add) with fp32 accumulation, as the datasheet counts them; 0 = not known. fp32 counts on
// the TF32 tensor cores when tf32 is set and there are some.
double gpu_peak_flops(const GpuAttributes *gpu, DType dtype, bool tf32);

// Whether there are fp8 matmuls: the tensor cores have them from sm_89, cuBLASLt from 12.1, for Blackwell from 12.8
// (versions as the library counts them, 120803 is 12.8.3).
bool gpu_has_fp8(int compute_capability, size_t cublaslt_version);

// Bytes a second between chip and memory, as the datasheet counts them; 0 = not known.
double gpu_peak_bandwidth(const GpuAttributes *gpu);

// "13.0" of 13000, "12.4" of 12040: how CUDA counts its versions. Returns buf.
const char *cuda_version_text(int version, char *buf, size_t size);

// "80 90" -> "sm_80, sm_90": how a list of architectures reads in a message. Returns buf.
const char *gpu_list_text(const char *archs, char *buf, size_t size);

#ifdef __cplusplus
}
#endif
