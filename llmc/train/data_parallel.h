// A step shared by several processes, with the same bits for any number of them.
//
// The sequences of a step are cut into groups, and a process computes some groups, one after the other. The gradients
// of the groups are added by a fixed binary tree: neighbours first, then neighbouring sums, and so on; a sum without a
// neighbour goes up unchanged.
//
//   6 groups    ((0 + 1) + (2 + 3)) + (4 + 5)      3 processes compute 0 1 | 2 3 | 4 5 and add the inner sums
//
// So the bits depend on the number of groups, not on the number of processes. Each process has groups / processes
// groups, a power of two unless it is alone, so that its sum is a node of the tree. The sums of the processes are
// exchanged in slices: each process receives its slice of every sum, adds them, and sends the result to all. No
// library adds anything. Afterwards all have all gradients, and make the same update.
//
// Every node of the tree is rounded to the gradients' dtype. With one group nothing is added, and with one process
// nothing is exchanged.
#pragma once
#include "llmc/model/gpt2.h"

typedef struct {
    int64_t step_windows, B;
    int groups, first, count; // of the step; those of this process are first .. first + count - 1
} StepShare;

// The share of process `rank` of `processes`. False and a message that lists the possible numbers of processes if
// groups / processes is not a power of two, or if there are fewer sequences than groups.
bool step_share_make(StepShare *share, int64_t step_windows, int64_t B, int groups, int rank, int processes,
                     Error *err);
// The sequences of group `number` of this process, counted from 0.
int64_t step_share_windows(const StepShare *share, int number);

// Call before the first micro-step of a step, after the last one of each group, and after the last group. After
// data_parallel_end the gradient tensors have the gradient of the whole step, and gpt2_step_losses its losses. Queued
// on the compute stream.
void data_parallel_begin(const StepShare *share, const Gpt2 *model);
void data_parallel_end_group(const StepShare *share, const Gpt2 *model, int number);
bool data_parallel_end(const StepShare *share, const Gpt2 *model, Error *err);
