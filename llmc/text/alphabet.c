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

bool alphabet_decode(const char *text, size_t n, char *out, size_t *bytes) {
    *bytes = 0;
    for (size_t at = 0; at < n;) {
        uint32_t c, byte = UINT32_MAX; // a character that spells no byte
        const int length = utf8_decode((const unsigned char *)text + at, (int64_t)(n - at), &c);
        if (length == 0) return false;
        if (c < FIRST_RANGE && alphabet_character((unsigned char)c) == c) byte = c;
        if (c >= FIRST_RANGE && c < SECOND_RANGE) byte = c - FIRST_RANGE;
        if (c >= SECOND_RANGE && c < SOFT_HYPHEN) byte = c - SECOND_RANGE + 127;
        if (c == SOFT_HYPHEN) byte = 173;
        if (byte > UINT8_MAX) return false;
        out[(*bytes)++] = (char)byte;
        at += (size_t)length;
    }
    return true;
}

size_t alphabet_encode(const char *bytes, size_t n, char *out) {
    size_t used = 0;
    for (size_t i = 0; i < n; i++)
        used += (size_t)utf8_encode(alphabet_character((unsigned char)bytes[i]), out + used);
    return used;
}
