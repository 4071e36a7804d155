// The kinds of characters that the patterns of pieces.h tell apart. PCRE2 says once which kind each
// character has. A byte that belongs to no well-formed UTF-8 sequence is a character of its own,
// CHAR_OTHER, as U+FFFD is.
#pragma once
#include "llmc/base/error.h"
#include "llmc/base/utf8.h"

#include <stdint.h>

// One bit each, so that a class of a pattern is a set of them.
typedef enum {
    CHAR_OTHER = 1,
    CHAR_MARK = 2, // \p{M}
    CHAR_NUMBER = 4,
    CHAR_SPACE = 8,    // but "\r" and "\n"
    CHAR_NEWLINE = 16, // "\r", "\n"
    CHAR_UPPER = 32,   // \p{Lu}, \p{Lt}
    CHAR_LOWER = 64,
    CHAR_CASELESS = 128, // \p{Lm}, \p{Lo}
    CHAR_LETTERS = CHAR_UPPER | CHAR_LOWER | CHAR_CASELESS,
    CHAR_SPACES = CHAR_SPACE | CHAR_NEWLINE,
    CHAR_OTHERS = CHAR_OTHER | CHAR_MARK, // [^\s\p{L}\p{N}]
} CharKind;

// The kind of every code point below, one byte each. Above there are only variation selectors
// (marks) and CHAR_OTHER.
enum { CHAR_TABLE_SIZE = 0x40000, FIRST_SELECTOR = 0xE0100, NUM_SELECTORS = 240 };

// A new table, malloced. The kinds are those of Unicode 16 whatever version this PCRE2 knows, from
// 14 to 16.
uint8_t *char_kinds_table(Error *err);

// Returns the kind of the character at p, and its length.
static inline CharKind char_kind_at(const uint8_t *table, const unsigned char *p,
                                    const unsigned char *end, int *length) {
    *length = 1;
    if (*p < 0x80) return (CharKind)table[*p];
    uint32_t c;
    const int bytes = utf8_decode(p, end - p, &c);
    if (bytes == 0) return CHAR_OTHER;
    *length = bytes;
    if (c < CHAR_TABLE_SIZE) return (CharKind)table[c];
    if (c - FIRST_SELECTOR < NUM_SELECTORS) return CHAR_MARK;
    return CHAR_OTHER;
}
