// One case of each op of a training step: random inputs of a shape, the op, the specification, the
// comparison. For the test of each op, which chooses the shapes, and for test_random_shapes, which
// draws them.
//
// Limits hold for all shapes down to one value. Rounding of the result is relative to the result;
// sums in fp32 are as exact as the terms that were added, which may cancel: op_check_terms is told
// their size. The updates of parameters have a header of their own (optimizer_case.h).
#pragma once
#include "test/ops/op_test.h"
#include "test/reference/gradient_add.h"
#include "test/reference/statistics.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

// --------------------------------------------------------------------------------------- embedding

// maxT 0: without positions.
typedef struct {
    int64_t B, T, C, V, Vp, maxT;
} EmbeddingShape;

static inline void embedding_begin(const EmbeddingShape *c, DType dtype, const char *what) {
    op_begin((OpsShape){.B = c->B,
                        .T = c->T,
                        .C = c->C,
                        .NH = 1,
                        .Vp = c->Vp,
                        .num_tensors = 1,
                        .dtype = dtype},
             "%s %s B=%d T=%d C=%d V=%d", what, dtype_name(dtype), (int)c->B, (int)c->T, (int)c->C,
             (int)c->V);
}

static inline void embedding_forward_case(const EmbeddingShape *c, DType dtype) {
    embedding_begin(c, dtype, "embedding_forward");
    OpTensor tokens = op_tokens("tokens", DIMS(c->B, c->T), c->V);
    OpTensor wte = op_input(dtype, "wte", DIMS(c->Vp, c->C), 1.0);
    OpTensor wpe = {0}, out = op_output(dtype, "out", DIMS(c->B, c->T, c->C));
    if (c->maxT) wpe = op_input(dtype, "wpe", DIMS(c->maxT, c->C), 1.0);
    embedding_forward(out.t, tokens.t, wte.t, wpe.t);
    ref_embedding_forward(out.v, tokens.tokens, wte.v, wpe.v, c->B, c->T, c->C);
    op_check(out, dtype);
    op_end();
}

// tied: the head has written dwte.
static inline void embedding_backward_case(const EmbeddingShape *c, DType dtype, DType grad,
                                           bool tied, bool accumulate) {
    embedding_begin(c, dtype, accumulate ? "embedding_backward +=" : "embedding_backward =");
    OpTensor tokens = op_tokens("tokens", DIMS(c->B, c->T), c->V);
    OpTensor dout = op_input(dtype, "dout", DIMS(c->B, c->T, c->C), 1.0);
    OpTensor dwte = op_inout(grad, "dwte", DIMS(c->Vp, c->C), 1.0);
    OpTensor dwpe = {0};
    if (c->maxT) dwpe = op_inout(grad, "dwpe", DIMS(c->maxT, c->C), 1.0);
    if (c->maxT && !accumulate) op_poison(dwpe); // what stood there must not leak
    if (!tied && !accumulate) op_poison(dwte);
    embedding_backward(gradient_to(dwte.t, tied || accumulate), gradient_to(dwpe.t, accumulate),
                       dout.t, tokens.t);
    ref_embedding_backward(dwte.v, dwpe.v, dout.v, tokens.tokens, c->B, c->T, c->C, c->Vp, c->maxT,
                           tied || accumulate, accumulate);
    op_check_terms(dwte, grad, DTYPE_FP32, 1.0);
    if (c->maxT) op_check_terms(dwpe, grad, DTYPE_FP32, 1.0);
    op_end();
}

// Rows of wte of N(0, scale^2), beside which eps may be small or large. Terms: rstd * (dout - xhat
// * mean), which may cancel.
static inline void embedding_norm_case(const EmbeddingShape *c, DType dtype, double scale,
                                       bool backward) {
    const int64_t N = c->B * c->T;
    const float eps = 1e-7f;
    embedding_begin(c, dtype, backward ? "embedding_norm_backward" : "embedding_norm_forward");
    OpTensor tokens = op_tokens("tokens", DIMS(c->B, c->T), c->V),
             wte = op_input(dtype, "wte", DIMS(c->Vp, c->C), scale);
    OpTensor dout = op_inout(dtype, "dout", DIMS(c->B, c->T, c->C), 1.0);
    OpTensor out = op_output(dtype, "out", DIMS(c->B, c->T, c->C));
    double squares = 0.0; // of rstd
    for (int64_t n = 0; n < N; n++)
        squares +=
            1.0 / (ref_sumsq(wte.v + tokens.tokens[n] * c->C, c->C) / (double)c->C + (double)eps);
    if (backward) {
        embedding_norm_backward(dout.t, tokens.t, wte.t, eps);
        ref_embedding_norm_backward(dout.v, tokens.tokens, wte.v, N, c->C, (double)eps);
        op_check_terms(dout, dtype, DTYPE_FP32, sqrt(squares / (double)N));
    } else {
        embedding_norm_forward(out.t, tokens.t, wte.t, eps);
        ref_embedding_norm_forward(out.v, tokens.tokens, wte.v, N, c->C, (double)eps);
        op_check(out, dtype);
    }
    op_end();
}

