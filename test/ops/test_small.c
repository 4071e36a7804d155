// tensor_fill and tensor_cast, bit by bit, gelu_forward, tensor_axpby and stacks of tensors; also
// on tensors that begin at an odd element.
#include "test/ops/op_cases.h"

TestFixture test_all = {op_group_setup, op_group_teardown};

OP_TEST(tensor_fill_writes_every_element) {
    static const float fill[] = {0.0f, -1.0f, 0.1f, INFINITY};
    static const int64_t sizes[] = {1, 7, 70001, 64};
    for (int i = 0; i < 4; i++) fill_case(dtype, sizes[i], fill[i], 0);
}

OP_TEST(tensor_fill_takes_any_alignment) { fill_case(dtype, 999, 0.1f, 1); }

OP_TEST(tensor_cast_rounds_to_nearest_even) {
    static const int64_t sizes[] = {1, 23, 70001};
    for (int from = 0; from < 3; from++) {
        if (!device_facts()->supports[op_dtypes[from]]) continue;
        for (int i = 0; i < 6; i++) cast_case(dtype, op_dtypes[from], sizes[i % 3], i / 3);
    }
}

OP_TEST(gelu_forward_matches) {
    static const int64_t sizes[] = {7, 512, 10007};
    for (int i = 0; i < 6; i++) gelu_case(dtype, sizes[i % 3], i / 3);
}

// Far from zero the gate is 1 or 0: what comes out is what went in, whatever the other half of
// their word is; in 16 bits exactly. A GPU's quotient may miss 1 by two ulp, 2^-22, and the product
// is rounded once more, by 2^-24.
OP_TEST(gelu_leaves_large_numbers_as_they_are) {
    enum { N = 100 };
    op_begin(elements_shape(dtype), "gelu_forward of large numbers");
    OpTensor pre = op_input(dtype, "pre", DIMS(N), 1.0), out = op_output(dtype, "out", DIMS(N));

    for (int i = 0; i < N; i++) {
        pre.v[i] = i % 4 == 0 ? -1000.0 : 8.0 + 0.125 * (i * 37 % N);
        out.v[i] = fmax(pre.v[i], 0.0);
    }
    op_upload(&pre);

    gelu_forward(out.t, pre.t);
    const double *got = op_download(out);
    for (int i = 0; i < N;
         i++) { // gelu(-10.1) is the last that is no denormal: what is below may be as far from 0
        const double bound = pre.v[i] < 0.0        ? 0x1p-123
                             : dtype == DTYPE_FP32 ? 0x1.4p-22 * out.v[i]
                                                   : 0.0;
        if (!(fabs(got[i] - out.v[i]) <= bound)) op_fail("gelu(%g) is %.9g", pre.v[i], got[i]);
    }

    op_end();
}

// a x + b y into a third tensor, into x and into y.
static void axpby_case(DType dtype, int64_t n, int64_t skipped, int into) {
    op_begin(elements_shape(dtype), "tensor_axpby of %d elements from %d into tensor %d", (int)n,
             (int)skipped, into);
    OpTensor x = op_inout(dtype, "x", DIMS(n), 1.0), y = op_inout(dtype, "y", DIMS(n), 1.0);
    OpTensor third = op_output(dtype, "out", DIMS(n)), out = into == 0 ? third : into == 1 ? x : y;
    const OpTensor a = without_first(x, skipped), b = without_first(y, skipped),
                   rest = without_first(out, skipped);
    ref_tensor_axpby(rest.v, (double)3.4445f, a.v, (double)-4.775f, b.v, n - skipped);
    tensor_axpby(rest.t, 3.4445f, a.t, -4.775f, b.t);
    op_check(rest, dtype);
    op_end();
}

OP_TEST(tensor_axpby_matches_also_in_place) {
    static const int64_t sizes[] = {7, 512, 70001};
    for (int i = 0; i < 18; i++) axpby_case(dtype, sizes[i % 3], i / 9, i / 3 % 3);
}

