// See pieces.h.
#include "llmc/text/pieces.h"

#include "llmc/base/utf8.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

// ---------------------------------------------------------------------------------------------- kinds of characters

typedef struct {
    uint32_t first, last;
} CodeRange;

// Letters and numbers of Unicode 15, 15.1 and 16. Debian 12's PCRE2 (10.42) ends at Unicode 14; with these, every
// PCRE2 since 10.40 gives the same tokens.
static const CodeRange newer_letters[] = {
    {0x1C89, 0x1C8A},   {0xA7CB, 0xA7CD},   {0xA7DA, 0xA7DC},   {0x105C0, 0x105F3}, {0x10D4A, 0x10D65},
    {0x10D6F, 0x10D85}, {0x10EC2, 0x10EC4}, {0x1123F, 0x11240}, {0x11380, 0x11389}, {0x1138B, 0x1138B},
    {0x1138E, 0x1138E}, {0x11390, 0x113B5}, {0x113B7, 0x113B7}, {0x113D1, 0x113D1}, {0x113D3, 0x113D3},
    {0x11BC0, 0x11BE0}, {0x11F02, 0x11F02}, {0x11F04, 0x11F10}, {0x11F12, 0x11F33}, {0x1342F, 0x1342F},
    {0x13441, 0x13446}, {0x13460, 0x143FA}, {0x16100, 0x1611D}, {0x16D40, 0x16D6C}, {0x18CFF, 0x18CFF},
    {0x1B132, 0x1B132}, {0x1B155, 0x1B155}, {0x1DF25, 0x1DF2A}, {0x1E030, 0x1E06D}, {0x1E4D0, 0x1E4EB},
    {0x1E5D0, 0x1E5ED}, {0x1E5F0, 0x1E5F0}, {0x2B739, 0x2B739}, {0x2EBF0, 0x2EE5D}, {0x31350, 0x323AF},
};
static const CodeRange newer_numbers[] = {
    {0x10D40, 0x10D49}, {0x116D0, 0x116E3}, {0x11BF0, 0x11BF9}, {0x11F50, 0x11F59}, {0x16130, 0x16139},
    {0x16D70, 0x16D79}, {0x1CCF0, 0x1CCF9}, {0x1D2C0, 0x1D2D3}, {0x1E4F0, 0x1E4F9}, {0x1E5F1, 0x1E5FA},
};
// Unicode's White_Space, the \s of the other two libraries; PCRE2's \s also has U+180E.
static const CodeRange spaces[] = {
    {0x09, 0x0D},     {0x20, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},     {0x1680, 0x1680},
    {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000},
};
#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static void mark_ranges(uint8_t *table, const CodeRange *ranges, size_t count, CharKind kind) {
    for (size_t i = 0; i < count; i++) memset(table + ranges[i].first, (int)kind, ranges[i].last - ranges[i].first + 1);
}

// Has PCRE2 find the runs of letters and of numbers in a text of all characters, in order.
static bool fill_table(uint8_t *table, Error *err) {
    int error, found = 0;
    size_t where, n = 0;
    pcre2_code *code = pcre2_compile((PCRE2_SPTR) "(\\p{L}+)|(\\p{N}+)", PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP,
                                     &error, &where, NULL);
    if (!code && error == PCRE2_ERROR_HEAP_FAILED) return error_set(err, "out of memory for PCRE2");
    if (!code) return error_set(err, "PCRE2 was built without Unicode properties (error %d)", error);
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); // without JIT it is only slower
    char *all = malloc((size_t)4 * CHAR_TABLE_SIZE);
    for (uint32_t c = 0; all && c < CHAR_TABLE_SIZE; c++)
        if (c < 0xD800 || c >= 0xE000) n += (size_t)utf8_encode(c, all + n);
    pcre2_match_data *match = pcre2_match_data_create(3, NULL);
    const bool has_memory = all && match;
    for (size_t at = 0; has_memory && found >= 0 && at < n;) {
        const size_t *range = pcre2_get_ovector_pointer(match);
        found = pcre2_match(code, (PCRE2_SPTR)all, n, at, PCRE2_NO_UTF_CHECK, match, NULL);
        const CharKind kind = found == 2 ? CHAR_LETTER : CHAR_NUMBER; // 1 + the number of the last group that matched
        for (size_t i = range[0]; found >= 0 && i < range[1];) {
            uint32_t c = 0;
            i += (size_t)utf8_decode((const unsigned char *)all + i, (int64_t)(range[1] - i), &c);
            table[c] = (uint8_t)kind;
        }
        at = range[1];
    }
    pcre2_match_data_free(match);
    free(all);
    pcre2_code_free(code);
    return (has_memory && (found >= 0 || found == PCRE2_ERROR_NOMATCH)) ||
           error_set(err, "PCRE2 could not tell letters from numbers: out of memory");
}

