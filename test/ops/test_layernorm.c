// layernorm_forward, residual_layernorm_forward and layernorm_backward against the specification.
#include "test/ops/op_test.h"
#include <math.h>

// N C: one row; rows that are no multiple of 8; C that is no multiple of 16, odd, wide; more rows than one block. Then
// the widths at which a GPU cuts rows another way: a warp's last pack partly filled, rows of a block, rows of no fixed
// size. Then the widths of GPT-2 medium and large, and others that give a warp's lane 16, 32, 40 and 48 columns.
static const struct Case {
    int64_t N, C;
} cases[] = {{1, 24},   {3, 40},   {13, 64},  {7, 21},   {65, 768}, {200, 48}, {130, 16}, {5, 300},  {3, 1600},
             {2, 2048}, {3, 2560}, {2, 4104}, {35, 257}, {6, 512},  {5, 1024}, {6, 1280}, {5, 1536}, {3, 1400}};
enum { NUM_CASES = sizeof cases / sizeof *cases };

static void begin(const struct Case *c, DType dtype, const char *what) {
    op_begin((OpsShape){.B = 1, .T = c->N, .C = c->C, .NH = 1, .Vp = 128, .num_tensors = 1, .dtype = dtype},
             "%s N=%d C=%d", what, (int)c->N, (int)c->C);
}

// Rows with a mean of 2: a variance computed as E[x^2] - E[x]^2 without care loses digits here.
static OpTensor shifted_input(DType dtype, const char *name, OpDims dims) {
    OpTensor x = op_input(dtype, name, dims, 1.0);
    for (int64_t i = 0; i < tensor_numel(x.t); i++) x.v[i] += 2.0;
    op_upload(&x);
    return x;
}

static void layernorm_forward_matches(void **state) {
    DType dtype = op_dtype(state);
    for (int i = 0; i < NUM_CASES; i++) {
        const struct Case *c = &cases[i];
        begin(c, dtype, "layernorm_forward");
        OpTensor in = shifted_input(dtype, "in", DIMS(c->N, c->C));
        OpTensor weight = op_input(dtype, "weight", DIMS(c->C), 1.0), bias = op_input(dtype, "bias", DIMS(c->C), 1.0);
        OpTensor out = op_output(dtype, "out", DIMS(c->N, c->C));
        OpTensor mean = op_output(DTYPE_FP32, "mean", DIMS(c->N)), rstd = op_output(DTYPE_FP32, "rstd", DIMS(c->N));
        layernorm_forward(out.t, mean.t, rstd.t, in.t, weight.t, bias.t);
        ref_layernorm_forward(out.v, mean.v, rstd.v, in.v, weight.v, bias.v, c->N, c->C);
        op_check(out, dtype);
        op_check(mean, DTYPE_FP32);
        op_check(rstd, DTYPE_FP32);
        op_end();
    }
}

static void residual_case(const struct Case *c, DType dtype, bool in_place) {
    begin(c, dtype, in_place ? "residual_layernorm_forward in place" : "residual_layernorm_forward");
    OpTensor in = op_inout(dtype, "in", DIMS(c->N, c->C), 1.0),
             branch = shifted_input(dtype, "branch", DIMS(c->N, c->C));
    OpTensor weight = op_input(dtype, "weight", DIMS(c->C), 1.0), bias = op_input(dtype, "bias", DIMS(c->C), 1.0);
    OpTensor residual = in_place ? in : op_output(dtype, "residual", DIMS(c->N, c->C));
    OpTensor out = op_output(dtype, "out", DIMS(c->N, c->C));
    OpTensor mean = op_output(DTYPE_FP32, "mean", DIMS(c->N)), rstd = op_output(DTYPE_FP32, "rstd", DIMS(c->N));
    residual_layernorm_forward(residual.t, out.t, mean.t, rstd.t, in.t, branch.t, weight.t, bias.t);
    if (!in_place) op_check(in, DTYPE_FP32);
    ref_residual_layernorm_forward(residual.v, out.v, mean.v, rstd.v, in.v, branch.v, weight.v, bias.v, c->N, c->C,
                                   dtype);
    op_check(residual, dtype);
    op_check(out, dtype);
    op_check(mean, DTYPE_FP32); // statistics of the rounded residual, to fp32 precision
    op_check(rstd, DTYPE_FP32);
    op_end();
}

