// Gradients accumulated in the compute dtype: gradient_add against its specification, bit for bit;
// that its rounding is unbiased; and what it does to a sum of 64 micro-steps (the table of
// doc/numerics.md: TEST_TABLE=1 prints it).
#include "llmc/base/random.h"
#include "test/ops/op_cases.h"
#include <math.h>

TestFixture test_all = {op_group_setup, op_group_teardown};

static OpsShape shape(DType dtype) {
    return (OpsShape){
        .B = 8, .T = 16, .C = 64, .NH = 1, .Vp = 128, .num_tensors = 1, .dtype = dtype};
}

static Tensor control_at(uint32_t micro_steps) {
    StepControl c = step_control_initial(1.0f);
    c.micro_steps = micro_steps;
    return op_control(c);
}

// ----------------------------------------------------------------------------------- the same bits

// One element; less than a vector; no multiple of anything; more than one task; a matrix.
OP_TEST(gradient_add_gives_the_bits_of_the_specification) {
    static const int64_t sizes[] = {1, 7, 130, 4099, 70001};
    for (int i = 0; i < 5; i++)
        gradient_add_case(dtype, sizes[i], i, i == 4 ? 0x80000001u : (uint32_t)(3 * i));
    op_begin_tensors_at(8);
    gradient_add_case(dtype, sizes[3], 3, 9);
}

// fp32 values around every power of two of a wide range, exact ones and ones beyond the largest of
// the dtype.
OP_TEST(every_size_of_number_is_rounded_to_a_neighbour) {
    enum { N = 4096 };
    op_begin(shape(dtype), "gradient_add of numbers of all sizes");
    OpTensor src = op_input(DTYPE_FP32, "src", DIMS(N), 1.0),
             dst = op_output(dtype, "dst", DIMS(N));

    const int lowest = dtype == DTYPE_FP16 ? -26 : -120, highest = dtype == DTYPE_FP16 ? 18 : 127;
    for (int e = 0; e < N; e++) {
        const int exponent = lowest + e % (highest - lowest);
        src.v[e] = ldexp(e % 5 == 0 ? copysign(1.0, src.v[e]) : src.v[e], exponent);
        if (fabs(src.v[e]) > 0x1.FFFFFEp127) src.v[e] = copysign(0x1.FFFFFEp127, src.v[e]);
    }

    // NaN as a GPU computes it, as poison, and with few bits: added to, its bits would be those of
    // a number.
    static const uint32_t nans[] = {0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001};
    enum { NANS = sizeof nans / sizeof *nans };
    src.v[0] = 0.0, src.v[1] = (double)INFINITY, src.v[2] = -(double)INFINITY;
    for (int i = 3; i < 3 + 8 * NANS; i++) src.v[i] = (double)NAN;

    op_upload(&src);
    float values[N];
    op_read(values, src.t);
    for (int i = 0; i < 8 * NANS; i++) memcpy(&values[3 + i], &nans[i % NANS], sizeof *nans);
    op_write(src.t, values);

    gradient_add(gradient_to(dst.t, false), src.t, op_seed(), 5, control_at(9));
    ref_gradient_add(dst.v, src.v, N, false, dtype, op_seed(), 5, 9);
    op_check_values(dst);
    op_end();
}

// ---------------------------------------------------------------------------------------- the bits

enum { NUM_ROUNDED = 65536 };

// n equal gradients of 1 + fraction of a step; what came out, in values (n).
static void round_many(DType dtype, double fraction, uint64_t seed, int stream,
                       uint32_t micro_steps, double *values) {
    const double step = dtype == DTYPE_BF16 ? 0x1p-7 : 0x1p-10;
    op_begin(shape(dtype), "gradient_add of 1 + %g steps", fraction);
    OpTensor src = op_input(DTYPE_FP32, "src", DIMS(NUM_ROUNDED), 0.0);
    OpTensor dst = op_output(dtype, "dst", DIMS(NUM_ROUNDED));
    for (int64_t e = 0; e < NUM_ROUNDED; e++) src.v[e] = 1.0 + fraction * step;
    op_upload(&src);
    gradient_add(gradient_to(dst.t, false), src.t, seed, stream, control_at(micro_steps));
    memcpy(values, op_download(dst), NUM_ROUNDED * sizeof *values);
    op_end();
}