// --------------------------------------------------------------------------------------- layernorm

typedef struct {
    int64_t N, C;
} RowsShape;

static inline void layernorm_begin(const RowsShape *c, DType dtype, const char *what) {
    op_begin(
        (OpsShape){
            .B = 1, .T = c->N, .C = c->C, .NH = 1, .Vp = 128, .num_tensors = 1, .dtype = dtype},
        "%s %s N=%d C=%d", what, dtype_name(dtype), (int)c->N, (int)c->C);
}

// Rows with a mean of 2: a variance computed as E[x^2] - E[x]^2 without care loses digits here.
static inline OpTensor shifted_input(DType dtype, const char *name, OpDims dims) {
    OpTensor x = op_input(dtype, name, dims, 1.0);
    for (int64_t i = 0; i < tensor_numel(x.t); i++) x.v[i] += 2.0;
    op_upload(&x);
    return x;
}

// rms of rstd^power * in. in - mean is exact to 2^-24 of in: xhat to rstd * in of that, and rstd
// itself, whose derivative by a value of the row is at most rstd^2, to rstd^2 * in. Rows of few
// values that are almost equal have rstd of up to 316.
static inline double layernorm_terms(const double *in, const double *rstd, const RowsShape *c,
                                     double power) {
    double squares = 0.0;
    for (int64_t n = 0; n < c->N; n++)
        squares += pow(rstd[n], 2.0 * power) * ref_sumsq(in + n * c->C, c->C);
    return sqrt(squares / (double)(c->N * c->C));
}

static inline void layernorm_check(OpTensor out, OpTensor mean, OpTensor rstd, const double *in,
                                   const RowsShape *c) {
    op_check_terms(out, out.t.dtype, DTYPE_FP32, layernorm_terms(in, rstd.v, c, 1.0));
    op_check_terms(mean, DTYPE_FP32, DTYPE_FP32, layernorm_terms(in, rstd.v, c, 0.0));
    op_check_terms(rstd, DTYPE_FP32, DTYPE_FP32, layernorm_terms(in, rstd.v, c, 2.0));
}

static inline void layernorm_forward_case(const RowsShape *c, DType dtype) {
    layernorm_begin(c, dtype, "layernorm_forward");
    OpTensor in = shifted_input(dtype, "in", DIMS(c->N, c->C));
    OpTensor weight = op_input(dtype, "weight", DIMS(c->C), 1.0),
             bias = op_input(dtype, "bias", DIMS(c->C), 1.0);
    OpTensor out = op_output(dtype, "out", DIMS(c->N, c->C));
    OpTensor mean = op_output(DTYPE_FP32, "mean", DIMS(c->N)),
             rstd = op_output(DTYPE_FP32, "rstd", DIMS(c->N));
    layernorm_forward(out.t, mean.t, rstd.t, in.t, weight.t, bias.t, 1e-5f);
    ref_layernorm_forward(out.v, mean.v, rstd.v, in.v, weight.v, bias.v, c->N, c->C, 1e-5);
    layernorm_check(out, mean, rstd, in.v, c);
    op_end();
}

