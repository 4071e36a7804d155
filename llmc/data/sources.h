// The corpora of a mixture, opened: a set of shards for each, and what they have in common. One
// corpus is a mixture of one, and is read as if there were no mixtures.
#pragma once
#include "llmc/data/mixture.h"
#include "llmc/data/shards.h"

typedef struct {
    Mixture mixture;
    ShardSet sets[MIXTURE_MAX]; // of each source
    int64_t T;
    int64_t num_windows, num_tokens; // of all
    int num_shards;                  // 0: not opened
    int64_t vocab, eot; // as in ShardSet; sources that contradict each other are refused
    int token_bytes;
    uint64_t fingerprint, contents; // those of the set, or of those of all sets
} Sources;

// Opens the sources of a text as mixture.h describes it. False, with the source in the message: a
// text, pattern or file that is refused; corpora of different tokenizers; a file that belongs to
// two of them.
bool sources_open(Sources *s, const char *text, int64_t T, Error *err);
void sources_close(Sources *s); // also after a failed sources_open, and of one that is all zero
// shards_in_both for the files of all sources; other only where both have one source.
ShardsInBoth sources_in_both(const Sources *a, const Sources *b);
