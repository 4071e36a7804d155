// tensor_fill and tensor_cast, bit by bit.
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

static void cast_case(DType to, DType from, int64_t n) {
    op_begin(shape(), "tensor_cast of %d elements from %s to %s", (int)n, dtype_name(from), dtype_name(to));
    OpTensor src = op_output(from, "src", DIMS(n)), dst = op_output(to, "dst", DIMS(n));
    float *hard = malloc((size_t)n * sizeof *hard);
    void *bytes = malloc((size_t)n * sizeof *hard);
    fill_with_hard_values(hard, n);
    convert_elements(bytes, from, hard, DTYPE_FP32, n);
    op_write(src.t, bytes);
    const double *values = op_download(src);
    tensor_cast(dst.t, src.t);
    const double *got = op_download(dst);
    for (int64_t i = 0; i < n; i++) {
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
    for (int i = 0; i < 3; i++) {
        cast_case(dtype, DTYPE_FP32, sizes[i]);
        cast_case(DTYPE_FP32, dtype, sizes[i]);
        cast_case(dtype, dtype, sizes[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        OP_TEST(tensor_fill_writes_every_element),
        OP_TEST(tensor_cast_rounds_to_nearest_even),
    };
    return cmocka_run_group_tests(tests, op_group_setup, op_group_teardown);
}
