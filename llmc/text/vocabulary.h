// The parts of a Tokenizer: its tokens, merges and table of characters, and the steps in which a
// reader of some format builds them. Every step checks its input, because it comes from a file.
#pragma once
#include "llmc/base/error.h"
#include "llmc/text/merges.h"
#include "llmc/text/pieces.h"
#include "llmc/text/spellings.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Bounds on what a file may claim. The largest vocabulary in use has 262,144 tokens, GPT-2's
// longest token 128 bytes.
enum { MAX_TOKENS = 1 << 20, MAX_TOKEN_BYTES = SPELLING_MAX_BYTES };
// The largest tokenizer.json in use has 33 MB; one of MAX_TOKENS, trained on Chinese, may have 90.
enum { MAX_TOKENIZER_BYTES = 128 << 20 };

#define END_OF_TEXT "<|endoftext|>"

typedef struct {
    size_t offset; // of its spelling in Tokenizer.bytes
    uint32_t length;
    bool known;      // false: the number is free so far
    bool ordinary;   // made from bytes by merging: found by vocabulary_find
    bool added;      // found in texts by its spelling before the pattern is applied
    bool special;    // likewise, but only in prompts
    bool normalized; // added: looked for after those that are not, as Hugging Face does
} Token;

// The order in which added tokens are looked for: first those with "normalized": false, then the
// others. There is no normalizer, but where two overlap, this order is Hugging Face's.
typedef enum { ADDED_NOT_NORMALIZED, ADDED_NORMALIZED, NUM_ADDED_PASSES } AddedPass;

typedef struct Tokenizer {
    char *name; // as tokenizer_name
    char *path; // as tokenizer_path; NULL: built in
    Token *tokens;
    int32_t count, token_capacity;
    char *bytes;
    int64_t byte_count, byte_capacity;
    int32_t *by_bytes; // hash table of the ordinary tokens, at most half full; -1: free
    int64_t by_bytes_capacity, ordinary_count;
    int32_t byte_tokens[256];
    MergeTable merges;
    bool whole_pieces;  // a piece that is a token becomes it, whatever the merges say
    bool by_rank;       // the numbers are ranks, and the merges follow from them
    bool expects_nfc;   // tokenizer_expects_nfc
    int32_t eot, begin; // -1: none. begin: a template puts it before every text
    Spellings *added[NUM_ADDED_PASSES][2]; // of each pass; [1]: also of special tokens
    bool all_added_special;
    Pattern pattern;     // cuts texts into pieces
    uint8_t *char_table; // char_kinds.h
} Tokenizer;

// A tokenizer without tokens, for tokenizer_free. name: a format, "byte-level BPE of %s".
Tokenizer *vocabulary_new(const char *name, ...) __attribute__((format(printf, 1, 2)));

// Adds a token. Refuses numbers out of range or taken, a spelling that is empty, too long, or that
// of another ordinary token.
bool vocabulary_add(Tokenizer *t, int64_t number, const char *bytes, size_t length, bool ordinary,
                    Error *err);

// Makes a known token, or a new number, an added one.
bool vocabulary_add_added(Tokenizer *t, int64_t number, const char *text, bool special,
                          bool normalized, Error *err);

// The special token with this spelling, -1 if there is none.
int32_t vocabulary_find_special(const Tokenizer *t, const char *text);

// The ordinary token of these bytes, -1 if there is none.
int32_t vocabulary_find(const Tokenizer *t, const char *bytes, size_t length);

// left + right -> the token of both their bytes. Refuses a pair that is there already and a result
// that is no token.
bool vocabulary_merge(Tokenizer *t, int32_t left, int32_t right, uint32_t rank, Error *err);

// Every token of several bytes must be the result of a merge, unless it is a special one: where
// merges are missing, texts become other tokens.
bool vocabulary_check_merges(const Tokenizer *t, Error *err);

// Merges the bytes of a token by the rules of rank < below; returns how many parts are left of it.
int64_t vocabulary_merge_bytes(const Tokenizer *t, int32_t token, uint32_t below,
                               int32_t parts[MAX_TOKEN_BYTES]);

// Checks the whole (no number is free, every byte has a token) and builds the tables for encoding.
// Last step.
bool vocabulary_finish(Tokenizer *t, Error *err);

// Spelling for messages: what is not printable ASCII as \xNN, cut to the buffer. Returns buf.
const char *vocabulary_show(const char *bytes, size_t length, char *buf, size_t size);

// The next line of a text from *at on, without its newline; false: there is none.
bool vocabulary_line(const char *text, size_t n, size_t *at, const char **line, size_t *length);