// flags: add_residual 1, accumulate 2, with din_sum 4, accumulate_sum 8.
static inline void layernorm_backward_case(const RowsShape *c, DType dtype, DType grad, int flags) {
    const bool add_residual = flags & 1, accumulate = flags & 2, with_sum = flags & 4,
               accumulate_sum = flags & 8;
    layernorm_begin(c, dtype, accumulate ? "layernorm_backward +=" : "layernorm_backward =");
    OpTensor in = shifted_input(dtype, "in", DIMS(c->N, c->C)),
             dout = op_input(dtype, "dout", DIMS(c->N, c->C), 1.0);
    OpTensor weight = op_input(dtype, "weight", DIMS(c->C), 1.0),
             bias = op_input(dtype, "bias", DIMS(c->C), 1.0);
    OpTensor mean = op_input(DTYPE_FP32, "mean", DIMS(c->N), 1.0),
             rstd = op_input(DTYPE_FP32, "rstd", DIMS(c->N), 1.0);
    OpTensor din = op_inout(dtype, "din", DIMS(c->N, c->C), 1.0);
    OpTensor dweight = op_inout(grad, "dweight", DIMS(c->C), 1.0),
             dbias = op_inout(grad, "dbias", DIMS(c->C), 1.0);
    OpTensor din_sum = op_inout(grad, "din_sum", DIMS(c->C), 1.0);
    OpTensor normed = op_output(dtype, "out", DIMS(c->N, c->C));

    ref_layernorm_forward(normed.v, mean.v, rstd.v, in.v, weight.v, bias.v, c->N, c->C, 1e-5);
    op_upload(&mean), op_upload(&rstd);
    if (!add_residual) op_poison(din);
    if (!accumulate) op_poison(dweight), op_poison(dbias);
    if (with_sum && !accumulate_sum) op_poison(din_sum);

    layernorm_backward(gradient_to(din.t, add_residual), gradient_to(dweight.t, accumulate),
                       gradient_to(dbias.t, accumulate),
                       with_sum ? gradient_to(din_sum.t, accumulate_sum) : gradient_none(), dout.t,
                       in.t, mean.t, rstd.t, weight.t);
    ref_layernorm_backward(din.v, dweight.v, dbias.v, with_sum ? din_sum.v : NULL, dout.v, in.v,
                           mean.v, rstd.v, weight.v, c->N, c->C, add_residual, accumulate,
                           accumulate_sum);

    // rstd * dnorm * (1 + xhat), xhat with its own error; of two values nothing is left but that.
    op_check_terms(din, dtype, DTYPE_FP32, layernorm_terms(in.v, rstd.v, c, 2.0));
    op_check_terms(dweight, grad, DTYPE_FP32,
                   sqrt((double)c->N) * layernorm_terms(in.v, rstd.v, c, 1.0));
    op_check_terms(dbias, grad, DTYPE_FP32, sqrt((double)c->N));
    // din is summed before it is rounded. Without it the tensor has to be as it was.
    op_check_terms(din_sum, grad, DTYPE_FP32,
                   sqrt((double)c->N) * (1.0 + layernorm_terms(in.v, rstd.v, c, 2.0)));
    op_end();
}

// ------------------------------------------------------------------------------------------ matmul

typedef struct {
    int64_t N, IC, OC;
} MatmulShape;

static inline void matmul_begin_again(const MatmulShape *c, DType dtype, const char *what,
                                      bool gelu_again) {
    OpsShape shape = {
        .B = 1, .T = c->N, .C = c->IC, .NH = 1, .Vp = 128, .num_tensors = 1, .dtype = dtype};
    if (c->OC > c->IC) shape.C = c->OC;
    shape.gelu_again = gelu_again;
    op_begin(shape, "%s %s N=%d IC=%d OC=%d", what, dtype_name(dtype), (int)c->N, (int)c->IC,
             (int)c->OC);
}
static inline void matmul_begin(const MatmulShape *c, DType dtype, const char *what) {
    matmul_begin_again(c, dtype, what, false);
}

// Entries of size 1 / sqrt(terms), so that a product of them with values of size 1 has size 1.
static inline OpTensor matmul_weight(DType dtype, const MatmulShape *c, int64_t terms) {
    return op_input(dtype, "weight", DIMS(c->OC, c->IC), 1.0 / sqrt((double)terms));
}

static inline void matmul_forward_case(const MatmulShape *c, DType dtype, bool with_bias) {
    matmul_begin(c, dtype, with_bias ? "matmul_forward" : "matmul_forward without bias");
    OpTensor in = op_input(dtype, "in", DIMS(c->N, c->IC), 1.0),
             weight = matmul_weight(dtype, c, c->IC);
    OpTensor bias = op_input(dtype, "bias", DIMS(c->OC), 1.0),
             out = op_output(dtype, "out", DIMS(c->N, c->OC));
    matmul_forward(out.t, in.t, weight.t, with_bias ? bias.t : tensor_none());
    ref_matmul_forward(out.v, in.v, weight.v, with_bias ? bias.v : NULL, c->N, c->IC, c->OC);
    op_check_terms(out, dtype, DTYPE_FP32, 1.0);
    op_end();
}

static inline void matmul_residual_case(const MatmulShape *c, DType dtype) {
    matmul_begin(c, dtype, "matmul_residual_forward");
    OpTensor in = op_input(dtype, "in", DIMS(c->N, c->IC), 1.0),
             weight = matmul_weight(dtype, c, c->IC);
    OpTensor bias = op_input(dtype, "bias", DIMS(c->OC), 1.0),
             out = op_output(dtype, "out", DIMS(c->N, c->OC));
    OpTensor residual = op_input(dtype, "residual", DIMS(c->N, c->OC), 1.0);
    matmul_residual_forward(out.t, residual.t, in.t, weight.t, bias.t);
    ref_matmul_residual_forward(out.v, residual.v, in.v, weight.v, bias.v, c->N, c->IC, c->OC);
    op_check_terms(out, dtype, DTYPE_FP32, 1.0);
    op_check(residual, DTYPE_FP32); // as it was
    op_end();
}

