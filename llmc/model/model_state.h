// The weights, gradients and optimizer state of a model, for the optimizer, the exchange between processes, and the
// readers and writers of files: views of them in device memory, and their bytes to and from the host.
#pragma once
#include "llmc/model/model.h"

// ------------------------------------------------------------------------------------------------------------- tensors

int model_num_tensors(const Model *model);
const Parameter *model_parameters(const Model *model); // model_num_tensors entries
// In the same order: all tensors of the optimizer (in host memory under offload), rule, rate and weight decay (as a
// multiple of the run's: 1 or 0). Where the state is divided its tensors have no data here.
const UpdateTensor *model_tensors(const Model *model);
// What this process updates: all of them, or where the state is divided slices of some of them, with their state.
const UpdateTensor *model_own_tensors(const Model *model, int *count);
Range model_own_elements(const Model *model, int index); // of a parameter

// Call when an update of the weights was queued: everything derived from them is out of date.
void model_weights_changed(Model *model);

// Memory unit by unit, each a tensor (elements) with the padding between its parameters, which is 0.
const Partition *model_partition(const Model *model);
Tensor model_unit_weights(const Model *model, int unit);
Tensor model_unit_gradients(const Model *model, int unit);       // of the micro-steps
Tensor model_unit_sums(const Model *model, int unit, int level); // of groups: level 0 .. levels - 1
Tensor model_own_gradients(const Model *model, int unit);        // this process's range of the unit: the sums of all
Tensor model_exchange_buffer(const Model *model, int half);      // 0 or 1, in the dtype of gradients
Tensor model_norm(const Model *model); // (processes, norm parts and more) fp32: sums of squares

// Under offload: the device memory that chunks of the state pass through, and its bytes; otherwise NULL and 0.
void *model_offload_buffer(const Model *model, int64_t *bytes);
// Arena memory that nothing else uses between the last micro-step of a step and the next forward pass, for the
// optimizer's scratch data. Planned for the optimizer of the options (optimizer_scratch_bytes).
Tensor model_optimizer_scratch(const Model *model); // u8

// --------------------------------------------------------------------------------------------------------- on the host

// Bytes [first, first + n) of a tensor that belongs to the model (model_tensors), wherever it lives. Synchronises.
void model_read_bytes(const Model *model, Tensor t, int64_t first, int64_t n, void *out);
void model_write_bytes(Model *model, Tensor t, int64_t first, int64_t n, const void *in);

// Reads or writes rows [first_row, first_row + rows) of a weight as fp32: the exact value of the parameter, which is
// the master, or weight + compensation, or the weight.
bool model_get_weight(const Model *model, int index, int64_t first_row, int64_t rows, float *out);
void model_set_weight(Model *model, int index, int64_t first_row, int64_t rows, const float *in);

// Sets the compensation of these rows, in its dtype, of a weight that model_set_weight has set, which is weight +
// compensation: splits it again into the pair. Where the state is divided, only this process's part of the weight is
// then right: all must exchange their weights.
void model_set_compensation(Model *model, int index, int64_t first_row, int64_t rows, const void *in);

// Bytes [first, first + n) of the optimizer's state of a parameter. Where it is divided, what belongs to others is read
// by the reader, and a write changes only what belongs to this process. model_get_weight, which reads masters,
// likewise. Both are false, with nothing of use in out, if the reader could not reach the others; it has the message.
typedef bool StateReader(void *context, int index, StateSlot slot, int64_t first, int64_t n, void *out);
void model_set_reader(Model *model, StateReader *reader, void *context);
bool model_read_state(const Model *model, int index, StateSlot slot, int64_t first, int64_t n, void *out);
void model_write_state(Model *model, int index, StateSlot slot, int64_t first, int64_t n, const void *in);
// The bytes of it that a process has.
Range model_state_range(const Model *model, int index, StateSlot slot, int process);
