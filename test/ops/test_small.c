// tensor_fill and tensor_cast, bit by bit, gelu_forward, tensor_axpby and tensor_normalize; also on tensors that begin
// at an odd element.
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

// Far from zero the gate is 1 or 0: what comes out is what went in, whatever the other half of their word is; in 16
// bits exactly. A GPU's quotient may miss 1 by two ulp, 2^-22, and the product is rounded once more, by 2^-24.
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
    for (int i = 0; i < N; i++) { // gelu(-10.1) is the last that is no denormal: what is below may be as far from 0
        const double bound = pre.v[i] < 0.0 ? 0x1p-123 : dtype == DTYPE_FP32 ? 0x1.4p-22 * out.v[i] : 0.0;
        if (!(fabs(got[i] - out.v[i]) <= bound)) op_fail("gelu(%g) is %.9g", pre.v[i], got[i]);
    }
    op_end();
}

// a x + b y into a third tensor, into x and into y.
static void axpby_case(DType dtype, int64_t n, int64_t skipped, int into) {
    op_begin(elements_shape(dtype), "tensor_axpby of %d elements from %d into tensor %d", (int)n, (int)skipped, into);
    OpTensor x = op_inout(dtype, "x", DIMS(n), 1.0), y = op_inout(dtype, "y", DIMS(n), 1.0);
    OpTensor third = op_output(dtype, "out", DIMS(n)), out = into == 0 ? third : into == 1 ? x : y;
    const OpTensor a = without_first(x, skipped), b = without_first(y, skipped), rest = without_first(out, skipped);
    ref_tensor_axpby(rest.v, (double)3.4445f, a.v, (double)-4.775f, b.v, n - skipped);
    tensor_axpby(rest.t, 3.4445f, a.t, -4.775f, b.t);
    op_check(rest, dtype);
    op_end();
}

OP_TEST(tensor_axpby_matches_also_in_place) {
    static const int64_t sizes[] = {7, 512, 70001};
    for (int i = 0; i < 18; i++) axpby_case(dtype, sizes[i % 3], i / 9, i / 3 % 3);
}

static void normalize_case(DType dtype, DType from, int64_t n) {
    op_begin(elements_shape(dtype), "tensor_normalize of %d elements from %s", (int)n, dtype_name(from));
    OpTensor in = op_input(from, "in", DIMS(n), 30.0), out = op_output(dtype, "out", DIMS(n));
    OpTensor sumsq = op_input(DTYPE_FP32, "sumsq", DIMS(1), 0.0);
    sumsq.v[0] = ref_sumsq(in.v, n);
    op_upload(&sumsq);
    tensor_normalize(out.t, in.t, sumsq.t);
    ref_tensor_normalize(out.v, in.v, sumsq.v[0], n);
    op_check(out, dtype);
    op_end();
}

OP_TEST(tensor_normalize_matches) {
    static const int64_t sizes[] = {1, 7, 70001};
    for (int i = 0; i < 3; i++) {
        normalize_case(dtype, DTYPE_FP32, sizes[i]);
        normalize_case(dtype, dtype, sizes[i]);
    }
}

// The 1e-7 keeps 0 / 0 away.
OP_TEST(a_tensor_of_zeros_normalizes_to_zeros) {
    op_begin(elements_shape(dtype), "tensor_normalize of zeros");
    OpTensor in = op_input(dtype, "in", DIMS(100), 0.0), out = op_output(dtype, "out", DIMS(100));
    OpTensor sumsq = op_input(DTYPE_FP32, "sumsq", DIMS(1), 0.0);
    tensor_normalize(out.t, in.t, sumsq.t);
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
    normalize_case(dtype, DTYPE_FP32, 999);
    op_begin_tensors_at(8);
    normalize_case(dtype, dtype, 999);
}
