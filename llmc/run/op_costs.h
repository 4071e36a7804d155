// What a call of an op must compute and move at least, from its arguments alone: one function op_cost_NAME for each op
// of ops.h, made of the rows of op_table.def. Pure: they touch no tensor's data.
#pragma once
#include "llmc/ops.h"

// Which call of an op this is: calls with the same op, tensor name (blocks apart) and shape cost the same.
typedef struct {
    const char *tensor; // the weight of a matmul or layernorm, else an input or output
    int rank;
    int64_t shape[TENSOR_MAX_RANK]; // N, IC, OC of a matmul; N, C of a layernorm; else the shape of that tensor
} CallShape;

typedef struct {
    const char *op; // "matmul_forward"
    CallShape shape;
    double flops; // matmuls and attention
    double bytes; // read + written, every tensor once
} OpCost;

#define OP(name, parameters, ...) OpCost op_cost_##name parameters;
#include "llmc/run/op_table.def"
#undef OP

// The tensor of the call without its block: weights by their short names of parameters.h ("qkvw").
const char *op_tensor(const OpCost *cost);
// "matmul_forward qkvw 65536x768x2304" into buf; returns buf.
const char *op_label(const OpCost *cost, char *buf, int size);