uint8_t *pieces_char_table(Error *err) {
    uint8_t *table = calloc(CHAR_TABLE_SIZE, 1);
    if (!table) error_set(err, "out of memory for the table of characters");
    if (!table || !fill_table(table, err)) {
        free(table);
        return NULL;
    }
    mark_ranges(table, newer_letters, COUNT(newer_letters), CHAR_LETTER);
    mark_ranges(table, newer_numbers, COUNT(newer_numbers), CHAR_NUMBER);
    mark_ranges(table, spaces, COUNT(spaces), CHAR_SPACE);
    return table;
}

// ------------------------------------------------------------------------------------------------------- the pattern

// Returns the kind of the character at p, and its length.
static inline CharKind kind_at(const uint8_t *table, const unsigned char *p, const unsigned char *end, int *length) {
    *length = 1;
    if (*p < 0x80) return (CharKind)table[*p];
    uint32_t c;
    int bytes = utf8_decode(p, end - p, &c);
    if (bytes == 0) return CHAR_OTHER;
    *length = bytes;
    return c < CHAR_TABLE_SIZE ? (CharKind)table[c] : CHAR_OTHER;
}

// Returns the end of the run of characters of one kind that begins at p; *last: the length of its
// last character.
static inline const unsigned char *run_end(const uint8_t *table, const unsigned char *p, const unsigned char *end,
                                           CharKind kind, int *last) {
    int length = 0;
    *last = 0;
    while (p < end && kind_at(table, p, end, &length) == kind) {
        p += length;
        *last = length;
    }
    return p;
}

int64_t pieces_next(const uint8_t *table, const char *text, int64_t n) {
    const unsigned char *begin = (const unsigned char *)text, *end = begin + n, *p = begin;
    int length;
    if (*p == '\'' && n > 1) { // 's 't 'm 'd 're 've 'll
        const unsigned char a = p[1], b = n > 2 ? p[2] : 0;
        if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
        if ((b == 'e' && (a == 'r' || a == 'v')) || (a == 'l' && b == 'l')) return 3;
    }
    CharKind kind = kind_at(table, p, end, &length);
    if (*p == ' ' && n > 1) { // the " ?" of three alternatives
        int next_length;
        CharKind next = kind_at(table, p + 1, end, &next_length);
        if (next != CHAR_SPACE) {
            p += 1;
            length = next_length;
            kind = next;
        }
    }
    int last;
    const unsigned char *stop = run_end(table, p, end, kind, &last);
    // \s+(?!\S): the last space before a word goes to the word, unless it is the only one.
    if (kind == CHAR_SPACE && stop < end && stop - last > begin) stop -= last;
    return stop - begin;
}

// Returns the kind of the character that ends before p, and its length; begin < p.
static CharKind kind_before(const uint8_t *table, const unsigned char *begin, const unsigned char *p, int *length) {
    for (int back = 2; back <= 4 && p - back >= begin; back++) {
        CharKind kind = kind_at(table, p - back, p, length);
        if (*length == back) return kind;
    }
    return kind_at(table, p - 1, p, length);
}

// Tells whether the character at p is complete, whatever follows the text.
static bool is_whole(const unsigned char *p, const unsigned char *end) {
    return p < end && (*p < 0x80 || end - p >= 4);
}

bool pieces_always_cut(const uint8_t *table, const char *text, int64_t n, int64_t m) {
    const unsigned char *begin = (const unsigned char *)text, *p = begin + m, *end = begin + n;
    if ((*p & 0xC0) == 0x80 || !is_whole(p, end)) return false; // inside a character, or it may continue
    int length, back, ignored;
    CharKind before = kind_before(table, begin, p, &back), after = kind_at(table, p, end, &length);
    // The pattern never mixes kinds, except that ' ' belongs to the word after it, and that an apostrophe may begin a
    // contraction with the letters after it.
    if (before != CHAR_SPACE) return before != after && !(p[-1] == '\'' && after == CHAR_LETTER);
    // The last of several spaces before a word is a piece by itself, or goes with the word. So is a single space.
    if (after == CHAR_SPACE)
        return is_whole(p + length, end) && kind_at(table, p + length, end, &ignored) != CHAR_SPACE;
    return p[-1] != ' ' && p - back > begin && kind_before(table, begin, p - back, &ignored) != CHAR_SPACE;
}
