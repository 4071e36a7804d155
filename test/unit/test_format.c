// Numbers, durations, text and the progress bar, by tables of input and output.
#include "llmc/base/format.h"
#include "llmc/base/json.h"
#include "test/test.h"

#include <math.h>

typedef struct {
    double x;
    const char *text;
} Case;

static void assert_formats(const char *(*format)(double, char *, int), const Case *cases,
                           size_t n) {
    for (size_t i = 0; i < n; i++) {
        char buf[64];
        assert_string_equal(format(cases[i].x, buf, sizeof buf), cases[i].text);
    }
}
#define ASSERT_FORMATS(format, cases)                                                              \
    assert_formats(format, cases, sizeof(cases) / sizeof(cases)[0])

TEST(bytes_have_three_digits_and_binary_units) {
    const Case cases[] = {
        {0, "0 B"},
        {512, "512 B"},
        {1023, "1023 B"},
        {1024, "1.00 KiB"},
        {1.5 * 1024 * 1024 * 1024, "1.50 GiB"},
        {12.5 * 1024 * 1024, "12.5 MiB"},
        {500.4 * 1024, "500 KiB"},
        {1023.9 * 1024, "1.00 MiB"}, // not 1024 KiB
        {9.999 * 1024, "10.0 KiB"},  // not 10.00
        {0x1p40, "1.00 TiB"},
        {0x1p60, "1024 PiB"},
    };
    ASSERT_FORMATS(format_bytes, cases);
}

TEST(counts_have_four_digits) {
    const Case cases[] = {
        {0, "0"},           {950, "950"},      {999, "999"},       {12.34, "12.34"},
        {0.5, "0.500"},     {1000, "1.000K"},  {1017, "1.017K"},   {666600, "666.6K"},
        {999960, "1.000M"}, {99999, "100.0K"}, {9999.6, "10.00K"}, {124475904, "124.5M"},
        {1e10, "10.00B"},   {1e12, "1.000T"},  {5e15, "5000T"},
    };
    ASSERT_FORMATS(format_count, cases);
}

TEST(durations_have_two_units) {
    const Case cases[] = {
        {0, "0.0s"},       {8.24, "8.2s"}, {9.97, "10s"},     {12, "12s"},     {59.4, "59s"},
        {59.6, "1m00s"},   {491, "8m11s"}, {3599.7, "1h00m"}, {7380, "2h03m"}, {86400, "1d00h"},
        {100800, "1d04h"}, {-1, "?"},      {NAN, "?"},        {INFINITY, "?"},
    };
    ASSERT_FORMATS(format_duration, cases);
}

TEST(fixed_numbers_keep_their_width) {
    const Case cases[] = {
        {9.1234, "9.1234"},   {10.8249, "10.825"}, {9.99996, "10.000"},
        {0.00004, "0.0000"},  {1234.56, "1234.6"}, {123456, "123456"},
        {1234567, "1234567"}, {NAN, "   nan"},     {INFINITY, "   inf"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char buf[64];
        assert_string_equal(format_fixed(cases[i].x, 6, 4, buf, sizeof buf), cases[i].text);
    }
}

TEST(exact_numbers_read_back_as_the_same_double) {
    const Case cases[] = {
        {0.1, "0.1"},  {6e-4, "0.0006"},   {1e-8, "1e-08"},
        {250, "250"},  {-1, "-1"},         {9007199254740991.0, "9007199254740991"},
        {NAN, "null"}, {INFINITY, "null"},
    };
    ASSERT_FORMATS(format_exact, cases);

    const double values[] = {1.0 / 3.0, M_PI,      0x1p-1074, 1.7976931348623157e308,
                             0.1 + 0.2, 0x1p53 + 2};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        char buf[64];
        assert_true(strtod(format_exact(values[i], buf, sizeof buf), NULL) == values[i]);
    }
}

// Returns what `put` writes for text, in a static buffer.
static const char *written(void (*put)(FILE *, const char *, size_t), const char *text, size_t n) {
    static char buf[512];
    memset(buf, 0, sizeof buf);
    FILE *f = fmemopen(buf, sizeof buf - 1, "w");
    put(f, text, n);
    fclose(f);
    return buf;
}

