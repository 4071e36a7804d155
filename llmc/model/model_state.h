// The values of a model's weights and state, to and from the host: for the readers and writers of
// files.
#pragma once
#include "llmc/model/model_tensors.h"

// Bytes [first, first + n) of a tensor that belongs to the model (model_tensors), wherever it
// lives. Synchronises.
void model_read_bytes(const Model *model, Tensor t, int64_t first, int64_t n, void *out);
void model_write_bytes(Model *model, Tensor t, int64_t first, int64_t n, const void *in);

// Reads or writes rows [first_row, first_row + rows) of a weight as fp32: the exact value of the
// parameter, which is the master, or weight + compensation, or the weight.
bool model_get_weight(const Model *model, int index, int64_t first_row, int64_t rows, float *out,
                      Error *err);
void model_set_weight(Model *model, int index, int64_t first_row, int64_t rows, const float *in);

// Takes the place of the model's weights in model_get_weight: the values that it was made from, for
// writers of files, because a model in bf16 without masters has rounded them. NULL: the model's
// again.
void model_set_weight_reader(Model *model, WeightReader *reader, void *context);

// Sets the compensation of these rows, in its dtype, of a weight that model_set_weight has set,
// which is weight + compensation: splits it again into the pair. Where the state is divided, only
// this process's part of the weight is then right: all must exchange their weights.
void model_set_compensation(Model *model, int index, int64_t first_row, int64_t rows,
                            const void *in);

// Bytes [first, first + n) of the optimizer's state of a parameter. Where it is divided, what
// belongs to others is read by the reader, and a write changes only what belongs to this process.
// model_get_weight, which reads masters, likewise. Both are false, with nothing of use in out, if
// the reader could not reach the others; it has the message.
void model_set_reader(Model *model, StateReader *reader, void *context);
bool model_read_state(const Model *model, int index, StateSlot slot, int64_t first, int64_t n,
                      void *out);
void model_write_state(Model *model, int index, StateSlot slot, int64_t first, int64_t n,
                       const void *in);
// The bytes of it that a process has.
Range model_state_range(const Model *model, int index, StateSlot slot, int process);

// The StepControl on the device. Synchronise. A new model has step_control_initial(1).
StepControl model_get_control(const Model *model);
void model_set_control(Model *model, const StepControl *control);
