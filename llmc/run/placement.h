// Where this process runs: on the processors beside its GPU, its own share of them if
// several processes of the run are there. Threads that start later, OpenMP's and the loader's,
// inherit it, and Linux takes memory, the loader's pinned buffers too, from the node of the thread
// that first touches it. /sys describes the machine.
//
//   A process with a GPU takes the processors that PCI connects the GPU to. Several processes with
//   the same processors divide them by cores, in the order of ranks.
//   Several processes on the CPU take the NUMA nodes in turn. One alone keeps all it has.
//
// Nothing is ever added to the processors that the process may use already (taskset, control
// groups, Slurm).
#pragma once
#include "llmc/base/error.h"

#include <sched.h>

enum { PLACEMENT_TEXT = 240 };
typedef struct {
    // For the header: where, or why not; "": there was nothing to choose. On process 0 a line for
    // each process of its machine, as far as there is space.
    char text[16 * PLACEMENT_TEXT];
} Placement;

// After processes_meet and before device_init, on all processes. gpu: PCI address of its GPU, or
// "". threads: that it computes with on the CPU. False only if the processes are lost.
bool placement_bind(Placement *placement, const char *gpu, int threads, Error *err);

// -------------------------------------------------------------------------------------- the choice

// The inputs of the choice besides the machine.
typedef struct {
    char host[64], gpu[32]; // gpu: "0000:3b:00.0", or "": it computes on the CPU
    int threads;
    cpu_set_t mask; // the processors that it may use
} PlacedProcess;

// Chooses for process `rank` of all, and says why; changes nothing. sys: "/sys".
cpu_set_t placement_choose(const char *sys, const PlacedProcess *all, int count, int rank,
                           char text[PLACEMENT_TEXT]);
