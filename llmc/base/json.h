// JSON from outside sources, and JSON to write.
//
// Fields (config.json, trainer.json, safetensors headers): every field is looked up once and
// checked for presence, type and range, and the message states what was found. Parsing is cJSON's.
// This module owns nothing: items belong to the tree that json_parse returned.
#pragma once
#include "llmc/base/error.h"

#include <cjson/cJSON.h>
#include <stddef.h>
#include <stdint.h>

// The largest integer that JSON numbers, which are doubles, hold exactly together with all smaller
// ones.
#define JSON_MAX_INT ((int64_t)1 << 53)

// One object, followed only by white space. The caller frees it with cJSON_Delete.
cJSON *json_parse(const char *text, size_t bytes, Error *err);
// The same for the content of a file, which the message names if it is of another kind; messages
// begin with the path.
cJSON *json_parse_content(const char *path, const char *text, size_t bytes, Error *err);
// The same for a file of at most max_bytes.
cJSON *json_parse_file(const char *path, size_t max_bytes, Error *err);

// The end of a file that is one object, after which nothing follows: the checksum of all bytes
// before it, as its last field. So every byte of the file is either covered or fixed.
enum { JSON_SEAL_BYTES = 33 };
void json_make_seal(char seal[JSON_SEAL_BYTES + 1], const char *text, size_t bytes);
bool json_check_seal(const char *text, size_t bytes, Error *err); // of all bytes of a file

// All of these return false with a message when the key is absent (json_find: *item NULL), stated
// twice, of another type, or out of range.
bool json_find(const cJSON *object, const char *key, const cJSON **item, Error *err);
bool json_get_int(const cJSON *object, const char *key, int64_t min, int64_t max, int64_t *value,
                  Error *err);
bool json_get_double(const cJSON *object, const char *key, double *value, Error *err);
bool json_get_string(const cJSON *object, const char *key, const char **value, Error *err);
bool json_get_object(const cJSON *object, const char *key, const cJSON **value, Error *err);
bool json_get_array(const cJSON *object, const char *key, int length, const cJSON **value,
                    Error *err);
// False, with the key in the message, if the object has a key that is not in this list, which ends
// with NULL.
bool json_check_keys(const cJSON *object, const char *const *known, Error *err);

// The value of an item: an integer in [min, max]; a number or one of "nan", "inf", "-inf", which
// are not JSON numbers.
bool json_int_value(const cJSON *item, int64_t min, int64_t max, int64_t *value);
bool json_double_value(const cJSON *item, double *value);

// Writes a number to buf so that json_double_value reads back the same bits; returns buf. digits: 9
// for a float, 17 for a double.
const char *json_format_double(double value, int digits, char *buf, size_t size);
// The names of an object's fields, for messages: its fields are "a", "b". Returns buf.
const char *json_list_keys(const cJSON *object, char *buf, size_t size);
// The content of an item, for messages: 7.5, "text", an object, ... Control characters are
// replaced. Returns buf.
const char *json_describe(const cJSON *item, char *buf, size_t size);

// Adds fields to an object, in order: JSON_ADD(object, JSON_NUMBER("L", 12), JSON_TEXT("name",
// "T4")). JSON_KNOWN is a number that is unknown when it is 0, and null then.
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
// cJSON_CreateString for text from outside, such as a file name: bytes that are not UTF-8 become
// U+FFFD, because JSON with them is no JSON. For what must be found again by the text, keep a
// number beside it.
cJSON *json_text(const char *text);