// Then gelu_forward of the pre that it left. gelu may be applied before pre is rounded: |gelu'|
// <= 1.13, so that out is wrong by two roundings at most, one of which has the size of pre.
static inline void matmul_gelu_forward_case(const MatmulShape *c, DType dtype, bool repeat) {
    matmul_begin_again(
        c, dtype, repeat ? "matmul_gelu_forward and gelu_forward" : "matmul_gelu_forward", repeat);

    OpTensor in = op_input(dtype, "in", DIMS(c->N, c->IC), 1.0),
             weight = matmul_weight(dtype, c, c->IC);
    OpTensor bias = op_input(dtype, "bias", DIMS(c->OC), 1.0);
    OpTensor out = op_output(dtype, "out", DIMS(c->N, c->OC)),
             pre = op_output(dtype, "pre", DIMS(c->N, c->OC));
    OpTensor again = op_output(dtype, "gelu_forward(pre)", DIMS(c->N, c->OC));

    matmul_gelu_forward(out.t, pre.t, in.t, weight.t, bias.t);
    if (repeat) gelu_forward(again.t, pre.t);

    ref_matmul_gelu_forward(out.v, pre.v, in.v, weight.v, bias.v, c->N, c->IC, c->OC, dtype);
    op_check_terms(pre, dtype, DTYPE_FP32, 1.0);
    op_check_terms(out, dtype, dtype, 1.0);
    if (repeat) op_check_same_bits(out, again);
    op_end();
}

static inline void matmul_backward_input_case(const MatmulShape *c, DType dtype) {
    matmul_begin(c, dtype, "matmul_backward_input");
    OpTensor dout = op_input(dtype, "dout", DIMS(c->N, c->OC), 1.0),
             weight = matmul_weight(dtype, c, c->OC);
    OpTensor din = op_output(dtype, "din", DIMS(c->N, c->IC));
    matmul_backward_input(din.t, dout.t, weight.t);
    ref_matmul_backward_input(din.v, dout.v, weight.v, c->N, c->IC, c->OC);
    op_check_terms(din, dtype, DTYPE_FP32, 1.0);
    op_end();
}

// dout @ weight may be rounded to the compute dtype before it is multiplied by gelu': two roundings
// of half an ulp, sqrt(2) * 1.6e-3 = 2.3e-3 in bf16, still inside the tolerance.
static inline void matmul_gelu_backward_input_case(const MatmulShape *c, DType dtype) {
    matmul_begin(c, dtype, "matmul_gelu_backward_input");

    OpTensor dout = op_input(dtype, "dout", DIMS(c->N, c->OC), 1.0),
             weight = matmul_weight(dtype, c, c->OC);
    OpTensor pre = op_input(dtype, "pre", DIMS(c->N, c->IC), 2.0);
    OpTensor dpre = op_output(dtype, "dpre", DIMS(c->N, c->IC)),
             dbias = op_inout(DTYPE_FP32, "dbias", DIMS(c->IC), 1.0);
    Gradient left = gradient_to(dbias.t, true);

    matmul_gelu_backward_input(dpre.t, dout.t, weight.t, pre.t, &left);
    ref_matmul_gelu_backward_input(dpre.v, dout.v, weight.v, pre.v, c->N, c->IC, c->OC);
    op_check_terms(dpre, dtype, DTYPE_FP32, 1.0);

    const double *rounded = op_download(dpre);
    for (int64_t i = 0; !left.to.data && i < c->N * c->IC; i++) dbias.v[i % c->IC] += rounded[i];
    op_check_terms(dbias, DTYPE_FP32, DTYPE_FP32, sqrt((double)c->N));
    op_end();
}

static inline void matmul_backward_weight_case(const MatmulShape *c, DType dtype, DType grad,
                                               bool with_bias, bool accumulate) {
    matmul_begin(c, dtype, accumulate ? "matmul_backward_weight +=" : "matmul_backward_weight =");
    OpTensor in = op_input(dtype, "in", DIMS(c->N, c->IC), 1.0),
             dout = op_input(dtype, "dout", DIMS(c->N, c->OC), 1.0);
    OpTensor dweight = op_inout(grad, "dweight", DIMS(c->OC, c->IC), 3.0);
    OpTensor dbias = op_inout(grad, "dbias", DIMS(c->OC), 3.0);
    if (!accumulate) op_poison(dweight);
    if (!accumulate && with_bias) op_poison(dbias);
    matmul_backward_weight(gradient_to(dweight.t, accumulate),
                           with_bias ? gradient_to(dbias.t, accumulate) : gradient_none(), dout.t,
                           in.t);
    ref_matmul_backward_weight(dweight.v, with_bias ? dbias.v : NULL, dout.v, in.v, c->N, c->IC,
                               c->OC, accumulate);
    op_check_terms(dweight, grad, DTYPE_FP32, sqrt((double)c->N));
    if (with_bias)
        op_check_terms(dbias, grad, DTYPE_FP32, sqrt((double)c->N));
    else
        op_check(dbias, grad); // unchanged: the op was told that there is none
    op_end();
}

