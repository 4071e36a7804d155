// See pieces.h.
#include "llmc/text/pieces.h"

#include <string.h>

#define CONTRACTIONS "'s|'t|'re|'ve|'m|'ll|'d"
#define REST         "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define GPT2_REGEX   CONTRACTIONS "| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define LLAMA3_REGEX(numbers)                                                                      \
    "(?i:" CONTRACTIONS ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" numbers                                 \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" REST
#define O200K_REGEX                                                                                \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?"  \
    "i:" CONTRACTIONS ")?|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{" \
    "Lm}\\p{Lo}\\p{M}]*(?i:" CONTRACTIONS ")?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" REST

const PatternFacts pattern_facts[NUM_PATTERNS] = {
    [PATTERN_GPT2] = {"gpt2", GPT2_REGEX, "gpt-2"},
    [PATTERN_STARCODER] = {"starcoder", GPT2_REGEX, "starcoder"},
    [PATTERN_LLAMA3] = {"llama3", LLAMA3_REGEX("\\p{N}{1,3}"), "llama-bpe"},
    [PATTERN_QWEN2] = {"qwen2", LLAMA3_REGEX("\\p{N}"), "qwen2"},
    [PATTERN_O200K] = {"o200k", O200K_REGEX,
                       NULL}, // llama.cpp's gpt-4o ends words at their marks (\p{M})
};

bool pattern_named(const char *name, Pattern *pattern, Error *err) {
    for (*pattern = 0; *pattern < NUM_PATTERNS; ++*pattern)
        if (strcmp(pattern_facts[*pattern].name, name) == 0) return true;
    return error_set(
        err, "no pattern is named \"%s\", expected gpt2, starcoder, llama3, qwen2 or o200k", name);
}

// ------------------------------------------------------------------------------- parts of patterns

// The class of GPT-2's pattern that has this kind of character.
static inline CharKind class_of(CharKind kind) {
    if (kind & CHAR_LETTERS) return CHAR_LETTERS;
    if (kind & CHAR_SPACES) return CHAR_SPACES;
    if (kind == CHAR_NUMBER) return CHAR_NUMBER;
    return CHAR_OTHERS;
}

// Returns the end of the run of characters of one class that begins at p; *last: the length of its
// last character.
static inline const unsigned char *run_end(const uint8_t *table, const unsigned char *p,
                                           const unsigned char *end, CharKind class, int *last) {
    int length = 0;
    *last = 0;
    while (p < end && char_kind_at(table, p, end, &length) & class) {
        p += length;
        *last = length;
    }
    return p;
}

// The length of the contraction at p: 's 't 'm 'd 're 've 'll; 0: there is none. any_case: (?i:),
// by which U+017F is an s.
static inline int contraction_at(const unsigned char *p, const unsigned char *end, bool any_case) {
    if (end - p < 2 || *p != '\'') return 0;
    unsigned char fold = 0, b = 0;
    if (any_case) fold = 0x20;
    const unsigned char a = p[1] | fold;
    if (end - p > 2) b = p[2] | fold;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    if ((b == 'e' && (a == 'r' || a == 'v')) || (a == 'l' && b == 'l')) return 3;
    if (any_case && end - p > 2 && p[1] == 0xC5 && p[2] == 0xBF) return 3;
    return 0;
}

// ------------------------------------------------------------------------------------ the patterns

// numbers_alone: the text is parted at each number first.
static inline int64_t gpt2_next(const uint8_t *table, bool numbers_alone,
                                const unsigned char *begin, const unsigned char *end) {
    const CharKind numbers = numbers_alone ? CHAR_NUMBER : 0;
    const unsigned char *p = begin;
    int length = contraction_at(begin, end, false), last;
    if (length > 0) return length;
    CharKind kind = char_kind_at(table, p, end, &length);
    if (kind & numbers) return length;
    if (*p == ' ' && end - p > 1) { // the " ?" of three alternatives
        int next_length;
        const CharKind next = char_kind_at(table, p + 1, end, &next_length);
        if (!(next & (CHAR_SPACES | numbers))) {
            p += 1;
            kind = next;
        }
    }
    const unsigned char *stop = run_end(table, p, end, class_of(kind), &last);
    // \s+(?!\S): the last space before a word goes to the word, unless it is the only one.
    if (kind & CHAR_SPACES && stop < end && stop - last > begin &&
        !(char_kind_at(table, stop, end, &length) & numbers))
        stop -= last;
    return stop - begin;
}

// The first two alternatives of o200k's pattern: with
//   P = [^\r\n\p{L}\p{N}], U = [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}], W = [\p{Ll}\p{Lm}\p{Lo}\p{M}]
// P?U*W+ or else P?U+W*, and a contraction. Returns its end; begin: there is none.
static const unsigned char *o200k_word_end(const uint8_t *table, const unsigned char *begin,
                                           const unsigned char *end) {
    const CharKind U = CHAR_UPPER | CHAR_CASELESS | CHAR_MARK,
                   W = CHAR_LOWER | CHAR_CASELESS | CHAR_MARK;
    int length;
    CharKind kind = char_kind_at(table, begin, end, &length);
    const unsigned char *p = begin;
    if (kind & (CHAR_OTHERS | CHAR_SPACE)) p += length;

    // The end of the last character that U* gives back to W+. A mark may be that instead of P.
    const unsigned char *stop = p, *given_back = NULL;
    if (kind == CHAR_MARK) given_back = p;
    for (kind = 0; stop < end; stop += length) {
        kind = char_kind_at(table, stop, end, &length);
        if (!(kind & U)) break;
        if (kind & W) given_back = stop + length;
    }

    if (stop < end && kind == CHAR_LOWER)
        stop = run_end(table, stop, end, W, &length);
    else if (given_back)
        stop = given_back;
    else if (stop == p)
        return begin;
    return stop + contraction_at(stop, end, true);
}

