// The ops of blocks after GPT-2 against the specification: RMSNorm, QK-norm and RoPE, SwiGLU,
// ReLU^2.
#include "test/ops/block_cases.h"

TestFixture test_all = {op_group_setup, op_group_teardown};

// N C: one value; rows that are no multiple of 8; C that is no multiple of a vector, odd, wide;
// more rows than one block of sums. Then the widths at which a GPU cuts rows another way, as in
// test_layernorm.
static const RowsShape rows_cases[] = {{1, 1},    {1, 24},   {3, 40},   {13, 64},  {7, 21},
                                       {65, 768}, {200, 48}, {5, 300},  {2, 4104}, {35, 257},
                                       {250, 40}, {3, 512},  {3, 1024}, {2, 1280}, {2, 1536},
                                       {2, 1600}, {2, 2048}, {2, 2560}};
enum { NUM_ROWS_CASES = sizeof rows_cases / sizeof *rows_cases };

// B T NH NKV HS maxT: one token; heads of 2, 6 and 34, of which half is less than a vector or a
// little more; the usual sizes and others, longer than a warp's packs or no power of two; fewer
// heads of k and v; as many positions as the table and fewer; more rows than one block of sums.
static const QkShape qk_cases[] = {
    {1, 1, 1, 1, 2, 1},    {2, 7, 3, 3, 6, 9},     {1, 5, 4, 2, 34, 5},     {2, 9, 2, 1, 64, 20},
    {3, 33, 6, 2, 64, 33}, {1, 70, 4, 4, 32, 90},  {2, 40, 2, 2, 128, 100}, {1, 65, 8, 1, 16, 65},
    {2, 3, 1, 1, 264, 4},  {4, 90, 2, 1, 20, 100}, {2, 19, 3, 1, 48, 24},
};
enum { NUM_QK_CASES = sizeof qk_cases / sizeof *qk_cases };

// ----------------------------------------------------------------------------------------- rmsnorm

OP_TEST(rmsnorm_forward_matches) {
    for (int i = 0; i < NUM_ROWS_CASES; i++) rmsnorm_forward_case(&rows_cases[i], dtype);
}

OP_TEST(rmsnorm_backward_matches) {
    for (int i = 0; i < NUM_ROWS_CASES; i++)
        for (int flags = i % 2; flags < 4;
             flags += 2) { // and the sum of din: absent, =, +=, = where the others are +=
            static const int sums[] = {0, 4, 4 | 8, 4};
            const DType grad = (flags ^ i / 2) & 1 ? dtype : DTYPE_FP32;
            rmsnorm_backward_case(&rows_cases[i], dtype, grad, flags | sums[(flags + i / 2) % 4]);
        }
}

OP_TEST(rows_of_zeros_stay_zero) {
    const RowsShape c = {3, 40};
    layernorm_begin(&c, dtype, "rmsnorm_forward of zeros");
    OpTensor in = op_input(dtype, "in", DIMS(c.N, c.C), 0.0),
             weight = op_input(dtype, "weight", DIMS(c.C), 1.0);
    OpTensor out = op_output(dtype, "out", DIMS(c.N, c.C)),
             rstd = op_output(DTYPE_FP32, "rstd", DIMS(c.N));
    rmsnorm_forward(out.t, rstd.t, in.t, weight.t, 1e-5f);
    ref_rmsnorm_forward(out.v, rstd.v, in.v, weight.v, c.N, c.C, 1e-5);
    op_check(out, dtype);
    op_check(rstd, DTYPE_FP32); // 1 / sqrt(1e-5)
    op_end();
}

// -------------------------------------------------------------------------------- QK-norm and RoPE

// The angles are those of the specification, which rounds as Hugging Face does; cosines to the last
// bit but one.
OP_TEST(the_table_of_rope_matches) {
    static const float bases[] = {10000.0f, 1e6f, 100.0f};
    for (int i = 0; i < 3; i++) {
        const QkShape c = {1, 1, 1, 1, 32 << i, 1500};
        qk_begin(&c, dtype, "rope_table");
        const OpTensor table = qk_table(&c, bases[i]);
        const int64_t n = c.maxT * c.HS;
        double *want = malloc((size_t)n * sizeof *want);

        ref_rope_table(want, c.maxT, c.HS, (double)bases[i]);
        for (int64_t j = 0; j < n; j++)
            if (!(fabs(table.v[j] - want[j]) <= 0x1p-24))
                op_fail("element %d is %.9g, not %.9g", (int)j, table.v[j], want[j]);
        free(want);
        op_end();
    }
}