// --------------------------------------------------------------------------------------- attention

// C: channels of all heads of q.
typedef struct {
    int64_t B, T, C, NH, NKV;
} HeadsShape;

static inline int64_t heads_columns(const HeadsShape *c) {
    return c->C + 2 * c->NKV * (c->C / c->NH);
} // of qkv

static inline void attention_begin(const HeadsShape *c, DType dtype, const char *what) {
    const OpsShape shape = {.B = c->B,
                            .T = c->T,
                            .C = c->C,
                            .NH = c->NH,
                            .NKV = c->NKV,
                            .Vp = 128,
                            .num_tensors = 1,
                            .dtype = dtype};
    op_begin(shape, "%s %s B=%d T=%d C=%d NH=%d NKV=%d", what, dtype_name(dtype), (int)c->B,
             (int)c->T, (int)c->C, (int)c->NH, (int)c->NKV);
}

static inline void attention_forward_case(const HeadsShape *c, DType dtype, double scale,
                                          double slack) {
    attention_begin(c, dtype, "attention_forward");
    OpTensor qkv = op_input(dtype, "qkv", DIMS(c->B, c->T, heads_columns(c)), scale);
    OpTensor out = op_output(dtype, "out", DIMS(c->B, c->T, c->C));
    OpTensor lse = op_output(DTYPE_FP32, "lse", DIMS(c->B, c->NH, c->T));
    attention_forward(out.t, lse.t, qkv.t, heads_of((int)c->NH, (int)c->NKV));
    ref_attention_forward(out.v, lse.v, qkv.v, c->B, c->T, c->NH, c->NKV, c->C / c->NH);
    op_check_scaled(out, dtype, slack);
    op_check_logarithms(lse, dtype, slack);
    op_end();
}

// The gradients of q, k and v apart: dv is the largest and would hide the others. Probabilities and
// the gradients of scores are rounded; each reaches all HS values of a row, so that they are what
// there may be few of.
static inline void attention_check_parts(OpTensor dqkv, const HeadsShape *c, DType dtype) {
    static const char *const names[3] = {"dq", "dk", "dv"};
    const double *values = op_download(dqkv);
    const int64_t N = c->B * c->T, of_kv = c->NKV * (c->C / c->NH), columns = heads_columns(c);
    const double few = op_limit(dtype, c->B * c->NH * c->T * (c->T - 1) / 2);
    double *got = malloc((size_t)(N * c->C) * sizeof *got),
           *want = malloc((size_t)(N * c->C) * sizeof *want);
    double error[3], limit[3];

    for (int part = 0; part < 3; part++) {
        const int64_t C = part ? of_kv : c->C, first = part ? c->C + (part - 1) * of_kv : 0;
        for (int64_t i = 0; i < N * C; i++) {
            int64_t at = (i / C) * columns + first + i % C;
            got[i] = values[at], want[i] = dqkv.v[at];
        }
        error[part] = op_relative_error(got, want, N * C);
        limit[part] = fmax(few, op_limit_of_values(dtype, want, N * C));
    }

    free(got), free(want);
    for (int part = 0; part < 3; part++) op_expect(names[part], error[part], limit[part]);
}

// dbias is what was there, plus the sums of dqkv as the op left it: in fp64 they stay out of its
// errors.
static inline void attention_add_columns(OpTensor dbias, OpTensor dqkv, const HeadsShape *c,
                                         double *terms) {
    const double *values = op_download(dqkv);
    const int64_t columns = heads_columns(c), n = c->B * c->T * columns;
    for (int64_t i = 0; i < n; i++)
        dbias.v[i % columns] += values[i], *terms += values[i] * values[i] / (double)n;
    *terms = sqrt(*terms * (double)(c->B * c->T));
}

// grad, accumulate: of dbias.
static inline void attention_backward_case(const HeadsShape *c, DType dtype, DType grad,
                                           bool accumulate) {
    attention_begin(c, dtype, accumulate ? "attention_backward +=" : "attention_backward =");
    OpTensor qkv = op_input(dtype, "qkv", DIMS(c->B, c->T, heads_columns(c)), 1.0);
    OpTensor dout = op_input(dtype, "dout", DIMS(c->B, c->T, c->C), 1.0);
    OpTensor out = op_input(dtype, "out", DIMS(c->B, c->T, c->C), 1.0);
    OpTensor lse = op_input(DTYPE_FP32, "lse", DIMS(c->B, c->NH, c->T), 1.0);
    OpTensor dqkv = op_output(dtype, "dqkv", DIMS(c->B, c->T, heads_columns(c)));
    OpTensor dbias = op_inout(grad, "dbias", DIMS(heads_columns(c)), 1.0);
    Gradient left = gradient_to(dbias.t, accumulate);
    double terms = 0.0;
    ref_attention_forward(out.v, lse.v, qkv.v, c->B, c->T, c->NH, c->NKV, c->C / c->NH);
    // both sides see them as the forward pass stores them: rounded
    op_upload(&out), op_upload(&lse);
    attention_backward(dqkv.t, dout.t, out.t, lse.t, qkv.t, heads_of((int)c->NH, (int)c->NKV),
                       &left);
    if (!left.to.data && !accumulate)
        memset(dbias.v, 0, (size_t)heads_columns(c) * sizeof *dbias.v);
    if (!left.to.data) attention_add_columns(dbias, dqkv, c, &terms);
    op_check_terms(dbias, grad, DTYPE_FP32, terms); // as it was where the op left it
    ref_attention_backward(dqkv.v, dout.v, out.v, lse.v, qkv.v, c->B, c->T, c->NH, c->NKV,
                           c->C / c->NH);
    if (c->T > 1)
        attention_check_parts(dqkv, c, dtype);
    else
        op_check(dqkv, dtype); // dq and dk are zero but for rounding
    op_end();
}

