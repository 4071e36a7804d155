// The passes of GPT-2, private to the files of a model.
#pragma once
#include "llmc/model/model_object.h"

// The weight of the head: its own, or wte.
Tensor gpt2_head_weight(const Weights *w);
Gradient gpt2_head_gradient(const Gradients *g);
// The norm of this model.
void gpt2_norm_forward(const ModelConfig *config, Tensor out, Tensor mean, Tensor rstd, Tensor in,
                       Tensor weight, Tensor bias);
// The rows of wte of these tokens, or their norms, and of wpe, which may be absent.
void gpt2_embedding_forward(const ModelConfig *config, Tensor out, Tensor tokens, Tensor wte,
                            Tensor wpe);
void block_forward(const Block *b, Tensor out); // out (B,T,C): the residual stream after the block
void gpt2_forward(Model *model, const MicroStep *s, int block); // block 0: with the embedding
void gpt2_head_forward(Model *model, const MicroStep *s); // after the last block: the losses only
// The last block: with the head and its losses. L: of the parameters outside blocks.
void gpt2_backward(Model *model, const MicroStep *s, int unit);
