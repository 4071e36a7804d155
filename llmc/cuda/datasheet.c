// See datasheet.h. Peaks come from a table of operations per clock and multiprocessor.
#include "llmc/cuda/datasheet.h"
#include "llmc/base/format.h"

#include <stdio.h>
#include <string.h>

// FLOP a clock and multiprocessor, dense, accumulated in fp32; 0 = the hardware has none.
//
// geforce_halves: cards sold as GeForce run their tensor cores at half this rate when they
// accumulate in fp32. No attribute tells them from the professional cards with the same chip; their
// name does.
//
// tensor_clock: the clock that the datasheet's tensor core FLOP/s were counted at, as a fraction of
// the highest clock the driver reports. They are the same but for the large chips, which do not
// hold that clock with the tensor cores busy: an H200 or H100 SXM reports 1980 MHz, which would
// make 1070 TFLOP/s, and is sold with 989 (132 multiprocessors x 4096 x 1830 MHz); an H100 PCIe
// reports 1755 MHz and is sold with 756, the same fraction. A B200 reports 1965 MHz and is sold
// with 2250. Plain fp32 is counted at the highest clock on all of them.
typedef struct {
    int compute_capability;
    int fp8, fp16, bf16, tf32, fp32;
    bool geforce_halves;
    double tensor_clock;
} UnitRates;

static const UnitRates UNIT_RATES[] = {
    {75, 0, 1024, 0, 0, 128, true, 1.0},               // T4, RTX 2080 Ti, Quadro RTX
    {80, 0, 2048, 2048, 1024, 128, false, 1.0},        // A100, A30
    {86, 0, 1024, 1024, 512, 256, true, 1.0},          // A10, A40, RTX 3090
    {87, 0, 1024, 1024, 512, 256, false, 1.0},         // Orin
    {89, 2048, 1024, 1024, 512, 256, true, 1.0},       // L4, L40S, RTX 4090
    {90, 8192, 4096, 4096, 2048, 256, false, 0.924},   // H100, H200
    {100, 16384, 8192, 8192, 4096, 256, false, 0.944}, // B200; also for 10.3
    {120, 2048, 1024, 1024, 512, 256, true, 1.0},      // RTX PRO 6000, RTX 5090; also for 12.1
};

double gpu_peak_flops(const GpuAttributes *gpu, DType dtype, bool tf32) {
    // The row of this capability, or that of the nearest older one of the same generation.
    const UnitRates *r = NULL;
    const int compute_capability = gpu->compute_capability;
    for (size_t i = 0; i < sizeof UNIT_RATES / sizeof *UNIT_RATES; i++)
        if (UNIT_RATES[i].compute_capability <= compute_capability &&
            UNIT_RATES[i].compute_capability / 10 == compute_capability / 10)
            r = &UNIT_RATES[i];
    if (!r) return 0.0;
    const double clock = 1e3 * gpu->clock_khz * gpu->num_sms;
    const bool tensor_cores = dtype != DTYPE_FP32 || (tf32 && r->tf32 > 0);
    if (!tensor_cores) return r->fp32 * clock;
    double per_clock = 0.0;
    if (dtype == DTYPE_E4M3 || dtype == DTYPE_E5M2) per_clock = r->fp8;
    if (dtype == DTYPE_FP16) per_clock = r->fp16;
    if (dtype == DTYPE_BF16) per_clock = r->bf16;
    if (dtype == DTYPE_FP32) per_clock = r->tf32;
    if (r->geforce_halves && strstr(gpu->name, "GeForce")) per_clock /= 2;
    return per_clock * clock * r->tensor_clock;
}

bool gpu_has_fp8(int compute_capability, size_t cublaslt_version) {
    if (compute_capability >= 100) return cublaslt_version >= 120800;
    return compute_capability >= 89 && cublaslt_version >= 120100;
}

double gpu_peak_bandwidth(const GpuAttributes *gpu) {
    return 2.0 * 1e3 * gpu->memory_clock_khz * gpu->memory_bus_bits / 8; // two transfers a clock
}

const char *cuda_version_text(int version, char *buf, size_t size) {
    snprintf(buf, size, "%d.%d", version / 1000, version % 1000 / 10);
    return buf;
}
