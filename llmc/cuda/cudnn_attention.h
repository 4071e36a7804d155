// cuDNN's attention on the GPU of this process. cudnn_attention.c owns cuDNN's handle; what it runs
// is made by cudnn_graph.h.
#pragma once
#include "llmc/cuda/attention.h"

// Whether cuDNN can be used here: the library is present and new enough, and has fused attention
// for this GPU. The first call loads the library; later calls return the same answer.
bool cudnn_attention_open(Error *why);
void cudnn_attention_close(void); // after everything below was destroyed

// One pass at one shape in a way of cuDNN. NULL when there is none that needs at most max_workspace
// bytes; then the reason as well, unless cuDNN never had this way. Takes milliseconds;
// cudnn_attention_compile takes up to 1.3 s, and must be done before it runs.
typedef struct CudnnPass CudnnAttention;
CudnnAttention *cudnn_attention_create(AttentionPass pass, AttentionShape shape, AttentionWay way,
                                       int64_t max_workspace, Error *why);
void cudnn_attention_destroy(CudnnAttention *attention); // NULL is fine
int64_t cudnn_attention_workspace(const CudnnAttention *attention);
bool cudnn_attention_compile(CudnnAttention *attention, Error *why);

// The tensors of attention_forward or attention_backward (llmc/ops.h), of exactly the shape;
// forward dqkv and dout are absent. Enqueued on the compute stream, may be captured. workspace is
// 256-byte aligned. False, with the reason, when the launch fails.
bool cudnn_attention_run(CudnnAttention *attention, Tensor out, Tensor lse, Tensor qkv, Tensor dqkv,
                         Tensor dout, void *workspace, Error *why);
