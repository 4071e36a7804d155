// UTF-8, a character at a time, and in pieces: whatever the cuts, characters arrive whole, bytes
// that are none arrive at once, nothing is lost.
#include "llmc/base/error.h"
#include "llmc/base/format.h"
#include "llmc/base/json.h"
#include "llmc/base/random.h"
#include "llmc/base/utf8.h"
#include "test/test.h"

#include <math.h>
#include <stdbool.h>

enum { LONGEST = 64 };

// One to four bytes, edges of every range, combining marks, emoji with joiners; between and around
// ASCII.
static const char *const valid[] = {
    "plain text\n",
    "\xC2\x80\xDF\xBF",
    "\xE0\xA0\x80\xE2\x82\xAC\xED\x9F\xBF\xEE\x80\x80\xEF\xBF\xBD",
    "\xF0\x90\x80\x80\xF0\x9F\x98\x80\xF4\x8F\xBF\xBF",
    "a\303\251b\346\274\242c\360\237\222\251d", // octal: a hexadecimal escape would take the
                                                // letters along
    "e\xCC\x81\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x92\xBB",
    "\xE0\xA4\xA8\xE0\xA4\xAE\xE0\xA4\xB8\xE0\xA5\x8D",
};
// Stray continuation bytes, overlong forms, surrogates, beyond U+10FFFF, characters that break off.
// clang-format off
static const char *const invalid[] = {
    "\200\277a", "\xC0\xAF\xC1\xBF", "\xE0\x80\xAF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x80\x80\xAF",
    "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xC1\xBF", "\xFF\xFE", "\xC3(", "\xE2\x82(", "\xF0\x9F\x98(",
    "\xE2\xE2\x82\xAC", "\xF0\x9F\xF0\x9F\x98\x80", "\xC3", "\xE2\x82", "\xF0\x9F\x98",
};
// clang-format on
enum { VALID = sizeof valid / sizeof *valid, INVALID = sizeof invalid / sizeof *invalid };

TEST(every_character_is_read_as_it_was_written) {
    for (uint32_t c = 0; c < 0x110000; c++) {
        char text[4];
        uint32_t back = 0;
        int length = utf8_encode(c, text), read = utf8_decode((unsigned char *)text, length, &back);
        bool surrogate = c >= 0xD800 && c < 0xE000;
        assert_int_equal(read, surrogate ? 0 : length);
        if (!surrogate) assert_int_equal(back, c);
        if (length > 1) assert_int_equal(utf8_decode((unsigned char *)text, length - 1, &back), 0);
    }
}

TEST(what_is_not_well_formed_is_no_character) {
    for (int i = 0; i < INVALID; i++)
        assert_int_equal(utf8_length(invalid[i], strlen(invalid[i])), 0);
}

// Is text a sequence of whole characters and of bytes that can be no part of one?
static bool ends_between_characters(const char *text, size_t n, const char *rest,
                                    size_t rest_bytes) {
    char all[LONGEST];
    memcpy(all, text, n), memcpy(all + n, rest, rest_bytes);
    for (size_t i = 0; i < n;) {
        const int length = utf8_length(all + i, n + rest_bytes - i);
        if (length > 0 && i + (size_t)length > n) return false; // a character across the end
        i += length > 0 ? (size_t)length : 1;
    }
    return true;
}

// Pushes text cut at the bits of `cuts` (bit i: behind byte i) and checks every state on the way.
static void push_cut(const char *text, size_t n, uint64_t cuts) {
    Utf8Stream s = {0};
    char out[2 * LONGEST];
    size_t shown = 0, begin = 0;

    for (size_t i = 0; i < n; i++) {
        if (i + 1 < n && !(cuts >> i & 1)) continue;
        shown += (size_t)utf8_stream_push(&s, text + begin, (int64_t)(i + 1 - begin), out + shown);
        begin = i + 1;

        assert_in_range(shown + UTF8_MOST_HELD, begin, begin + UTF8_MOST_HELD);
        assert_memory_equal(out, text, shown);
        assert_true(ends_between_characters(text, shown, text + shown, n - shown));
    }

    shown += (size_t)utf8_stream_end(&s, out + shown);
    assert_int_equal(shown, n);
    assert_memory_equal(out, text, n);
}

TEST(every_cut_of_valid_text_shows_whole_characters) {
    for (int i = 0; i < VALID; i++) {
        const size_t n = strlen(valid[i]);
        assert_true(n <= 17);
        for (uint64_t cuts = 0; cuts < 1u << (n - 1); cuts++) push_cut(valid[i], n, cuts);
    }
}

