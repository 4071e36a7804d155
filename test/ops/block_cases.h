// One case of each op of blocks after GPT-2: see op_cases.h.
#pragma once
#include "test/ops/op_cases.h"
#include "test/reference/blocks.h"

// ----------------------------------------------------------------------------------------- rmsnorm

static const float rms_eps = 1e-6f;

static inline void rmsnorm_forward_case(const RowsShape *c, DType dtype) {
    layernorm_begin(c, dtype, "rmsnorm_forward");
    OpTensor in = shifted_input(dtype, "in", DIMS(c->N, c->C)),
             weight = op_input(dtype, "weight", DIMS(c->C), 1.0);
    OpTensor out = op_output(dtype, "out", DIMS(c->N, c->C)),
             rstd = op_output(DTYPE_FP32, "rstd", DIMS(c->N));
    rmsnorm_forward(out.t, rstd.t, in.t, weight.t, rms_eps);
    ref_rmsnorm_forward(out.v, rstd.v, in.v, weight.v, c->N, c->C, (double)rms_eps);
    op_check(out, dtype);
    op_check(rstd, DTYPE_FP32);
    op_end();
}

// flags: as layernorm_backward_case.
static inline void rmsnorm_backward_case(const RowsShape *c, DType dtype, DType grad, int flags) {
    const bool add_residual = flags & 1, accumulate = flags & 2, with_sum = flags & 4,
               accumulate_sum = flags & 8;
    layernorm_begin(c, dtype, accumulate ? "rmsnorm_backward +=" : "rmsnorm_backward =");
    OpTensor in = shifted_input(dtype, "in", DIMS(c->N, c->C)),
             dout = op_input(dtype, "dout", DIMS(c->N, c->C), 1.0);
    OpTensor weight = op_input(dtype, "weight", DIMS(c->C), 1.0),
             rstd = op_input(DTYPE_FP32, "rstd", DIMS(c->N), 1.0);
    OpTensor din = op_inout(dtype, "din", DIMS(c->N, c->C), 1.0),
             dweight = op_inout(grad, "dweight", DIMS(c->C), 1.0);
    OpTensor din_sum = op_inout(grad, "din_sum", DIMS(c->C), 1.0),
             normed = op_output(dtype, "out", DIMS(c->N, c->C));

    ref_rmsnorm_forward(normed.v, rstd.v, in.v, weight.v, c->N, c->C, (double)rms_eps);
    op_upload(&rstd);
    if (!add_residual) op_poison(din);
    if (!accumulate) op_poison(dweight);
    if (with_sum && !accumulate_sum) op_poison(din_sum);

    rmsnorm_backward(gradient_to(din.t, add_residual), gradient_to(dweight.t, accumulate),
                     with_sum ? gradient_to(din_sum.t, accumulate_sum) : gradient_none(), dout.t,
                     in.t, rstd.t, weight.t);
    ref_rmsnorm_backward(din.v, dweight.v, with_sum ? din_sum.v : NULL, dout.v, in.v, rstd.v,
                         weight.v, c->N, c->C, add_residual, accumulate, accumulate_sum);

    // rstd * dnorm * (1 + xhat^2), of which nothing is left where a row has one value.
    const double terms = layernorm_terms(in.v, rstd.v, c, 2.0);
    op_check_terms(din, dtype, DTYPE_FP32, terms);
    op_check_terms(dweight, grad, DTYPE_FP32, sqrt((double)c->N));
    op_check_terms(din_sum, grad, DTYPE_FP32, sqrt((double)c->N) * (1.0 + terms));
    op_end();
}

// -------------------------------------------------------------------------------- QK-norm and RoPE

typedef struct {
    int64_t B, T, NH, NKV, HS, maxT;
} QkShape;

static inline int64_t qk_columns(const QkShape *c) { return (c->NH + 2 * c->NKV) * c->HS; }
static inline RefHeads qk_heads(const QkShape *c) {
    return (RefHeads){
        .B = c->B, .T = c->T, .NH = c->NH, .NKV = c->NKV, .HS = c->HS, .maxT = c->maxT};
}

static inline void qk_begin(const QkShape *c, DType dtype, const char *what) {
    const OpsShape shape = {.B = c->B,
                            .T = c->T,
                            .C = 16,
                            .NH = c->NH,
                            .NKV = c->NKV,
                            .HS = c->HS,
                            .Vp = 128,
                            .num_tensors = 1,
                            .dtype = dtype};
    op_begin(shape, "%s %s B=%d T=%d NH=%d NKV=%d HS=%d", what, dtype_name(dtype), (int)c->B,
             (int)c->T, (int)c->NH, (int)c->NKV, (int)c->HS);
}

// The device's own table, as the specification's input too.
static inline OpTensor qk_table(const QkShape *c, float base) {
    OpTensor table = op_inout(DTYPE_FP32, "table", DIMS(c->maxT, 2, c->HS / 2), 1.0);
    rope_table(table.t, base);
    const double *values = op_download(table);
    memcpy(table.v, values, (size_t)tensor_numel(table.t) * sizeof *values);
    return table;
}

