// The places of a model's parameters in memory, and the process that owns each part.
//
// Weights and gradients are stored unit by unit: a block is a unit, and the parameters outside
// blocks are the last one. The processes of a run exchange unit by unit, and of each unit a process
// owns one range: it adds the gradients there, and with -z 1 it alone has the optimizer's state of
// it and updates it. After Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion
// Parameter Models", 2020.
//
// Where every rule works element by element, a unit is cut into cells of equal size, and a process
// owns neighbouring cells. Their number depends on the groups of a step, not on the processes, so
// that what is summed cell by cell (the gradient norm) has the same bits for any number of
// processes. Other rules (Muon, Adafactor) need whole tensors: a process owns some of them, so that
// all have about the same FLOPs of the update.
#pragma once
#include "llmc/model/optimizer_state.h"

// A part of a parameter whose sum of squares is taken at once: a cell of it, or all of it.
typedef struct {
    int parameter;
    Range elements; // of the parameter
    int owner;      // process
} NormPart;

typedef struct {
    int num_units, processes;
    int64_t elements; // of all units, padding included
    int64_t *begin;   // (num_units + 1): where a unit begins
    // (num_units, processes + 1): process r owns elements [r] .. [r + 1] of the memory
    int64_t *bounds;
    int64_t *offsets; // (num_parameters): where a parameter begins, a multiple of PLAN_ALIGNMENT
    int *units;       // (num_parameters): its unit
    int num_norm_parts;
    NormPart *norm_parts; // in the order of parameters
} Partition;

// groups: of a step; processes share it.
Partition *partition_create(const ModelConfig *config, OptimizerKind kind, int groups,
                            int processes);
void partition_destroy(Partition *p);
int64_t partition_max_norm_parts(const ModelConfig *config, int groups);

// The elements of the memory that a process owns of a unit.
Range partition_of_unit(const Partition *p, int unit, int process);
