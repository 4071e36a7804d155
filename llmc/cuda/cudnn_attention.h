// cuDNN's attention on the GPU of this process: the seam between attention.c, which decides, and cuDNN. Owns cuDNN's
// handle. In the simulator, which does not emulate cuDNN, dev/sim/cudnn_sim.cpp stands behind the same functions.
#pragma once
#include "llmc/base/error.h"
#include "llmc/cuda/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

// Whether cuDNN can be used here: the library is there, new enough, and the GPU is one that it has fused attention for.
// The first call loads the library, later ones give the same answer.
bool cudnn_attention_open(Error *why);
void cudnn_attention_close(void);               // after everything below was destroyed
int cudnn_attention_version(void);              // 91900
const char *cudnn_attention_version_text(void); // "9.19.0"

// One pass at one shape. NULL and the reason when cuDNN has none whose bits repeat, or only with more workspace than
// max_workspace bytes. Takes milliseconds; cudnn_attention_compile takes up to 1.3 s, and must be done before it runs.
typedef struct CudnnAttention CudnnAttention;
CudnnAttention *cudnn_attention_create(AttentionPass pass, AttentionShape shape, int64_t max_workspace, Error *why);
void cudnn_attention_destroy(CudnnAttention *attention); // NULL is fine
int64_t cudnn_attention_workspace(const CudnnAttention *attention);
bool cudnn_attention_compile(CudnnAttention *attention, Error *why);

// The tensors of attention_forward and attention_backward (llmc/ops.h), of exactly the shape. Enqueued on the compute
// stream, may be captured. workspace is 256-byte aligned. False, with the reason, when cuDNN does not launch it.
bool cudnn_attention_forward(CudnnAttention *attention, Tensor out, Tensor lse, Tensor qkv, void *workspace,
                             Error *why);
bool cudnn_attention_backward(CudnnAttention *attention, Tensor dqkv, Tensor dout, Tensor out, Tensor lse, Tensor qkv,
                              void *workspace, Error *why);

#ifdef __cplusplus
}
#endif
