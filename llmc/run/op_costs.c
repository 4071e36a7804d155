// The vocabulary of op_table.def, and the cost functions made of its rows.
#include "llmc/run/op_costs.h"

#include "llmc/model/parameters.h"
#include <stdio.h>
#include <string.h>

// -------------------------------------------------------------------------------------------------------------- shapes

static CallShape tensor_shape(Tensor t) {
    CallShape s = {.tensor = t.name, .rank = t.rank};
    memcpy(s.shape, t.shape, sizeof s.shape);
    return s;
}

static CallShape rows_shape(Tensor weight, Tensor in) {
    return (CallShape){.tensor = weight.name, .rank = 2, .shape = {tensor_rows(in), tensor_cols(in)}};
}

// weight (OC,IC); in (N,IC).
static CallShape matmul_shape(Tensor weight, Tensor in) {
    const int64_t IC = tensor_cols(weight);
    return (CallShape){.tensor = weight.name, .rank = 3, .shape = {tensor_numel(in) / IC, IC, tensor_rows(weight)}};
}

static CallShape update_shape(const UpdateTensor *tensors, int n) {
    CallShape s = {.tensor = "weights", .rank = 1};
    for (int i = 0; i < n; i++) s.shape[0] += tensor_numel(tensors[i].weight);
    return s;
}

// --------------------------------------------------------------------------------------------------------------- FLOPs

static double matmul_flops(Tensor weight, Tensor in) {
    return 2.0 * (double)tensor_numel(in) * (double)tensor_rows(weight);
}

// `matmuls` products of (T,HS) and (HS,T) or the like for each head, the causal half of them: a row of out (B,T,C)
// meets (T + 1) / 2 others on average. Forward 2, backward 5: QK^T again, dV, dP, dQ, dK.
static double attention_flops(Tensor out, int matmuls) {
    return matmuls * (double)tensor_numel(out) * (double)(out.shape[1] + 1);
}

// --------------------------------------------------------------------------------------------------------------- bytes

static double sum_bytes(const Tensor *tensors, int n) {
    double bytes = 0;
    for (int i = 0; i < n; i++) bytes += (double)tensor_bytes(tensors[i]);
    return bytes;
}
#define BYTES(...) sum_bytes((Tensor[]){__VA_ARGS__}, (int)(sizeof(Tensor[]){__VA_ARGS__} / sizeof(Tensor)))

static double row_bytes(Tensor table) { return (double)(tensor_cols(table) * (int64_t)dtype_size(table.dtype)); }

// Rows of an embedding table that tokens name: each at most once.
static double touched_bytes(Tensor table, Tensor tokens) {
    const int64_t n = tensor_numel(tokens), rows = tensor_rows(table);
    return (double)(n < rows ? n : rows) * row_bytes(table);
}

// Rows of the position table that sequences (B,T) use.
static double position_bytes(Tensor table, Tensor tokens) { return (double)tensor_cols(tokens) * row_bytes(table); }

// What an update reads and writes of a parameter: master, or the weight itself and what rounding took from it, and the
// moments that its rule has. (RULE_DIRECTION's are momentum_update's, Adafactor's are adafactor_statistics'.)
static double state_bytes(const UpdateTensor *t) {
    const double parameter = BYTES(t->master.data ? t->master : t->weight, t->lost);
    if (t->rule == RULE_DIRECTION || t->rule == RULE_ADAFACTOR) return parameter;
    return parameter + BYTES(t->m, t->v, t->m_scale, t->v_scale);
}

static double update_read_bytes(const UpdateTensor *tensors, int n) {
    double bytes = 0;
    for (int i = 0; i < n; i++) {
        const UpdateTensor *t = &tensors[i];
        bytes += state_bytes(t) + BYTES(t->grad);
        if (t->rule == RULE_ADAFACTOR) bytes += BYTES(t->v, t->row, t->col, t->rms);
    }
    return bytes;
}

static double update_written_bytes(const UpdateTensor *tensors, int n) {
    double bytes = 0;
    for (int i = 0; i < n; i++)
        bytes += state_bytes(&tensors[i]) + (tensors[i].master.data ? BYTES(tensors[i].weight) : 0);
    return bytes;
}

// The gradient is read once for the means of its squares and, when these are known, once for the size of the update;
// the means are read and written.
static double adafactor_bytes(const UpdateTensor *tensors, int n) {
    double bytes = 0;
    for (int i = 0; i < n; i++) {
        const UpdateTensor *t = &tensors[i];
        if (t->rule == RULE_ADAFACTOR) bytes += 2 * BYTES(t->grad) + 2 * BYTES(t->v, t->row, t->col) + BYTES(t->rms);
    }
    return bytes;
}

static double momentum_bytes(const UpdateTensor *tensors, int n) {
    double bytes = 0;
    for (int i = 0; i < n; i++)
        if (tensors[i].rule == RULE_DIRECTION) bytes += BYTES(tensors[i].grad, tensors[i].m);
    return bytes;
}

// --------------------------------------------------------------------------------------------------------------- costs

// A row need not use every argument of its op.
#pragma GCC diagnostic ignored "-Wunused-parameter"
#define OP(name, parameters, arguments, shape, flops, read, written)                                                   \
    OpCost op_cost_##name parameters { return (OpCost){#name, shape, flops, (read) + (written)}; }
#include "llmc/run/op_table.def"
#undef OP

// -------------------------------------------------------------------------------------------------------------- labels

// "transformer.h.11.attn.c_attn.weight" -> "qkvw"; names that are no weight's stay.
const char *op_tensor(const OpCost *cost) {
    const char *name = cost->shape.tensor;
    for (int s = 0; s < NUM_PARAMETER_SPECS; s++) {
        const char *pattern = parameter_specs[s].hf_name, *block = strstr(pattern, "%d");
        if (!block && strcmp(name, pattern) == 0) return parameter_specs[s].name;
        const size_t before = block ? (size_t)(block - pattern) : 0;
        if (!block || strncmp(name, pattern, before) != 0) continue;
        const char *after = name + before + strspn(name + before, "0123456789");
        if (strcmp(after, block + strlen("%d")) == 0) return parameter_specs[s].name;
    }
    return name;
}

const char *op_label(const OpCost *cost, char *buf, int size) {
    int n = snprintf(buf, (size_t)size, "%s %s ", cost->op, op_tensor(cost));
    for (int i = 0; i < cost->shape.rank && n < size; i++)
        n += snprintf(buf + n, (size_t)(size - n), i ? "x%lld" : "%lld", (long long)cost->shape.shape[i]);
    return buf;
}
