// The inner loop of byte-level BPE: of all adjacent pairs in a piece, the one of lowest rank (the
// leftmost of these) becomes one token, until no pair has a rule. Sennrich, Haddow, Birch 2016.
// Short pieces are scanned, long ones keep their pairs in a heap: n log n for a megabyte without a
// space. Owns the table of rules; does not handle bytes.
#pragma once
#include "llmc/base/error.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    uint64_t pair;  // left << 32 | right
    uint32_t rank;  // lower is merged first
    int32_t merged; // the token of both
} MergeRule;

// A hash table, at most half full.
typedef struct {
    MergeRule *slots; // pair == MERGE_NO_PAIR: free
    int64_t count, capacity;
    int shift; // 64 - log2(capacity)
} MergeTable;

#define MERGE_NO_PAIR UINT64_MAX

// False: the pair has a rule already, *known.
bool merge_table_add(MergeTable *t, MergeRule rule, const MergeRule **known);
void merge_table_free(MergeTable *t);

static inline uint64_t merge_pair(int32_t left, int32_t right) {
    return (uint64_t)left << 32 | (uint32_t)right;
}
// Returns the place of a pair in a hash table of 2^(64 - shift) slots; taken slots are followed by
// the next free one.
static inline uint64_t pair_slot(uint64_t pair, int shift) {
    return (pair * 0x9E3779B97F4A7C15u) >> shift;
}

// NULL: no such rule.
static inline const MergeRule *merge_table_find(const MergeTable *t, int32_t left, int32_t right) {
    if (t->count == 0) return 0;
    uint64_t pair = merge_pair(left, right), mask = (uint64_t)t->capacity - 1;
    for (uint64_t i = pair_slot(pair, t->shift);; i = (i + 1) & mask) {
        if (t->slots[i].pair == pair) return &t->slots[i];
        if (t->slots[i].pair == MERGE_NO_PAIR) return 0;
    }
}

// Merges the n < 2^32 tokens in place by the rules of rank < below, until `least` > 0 are left;
// returns how many remain.
int64_t merge_tokens(const MergeTable *t, int32_t *tokens, int64_t n, uint32_t below,
                     int64_t least);
