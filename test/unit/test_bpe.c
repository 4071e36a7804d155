// The parts of the tokenizer one by one: the patterns against PCRE2's own matching of it, merging
// against the plainest form of the algorithm, the alphabet of bytes.

#include "llmc/base/random.h"
#include "llmc/base/utf8.h"
#include "llmc/text/alphabet.h"
#include "llmc/text/merges.h"
#include "llmc/text/pieces.h"
#include "test/test.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <math.h>
#include <pcre2.h>

static uint8_t *table;
static pcre2_code *regex[NUM_PATTERNS];

static int make_table(void **state) {
    (void)state;
    int error;
    size_t where;
    bool ok = (table = char_kinds_table(NULL)) != NULL;

    for (Pattern i = 0; i < NUM_PATTERNS; i++) {
        const char *text = pattern_facts[i].regex;
        // GPT-2's between numbers, which end a text for it
        if (i == PATTERN_STARCODER)
            text = "\\p{N}|'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| "
                   "?[^\\s\\p{L}\\p{N}]+|\\s+(?![^\\s\\p{N}])|\\s+";
        regex[i] = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP,
                                 &error, &where, NULL);
        ok &= regex[i] != NULL;
    }
    return ok ? 0 : -1;
}

static int free_table(void **state) {
    (void)state;
    free(table);
    for (Pattern i = 0; i < NUM_PATTERNS; i++) pcre2_code_free(regex[i]);
    return 0;
}
TestFixture test_all = {make_table, free_table};

// ---------------------------------------------------------------------------------------- alphabet

TEST(the_alphabet_spells_every_byte_as_gpt2_does) {
    assert_int_equal(alphabet_character('A'), 'A');
    assert_int_equal(alphabet_character(' '), 0x120);  // Ġ
    assert_int_equal(alphabet_character('\n'), 0x10A); // Ċ
    assert_int_equal(alphabet_character(0x7F), 0x121);
    assert_int_equal(alphabet_character(0xA0), 0x142);
    assert_int_equal(alphabet_character(0xAD), 0x143);
    assert_int_equal(alphabet_character(0xFF), 0xFF);

    char bytes[256], text[512], back[512];
    size_t n;
    for (int i = 0; i < 256; i++) bytes[i] = (char)i;

    size_t length = alphabet_encode(bytes, 256, text);
    assert_true(alphabet_decode(text, length, back, &n));
    assert_int_equal(n, 256);
    assert_memory_equal(back, bytes, 256);
}

TEST(characters_outside_the_alphabet_spell_nothing) {
    const char *const strange[] = {" ",        "\n",           "\x7f", "\xc2\xa0", "\xc2\xad",
                                   "\xc5\x84", "\xe4\xb8\x96", "\xff", "a b"};
    char out[16];
    size_t n;
    for (size_t i = 0; i < sizeof strange / sizeof *strange; i++)
        assert_false(alphabet_decode(strange[i], strlen(strange[i]), out, &n));
}

// ----------------------------------------------------------------------------------------- pattern

// A random text of what the pattern looks at; returns its length.
static int64_t random_text(uint64_t round, char *text, int parts) {
    // clang-format off
    static const char items[][8] = {
        "a", "Z", "\xc3\xa9", "\xe4\xb8\x96", "0", "9", "\xc2\xbd", " ", " ", " ", "\n", "\t", "\r", "'", "s", "t",
        "re", "ve", "ll", "m", "d", "LL", "Ve", "R", "E", "\xc5\xbf", "!", "-", "/", "\r\n", "\xe2\x80\x99", "\xe3\x80\x80", "\xc2\xa0", "\xe1\xa0\x8e", "\xc2\x85",
        "\xf0\x9f\x98\x80", "\x1c", "\xcc\x81", "\xe2\x80\x8d",
    };
    // clang-format on
    char *end = text;
    for (int i = 0; i < parts; i++) {
        Philox r = philox(20240528, round, (uint64_t)i);
        if (r.v[0] % 4 != 0) {
            end = stpcpy(end, items[r.v[1] % (sizeof items / sizeof *items)]);
        } else if (r.v[0] % 8 == 0) {
            end += utf8_encode(r.v[1] % 0x1C80, end); // nothing there is newer than PCRE2's tables
        } else {
            *end++ = (char)(r.v[1] % 128);
        }
    }

    return end - text;
}

// PCRE2 alone counts U+180E as a space: it sees U+200B there, which is as long and of the kind of
// the others. For marks that are newer than its tables, it sees U+0900.
static void hide_from_pcre2(const char *text, int64_t n, char *out) {
    static const char strange[][2][4] = {{"\xe1\xa0\x8e", "\xe2\x80\x8b"},
                                         {"\xe0\xa2\x97", "\xe0\xa4\x80"},
                                         {"\xe0\xb3\xb3", "\xe0\xa4\x80"},
                                         {"\xe0\xbb\x8e", "\xe0\xa4\x80"}};
    memcpy(out, text, (size_t)n);
    for (size_t i = 0; i < sizeof strange / sizeof *strange; i++)
        for (char *p = out; (p = memmem(p, (size_t)(out + n - p), strange[i][0], 3));)
            memcpy(p, strange[i][1], 3);
}