OP_TEST(qk_norm_rope_forward_matches) {
    for (int i = 0; i < NUM_QK_CASES; i++)
        for (int flags = 0; flags < 4; flags++)
            qk_norm_rope_forward_case(&qk_cases[i], dtype, flags & 1,
                                      qk_cases[i].maxT - qk_cases[i].T, -1, flags & 2);
}

OP_TEST(a_token_takes_its_position_from_the_device) {
    const QkShape one = {3, 1, 4, 2, 32, 50}, some = {2, 4, 4, 2, 32, 50};
    for (int norm = 0; norm < 2; norm++) {
        qk_norm_rope_forward_case(&one, dtype, norm, 0, 49, true);
        qk_norm_rope_forward_case(&one, dtype, norm, 2, 0, false);
        qk_norm_rope_forward_case(&some, dtype, norm, 3, 41, norm);
    }
}

OP_TEST(qk_norm_rope_backward_matches) {
    for (int i = 0; i < NUM_QK_CASES; i++)
        for (int flags = 0; flags < 4; flags++)
            qk_norm_rope_backward_case(&qk_cases[i], dtype, flags == 1 ? dtype : DTYPE_FP32,
                                       flags & 1, flags & 2);
}

// The rows of a batch computed one after the other, as decoding does, are those of the whole.
OP_TEST(rows_have_the_same_bits_alone) {
    const QkShape c = {2, 9, 4, 2, 24, 16};
    qk_begin(&c, dtype, "qk_norm_rope_forward by rows");
    const int64_t columns = qk_columns(&c);

    OpTensor qkv = op_inout(dtype, "qkv", DIMS(c.B, c.T, columns), 1.0),
             table = qk_table(&c, 10000.0f);
    OpTensor out = op_output(dtype, "out", DIMS(c.B, c.T, columns)),
             position = op_tokens("position", DIMS(1), 1);
    OpTensor rstd = op_output(DTYPE_FP32, "rstd", DIMS(c.B, c.T, c.NH + c.NKV));
    const QkWeights w = qk_weights(&c, dtype, true);

    qk_norm_rope_forward(out.t, rstd.t, qkv.t, w.q.t, w.k.t, table_from(table.t, 3),
                         heads_of((int)c.NH, (int)c.NKV), rms_eps, tensor_none());

    for (int64_t row = 0; row < c.B * c.T; row++) {
        Tensor one = tensor_slice_rows(qkv.t, row, 1);
        position.tokens[0] = (int32_t)(row % c.T);
        op_upload(&position);
        qk_norm_rope_forward(one, tensor_slice_rows(rstd.t, row, 1), one, w.q.t, w.k.t,
                             table_from(table.t, 3), heads_of((int)c.NH, (int)c.NKV), rms_eps,
                             position.t);
    }

    op_check_same_bits(out, qkv);
    op_end();
}

// ------------------------------------------------------------------------------- SwiGLU and ReLU^2

// Rows longer than a task as well.
static const RowsShape activation_cases[] = {{1, 1},    {3, 40},   {7, 21},  {65, 352},
                                             {2, 8200}, {5, 1000}, {130, 17}};
enum { NUM_ACTIVATION_CASES = sizeof activation_cases / sizeof *activation_cases };

OP_TEST(swiglu_and_relu2_forward_match) {
    for (int i = 0; i < NUM_ACTIVATION_CASES; i++) {
        swiglu_forward_case(&activation_cases[i], dtype);
        relu2_forward_case(&activation_cases[i], dtype);
    }
}

OP_TEST(swiglu_and_relu2_backward_match_also_in_place) {
    for (int i = 0; i < NUM_ACTIVATION_CASES; i++)
        for (int flags = 0; flags < 8; flags++) {
            const DType grad = (flags ^ i) & 1 ? dtype : DTYPE_FP32;
            swiglu_backward_case(&activation_cases[i], dtype, grad, flags);
            relu2_backward_case(&activation_cases[i], dtype, grad, flags);
        }
}

