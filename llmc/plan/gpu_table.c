// See gpu_table.h. Figures are dense (without sparsity, which datasheets often count in) and with
// fp32 accumulation, which GeForce cards run at half their 16-bit and fp8 rate. test_gpu_table
// derives each peak a second time, from units x clock x operations a clock.
#include "llmc/plan/gpu_table.h"

#include "llmc/base/edit_distance.h"
#include "llmc/base/format.h"
#include "llmc/device.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// -------------------------------------------------------------------------------------------- GPUs

#define GB     *1e9
#define TFLOPS *1e12

// PCIe x16 of generations 3, 4 and 5: 8, 16 and 32 GT/s per lane, 128 of 130 bits.
#define PCIE3 (15.754 GB)
#define PCIE4 (31.508 GB)
#define PCIE5 (63.015 GB)

// NVLink of generations 3, 4 and 5, all links of a GPU, one way: half of the 600 GB/s, 900 GB/s
// and 1.8 TB/s of NVIDIA's datasheets (A100, H100, H200, DGX B200), which count both ways. Only of
// GPUs that a switch connects to all others of the machine: an NVLink bridge (RTX 3090, H100 PCIe)
// connects two.
#define NVLINK3 (300 GB)
#define NVLINK4 (450 GB)
#define NVLINK5 (900 GB)

// clang-format off
static const GpuSpec TABLE[] = {
    // name           also      memory  bf16           fp16           fp32 or TF32   fp8           bandwidth  link   NVLink    SMs  sm_
    {"T4",           NULL,       16 GB, 0,             65 TFLOPS,     8.1 TFLOPS,    0,            320 GB,  PCIE3, 0,        40,  75},
    {"L4",           NULL,       24 GB, 121 TFLOPS,    121 TFLOPS,    60.5 TFLOPS,   242 TFLOPS,   300 GB,  PCIE4, 0,        58,  89},
    {"A10",          "a10g",     24 GB, 125 TFLOPS,    125 TFLOPS,    62.5 TFLOPS,   0,            600 GB,  PCIE4, 0,        72,  86},
    {"RTX 3090",     "3090",     24 GB, 71 TFLOPS,     71 TFLOPS,     35.6 TFLOPS,   0,            936 GB,  PCIE4, 0,        82,  86},
    {"RTX 4090",     "4090",     24 GB, 165.2 TFLOPS,  165.2 TFLOPS,  82.6 TFLOPS,   330.3 TFLOPS, 1008 GB, PCIE4, 0,       128,  89},
    {"RTX 5090",     "5090",     32 GB, 209.5 TFLOPS,  209.5 TFLOPS,  104.8 TFLOPS,  419 TFLOPS,   1792 GB, PCIE5, 0,       170, 120},
    {"A100 40GB",    NULL,       40 GB, 312 TFLOPS,    312 TFLOPS,    156 TFLOPS,    0,            1555 GB, PCIE4, NVLINK3,  108,  80},
    {"L40S",         NULL,       48 GB, 362 TFLOPS,    362 TFLOPS,    183 TFLOPS,    733 TFLOPS,   864 GB,  PCIE4, 0,       142,  89},
    {"A100 80GB",    "a100",     80 GB, 312 TFLOPS,    312 TFLOPS,    156 TFLOPS,    0,            2039 GB, PCIE4, NVLINK3,  108,  80},
    {"RTX PRO 6000", "pro6000",  96 GB, 503.8 TFLOPS,  503.8 TFLOPS,  251.9 TFLOPS,  1007.6 TFLOPS, 1792 GB, PCIE5, 0,       188, 120},
    {"H100 PCIe",    NULL,       80 GB, 756 TFLOPS,    756 TFLOPS,    378 TFLOPS,    1513 TFLOPS,  2000 GB, PCIE5, 0,       114,  90},
    {"H100 SXM",     "h100",     80 GB, 989.4 TFLOPS,  989.4 TFLOPS,  494.7 TFLOPS,  1978.9 TFLOPS, 3350 GB, PCIE5, NVLINK4,  132,  90},
    {"H200",         NULL,      141 GB, 989.4 TFLOPS,  989.4 TFLOPS,  494.7 TFLOPS,  1978.9 TFLOPS, 4800 GB, PCIE5, NVLINK4,  132,  90},
    {"B200",         NULL,      180 GB, 2250 TFLOPS,   2250 TFLOPS,   1125 TFLOPS,   4500 TFLOPS,  8000 GB, PCIE5, NVLINK5,  148, 100},
};
// clang-format on

