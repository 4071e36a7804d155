// GPT-2's pattern: cuts a text into pieces, inside which pairs are merged.
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// PCRE2 says once what each character is (letter, number); the pattern itself is walked by hand, one look at each
// character: a megabyte of spaces takes no stack and no backtracking. A byte that belongs to no well-formed UTF-8
// sequence is a character of its own, neither letter nor number nor space, as U+FFFD is.
#pragma once
#include "llmc/base/error.h"

#include <stdbool.h>
#include <stdint.h>

// The kinds of characters that the pattern tells apart.
typedef enum { CHAR_OTHER, CHAR_LETTER, CHAR_NUMBER, CHAR_SPACE } CharKind;

// The kind of every code point below, one byte each; there is nothing but CHAR_OTHER above.
enum { CHAR_TABLE_SIZE = 0x40000 };

// A new table, malloced. Letters and numbers are those of Unicode 16 whatever version this PCRE2 knows, up to 16.
uint8_t *pieces_char_table(Error *err);

// The length of the first piece of text[0..n), n >= 1.
int64_t pieces_next(const uint8_t *table, const char *text, int64_t n);

// Tells whether a piece ends between text[m-1] and text[m] whatever comes before and after the n
// bytes at text. 0 < m < n.
bool pieces_always_cut(const uint8_t *table, const char *text, int64_t n, int64_t m);
