// comm.h for one process: rank 0 of 1. Buffers are device memory; copies run in order on the compute stream.
// NCCL is neither linked nor looked for: with one process there is nobody to talk to.
#include "llmc/comm.h"

#include "llmc/cuda/backend.h"

int comm_rank(void) { return 0; }
int comm_size(void) { return 1; }

// Shards are the whole when there is one rank; the same memory may serve as both.
static void copy_whole(const char *op, Tensor dst, Tensor src) {
    tensor_check(op, dst, src.dtype, tensor_numel(src));
    if (dst.data != src.data) cuda_copy(dst.data, src.data, tensor_bytes(src));
}

void comm_all_reduce_sum(Tensor t) { (void)t; }
void comm_reduce_scatter_sum(Tensor shard, Tensor full) { copy_whole("comm_reduce_scatter_sum", shard, full); }
void comm_all_gather(Tensor full, Tensor shard) { copy_whole("comm_all_gather", full, shard); }
void comm_broadcast(Tensor t, int root) {
    (void)t;
    REQUIRE(root == 0, "comm_broadcast: root %d of 1 rank", root);
}
void comm_barrier(void) {}
