// Collectives over the processes of one run. One process for now: rank 0 of 1, every call returns at once and leaves
// its data as it is. Buffers are device memory; calls are ordered on the compute stream.
#pragma once
#include "llmc/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

int comm_rank(void); // 0 .. comm_size() - 1
int comm_size(void);

void comm_all_reduce_sum(Tensor t);                      // t <- sum over ranks of t
void comm_reduce_scatter_sum(Tensor shard, Tensor full); // shard <- this rank's 1/size of the sum over ranks of full
void comm_all_gather(Tensor full, Tensor shard);         // full <- the shards of all ranks, in rank order
void comm_broadcast(Tensor t, int root);                 // t <- root's t
void comm_barrier(void);                                 // returns when every rank has arrived

#ifdef __cplusplus
}
#endif
