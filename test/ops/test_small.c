// tensor_fill and tensor_cast, bit by bit, gelu_forward, tensor_axpby and tensor_normalize; also on tensors that begin
// at an odd element.
#include "test/ops/op_test.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static OpsShape shape(void) { return (OpsShape){.B = 1, .T = 1, .C = 16, .NH = 1, .Vp = 128, .num_tensors = 1}; }

static void tensor_fill_writes_every_element(void **state) {
    DType dtype = op_dtype(state);
    static const float fill[] = {0.0f, -1.0f, 0.1f, INFINITY};
    static const int64_t sizes[] = {1, 7, 70001, 64};
    for (int i = 0; i < 4; i++) {
        op_begin(shape(), "tensor_fill of %d with %g", (int)sizes[i], (double)fill[i]);
        OpTensor x = op_output(dtype, "x", DIMS(sizes[i]));
        tensor_fill(x.t, fill[i]);
        const double *got = op_download(x);
        for (int64_t j = 0; j < sizes[i]; j++) assert_true(got[j] == ref_round((double)fill[i], dtype));
        op_end();
    }
}

// x without its first element: no longer aligned to more than one element.
static Tensor without_first(Tensor x) {
    x.data = (char *)x.data + dtype_size(x.dtype);
    x.shape[0] -= 1;
    return x;
}

static void tensor_fill_takes_any_alignment(void **state) {
    DType dtype = op_dtype(state);
    op_begin(shape(), "tensor_fill from the second element");
    OpTensor x = op_output(dtype, "x", DIMS(1000));
    tensor_fill(without_first(x.t), 0.1f);
    const double *got = op_download(x);
    assert_true(isnan(got[0]));
    for (int64_t j = 1; j < 1000; j++) assert_true(got[j] == ref_round((double)0.1f, dtype));
    op_end();
}

// Every bit pattern a float can have is drawn from: all exponents, denormals, infinities, NaNs; plus exact ties.
static void fill_with_hard_values(float *x, int64_t n) {
    static const uint32_t special[] = {0x00000000, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001,
                                       0xFFFFFFFF, 0x3F808000, 0x3F818000, 0x3F801000, 0x3F803000, 0x7F7FFFFF,
                                       0x477FF000, 0x477FEFFF, 0x33000000, 0x33000001, 0x00000001, 0x007FFFFF};
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)i * 2654435761u;
        if (i < (int64_t)(sizeof special / sizeof *special)) bits = special[i];
        memcpy(&x[i], &bits, sizeof bits);
    }
}

static void cast_case(DType to, DType from, int64_t n, bool is_aligned) {
    op_begin(shape(), "tensor_cast of %d %selements from %s to %s", (int)n, is_aligned ? "" : "unaligned ",
             dtype_name(from), dtype_name(to));
    OpTensor src = op_output(from, "src", DIMS(n)), dst = op_output(to, "dst", DIMS(n));
    float *hard = malloc((size_t)n * sizeof *hard);
    void *bytes = malloc((size_t)n * sizeof *hard);
    fill_with_hard_values(hard, n);
    convert_elements(bytes, from, hard, DTYPE_FP32, n);
    op_write(src.t, bytes);
    const double *values = op_download(src);
    if (is_aligned)
        tensor_cast(dst.t, src.t);
    else
        tensor_cast(without_first(dst.t), without_first(src.t));
    const double *got = op_download(dst);
    for (int64_t i = is_aligned ? 0 : 1; i < n; i++) {
        double want = ref_round(values[i], to);
        bool same = isnan(want) ? isnan(got[i]) : got[i] == want && signbit(got[i]) == signbit(want);
        if (!same) op_fail("%s -> %s: %a became %a, not %a", dtype_name(from), dtype_name(to), values[i], got[i], want);
    }
    free(hard), free(bytes);
    op_end();
}

static void tensor_cast_rounds_to_nearest_even(void **state) {
    DType dtype = op_dtype(state);
    static const int64_t sizes[] = {1, 23, 70001};
    for (int from = 0; from < 3; from++) {
        if (!device_facts()->supports[op_dtypes[from]]) continue;
        for (int i = 0; i < 3; i++) {
            cast_case(dtype, op_dtypes[from], sizes[i], true);
            if (sizes[i] > 1) cast_case(dtype, op_dtypes[from], sizes[i], false);
        }
    }
}

