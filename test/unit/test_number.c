// llmc/number.h. fp8: the numbers of both formats, rounding to them against a search through all of
// them, and scales. The 8-bit numbers of optimizer states: against the map of the paper, made here
// in fp64 from its own formula.
#include "llmc/number.h"
#include "llmc/tensor.h"
#include "test/test.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>

static const DType formats[] = {DTYPE_E4M3, DTYPE_E5M2};

// The numbers 0 .. largest of a format in order, by the definition: subnormals are multiples of the
// smallest, above them every power of two is cut into as many steps. The position of a number is
// its code.
static int all_numbers(DType format, double numbers[128]) {
    const int steps = format == DTYPE_E4M3 ? 8 : 4;
    const double smallest = format == DTYPE_E4M3 ? 0x1p-9 : 0x1p-16,
                 largest = format == DTYPE_E4M3 ? 448.0 : 57344.0;
    int n = 0;
    double step = smallest;

    numbers[n++] = 0.0;
    while (numbers[n - 1] < largest) {
        numbers[n] = numbers[n - 1] + step;
        n++;
        if (n > 2 * steps && n % steps == 1) step *= 2.0; // n - 1 was the first of a power of two
    }

    return n;
}

static uint8_t searched(double x, DType format) {
    double numbers[128];
    const int n = all_numbers(format, numbers);
    const double size = fmin(fabs(x), numbers[n - 1]);
    int nearest = 0;
    for (int i = 1; i < n; i++) {
        const double distance = fabs(size - numbers[i]), least = fabs(size - numbers[nearest]);
        if (distance < least || (distance == least && i % 2 == 0)) nearest = i;
    }
    return (uint8_t)(nearest | (signbit(x) ? 0x80 : 0));
}

static void check_encode(float x, DType format) {
    const uint8_t got = fp8_encode(x, format), want = searched((double)x, format);
    if (got != want)
        fail_msg("%a in %s is 0x%02X, expected 0x%02X", (double)x, dtype_name(format), got, want);
}

TEST(codes_are_the_numbers_of_the_formats_in_order) {
    for (int f = 0; f < 2; f++) {
        double numbers[128];
        const int n = all_numbers(formats[f], numbers);
        assert_int_equal(n, formats[f] == DTYPE_E4M3 ? 0x7F : 0x7C);
        assert_true(numbers[n - 1] == (double)fp8_largest(formats[f]));
        for (int code = 0; code < n; code++) {
            assert_true((double)fp8_decode((uint8_t)code, formats[f]) == numbers[code]);
            assert_true((double)fp8_decode((uint8_t)(code | 0x80), formats[f]) == -numbers[code]);
        }
    }

    for (int sign = 0; sign <= 0x80; sign += 0x80) {
        assert_true(isnan(fp8_decode((uint8_t)(sign | 0x7F), DTYPE_E4M3)));
        assert_true(isinf(fp8_decode((uint8_t)(sign | 0x7C), DTYPE_E5M2)));
        for (int code = 0x7D; code <= 0x7F; code++)
            assert_true(isnan(fp8_decode((uint8_t)(sign | code), DTYPE_E5M2)));
    }
}

TEST(every_finite_code_comes_back) {
    for (int f = 0; f < 2; f++)
        for (int code = 0; code < 256; code++) {
            const float x = fp8_decode((uint8_t)code, formats[f]);
            if (isfinite(x)) assert_int_equal(fp8_encode(x, formats[f]), code);
        }
}

TEST(every_code_is_exact_in_bf16_also_at_the_ends_of_its_scale) {
    for (int f = 0; f < 2; f++)
        for (int code = 0; code < 256; code++)
            for (int exponent = -63; exponent <= 63; exponent += 63) {
                const float x = ldexpf(fp8_decode((uint8_t)code, formats[f]), exponent);
                if (!isnan(x)) assert_true(bf16_to_float(float_to_bf16(x)) == x);
            }
}

TEST(encode_takes_the_nearest_and_of_two_the_even_one) {
    for (int f = 0; f < 2; f++) {
        double numbers[128];
        const int n = all_numbers(formats[f], numbers);

        for (int i = 0; i + 1 < n; i++) {
            const float middle = (float)(0.5 * (numbers[i] + numbers[i + 1]));
            const float around[] = {middle, nextafterf(middle, 0.0f), nextafterf(middle, INFINITY)};
            for (int j = 0; j < 3; j++)
                check_encode(around[j], formats[f]), check_encode(-around[j], formats[f]);
        }

        for (uint32_t bits = 0; bits < 0x10000; bits++) { // all of bf16
            const float x = bf16_to_float((uint16_t)bits);
            if (isfinite(x)) check_encode(x, formats[f]);
        }
    }
}

