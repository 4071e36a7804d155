// The rule that divides a corpus: the shares, and cuts where a line ends and where the tokens stay what they were.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "llmc/tokens/corpus_split.h"

#include <stdio.h>
#include <string.h>

static void short_documents_are_drawn_with_the_stated_share(void **state) {
    (void)state;
    enum { N = 4000 };
    int drawn = 0;
    for (int i = 0; i < N; i++) {
        char text[64];
        int n = snprintf(text, sizeof text, "document %d.", i);
        drawn += corpus_side(text, n, 0.1) == CORPUS_VAL;
        // One side of a share is inside that side of every larger share.
        if (corpus_side(text, n, 0.1) == CORPUS_VAL) assert_int_equal(corpus_side(text, n, 0.2), CORPUS_VAL);
    }
    assert_in_range(drawn, 400 - 114, 400 + 114); // binomial: mean 400, standard deviation 19; six of them
}

static void the_target_leaves_both_sides_a_byte(void **state) {
    (void)state;
    assert_int_equal(corpus_cut_target(1000, 0.1), 900);
    assert_int_equal(corpus_cut_target(2, 1e-9), 1);
    assert_int_equal(corpus_cut_target(2, 0.999999), 1);
    assert_int_equal(corpus_cut_target(1, 0.5), 1); // a single byte is for training
}

static void a_cut_is_the_first_start_of_a_line_from_the_target_on(void **state) {
    (void)state;
    Tokenizer *t = tokenizer_bytes(NULL);
    const char *text = "one\ntwo\nthree\nfour";
    const int64_t n = (int64_t)strlen(text);
    for (int64_t from = 1; from <= 14; from++)
        assert_int_equal(corpus_cut(t, text, n, from), from <= 4 ? 4 : from <= 8 ? 8 : 14);
    assert_int_equal(corpus_cut(t, text, n, 15), 15); // no line ends behind it
    assert_int_equal(corpus_cut(t, "ab\n", 3, 1), 1); // the last newline would leave validation nothing
    tokenizer_free(t);
}

static void a_cut_without_lines_is_between_characters(void **state) {
    (void)state;
    Tokenizer *t = tokenizer_bytes(NULL);
    static const char euro[3] = {'\xE2', '\x82', '\xAC'};
    char text[300];
    for (size_t i = 0; i < 100; i++) memcpy(text + 3 * i, euro, sizeof euro);
    for (int64_t from = 1; from < 297; from++) assert_int_equal(corpus_cut(t, text, 300, from), (from + 2) / 3 * 3);
    tokenizer_free(t);
}

static void a_block_ends_between_characters(void **state) {
    (void)state;
    const char *text = "ab\u00e9\u20ac\U0001F600z";
    static const int64_t ends[] = {1, 2, 2, 4, 4, 4, 7, 7, 7, 7, 11, 12};
    for (int64_t n = 1; n <= 12; n++) assert_int_equal(corpus_character_end(text, n), ends[n - 1]);
    assert_int_equal(corpus_character_end("\x80\x80\x80\x80\x80\x80", 6), 6); // no characters: anywhere
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(short_documents_are_drawn_with_the_stated_share),
        cmocka_unit_test(the_target_leaves_both_sides_a_byte),
        cmocka_unit_test(a_cut_is_the_first_start_of_a_line_from_the_target_on),
        cmocka_unit_test(a_cut_without_lines_is_between_characters),
        cmocka_unit_test(a_block_ends_between_characters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
