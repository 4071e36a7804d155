// The scanner of JSON lines: what it takes, what it refuses and with which words. That it gives the
// same text as Python's json is shown by test/e2e/test_prepare_lines.py.

#include "llmc/text/json_line.h"
#include "test/fixture.h"

// A copy with exactly the one byte behind it that the scanner may read, so that a sanitizer sees
// every other one.
static JsonLine scan(const char *line, size_t n, const char *field, char *text, int64_t *length,
                     Error *err) {
    char *copy = malloc(n + 1), *found;
    assert_non_null(copy);
    memcpy(copy, line, n);
    copy[n] = '\n';
    JsonLine status = json_line_text(copy, (int64_t)n, field, &found, length, err);
    if (status == JSON_LINE_OK) {
        assert_true(found >= copy && *length >= 0 && found + *length <= copy + n);
        memcpy(text, found, (size_t)*length);
        text[*length] = '\0';
    }
    free(copy);
    return status;
}

static void assert_text(const char *line, const char *field, const char *expected) {
    char text[4096];
    int64_t length;
    Error err;
    if (scan(line, strlen(line), field, text, &length, &err) != JSON_LINE_OK)
        fail_msg("%s: %s", line, err.text);
    assert_int_equal(length, strlen(expected));
    assert_string_equal(text, expected);
}

static void assert_refused(const char *line, JsonLine expected, const char *words) {
    char text[4096];
    int64_t length;
    Error err = {""};
    JsonLine status = scan(line, strlen(line), "text", text, &length, &err);
    if (status != expected || !strstr(err.text, words))
        fail_msg("%s: status %d, \"%s\" instead of %d, \"%s\"", line, (int)status, err.text,
                 (int)expected, words);
}

TEST(the_field_is_found_among_values_of_all_kinds) {
    assert_text("{\"text\":\"abc\"}", "text", "abc");
    assert_text(" {\t\"text\" :\r \"abc\" } ", "text", "abc");
    assert_text("{\"a\": {\"text\": \"inner\", \"b\": [1, [], {}, \"x\"]}, \"text\": \"outer\"}",
                "text", "outer");
    assert_text("{\"text\": \"kept\", \"n\": -1.5e+3, \"t\": [true, false, null, NaN, -Infinity]}",
                "text", "kept");
    assert_text("{\"content\": \"abc\", \"text\": 1}", "content", "abc");
    assert_text("{\"text\": \"\"}", "text", "");
}

TEST(of_equal_keys_the_last_one_counts) {
    assert_text("{\"text\": \"first\", \"text\": \"last\"}", "text", "last");
    assert_text("{\"text\": 1, \"text\": \"last\"}", "text", "last");
    assert_refused("{\"text\": \"first\", \"text\": 1}", JSON_LINE_NO_STRING, "is not a string");
}

TEST(escapes_are_resolved_in_texts_and_in_keys) {
    assert_text("{\"text\": \"a\\\"b\\\\c\\/d\\b\\f\\n\\r\\te\"}", "text", "a\"b\\c/d\b\f\n\r\te");
    assert_text("{\"text\": \"\\u0041\\u00e9\\u20ac\\ud83d\\ude00!\"}", "text",
                "A\u00e9\u20ac\U0001F600!");
    assert_text("{\"te\\u0078t\": \"abc\"}", "text", "abc");
    char text[16];
    int64_t length;
    const char line[] = "{\"text\": \"a\\u0000b\"}";
    assert_int_equal(scan(line, sizeof line - 1, "text", text, &length, NULL), JSON_LINE_OK);
    assert_int_equal(length, 3);
    assert_memory_equal(text, "a\0b", 3);
}