static void residual_layernorm_forward_matches(void **state) {
    DType dtype = op_dtype(state);
    for (int i = 0; i < NUM_CASES; i++) {
        residual_case(&cases[i], dtype, false);
        residual_case(&cases[i], dtype, true);
    }
}

static void constant_rows_give_the_bias(void **state) {
    DType dtype = op_dtype(state);
    struct Case c = {5, 40};
    begin(&c, dtype, "layernorm_forward of constant rows");
    OpTensor in = op_input(dtype, "in", DIMS(c.N, c.C), 1.0);
    for (int64_t n = 0; n < c.N; n++)
        for (int64_t i = 0; i < c.C; i++) in.v[n * c.C + i] = (double)(n + 1);
    op_upload(&in);
    OpTensor weight = op_input(dtype, "weight", DIMS(c.C), 1.0), bias = op_input(dtype, "bias", DIMS(c.C), 1.0);
    OpTensor out = op_output(dtype, "out", DIMS(c.N, c.C));
    OpTensor mean = op_output(DTYPE_FP32, "mean", DIMS(c.N)), rstd = op_output(DTYPE_FP32, "rstd", DIMS(c.N));
    layernorm_forward(out.t, mean.t, rstd.t, in.t, weight.t, bias.t);
    ref_layernorm_forward(out.v, mean.v, rstd.v, in.v, weight.v, bias.v, c.N, c.C);
    op_check(out, dtype);
    op_check(rstd, DTYPE_FP32); // 1 / sqrt(1e-5)
    op_end();
}

static void backward_case(const struct Case *c, DType dtype, DType grad, bool add_residual, bool accumulate) {
    begin(c, dtype, accumulate ? "layernorm_backward +=" : "layernorm_backward =");
    OpTensor in = shifted_input(dtype, "in", DIMS(c->N, c->C)), dout = op_input(dtype, "dout", DIMS(c->N, c->C), 1.0);
    OpTensor weight = op_input(dtype, "weight", DIMS(c->C), 1.0), bias = op_input(dtype, "bias", DIMS(c->C), 1.0);
    OpTensor mean = op_input(DTYPE_FP32, "mean", DIMS(c->N), 1.0), rstd = op_input(DTYPE_FP32, "rstd", DIMS(c->N), 1.0);
    OpTensor din = op_inout(dtype, "din", DIMS(c->N, c->C), 1.0);
    OpTensor dweight = op_inout(grad, "dweight", DIMS(c->C), 1.0), dbias = op_inout(grad, "dbias", DIMS(c->C), 1.0);
    OpTensor normed = op_output(dtype, "out", DIMS(c->N, c->C));
    ref_layernorm_forward(normed.v, mean.v, rstd.v, in.v, weight.v, bias.v, c->N, c->C);
    op_upload(&mean), op_upload(&rstd);
    if (!add_residual) op_poison(din);
    if (!accumulate) op_poison(dweight), op_poison(dbias);
    layernorm_backward(din.t, dweight.t, dbias.t, dout.t, in.t, mean.t, rstd.t, weight.t, add_residual, accumulate);
    ref_layernorm_backward(din.v, dweight.v, dbias.v, dout.v, in.v, mean.v, rstd.v, weight.v, c->N, c->C, add_residual,
                           accumulate);
    op_check(din, dtype);
    op_check(dweight, grad);
    op_check(dbias, grad);
    op_end();
}

static void layernorm_backward_matches(void **state) {
    DType dtype = op_dtype(state);
    for (int i = 0; i < NUM_CASES; i++) {
        for (int flags = 0; flags < 4; flags++) {
            backward_case(&cases[i], dtype, DTYPE_FP32, flags & 1, flags & 2);
            if (dtype != DTYPE_FP32) backward_case(&cases[i], dtype, dtype, flags & 1, flags & 2);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        OP_TEST(layernorm_forward_matches),
        OP_TEST(residual_layernorm_forward_matches),
        OP_TEST(constant_rows_give_the_bias),
        OP_TEST(layernorm_backward_matches),
    };
    return cmocka_run_group_tests(tests, op_group_setup, op_group_teardown);
}
