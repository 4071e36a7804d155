// UTF-8, see utf8.h. For streams it uses the table of RFC 3629, section 4 (no overlong forms, no
// surrogates, nothing above U+10FFFF), only to decide whether an unfinished character can still be
// completed.
#include "llmc/base/utf8.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

const unsigned char *utf8_error(const unsigned char *p, const unsigned char *end) {
    while (p < end) {
        uint64_t eight;
        for (; end - p >= 8; p += 8) {
            memcpy(&eight, p, sizeof eight);
            if (eight & 0x8080808080808080u) break;
        }
        while (p < end && *p < 0x80) p++;
        while (p < end && *p >= 0x80) {
            uint32_t c;
            int length = utf8_decode(p, end - p, &c);
            if (length == 0) return p;
            p += length;
        }
    }
    return end;
}

// Whether these n bytes can be the beginning of a longer character.
static bool is_unfinished(const unsigned char *s, int n) {
    if (s[0] < 0xC2 || s[0] > 0xF4) return false; // begins none, or is itself one
    if (n >= 2 + (s[0] >= 0xE0) + (s[0] >= 0xF0)) return false;
    unsigned char low = 0x80, high = 0xBF; // of the second byte
    if (s[0] == 0xE0) low = 0xA0;
    if (s[0] == 0xF0) low = 0x90;
    if (s[0] == 0xED) high = 0x9F;
    if (s[0] == 0xF4) high = 0x8F;
    if (n > 1 && (s[1] < low || s[1] > high)) return false;
    return n < 3 || (s[2] >= 0x80 && s[2] <= 0xBF);
}

int64_t utf8_stream_push(Utf8Stream *s, const char *bytes, int64_t n, char *out) {
    memcpy(out, s->held, (size_t)s->count);
    if (n > 0) memcpy(out + s->count, bytes, (size_t)n);
    n += s->count;
    s->count = 0;
    // No byte that begins a character occurs inside another one, so at most one of these suffixes
    // is unfinished.
    for (int k = 1; k <= UTF8_MOST_HELD && k <= n; k++)
        if (is_unfinished((const unsigned char *)out + n - k, k)) s->count = k;
    memcpy(s->held, out + n - s->count, (size_t)s->count);
    return n - s->count;
}

int64_t utf8_stream_end(Utf8Stream *s, char *out) {
    const int n = s->count;
    memcpy(out, s->held, (size_t)n);
    s->count = 0;
    return n;
}

int utf8_visible_length(const char *text, size_t n) {
    const unsigned char c = (unsigned char)text[0];
    const int length = utf8_length(text, n);
    // U+0080..U+009F are control characters too (0x9B is "escape [" in one byte); UTF-8: C2 80 ..
    // C2 9F
    const bool control =
        c < 0x20 || c == 0x7F || (c == 0xC2 && length == 2 && (unsigned char)text[1] < 0xA0);
    if (control) return 0;
    return length;
}

size_t utf8_visible(const char *text, size_t n, char out[UTF8_VISIBLE]) {
    const int length = utf8_visible_length(text, n);
    if (length == 0) {
        snprintf(out, UTF8_VISIBLE, "\\x%02X", (unsigned char)text[0]);
        return 1; // the second byte of a two-byte control character is then shown as a stray byte
    }
    memcpy(out, text, (size_t)length);
    out[length] = '\0';
    return (size_t)length;
}

void utf8_make_visible(const char *text, char *out, size_t size) {
    char shown[UTF8_VISIBLE];
    size_t left = strlen(text), used = 0;
    for (size_t taken; left > 0; text += taken, left -= taken) {
        taken = utf8_visible(text, left, shown);
        const size_t length = strlen(shown);
        if (used + length >= size) break;
        memcpy(out + used, shown, length);
        used += length;
    }
    out[used] = '\0';
}