OP_TEST(the_rounding_is_unbiased) {
    if (dtype == DTYPE_FP32) return; // nothing is rounded
    static double values[NUM_ROUNDED];
    static const double fractions[] = {0.0625, 0.3, 0.5, 0.9};
    for (int i = 0; i < 4; i++) {
        int64_t up = 0;
        round_many(dtype, fractions[i], op_seed(), 0, (uint32_t)i, values);
        for (int64_t e = 0; e < NUM_ROUNDED; e++) up += values[e] > 1.0;
        op_expect_share(up, NUM_ROUNDED, fractions[i]);
    }
}

OP_TEST(seed_parameter_and_micro_step_name_the_bits) {
    if (dtype == DTYPE_FP32) return; // nothing is rounded
    static double first[NUM_ROUNDED], second[NUM_ROUNDED];
    round_many(dtype, 0.5, 1, 2, 3, first);
    round_many(dtype, 0.5, 1, 2, 3, second);
    assert_memory_equal(first, second, sizeof first);
    round_many(dtype, 0.5, 2, 2, 3, second);
    assert_memory_not_equal(first, second, sizeof first);
    round_many(dtype, 0.5, 1, 3, 3, second);
    assert_memory_not_equal(first, second, sizeof first);
    round_many(dtype, 0.5, 1, 2, 4, second);
    assert_memory_not_equal(first, second, sizeof first);
}

TEST_WITH(micro_step_count_adds_its_count_and_leaves_the_rest, NULL, op_teardown) {
    op_begin(shape(DTYPE_FP32), "micro_step_count");
    StepControl want = step_control_initial(512.0f), got;
    want.micro_steps = 0xFFFFu, want.good_steps = 7, want.skipped = 3;
    const Tensor control = op_control(want);
    for (int i = 0; i < 3; i++) micro_step_count(control, i);
    want.micro_steps += 0 + 1 + 2;
    op_read(&got, control);
    assert_memory_equal(&got, &want, sizeof got);
    op_end();
}

// ------------------------------------------------------------------------------------- 64 together

enum { MICRO_STEPS = 64, ELEMENTS = 4096, DRAWS = 16 };

// The gradient of an element in micro-step k.
typedef enum { EQUAL, NOISY, FADING, NUM_KINDS } Kind;
static const char *const kinds[NUM_KINDS] = {"the same each time", "signal and noise, 1 : 4",
                                             "the first 300 times the others"};

static double micro_gradient(Kind kind, double signal, double noise, int k) {
    if (kind == EQUAL) return signal;
    if (kind == NOISY) return signal + 4.0 * noise;
    return k == 0 ? 300.0 * signal : signal;
}

typedef struct {
    // relative L2 errors; mean: of the mean of DRAWS stochastic sums
    double nearest, stochastic, mean;
    double expected, bias_limit; // what stochastic rounding should give; mean must stay below it
} Errors;

// The variance is that of the rounding of `sum`, after x was added to a sum that had been rounded
// before: up with probability f, the part of a step that x leaves over, errs by a variance of
// f (1 - f) steps^2.
static double rounding_variance(double sum, double x, int digits) {
    int exponent;
    frexp(sum, &exponent);
    const double step = ldexp(1.0, exponent - digits), f = fabs(x) / step - floor(fabs(x) / step);
    return f * (1.0 - f) * step * step;
}

