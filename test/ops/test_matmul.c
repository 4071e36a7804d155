// The matmul family and GELU against the specification.
#include "dev/sim/sim_control.h"
#include "test/ops/op_cases.h"

TestFixture test_all = {op_group_setup, op_group_teardown};

// N IC OC: one row; extents that are no multiple of 8 or 16; odd ones; more than one block in each
// direction.
static const MatmulShape cases[] = {{1, 24, 40}, {13, 40, 24},    {65, 64, 192}, {200, 96, 24},
                                    {7, 21, 63}, {130, 128, 384}, {33, 192, 48}};
enum { NUM_CASES = sizeof cases / sizeof *cases };

OP_TEST(matmul_forward_matches) {
    for (int i = 0; i < 2 * NUM_CASES; i++) matmul_forward_case(&cases[i / 2], dtype, i % 2);
}

// Decoding multiplies these: from one row to more than the CPU's kernel for few rows takes; rows of
// the weight that end in parts of its 16 columns and of its pairs of bf16, and many of them. Where
// products do not depend on how many rows there are (a GPU's library may choose by that), each row
// has the bits it has alone.
OP_TEST(matmul_forward_of_few_rows_matches) {
    static const MatmulShape few[] = {{1, 768, 70}, {2, 31, 5},   {5, 70, 33},
                                      {8, 96, 16},  {16, 65, 17}, {17, 64, 20}};
    const bool alike = strcmp(device_facts()->backend, "cpu") == 0 || sim_set_schedule != NULL;
    for (int i = 0; i < 6; i++) {
        const MatmulShape *c = &few[i];
        matmul_begin(c, dtype, "matmul_forward of few rows");

        OpTensor in = op_input(dtype, "in", DIMS(c->N, c->IC), 1.0),
                 weight = matmul_weight(dtype, c, c->IC);
        OpTensor bias = op_input(dtype, "bias", DIMS(c->OC), 1.0),
                 out = op_output(dtype, "out", DIMS(c->N, c->OC));
        OpTensor alone = op_output(dtype, "alone", DIMS(1, c->OC));

        matmul_forward(out.t, in.t, weight.t, bias.t);
        ref_matmul_forward(out.v, in.v, weight.v, bias.v, c->N, c->IC, c->OC);
        op_check(out, dtype);

        for (int64_t row = 0; alike && c->N <= 16 && row < c->N; row++) {
            matmul_forward(alone.t, tensor_slice_rows(in.t, row, 1), weight.t, bias.t);
            op_check_same_bits((OpTensor){.t = tensor_slice_rows(out.t, row, 1)}, alone);
        }
        op_end();
    }
}

// From one row on, of which the CPU computes few another way; and where the residual is not aligned
// as the output is.
OP_TEST(matmul_residual_forward_matches) {
    static const MatmulShape few[] = {{2, 31, 5}, {16, 65, 17}, {17, 64, 20}, {600, 24, 16}};
    for (int i = 0; i < NUM_CASES; i++) matmul_residual_case(&cases[i], dtype);
    for (int i = 0; i < 4; i++) matmul_residual_case(&few[i], dtype);
    for (int i = 0; i < 3; i++) {
        op_begin_tensors_at(8);
        matmul_residual_case(&cases[i], dtype);
    }
}

OP_TEST(matmul_gelu_forward_matches) {
    for (int i = 0; i < NUM_CASES; i++) matmul_gelu_forward_case(&cases[i], dtype, false);
}

OP_TEST(gelu_forward_repeats_the_bits_of_matmul_gelu_forward) {
    for (int i = 0; i < NUM_CASES; i++) matmul_gelu_forward_case(&cases[i], dtype, true);
}

OP_TEST(matmul_backward_input_matches) {
    for (int i = 0; i < NUM_CASES; i++) matmul_backward_input_case(&cases[i], dtype);
}

OP_TEST(matmul_gelu_backward_input_matches) {
    for (int i = 0; i < NUM_CASES; i++) matmul_gelu_backward_input_case(&cases[i], dtype);
}