TEST(pieces_are_what_pcre2_matches) {
    pcre2_match_data *match = pcre2_match_data_create(2, NULL);
    const size_t *range = pcre2_get_ovector_pointer(match);

    for (uint64_t round = 0; round < 20000 * NUM_PATTERNS; round++) {
        char text[512], shown[512];
        const Pattern pattern = (Pattern)(round % NUM_PATTERNS);
        int64_t n = random_text(round, text, 1 + (int)(round / NUM_PATTERNS % 60)), at = 0;

        hide_from_pcre2(text, n, shown);
        while (at < n) {
            int64_t length = pieces_next(table, pattern, text + at, n - at);
            int found = pcre2_match(regex[pattern], (PCRE2_SPTR)shown, (size_t)n, (size_t)at, 0,
                                    match, NULL);
            assert_true(found > 0);
            if ((int64_t)range[0] != at || (int64_t)range[1] != at + length)
                fail_msg("%s, round %llu: piece at %lld is %lld bytes, PCRE2 matches [%zu, %zu)",
                         pattern_facts[pattern].name, (unsigned long long)round, (long long)at,
                         (long long)length, range[0], range[1]);
            at += length;
        }
    }

    pcre2_match_data_free(match);
}

TEST(kinds_of_characters_are_those_of_pcre2_but_for_the_newer_ones) {
    pcre2_match_data *match = pcre2_match_data_create(2, NULL);
    static const struct {
        const char *regex;
        CharKind kinds;
    } classes[] = {{"\\p{L}", CHAR_LETTERS},
                   {"[\\p{Lu}\\p{Lt}]", CHAR_UPPER},
                   {"\\p{Ll}", CHAR_LOWER},
                   {"\\p{M}", CHAR_MARK},
                   {"\\p{N}", CHAR_NUMBER}};

    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++) {
        int error, different = 0, length;
        size_t where;
        pcre2_code *code = pcre2_compile((PCRE2_SPTR)classes[i].regex, PCRE2_ZERO_TERMINATED,
                                         PCRE2_UTF | PCRE2_UCP, &error, &where, NULL);

        for (uint32_t c = 0; c < 0x110000; c++) {
            char text[4];
            if (c >= 0xD800 && c < 0xE000) continue;
            const int n = (int)utf8_encode(c, text);
            const CharKind kind =
                char_kind_at(table, (unsigned char *)text, (unsigned char *)text + n, &length);
            const bool theirs =
                pcre2_match(code, (PCRE2_SPTR)text, (size_t)n, 0, 0, match, NULL) > 0;
            assert_int_equal(length, n);
            different += theirs != ((kind & classes[i].kinds) != 0);
            // only ever more than PCRE2's
            if (theirs && c != 0x295) assert_true(kind & classes[i].kinds);
        }

        assert_true(different < 9300);
        pcre2_code_free(code);
    }

    pcre2_match_data_free(match);
}

TEST(bytes_that_are_no_utf8_part_a_text_as_replacement_characters_do) {
    for (uint64_t round = 0; round < 20000 * NUM_PATTERNS; round++) {
        const Pattern pattern = (Pattern)(round % NUM_PATTERNS);
        char text[512], replaced[3 * 512];
        int64_t n = random_text(round, text, 20), m = 0, starts[512];

        for (uint64_t i = 0; i < 5; i++)
            text[philox(1, round, i).v[0] % (uint32_t)n] = (char)philox(2, round, i).v[0];

        for (int64_t i = 0, length; i < n; i += length) {
            uint32_t c;
            length = utf8_decode((unsigned char *)text + i, n - i, &c);
            int64_t written = length > 0 ? length : 3;
            memcpy(replaced + m, length > 0 ? text + i : "\xef\xbf\xbd", (size_t)written);
            if (length == 0) length = 1;
            for (int64_t k = 0; k < length; k++) starts[i + k] = m;
            m += written;
        }

        int64_t a = 0, b = 0;
        while (a < n) {
            assert_int_equal(starts[a], b);
            a += pieces_next(table, pattern, text + a, n - a);
            b += pieces_next(table, pattern, replaced + b, m - b);
        }
        assert_int_equal(b, m);
    }
}

