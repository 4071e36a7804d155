// Muon: the update of a matrix is its momentum, orthogonalised: every direction in which the matrix acts gets the same
// size. What takes the place of M = U S V^T is about U V^T, found by five steps of a polynomial in X = M / |M|:
//   X = a X + (b A + c A A) X,  A = X X^T      (a, b, c) = (3.4445, -4.7750, 2.0315)
// which brings singular values between 0.01 and 1 to about 0.7 .. 1.2; exactly 1 is not needed. Momentum is Nesterov's.
// Jordan et al., "Muon: An optimizer for hidden layers in neural networks", https://kellerjordan.github.io/posts/muon/,
// 2024. Scale and weight decay: Liu et al., "Muon is Scalable for LLM Training", 2025.
// Built from ops.h alone. Owns the list of matrices; their memory and the scratch are the model's.
#pragma once
#include "llmc/model/optimizer_state.h"

typedef struct Muon Muon;
// Of those among tensors[0 .. count) whose rule is RULE_DIRECTION; parameters: the same order. tensors must stay as
// they are. scratch: u8, what optimizer_muon_scratch asks for.
Muon *muon_create(const UpdateTensor *tensors, const Parameter *parameters, int count, Tensor scratch);
void muon_destroy(Muon *muon);

// Between the decision of the step and its update: from gradients and momentum to directions, which replace the
// gradients. When the step is skipped momentum and weights stay as they are, and what the gradients hold then is not
// used.
void muon_directions(Muon *muon, UpdateParams params, Tensor control);
