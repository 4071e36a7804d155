// The division of a corpus into training and validation.
//
// The side of a document's text depends only on the document, so a growing corpus moves none of its
// older documents from one side to the other:
//   up to SHORT_DOCUMENT bytes: to validation as a whole if the hash of its bytes falls below
//     val_fraction (equal documents stay together);
//   longer: the last part, a share of val_fraction, goes to validation, cut where a line ends
// A corpus of few, short documents is cut everywhere (cut_all), because chance may leave one side
// without any.
#pragma once
#include "llmc/text/tokenizer.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum { CORPUS_TRAIN, CORPUS_VAL, CORPUS_SIDES } CorpusSide;
extern const char *const corpus_side_names[CORPUS_SIDES]; // "train", "val"

// In bytes. CUT_SEARCH: how far after its target a cut is searched.
enum { SHORT_DOCUMENT = 64 * 1024, CUT_SEARCH = 64 * 1024 };

// Tells whether all of the corpus goes to one side.
static inline bool corpus_is_one_sided(double val_fraction) {
    return val_fraction <= 0 || val_fraction >= 1;
}
// of a document that is not cut
CorpusSide corpus_side(const char *text, int64_t n, double val_fraction);
// Returns the target of the cut in a document of `size` bytes: at least one byte from either end;
// size if it has one byte, or if all of the corpus goes to one side.
int64_t corpus_cut_target(int64_t size, double val_fraction);
// Returns the cut, in text[1..n): the first start of a line at or after `from` (0 < from < n) where
// the tokens are the same on both sides as in the whole; failing that such a place near `from`;
// failing that the end of a character.
int64_t corpus_cut(const Tokenizer *t, const char *text, int64_t n, int64_t from);
// Returns the last place in text[1..n] where a UTF-8 character ends: for blocks in which the
// tokenizer has no safe place.
int64_t corpus_character_end(const char *text, int64_t n);
