// --fp8: the linear layers of a block, private to the files of a model.
#pragma once
#include "llmc/model/model_object.h"

// Adds the memory of --fp8 to the plan; nothing without it.
void model_fp8_plan(MemoryPlan *plan, Layout *layout, const ModelOptions *o);
// Linear layers with --fp8, see gpt2.c. They do not include the GELU. residual: absent, or added to
// the output.
void model_fp8_forward(const Block *b, LinearLayer layer, Tensor out, Tensor residual, Tensor in,
                       Tensor bias);
void model_fp8_backward(const Block *b, LinearLayer layer, Tensor din, Gradient dweight,
                        Gradient dbias, Tensor dout, Tensor in);
// Quantises the weights of all layers if they have changed since the last call. Call before the
// first pass of a micro-step, outside its graph. Does nothing without --fp8.
void model_fp8_prepare(Model *model);