// --------------------------------------------------------------------------------------- alignment

// Tensors at 8 bytes: vectors of 16 are not loaded.
OP_TEST(slices_of_tensors_match) {
    static const RowsShape rows = {3, 40};
    static const QkShape heads = {2, 5, 4, 2, 64, 9};
    for (int i = 0; i < 2; i++) {
        op_begin_tensors_at(8);
        rmsnorm_forward_case(&rows, dtype);
        op_begin_tensors_at(8);
        rmsnorm_backward_case(&rows, dtype, i ? DTYPE_FP32 : dtype, 1 | 2 | 4 | 8);
        op_begin_tensors_at(8);
        qk_norm_rope_forward_case(&heads, dtype, i, 0, -1, i);
        op_begin_tensors_at(8);
        qk_norm_rope_backward_case(&heads, dtype, DTYPE_FP32, i, true);
        op_begin_tensors_at(8);
        swiglu_forward_case(&rows, dtype);
        op_begin_tensors_at(8);
        swiglu_backward_case(&rows, dtype, DTYPE_FP32, 1 | 2 * i);
        op_begin_tensors_at(8);
        relu2_forward_case(&rows, dtype);
        op_begin_tensors_at(8);
        relu2_backward_case(&rows, dtype, DTYPE_FP32, 1 | 2 * i);
    }
}

// silu of gates from -80 to 80, alone: up is 1. Its relative error in fp32 is that of 1 +
// exp(-gate), up to 1e-7, of a quotient and a product, 6e-8 each; below zero and with fewer than 16
// lanes also that of the exponent gate * log2(e): 9e-9 |gate| of the constant, 6e-8 |gate| of the
// product without fma. A GPU's quotient errs by 2.4e-7, its exponential by as much and for the
// product 6e-8 |gate|, where that is not small against 1. Beyond, it is the gate or as near to 0 as
// 2e-36.
TEST_WITH(silu_is_as_exact_as_exp, NULL, op_teardown) {
    enum { F = 16000 };
    const RowsShape c = {1, F};
    op_begin(activation_shape(&c, DTYPE_FP32), "silu");
    OpTensor gate_up = op_inout(DTYPE_FP32, "gate_up", DIMS(1, 2 * F), 1.0),
             out = op_output(DTYPE_FP32, "out", DIMS(1, F));

    for (int i = 0; i < F; i++) {
        gate_up.v[i] = -80.0 + 0.01 * i;
        gate_up.v[F + i] = 1.0;
    }
    gate_up.v[1] = -1e30, gate_up.v[2] = 1e30, gate_up.v[3] = (double)NAN, gate_up.v[4] = -100.0,
    gate_up.v[5] = 100.0;
    op_upload(&gate_up);

    swiglu_forward(out.t, gate_up.t);
    const double *got = op_download(out);
    const bool is_cpu = strcmp(device_facts()->backend, "cpu") == 0;
    double worst = 0.0, worst_at = 0.0;
    for (int i = 6; i < F; i++) {
        const double gate = gate_up.v[i], want = gate / (1.0 + exp(-gate));
        const double error = want == 0.0 ? fabs(got[i]) : fabs(got[i] - want) / fabs(want);
        const double limit =
            (is_cpu ? 2.2e-7 : 4.6e-7) + (gate < 0.0 ? 2.4e-7 * !is_cpu + 8e-8 * -gate : 0.0);
        if (error > worst) worst = error, worst_at = gate;
        if (!(error <= limit))
            op_fail("silu(%g) is %.9g, not %.9g: %.3g", gate, got[i], want, error);
    }

    print_message("silu: relative error up to %.3g, at %g\n", worst, worst_at);
    assert_true(fabs(got[1]) <= 2e-36 && fabs(got[4]) <= 2e-36 && isnan(got[3]));
    const double quotient = is_cpu ? 0.0 : 2.4e-7; // of 1 by 1, on a GPU
    assert_true(fabs(got[2] / gate_up.v[2] - 1.0) <= quotient &&
                fabs(got[5] / gate_up.v[5] - 1.0) <= quotient);
    op_end();
}