static void gelu_case(DType dtype, int64_t n, bool is_aligned) {
    op_begin(shape(), "gelu_forward of %d %selements", (int)n, is_aligned ? "" : "unaligned ");
    OpTensor pre = op_input(dtype, "pre", DIMS(n), 2.0), out = op_output(dtype, "out", DIMS(n));
    if (is_aligned) {
        gelu_forward(out.t, pre.t);
        ref_gelu_forward(out.v, pre.v, n);
        op_check(out, dtype);
    } else {
        OpTensor rest = {.t = without_first(out.t), .v = out.v + 1};
        gelu_forward(rest.t, without_first(pre.t));
        ref_gelu_forward(rest.v, pre.v + 1, n - 1);
        op_check(rest, dtype);
    }
    op_end();
}

static void gelu_forward_matches(void **state) {
    DType dtype = op_dtype(state);
    static const int64_t sizes[] = {7, 512, 10007};
    for (int i = 0; i < 3; i++) {
        gelu_case(dtype, sizes[i], true);
        gelu_case(dtype, sizes[i], false);
    }
}

// a x + b y into a third tensor, into x and into y.
static void axpby_case(DType dtype, int64_t n, bool is_aligned, int into) {
    op_begin(shape(), "tensor_axpby of %d %selements into tensor %d", (int)n, is_aligned ? "" : "unaligned ", into);
    OpTensor x = op_inout(dtype, "x", DIMS(n), 1.0), y = op_inout(dtype, "y", DIMS(n), 1.0);
    OpTensor third = op_output(dtype, "out", DIMS(n)), out = into == 0 ? third : into == 1 ? x : y;
    const int64_t skipped = is_aligned ? 0 : 1;
    ref_tensor_axpby(out.v + skipped, (double)3.4445f, x.v + skipped, (double)-4.775f, y.v + skipped, n - skipped);
    if (is_aligned) {
        tensor_axpby(out.t, 3.4445f, x.t, -4.775f, y.t);
        op_check(out, dtype);
    } else {
        const OpTensor rest = {.t = without_first(out.t), .v = out.v + 1};
        tensor_axpby(rest.t, 3.4445f, without_first(x.t), -4.775f, without_first(y.t));
        op_check(rest, dtype);
    }
    op_end();
}

static void tensor_axpby_matches_also_in_place(void **state) {
    DType dtype = op_dtype(state);
    static const int64_t sizes[] = {7, 512, 70001};
    for (int i = 0; i < 9; i++) {
        axpby_case(dtype, sizes[i % 3], true, i / 3);
        axpby_case(dtype, sizes[i % 3], false, i / 3);
    }
}

static void normalize_case(DType dtype, DType from, int64_t n) {
    op_begin(shape(), "tensor_normalize of %d elements from %s", (int)n, dtype_name(from));
    OpTensor in = op_input(from, "in", DIMS(n), 30.0), out = op_output(dtype, "out", DIMS(n));
    OpTensor sumsq = op_input(DTYPE_FP32, "sumsq", DIMS(1), 0.0);
    sumsq.v[0] = ref_sumsq(in.v, n);
    op_upload(&sumsq);
    tensor_normalize(out.t, in.t, sumsq.t);
    ref_tensor_normalize(out.v, in.v, sumsq.v[0], n);
    op_check(out, dtype);
    op_end();
}

static void tensor_normalize_matches(void **state) {
    DType dtype = op_dtype(state);
    static const int64_t sizes[] = {1, 7, 70001};
    for (int i = 0; i < 3; i++) {
        normalize_case(dtype, DTYPE_FP32, sizes[i]);
        normalize_case(dtype, dtype, sizes[i]);
    }
}

// The 1e-7 keeps 0 / 0 away.
static void a_tensor_of_zeros_normalizes_to_zeros(void **state) {
    DType dtype = op_dtype(state);
    op_begin(shape(), "tensor_normalize of zeros");
    OpTensor in = op_input(dtype, "in", DIMS(100), 0.0), out = op_output(dtype, "out", DIMS(100));
    OpTensor sumsq = op_input(DTYPE_FP32, "sumsq", DIMS(1), 0.0);
    tensor_normalize(out.t, in.t, sumsq.t);
    const double *got = op_download(out);
    for (int i = 0; i < 100; i++) assert_true(got[i] == 0.0);
    op_end();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        OP_TEST(tensor_fill_writes_every_element),      OP_TEST(tensor_fill_takes_any_alignment),
        OP_TEST(tensor_cast_rounds_to_nearest_even),    OP_TEST(gelu_forward_matches),
        OP_TEST(tensor_axpby_matches_also_in_place),    OP_TEST(tensor_normalize_matches),
        OP_TEST(a_tensor_of_zeros_normalizes_to_zeros),
    };
    return cmocka_run_group_tests(tests, op_group_setup, op_group_teardown);
}
