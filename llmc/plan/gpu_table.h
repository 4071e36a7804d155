// The table of GPUs: the figures of NVIDIA's datasheets by which runs are planned, and the GPU that
// --gpu names.
#pragma once
#include "llmc/base/error.h"
#include "llmc/number.h"

#include <stddef.h>

typedef struct {
    const char *name; // "A100 80GB"
    const char *also; // another name for it on the command line: "a100"; NULL: none
    double memory;    // bytes; a GB of a datasheet counted as 10^9: never more than there is
    // FLOP/s, dense, fp32 accumulation; 0: none. 32: on TF32 tensor cores
    double peak_bf16, peak_fp16, peak_32;
    double peak_fp8;        // e4m3; 0: none
    double bandwidth;       // bytes/s
    double link;            // bytes/s from or to the host, one way: PCIe x16
    double nvlink;          // bytes/s to the other GPUs of the machine, one way; 0: not by NVLink
    int num_sms;            // multiprocessors
    int compute_capability; // 75, 80, 86, ...
} GpuSpec;

const GpuSpec *gpu_table(int *count);

// The GPU that a user names, whatever the case, spaces, dashes and "GB" (h200, rtx-4090, a100-80),
// or gives by its memory alone (24G, 16GB, 80GiB): then all else is 0, and name is the text as
// typed. text is `length` bytes. False and a message with the nearest name and all names.
typedef struct {
    GpuSpec spec;
    char name[32]; // spec.name of a GPU given by its size
} GpuChoice;
bool gpu_find(GpuChoice *gpu, const char *text, size_t length, Error *err);

// Bytes/s from a GPU to the others of its machine, one way: NVLink where it has it, else PCIe; 0:
// only its memory is known.
double gpu_exchange_rate(const GpuSpec *gpu);

// FLOP/s of the datasheet; 0: the GPU cannot compute in dtype, or only its memory is known.
double gpu_spec_peak(const GpuSpec *gpu, DType dtype);

// dtype, or fp16 where the GPU has no bf16.
DType gpu_spec_dtype(const GpuSpec *gpu, DType dtype);

// The GPUs of --gpu, separated by commas; "this": this process's GPU; it must not run on a CPU.
enum { MOST_GPUS = 32 };
bool gpu_find_all(GpuChoice gpus[MOST_GPUS], int *count, const char *names, Error *err);
// Refuses a --dtype (DTYPE_COUNT: auto) or --fp8 that one of these GPUs, named as for gpu_find_all,
// lacks. Of a size alone nothing is known.
bool gpu_check_types(const char *names, DType dtype, bool fp8, Error *err);