TEST(encode_saturates_and_keeps_nan) {
    assert_int_equal(fp8_encode(449.0f, DTYPE_E4M3), 0x7E);
    assert_int_equal(fp8_encode(-1e30f, DTYPE_E4M3), 0xFE);
    assert_int_equal(fp8_encode(65536.0f, DTYPE_E5M2), 0x7B);
    assert_int_equal(fp8_encode(-FLT_MAX, DTYPE_E5M2), 0xFB);
    const float bad[] = {INFINITY, -INFINITY, NAN, -NAN};
    for (int f = 0; f < 2; f++)
        for (int i = 0; i < 4; i++) assert_int_equal(fp8_encode(bad[i], formats[f]), 0x7F);
}

// A thousand sizes a decade over the whole range, and those at which the scale changes.
TEST(the_scale_is_a_power_of_two_that_fills_the_format) {
    for (int f = 0; f < 2; f++) {
        const double largest = (double)fp8_largest(formats[f]);
        for (double amax = 1e-13; amax < 1e18; amax *= 1.0023) {
            const double scale = (double)fp8_scale((float)amax, formats[f]),
                         x = (double)(float)amax * scale;
            int exponent;
            assert_true(frexp(scale, &exponent) == 0.5);
            if (!(x <= largest && x > 0.5 * largest))
                fail_msg("amax %g is scaled by %g", amax, scale);
        }

        for (int e = -40; e <= 40; e++) {
            const float edge = ldexpf(fp8_largest(formats[f]), e);
            assert_true(fp8_scale(edge, formats[f]) == ldexpf(1.0f, -e));
            assert_true(fp8_scale(nextafterf(edge, INFINITY), formats[f]) == ldexpf(1.0f, -e - 1));
        }
    }
}

TEST(the_scale_stays_finite_and_is_1_where_amax_says_nothing) {
    const float nothing[] = {0.0f, INFINITY, NAN, 1e-40f};
    for (int f = 0; f < 2; f++) {
        for (int i = 0; i < 4; i++) assert_true(fp8_scale(nothing[i], formats[f]) == 1.0f);
        assert_true(fp8_scale(FLT_MIN, formats[f]) == 0x1p62f);
        assert_true(fp8_scale(FLT_MAX, formats[f]) == 0x1p-62f);
    }
}

// ------------------------------------------------------------------------------------------- slots

TEST(a_slot_follows_every_tensor) {
    Fp8Slot s = {0};
    fp8_slot_record(&s, 1.0f, DTYPE_E4M3);
    assert_true(s.scale == 256.0f && s.inverse == 1.0f / 256.0f && s.amax == 1.0f);
    fp8_slot_record(&s, 3.0f, DTYPE_E4M3);
    assert_true(s.scale == 128.0f && s.amax == 3.0f);
}

// -------------------------------------------------------------------------------- optimizer states

enum { CODES = 256 };

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// Decade i of 0 .. 6: the middles between 2^i + 1 (signed; unsigned 2^(i+1) + 1) points from 0.1 to
// 1 at equal distances, times 10^(i-6), with both signs in the signed map; and 0 and 1. In order.
static void make_map(double map[CODES], bool is_signed) {
    int n = 0;
    for (int i = 0; i < 7; i++) {
        const int points = (is_signed ? 1 << i : 2 << i) + 1;
        for (int k = 0; k + 1 < points; k++) {
            const double left = 0.1 + 0.9 * k / (points - 1),
                         right = 0.1 + 0.9 * (k + 1) / (points - 1);
            map[n++] = 0.5 * (left + right) * pow(10.0, i - 6);
            if (is_signed) map[n] = -map[n - 1], n++;
        }
    }

    map[n++] = 0.0, map[n++] = 1.0;
    assert_int_equal(n, CODES);
    qsort(map, CODES, sizeof *map, by_value);
}

static double decode(int code, bool is_signed) {
    return (double)(is_signed ? dynamic8_decode_signed((uint8_t)code)
                              : dynamic8_decode_unsigned((uint8_t)code));
}
static int encode(float x, bool is_signed) {
    return is_signed ? dynamic8_encode_signed(x) : dynamic8_encode_unsigned(x);
}

TEST(the_map_is_that_of_the_paper) {
    for (int is_signed = 0; is_signed < 2; is_signed++) {
        double map[CODES];
        make_map(map, is_signed);
        // Three roundings: the sum, the width (and its decade's end), the product: 2^-24 each, and
        // one for the end.
        for (int code = 0; code < CODES; code++)
            if (fabs(decode(code, is_signed) - map[code]) > 0x1p-22 * fabs(map[code]))
                fail_msg("code %d is %.9g, not %.9g", code, decode(code, is_signed), map[code]);
    }
}

