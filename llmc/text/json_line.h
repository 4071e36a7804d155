// One line of a JSON Lines file: the text that a field of its object holds. A strict scanner that takes what Python's
// json takes (NaN and Infinity too; of equal keys the last one counts) and gives the same text, at the speed of a
// tokenizer. Stricter in two things: the line must be valid UTF-8, and the text must not hold half a surrogate pair,
// which has no UTF-8. Keeps nothing between calls.
#pragma once
#include "llmc/base/error.h"
#include <stdint.h>

enum { JSON_LINE_MAX_DEPTH = 512 };

typedef enum {
    JSON_LINE_OK,
    JSON_LINE_BLANK,    // nothing but white space
    JSON_LINE_NOT_JSON, // or no object
    JSON_LINE_NOT_UTF8,
    JSON_LINE_SURROGATE, // \ud800 without its other half
    JSON_LINE_NO_FIELD,
    JSON_LINE_NO_STRING, // the field is of another type
} JsonLine;

// line: n bytes and one more that may be read, a control character such as '\n'. OK: *text points to the unescaped
// text of *length bytes, inside line, whose bytes are overwritten. Otherwise (but for BLANK) err says what is wrong.
JsonLine json_line_text(char *line, int64_t n, const char *field, char **text, int64_t *length, Error *err);
