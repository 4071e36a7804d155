// JSON and UTF-8 from outside sources, and lists of JSON fields to write.
//
// JSON fields (config.json, trainer.json, safetensors headers): every field is looked up once and checked for presence,
// type and range, and the message states what was found. Parsing is cJSON's. This module owns nothing: items belong to
// the tree that json_parse returned.
//
// UTF-8 is decoded one character at a time, for text that may contain anything: malformed bytes are detected, and never
// read past. Text that arrives in pieces which ignore character boundaries, such as tokens, is passed on in whole
// characters.
#pragma once
#include "llmc/base/error.h"

#include <cjson/cJSON.h>
#include <stddef.h>
#include <stdint.h>

// The largest integer that JSON numbers, which are doubles, hold exactly together with all smaller ones.
#define JSON_MAX_INT ((int64_t)1 << 53)

// One object, followed only by white space. The caller frees it with cJSON_Delete.
cJSON *json_parse(const char *text, size_t bytes, Error *err);
// The same for a file of at most max_bytes; messages begin with the path.
cJSON *json_parse_file(const char *path, size_t max_bytes, Error *err);

// All of these return false with a message when the key is absent (json_find: *item NULL), stated twice, of another
// type, or out of range.
bool json_find(const cJSON *object, const char *key, const cJSON **item, Error *err);
bool json_get_int(const cJSON *object, const char *key, int64_t min, int64_t max, int64_t *value, Error *err);
bool json_get_double(const cJSON *object, const char *key, double *value, Error *err);
bool json_get_string(const cJSON *object, const char *key, const char **value, Error *err);
bool json_get_object(const cJSON *object, const char *key, const cJSON **value, Error *err);
bool json_get_array(const cJSON *object, const char *key, int length, const cJSON **value, Error *err);
// False, with the key in the message, if the object has a key that is not in this list, which ends with NULL.
bool json_check_keys(const cJSON *object, const char *const *known, Error *err);

// The value of an item: an integer in [min, max]; a number or one of "nan", "inf", "-inf", which are not JSON numbers.
bool json_int_value(const cJSON *item, int64_t min, int64_t max, int64_t *value);
bool json_double_value(const cJSON *item, double *value);

// Writes a number to buf so that json_double_value reads back the same bits; returns buf. digits: 9 for a float, 17 for
// a double.
const char *json_format_double(double value, int digits, char *buf, size_t size);
// The content of an item, for messages: 7.5, "text", an object, ... Control characters are replaced. Returns buf.
const char *json_describe(const cJSON *item, char *buf, size_t size);

// Adds fields to an object, in order: JSON_ADD(object, JSON_NUMBER("L", 12), JSON_TEXT("name", "T4")). JSON_KNOWN is a
// number that is unknown when it is 0, and null then.
typedef struct {
    const char *key;
    enum { JSON_IS_NUMBER, JSON_IS_KNOWN, JSON_IS_BOOL, JSON_IS_TEXT } kind;
    double number;
    const char *text;
} JsonField;
#define JSON_NUMBER(key, x)   ((JsonField){key, JSON_IS_NUMBER, (double)(x), NULL})
#define JSON_KNOWN(key, x)    ((JsonField){key, JSON_IS_KNOWN, (double)(x), NULL})
#define JSON_BOOL(key, x)     ((JsonField){key, JSON_IS_BOOL, (double)(x), NULL})
#define JSON_TEXT(key, x)     ((JsonField){key, JSON_IS_TEXT, 0.0, x})
#define JSON_ADD(object, ...) json_add(object, (const JsonField[]){__VA_ARGS__, {0}})
void json_add(cJSON *object, const JsonField *fields);

// --------------------------------------------------------------------------------------------------------------- UTF-8

// The character at p, of n >= 1 bytes: its length in bytes, or 0 if no well-formed sequence begins there (Unicode 15,
// table 3-7: no overlong forms, no surrogates, nothing above U+10FFFF).
static inline int utf8_decode(const unsigned char *p, int64_t n, uint32_t *code_point) {
    unsigned char lead = p[0];
    if (lead < 0x80) return *code_point = lead, 1;
    if (lead < 0xC2 || lead > 0xF4) return 0;
    int length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    if (n < length) return 0;
    uint32_t c = (uint32_t)lead & (0x7Fu >> length);
    for (int i = 1; i < length; i++) {
        if ((p[i] & 0xC0) != 0x80) return 0;
        c = c << 6 | (p[i] & 0x3Fu);
    }
    if (length == 3 && (c < 0x800 || (c >= 0xD800 && c < 0xE000))) return 0;
    if (length == 4 && (c < 0x10000 || c > 0x10FFFF)) return 0;
    *code_point = c;
    return length;
}

// Writes the character, at most 4 bytes; returns their number.
static inline int utf8_encode(uint32_t c, char *out) {
    int length = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (int i = length - 1; i > 0; i--, c >>= 6) out[i] = (char)(0x80 | (c & 0x3F));
    out[0] = (char)(length == 1 ? c : ((0xF0u << (4 - length)) & 0xFF) | c);
    return length;
}

// The length of the character at text, 0 if there is none (n = 0 included).
static inline int utf8_length(const char *text, size_t n) {
    uint32_t c;
    return n == 0 ? 0 : utf8_decode((const unsigned char *)text, (int64_t)n, &c);
}

// For text that arrives in pieces. A character whose bytes are spread over several pieces is held back until it is
// complete; bytes that are not UTF-8 are passed on as soon as that is certain. Nothing is ever lost, changed or
// reordered. Allocates nothing.
enum { UTF8_MOST_HELD = 3 }; // a character has up to four bytes

typedef struct {
    char held[UTF8_MOST_HELD];
    int count;
} Utf8Stream; // all zero: nothing is held back

// Takes n bytes and writes the bytes that can be shown now to out (capacity n + UTF8_MOST_HELD). Returns their number.
int64_t utf8_stream_push(Utf8Stream *s, const char *bytes, int64_t n, char *out);
// Ends the text: the bytes still held back, an unfinished character, are written to out unchanged.
int64_t utf8_stream_end(Utf8Stream *s, char *out);
