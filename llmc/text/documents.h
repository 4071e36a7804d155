// From files to documents: the bytes of an input in any packing, the text of a line of JSON, and the inputs as blocks
// of text.
#pragma once
#include "llmc/base/error.h"

#include <stddef.h>
#include <stdint.h>

// ----------------------------------------------------------------------------------------------- bytes (documents.c)

// The bytes of an input in any packing: plain, gzip (any number of members), zstd (any number of frames).
// Owns the decompressor and a buffer of 256 KiB. Does not interpret the bytes, and never returns bytes that come
// after damage.

typedef enum { PACKED_NOT, PACKED_GZIP, PACKED_ZSTD } Packing;

Packing packing_of_name(const char *path);                      // by .gz, .zst
Packing packing_of_bytes(const unsigned char *bytes, size_t n); // by the first four

typedef struct ByteSource ByteSource;
// Reads descriptor fd and then, if it is not -1, then_fd, as one sequence; fd is closed with the source, then_fd stays.
ByteSource *byte_source_open(int fd, int then_fd, Packing packing, Error *err);
// The next n bytes into out, fewer only at the end or before damage; 0 at the end. -1: the next byte cannot be read.
int64_t byte_source_read(ByteSource *s, void *out, int64_t n, Error *err);
bool byte_source_is_damaged(const ByteSource *s);  // a read failed because of the file's contents, not the machine
int64_t byte_source_consumed(const ByteSource *s); // bytes of the file that were read so far
void byte_source_close(ByteSource *s);             // NULL is fine

// ----------------------------------------------------------------------------------------- lines of JSON (json_line.c)

// One line of a JSON Lines file: the text that a field of its object holds. A strict scanner that accepts what Python's
// json accepts (NaN and Infinity too; of equal keys the last one counts) and gives the same text, at the speed of a
// tokenizer. Stricter in two things: the line must be valid UTF-8, and the text must not hold half a surrogate pair,
// which has no UTF-8. Keeps nothing between calls.

enum { JSON_LINE_MAX_DEPTH = 512 };

typedef enum {
    JSON_LINE_NOT_JSON, // or not an object
    JSON_LINE_NOT_UTF8,
    JSON_LINE_SURROGATE, // \ud800 without its other half
    JSON_LINE_NO_FIELD,
    JSON_LINE_NO_STRING, // the field is of another type
    JSON_LINE_BAD_KINDS, // so many are bad
    JSON_LINE_OK = JSON_LINE_BAD_KINDS,
    JSON_LINE_BLANK, // nothing but white space
} JsonLine;

// What a text begins with: n bytes and one more that may be read, a control character; is_all: there are no more.
typedef enum {
    JSON_NOT,
    JSON_OBJECTS,  // an object in its first line
    JSON_DOCUMENT, // an array, or an object over several lines
    JSON_BROKEN,   // a beginning of such a document, and then something else
} JsonShape;
JsonShape json_shape(const char *text, int64_t n, bool is_all);

// line: n bytes and one more that may be read, a control character such as '\n'. OK: *text points to the unescaped
// text of *length bytes, inside line, whose bytes are overwritten. Otherwise (except for BLANK) err says what is wrong.
JsonLine json_line_text(char *line, int64_t n, const char *field, char **text, int64_t *length, Error *err);