// ------------------------------------------------------------------------- LM head + cross-entropy

typedef struct {
    int64_t N, C, V, Vp, R;
} HeadLossShape;

typedef struct {
    OpTensor in, wte, targets, logits, losses;
} HeadLoss;

// Rows V..Vp-1 of wte hold large numbers here: a backend that lets the padding take part is far
// off.
static inline HeadLoss head_loss_begin(const HeadLossShape *c, DType dtype, double logit_size,
                                       const char *what) {
    op_begin(
        (OpsShape){
            .B = 1, .T = c->N, .C = c->C, .NH = 1, .Vp = c->Vp, .num_tensors = 1, .dtype = dtype},
        "%s %s N=%d C=%d V=%d Vp=%d R=%d", what, dtype_name(dtype), (int)c->N, (int)c->C, (int)c->V,
        (int)c->Vp, (int)c->R);
    HeadLoss h = {
        .in = op_input(dtype, "in", DIMS(c->N, c->C), logit_size),
        .wte = op_input(dtype, "wte", DIMS(c->Vp, c->C), 1.0 / sqrt((double)c->C)),
        .targets = op_tokens("targets", DIMS(c->N), c->V),
        .logits = op_output(dtype, "logits", DIMS(c->R, c->Vp)),
        .losses = op_output(DTYPE_FP32, "losses", DIMS(c->N)),
    };
    for (int64_t i = c->V * c->C; i < c->Vp * c->C; i++) h.wte.v[i] = 8.0;
    op_upload(&h.wte);
    h.targets.tokens[0] = (int32_t)c->V - 1, h.targets.tokens[c->N - 1] = 0;
    op_upload(&h.targets);
    return h;
}

static inline void head_loss_forward_case(const HeadLossShape *c, DType dtype, double logit_size) {
    HeadLoss h = head_loss_begin(c, dtype, logit_size, "head_loss_forward");
    head_loss_forward(h.losses.t, h.logits.t, h.in.t, h.wte.t, h.targets.t, c->V);
    ref_head_loss_forward(h.losses.v, h.in.v, h.wte.v, h.targets.tokens, c->N, c->C, c->V);
    op_check_logarithms(h.losses, dtype, 1.0); // logits are stored in the compute dtype
    op_end();
}

static inline double head_loss_largest_logit(const HeadLoss *h, const HeadLossShape *c) {
    double largest = 0.0, *logits = malloc((size_t)(c->N * c->V) * sizeof *logits);
    ref_matmul_forward(logits, h->in.v, h->wte.v, NULL, c->N, c->C, c->V);
    for (int64_t i = 0; i < c->N * c->V; i++) largest = fmax(largest, fabs(logits[i]));
    free(logits);
    return largest;
}

