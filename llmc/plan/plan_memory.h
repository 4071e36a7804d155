// The memory of a run before any is allocated: the capacity of a device, the workspace of a GPU's
// ops, and the bytes of each class and kind. The plan is the allocator's own, so its bytes are
// those that model_create takes.
#pragma once
#include "llmc/model/model.h"
#include "llmc/plan/gpu_table.h"

// Bytes that the plan leaves free on a GPU with this much memory: 1 GB, at most 6%, for the CUDA
// context, kernels and the libraries' own buffers.
double plan_reserve(double memory);
// Bytes of this machine's device memory for a plan: of a GPU the free memory less plan_reserve,
// under Windows a tenth of it if that is more, since a full GPU would take host memory there; of a
// CPU the available memory, with -b auto or -r auto less 5%, at least 256 MiB, for the program,
// oneDNN's buffers and the loader.
double plan_room(bool automatic);

// This GPU, for ModelOptions.sizes.
PlannedSizes plan_sizes(const GpuSpec *gpu, AttentionChoice attention);

// The kinds of activations alive at the peak are the rows of a table in plan_memory.c, of which
// these are the last.
enum {
    KIND_OTHER = 12,
    KIND_GAPS,
    KIND_COUNT
}; // gaps: lost by the layout, total - memory_plan_live_peak
const char *activation_kind_name(int kind); // "residual", ...
int activation_kind(const char *name);      // kind of a tensor of the plan

typedef struct {
    double classes[MEM_CLASS_COUNT]; // they sum to total
    double kinds[KIND_COUNT];        // they sum to classes[MEM_ACTIVATIONS]
    double total;                    // of the arena
    double host;                     // of pinned host memory, under offload
} PlannedMemory;
PlannedMemory plan_memory(const ModelOptions *model);