// Llama 3's, Qwen2's and o200k's.
static inline int64_t modern_next(const uint8_t *table, Pattern pattern, const unsigned char *begin,
                                  const unsigned char *end) {
    const bool is_o200k = pattern == PATTERN_O200K;
    int length = 0, last, digits = 3; // of a piece of digits
    if (pattern == PATTERN_QWEN2) digits = 1;
    if (!is_o200k) length = contraction_at(begin, end, true);
    if (length > 0) return length;
    const CharKind first = char_kind_at(table, begin, end, &length);
    const unsigned char *second = begin + length, *stop = second;
    if (first == CHAR_NUMBER) {
        for (; --digits > 0 && stop < end; stop += length)
            if (char_kind_at(table, stop, end, &length) != CHAR_NUMBER) break;
        return stop - begin;
    }
    const CharKind next = second < end ? char_kind_at(table, second, end, &length) : 0;
    if (is_o200k) {
        stop = o200k_word_end(table, begin, end);
        if (stop > begin) return stop - begin;
    } else if (first & CHAR_LETTERS || (first != CHAR_NEWLINE && next & CHAR_LETTERS)) {
        return run_end(table, second, end, CHAR_LETTERS, &last) - begin;
    }
    if (first & CHAR_OTHERS || (*begin == ' ' && next & CHAR_OTHERS)) { //  ?[^\s\p{L}\p{N}]+[\r\n]*
        stop = run_end(table, second, end, CHAR_OTHERS, &last);
        while (stop < end && (*stop == '\r' || *stop == '\n' || (is_o200k && *stop == '/'))) stop++;
        return stop - begin;
    }
    stop = run_end(table, begin, end, CHAR_SPACES, &last);
    const unsigned char *line = stop; // \s*[\r\n]+ ends after the last newline of the run
    while (line > begin && line[-1] != '\r' && line[-1] != '\n') line--;
    if (line > begin) return line - begin;
    if (stop < end && stop - last > begin) stop -= last; // \s+(?!\S)
    return stop - begin;
}

int64_t pieces_next(const uint8_t *table, Pattern pattern, const char *text, int64_t n) {
    const unsigned char *begin = (const unsigned char *)text;
    if (pattern == PATTERN_GPT2) return gpt2_next(table, false, begin, begin + n);
    if (pattern == PATTERN_STARCODER) return gpt2_next(table, true, begin, begin + n);
    return modern_next(table, pattern, begin, begin + n);
}

// -------------------------------------------------------------------------------------------- cuts

// Returns the kind of the character that ends before p, and its length; begin < p.
static CharKind kind_before(const uint8_t *table, const unsigned char *begin,
                            const unsigned char *p, int *length) {
    for (int back = 2; back <= 4 && p - back >= begin; back++) {
        CharKind kind = char_kind_at(table, p - back, p, length);
        if (*length == back) return kind;
    }
    return char_kind_at(table, p - 1, p, length);
}

// Tells whether the character at p is complete, whatever follows the text.
static bool is_whole(const unsigned char *p, const unsigned char *end) {
    return p < end && (*p < 0x80 || end - p >= 4);
}

bool pieces_always_cut(const uint8_t *table, Pattern pattern, const char *text, int64_t n,
                       int64_t m) {
    const unsigned char *begin = (const unsigned char *)text, *p = begin + m, *end = begin + n;
    // inside a character, or it may continue
    if ((*p & 0xC0) == 0x80 || !is_whole(p, end)) return false;

    int length, back, ignored;
    const CharKind before = kind_before(table, begin, p, &back),
                   after = char_kind_at(table, p, end, &length);
    if (pattern > PATTERN_STARCODER) {
        // A character that may begin a word belongs to the letters after it. Newlines go with what
        // is before them. o200k's words have marks, and end with contractions; its "/" follow
        // newlines.
        const bool is_o200k = pattern == PATTERN_O200K;
        if (before & CHAR_LETTERS)
            return !(after & CHAR_LETTERS) && !(is_o200k && (after == CHAR_MARK || *p == '\''));
        if (before == CHAR_NUMBER) return after != CHAR_NUMBER;
        if (before == CHAR_NEWLINE) return !(after & CHAR_SPACES) && !(is_o200k && *p == '/');
        return before & CHAR_OTHERS && (after == CHAR_NUMBER || after == CHAR_SPACE);
    }

    const CharKind numbers = pattern == PATTERN_STARCODER ? CHAR_NUMBER : 0;

    // The pattern never mixes classes, except that ' ' belongs to the word after it, and that an
    // apostrophe may begin a contraction with the letters after it.
    if (!(before & CHAR_SPACES))
        return before & numbers ||
               (class_of(before) != class_of(after) && !(p[-1] == '\'' && after & CHAR_LETTERS));

    // The last of several spaces before a word is a piece by itself, or goes with the word. So is a
    // single space.
    if (after & CHAR_SPACES)
        return is_whole(p + length, end) &&
               !(char_kind_at(table, p + length, end, &ignored) & (CHAR_SPACES | numbers));
    return p[-1] != ' ' && p - back > begin &&
           !(kind_before(table, begin, p - back, &ignored) & CHAR_SPACES);
}
