// The patterns that cut a text into pieces, inside which pairs are merged. They are regular
// expressions, but walked by hand: each character is looked at a few times at most, so a megabyte
// of spaces takes no stack and no backtracking, and no text makes a walk fail. test/unit/test_bpe.c
// compares the walks with PCRE2's own matching.
#pragma once
#include "llmc/text/char_kinds.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum {
    PATTERN_GPT2,
    PATTERN_STARCODER, // each number is a piece; GPT-2's between them. Also of SmolLM
    PATTERN_LLAMA3,    // also of cl100k
    PATTERN_QWEN2,     // also of Qwen3
    PATTERN_O200K,
    NUM_PATTERNS
} Pattern;

typedef struct {
    const char *name;  // "llama3", as after --tokenizer train:N:
    const char *regex; // as in tokenizer.json
    // tokenizer.ggml.pre of a GGUF file: llama.cpp's name; NULL: it has no such split
    const char *pre;
} PatternFacts;
extern const PatternFacts pattern_facts[NUM_PATTERNS];
bool pattern_named(const char *name, Pattern *pattern, Error *err);

// The length of the first piece of text[0..n), n >= 1.
int64_t pieces_next(const uint8_t *table, Pattern pattern, const char *text, int64_t n);

// Tells whether a piece ends between text[m-1] and text[m] whatever comes before and after the n
// bytes at text, and whether the pieces before it are the same if the text ends there. 0 < m < n.
bool pieces_always_cut(const uint8_t *table, Pattern pattern, const char *text, int64_t n,
                       int64_t m);