OP_TEST(matmul_backward_weight_matches) {
    for (int i = 0; i < NUM_CASES; i++) {
        for (int flags = 0; flags < 4; flags++) {
            matmul_backward_weight_case(&cases[i], dtype, DTYPE_FP32, flags & 1, flags & 2);
            if (dtype != DTYPE_FP32)
                matmul_backward_weight_case(&cases[i], dtype, dtype, flags & 1, flags & 2);
        }
    }
}

// large + 1 has no place in 16 bits: a sum that is rounded before it is added to what is there,
// -large, loses the 1. Each form, of one matrix and of several, also where they begin anywhere;
// with nothing, with a tensor of its own and with an operand added.
OP_TEST(matmul_stack_matches) {
    static const int64_t sizes[][4] = {{1, 40, 24, 64},
                                       {3, 40, 24, 64},
                                       {5, 7, 5, 3},
                                       {16, 33, 48, 17},
                                       {3, 32, 32, 32}}; // n, rows, cols, k

    for (int i = 0; i < 5 * 3 * 3; i++) {
        const int64_t *s = sizes[i / 9], n = s[0], rows = s[1], cols = s[2], k = s[3];
        const StackForm form = (StackForm)(i % 3);
        const int with = i / 3 % 3; // 0: nothing, 1: a tensor of its own, 2: b
        if (with == 2 && (rows != k || (form == STACK_ABT && cols != k))) continue;

        float alpha = 1.0f, beta = 0.0f;
        if (i / 9 % 2 == 0 || with > 0) alpha = 2.0315f;
        if (with > 0) beta = -4.775f;

        matmul_begin(&(MatmulShape){n * rows, k, cols}, dtype, "matmul_stack");
        OpTensor a =
            op_input(dtype, "a", form == STACK_ATB ? DIMS(n, k, rows) : DIMS(n, rows, k), 1.0);
        OpTensor b =
            op_input(dtype, "b", form == STACK_ABT ? DIMS(n, cols, k) : DIMS(n, k, cols), 1.0);
        OpTensor out = op_output(dtype, "out", DIMS(n, rows, cols)), added = b;
        if (with < 2) added = op_input(dtype, "added", DIMS(n, rows, cols), 1.0);

        matmul_stack(out.t, form, alpha, a.t, b.t, beta, with == 0 ? tensor_none() : added.t);
        for (int64_t e = 0; e < n * rows * cols; e++) {
            const int64_t m = e / (rows * cols), r = e / cols % rows, c = e % cols;
            const double *x = a.v + m * rows * k, *y = b.v + m * cols * k;
            out.v[e] = 0.0;
            for (int64_t l = 0; l < k; l++)
                out.v[e] += (form == STACK_ATB ? x[l * rows + r] : x[r * k + l]) *
                            (form == STACK_ABT ? y[c * k + l] : y[l * cols + c]);
            out.v[e] = (double)alpha * out.v[e] + (double)beta * added.v[e];
        }

        // A product of size sqrt(k) may be rounded before the result is: two independent errors of
        // one size at most.
        if (alpha != 1.0f)
            op_check_scaled_terms(out, dtype, dtype, (double)alpha * sqrt((double)k), sqrt(2.0));
        else
            op_check(out, dtype);
        op_end();
    }
}

OP_TEST(a_bias_gradient_that_adds_is_rounded_once) {
    static const MatmulShape c = {16, 64, 64};
    const double large = dtype == DTYPE_FP16 ? 2048.0 : 256.0;
    matmul_begin(&c, dtype, "bias gradient rounded once");

    OpTensor in = op_input(dtype, "in", DIMS(16, 64), 1.0),
             dout = op_input(dtype, "dout", DIMS(16, 64), 1.0);
    OpTensor dweight = op_inout(dtype, "dweight", DIMS(64, 64), 1.0),
             dbias = op_inout(dtype, "dbias", DIMS(64), 1.0);

    for (int i = 0; i < 16 * 64; i++) dout.v[i] = i < 64 ? large : i < 128 ? 1.0 : 0.0;
    for (int i = 0; i < 64; i++) dbias.v[i] = -large;
    op_upload(&dout), op_upload(&dbias);

    matmul_backward_weight(gradient_to(dweight.t, true), gradient_to(dbias.t, true), dout.t, in.t);
    for (int i = 0; i < 64; i++) dbias.v[i] = 1.0;
    op_check(dbias, dtype);
    op_end();
}

