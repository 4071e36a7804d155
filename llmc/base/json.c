// JSON from outside sources, and JSON to write. See json.h.
#include "llmc/base/json.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/file.h"
#include "llmc/base/foreign_file.h"
#include "llmc/base/format.h"
#include "llmc/base/utf8.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

// When cJSON runs out of memory it reports the text as invalid JSON, and a checkpoint would seem
// damaged.
static void *allocate_or_end(size_t bytes) {
    void *p = malloc(bytes);
    REQUIRE_MEMORY(p, "JSON");
    return p;
}

__attribute__((constructor)) static void set_allocation(void) {
    cJSON_InitHooks(&(cJSON_Hooks){allocate_or_end, free});
}

cJSON *json_parse(const char *text, size_t bytes, Error *err) {
    const char *end = text + bytes,
               *valid = (const char *)utf8_error((const void *)text, (const void *)end);
    if (valid < end) {
        error_set(err, "not valid JSON: byte %td of %zu is not UTF-8", valid - text, bytes);
        return NULL;
    }

    end = text;
    cJSON *root = cJSON_ParseWithLengthOpts(text, bytes, &end, false);
    if (!root) {
        error_set(err, "not valid JSON near byte %td of %zu", end - text, bytes);
        return NULL;
    }

    while (end < text + bytes && strchr(" \t\r\n", *end) && *end != '\0') end++;
    if (end < text + bytes)
        error_set(err, "bytes after the JSON value, which ends at byte %td of %zu", end - text,
                  bytes);
    else if (!cJSON_IsObject(root))
        error_set(err, "the JSON value is not an object");
    else
        return root;
    cJSON_Delete(root);
    return NULL;
}

cJSON *json_parse_content(const char *path, const char *text, size_t bytes, Error *err) {
    cJSON *root = json_parse(text, bytes, err);
    if (root) return root;
    error_prefix(err, "%s", path);
    foreign_file_check_text("JSON", path, text, min_size(bytes, FOREIGN_FILE_HEAD), err);
    return NULL;
}

cJSON *json_parse_file(const char *path, size_t max_bytes, Error *err) {
    size_t bytes;
    char *text = file_read_all(path, max_bytes, &bytes, err);
    if (!text) return NULL;
    cJSON *root = json_parse_content(path, text, bytes, err);
    free(text);
    return root;
}

void json_make_seal(char seal[JSON_SEAL_BYTES + 1], const char *text, size_t bytes) {
    const int n = snprintf(seal, JSON_SEAL_BYTES + 1, ",\n  \"xxh3\": \"%016llx\"\n}\n",
                           (unsigned long long)XXH3_64bits(text, bytes));
    REQUIRE(n == JSON_SEAL_BYTES, "the seal has %d bytes", n);
}

bool json_check_seal(const char *text, size_t bytes, Error *err) {
    const size_t body = bytes - min_size(bytes, JSON_SEAL_BYTES);
    char seal[JSON_SEAL_BYTES + 1];
    json_make_seal(seal, text, body);
    if (!(bytes >= JSON_SEAL_BYTES && memcmp(text + body, seal, JSON_SEAL_BYTES) == 0))
        return error_set(err,
                         "damaged: its bytes have the checksum %016llx, but it ends with another",
                         (unsigned long long)XXH3_64bits(text, body));
    return true;
}

const char *json_describe(const cJSON *item, char *buf, size_t size) {
    const char *kind = "an object";
    if (cJSON_IsNull(item)) kind = "null";
    if (cJSON_IsTrue(item)) kind = "true";
    if (cJSON_IsFalse(item)) kind = "false";
    if (cJSON_IsArray(item)) kind = "an array";
    if (!item)
        snprintf(buf, size, "missing");
    else if (cJSON_IsNumber(item))
        snprintf(buf, size, "%.17g", item->valuedouble);
    else if (cJSON_IsString(item))
        snprintf(buf, size, "\"%.40s\"", item->valuestring);
    else
        snprintf(buf, size, "%s", kind);
    for (char *p = buf; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f) *p = '?';
    return buf;
}

const char *json_list_keys(const cJSON *object, char *buf, size_t size) {
    enum { SHOWN = 8 };
    size_t used = (size_t)snprintf(buf, size, "its fields are ");
    int count = 0;
    for (const cJSON *child = object->child; child && used + 1 < size; child = child->next) {
        if (count++ == SHOWN) {
            used += (size_t)snprintf(buf + used, size - used, ", ...");
            break;
        }
        char name[40];
        utf8_make_visible(child->string, name, sizeof name);
        used += (size_t)snprintf(buf + used, size - used, "%s\"%s\"", count > 1 ? ", " : "", name);
    }
    if (count == 0) snprintf(buf, size, "it has no fields");
    return buf;
}

bool json_find(const cJSON *object, const char *key, const cJSON **item, Error *err) {
    *item = NULL;
    for (const cJSON *child = object->child; child; child = child->next) {
        if (strcmp(child->string, key) != 0) continue;
        // Readers disagree on which of the two counts, so reject both.
        if (*item) return error_set(err, "\"%s\" is stated twice", key);
        *item = child;
    }
    return true;
}

