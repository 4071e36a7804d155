// The byte tokenizer: what goes in comes out, for every byte.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "llmc/tokens/tokenizer.h"

static Tokenizer *open_bytes(void) {
    Error err;
    Tokenizer *t = tokenizer_bytes(&err);
    assert_non_null(t);
    return t;
}

static void every_byte_becomes_its_own_token_and_comes_back(void **state) {
    (void)state;
    Tokenizer *t = open_bytes();
    char text[256];
    int32_t tokens[256];
    for (int i = 0; i < 256; i++) text[i] = (char)i;
    assert_int_equal(tokenizer_encode(t, text, 256, tokens), 256);
    for (int i = 0; i < 256; i++) {
        size_t length;
        const char *bytes = tokenizer_decode(t, tokens[i], &length);
        assert_int_equal(tokens[i], i);
        assert_int_equal(length, 1);
        assert_int_equal(bytes[0], text[i]);
    }
    tokenizer_free(t);
}

static void the_vocabulary_is_the_bytes_and_end_of_text(void **state) {
    (void)state;
    Tokenizer *t = open_bytes();
    assert_int_equal(tokenizer_vocab(t), 257);
    assert_int_equal(tokenizer_eot(t), 256);
    tokenizer_free(t);
}

static void an_empty_text_has_no_tokens(void **state) {
    (void)state;
    Tokenizer *t = open_bytes();
    int32_t untouched = -7;
    assert_int_equal(tokenizer_encode(t, "", 0, &untouched), 0);
    assert_int_equal(untouched, -7);
    tokenizer_free(t);
}

static void end_of_text_and_unknown_tokens_have_no_bytes(void **state) {
    (void)state;
    Tokenizer *t = open_bytes();
    const int32_t tokens[] = {256, 257, 50256, INT32_MAX, -1, INT32_MIN};
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        size_t length = 99;
        assert_non_null(tokenizer_decode(t, tokens[i], &length));
        assert_int_equal(length, 0);
    }
    tokenizer_free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_byte_becomes_its_own_token_and_comes_back),
        cmocka_unit_test(the_vocabulary_is_the_bytes_and_end_of_text),
        cmocka_unit_test(an_empty_text_has_no_tokens),
        cmocka_unit_test(end_of_text_and_unknown_tokens_have_no_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