// Sums of 64 gradients by the op, in DRAWS parts of the random bits at once, beside sums rounded to
// nearest and exact ones.
static Errors sum_of_64(DType dtype, Kind kind) {
    static double exact[ELEMENTS], nearest[ELEMENTS], mean[ELEMENTS], variance[ELEMENTS];
    Errors errors = {0};
    double norm = 0.0;
    const int digits = dtype == DTYPE_BF16 ? 8 : dtype == DTYPE_FP16 ? 11 : 24;
    memset(exact, 0, sizeof exact), memset(nearest, 0, sizeof nearest);
    memset(mean, 0, sizeof mean), memset(variance, 0, sizeof variance);

    op_begin(shape(dtype), "64 gradients, %s", kinds[kind]);
    const OpTensor signal = op_input(DTYPE_FP32, "signal", DIMS(ELEMENTS), 1.0);
    OpTensor src = op_inout(DTYPE_FP32, "src", DIMS(ELEMENTS), 0.0), sums[DRAWS];
    for (int d = 0; d < DRAWS; d++) sums[d] = op_output(dtype, "sum", DIMS(ELEMENTS));
    const Tensor control = control_at(0);

    for (int k = 0; k < MICRO_STEPS; k++) {
        for (int64_t e = 0; e < ELEMENTS; e++) {
            float noise[2];
            const Philox bits = philox(op_seed(), 77, (uint64_t)(k * ELEMENTS + e));
            philox_normal2(bits.v[0], bits.v[1], noise);
            src.v[e] = micro_gradient(kind, signal.v[e], (double)noise[0], k);
        }

        op_upload(&src);
        for (int d = 0; d < DRAWS; d++)
            gradient_add(gradient_to(sums[d].t, k > 0), src.t, op_seed(), d, control);
        micro_step_count(control, 1);

        for (int64_t e = 0; e < ELEMENTS; e++) {
            exact[e] += src.v[e];
            nearest[e] = ref_round((double)(float)(nearest[e] + src.v[e]), dtype);
            variance[e] += rounding_variance(exact[e], src.v[e], digits);
        }
    }

    for (int d = 0; d < DRAWS; d++) {
        double *got = op_values(sums[d].t);
        errors.stochastic += op_relative_error(got, exact, ELEMENTS) / DRAWS;
        for (int64_t e = 0; e < ELEMENTS; e++) mean[e] += got[e] / DRAWS;
        free(got);
    }
    op_end();

    for (int64_t e = 0; e < ELEMENTS; e++)
        norm += exact[e] * exact[e], errors.expected += variance[e];
    errors.expected = sqrt(errors.expected / norm);
    errors.bias_limit = 1.2 * errors.expected / sqrt(DRAWS);
    errors.nearest = op_relative_error(nearest, exact, ELEMENTS);
    errors.mean = op_relative_error(mean, exact, ELEMENTS);
    return errors;
}

// The error of the sum is that of 64 independent roundings, and the mean of 16 sums comes nearer by
// a factor of 4: what is lost is chance, not bias. The expectation takes the exact sum for the
// rounded one, whose step differs where one of them has crossed a power of two and the other has
// not: a tenth covers it. To the nearest, gradients that are smaller than half a step of a sum are
// lost each time, and no mean brings them back.
OP_TEST(the_error_of_64_sums_is_chance_without_bias) {
    const bool table = getenv("TEST_TABLE") != NULL;
    for (Kind kind = EQUAL; kind < NUM_KINDS; kind++) {
        const Errors e = sum_of_64(dtype, kind);
        if (table)
            printf("| %s | %s | %.1e | %.1e | %.1e |\n", kinds[kind], dtype_name(dtype), e.nearest,
                   e.stochastic, e.mean);

        if (dtype == DTYPE_FP32) {
            op_expect(kinds[kind], e.stochastic, op_tolerance(dtype)); // 64 roundings of 2^-24 each
            continue;
        }

        if (!(fabs(e.stochastic / e.expected - 1.0) <= 0.1))
            op_fail("%s: error %.3g, expected %.3g", kinds[kind], e.stochastic, e.expected);
        op_expect(kinds[kind], e.mean, e.bias_limit);
        if (kind == FADING && dtype == DTYPE_BF16) assert_true(e.nearest > 10.0 * e.mean);
    }
}
