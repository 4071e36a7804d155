// layernorm_forward and layernorm_backward against the specification.
#include "test/ops/op_cases.h"

TestFixture test_all = {op_group_setup, op_group_teardown};

// N C: one row; rows that are no multiple of 8; C that is no multiple of 16, odd, wide; more rows
// than one block. Then the widths at which a GPU cuts rows another way: a warp's last pack partly
// filled, rows of a block, rows of no fixed size. Then the widths of GPT-2 medium and large, and
// others that give a warp's lane 16, 32, 40 and 48 columns; 16 blocks, as many as a block has warps
// that add their sums.
static const RowsShape cases[] = {{1, 24},   {3, 40},   {13, 64},  {7, 21},   {65, 768},
                                  {200, 48}, {130, 16}, {5, 300},  {3, 1600}, {2, 2048},
                                  {3, 2560}, {2, 4104}, {35, 257}, {6, 512},  {5, 1024},
                                  {6, 1280}, {5, 1536}, {3, 1400}, {250, 40}};
enum { NUM_CASES = sizeof cases / sizeof *cases };

OP_TEST(layernorm_forward_matches) {
    for (int i = 0; i < NUM_CASES; i++) layernorm_forward_case(&cases[i], dtype);
}

OP_TEST(constant_rows_give_the_bias) {
    RowsShape c = {5, 40};
    layernorm_begin(&c, dtype, "layernorm_forward of constant rows");

    OpTensor in = op_input(dtype, "in", DIMS(c.N, c.C), 1.0);
    for (int64_t n = 0; n < c.N; n++)
        for (int64_t i = 0; i < c.C; i++) in.v[n * c.C + i] = (double)(n + 1);
    op_upload(&in);

    OpTensor weight = op_input(dtype, "weight", DIMS(c.C), 1.0),
             bias = op_input(dtype, "bias", DIMS(c.C), 1.0);
    OpTensor out = op_output(dtype, "out", DIMS(c.N, c.C));
    OpTensor mean = op_output(DTYPE_FP32, "mean", DIMS(c.N)),
             rstd = op_output(DTYPE_FP32, "rstd", DIMS(c.N));

    layernorm_forward(out.t, mean.t, rstd.t, in.t, weight.t, bias.t, 1e-5f);
    ref_layernorm_forward(out.v, mean.v, rstd.v, in.v, weight.v, bias.v, c.N, c.C, 1e-5);
    op_check(out, dtype);
    op_check(rstd, DTYPE_FP32); // 1 / sqrt(1e-5)
    op_end();
}

OP_TEST(layernorm_backward_matches) {
    for (int i = 0; i < NUM_CASES; i++) {
        for (int flags = i % 2; flags < 4;
             flags += 2) { // and the sum of din: absent, =, +=, = where the others are +=
            static const int sums[] = {0, 4, 4 | 8, 4};
            const DType grad = (flags ^ i / 2) & 1 ? dtype : DTYPE_FP32;
            layernorm_backward_case(&cases[i], dtype, grad, flags | sums[(flags + i / 2) % 4]);
        }
    }
}

OP_TEST(slices_of_tensors_match) {
    for (int i = 0; i < 3; i++) {
        op_begin_tensors_at(8);
        layernorm_forward_case(&cases[i], dtype);
        op_begin_tensors_at(8);
        layernorm_backward_case(&cases[i], dtype, i ? DTYPE_FP32 : dtype,
                                i % 2 | 2 | 4 | (i ? 8 : 0));
    }
}

// More rows than all blocks of a GPU's backward pass have at first: blocks take turns, and their
// partial sums have an end. Ones everywhere, rows of xhat = 1: both gradients count the rows.
TEST_WITH(more_rows_than_blocks_are_counted_once, NULL, op_teardown) {
    enum { N = 16500, C = 768 };
    const DType dtype = device_facts()->supports[DTYPE_BF16] ? DTYPE_BF16 : DTYPE_FP16;
    Error err;
    Tensor rows[3], dweight[2], of_row[2];
    layernorm_begin(&(RowsShape){N, C}, dtype, "layernorm_backward of many rows");

    const size_t bytes = (size_t)N * C * dtype_size(dtype);
    char *memory = device_alloc(3 * bytes + 2 * (C + N) * sizeof(float), &err);
    assert_non_null(memory);
    float *at = (float *)(void *)(memory + 3 * bytes);
    for (size_t i = 0; i < 3; i++)
        rows[i] = tensor_make(memory + i * bytes, dtype, "rows", N, C, 0, 0);
    for (int i = 0; i < 2; i++) {
        dweight[i] = tensor_make(at + i * C, DTYPE_FP32, "dweight", C, 0, 0, 0);
        of_row[i] = tensor_make(at + 2 * C + i * N, DTYPE_FP32, "mean, rstd", N, 0, 0, 0);
        tensor_fill(rows[i], 1.0f);
    }

    OpTensor weight = op_input(dtype, "weight", DIMS(C), 1.0);
    tensor_fill(of_row[1], 1.0f); // the mean is 0
    layernorm_backward(gradient_to(rows[2], false), gradient_to(dweight[0], false),
                       gradient_to(dweight[1], false), gradient_none(), rows[0], rows[1], of_row[0],
                       of_row[1], weight.t);

    for (int i = 0; i < 2; i++) {
        double *got = op_values(dweight[i]);
        for (int c = 0; c < C; c++) assert_true(got[c] == N);
        free(got);
    }

    device_free(memory);
    op_end();
}
