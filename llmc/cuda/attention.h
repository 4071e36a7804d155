// attention_forward and attention_backward on a GPU: attention.c chooses between our own kernels
// and cuDNN (cudnn_attention.h). Layouts and formulas are in llmc/ops.h.
#pragma once
#include "llmc/cuda/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int64_t B, T, NH, NKV, HS;
    DType dtype;
} AttentionShape;

typedef enum { ATTENTION_FORWARD, ATTENTION_BACKWARD, ATTENTION_PASSES } AttentionPass;

// The ways to compute a pass. Those of cuDNN differ in how the blocks of keys are added to dQ, so
// that its forward pass has the first alone. The numbers are in files of choices.
typedef enum {
    BY_OWN_KERNELS,
    BY_CUDNN_STORED,    // by a matmul with dS, which on most GPUs is kept in memory: B * NH * T * T
                        // elements
    BY_CUDNN_ORDERED,   // blocks wait for each other
    BY_CUDNN_UNORDERED, // as they get there: bits do not repeat. Only with --attention fast
    ATTENTION_WAYS,
    ATTENTION_WAY_UNKNOWN =
        ATTENTION_WAYS // until kernels are compiled and, with --attention auto, measured
} AttentionWay;

// For device_init, once the streams exist: false, with the reason and a remedy, when options ask
// for cuDNN and this machine has no usable one. Shapes that cuDNN does not support (fp32, head
// sizes) are not an error: they run on our own kernels, and cuda_attention_description says so.
bool cuda_attention_check(const DeviceOptions *options, Error *err);

// The implementation of attention at the shape planned last, for the run's header: "cuDNN 9.19.0",
// "own kernels (cuDNN not found: ...)", "cuDNN 9.19.0 or own kernels, to be measured" before the
// first step, "forward cuDNN 9.19.0, backward own kernels (...)", "forward cuDNN 9.19.0, backward
// cuDNN 9.19.0 without repeatable bits". Empty before ops_workspace_bytes. Valid until the next
// call.
const char *cuda_attention_description(void);

// Our own kernels, used where cuDNN is absent, slower or does not support the shape. One pair of
// calls covers two families. Tensor cores (flash_forward.cu, flash_backward.cu): bf16 on sm_80+,
// fp16 on sm_75+, head sizes that are a multiple of 8, at most 128. Plain (plain_attention.cu):
// every floating dtype and every head size, on the ordinary units. Neither ever stores a T x T
// matrix; both add in a fixed order, without atomics.

// Whether the tensor-core kernels support this; otherwise the calls below run the plain ones.
bool cuda_flash_supports(DType dtype, int64_t head_size);

// Any floating dtype, any head size. They take scratch memory from the workspace, at most
// cuda_size_flash. Backward returns whether it made dbias, which may be absent, as well: the
// tensor-core kernels do.
void cuda_flash_forward(Tensor out, Tensor lse, Tensor qkv, Heads heads);
bool cuda_flash_backward(Tensor dqkv, Tensor dout, Tensor out, Tensor lse, Tensor qkv, Heads heads,
                         Gradient dbias);

// Arguments of the kernels of both families.
typedef struct {
    int T, NH, NKV, HS;
    int heads;         // of all sequences: B * NH, or B * NKV of a grid whose blocks have keys
    int group;         // heads whose blocks run side by side, see flash_block in flash_tile.cuh
    float scale;       // of the scores: 1 / sqrt(HS)
    float scale_log2e; // the same for 2^x in place of e^x
} FlashShape;

// The plain family. delta: (B,NH,T) fp32 of scratch, rowsum(dout * out).
void cuda_plain_attention_forward(Tensor out, Tensor lse, Tensor qkv, FlashShape s);
void cuda_plain_attention_backward(Tensor dqkv, Tensor dout, Tensor out, Tensor lse, Tensor qkv,
                                   float *delta, FlashShape s);

FlashShape cuda_flash_shape(Tensor qkv, Heads heads);

// The workspace that cuDNN needs for attention at this shape, which becomes a planned one: see
// attention.c.
int64_t cuda_cudnn_workspace(OpsShape shape);

// Called by device_shutdown, after the last graph is gone.
void cuda_attention_shutdown(void);

#ifdef __cplusplus
}
#endif