TEST(a_certain_cut_is_one_whatever_stands_around_it) {
    int64_t cuts[NUM_PATTERNS] = {0};
    for (uint64_t round = 0; round < 5000 * NUM_PATTERNS; round++) {
        const Pattern pattern = (Pattern)(round % NUM_PATTERNS);
        char text[3 * 512];

        int64_t before = random_text(3 * round, text, (int)(round / NUM_PATTERNS % 5));
        int64_t n = random_text(3 * round + 1, text + before, 8);
        int64_t all =
            before + n +
            random_text(3 * round + 2, text + before + n, (int)(round / NUM_PATTERNS % 7));

        for (int64_t m = 1; m < n; m++) {
            if (!pieces_always_cut(table, pattern, text + before, n, m)) continue;
            int64_t at = 0;
            while (at < before + m) at += pieces_next(table, pattern, text + at, all - at);
            assert_int_equal(at, before + m);
            at = 0; // and the first part, read alone, has the same pieces
            while (at < before + m) {
                int64_t alone = pieces_next(table, pattern, text + at, before + m - at);
                assert_int_equal(alone, pieces_next(table, pattern, text + at, all - at));
                at += alone;
            }
            cuts[pattern]++;
        }
    }

    for (Pattern i = 0; i < NUM_PATTERNS; i++) assert_true(cuts[i] > 8000);
}

TEST(between_a_word_and_a_space_there_is_always_a_cut) {
    const char *const words[] = {
        "a", "1", "!", "'", "\xc3\xa9", "\xe4\xb8\x96", "\xff", "\xf0\x9f\x98\x80"};

    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        for (const char *space = " \n\t\r\v\f"; *space; space++) {
            char text[16];
            int n = sprintf(text, "%s%c", words[i], *space);
            assert_true(pieces_always_cut(table, PATTERN_GPT2, text, n, n - 1));
            for (Pattern k = PATTERN_STARCODER; k < NUM_PATTERNS;
                 k++) // newlines belong to what they follow
                assert_true(pieces_always_cut(table, k, text, n, n - 1) || *space == '\n' ||
                            *space == '\r');
        }

    // A space stands before a space.
    assert_false(pieces_always_cut(table, PATTERN_GPT2, "\xe3\x80\x80 ", 4, 3));
    // The character may go on.
    assert_false(pieces_always_cut(table, PATTERN_GPT2, "a\xe3\x80", 3, 1));
}

// ----------------------------------------------------------------------------------------- merging

enum { ALPHABET = 3, RULES = 60 };

// Random rules over few tokens, so that they overlap in every way.
static void random_rules(uint64_t round, MergeTable *rules) {
    for (uint32_t i = 0; i < RULES; i++) {
        Philox r = philox(20240529, round, i);
        int32_t bound = ALPHABET + (int32_t)i;
        const MergeRule *known;
        MergeRule rule = {
            .pair = merge_pair((int32_t)(r.v[0] % (uint32_t)bound),
                               (int32_t)(r.v[1] % (uint32_t)bound)),
            .rank =
                round % 2 ? i : (i * 37) % RULES, // also merges that come before those they need
            .merged = bound};
        if (!merge_table_add(rules, rule, &known)) assert_non_null(known);
    }
}

// Looks at all pairs before each merge.
static int64_t merge_plainly(const MergeTable *rules, int32_t *tokens, int64_t n, uint32_t below,
                             int64_t least) {
    for (;;) {
        const MergeRule *best = NULL;
        int64_t where = 0;
        for (int64_t i = 0; i + 1 < n; i++) {
            const MergeRule *rule = merge_table_find(rules, tokens[i], tokens[i + 1]);
            if (rule && rule->rank < below && (!best || rule->rank < best->rank))
                best = rule, where = i;
        }
        if (!best || n <= least) return n;
        tokens[where] = best->merged;
        memmove(&tokens[where + 1], &tokens[where + 2], (size_t)(n - where - 2) * sizeof *tokens);
        n--;
    }
}

TEST(short_and_long_pieces_merge_as_the_plain_algorithm_does) {
    for (uint64_t round = 0; round < 300; round++) {
        MergeTable rules = {0};
        random_rules(round, &rules);

        for (int64_t n = 1; n <= 400; n += n < 70 ? 3 : 61) {
            int32_t tokens[400], expected[400];
            for (int64_t i = 0; i < n; i++)
                expected[i] = tokens[i] = (int32_t)(philox(7, round, (uint64_t)i).v[0] % ALPHABET);

            uint32_t below = round % 3 ? UINT32_MAX : RULES / 2;
            int64_t least = 1 + (int64_t)(round / 3 % 3),
                    count = merge_plainly(&rules, expected, n, below, least);
            assert_int_equal(merge_tokens(&rules, tokens, n, below, least), count);
            assert_memory_equal(tokens, expected, (size_t)count * sizeof *tokens);
        }
        merge_table_free(&rules);
    }
}

TEST(a_pair_has_one_rule) {
    MergeTable rules = {0};
    const MergeRule *known;

    for (int32_t i = 0; i < 5000; i++)
        assert_true(merge_table_add(
            &rules, (MergeRule){.pair = merge_pair(i, 2 * i), .rank = (uint32_t)i}, &known));

    assert_false(
        merge_table_add(&rules, (MergeRule){.pair = merge_pair(70, 140), .rank = 9}, &known));
    assert_int_equal(known->rank, 70);

    for (int32_t i = 0; i < 5000; i++)
        assert_int_equal(merge_table_find(&rules, i, 2 * i)->rank, i);
    assert_null(merge_table_find(&rules, 2, 1));

    merge_table_free(&rules);
}
