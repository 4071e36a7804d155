// The four linear layers of a block, forward and backward: in the compute dtype one op of ops.h each, with --fp8 the
// quantisation of what goes in, weights that were quantised once a step, and fp8 matmuls (doc/fp8.md). Also where
// --numerics-every looks: every activation of a block, and every gradient of one, passes through a linear layer.
// Private to the gpt2*.c files.
#pragma once
#include "llmc/model/gpt2_internal.h"

// out (B,T,OC) = in (B,T,IC) @ weight^T + bias.
void linear_forward(const Block *b, LinearLayer layer, Tensor out, Tensor in);
// pre = in @ weight^T + bias; out = gelu(pre). For LINEAR_FC.
void linear_gelu_forward(const Block *b, Tensor out, Tensor pre, Tensor in);

// From dout (B,T,OC): the gradients of weight and bias into b->g, and din (B,T,IC). in is what the forward pass took.
void linear_backward(const Block *b, LinearLayer layer, Tensor din, Tensor dout, Tensor in, bool accumulate);
// The same through the GELU in front of LINEAR_FCPROJ: dpre = (dout @ weight) * gelu'(pre); in is gelu(pre), which
// dpre may overlap.
void linear_gelu_backward(const Block *b, Tensor dpre, Tensor dout, Tensor in, Tensor pre, bool accumulate);

// With --fp8: quantises the weights of all layers unless they are as they were at the last call; the scales of delayed
// scaling move on when they are not. Before the first pass of a micro-step, outside its graph.
void linear_prepare_weights(Gpt2 *model);
// The same before a pass that belongs to no step. It leaves no trace in the scales of the run, whatever it sees.
void linear_prepare_evaluation(Gpt2 *model);
// Forgets what the micro-steps since the last update have seen.
void linear_abandon_step(Gpt2 *model);
// What --fp8 adds to the plan, and what it costs in the arena; nothing without.
void linear_plan(MemoryPlan *plan, Layout *layout, const Gpt2Options *o);
