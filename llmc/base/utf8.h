// UTF-8, decoded one character at a time, for text that may contain anything: malformed bytes are
// detected, and never read past. Text that arrives in pieces which ignore character boundaries,
// such as tokens, is passed on in whole characters. What is printed is UTF-8 whatever it was:
// utf8_visible.
#pragma once
#include <stddef.h>
#include <stdint.h>

// The character at p, of n >= 1 bytes: its length in bytes, or 0 if no well-formed sequence begins
// there (Unicode 15, table 3-7: no overlong forms, no surrogates, nothing above U+10FFFF).
static inline int utf8_decode(const unsigned char *p, int64_t n, uint32_t *code_point) {
    unsigned char lead = p[0];
    if (lead < 0x80) {
        *code_point = lead;
        return 1;
    }
    if (lead < 0xC2 || lead > 0xF4) return 0;
    const int length = 2 + (lead >= 0xE0) + (lead >= 0xF0);
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
    const int length = 1 + (c >= 0x80) + (c >= 0x800) + (c >= 0x10000);
    for (int i = length - 1; i > 0; i--, c >>= 6) out[i] = (char)(0x80 | (c & 0x3F));
    out[0] = (char)(length == 1 ? c : ((0xF0u << (4 - length)) & 0xFF) | c);
    return length;
}

// The length of the character at text, 0 if there is none (n = 0 included).
static inline int utf8_length(const char *text, size_t n) {
    uint32_t c;
    if (n == 0) return 0;
    return utf8_decode((const unsigned char *)text, (int64_t)n, &c);
}

// The first byte before end that is not UTF-8; end if there is none.
const unsigned char *utf8_error(const unsigned char *p, const unsigned char *end);

// For text that arrives in pieces. A character whose bytes are spread over several pieces is held
// back until it is complete; bytes that are not UTF-8 are passed on as soon as that is certain.
// Nothing is ever lost, changed or reordered. Allocates nothing.
enum { UTF8_MOST_HELD = 3 }; // a character has up to four bytes

typedef struct {
    char held[UTF8_MOST_HELD];
    int count;
} Utf8Stream; // all zero: nothing is held back

// Takes n bytes and writes the bytes that can be shown now to out (capacity n + UTF8_MOST_HELD).
// Returns their number.
int64_t utf8_stream_push(Utf8Stream *s, const char *bytes, int64_t n, char *out);
// Ends the text: the bytes still held back, an unfinished character, are written to out unchanged.
int64_t utf8_stream_end(Utf8Stream *s, char *out);

// Bytes of the first character, if a terminal shows it; 0: a control character, or not UTF-8.
int utf8_visible_length(const char *text, size_t n);
// The first character of n >= 1 bytes as it may be printed: itself or, of a control character and
// of a byte that is not UTF-8, "\x1B", because text from outside must not move the cursor. Also
// newlines: what has lines cuts them first. Writes it to out, terminated, and returns the number of
// bytes of text that it stands for.
enum { UTF8_VISIBLE = 5 };
size_t utf8_visible(const char *text, size_t n, char out[UTF8_VISIBLE]);
// The same for all of a terminated text, as far as it fits into out, in whole characters.
void utf8_make_visible(const char *text, char *out, size_t size);