// n tensors of `elements` from element `skipped` of a larger one, as a stack and back.
static void stack_case(DType dtype, DType other, int64_t n, int64_t elements, int64_t skipped) {
    op_begin(elements_shape(dtype), "a stack of %d tensors of %d elements, %s, from %d", (int)n,
             (int)elements, dtype_name(other), (int)skipped);
    OpTensor stack = op_output(dtype, "stack", DIMS(n, elements)),
             in = op_input(other, "in", DIMS(n, elements + 8), 30.0);
    OpTensor out = op_output(other, "out", DIMS(n, elements + 8)),
             sumsq = op_input(DTYPE_FP32, "sumsq", DIMS(n), 0.0);
    Tensor from[STACK_MAX], to[STACK_MAX];
    float factors[STACK_MAX];

    for (int64_t i = 0; i < n; i++) {
        const int64_t at = i * (elements + 8) + skipped;
        from[n - 1 - i] = tensor_slice_elements(in.t, at, elements); // in any order
        to[n - 1 - i] = tensor_slice_elements(out.t, at, elements);
        factors[i] = 1.0f + 0.25f * (float)i; // exact
        sumsq.v[n - 1 - i] = ref_sumsq(in.v + at, elements);
        // as the outputs begin
        for (int64_t e = 0; e < elements + 8; e++) out.v[i * (elements + 8) + e] = 0.0;
    }
    op_upload(&sumsq);
    op_upload(&out);

    stack_gather(stack.t, from, sumsq.t);
    for (int64_t i = 0; i < n; i++)
        ref_normalize(stack.v + i * elements, in.v + (n - 1 - i) * (elements + 8) + skipped,
                      sumsq.v[i], elements);
    op_check(stack, dtype);

    // The other way from what is there, so that each element is rounded once.
    const double *there = op_download(stack);
    for (int64_t e = 0; e < n * elements; e++) stack.v[e] = there[e];

    stack_scatter(to, stack.t, factors);
    for (int64_t i = 0; i < n; i++)
        for (int64_t e = 0; e < elements; e++)
            out.v[(n - 1 - i) * (elements + 8) + skipped + e] =
                (double)factors[i] * stack.v[i * elements + e];
    op_check(out, other);
    op_end();
}

OP_TEST(stacks_match) {
    static const int64_t sizes[][3] = {
        {1, 1, 0}, {3, 7, 1}, {2, 4096, 0}, {16, 1000, 4}, {5, 4097, 8}};
    for (int i = 0; i < 5; i++) {
        stack_case(dtype, DTYPE_FP32, sizes[i][0], sizes[i][1], sizes[i][2]);
        stack_case(dtype, dtype, sizes[i][0], sizes[i][1], sizes[i][2]);
    }
}

// The least norm keeps 0 / 0 away.
OP_TEST(tensors_of_zeros_become_a_stack_of_zeros) {
    op_begin(elements_shape(dtype), "stack_gather of zeros");
    OpTensor in = op_input(dtype, "in", DIMS(100), 0.0),
             out = op_output(dtype, "out", DIMS(1, 100));
    OpTensor sumsq = op_input(DTYPE_FP32, "sumsq", DIMS(1), 0.0);
    stack_gather(out.t, &in.t, sumsq.t);
    const double *got = op_download(out);
    for (int i = 0; i < 100; i++) assert_true(got[i] == 0.0);
    op_end();
}

OP_TEST(slices_of_tensors_match) {
    for (int i = 0; i < 3; i++) {
        op_begin_tensors_at(8);
        cast_case(dtype, op_dtypes[i], 999, 0);
        op_begin_tensors_at(8);
        axpby_case(dtype, 999, 0, i);
    }

    op_begin_tensors_at(8);
    fill_case(dtype, 999, 0.1f, 0);
    op_begin_tensors_at(8);
    gelu_case(dtype, 999, 0);
    op_begin_tensors_at(8);
    stack_case(dtype, DTYPE_FP32, 2, 999, 0);
    op_begin_tensors_at(8);
    stack_case(dtype, dtype, 2, 1000, 0);
}
