// See char_kinds.h.
#include "llmc/text/char_kinds.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    uint32_t first, last;
} CodeRange;

// Characters of Unicode 15, 15.1 and 16. Debian 12's PCRE2 (10.42) ends at Unicode 14; with these,
// every PCRE2 since 10.40 gives the same tokens.
static const CodeRange newer_upper[] = {
    {0x1C89, 0x1C89}, {0xA7CB, 0xA7CC}, {0xA7DA, 0xA7DA}, {0xA7DC, 0xA7DC}, {0x10D50, 0x10D65},
};
static const CodeRange newer_lower[] = {
    {0x295, 0x295}, // no letter with case since Unicode 17
    {0x1C8A, 0x1C8A}, {0xA7CD, 0xA7CD}, {0xA7DB, 0xA7DB}, {0x10D70, 0x10D85}, {0x1DF25, 0x1DF2A},
};
static const CodeRange newer_caseless[] = {
    {0x105C0, 0x105F3}, {0x10D4A, 0x10D4F}, {0x10D6F, 0x10D6F}, {0x10EC2, 0x10EC4},
    {0x1123F, 0x11240}, {0x11380, 0x11389}, {0x1138B, 0x1138B}, {0x1138E, 0x1138E},
    {0x11390, 0x113B5}, {0x113B7, 0x113B7}, {0x113D1, 0x113D1}, {0x113D3, 0x113D3},
    {0x11BC0, 0x11BE0}, {0x11F02, 0x11F02}, {0x11F04, 0x11F10}, {0x11F12, 0x11F33},
    {0x1342F, 0x1342F}, {0x13441, 0x13446}, {0x13460, 0x143FA}, {0x16100, 0x1611D},
    {0x16D40, 0x16D6C}, {0x18CFF, 0x18CFF}, {0x1B132, 0x1B132}, {0x1B155, 0x1B155},
    {0x1E030, 0x1E06D}, {0x1E4D0, 0x1E4EB}, {0x1E5D0, 0x1E5ED}, {0x1E5F0, 0x1E5F0},
    {0x2B739, 0x2B739}, {0x2EBF0, 0x2EE5D}, {0x31350, 0x323AF},
};
static const CodeRange newer_marks[] = {
    {0x897, 0x897},     {0xCF3, 0xCF3},     {0xECE, 0xECE},     {0x10D69, 0x10D6D},
    {0x10EFC, 0x10EFF}, {0x11241, 0x11241}, {0x113B8, 0x113C0}, {0x113C2, 0x113C2},
    {0x113C5, 0x113C5}, {0x113C7, 0x113CA}, {0x113CC, 0x113D0}, {0x113D2, 0x113D2},
    {0x113E1, 0x113E2}, {0x11F00, 0x11F01}, {0x11F03, 0x11F03}, {0x11F34, 0x11F3A},
    {0x11F3E, 0x11F42}, {0x11F5A, 0x11F5A}, {0x13440, 0x13440}, {0x13447, 0x13455},
    {0x1611E, 0x1612F}, {0x1E08F, 0x1E08F}, {0x1E4EC, 0x1E4EF}, {0x1E5EE, 0x1E5EF},
};
static const CodeRange newer_numbers[] = {
    {0x10D40, 0x10D49}, {0x116D0, 0x116E3}, {0x11BF0, 0x11BF9}, {0x11F50, 0x11F59},
    {0x16130, 0x16139}, {0x16D70, 0x16D79}, {0x1CCF0, 0x1CCF9}, {0x1D2C0, 0x1D2D3},
    {0x1E4F0, 0x1E4F9}, {0x1E5F1, 0x1E5FA},
};
// Unicode's White_Space, the \s of the other two libraries; PCRE2's \s also has U+180E.
static const CodeRange spaces[] = {
    {0x09, 0x0D},     {0x20, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},     {0x1680, 0x1680},
    {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000},
};
static const CodeRange newlines[] = {{'\n', '\n'}, {'\r', '\r'}};

#define RANGES(array, kind)                                                                        \
    { array, sizeof(array) / sizeof(array)[0], kind }
static const struct {
    const CodeRange *ranges;
    size_t count;
    CharKind kind;
} corrections[] = {
    RANGES(newer_upper, CHAR_UPPER),       RANGES(newer_lower, CHAR_LOWER),
    RANGES(newer_caseless, CHAR_CASELESS), RANGES(newer_marks, CHAR_MARK),
    RANGES(newer_numbers, CHAR_NUMBER),    RANGES(spaces, CHAR_SPACE),
    RANGES(newlines, CHAR_NEWLINE),
};

uint8_t *char_kinds_table(Error *err) {
    // of the groups
    static const CharKind kinds[] = {CHAR_UPPER, CHAR_LOWER, CHAR_CASELESS, CHAR_MARK, CHAR_NUMBER};
    static const char pattern[] =
        "([\\p{Lu}\\p{Lt}]+)|(\\p{Ll}+)|([\\p{Lm}\\p{Lo}]+)|(\\p{M}+)|(\\p{N}+)";
    int error, found = 0;
    size_t where, n = 0;

    pcre2_code *code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                     PCRE2_UTF | PCRE2_UCP, &error, &where, NULL);
    REQUIRE_MEMORY(code || error != PCRE2_ERROR_HEAP_FAILED, "PCRE2");
    if (!code) {
        error_set(err, "PCRE2 was built without Unicode properties (error %d)", error);
        return NULL;
    }

    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); // without JIT it is only slower
    uint8_t *table = malloc(CHAR_TABLE_SIZE);
    char *all = malloc((size_t)4 * CHAR_TABLE_SIZE);
    pcre2_match_data *match = pcre2_match_data_create_from_pattern(code, NULL);
    REQUIRE_MEMORY(table && all && match, "the kinds of characters");
    memset(table, CHAR_OTHER, CHAR_TABLE_SIZE);

    // Has PCRE2 find the runs of characters of each kind in a text of all characters, in order.
    for (uint32_t c = 0; c < CHAR_TABLE_SIZE; c++)
        if (c < 0xD800 || c >= 0xE000) n += (size_t)utf8_encode(c, all + n);
    for (size_t at = 0; found >= 0 && at < n;) {
        const size_t *range = pcre2_get_ovector_pointer(match);
        found = pcre2_match(code, (PCRE2_SPTR)all, n, at, PCRE2_NO_UTF_CHECK, match, NULL);
        for (size_t i = range[0]; found >= 0 && i < range[1];) {
            uint32_t c = 0;
            i += (size_t)utf8_decode((const unsigned char *)all + i, (int64_t)(range[1] - i), &c);
            // found: 1 + the number of the last group that matched
            table[c] = (uint8_t)kinds[found - 2];
        }
        at = range[1];
    }

    pcre2_match_data_free(match);
    free(all);
    pcre2_code_free(code);
    REQUIRE_MEMORY(found >= 0 || found == PCRE2_ERROR_NOMATCH, "PCRE2 (error %d)", found);

    for (size_t i = 0; i < sizeof corrections / sizeof *corrections; i++) {
        for (size_t k = 0; k < corrections[i].count; k++) {
            const CodeRange r = corrections[i].ranges[k];
            memset(table + r.first, (int)corrections[i].kind, r.last - r.first + 1);
        }
    }

    return table;
}
