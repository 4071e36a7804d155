// See json_line.h. The scanner makes one pass over the line and records where the value of the
// field is; only that value is unescaped, in place. Nested values are scanned with a stack of one
// bit a level, not by recursion.
#include "llmc/text/json_line.h"

#include "llmc/base/json.h"
#include "llmc/base/utf8.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    const unsigned char *p, *end;
    const char *wrong; // the error at p; NULL: none
} Scan;

// ----------------------------------------------------------------------------------------- scanner

static bool scan_fail(Scan *s, const char *wrong) {
    s->wrong = wrong;
    return false;
}

static void skip_space(Scan *s) {
    while (s->p < s->end && (*s->p == ' ' || *s->p == '\t' || *s->p == '\r' || *s->p == '\n'))
        s->p++;
}

// The byte at p, 0 at the end; a NUL anywhere in the line is an error.
static unsigned char peek(const Scan *s) {
    if (s->p < s->end) return *s->p;
    return 0;
}

// Reads four hexadecimal digits; -1: they are not.
static int hex4(const unsigned char *p) {
    int value = 0;
    for (int i = 0; i < 4; i++) {
        const unsigned char digit = p[i], letter = digit | 0x20;
        if (digit >= '0' && digit <= '9')
            value = value * 16 + digit - '0';
        else if (letter >= 'a' && letter <= 'f')
            value = value * 16 + letter - 'a' + 10;
        else
            return -1;
    }
    return value;
}

// Scans from the opening quote past the closing one; checks escapes, but does not resolve them.
static bool scan_string(Scan *s) {
    const unsigned char *p = s->p + 1;
    for (;;) {
        // stops at the control character after the line at the latest
        while (*p >= 0x20 && *p != '"' && *p != '\\') p++;
        s->p = p;
        if (p >= s->end) return scan_fail(s, "a string without its closing quote");
        if (*p == '"') break;
        if (*p < 0x20) return scan_fail(s, "a control character in a string");

        const unsigned char escape = p + 1 < s->end ? p[1] : 0;
        if (escape == 'u') {
            if (s->end - p < 6 || hex4(p + 2) < 0)
                return scan_fail(s, "\\u without four hexadecimal digits");
            p += 6;
        } else if (escape != 0 && strchr("\"\\/bfnrt", escape)) {
            p += 2;
        } else {
            return scan_fail(s, "an unknown escape");
        }
    }
    s->p = p + 1;
    return true;
}

static bool scan_digits(Scan *s) {
    const unsigned char *begin = s->p;
    while (peek(s) >= '0' && peek(s) <= '9') s->p++;
    return s->p > begin;
}

static bool scan_scalar(Scan *s) {
    static const char *const words[] = {"true", "false", "null", "NaN", "Infinity", "-Infinity"};

    if (peek(s) == '"') return scan_string(s);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        size_t n = strlen(words[i]);
        if ((size_t)(s->end - s->p) < n || memcmp(s->p, words[i], n) != 0) continue;
        s->p += n;
        return true;
    }

    if (peek(s) == '-') s->p++;
    if (peek(s) == '0')
        s->p++;
    else if (!scan_digits(s))
        return scan_fail(s, "neither a value nor a number");
    if (peek(s) == '.') {
        s->p++;
        if (!scan_digits(s)) return scan_fail(s, "a number without digits after the point");
    }
    if ((peek(s) | 0x20) == 'e') {
        s->p++;
        if (peek(s) == '+' || peek(s) == '-') s->p++;
        if (!scan_digits(s)) return scan_fail(s, "a number without digits in the exponent");
    }
    return true;
}

// Scans a key and its colon.
static bool scan_key(Scan *s) {
    skip_space(s);
    if (peek(s) != '"') return scan_fail(s, "expected a key in quotes");
    if (!scan_string(s)) return false;
    skip_space(s);
    if (peek(s) != ':') return scan_fail(s, "expected ':' after the key");
    s->p++;
    return true;
}