// Weights of a pair that differ much, as trained ones do; absent without a norm.
typedef struct {
    OpTensor q, k;
} QkWeights;
static inline QkWeights qk_weights(const QkShape *c, DType dtype, bool norm) {
    QkWeights w = {0};
    if (norm)
        w = (QkWeights){op_input(dtype, "q_weight", DIMS(c->HS), 1.0),
                        op_input(dtype, "k_weight", DIMS(c->HS), 1.0)};
    return w;
}

// The rows of a table of angles from position `first` on.
static inline Tensor table_from(Tensor table, int64_t first) {
    const int64_t rows = table.shape[0], half = table.shape[2];
    return tensor_make((float *)table.data + first * 2 * half, table.dtype, table.name,
                       rows - first, 2, half, 0);
}

// position < 0: absent. in_place: out is qkv.
static inline void qk_norm_rope_forward_case(const QkShape *c, DType dtype, bool norm,
                                             int64_t first, int position, bool in_place) {
    qk_begin(c, dtype, norm ? "qk_norm_rope_forward" : "qk_norm_rope_forward without weights");
    const OpDims dims = c->T == 1 ? DIMS(c->B, qk_columns(c)) : DIMS(c->B, c->T, qk_columns(c));
    OpTensor qkv = in_place ? op_inout(dtype, "qkv", dims, 1.0) : op_input(dtype, "qkv", dims, 1.0);
    OpTensor table = qk_table(c, 10000.0f), out = in_place ? qkv : op_output(dtype, "out", dims),
             at = {0}, rstd = {0};
    const QkWeights w = qk_weights(c, dtype, norm);
    if (norm) rstd = op_output(DTYPE_FP32, "rstd", DIMS(c->B, c->T, c->NH + c->NKV));
    if (position >= 0) {
        at = op_tokens("position", DIMS(1), 1);
        at.tokens[0] = position;
        op_upload(&at);
    }
    qk_norm_rope_forward(out.t, rstd.t, qkv.t, w.q.t, w.k.t, table_from(table.t, first),
                         heads_of((int)c->NH, (int)c->NKV), rms_eps, at.t);
    ref_qk_norm_rope_forward(out.v, rstd.v, qkv.v, w.q.v, w.k.v, table.v, qk_heads(c),
                             (double)rms_eps, first + (position >= 0 ? position : 0));
    op_check_terms(out, dtype, DTYPE_FP32, 1.0);
    if (norm) op_check(rstd, DTYPE_FP32);
    op_end();
}

static inline void qk_norm_rope_backward_case(const QkShape *c, DType dtype, DType grad, bool norm,
                                              bool accumulate) {
    qk_begin(c, dtype, norm ? "qk_norm_rope_backward" : "qk_norm_rope_backward without weights");
    const int64_t columns = qk_columns(c), heads = c->NH + c->NKV, N = c->B * c->T;
    OpTensor dqkv = op_inout(dtype, "dqkv", DIMS(c->B, c->T, columns), 1.0),
             table = qk_table(c, 10000.0f);
    OpTensor qkv = {0}, rstd = {0}, dq = {0}, dk = {0};
    const QkWeights w = qk_weights(c, dtype, norm);
    double inverse = 1.0;
    if (norm) {
        qkv = op_input(dtype, "qkv", DIMS(c->B, c->T, columns), 1.0);
        rstd = op_input(DTYPE_FP32, "rstd", DIMS(c->B, c->T, heads), 1.0);
        dq = op_inout(grad, "dq_weight", DIMS(c->HS), 1.0),
        dk = op_inout(grad, "dk_weight", DIMS(c->HS), 1.0);
        double *rotated = malloc((size_t)(N * columns) * sizeof *rotated);
        ref_qk_norm_rope_forward(rotated, rstd.v, qkv.v, w.q.v, w.k.v, table.v, qk_heads(c),
                                 (double)rms_eps, 0);
        free(rotated);
        op_upload(&rstd);
        inverse = sqrt(ref_sumsq(rstd.v, N * heads) / (double)(N * heads));
        if (!accumulate) op_poison(dq), op_poison(dk);
    }
    qk_norm_rope_backward(dqkv.t, gradient_to(dq.t, accumulate), gradient_to(dk.t, accumulate),
                          qkv.t, rstd.t, w.q.t, w.k.t, table.t, heads_of((int)c->NH, (int)c->NKV));
    ref_qk_norm_rope_backward(dqkv.v, dq.v, dk.v, qkv.v, rstd.v, w.q.v, w.k.v, table.v, qk_heads(c),
                              accumulate);
    op_check_terms(dqkv, dtype, DTYPE_FP32, inverse);
    if (norm) {
        op_check_terms(dq, grad, DTYPE_FP32, sqrt((double)(N * c->NH)));
        op_check_terms(dk, grad, DTYPE_FP32, sqrt((double)(N * c->NKV)));
    }
    const double *got = op_download(dqkv);
    for (int64_t i = 0; i < N * columns; i++) // v
        if (i % columns >= heads * c->HS && got[i] != dqkv.v[i])
            op_fail("the gradient of v changed");
    op_end();
}