TEST(valid_text_is_shown_as_soon_as_its_last_byte_is_there) {
    for (int i = 0; i < VALID; i++) {
        Utf8Stream s = {0};
        char out[LONGEST];
        const int64_t n = (int64_t)strlen(valid[i]);
        assert_int_equal(utf8_stream_push(&s, valid[i], n, out), n);
        assert_int_equal(utf8_stream_end(&s, out), 0);
    }
}

TEST(every_cut_of_invalid_text_loses_nothing) {
    for (int i = 0; i < INVALID; i++)
        for (int k = 0; k < INVALID; k++) {
            char text[LONGEST];
            const size_t a = strlen(invalid[i]), b = strlen(invalid[k]);
            memcpy(text, invalid[i], a), memcpy(text + a, invalid[k], b);
            for (uint64_t cuts = 0; cuts < 1u << (a + b - 1); cuts++) push_cut(text, a + b, cuts);
        }
}

// Only what can still become a character waits.
TEST(bytes_that_can_be_no_character_are_not_held_back) {
    for (int i = 0; i < INVALID; i++) {
        Utf8Stream s = {0};
        char out[LONGEST];
        const int64_t n = (int64_t)strlen(invalid[i]);
        const int64_t unfinished = i < INVALID - 3 ? 0 : n; // the last three of the list break off
        assert_int_equal(utf8_stream_push(&s, invalid[i], n, out), n - unfinished);
        assert_int_equal(utf8_stream_end(&s, out), unfinished);
    }
}

TEST(random_bytes_in_random_pieces_come_out_as_they_went_in) {
    static const unsigned char likely[] = {0x41, 0x80, 0xBF, 0x9F, 0xA0, 0x8F, 0x90,
                                           0xC3, 0xE0, 0xE2, 0xED, 0xF0, 0xF4};
    for (uint64_t round = 0; round < 20000; round++) {
        char text[LONGEST];
        for (uint64_t i = 0; i < LONGEST; i++)
            text[i] = (char)likely[philox(1, round, i).v[0] % sizeof likely];
        const Philox r = philox(2, round, 0);
        push_cut(text, 1 + r.v[0] % (LONGEST - 1), (uint64_t)r.v[1] << 32 | r.v[2]);
    }
}

TEST(empty_pieces_change_nothing) {
    Utf8Stream s = {0};
    char out[8];
    assert_int_equal(utf8_stream_push(&s, "", 0, out), 0);
    assert_int_equal(utf8_stream_push(&s, "\xE2", 1, out), 0);
    assert_int_equal(utf8_stream_push(&s, NULL, 0, out), 0);
    assert_int_equal(utf8_stream_push(&s, "\x82\xAC", 2, out), 3);
    assert_memory_equal(out, "\xE2\x82\xAC", 3);
}

// Every text of the lists, whole and cut anywhere, into buffers of every size.
TEST(what_is_printed_is_utf8_however_it_is_cut) {
    for (int i = 0; i < VALID + INVALID; i++) {
        const char *text = i < VALID ? valid[i] : invalid[i - VALID];
        for (size_t size = 1; size < 4 * strlen(text) + 2; size++) {
            char out[4 * LONGEST];
            utf8_make_visible(text, out, size);
            assert_true(strlen(out) < size);
            for (size_t at = 0; at < strlen(out);) {
                const int length = utf8_length(out + at, strlen(out) - at);
                assert_true(length > 0);
                at += (size_t)length;
            }
        }
    }
}

TEST(control_characters_and_stray_bytes_are_escaped) {
    char out[LONGEST];
    utf8_make_visible("a\n\x1B[2J\xC2\x9B"
                      "b\xFF"
                      "c\xE2\x82",
                      out, sizeof out);
    assert_string_equal(out, "a\\x0A\\x1B[2J\\xC2\\x9B"
                             "b\\xFF"
                             "c\\xE2\\x82");
}

TEST(an_error_is_one_line_of_utf8_whatever_the_names_in_it) {
    Error err;
    error_set(&err, "%s: no such file", "caf\xE9\n.txt");
    assert_string_equal(err.text, "caf\\xE9\\x0A.txt: no such file");
    error_prefix(&err, "-i \xC3\xA9"); // already escaped: stays as it is
    assert_string_equal(err.text, "-i \xC3\xA9: caf\\xE9\\x0A.txt: no such file");
}

TEST(json_text_is_utf8) {
    cJSON *item = json_text("a\xFF\xE2\x82\xAC\xE2\x82");
    assert_string_equal(item->valuestring, "a\xEF\xBF\xBD\xE2\x82\xAC\xEF\xBF\xBD\xEF\xBF\xBD");
    cJSON_Delete(item);
}