static inline void head_loss_backward_case(const HeadLossShape *c, DType dtype, DType grad,
                                           bool accumulate, float loss_scale) {
    HeadLoss h = head_loss_begin(c, dtype, 1.0,
                                 accumulate ? "head_loss_backward +=" : "head_loss_backward =");
    float scale = 1.0f / (float)c->N;
    OpTensor din = op_output(dtype, "din", DIMS(c->N, c->C));
    OpTensor dwte = op_inout(grad, "dwte", DIMS(c->Vp, c->C), 1.0 / (double)c->N);
    Tensor control =
        loss_scale != 1.0f ? op_control(step_control_initial(loss_scale)) : tensor_none();
    if (!accumulate) op_poison(dwte);
    head_loss_backward(h.losses.t, din.t, gradient_to(dwte.t, accumulate), h.logits.t, h.in.t,
                       h.wte.t, h.targets.t, c->V, loss_scale_make(scale, control));
    ref_head_loss_backward(h.losses.v, din.v, dwte.v, h.in.v, h.wte.v, h.targets.tokens, c->N, c->C,
                           c->V, c->Vp, (double)scale * (double)loss_scale, accumulate);
    op_check_logarithms(h.losses, dtype, 1.0);
    // A logit of size 4, rounded, makes its probability wrong by 4 * 2^-8 in bf16, and with it the
    // whole row: four times the tolerance where few rows share the average, more where logits are
    // larger. The terms of din are the rows of wte, those of dwte the rows of in, by dlogits whose
    // squares sum to 1 - 1/V where all V are alike.
    const double few = c->N < 32 ? fmax(4.0, head_loss_largest_logit(&h, c)) : 1.0;
    const double dlogit = (double)scale * (double)loss_scale * sqrt(1.0 - 1.0 / (double)c->V);
    op_check_scaled_terms(din, dtype, dtype, dlogit / sqrt((double)c->C), few);
    // dlogits are stored in the compute dtype. A gradient of the compute dtype is rounded after
    // every chunk as well, by 2^-8 in bf16 where a chunk adds just less than half an ulp and all of
    // it is lost: errors add as squares.
    double chunks = grad == DTYPE_FP32 ? 0.0 : ceil((double)c->N / (double)c->R);
    const double dwte_terms = dlogit * sqrt((double)c->N / (double)c->Vp);
    op_check_scaled_terms(dwte, dtype, dtype, dwte_terms, few * sqrt(1.0 + chunks));
    if (!accumulate) {
        const double *values = op_download(dwte);
        for (int64_t i = c->V * c->C; i < c->Vp * c->C; i++) assert_true(values[i] == 0.0);
    }
    op_end();
}

// ------------------------------------------------------------------------------ element by element

static inline OpsShape elements_shape(DType dtype) {
    return (OpsShape){
        .B = 1, .T = 1, .C = 16, .NH = 1, .Vp = 128, .num_tensors = 16, .dtype = dtype};
}

// The result is x from `skipped` on: 1 makes it aligned to no more than one element.
static inline OpTensor without_first(OpTensor x, int64_t skipped) {
    return (OpTensor){.t = tensor_slice_elements(x.t, skipped, tensor_numel(x.t) - skipped),
                      .v = x.v + skipped};
}

static inline void fill_case(DType dtype, int64_t n, float value, int64_t skipped) {
    op_begin(elements_shape(dtype), "tensor_fill %s of %d elements from %d with %g",
             dtype_name(dtype), (int)n, (int)skipped, (double)value);
    OpTensor x = op_output(dtype, "x", DIMS(n + skipped));
    tensor_fill(without_first(x, skipped).t, value);
    const double *got = op_download(x);
    for (int64_t i = 0; i < n + skipped; i++)
        assert_true(i < skipped ? isnan(got[i]) : got[i] == ref_round((double)value, dtype));
    op_end();
}

// Every bit pattern a float can have is drawn from: all exponents, denormals, infinities, NaNs;
// plus exact ties.
static inline void fill_with_hard_values(float *x, int64_t n) {
    static const uint32_t special[] = {0x00000000, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000,
                                       0x7F800001, 0xFFFFFFFF, 0x3F808000, 0x3F818000, 0x3F801000,
                                       0x3F803000, 0x7F7FFFFF, 0x477FF000, 0x477FEFFF, 0x33000000,
                                       0x33000001, 0x00000001, 0x007FFFFF};
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)i * 2654435761u;
        if (i < (int64_t)(sizeof special / sizeof *special)) bits = special[i];
        memcpy(&x[i], &bits, sizeof bits);
    }
}

static inline void cast_case(DType to, DType from, int64_t n, int64_t skipped) {
    op_begin(elements_shape(to), "tensor_cast of %d elements from %d, %s to %s", (int)n,
             (int)skipped, dtype_name(from), dtype_name(to));

    OpTensor src = op_output(from, "src", DIMS(n + skipped)),
             dst = op_output(to, "dst", DIMS(n + skipped));
    float *hard = malloc((size_t)(n + skipped) * sizeof *hard);
    void *bytes = malloc((size_t)(n + skipped) * sizeof *hard);
    fill_with_hard_values(hard, n + skipped);
    convert_elements(bytes, from, hard, DTYPE_FP32, n + skipped);
    op_write(src.t, bytes);
    free(hard), free(bytes);

    const double *values = op_download(src);
    tensor_cast(without_first(dst, skipped).t, without_first(src, skipped).t);
    const double *got = op_download(dst);

    for (int64_t i = skipped; i < n + skipped; i++) {
        double want = ref_round(values[i], to);
        bool same =
            isnan(want) ? isnan(got[i]) : got[i] == want && signbit(got[i]) == signbit(want);
        if (!same)
            op_fail("%s -> %s: %a became %a, not %a", dtype_name(from), dtype_name(to), values[i],
                    got[i], want);
    }
    op_end();
}