enum { COUNT = sizeof TABLE / sizeof TABLE[0], NAME = 32 };

const GpuSpec *gpu_table(int *count) {
    *count = COUNT;
    return TABLE;
}

double gpu_spec_peak(const GpuSpec *gpu, DType dtype) {
    switch (dtype) {
    case DTYPE_BF16:
        return gpu->peak_bf16;
    case DTYPE_FP16:
        return gpu->peak_fp16;
    case DTYPE_FP32:
        return gpu->peak_32;
    case DTYPE_E4M3:
        return gpu->peak_fp8;
    default:
        return 0;
    }
}

DType gpu_spec_dtype(const GpuSpec *gpu, DType dtype) {
    if (dtype == DTYPE_BF16 && gpu->peak_bf16 == 0 && gpu->peak_fp16 > 0) return DTYPE_FP16;
    return dtype;
}

// ------------------------------------------------------------------------------------------- names

// Reduces a name to the common part of its spellings: letters and digits, small, without "gb" at
// the end.
static void plain_name(char plain[NAME], const char *text, size_t length) {
    size_t n = 0;
    for (size_t i = 0; i < length && n < NAME - 1; i++)
        if (isalnum((unsigned char)text[i])) plain[n++] = (char)tolower((unsigned char)text[i]);
    plain[n] = '\0';
    if (n > 2 && strcmp(plain + n - 2, "gb") == 0) plain[n - 2] = '\0';
}

enum { MOST_GIGABYTES = 100000 };

// "24G", "16 GB", "11.5gb", "80GiB": bytes; 0: it is no size; negative: it is none that memory has.
static double memory_of(const char *text, size_t length) {
    char copy[NAME], *unit;
    if (length >= sizeof copy || length == 0 || !isdigit((unsigned char)text[text[0] == '-']))
        return 0;
    snprintf(copy, sizeof copy, "%.*s", (int)length, text);
    const double n = strtod(copy, &unit);
    unit += strspn(unit, " ");
    double gigabyte = 1e9;
    if (strcasecmp(unit, "gib") == 0)
        gigabyte = 0x1p30;
    else if (strcasecmp(unit, "g") != 0 && strcasecmp(unit, "gb") != 0)
        return 0;
    if (n > 0 && n <= MOST_GIGABYTES) return n * gigabyte;
    return -1;
}

bool gpu_find(GpuChoice *gpu, const char *text, size_t length, Error *err) {
    char asked[NAME], plain[NAME];
    const GpuSpec *nearest = NULL;
    int least = NAME;
    memset(gpu, 0, sizeof *gpu);
    gpu->spec.memory = memory_of(text, length);

    if (gpu->spec.memory < 0)
        return error_set(err, "--gpu %.*s: the size must be above 0 and at most %dG", (int)length,
                         text, MOST_GIGABYTES);
    if (gpu->spec.memory > 0) {
        snprintf(gpu->name, sizeof gpu->name, "%.*s", (int)length, text);
        gpu->spec.name = gpu->name;
        return true;
    }

    plain_name(asked, text, length);
    for (int i = 0; i < COUNT; i++) {
        plain_name(plain, TABLE[i].name, strlen(TABLE[i].name));
        int d = edit_distance(asked, plain);
        if (TABLE[i].also && strcmp(asked, TABLE[i].also) == 0) d = 0;
        const size_t longer = (size_t)max_i64((int64_t)strlen(asked), (int64_t)strlen(plain));
        if (d >= least || 2 * d > (int)longer) continue; // half of the letters, as of options
        least = d;
        nearest = &TABLE[i];
    }

    if (least > 0 || length >= NAME) {
        char names[400] = "";
        for (int i = 0; i < COUNT; i++) {
            const size_t used = strlen(names);
            snprintf(names + used, sizeof names - used, "%s%s", i > 0 ? ", " : "", TABLE[i].name);
        }

        char advice[NAME + 40] = "known GPUs";
        if (nearest) snprintf(advice, sizeof advice, "did you mean %s? Known GPUs", nearest->name);
        return error_set(err, "--gpu %.*s: no such GPU; %s: %s, and sizes such as 24G",
                         (int)min_i64((int64_t)length, 80), text, advice, names);
    }

    gpu->spec = *nearest;
    return true;
}

