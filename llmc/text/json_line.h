// One line of a JSON Lines file: the text that a field of its object holds. A strict scanner that
// accepts what Python's json accepts (NaN and Infinity too; of equal keys the last one counts) and
// gives the same text, at the speed of a tokenizer. Stricter in two things: the line must be valid
// UTF-8, and the text must not hold half a surrogate pair, which has no UTF-8. Keeps nothing
// between calls.
#pragma once
#include "llmc/base/error.h"

#include <stdint.h>

enum { JSON_LINE_MAX_DEPTH = 512 };

typedef enum {
    JSON_LINE_NOT_JSON, // or not an object
    JSON_LINE_NOT_UTF8,
    JSON_LINE_SURROGATE, // \ud800 without its other half
    JSON_LINE_NO_FIELD,
    JSON_LINE_NO_STRING, // the field is of another type
    JSON_LINE_BAD_KINDS, // the number of bad kinds
    JSON_LINE_OK = JSON_LINE_BAD_KINDS,
    JSON_LINE_BLANK, // nothing but white space
} JsonLine;

// The beginning of a text: n bytes and one more that may be read, a control character; is_all:
// there are no more.
typedef enum {
    JSON_NOT,
    JSON_OBJECTS,  // an object in its first line
    JSON_DOCUMENT, // an array, or an object over several lines
    JSON_BROKEN,   // a beginning of such a document, and then something else
} JsonShape;
JsonShape json_shape(const char *text, int64_t n, bool is_all);

// line: n bytes and one more that may be read, a control character such as '\n'. OK: *text points
// to the unescaped text of *length bytes, inside line, whose bytes are overwritten. Otherwise
// (except for BLANK) err says what is wrong.
JsonLine json_line_text(char *line, int64_t n, const char *field, char **text, int64_t *length,
                        Error *err);