// ------------------------------------------------------------------------------- SwiGLU and ReLU^2

static inline OpsShape activation_shape(const RowsShape *c, DType dtype) {
    return (OpsShape){.B = 1,
                      .T = c->N,
                      .C = 16,
                      .NH = 1,
                      .widest = 2 * c->C,
                      .Vp = 128,
                      .num_tensors = 1,
                      .dtype = dtype};
}

static inline void swiglu_forward_case(const RowsShape *c, DType dtype) {
    op_begin(activation_shape(c, dtype), "swiglu_forward %s N=%d F=%d", dtype_name(dtype),
             (int)c->N, (int)c->C);
    OpTensor gate_up = op_input(dtype, "gate_up", DIMS(c->N, 2 * c->C), 2.0);
    OpTensor out = op_output(dtype, "out", DIMS(c->N, c->C));
    swiglu_forward(out.t, gate_up.t);
    ref_swiglu_forward(out.v, gate_up.v, c->N, c->C);
    op_check_terms(out, dtype, DTYPE_FP32, 1.0);
    op_end();
}

// dbias is what it was, or nothing, and the sums of the columns of d as the op left them.
static inline void activation_check_bias(OpTensor dbias, OpTensor d, DType grad, bool accumulate) {
    const double *values = op_download(d);
    const int64_t columns = tensor_cols(d.t), n = tensor_numel(d.t);
    for (int64_t i = 0; i < columns && !accumulate; i++) dbias.v[i] = 0.0;
    for (int64_t i = 0; i < n; i++) dbias.v[i % columns] += values[i];
    op_check_terms(dbias, grad, DTYPE_FP32, 1.0 + sqrt(ref_sumsq(values, n) / (double)columns));
}

// flags: accumulate 1, without dbias 2, in place 4.
static inline void swiglu_backward_case(const RowsShape *c, DType dtype, DType grad, int flags) {
    const bool accumulate = flags & 1, with_bias = !(flags & 2), in_place = flags & 4;
    op_begin(activation_shape(c, dtype), "swiglu_backward %s N=%d F=%d%s", dtype_name(dtype),
             (int)c->N, (int)c->C, in_place ? " in place" : "");

    const OpDims wide = DIMS(c->N, 2 * c->C);
    OpTensor gate_up =
        in_place ? op_inout(dtype, "gate_up", wide, 2.0) : op_input(dtype, "gate_up", wide, 2.0);
    OpTensor dout = op_input(dtype, "dout", DIMS(c->N, c->C), 1.0),
             d = op_output(dtype, "dgate_up", wide);
    OpTensor dbias = op_inout(grad, "dbias", DIMS(2 * c->C), 1.0);
    if (with_bias && !accumulate) op_poison(dbias);

    ref_swiglu_backward(d.v, dout.v, gate_up.v, c->N, c->C);
    if (in_place) d.t = gate_up.t;
    swiglu_backward(d.t, with_bias ? gradient_to(dbias.t, accumulate) : gradient_none(), dout.t,
                    gate_up.t);

    op_check_terms(d, dtype, DTYPE_FP32, 1.0);
    if (with_bias) activation_check_bias(dbias, d, grad, accumulate);
    op_end();
}

static inline void relu2_forward_case(const RowsShape *c, DType dtype) {
    op_begin(activation_shape(c, dtype), "relu2_forward %s N=%d OC=%d", dtype_name(dtype),
             (int)c->N, (int)c->C);
    OpTensor pre = op_input(dtype, "pre", DIMS(c->N, c->C), 2.0),
             out = op_output(dtype, "out", DIMS(c->N, c->C));
    relu2_forward(out.t, pre.t);
    ref_relu2_forward(out.v, pre.v, c->N * c->C);
    op_check(out, dtype);
    op_end();
}

// flags: as swiglu_backward_case; in place on dout.
static inline void relu2_backward_case(const RowsShape *c, DType dtype, DType grad, int flags) {
    const bool accumulate = flags & 1, with_bias = !(flags & 2), in_place = flags & 4;
    op_begin(activation_shape(c, dtype), "relu2_backward %s N=%d OC=%d%s", dtype_name(dtype),
             (int)c->N, (int)c->C, in_place ? " in place" : "");

    OpTensor pre = op_input(dtype, "pre", DIMS(c->N, c->C), 2.0),
             dout = op_inout(dtype, "dout", DIMS(c->N, c->C), 1.0);
    OpTensor d = op_output(dtype, "dpre", DIMS(c->N, c->C)),
             dbias = op_inout(grad, "dbias", DIMS(c->C), 1.0);
    if (with_bias && !accumulate) op_poison(dbias);

    ref_relu2_backward(d.v, dout.v, pre.v, c->N * c->C);
    if (in_place) d.t = dout.t;
    relu2_backward(d.t, with_bias ? gradient_to(dbias.t, accumulate) : gradient_none(), dout.t,
                   pre.t);

    op_check(d, dtype);
    if (with_bias) activation_check_bias(dbias, d, grad, accumulate);
    op_end();
}