bool json_check_keys(const cJSON *object, const char *const *known, Error *err) {
    for (const cJSON *child = object->child; child; child = child->next) {
        int i = 0;
        while (known[i] && strcmp(known[i], child->string) != 0) i++;
        if (!known[i])
            return error_set(err, "\"%.64s\" is not a field that this version knows",
                             child->string);
    }
    return true;
}

static bool mismatch(const cJSON *item, const char *key, const char *expected, Error *err) {
    char found[64];
    return error_set(err, "\"%s\" is %s, expected %s", key,
                     json_describe(item, found, sizeof found), expected);
}

bool json_int_value(const cJSON *item, int64_t min, int64_t max, int64_t *value) {
    if (!cJSON_IsNumber(item)) return false;
    double d = item->valuedouble;
    if (!(fabs(d) <= (double)JSON_MAX_INT) || d != floor(d)) return false;
    *value = (int64_t)d;
    return *value >= min && *value <= max;
}

bool json_double_value(const cJSON *item, double *value) {
    if (cJSON_IsNumber(item)) {
        *value = item->valuedouble;
        return isfinite(*value); // 1e999 is not written by us
    }
    if (!cJSON_IsString(item)) return false;
    const char *text = item->valuestring;
    if (strcmp(text, "nan") == 0)
        *value = (double)NAN;
    else if (strcmp(text, "inf") == 0)
        *value = (double)INFINITY;
    else if (strcmp(text, "-inf") == 0)
        *value = -(double)INFINITY;
    else
        return false;
    return true;
}

const char *json_format_double(double value, int digits, char *buf, size_t size) {
    const char *text = "\"inf\"";
    if (value < 0) text = "\"-inf\"";
    if (isnan(value)) text = "\"nan\"";
    if (isfinite(value))
        snprintf(buf, size, "%.*g", digits, value);
    else
        snprintf(buf, size, "%s", text);
    return buf;
}

bool json_get_int(const cJSON *object, const char *key, int64_t min, int64_t max, int64_t *value,
                  Error *err) {
    const cJSON *item;
    if (!json_find(object, key, &item, err)) return false;
    if (json_int_value(item, min, max, value)) return true;
    char expected[80];
    if (min == max)
        snprintf(expected, sizeof expected, "%lld", (long long)min);
    else
        snprintf(expected, sizeof expected, "an integer from %lld to %lld", (long long)min,
                 (long long)max);
    return mismatch(item, key, expected, err);
}

bool json_get_double(const cJSON *object, const char *key, double *value, Error *err) {
    const cJSON *item;
    if (!json_find(object, key, &item, err)) return false;
    if (!json_double_value(item, value)) return mismatch(item, key, "a number", err);
    return true;
}

bool json_get_string(const cJSON *object, const char *key, const char **value, Error *err) {
    const cJSON *item;
    if (!json_find(object, key, &item, err)) return false;
    if (!cJSON_IsString(item)) return mismatch(item, key, "a string", err);
    *value = item->valuestring;
    return true;
}

bool json_get_object(const cJSON *object, const char *key, const cJSON **value, Error *err) {
    if (!json_find(object, key, value, err)) return false;
    if (!cJSON_IsObject(*value)) return mismatch(*value, key, "an object", err);
    return true;
}

bool json_get_array(const cJSON *object, const char *key, int length, const cJSON **value,
                    Error *err) {
    if (!json_find(object, key, value, err)) return false;
    if (!cJSON_IsArray(*value)) return mismatch(*value, key, "an array", err);
    int found = cJSON_GetArraySize(*value);
    if (found == length) return true;
    return error_set(err, "\"%s\" has %d entries, expected %d", key, found, length);
}

void json_add(cJSON *object, const JsonField *f) {
    for (; f->key; f++) {
        if (f->kind == JSON_IS_TEXT)
            cJSON_AddItemToObject(object, f->key, json_text(f->text));
        else if (f->kind == JSON_IS_BOOL)
            cJSON_AddBoolToObject(object, f->key, f->number != 0);
        else if (f->kind == JSON_IS_KNOWN && !(f->number > 0))
            cJSON_AddNullToObject(object, f->key);
        else
            cJSON_AddNumberToObject(object, f->key, f->number);
    }
}

cJSON *json_text(const char *text) {
    char *valid = NULL;
    size_t bytes = 0, left = strlen(text);
    FILE *out = text_open(&valid, &bytes);
    while (left > 0) {
        const int length = utf8_length(text, left);
        const size_t used = (size_t)max_i64(length, 1);
        if (length > 0)
            fwrite(text, 1, used, out);
        else
            fputs("\xEF\xBF\xBD", out);
        text += used;
        left -= used;
    }
    fclose(out);
    cJSON *item = cJSON_CreateString(valid);
    free(valid);
    return item;
}
