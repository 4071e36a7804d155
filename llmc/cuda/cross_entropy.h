// Softmax cross-entropy over rows of logits: the kernel between the two halves of the LM head (head_loss.c).
// Rows are independent. Targets are trusted to be in [0, V): the host checked them when it read the data.
#pragma once
#include "llmc/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

// losses (R) fp32 = log sum_{v<V} exp(logits[r,v]) - logits[r,targets[r]], in nats. logits (R,Vp) floating, read once;
// targets (R) i32.
void cross_entropy_forward(float *losses, Tensor logits, const int32_t *targets, int64_t V);

// The same losses, to the bit, and logits[r] = factor * (softmax(logits[r]) - onehot(targets[r])) in its place, 0 from
// column V on. factor = scale * the loss_scale of control, a StepControl on the device; control absent: scale.
void cross_entropy_backward(float *losses, Tensor logits, const int32_t *targets, int64_t V, float scale,
                            Tensor control);

#ifdef __cplusplus
}
#endif
