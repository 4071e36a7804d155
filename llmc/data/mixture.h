// The corpora that a run reads, their shares, and the corpus that each window comes from.
//
//   -i 'web/train_*.bin:0.7,code/train_*.bin:0.3'
//
// Each source is a glob pattern, a colon and its weight; commas separate the sources. A share is a
// weight over the sum of all. A text without weights is one source, and so is a text that as a
// whole is the name or the pattern of files that exist, whatever commas and colons it has. Within a
// mixture a comma in a path is written \, (which glob(7) reads as a comma), and the last colon of a
// part is the one before the weight.
//
// The order is that of Tijdeman, "The chairman assignment problem" (1980): of the sources that are
// behind their share by 1/(2k-2) of a window or more, the one that would exceed the bound first is
// drawn. After every prefix of n windows the number drawn from each of k sources differs from share
// x n by at most 1 - 1/(2k-2), less than one window. All of it is integer arithmetic. When n is a
// multiple of the sum of the weights, all are met exactly and the order begins again: so the source
// at any position follows from at most `total` draws.
#pragma once
#include "llmc/base/error.h"

#include <stdint.h>

enum {
    MIXTURE_MAX = 32,        // sources
    MIXTURE_WHOLE = 1000000, // the sum of the weights is at most about this: finer shares are
                             // rounded to millionths
};

typedef struct {
    int count; // of sources; 1: a single corpus
    char *patterns[MIXTURE_MAX];
    char *names[MIXTURE_MAX];     // the parts of the paths that tell them apart: web, code
    int64_t weights[MIXTURE_MAX]; // without a common divisor
    int64_t total;                // their sum
    int64_t start;                // position in the stream since which these weights hold
    int64_t drawn[MIXTURE_MAX];   // windows drawn from each before that
} Mixture;

// False, with the source and the value in the message: a weight that is not a number from 1e-6 to
// 1e6, missing or less than a millionth of all; a source named twice; more than MIXTURE_MAX.
bool mixture_parse(Mixture *m, const char *text, Error *err);
void mixture_free(Mixture *m); // also after a failed mixture_parse
static inline double mixture_share(const Mixture *m, int source) {
    return (double)m->weights[source] / (double)m->total;
}

// The text with map(context, pattern), malloced, for each pattern; NULL if map returns NULL for
// one. Malloced.
typedef char *MixtureMap(const void *context, const char *pattern);
char *mixture_map(const char *text, MixtureMap *map, const void *context);

// The place of a reader: it makes draws in ascending order cheap. All zero before the first.
typedef struct {
    // of the draws since `start`: whole periods before, and those made in this one
    int64_t round, done;
    int64_t drawn[MIXTURE_MAX];
} MixtureCursor;

// Window `index` of the endless stream of `source`. A pure function of mixture and position;
// position >= start.
typedef struct {
    int source;
    int64_t index;
} MixtureDraw;
MixtureDraw mixture_draw(const Mixture *m, MixtureCursor *cursor, int64_t position);

// The windows of each source before this position.
void mixture_count(const Mixture *m, int64_t position, int64_t drawn[MIXTURE_MAX]);

// A text that is no mixture as it may be meant, "A:0.7,B:0.3", malloced: other programs part
// corpora by spaces, ; or +, and have weights before them, after = or @, or in percent. NULL: its
// parts are not patterns of files and numbers.
char *mixture_guess(const char *text);
