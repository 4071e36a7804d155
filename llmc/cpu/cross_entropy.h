// Softmax cross-entropy over rows of logits, the kernel between the two halves of the LM head. Rows are independent:
// the bits do not depend on the number of threads.
#pragma once
#include "llmc/tensor.h"

// losses (R) fp32 = log sum_{v<vocab} exp(logits[r,v]) - logits[r,targets[r]], in nats. logits (R,Vp) fp32 or bf16.
void cross_entropy_forward(float *losses, Tensor logits, const int32_t *targets, int64_t vocab);

// The same losses, and logits[r] = scale * (softmax(logits[r]) - onehot(targets[r])) in its place, 0 from vocab on.
// scratch: cross_entropy_scratch(vocab, threads) bytes.
void cross_entropy_backward(float *losses, Tensor logits, const int32_t *targets, int64_t vocab, float scale,
                            float *scratch);
int64_t cross_entropy_scratch(int64_t vocab, int threads);