TEST(what_is_no_json_is_refused_with_its_place) {
    static const struct {
        const char *line, *words;
    } cases[] = {
        {"{\"text\": \"abc\"", "expected ',' or '}' at byte 15"},
        {"{\"text\": \"abc", "a string without its closing quote at byte 14"},
        {"{\"text\": \"abc\"} x", "something after the object at byte 17"},
        {"{\"text\": \"abc\",}", "expected a key in quotes at byte 16"},
        {"{text: \"abc\"}", "expected a key in quotes at byte 2"},
        {"{\"text\" \"abc\"}", "expected ':' after the key"},
        {"{\"text\": 'abc'}", "neither a value nor a number"},
        {"{\"text\": \"a\\x\"}", "an unknown escape"},
        {"{\"text\": \"a\\u12g4\"}", "\\u without four hexadecimal digits"},
        {"{\"text\": \"a\\u12\"}", "\\u without four hexadecimal digits"},
        {"{\"text\": \"a\tb\"}", "a control character in a string"},
        {"{\"n\": 01, \"text\": \"a\"}", "expected ',' or '}'"},
        {"{\"n\": 1., \"text\": \"a\"}", "without digits after the point"},
        {"{\"n\": 1e, \"text\": \"a\"}", "without digits in the exponent"},
        {"{\"n\": -, \"text\": \"a\"}", "neither a value nor a number"},
        {"{\"n\": [1 2], \"text\": \"a\"}", "expected ',' or the end of the list"},
        {"{\"n\": [1}, \"text\": \"a\"}", "expected ',' or the end of the list"},
        {"{\"n\": tru, \"text\": \"a\"}", "neither a value nor a number"},
        {"[\"text\"]", "expected an object"},
        {"\"text\"", "expected an object"},
        {"\xEF\xBB\xBF{\"text\": \"a\"}", "expected an object"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_refused(cases[i].line, JSON_LINE_NOT_JSON, cases[i].words);
}

TEST(deep_nesting_is_refused_and_not_a_stack_overflow) {
    enum { DEEP = 100000 };
    char *line = malloc(2 * DEEP + 64), text[8];
    assert_non_null(line);
    int64_t length;
    Error err;

    for (int depth = JSON_LINE_MAX_DEPTH; depth <= DEEP; depth += DEEP - JSON_LINE_MAX_DEPTH) {
        char *p = line + sprintf(line, "{\"a\": ");
        memset(p, '[', (size_t)depth), p += depth;
        memset(p, ']', (size_t)depth), p += depth;
        p += sprintf(p, ", \"text\": \"x\"}");

        JsonLine status = scan(line, (size_t)(p - line), "text", text, &length, &err);
        assert_int_equal(status, depth == JSON_LINE_MAX_DEPTH ? JSON_LINE_OK : JSON_LINE_NOT_JSON);
    }

    assert_non_null(strstr(err.text, "nested too deeply"));
    free(line);
}

TEST(a_line_that_is_no_utf8_is_refused_even_outside_the_text) {
    // all others: test_utf8.c
    static const char *const bad[] = {"\x80", "\xC0\x80", "\xED\xA0\x80", "\xE2\x82"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char line[64];
        snprintf(line, sizeof line, "{\"text\": \"ab%s\"}", bad[i]);
        assert_refused(line, JSON_LINE_NOT_UTF8, "byte 13 of the line");
        snprintf(line, sizeof line, "{\"n\": \"a%s\", \"text\": \"a\"}", bad[i]);
        assert_refused(line, JSON_LINE_NOT_UTF8, "is not UTF-8");
    }
    assert_text("{\"text\": \"\xF4\x8F\xBF\xBF\xED\x9F\xBF\xC2\x80\"}", "text",
                "\xF4\x8F\xBF\xBF\xED\x9F\xBF\xC2\x80");
}

TEST(half_a_surrogate_pair_is_refused_in_the_text_only) {
    static const char *const bad[] = {"\\ud800",       "\\udc00",        "\\ud83dx",
                                      "\\ud83d\\n",    "\\ud83d\\u0041", "\\ud83d\\ud83d",
                                      "\\ude00\\ud83d"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char line[64];
        snprintf(line, sizeof line, "{\"text\": \"%s\"}", bad[i]);
        assert_refused(line, JSON_LINE_SURROGATE, "half of a surrogate pair");
        snprintf(line, sizeof line, "{\"other\": \"%s\", \"text\": \"a\"}", bad[i]);
        assert_text(line, "text", "a");
    }
}

TEST(a_field_that_is_missing_or_no_string_is_named) {
    assert_refused("{}", JSON_LINE_NO_FIELD, "has no field \"text\"; --field");
    assert_refused("{\"Text\": \"a\", \"tex\": \"b\", \"texts\": \"c\"}", JSON_LINE_NO_FIELD,
                   "names another: its fields are \"Text\", \"tex\", \"texts\"");
    static const char *const values[] = {"null", "1", "true", "[\"a\"]", "{\"text\": \"a\"}"};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        char line[64];
        snprintf(line, sizeof line, "{\"text\": %s}", values[i]);
        assert_refused(line, JSON_LINE_NO_STRING, "field \"text\" is not a string");
    }
}

TEST(white_space_is_a_blank_line) {
    char text[8];
    int64_t length;
    assert_int_equal(scan("", 0, "text", text, &length, NULL), JSON_LINE_BLANK);
    assert_int_equal(scan(" \t\r ", 4, "text", text, &length, NULL), JSON_LINE_BLANK);
}
