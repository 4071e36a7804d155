// What the files behind attention_forward and attention_backward share, and what the rest of llmc/cuda may ask of them.
// attention.c checks the tensors and decides who computes: our own kernels, or cuDNN. Layouts and formulas are those of
// llmc/ops.h; an op's tensors have been checked when they get here.
#pragma once
#include "llmc/base/error.h"
#include "llmc/device.h"
#include "llmc/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int64_t B, T, NH, HS;
    DType dtype;
} AttentionShape;

typedef enum { ATTENTION_FORWARD, ATTENTION_BACKWARD, ATTENTION_PASSES } AttentionPass;

// ----------------------------------------------------------------------------------------------------------- the
// choice

// For device_init, once the streams exist: false, with the reason and the way out, when options ask for cuDNN and this
// machine has none that it can use. Shapes that cuDNN does not take (fp32, head sizes) are no reason: they run on own
// kernels, and cuda_attention_description says so.
bool cuda_attention_check(const DeviceOptions *options, Error *err);

// Who computes attention at the shape that was planned last, for the run's header: "cuDNN 9.19.0", "own kernels (cuDNN
// not found: ...)", "cuDNN 9.19.0 or own kernels, to be measured" before the first step, "forward cuDNN 9.19.0,
// backward own kernels (...)". Empty before ops_workspace_bytes. Valid until the next call.
const char *cuda_attention_description(void);

// ------------------------------------------------------------------------------------------------------ our own
// kernels Used where cuDNN is absent, slower or does not take the shape. Two families behind one pair of calls. Tensor
// cores (flash_forward.cu, flash_backward.cu): bf16 on sm_80+, fp16 on sm_75+, head sizes that are a multiple of 8, at
// most 128. Plain (plain_attention.cu): every floating dtype and every head size, on the ordinary units. Neither ever
// holds a T x T matrix; both add in a fixed order, without atomics.

// Whether the tensor-core kernels take this: otherwise the calls below run the plain ones.
bool cuda_flash_supports(DType dtype, int64_t head_size);

// Any floating dtype, any head size. They take scratch memory from the workspace, at most cuda_size_flash.
void cuda_flash_forward(Tensor out, Tensor lse, Tensor qkv, int num_heads);
void cuda_flash_backward(Tensor dqkv, Tensor dout, Tensor out, Tensor lse, Tensor qkv, int num_heads);

// What the kernels of both families are told.
typedef struct {
    int T, NH, HS;
    int heads;         // B * NH
    int group;         // heads whose blocks run side by side, see flash_block in flash_tile.cuh
    float scale;       // of the scores: 1 / sqrt(HS)
    float scale_log2e; // the same for 2^x in place of e^x
} FlashShape;

// The plain family. delta: (B,NH,T) fp32 of scratch, rowsum(dout * out).
void cuda_plain_attention_forward(Tensor out, Tensor lse, Tensor qkv, FlashShape s);
void cuda_plain_attention_backward(Tensor dqkv, Tensor dout, Tensor out, Tensor lse, Tensor qkv, float *delta,
                                   FlashShape s);

FlashShape cuda_flash_shape(Tensor qkv, int num_heads);

// ----------------------------------------------------------------------------------------------------------------
// cuDNN cuDNN's attention on the GPU of this process (cudnn_attention.c), which owns cuDNN's handle.

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
