// See alphabet.h. The bytes that are not printable, in order: 0..32, 127..160, 173.
#include "llmc/text/alphabet.h"

#include "llmc/base/utf8.h"

enum { FIRST_RANGE = 0x100, SECOND_RANGE = FIRST_RANGE + 33, SOFT_HYPHEN = SECOND_RANGE + 34 };

uint32_t alphabet_character(unsigned char byte) {
    if (byte <= 32) return FIRST_RANGE + byte;
    if (byte >= 127 && byte <= 160) return SECOND_RANGE + (uint32_t)(byte - 127);
    if (byte == 173) return SOFT_HYPHEN;
    return byte;
}

// -1: the character spells no byte.
static int byte_of(uint32_t c) {
    if (c < FIRST_RANGE) return alphabet_character((unsigned char)c) == c ? (int)c : -1;
    if (c < SECOND_RANGE) return (int)(c - FIRST_RANGE);
    if (c < SOFT_HYPHEN) return (int)(c - SECOND_RANGE + 127);
    if (c == SOFT_HYPHEN) return 173;
    return -1;
}

bool alphabet_decode(const char *text, size_t n, char *out, size_t *bytes) {
    *bytes = 0;
    for (size_t at = 0; at < n;) {
        uint32_t c;
        int length = utf8_decode((const unsigned char *)text + at, (int64_t)(n - at), &c);
        int byte = -1;
        if (length > 0) byte = byte_of(c);
        if (byte < 0) return false;
        out[(*bytes)++] = (char)byte;
        at += (size_t)length;
    }
    return true;
}

size_t alphabet_encode(const char *bytes, size_t n, char *out) {
    size_t used = 0;
    for (size_t i = 0; i < n; i++) used += (size_t)utf8_encode(alphabet_character((unsigned char)bytes[i]), out + used);
    return used;
}
