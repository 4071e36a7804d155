// How far a mistyped word is from a name.
#pragma once

// Damerau-Levenshtein distance (optimal string alignment): insertions, deletions, substitutions and
// swaps of neighbours, each 1; capitals do not matter. Words of at most EDIT_LONGEST bytes.
// Damerau, "A technique for computer detection and correction of spelling errors", 1964.
enum { EDIT_LONGEST = 32 };
int edit_distance(const char *a, const char *b);
