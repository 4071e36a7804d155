// Muon: the update of a matrix is its momentum, orthogonalised, so that every direction in which
// the matrix acts gets the same size. M = U S V^T is replaced by about U V^T, found by five steps
// of a polynomial in X = M / |M|:
//
//   X = a X + (b A + c A A) X,  A = X X^T      (a, b, c) = (3.4445, -4.7750, 2.0315)
//
// which brings singular values between 0.01 and 1 to about 0.7 .. 1.2; exactly 1 is not needed.
// Momentum is Nesterov's. Jordan et al., "Muon: An optimizer for hidden layers in neural networks",
// https://kellerjordan.github.io/posts/muon/, 2024. Scale and weight decay: Liu et al., "Muon is
// Scalable for LLM Training", 2025.
#pragma once
#include "llmc/model/optimizer_state.h"
#include "llmc/model/parameters.h"
#include "llmc/ops.h"

typedef struct Muon Muon;
// For the tensors of the list whose rule is RULE_DIRECTION; parameters: of the whole model. The
// list is the caller's. scratch: u8, the size given by optimizer_muon_scratch.
Muon *muon_create(UpdateList *list, const Parameter *parameters, int num_parameters,
                  Tensor scratch);
void muon_destroy(Muon *muon);

// Call between the decision of the step and its update. Turns gradients and momentum into
// directions, which replace the gradients. If the step is skipped, momentum and weights do not
// change, and the content of the gradients is not used.
void muon_directions(Muon *muon, UpdateParams params, Tensor control);