static void put_indented(FILE *f, const char *text, size_t n) { format_visible(f, text, n, "  "); }

TEST(json_strings_are_escaped_and_always_utf8) {
    assert_string_equal(written(format_json_string, "a\"b\\c", 5), "\"a\\\"b\\\\c\"");
    assert_string_equal(written(format_json_string, "\n\t\x1b\x7f\0z", 6),
                        "\"\\n\\u0009\\u001b\\u007f\\u0000z\"");
    assert_string_equal(written(format_json_string, "\xC3\xA9\xE2\x82", 4),
                        "\"\xC3\xA9\\ufffd\\ufffd\"");
}

TEST(samples_cannot_move_the_cursor) {
    assert_string_equal(written(put_indented, "a\nb\n", 4), "  a\n  b");
    assert_string_equal(written(put_indented, "\x1b[2Jx\ry\0", 8), "  \\x1B[2Jx\\x0Dy\\x00");
    assert_string_equal(written(put_indented, "\xC2\x9B\xC3\xA9\xFF\t.", 7),
                        "  \\xC2\\x9B\xC3\xA9\\xFF\t.");
}

TEST(the_bar_fits_the_terminal_and_drops_what_does_not) {
    char bar[512];
    assert_string_equal(progress_render(0.5, "step 5/10", "eta 9s", 48, false, bar, sizeof bar),
                        "step 5/10 [#########..........]  50.0% | eta 9s");
    assert_string_equal(progress_render(0.5, "step 5/10", "eta 9s", 30, false, bar, sizeof bar),
                        "step 5/10 [#####.....]  50.0%");
    assert_string_equal(progress_render(0.5, "step 5/10", "eta 9s", 22, false, bar, sizeof bar),
                        "step 5/10  50.0%");
    assert_string_equal(progress_render(0.5, "step 5/10", "eta 9s", 8, false, bar, sizeof bar),
                        "step 5/");

    for (int width = 1; width < 300; width++) {
        progress_render(0.77, "step 77/100", "loss 3.1415 | 1.017K tok/s | eta 8m11s", width, false,
                        bar, sizeof bar);
        assert_true((int)strlen(bar) < width);
    }
}

TEST(the_bar_says_100_percent_only_at_the_end) {
    char bar[512];
    assert_non_null(strstr(progress_render(0.99999, "s", "", 60, false, bar, sizeof bar), "99.9%"));
    assert_non_null(strstr(progress_render(1.0, "s", "", 60, false, bar, sizeof bar), "100.0%"));
    assert_non_null(strstr(progress_render(NAN, "s", "", 60, false, bar, sizeof bar), "0.0%"));
    assert_non_null(strstr(progress_render(7.0, "s", "", 60, false, bar, sizeof bar), "100.0%"));
}

TEST(the_bar_moves_in_eighths_where_the_terminal_can) {
    char bar[512];
    // 24 columns: 1 free, "s" and " [" "] " and "  50.0%" take 11, so 12 cells: a fraction of 1/16
    // is 3/4 of a cell
    assert_string_equal(progress_render(1.0 / 16, "s", "", 24, true, bar, sizeof bar),
                        "s [▊           ]   6.2%");
    assert_string_equal(progress_render(0.5, "s", "", 24, true, bar, sizeof bar),
                        "s [██████      ]  50.0%");
}

TEST(the_locale_decides_about_utf8) {
    setenv("LC_ALL", "", 1);
    setenv("LC_CTYPE", "C", 1);
    setenv("LANG", "en_US.UTF-8", 1);
    assert_false(terminal_is_utf8());

    unsetenv("LC_CTYPE");
    assert_true(terminal_is_utf8());

    setenv("LC_ALL", "C.utf8", 1);
    setenv("LANG", "C", 1);
    assert_true(terminal_is_utf8());

    unsetenv("LC_ALL");
    unsetenv("LANG");
    assert_false(terminal_is_utf8());
}
