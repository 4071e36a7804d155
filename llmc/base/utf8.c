// UTF-8 that arrives in pieces. See utf8.h.
// Knows the table of RFC 3629, section 4 (no overlong forms, no surrogates, nothing above U+10FFFF) as far as it
// decides whether an unfinished character can still be finished. Never judges whole text.
#include "llmc/base/utf8.h"

#include <stdbool.h>
#include <string.h>

// Bytes of the character that this one begins; 1 where it begins none or is one.
static int length_by_lead(unsigned char lead) {
    return lead >= 0xC2 && lead <= 0xDF ? 2 : lead >= 0xE0 && lead <= 0xEF ? 3 : lead >= 0xF0 && lead <= 0xF4 ? 4 : 1;
}

// Can these n bytes be the beginning of a longer character?
static bool is_unfinished(const unsigned char *s, int n) {
    if (length_by_lead(s[0]) <= n) return false;
    const unsigned char low = s[0] == 0xE0 ? 0xA0 : s[0] == 0xF0 ? 0x90 : 0x80;
    const unsigned char high = s[0] == 0xED ? 0x9F : s[0] == 0xF4 ? 0x8F : 0xBF;
    if (n > 1 && (s[1] < low || s[1] > high)) return false;
    return n < 3 || (s[2] >= 0x80 && s[2] <= 0xBF);
}

int64_t utf8_stream_push(Utf8Stream *s, const char *bytes, int64_t n, char *out) {
    memcpy(out, s->held, (size_t)s->count);
    if (n > 0) memcpy(out + s->count, bytes, (size_t)n);
    n += s->count;
    s->count = 0;
    // No byte that begins a character stands inside another one: at most one of these ends of the text is unfinished.
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
