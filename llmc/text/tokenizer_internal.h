// The parts of a Tokenizer, for the files of llmc/text and their tests: GPT-2's spelling of bytes, the inner loop of
// BPE, the pattern that cuts a text into pieces, and the vocabulary with the steps in which a reader of some format
// builds one. Every step checks its input, because it comes from a file.
#pragma once
#include "llmc/base/error.h"
#include "llmc/text/tokenizer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

// ------------------------------------------------------------------------------------------------------------ spelling

// GPT-2's spelling of bytes: each of the 256 is one printable character, so that tokens can be stored in JSON and in
// text files. Printable Latin-1 bytes stand for themselves, the 68 others for U+0100 and up, in order: a space is "Ġ".

uint32_t alphabet_character(unsigned char byte);
// The bytes that the n bytes of UTF-8 at text spell, into out (capacity n). False: some character spells no byte.
bool alphabet_decode(const char *text, size_t n, char *out, size_t *bytes);
// The spelling of n bytes into out (capacity 2 n); returns its length.
size_t alphabet_encode(const char *bytes, size_t n, char *out);

// ------------------------------------------------------------------------------------------------------------- merging

// The inner loop of byte-level BPE: of all adjacent pairs in a piece, the one of lowest rank (the leftmost of
// these) becomes one token, until no pair has a rule. Sennrich, Haddow, Birch 2016. Short pieces are scanned, long ones
// keep their pairs in a heap: n log n for a megabyte without a space. Owns the table of rules; does not handle bytes.

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

// False: no memory, or the pair has a rule already (*known is that rule, else NULL).
bool merge_table_add(MergeTable *t, MergeRule rule, const MergeRule **known, Error *err);
void merge_table_free(MergeTable *t);

static inline uint64_t merge_pair(int32_t left, int32_t right) { return (uint64_t)left << 32 | (uint32_t)right; }
// Its place in a hash table of 2^(64 - shift) slots, or the first free one after it.
static inline uint64_t pair_slot(uint64_t pair, int shift) { return (pair * 0x9E3779B97F4A7C15u) >> shift; }

// NULL: no such rule.
static inline const MergeRule *merge_table_find(const MergeTable *t, int32_t left, int32_t right) {
    if (t->count == 0) return 0;
    uint64_t pair = merge_pair(left, right), mask = (uint64_t)t->capacity - 1;
    for (uint64_t i = pair_slot(pair, t->shift);; i = (i + 1) & mask) {
        if (t->slots[i].pair == pair) return &t->slots[i];
        if (t->slots[i].pair == MERGE_NO_PAIR) return 0;
    }
}

// Merges the n < 2^32 tokens in place by the rules of rank < below, until `least` are left; returns how many remain.
int64_t merge_tokens(const MergeTable *t, int32_t *tokens, int64_t n, uint32_t below, int64_t least);

// -------------------------------------------------------------------------------------------------------------- pieces

// GPT-2's pattern: cuts a text into pieces, inside which pairs are merged.
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// PCRE2 says once what each character is (letter, number); the pattern itself is walked by hand, one look at each
// character: a megabyte of spaces takes no stack and no backtracking. A byte that belongs to no well-formed UTF-8
// sequence is a character of its own, neither letter nor number nor space, as U+FFFD is.

// The kinds of characters that the pattern tells apart.
typedef enum { CHAR_OTHER, CHAR_LETTER, CHAR_NUMBER, CHAR_SPACE } CharKind;

// The kind of every code point below, one byte each; there is nothing but CHAR_OTHER above.
enum { CHAR_TABLE_SIZE = 0x40000 };

// A new table, malloced. Letters and numbers are those of Unicode 16 whatever version this PCRE2 knows, up to 16.
uint8_t *pieces_char_table(Error *err);

// The length of the first piece of text[0..n), n >= 1.
int64_t pieces_next(const uint8_t *table, const char *text, int64_t n);

// Does a piece end between text[m-1] and text[m] whatever comes before and after the n bytes at text? 0 < m < n.
bool pieces_always_cut(const uint8_t *table, const char *text, int64_t n, int64_t m);

// --------------------------------------------------------------------------------------------------------------- cache

// Pieces and their tokens, as they were merged before: text repeats its words. A fixed number of entries of one cache
// line each, two candidates per piece; the older of the two is replaced. Never grows.

enum {
    CACHE_PIECE_BYTES = 31, // longer pieces are rare, and rarely the same
    CACHE_PIECE_TOKENS = 7,
    CACHE_ENTRIES = 1 << 16, // 4 MB. Half of it: 5 to 30% slower on English; twice of it: 5% slower (L2)
};

typedef struct {
    uint64_t words[4]; // the piece, zeros after it; its length in the last byte
} PieceKey;

typedef struct {
    PieceKey key; // all zero: free
    int32_t tokens[CACHE_PIECE_TOKENS];
    int32_t count;
} CacheEntry;

// The key of 1 <= n <= CACHE_PIECE_BYTES bytes, of which `readable` >= n may be touched.
static inline PieceKey piece_key(const char *piece, int64_t n, int64_t readable) {
    PieceKey key = {{0}};
    if (readable >= 16 && n <= 16) {
        uint64_t low, high;
        memcpy(&low, piece, sizeof low);
        memcpy(&high, piece + 8, sizeof high);
        if (n < 8) low &= (1ull << 8 * n) - 1;
        high = n <= 8 ? 0 : n == 16 ? high : high & ((1ull << (8 * n - 64)) - 1);
        key.words[0] = low, key.words[1] = high;
    } else {
        memcpy(key.words, piece, (size_t)n);
    }
    key.words[3] |= (uint64_t)n << 56;
    return key;
}

