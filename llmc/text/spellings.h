// The spellings of added tokens in a text. One automaton finds all of them in one pass (Aho,
// Corasick, "Efficient String Matching", 1975), so that the time does not depend on how many there
// are, nor on how much of them a text repeats.
#pragma once
#include <stdbool.h>
#include <stdint.h>

enum { SPELLING_MAX_BYTES = 1024 };

typedef struct {
    const char *bytes;
    int32_t length; // 1 to SPELLING_MAX_BYTES
    int32_t token;
} Spelling;

typedef struct Spellings Spellings;

// NULL if n is 0. Of two equal spellings the first counts. The bytes are not kept.
Spellings *spellings_new(const Spelling *list, int64_t n);
void spellings_free(Spellings *s); // NULL is fine

// The longest spelling at the first place of the text where one begins: returns its token, -1 if
// there is none.
int32_t spellings_find(const Spellings *s, const char *text, int64_t n, int64_t *at);

// Sets crossed[m - low] for each place m of [low, high) that a spelling may cross, as far as the n
// bytes show: one that begins before m and ends after it, or that the end of the text cuts off.
// high - low <= SPELLINGS_WINDOW, high <= n.
enum { SPELLINGS_WINDOW = 4096 };
void spellings_mark_crossed(const Spellings *s, const char *text, int64_t n, int64_t low,
                            int64_t high, bool *crossed);
