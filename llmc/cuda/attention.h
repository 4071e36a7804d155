// What the files behind attention_forward and attention_backward share, and what the rest of llmc/cuda may ask of them.
// attention.c decides who computes: the kernels of flash_forward.cu and flash_backward.cu or cuDNN (cudnn_attention.h).
#pragma once
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

// For device_init, once the streams exist: false, with the reason and the way out, when options ask for cuDNN and this
// machine has none that it can use. Shapes that cuDNN does not take (fp32, head sizes) are no reason: they run on own
// kernels, and cuda_attention_description says so.
bool cuda_attention_check(const DeviceOptions *options, Error *err);

// Who computes attention at the shape that was planned last, for the run's header: "cuDNN 9.19.0", "own kernels (cuDNN
// not found: ...)", "cuDNN 9.19.0 or own kernels, to be measured" before the first step, "forward cuDNN 9.19.0,
// backward own kernels (...)". Empty before ops_workspace_bytes. Valid until the next call.
const char *cuda_attention_description(void);

#ifdef __cplusplus
}
#endif