// Scans the array or object that begins at p, with everything in it.
static bool scan_nested(Scan *s) {
    // of each level: } or ], which are two after { and [
    unsigned char closing[JSON_LINE_MAX_DEPTH];
    int depth = 0;

    do {
        skip_space(s); // a value begins here
        unsigned char c = peek(s);
        if (c == '{' || c == '[') {
            if (depth == JSON_LINE_MAX_DEPTH) return scan_fail(s, "nested too deeply");
            closing[depth++] = (unsigned char)(c + 2);
            s->p++;
            skip_space(s);
            if (peek(s) != c + 2) {
                if (c == '{' && !scan_key(s)) return false;
                continue;
            }
        } else if (!scan_scalar(s)) {
            return false;
        }

        for (skip_space(s); depth > 0 && peek(s) == closing[depth - 1]; skip_space(s)) {
            s->p++;
            depth--;
        }
        if (depth == 0) break;
        if (peek(s) != ',') return scan_fail(s, "expected ',' or the end of the list");
        s->p++;
        if (closing[depth - 1] == '}' && !scan_key(s)) return false;
    } while (true);
    return true;
}

// ----------------------------------------------------------------------------------------- escapes

// Unescapes a scanned string, without quotes, in place; returns its number of bytes, -1 if it has
// half a surrogate pair.
static int64_t unescape(unsigned char *text, int64_t n) {
    static const char from[] = "bfnrt", to[] = "\b\f\n\r\t"; // others stand for themselves
    unsigned char *in = text, *out = text, *end = text + n;
    while (in < end) {
        unsigned char *slash = memchr(in, '\\', (size_t)(end - in));
        const size_t plain = slash ? (size_t)(slash - in) : (size_t)(end - in);
        if (out != in) memmove(out, in, plain);
        out += plain;
        in += plain;
        if (!slash) break;

        if (in[1] != 'u') {
            const char *at = strchr(from, in[1]);
            *out = in[1];
            if (at) *out = (unsigned char)to[at - from];
            out++;
            in += 2;
            continue;
        }

        int c = hex4(in + 2);
        in += 6;
        if (c >= 0xD800 && c <= 0xDBFF && end - in >= 6 && in[0] == '\\' && in[1] == 'u') {
            int low = hex4(in + 2);
            if (low < 0xDC00 || low > 0xDFFF) return -1;
            c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
            in += 6;
        }
        if (c >= 0xD800 && c <= 0xDFFF) return -1;
        out += utf8_encode((uint32_t)c, (char *)out);
    }
    return out - text;
}

// Tells whether the scanned key, without quotes, is the field. Resolves keys with escapes in a
// copy; a field has at most 255 bytes, at most 1530 when each is escaped.
static bool key_is(const unsigned char *key, int64_t n, const char *field) {
    unsigned char copy[6 * 256];
    size_t length = strlen(field);
    if (!memchr(key, '\\', (size_t)n))
        return (size_t)n == length && memcmp(key, field, length) == 0;
    if ((size_t)n > sizeof copy) return false;
    memcpy(copy, key, (size_t)n);
    return unescape(copy, n) == (int64_t)length && memcmp(copy, field, length) == 0;
}

// --------------------------------------------------------------------------------------- interface

// Scans the members of the line's object; *value: where the value of the last one named field
// begins, NULL: none.
static bool scan_members(Scan *s, const char *field, const unsigned char **value,
                         const unsigned char **value_end) {
    *value = NULL;
    skip_space(s);
    if (peek(s) != '{') return scan_fail(s, "expected an object, {\"field\": \"text\", ...}");
    s->p++;
    skip_space(s);
    if (peek(s) == '}') {
        s->p++;
        return true;
    }
    for (;;) {
        skip_space(s);
        const unsigned char *key = s->p + 1;
        if (!scan_key(s)) return false;
        const unsigned char *key_end = s->p - 1;
        while (*key_end != '"') key_end--; // back over the colon and the space before it
        bool is_field = key_is(key, key_end - key, field);
        skip_space(s);
        const unsigned char *begin = s->p;
        const bool is_nested = *begin == '{' || *begin == '[';
        if ((is_nested && !scan_nested(s)) || (!is_nested && !scan_scalar(s))) return false;
        if (is_field) {
            *value = begin;
            *value_end = s->p;
        }
        skip_space(s);
        if (peek(s) == '}') break;
        if (peek(s) != ',') return scan_fail(s, "expected ',' or '}'");
        s->p++;
    }
    s->p++;
    return true;
}

