// See corpus_split.h. The hash that decides on a short document is XXH3 of its bytes. A cut is
// tried at every start of a line in turn, because at some (a line indented by several spaces) the
// tokenizer would have made another token of the newline.
#include "llmc/text/corpus_split.h"

#include <string.h>
#include <xxhash.h>

const char *const corpus_side_names[CORPUS_SIDES] = {"train", "val"};

CorpusSide corpus_side(const char *text, int64_t n, double val_fraction) {
    double uniform = (double)(XXH3_64bits(text, (size_t)n) >> 11) * 0x1p-53; // in [0, 1)
    if (uniform < val_fraction) return CORPUS_VAL;
    return CORPUS_TRAIN;
}

int64_t corpus_cut_target(int64_t size, double val_fraction) {
    int64_t tail = (int64_t)((double)size * val_fraction);
    if (corpus_is_one_sided(val_fraction)) return size;
    if (tail < 1) tail = 1;
    if (tail > size - 1) tail = size - 1; // a single byte is for training
    return size - tail;
}

int64_t corpus_cut(const Tokenizer *t, const char *text, int64_t n, int64_t from) {
    if (n - from > CUT_SEARCH) n = from + CUT_SEARCH;
    TokenizerCuts cuts = tokenizer_cuts(t, text, n);
    const char *end = text + n - 1;
    for (const char *at = text + from - 1; (at = memchr(at, '\n', (size_t)(end - at))); at++)
        if (tokenizer_may_cut(&cuts, at + 1 - text)) return at + 1 - text;
    while (from < n - 1 && ((unsigned char)text[from] & 0xC0) == 0x80) from++; // inside a character
    for (int64_t at = from; at > 0; at--)
        if (tokenizer_may_cut(&cuts, at)) return at;
    for (int64_t at = from + 1; at < n; at++)
        if (tokenizer_may_cut(&cuts, at)) return at;
    return from;
}

int64_t corpus_character_end(const char *text, int64_t n) {
    // A character has at most three bytes after its first; a longer run is not UTF-8 and may be cut
    // anywhere.
    for (int64_t at = n - 1; at > 0 && at >= n - 4; at--) {
        unsigned char c = (unsigned char)text[at];
        if (c < 0x80) return n;
        if (c < 0xC0) continue;
        int length = 2;
        if (c >= 0xE0) length = 3;
        if (c >= 0xF0) length = 4;
        if (at + length <= n) return n;
        return at;
    }
    return n;
}
