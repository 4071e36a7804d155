// The table of GPUs. Figures are NVIDIA's: dense (without sparsity, which datasheets often count in) and with fp32
// accumulation, which GeForce cards do at half their 16-bit rate. test_planner derives each peak a second time, from
// units x clock x operations a clock.
#include "llmc/run/gpu_table.h"

#define GB     *1e9
#define TFLOPS *1e12

// clang-format off
static const GpuSpec TABLE[] = {
    // name              memory   bf16           fp16           fp32 or TF32   bandwidth
    {"T4",               16 GB,   0,             65 TFLOPS,     8.1 TFLOPS,    320 GB},
    {"L4",               24 GB,   121 TFLOPS,    121 TFLOPS,    60.5 TFLOPS,   300 GB},
    {"A10",              24 GB,   125 TFLOPS,    125 TFLOPS,    62.5 TFLOPS,   600 GB},
    {"RTX 3090",         24 GB,   71 TFLOPS,     71 TFLOPS,     35.6 TFLOPS,   936 GB},
    {"RTX 4090",         24 GB,   165.2 TFLOPS,  165.2 TFLOPS,  82.6 TFLOPS,   1008 GB},
    {"RTX 5090",         32 GB,   209.5 TFLOPS,  209.5 TFLOPS,  104.8 TFLOPS,  1792 GB},
    {"A100 40GB",        40 GB,   312 TFLOPS,    312 TFLOPS,    156 TFLOPS,    1555 GB},
    {"L40S",             48 GB,   362 TFLOPS,    362 TFLOPS,    183 TFLOPS,    864 GB},
    {"A100 80GB",        80 GB,   312 TFLOPS,    312 TFLOPS,    156 TFLOPS,    2039 GB},
    {"RTX PRO 6000",     96 GB,   503.8 TFLOPS,  503.8 TFLOPS,  251.9 TFLOPS,  1792 GB},
    {"H100 PCIe",        80 GB,   756 TFLOPS,    756 TFLOPS,    378 TFLOPS,    2000 GB},
    {"H100 SXM",         80 GB,   989.4 TFLOPS,  989.4 TFLOPS,  494.7 TFLOPS,  3350 GB},
    {"H200",             141 GB,  989.4 TFLOPS,  989.4 TFLOPS,  494.7 TFLOPS,  4800 GB},
    {"B200",             180 GB,  2250 TFLOPS,   2250 TFLOPS,   1125 TFLOPS,   8000 GB},
};
// clang-format on

const GpuSpec *gpu_table(int *count) {
    *count = (int)(sizeof TABLE / sizeof TABLE[0]);
    return TABLE;
}

double gpu_spec_peak(const GpuSpec *gpu, DType dtype) {
    return dtype == DTYPE_BF16   ? gpu->peak_bf16
           : dtype == DTYPE_FP16 ? gpu->peak_fp16
           : dtype == DTYPE_FP32 ? gpu->peak_32
                                 : 0.0;
}

DType gpu_spec_dtype(const GpuSpec *gpu, DType dtype) {
    return dtype == DTYPE_BF16 && gpu->peak_bf16 == 0 ? DTYPE_FP16 : dtype;
}
