// What the files of the end of the step share: optimizer.cu (norm, decision), optimizer_update.cu (the rules with fp32
// and bf16 states), optimizer_8bit.cu, optimizer_adafactor.cu. Host side; what kernels share is in
// optimizer_elements.cuh.
#pragma once
#include "llmc/cuda/update_table.h"

// How the moments of a tensor are kept.
typedef enum { STATES_FP32, STATES_BF16, STATES_8BIT, STATES_COUNT } StateFormat;

// A pseudo-rule: momentum_update, which writes the gradient instead of the weight.
enum { RULE_MOMENTUM = RULE_COUNT };

struct UpdateStep; // optimizer_elements.cuh

// Stops the program, naming op and tensor, unless weight, master, lost and gradient fit together. compute: the dtype of
// all weights of the array.
void cuda_check_update_tensor(const char *op, const UpdateTensor *t, DType compute);

// The update of one group by a rule with 8-bit states. compute: dtype of the weights.
int64_t cuda_part_8bit(void); // elements of a block
void cuda_launch_8bit(int rule, DType compute, TableRun run, const UpdateStep *step, Tensor control);

// The update of the tensors of RULE_ADAFACTOR among [first, first + count).
void cuda_adafactor_update(TensorArray array, int first, int count, const UpdateStep *step, Tensor control);