bool gpu_find_all(GpuChoice gpus[MOST_GPUS], int *count, const char *names, Error *err) {
    *count = 0;
    for (const char *at = names; *names; at++) {
        const size_t length = strcspn(at, ",");
        const bool here = length == 4 && strncasecmp(at, "this", length) == 0;

        if (length == 0)
            return error_set(
                err, "--gpu %.80s: no GPU before or after a comma; leave the comma out", names);
        if (*count == MOST_GPUS) return error_set(err, "--gpu: more than %d GPUs", MOST_GPUS);

        GpuChoice *gpu = &gpus[(*count)++];
        if (!here && !gpu_find(gpu, at, length, err)) return false;

        if (here) { // the row of the table that is alike, or else the device's own figures
            const DeviceFacts *f = device_facts();
            if (strcmp(f->backend, "cpu") == 0)
                return error_set(
                    err,
                    "--gpu this: this program computes on the CPU; name a GPU, such as --gpu h100");
            snprintf(gpu->name, sizeof gpu->name, "%.31s", f->name);
            gpu->spec = (GpuSpec){.name = gpu->name,
                                  .memory = (double)f->memory_total,
                                  .peak_bf16 = f->peak_flops[DTYPE_BF16],
                                  .peak_fp16 = f->peak_flops[DTYPE_FP16],
                                  .peak_32 = f->peak_flops[DTYPE_FP32],
                                  .bandwidth = f->peak_bandwidth,
                                  .num_sms = f->units};

            int alike = 0;
            while (alike < COUNT &&
                   !(TABLE[alike].num_sms == f->units &&
                     fabs(TABLE[alike].peak_fp16 / f->peak_flops[DTYPE_FP16] - 1) < 0.05 &&
                     fabs(TABLE[alike].memory / (double)f->memory_total - 1) < 0.12))
                alike++;
            if (alike < COUNT) *gpu = (GpuChoice){.spec = TABLE[alike]};
        }

        at += length;
        if (!*at) break;
    }
    return true;
}

double gpu_exchange_rate(const GpuSpec *gpu) {
    if (gpu->nvlink > 0) return gpu->nvlink;
    return gpu->link;
}

bool gpu_check_types(const char *names, DType dtype, bool fp8, Error *err) {
    GpuChoice gpus[MOST_GPUS];
    int count;
    if (!gpu_find_all(gpus, &count, names, err)) return false;
    for (int i = 0; i < count; i++) {
        const GpuSpec *g = &gpus[i].spec;
        bool has_dtype = dtype == DTYPE_COUNT || gpu_spec_peak(g, dtype) > 0,
             has_fp8 = g->peak_fp8 > 0;
        if (g->bandwidth == 0) continue;
        if (*gpus[i].name) { // this machine's, which no row of the table is like
            has_dtype = dtype == DTYPE_COUNT || device_facts()->supports[dtype];
            has_fp8 = device_facts()->supports[DTYPE_E4M3];
        }

        if (!has_dtype)
            return error_set(err, "--dtype %s: not available on %s; use %s", dtype_name(dtype),
                             g->name, dtype_name(gpu_spec_dtype(g, dtype)));
        if (fp8 && !has_fp8)
            return error_set(
                err, "--fp8: %s has no fp8 matmuls (GPUs from sm_89 on have them); leave it out",
                g->name);
    }
    return true;
}
