// The weights, gradients, optimizer state and losses of a model as tensors on the device: for the
// passes, the optimizer, the exchange between processes, and the readers and writers of files.
#pragma once
#include "llmc/model/model_options.h"

int model_num_tensors(const Model *model);
const Parameter *model_parameters(const Model *model); // model_num_tensors entries
// In the same order: all tensors of the optimizer (in host memory under offload), rule, rate and
// weight decay (as a multiple of the run's: 1 or 0). Where the state is divided its tensors have no
// data here.
const UpdateTensor *model_tensors(const Model *model);
// The tensors that this process updates: all of them, or with a divided state slices of some, with
// their state.
const UpdateTensor *model_own_tensors(const Model *model, int *count);
Range model_own_elements(const Model *model, int index); // of a parameter

// Call when an update of the weights was queued: everything derived from them is out of date.
void model_weights_changed(Model *model);

// Memory unit by unit, each a tensor (elements) with the padding between its parameters, which is
// 0.
const Partition *model_partition(const Model *model);
Tensor model_unit_weights(const Model *model, int unit);
Tensor model_unit_gradients(const Model *model, int unit);       // of the micro-steps
Tensor model_unit_sums(const Model *model, int unit, int level); // of groups: level 0 .. levels - 1
// this process's range of the unit: the sums of all
Tensor model_own_gradients(const Model *model, int unit);
Tensor model_exchange_buffer(const Model *model, int half); // 0 or 1, in the dtype of gradients
Tensor model_norm(const Model *model); // (processes, norm parts and more) fp32: sums of squares

// Under offload: the device memory that chunks of the state pass through, and its bytes; otherwise
// NULL and 0.
void *model_offload_buffer(const Model *model, int64_t *bytes);
// Arena memory that nothing else uses between the last micro-step of a step and the next forward
// pass, for the optimizer's scratch data. Planned for the optimizer of the options
// (optimizer_scratch_bytes).
Tensor model_optimizer_scratch(const Model *model); // u8

// (B) fp32: losses by row of the micro-batch, of the step so far
Tensor model_sequence_losses(const Model *model);
// (groups, B) fp32: of each group; with one group model_sequence_losses
Tensor model_step_losses(const Model *model);
// (B,T) fp32, nats: of each token of the batch after model_forward
Tensor model_token_losses(const Model *model);

Tensor model_control(const Model *model); // u8: the StepControl
