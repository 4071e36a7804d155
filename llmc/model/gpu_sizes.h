// How much scratch memory the ops of the CUDA backend take, and how many rows of logits the LM head
// works on at a time. Arithmetic of shapes alone: no CUDA header is needed, and it is part of every
// build. The backend lays out its workspace by these functions, and the planner of a machine
// without a GPU gets the same numbers from them. The constants that decide a size (rows of a block,
// the length of a tile) are here, and their reasons next to the kernels that use them.
#pragma once
#include "llmc/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

// -------------------------------------------------------------------------------------- of all ops

// ops_workspace_bytes: the largest of the families below, with `cudnn` bytes for its attention, a
// multiple of 256. compute_capability 0: on any GPU.
int64_t cuda_size_workspace(OpsShape shape, int compute_capability, int64_t cudnn);

// ops_head_chunk_rows on a GPU with this number of multiprocessors and this memory. With 1
// multiprocessor: the maximum on any GPU of this memory.
int64_t cuda_size_head_chunk_rows(OpsShape shape, int num_sms, int64_t memory);

// Bytes that cuDNN's attention may take, nearly all for its backward pass: on most GPUs B * NH * T
// * T * 2, refused above `limit`; 0 if cuDNN has no kernel for this shape or GPU. An upper bound:
// see cudnn_plan.c.
int64_t cuda_size_cudnn(OpsShape shape, int compute_capability, int64_t limit);
// The same of its form whose bits need not repeat, which has no limit: sums of dQ, and on GPUs that
// run the kernel for sm_80 as much again in its own workspace.
int64_t cuda_size_cudnn_fast(OpsShape shape, int compute_capability);
// The limit on a GPU with this much free memory, unless the user asked for cuDNN.
int64_t cuda_size_cudnn_limit(int64_t free_bytes);

// A part of a workspace layout: returns the offset of the part and moves *end after it, to a
// multiple of 256.
static inline int64_t cuda_part(int64_t *end, int64_t bytes) {
    const int64_t offset = *end;
    *end += (bytes + 255) / 256 * 256;
    return offset;
}

// -------------------------------------------------------------------------------- family by family

// The library's workspace during a product, a multiple of 256.
int64_t cuda_size_matmul(OpsShape shape, int compute_capability);

// Partial sums (parts, OC) fp32 of a bias gradient: the maximum of blocks in stage 1, and the
// minimum of their rows.
enum { BIAS_TARGET_BLOCKS = 1024, BIAS_MIN_PART_ROWS = 64 };
int64_t cuda_size_bias_gradient(int64_t N, int64_t OC);

// layernorm_backward: its blocks, which are added in groups, and their partial sums (blocks, 3, C)
// fp32. Their number depends on N and C alone, never on the GPU, because it determines the order of
// additions. Short inputs get fewer blocks, so that each has 16 rows to amortise its partial sums.
enum {
    LAYERNORM_SUMS = 3,
    LAYERNORM_MIN_BLOCK_ROWS = 16,
    LAYERNORM_MAX_BLOCKS = 384,
    LAYERNORM_GROUP_BLOCKS = 16
};
int64_t cuda_layernorm_blocks(int64_t N, int64_t C);
int64_t cuda_size_layernorm(int64_t N, int64_t C);

// qk_norm_rope_backward with weights: its blocks and their partial sums (blocks, 2, HS) fp32, added
// as layernorm's.
int64_t cuda_qk_norm_blocks(int64_t N);
int64_t cuda_size_qk_norm(int64_t N, int64_t HS);

// embedding_backward: positions in order of their token, and two partial sums (C) fp32 a tile of
// them.
enum { EMBEDDING_TILE = 64, EMBEDDING_PARTIALS = 2 };
typedef struct {
    int64_t order, partials, end; // offsets
} CudaEmbeddingLayout;
CudaEmbeddingLayout cuda_size_embedding(int64_t positions, int64_t C);

// The own backward pass of attention: rowsum(dout * out) (B,NH,T) fp32 at the beginning, then the
// sums of the columns of dq, dk and dv of each block, which has at least this number of rows of a
// head.
enum { FLASH_MIN_ROWS = 64 };
typedef struct {
    int64_t sums, end; // offsets
} CudaFlashLayout;
CudaFlashLayout cuda_size_flash(int64_t B, int64_t NH, int64_t NKV, int64_t T, int64_t HS);

// attention_decode: of each chunk of keys of a head HS sums, a maximum and a sum.
enum { DECODE_KEYS = 64, DECODE_EXTRA_FLOATS = 2 };
int64_t cuda_size_decode(int64_t sequences, int64_t NH, int64_t HS, int64_t maxT);

// gradient_sumsq: one partial sum a part, and the maximum of parts of a tensor.
enum { NORM_MAX_PARTS = 1024, ADAFACTOR_TILE_ROWS = 512 };
int64_t cuda_size_optimizer(OpsShape shape);

// tensor_statistics: the counts of each part, and the maximum of parts.
enum { STATISTICS_MAX_PARTS = 1024 };

#ifdef __cplusplus
}
#endif
