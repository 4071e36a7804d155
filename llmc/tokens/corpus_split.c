// See corpus_split.h. The hash is XXH3 of the document's bytes; a cut is tried at every start of a line in turn,
// because after some (a line that begins with a space, an empty one) the tokenizer would have made another token of the
// newline.
#include "llmc/tokens/corpus_split.h"

#include <string.h>
#include <xxhash.h>

const char *const corpus_side_names[CORPUS_SIDES] = {"train", "val"};

CorpusSide corpus_side(const char *text, int64_t n, double val_fraction) {
    double uniform = (double)(XXH3_64bits(text, (size_t)n) >> 11) * 0x1p-53; // in [0, 1)
    return uniform < val_fraction ? CORPUS_VAL : CORPUS_TRAIN;
}

int64_t corpus_cut_target(int64_t size, double val_fraction) {
    int64_t tail = (int64_t)((double)size * val_fraction);
    if (tail < 1) tail = 1;
    if (tail > size - 1) tail = size - 1; // a single byte is for training
    return size - tail;
}

static bool is_inside_character(const char *text, int64_t at) { return ((unsigned char)text[at] & 0xC0) == 0x80; }

// The last safe place up to the one behind the character at `at`. The tokenizer answers for texts that may go on in any
// way; so it must see what follows a cut to call it safe.
static int64_t safe_near(const Tokenizer *t, const char *text, int64_t n, int64_t at) {
    do at++;
    while (at < n && is_inside_character(text, at));
    return tokenizer_safe_cut(t, text, at);
}

int64_t corpus_cut(const Tokenizer *t, const char *text, int64_t n, int64_t from) {
    if (n - from > CUT_SEARCH) n = from + CUT_SEARCH;
    for (int64_t at = from - 1; at + 1 < n; at++) {
        const char *newline = memchr(text + at, '\n', (size_t)(n - 1 - at));
        if (!newline) break;
        at = newline - text;
        if (at + 1 >= from && safe_near(t, text, n, at + 1) >= at + 1) return at + 1;
    }
    while (from < n - 1 && is_inside_character(text, from)) from++;
    int64_t safe = safe_near(t, text, n, from);
    return safe > 0 && safe < from ? safe : from;
}

int64_t corpus_character_end(const char *text, int64_t n) {
    // A character has at most three bytes behind its first; what has more is no UTF-8 and may be cut anywhere.
    for (int64_t at = n - 1; at > 0 && at >= n - 4; at--) {
        unsigned char c = (unsigned char)text[at];
        if (c < 0x80) return n;
        if (c < 0xC0) continue;
        int length = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : 2;
        return at + length <= n ? n : at;
    }
    return n;
}
