// A step shared by several processes, with the same bits for any number of them.
//
// The sequences of a step are cut into groups, and a process computes some groups, one after the
// other. The gradients of the groups are added by a fixed binary tree: neighbours first, then
// neighbouring sums, and so on; a sum without a neighbour goes up unchanged.
//
//   6 groups    ((0 + 1) + (2 + 3)) + (4 + 5)
//               3 processes compute 0 1 | 2 3 | 4 5 and add the inner sums
//
// So the bits depend on the number of groups, not on the number of processes. Each process has
// groups / processes groups, a power of two unless it is alone, so that its sum is a node of the
// tree. No library adds anything: each process receives its range of every unit
// (llmc/model/partition.h) from all, and adds. Then either all receive the sums, and make the same
// update (-z 0); or each updates its ranges alone, and all receive the new weights (-z 1).
//
// Both run beside the computation: a unit's gradients leave as soon as they are complete, while the
// backward pass goes on to the block before it, and its new weights arrive until the next forward
// pass reads them.
//
// Every node of the tree is rounded to the gradients' dtype. With one group nothing is added, and
// with one process nothing is exchanged.
#pragma once
#include "llmc/model/model.h"

typedef struct {
    int64_t step_windows, B;
    int groups, first, count; // of the step; those of this process are first .. first + count - 1
    int rank, processes;
} StepShare;

// The share of process `rank` of `processes`. False and a message that lists the possible numbers
// of processes if groups / processes is not a power of two, or if there are fewer sequences than
// groups.
bool step_share_make(StepShare *share, int64_t step_windows, int64_t B, int groups, int rank,
                     int processes, Error *err);
// The sequences of group `number` of this process, counted from 0.
int64_t step_share_windows(const StepShare *share, int number);

typedef struct DataParallel DataParallel;
// overlap: exchange beside computation; otherwise it is waited for, with the same bits.
DataParallel *data_parallel_create(const StepShare *share, Model *model, bool overlap, Error *err);
void data_parallel_destroy(DataParallel *d);

// Call in this order. Queued on the compute stream; a failure within a micro-step is told by
// data_parallel_end.
void data_parallel_begin(DataParallel *d); // before the first micro-step of a step
// before each micro-step; last: of the step
void data_parallel_micro_step(DataParallel *d, bool last);
void data_parallel_end_group(DataParallel *d, int number); // after the last one of each group
// After the last group. Now model_own_gradients have the gradient of the whole step, and without -z
// 1 all gradients are there; model_step_losses has its losses.
bool data_parallel_end(DataParallel *d, Error *err);
// After optimizer_norm: model_norm has the sums of squares of all processes.
bool data_parallel_share_norm(DataParallel *d, Error *err);
// With -z 1, after an update or after loading: sends the weights of this process and receives those
// of others.
bool data_parallel_share_weights(DataParallel *d, Error *err);
// Before anything but a micro-step reads weights: waits until all have arrived.
bool data_parallel_await_weights(DataParallel *d, Error *err);

// With -z 1 process 0 writes files from state that others have. It calls `write`; the others serve
// what it reads. Returns on all when it has ended: on process 0 its result, on the others true, or
// false if the exchange failed.
bool data_parallel_write(DataParallel *d, bool (*write)(void *context, Error *err), void *context,
                         Error *err);