static inline void gelu_case(DType dtype, int64_t n, int64_t skipped) {
    op_begin(elements_shape(dtype), "gelu_forward %s of %d elements from %d", dtype_name(dtype),
             (int)n, (int)skipped);
    OpTensor pre = op_input(dtype, "pre", DIMS(n + skipped), 2.0),
             out = op_output(dtype, "out", DIMS(n + skipped));
    OpTensor rest = without_first(out, skipped);
    gelu_forward(rest.t, without_first(pre, skipped).t);
    ref_gelu_forward(rest.v, pre.v + skipped, n);
    op_check_terms(rest, dtype, DTYPE_FP32, 1.0); // 1 + tanh cancels far below zero
    op_end();
}

// An fp32 gradient written to dst, and another one added to it: the bits of the specification.
static inline void gradient_add_case(DType dtype, int64_t n, int stream, uint32_t micro_steps) {
    op_begin(elements_shape(dtype), "gradient_add %s to %lld elements", dtype_name(dtype),
             (long long)n);

    StepControl c = step_control_initial(1.0f);
    c.micro_steps = micro_steps;
    const Tensor control = op_control(c);
    OpTensor src[2] = {op_input(DTYPE_FP32, "src", DIMS(n), 0.3),
                       op_input(DTYPE_FP32, "more", DIMS(n), 1e-3)};
    // NaN, which the first micro-step must not read
    OpTensor dst = op_output(dtype, "dst", DIMS(n));

    for (int i = 0; i < 2; i++) {
        gradient_add(gradient_to(dst.t, i), src[i].t, 42, stream, control);
        ref_gradient_add(dst.v, src[i].v, n, i, dtype, 42, stream, micro_steps);
        op_check_values(dst);
    }
    op_end();
}

// -------------------------------------------------------------------------------------- statistics

static inline OpTensor stats_tensor(TensorStats initial) {
    OpTensor stats = op_output(DTYPE_U8, "stats", DIMS(sizeof initial));
    op_write(stats.t, &initial);
    return stats;
}

// Counts and amax are exact. Squares are summed in fp64 in another order: n roundings of 2^-53 each
// at most.
static inline void stats_expect(const TensorStats *got, const TensorStats *want, double n) {
    const bool same = got->count == want->count && got->zero == want->zero &&
                      got->underflow == want->underflow && got->overflow == want->overflow &&
                      got->amax == want->amax;
    if (!same)
        op_fail("got count %g zero %g under %g over %g amax %a, not %g %g %g %g %a", got->count,
                got->zero, got->underflow, got->overflow, (double)got->amax, want->count,
                want->zero, want->underflow, want->overflow, (double)want->amax);
    op_expect("sumsq", fabs(got->sumsq - want->sumsq), n * 0x1p-52 * want->sumsq);
}

// The function compares the counts of x by op and specification, on top of what another tensor had
// left.
static inline void stats_compare(Tensor x, const double *values, DType format) {
    const int64_t n = tensor_numel(x);
    const TensorStats before = {
        .count = 5, .sumsq = 3.5, .zero = 1, .underflow = 2, .overflow = 1, .amax = 0x1.8p-100f};
    TensorStats want = before, got;
    OpTensor stats = stats_tensor(before);
    tensor_statistics(stats.t, x, format);
    ref_tensor_statistics(&want, values, n, format);
    op_read(&got, stats.t);
    stats_expect(&got, &want, (double)n + 2.0);
}

// gradient_sumsq of a list that is made for this call; tensors: their gradients alone.
static inline void sumsq_once(Tensor sumsq, const UpdateTensor *tensors, int n) {
    UpdateList list = update_list(tensors, n);
    gradient_sumsq(sumsq, &list);
    update_list_free(&list);
}

// Gradients of very different sizes: each entry of sumsq is exact for itself.
static inline void sumsq_case(DType dtype, const int64_t *sizes, int n) {
    enum { MOST = 16 };
    op_begin(elements_shape(dtype), "gradient_sumsq %s of %d tensors, the first of %d",
             dtype_name(dtype), n, (int)sizes[0]);

    UpdateTensor tensors[MOST] = {0};
    OpTensor sumsq = op_output(DTYPE_FP32, "sumsq", DIMS(n));
    for (int i = 0; i < n; i++) {
        OpTensor grad = op_input(dtype, "grad", DIMS(sizes[i]), pow(10.0, 2 - i));
        tensors[i].grad = grad.t;
        sumsq.v[i] = ref_sumsq(grad.v, sizes[i]);
    }

    sumsq_once(sumsq.t, tensors, n);
    const double *got = op_download(sumsq); // fp32 whatever the gradients are
    for (int i = 0; i < n; i++)
        op_expect("sumsq", op_relative_error(&got[i], &sumsq.v[i], 1), op_tolerance(DTYPE_FP32));
    op_end();
}
