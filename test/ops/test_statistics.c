// tensor_statistics against the specification: counts and amax to the last bit, on numbers of every
// size, at every alignment, added to what is there.
#include "test/ops/op_cases.h"

TestFixture test_all = {op_group_setup, op_group_teardown};

static const DType formats[] = {DTYPE_FP32, DTYPE_FP16, DTYPE_BF16, DTYPE_E4M3, DTYPE_E5M2};
enum { NUM_FORMATS = sizeof formats / sizeof *formats };

// Normal numbers with bits of every size among them: exponents from the smallest denormal to
// infinity, NaN, zeros of both signs, and the neighbours of every limit.
static void fill_with_every_size(float *x, int64_t n) {
    static const uint32_t special[] = {0x00000000, 0x80000000, 0x00000001, 0x007FFFFF, 0x00800000,
                                       0x807FFFFF, 0x387FE000, 0x38800000, 0x38800001, 0x477FE000,
                                       0x477FE001, 0x477FF000, 0x3C7F0000, 0x3C800000, 0x43E00000,
                                       0x43E10000, 0x47600000, 0x47610000, 0x7F7F0000, 0x7F7F0001,
                                       0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000};
    enum { SPECIAL = sizeof special / sizeof *special };

    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)i * 2654435761u;
        if (i % 3 == 1) bits = special[i / 3 % SPECIAL];
        if (i % 7 == 2) bits &= 0x807FFFFFu; // denormal
        memcpy(&x[i], &bits, sizeof bits);
    }
}

// The value of the bits of a float. No conversion by the processor, which may take denormals for 0
// here.
static double value_of(uint32_t bits) {
    const int exponent = bits >> 23 & 0xFF, mantissa = bits & 0x7FFFFF;
    double size = exponent ? ldexp(mantissa + 0x800000, exponent - 150) : ldexp(mantissa, -149);
    if (exponent == 255) size = mantissa ? (double)NAN : (double)INFINITY;
    return bits >> 31 ? -size : size;
}

// n elements of dtype (bytes) as fp64. Denormals of fp16 are normal numbers as floats.
static double *values_of(const void *bytes, DType dtype, int64_t n) {
    double *values = malloc((size_t)n * sizeof *values);
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = 0;
        if (dtype == DTYPE_FP32) memcpy(&bits, (const float *)bytes + i, sizeof bits);
        if (dtype == DTYPE_BF16) bits = (uint32_t)((const uint16_t *)bytes)[i] << 16;
        values[i] = dtype == DTYPE_FP16 ? (double)fp16_to_float(((const uint16_t *)bytes)[i])
                                        : value_of(bits);
    }
    return values;
}

OP_TEST(numbers_of_every_size_are_counted_to_the_last_one) {
    static const int64_t sizes[] = {1, 7, 100, 16384, 70001};
    for (int s = 0; s < 5; s++) {
        const int64_t n = sizes[s];
        for (int f = 0; f < NUM_FORMATS; f++) {
            op_begin(elements_shape(dtype), "%d elements as %s", (int)n, dtype_name(formats[f]));
            OpTensor x = op_output(dtype, "x", DIMS(n));

            float *hard = malloc((size_t)n * sizeof *hard);
            void *bytes = malloc((size_t)n * sizeof *hard);
            fill_with_every_size(hard, n);
            convert_elements(bytes, dtype, hard, DTYPE_FP32, n);
            op_write(x.t, bytes);

            double *values = values_of(bytes, dtype, n);
            stats_compare(x.t, values, formats[f]);
            free(hard), free(bytes), free(values);
            op_end();
        }
    }
}

OP_TEST(tensors_may_begin_anywhere) {
    for (int64_t first = 1; first < 9; first++) {
        op_begin(elements_shape(dtype), "from element %d", (int)first);
        OpTensor x = op_input(dtype, "x", DIMS(5000), 0.02);
        stats_compare(tensor_slice_elements(x.t, first, 5000 - 2 * first), x.v + first, dtype);
        op_end();
    }
}

// More elements than a part of any backend has, and more parts than one; twice, with the same bits.
OP_TEST(a_large_tensor_has_the_same_bits_each_time) {
    const int64_t n = 300001;
    TensorStats got[2];
    op_begin(elements_shape(dtype), "%d elements", (int)n);
    OpTensor x = op_input(dtype, "x", DIMS(n), 3.0);

    for (int i = 0; i < 2; i++) {
        OpTensor stats = stats_tensor((TensorStats){0});
        tensor_statistics(stats.t, x.t, DTYPE_E4M3);
        op_read(&got[i], stats.t);
    }

    assert_memory_equal(&got[0], &got[1], sizeof got[0]);
    stats_compare(x.t, x.v, DTYPE_E4M3);
    op_end();
}
