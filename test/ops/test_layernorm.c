// layernorm_forward, residual_layernorm_forward and layernorm_backward against the specification.
#include "test/ops/op_cases.h"

// N C: one row; rows that are no multiple of 8; C that is no multiple of 16, odd, wide; more rows than one block. Then
// the widths at which a GPU cuts rows another way: a warp's last pack partly filled, rows of a block, rows of no fixed
// size. Then the widths of GPT-2 medium and large, and others that give a warp's lane 16, 32, 40 and 48 columns.
static const RowsShape cases[] = {{1, 24},   {3, 40},  {13, 64},  {7, 21},   {65, 768}, {200, 48},
                                  {130, 16}, {5, 300}, {3, 1600}, {2, 2048}, {3, 2560}, {2, 4104},
                                  {35, 257}, {6, 512}, {5, 1024}, {6, 1280}, {5, 1536}, {3, 1400}};
enum { NUM_CASES = sizeof cases / sizeof *cases };

static void layernorm_forward_matches(void **state) {
    DType dtype = op_dtype(state);
    for (int i = 0; i < NUM_CASES; i++) layernorm_forward_case(&cases[i], dtype);
}

static void residual_layernorm_forward_matches(void **state) {
    DType dtype = op_dtype(state);
    for (int i = 0; i < NUM_CASES; i++) {
        residual_layernorm_case(&cases[i], dtype, false);
        residual_layernorm_case(&cases[i], dtype, true);
    }
}

static void constant_rows_give_the_bias(void **state) {
    DType dtype = op_dtype(state);
    RowsShape c = {5, 40};
    layernorm_begin(&c, dtype, "layernorm_forward of constant rows");
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

static void layernorm_backward_matches(void **state) {
    DType dtype = op_dtype(state);
    for (int i = 0; i < NUM_CASES; i++) {
        for (int flags = 0; flags < 4; flags++) {
            layernorm_backward_case(&cases[i], dtype, DTYPE_FP32, flags & 1, flags & 2);
            if (dtype != DTYPE_FP32) layernorm_backward_case(&cases[i], dtype, dtype, flags & 1, flags & 2);
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
