// Text that arrives in pieces which know nothing of characters, such as tokens: passes whole UTF-8 characters on.
// A character whose bytes come in several pieces is held back until its last one is there; bytes that are no UTF-8 are
// passed on as soon as that is certain. Nothing is ever lost, changed or reordered. Allocates nothing.
#pragma once
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { UTF8_MOST_HELD = 3 }; // a character has up to four bytes

typedef struct {
    char held[UTF8_MOST_HELD];
    int count;
} Utf8Stream; // all zero: nothing is held back

// Takes n bytes; what can be shown now goes to out (room for n + UTF8_MOST_HELD). Returns how many bytes that is.
int64_t utf8_stream_push(Utf8Stream *s, const char *bytes, int64_t n, char *out);
// The text is over: what is still held back, an unfinished character, goes to out as it is.
int64_t utf8_stream_end(Utf8Stream *s, char *out);

#ifdef __cplusplus
}
#endif