// Tells whether the value that begins at p is JSON without doubt: an object with a key, an array of
// such, of texts, or of numbers alone. Others may be text: {% if %}, [1] Smith.
static bool is_certain(Scan s, bool is_all) {
    const bool is_array = peek(&s) == '[';
    const Scan whole = s;
    s.p++;
    skip_space(&s);
    if (is_array && peek(&s) == '"') {
        if (!scan_string(&s)) return false;
        skip_space(&s);
        if (peek(&s) == ',') return true;
    } else if (is_array && peek(&s) == '{') {
        s.p++;
        skip_space(&s);
    }
    if (peek(&s) == '"') return scan_key(&s);
    s = whole; // [], {}, or the like is JSON if it is all there is
    if (!is_all || !scan_nested(&s)) return false;
    skip_space(&s);
    return s.p == s.end;
}

JsonShape json_shape(const char *text, int64_t n, bool is_all) {
    enum { CUT_OFF = 16 }; // an error so near the end may be due to the end
    Scan s = {.p = (const unsigned char *)text, .end = (const unsigned char *)text + n};
    skip_space(&s);
    const unsigned char first = peek(&s);
    if ((first != '{' && first != '[') || !is_certain(s, is_all)) return JSON_NOT;
    const unsigned char *newline = memchr(s.p, '\n', (size_t)(s.end - s.p));
    const bool is_whole = scan_nested(&s) || (!is_all && s.end - s.p < CUT_OFF);
    while (isspace(s.p[-1])) s.p--; // it went over the space after the value
    if (first == '{' && (!newline || s.p <= newline)) return JSON_OBJECTS;
    if (is_whole) return JSON_DOCUMENT;
    return JSON_BROKEN;
}

// The fields of a line that has been scanned, for a message: its fields are "a", "b".
enum { FIELDS_BYTES = 256 };
static void list_fields(const unsigned char *begin, const unsigned char *end,
                        char text[FIELDS_BYTES]) {
    cJSON *object = cJSON_ParseWithLength((const char *)begin, (size_t)(end - begin));
    snprintf(text, FIELDS_BYTES, "it is nested too deeply to list its fields");
    if (object) json_list_keys(object, text, FIELDS_BYTES);
    cJSON_Delete(object);
}

JsonLine json_line_text(char *line, int64_t n, const char *field, char **text, int64_t *length,
                        Error *err) {
    const unsigned char *begin = (unsigned char *)line, *end = begin + n;
    Scan s = {.p = begin, .end = end};
    skip_space(&s);
    if (s.p == end) return JSON_LINE_BLANK;

    const unsigned char *bad = utf8_error(begin, end);
    if (bad < end) {
        error_set(err, "byte %td of the line, 0x%02X, is not UTF-8", bad - begin + 1, *bad);
        return JSON_LINE_NOT_UTF8;
    }

    const unsigned char *value, *value_end;
    bool ok = scan_members(&s, field, &value, &value_end);
    if (ok) {
        skip_space(&s);
        ok = s.p == end || scan_fail(&s, "something after the object");
    }
    if (!ok) {
        error_set(err, "not valid JSON: %s at byte %td of the line", s.wrong, s.p - begin + 1);
        return JSON_LINE_NOT_JSON;
    }

    if (!value) {
        char fields[FIELDS_BYTES];
        list_fields(begin, end, fields);
        error_set(err, "has no field \"%s\"; --field NAME names another: %s", field, fields);
        return JSON_LINE_NO_FIELD;
    }
    if (*value != '"') {
        error_set(err, "field \"%s\" is not a string", field);
        return JSON_LINE_NO_STRING;
    }

    *text = line + (value + 1 - begin);
    *length = unescape((unsigned char *)*text, value_end - value - 2);
    if (*length >= 0) return JSON_LINE_OK;
    error_set(err, "field \"%s\" has a \\u escape that is half of a surrogate pair", field);
    return JSON_LINE_SURROGATE;
}
