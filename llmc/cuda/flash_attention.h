// Our own causal attention: used where cuDNN is absent, slower or does not take the shape. attention.c chooses.
// Layouts and formulas are those of attention_forward and attention_backward in llmc/ops.h.
//
// Two families behind one pair of calls. Tensor cores (flash_forward.cu, flash_backward.cu): bf16 on sm_80+, fp16 on
// sm_75+, head sizes that are a multiple of 8, at most 128. Plain (plain_attention.cu): every floating dtype and every
// head size, on the ordinary units. Neither ever holds a T x T matrix; both add in a fixed order, without atomics.
#pragma once
#include "llmc/cuda/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

// Whether the tensor-core kernels take this: otherwise the calls below run the plain ones.
bool cuda_flash_supports(DType dtype, int64_t head_size);

// Any floating dtype, any head size; attention.c has checked the tensors. They take scratch memory from the workspace,
// at most cuda_size_flash.
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

#ifdef __cplusplus
}
#endif
