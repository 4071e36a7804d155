// The 8-bit numbers of optimizer states against the map of the paper, made here in fp64 from its own formula.
#include "llmc/number.h"
#include "test/test.h"

#include <math.h>
#include <stdbool.h>

enum { CODES = 256 };

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// Decade i of 0 .. 6: the middles between 2^i + 1 (signed; unsigned 2^(i+1) + 1) points from 0.1 to 1 at equal
// distances, times 10^(i-6), with both signs in the signed map; and 0 and 1. In order.
static void make_map(double map[CODES], bool is_signed) {
    int n = 0;
    for (int i = 0; i < 7; i++) {
        const int points = (is_signed ? 1 << i : 2 << i) + 1;
        for (int k = 0; k + 1 < points; k++) {
            const double left = 0.1 + 0.9 * k / (points - 1), right = 0.1 + 0.9 * (k + 1) / (points - 1);
            map[n++] = 0.5 * (left + right) * pow(10.0, i - 6);
            if (is_signed) map[n] = -map[n - 1], n++;
        }
    }
    map[n++] = 0.0, map[n++] = 1.0;
    assert_int_equal(n, CODES);
    qsort(map, CODES, sizeof *map, by_value);
}

static double decode(int code, bool is_signed) {
    return (double)(is_signed ? dynamic8_decode_signed((uint8_t)code) : dynamic8_decode_unsigned((uint8_t)code));
}
static int encode(float x, bool is_signed) {
    return is_signed ? dynamic8_encode_signed(x) : dynamic8_encode_unsigned(x);
}

TEST(the_map_is_that_of_the_paper) {
    for (int is_signed = 0; is_signed < 2; is_signed++) {
        double map[CODES];
        make_map(map, is_signed);
        // Three roundings: the sum, the width (and its decade's end), the product: 2^-24 each, and one for the end.
        for (int code = 0; code < CODES; code++)
            if (fabs(decode(code, is_signed) - map[code]) > 0x1p-22 * fabs(map[code]))
                fail_msg("code %d is %.9g, not %.9g", code, decode(code, is_signed), map[code]);
    }
}

TEST(numbers_grow_with_their_codes) {
    for (int is_signed = 0; is_signed < 2; is_signed++)
        for (int code = 1; code < CODES; code++) assert_true(decode(code - 1, is_signed) < decode(code, is_signed));
    assert_true(decode(DYNAMIC8_ZERO_SIGNED, true) == 0.0 && decode(0, false) == 0.0);
    assert_true(decode(255, true) == 1.0 && decode(255, false) == 1.0);
}

TEST(every_code_comes_back_from_its_number) {
    for (int is_signed = 0; is_signed < 2; is_signed++)
        for (int code = 0; code < CODES; code++)
            assert_int_equal(encode((float)decode(code, is_signed), is_signed), code);
}

// Half way between the numbers of two neighbouring codes one becomes the other. The border of a cell is computed with
// an error of a few 2^-24 of the number, so 2^-21 away from it the code must be right.
TEST(a_number_becomes_the_nearest_that_has_a_code) {
    for (int is_signed = 0; is_signed < 2; is_signed++)
        for (int code = 1; code < CODES; code++) {
            const double low = decode(code - 1, is_signed), high = decode(code, is_signed), border = 0.5 * (low + high);
            const double slack = 0x1p-21 * fabs(border);
            if (is_signed || code > 1) assert_int_equal(encode((float)(border - slack), is_signed), code - 1);
            assert_int_equal(encode((float)(border + slack), is_signed), code);
        }
}

// Numbers up to 1 in steps of 2^-14 of their value, and their negatives. Second moments from half of the first cell on:
// smaller ones become that cell, see below.
TEST(no_number_is_further_from_its_code_than_half_a_cell) {
    for (int is_signed = 0; is_signed < 2; is_signed++) {
        int last = encode(0.0f, is_signed);
        for (float x = is_signed ? 1e-9f : 1.7e-7f; x <= 1.0f; x *= 1.0f + 0x1p-14f) {
            const int code = encode(x, is_signed);
            assert_true(code >= last); // in order
            last = code;
            const double number = decode(code, is_signed), below = code > 0 ? decode(code - 1, is_signed) : number;
            const double above = code < 255 ? decode(code + 1, is_signed) : number;
            const double half = 0.5 * fmax(number - below, above - number);
            if (fabs((double)x - number) > half * (1 + 0x1p-20)) fail_msg("%.9g became %.9g", (double)x, number);
            if (is_signed && x < 0.99f) assert_int_equal(encode(-x, true), 2 * DYNAMIC8_ZERO_SIGNED - code);
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
    assert_true(fabs(decode(0, true) + (1.0 - 0.45 / 64)) < 1e-6); // the middle of the last of 64 cells
}

TEST(a_second_moment_above_zero_never_becomes_zero) {
    for (float x = 1.0f; x > 0x1p-126f; x *= 0.5f) assert_true(dynamic8_encode_unsigned(x) >= 1);
    assert_int_equal(dynamic8_encode_unsigned(0x1p-126f), 1);
    assert_int_equal(dynamic8_encode_signed(0x1p-126f), DYNAMIC8_ZERO_SIGNED); // a first moment may
}