// Slices of rows, as chunks of the head take them: operands that begin at any element, here at the
// second row.
OP_TEST(rows_that_begin_anywhere_give_the_same_values) {
    static const MatmulShape slices[] = {{12, 21, 63}, {9, 24, 40}, {17, 33, 1}};
    for (int i = 0; i < 3; i++) {
        const MatmulShape *c = &slices[i];
        matmul_begin(c, dtype, "slices of rows");
        OpTensor in = op_input(dtype, "in", DIMS(c->N + 1, c->IC), 1.0);
        OpTensor out = op_output(dtype, "out", DIMS(c->N + 1, c->OC));
        OpTensor dout = op_input(dtype, "dout", DIMS(c->N + 1, c->OC), 1.0),
                 weight = matmul_weight(dtype, c, c->IC);
        OpTensor din = op_output(dtype, "din", DIMS(c->N + 1, c->IC));
        OpTensor dweight = op_output(DTYPE_FP32, "dweight", DIMS(c->OC, c->IC));

        for (int j = 0; j < 2; j++) { // the whole, then all but the first row over it
            const int64_t rows = c->N + 1 - j;
            matmul_forward(tensor_slice_rows(out.t, j, rows), tensor_slice_rows(in.t, j, rows),
                           weight.t, tensor_none());
            matmul_backward_input(tensor_slice_rows(din.t, j, rows),
                                  tensor_slice_rows(dout.t, j, rows), weight.t);
            matmul_backward_weight(gradient_to(dweight.t, false), gradient_none(),
                                   tensor_slice_rows(dout.t, j, rows),
                                   tensor_slice_rows(in.t, j, rows));
        }

        ref_matmul_forward(out.v, in.v, weight.v, NULL, c->N + 1, c->IC, c->OC);
        ref_matmul_backward_input(din.v, dout.v, weight.v, c->N + 1, c->IC, c->OC);
        ref_matmul_backward_weight(dweight.v, NULL, dout.v + c->OC, in.v + c->IC, c->N, c->IC,
                                   c->OC, false);

        op_check(out, dtype);
        op_check(din, dtype);
        op_check(dweight, DTYPE_FP32);
        op_end();
    }
}

// Where tanh saturates, x^2 sech^2 is infinity times zero and exp(2u) overflows for careless
// formulas.
OP_TEST(gelu_and_its_derivative_hold_far_from_zero) {
    static const double far[] = {0.0,   -0.0, 3.0,   -3.0,   5.0,     -5.0,   10.0,
                                 -10.0, 30.0, -30.0, 1000.0, -1000.0, 30000.0};
    MatmulShape c = {1, 64, 64};
    matmul_begin(&c, dtype, "gelu far from zero");

    OpTensor pre = op_input(dtype, "pre", DIMS(1, 64), 1.0),
             out = op_output(dtype, "out", DIMS(1, 64));
    for (int i = 0; i < 64; i++) pre.v[i] = far[(size_t)i % (sizeof far / sizeof *far)];
    op_upload(&pre);
    gelu_forward(out.t, pre.t);
    ref_gelu_forward(out.v, pre.v, 64);

    OpTensor dout = op_input(dtype, "dout", DIMS(1, 64), 1.0),
             identity = op_input(dtype, "weight", DIMS(64, 64), 1.0);
    for (int i = 0; i < 64 * 64; i++) identity.v[i] = i / 64 == i % 64 ? 1.0 : 0.0;
    op_upload(&identity);
    OpTensor dpre = op_output(dtype, "dpre", DIMS(1, 64));
    matmul_gelu_backward_input(dpre.t, dout.t, identity.t, pre.t, NULL);
    ref_matmul_gelu_backward_input(dpre.v, dout.v, identity.v, pre.v, 1, 64, 64);

    op_check(out, dtype);
    op_check(dpre, dtype);
    double *values = op_download(out);
    for (int i = 0; i < 64; i++) // elementwise too: the large values would hide the small ones
        if (fabs(values[i] - out.v[i]) > 4.0 * op_tolerance(dtype) * fmax(fabs(out.v[i]), 1e-2))
            op_fail("gelu(%g) = %g, expected %g", pre.v[i], values[i], out.v[i]);

    op_end();
}