TEST(numbers_grow_with_their_codes) {
    for (int is_signed = 0; is_signed < 2; is_signed++)
        for (int code = 1; code < CODES; code++)
            assert_true(decode(code - 1, is_signed) < decode(code, is_signed));
    assert_true(decode(DYNAMIC8_ZERO_SIGNED, true) == 0.0 && decode(0, false) == 0.0);
    assert_true(decode(255, true) == 1.0 && decode(255, false) == 1.0);
}

TEST(every_code_comes_back_from_its_number) {
    for (int is_signed = 0; is_signed < 2; is_signed++)
        for (int code = 0; code < CODES; code++)
            assert_int_equal(encode((float)decode(code, is_signed), is_signed), code);
}

// Half way between the numbers of two neighbouring codes one becomes the other. The border of a
// cell is computed with an error of a few 2^-24 of the number, so 2^-21 away from it the code must
// be right.
TEST(a_number_becomes_the_nearest_that_has_a_code) {
    for (int is_signed = 0; is_signed < 2; is_signed++)
        for (int code = 1; code < CODES; code++) {
            const double low = decode(code - 1, is_signed), high = decode(code, is_signed),
                         border = 0.5 * (low + high);
            const double slack = 0x1p-21 * fabs(border);
            if (is_signed || code > 1)
                assert_int_equal(encode((float)(border - slack), is_signed), code - 1);
            assert_int_equal(encode((float)(border + slack), is_signed), code);
        }
}

// Numbers up to 1 in steps of 2^-14 of their value, and their negatives. Second moments from half
// of the first cell on: smaller ones become that cell, see below.
TEST(no_number_is_further_from_its_code_than_half_a_cell) {
    for (int is_signed = 0; is_signed < 2; is_signed++) {
        int last = encode(0.0f, is_signed);
        for (float x = is_signed ? 1e-9f : 1.7e-7f; x <= 1.0f; x *= 1.0f + 0x1p-14f) {
            const int code = encode(x, is_signed);
            assert_true(code >= last); // in order
            last = code;

            const double number = decode(code, is_signed),
                         below = code > 0 ? decode(code - 1, is_signed) : number;
            const double above = code < 255 ? decode(code + 1, is_signed) : number;
            const double half = 0.5 * fmax(number - below, above - number);

            if (fabs((double)x - number) > half * (1 + 0x1p-20))
                fail_msg("%.9g became %.9g", (double)x, number);
            if (is_signed && x < 0.99f)
                assert_int_equal(encode(-x, true), 2 * DYNAMIC8_ZERO_SIGNED - code);
        }
    }
}

TEST(zero_and_nan_become_zero_and_minus_one_becomes_the_number_above_it) {
    const float nothing[] = {0.0f, -0.0f, NAN};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(dynamic8_encode_signed(nothing[i]), DYNAMIC8_ZERO_SIGNED);
        if (i != 1) assert_int_equal(dynamic8_encode_unsigned(nothing[i]), 0);
    }
    assert_int_equal(dynamic8_encode_signed(1.0f), 255);
    assert_int_equal(dynamic8_encode_unsigned(1.0f), 255);
    assert_int_equal(dynamic8_encode_signed(-1.0f), 0);
    // the middle of the last of 64 cells
    assert_true(fabs(decode(0, true) + (1.0 - 0.45 / 64)) < 1e-6);
}

TEST(a_second_moment_above_zero_never_becomes_zero) {
    for (float x = 1.0f; x > 0x1p-126f; x *= 0.5f) assert_true(dynamic8_encode_unsigned(x) >= 1);
    assert_int_equal(dynamic8_encode_unsigned(0x1p-126f), 1);
    assert_int_equal(dynamic8_encode_signed(0x1p-126f), DYNAMIC8_ZERO_SIGNED); // a first moment may
}

TEST(many_elements_are_converted_as_each_of_them) {
    enum { N = 3 * (1 << 14) + 5, HALF = N / 2 }; // several pieces, the last one short
    static float from[N], back[N];
    static uint16_t narrow[N];

    for (int i = 0; i < N; i++) from[i] = (float)(i * 7919 % N - HALF) * 1.2345f;

    for (DType dtype = DTYPE_FP16; dtype <= DTYPE_BF16; dtype++) {
        convert_elements(narrow, dtype, from, DTYPE_FP32, N);
        convert_elements(back, DTYPE_FP32, narrow, dtype, N);
        for (int i = 0; i < N; i++) {
            uint16_t one;
            float again;
            convert_elements(&one, dtype, &from[i], DTYPE_FP32, 1);
            convert_elements(&again, DTYPE_FP32, &one, dtype, 1);
            assert_int_equal(narrow[i], one);
            assert_memory_equal(&back[i], &again, sizeof again);
        }
    }
}