static inline uint64_t piece_hash(const PieceKey *key) {
    uint64_t h = key->words[0] ^ (key->words[1] * 0x9E3779B97F4A7C15u) ^ (key->words[2] * 0xC2B2AE3D27D4EB4Fu) ^
                 (key->words[3] * 0x165667B19E3779F9u);
    return ((h ^ h >> 32) * 0xD6E8FEB86659FD93u) >> 32;
}

// The first of the two entries that a key may have; the other is the one after it.
static inline CacheEntry *cache_find_set(CacheEntry *cache, const PieceKey *key) {
    return &cache[piece_hash(key) & (CACHE_ENTRIES - 2)];
}

static inline int piece_key_is(const PieceKey *a, const PieceKey *b) {
    return a->words[0] == b->words[0] && a->words[1] == b->words[1] && a->words[2] == b->words[2] &&
           a->words[3] == b->words[3];
}

// ---------------------------------------------------------------------------------------------------------- vocabulary

// Bounds on what a file may claim. The largest vocabulary in use has 262,144 tokens, GPT-2's longest token 128 bytes.
enum { MAX_TOKENS = 1 << 20, MAX_TOKEN_BYTES = 1024 };
// The largest tokenizer.json in use has 33 MB; one of MAX_TOKENS, trained on Chinese, may have 90.
enum { MAX_TOKENIZER_BYTES = 128 << 20 };

#define END_OF_TEXT "<|endoftext|>"

typedef struct {
    size_t offset; // of its spelling in Tokenizer.bytes
    uint32_t length;
    bool known;      // false: the number is free so far
    bool ordinary;   // made from bytes by merging: found by vocabulary_find
    bool added;      // found in texts by its spelling before the pattern is applied; listed in added_tokens
    bool special;    // likewise, but only in prompts
    bool normalized; // added: looked for after those that are not, as Hugging Face does
} Token;

struct Tokenizer {
    char *name; // as tokenizer_name
    Token *tokens;
    int32_t count, token_capacity;
    char *bytes;
    size_t byte_count, byte_capacity;
    int32_t *by_bytes; // hash table of the ordinary tokens, at most half full; -1: free
    int64_t by_bytes_capacity, ordinary_count;
    int32_t byte_tokens[256];
    MergeTable merges;
    bool whole_pieces; // a piece that is a token becomes it, whatever the merges say
    bool by_rank;      // the numbers are ranks, and the merges follow from them
    int32_t eot;
    int32_t *added_tokens;    // by first byte, then longest first
    int32_t added_begin[257]; // the place in added_tokens where the tokens with this first byte begin
    bool all_added_special;
    uint8_t *char_table;
};

// A tokenizer without tokens; name is copied.
Tokenizer *vocabulary_new(const char *name, Error *err);

// Adds a token. Refuses numbers out of range or taken, a spelling that is empty, too long, or that of another ordinary
// token.
bool vocabulary_add(Tokenizer *t, int64_t number, const char *bytes, size_t length, bool ordinary, Error *err);

// Makes a known token, or a new number, an added one.
bool vocabulary_add_added(Tokenizer *t, int64_t number, const char *text, bool special, bool normalized, Error *err);

// The ordinary token of these bytes, -1 if there is none.
int32_t vocabulary_find(const Tokenizer *t, const char *bytes, size_t length);

// left + right -> the token of both their bytes. Refuses a pair that is there already and a result that is no token.
bool vocabulary_merge(Tokenizer *t, int32_t left, int32_t right, uint32_t rank, Error *err);

// All merges of a vocabulary whose numbers are ranks: any two tokens that together make a token, lowest first.
bool vocabulary_merge_by_rank(Tokenizer *t, Error *err);

// Every token of several bytes must be the result of a merge, unless it is a special one: where merges are missing,
// texts become other tokens.
bool vocabulary_check_merges(const Tokenizer *t, Error *err);

// Checks the whole (no number is free, every byte has a token) and builds the tables for encoding.
// Last step.
bool vocabulary_finish(Tokenizer *t, Error *err);

// Spelling for messages: what is not printable ASCII as \xNN, cut to the buffer. Returns buf.
const char *vocabulary_show(const char *bytes, size_t length, char *buf, size_t size);

// The readers, one for each family of files. text: the file's content. All messages begin with its path.
Tokenizer *tokenizer_read_json(const char *path, const char *text, size_t bytes,
                               Error *err); // tokenizer.json, vocab.json
Tokenizer *tokenizer_read_ranks(const char *path, const char *text, size_t bytes, Error *err); // tiktoken
Tokenizer *tokenizer_read_llmc(const char *path, const char *text, size_t bytes, Error *err);  // gpt2_tokenizer.bin

// ------------------------------------------------------------------------------------------------------------ settings

// Compares the tokenizer with what transformers reads next to its file at path (tokenizer_settings.c).
bool tokenizer_check_settings(const Tokenizer *t, const char *path, Error *err);
