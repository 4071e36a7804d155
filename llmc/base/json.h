// Reading fields of JSON that came from outside (config.json, trainer.json, safetensors headers): every field is
// looked up once, checked for presence, type and range, and the message says what was found. Parsing is cJSON's.
// Owns nothing: items belong to the tree that json_parse returned.
#pragma once
#include "llmc/base/error.h"
#include <cjson/cJSON.h>
#include <stddef.h>
#include <stdint.h>

// The largest integer that JSON numbers, which are doubles, hold exactly together with all smaller ones.
#define JSON_MAX_INT ((int64_t)1 << 53)

// One object and nothing after it but white space. The caller frees it with cJSON_Delete.
cJSON *json_parse(const char *text, size_t bytes, Error *err);
// The same from a file of at most max_bytes; messages begin with the path.
cJSON *json_parse_file(const char *path, size_t max_bytes, Error *err);

// All of these: false and a message when the key is absent (json_find: *item NULL), stated twice, of another type, or
// out of range.
bool json_find(const cJSON *object, const char *key, const cJSON **item, Error *err);
bool json_get_int(const cJSON *object, const char *key, int64_t min, int64_t max, int64_t *value, Error *err);
bool json_get_double(const cJSON *object, const char *key, double *value, Error *err);
bool json_get_string(const cJSON *object, const char *key, const char **value, Error *err);
bool json_get_object(const cJSON *object, const char *key, const cJSON **value, Error *err);
bool json_get_array(const cJSON *object, const char *key, int length, const cJSON **value, Error *err);
// False, and the key in the message, where the object has one that is not in this list, which ends with NULL.
bool json_check_keys(const cJSON *object, const char *const *known, Error *err);

// The value of an item: an integer in [min, max]; a number or one of "nan", "inf", "-inf", which JSON numbers cannot
// be.
bool json_int_value(const cJSON *item, int64_t min, int64_t max, int64_t *value);
bool json_double_value(const cJSON *item, double *value);

// A number as json_double_value reads it back, to the same bits, into buf; returns buf. digits: 9 for a float, 17 for a
// double.
const char *json_format_double(double value, int digits, char *buf, size_t size);
// What an item holds, for messages: 7.5, "text", an object, ... Control characters are replaced. Returns buf.
const char *json_describe(const cJSON *item, char *buf, size_t size);
