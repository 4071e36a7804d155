// A short piece of text as a key of a hash table: for the cache of the encoder, and for the counts
// of words.
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { PIECE_KEY_BYTES = 31 }; // longer pieces are rare, and rarely the same

typedef struct {
    uint64_t words[4]; // the piece, zeros after it; its length in the last byte
} PieceKey;

// The key of 1 <= n <= PIECE_KEY_BYTES bytes, of which `readable` >= n may be touched.
static inline PieceKey piece_key(const char *piece, int64_t n, int64_t readable) {
    PieceKey key = {{0}};
    if (readable >= 16 && n <= 16) {
        uint64_t low, high;
        memcpy(&low, piece, sizeof low);
        memcpy(&high, piece + 8, sizeof high);
        if (n < 8) low &= (1ull << 8 * n) - 1;
        if (n <= 8)
            high = 0;
        else if (n < 16)
            high &= (1ull << (8 * n - 64)) - 1;
        key.words[0] = low;
        key.words[1] = high;
    } else {
        memcpy(key.words, piece, (size_t)n);
    }
    key.words[3] |= (uint64_t)n << 56;
    return key;
}

static inline uint64_t piece_hash(const PieceKey *key) {
    uint64_t h = key->words[0] ^ (key->words[1] * 0x9E3779B97F4A7C15u) ^
                 (key->words[2] * 0xC2B2AE3D27D4EB4Fu) ^ (key->words[3] * 0x165667B19E3779F9u);
    return ((h ^ h >> 32) * 0xD6E8FEB86659FD93u) >> 32;
}

static inline bool piece_key_is(const PieceKey *a, const PieceKey *b) {
    return a->words[0] == b->words[0] && a->words[1] == b->words[1] && a->words[2] == b->words[2] &&
           a->words[3] == b->words[3];
}
