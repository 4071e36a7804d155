// Where this process runs (--numa): on the processors beside its GPU, its own share of them if several processes of the
// run are there. Threads that start later, OpenMP's and the loader's, inherit it, and Linux takes memory, the loader's
// pinned buffers too, from the node of the thread that first touches it. The machine is described by hwloc, which is
// loaded when it is needed; without it, and where a launcher has already bound the process, nothing happens.
//
//   auto   a GPU: the processors that PCI connects it to; several processes with the same processors divide them by
//          cores, in the order of ranks. On the CPU several processes take the nodes in turn, and one keeps all it has,
//          since its threads need them
//   NODE   the processors of this NUMA node, divided in the same way
// Nothing is ever added to the processors that the process may use already (taskset, control groups, Slurm).
#pragma once
#include "llmc/base/error.h"

#include <sched.h>

enum { PLACEMENT_TEXT = 240 };
typedef struct {
    int threads;                    // of the CPU backend, where --threads does not say; 0: as without a placement
    char text[16 * PLACEMENT_TEXT]; // for the header: where, or why not; "": there was nothing to choose. On process 0
                                    // a line for each process of its machine, as far as there is space
} Placement;

// --numa as it was typed. False and a message: neither auto, off nor a number.
bool placement_check(const char *numa, Error *err);

// After processes_meet and before device_init, on all processes. gpu: PCI address of its GPU, or "". False and a
// message only where a NODE was asked for: it is not there, or the process may not run on it.
bool placement_bind(Placement *placement, const char *numa, const char *gpu, int threads, Error *err);

// ---------------------------------------------------------------------------------------------------------- the choice

// What the choice depends on besides the machine.
typedef struct {
    char host[64], gpu[32]; // gpu: "0000:3b:00.0", or "": it computes on the CPU
    int threads;            // --threads; 0: as many as it has processors
    cpu_set_t mask;         // the processors that it may use
} PlacedProcess;

typedef struct {
    bool binds;     // to cpus, which are fewer than those of the mask
    bool is_here;   // hwloc's variables HWLOC_SYNTHETIC and HWLOC_XMLFILE describe another machine
    cpu_set_t cpus; // what the process uses
    int threads;
    char text[PLACEMENT_TEXT];
} PlacementChoice;

// Chooses for process `rank` of all; changes nothing.
bool placement_choose(PlacementChoice *choice, const char *numa, const PlacedProcess *all, int count, int rank,
                      Error *err);
