// Rows of the table in which every pair of values of two dimensions stands beside each other at
// least once: most mistakes need two things to meet, and hardly one needs three. The same rows
// every time.
#pragma once
#include "test/invariants/table.h"

enum { MOST_VALUES = 32, MOST_ROWS = 1024, ANY = -1 };

typedef struct {
    int values[DIMENSIONS]; // ANY: not chosen yet
} Row;

typedef struct {
    const Value *(*value)(int dimension, int i);
    int counts[DIMENSIONS];
    bool absent[DIMENSIONS][MOST_VALUES]; // values that there are not here
    bool met[DIMENSIONS][MOST_VALUES][DIMENSIONS][MOST_VALUES];
    int rows; // made so far
} Pairs;

static bool pairs_fit(const Pairs *p, int a, int i, int b, int j) {
    const Value *x = p->value(a, i), *y = p->value(b, j);
    return !p->absent[a][i] && !p->absent[b][j] && !(x->has & y->not_with) &&
           !(y->has & x->not_with);
}

static bool pairs_allow(const Pairs *p, const Row *row, int d, int i) {
    for (int e = 0; e < DIMENSIONS; e++)
        if (e != d && row->values[e] != ANY && !pairs_fit(p, d, i, e, row->values[e])) return false;
    return true;
}

// Pairs that are new when a row takes this value.
static int pairs_gain(const Pairs *p, const Row *row, int d, int i) {
    int gain = 0;
    for (int e = 0; e < DIMENSIONS; e++)
        gain += e != d && row->values[e] != ANY && !p->met[d][i][e][row->values[e]];
    return gain;
}

// Chooses what is ANY, of each dimension the value that fits with the most new pairs; among equals
// another in each row. False: nothing fits.
static bool pairs_fill(const Pairs *p, Row *row) {
    int d = 0;
    while (d < DIMENSIONS && row->values[d] != ANY) d++;
    if (d == DIMENSIONS) return true;

    bool tried[MOST_VALUES] = {false};
    for (;;) {
        int best = ANY, most = -1;
        for (int k = 0; k < p->counts[d]; k++) {
            const int i = (k + p->rows) % p->counts[d];
            if (tried[i] || !pairs_allow(p, row, d, i) || pairs_gain(p, row, d, i) <= most)
                continue;
            best = i, most = pairs_gain(p, row, d, i);
        }
        if (best == ANY) return false;
        tried[best] = true;
        row->values[d] = best;
        if (pairs_fill(p, row)) return true;
        row->values[d] = ANY;
    }
}

static void pairs_take(Pairs *p, const Row *row) {
    for (int d = 0; d < DIMENSIONS; d++)
        for (int e = 0; e < DIMENSIONS; e++) p->met[d][row->values[d]][e][row->values[e]] = true;
    p->rows++;
}

// The next row; false: every pair that can be has met. A pair that fits alone but in no row counts
// as met.
static bool pairs_next(Pairs *p, Row *row) {
    for (int d = 0; d < DIMENSIONS; d++)
        for (int e = 0; e < d; e++)
            for (int i = 0; i < p->counts[d]; i++)
                for (int j = 0; j < p->counts[e]; j++) {
                    if (p->met[d][i][e][j] || !pairs_fit(p, d, i, e, j)) continue;
                    for (int f = 0; f < DIMENSIONS; f++) row->values[f] = ANY;
                    row->values[d] = i, row->values[e] = j;
                    if (pairs_fill(p, row)) {
                        pairs_take(p, row);
                        return true;
                    }
                    p->met[d][i][e][j] = p->met[e][j][d][i] = true;
                }
    return false;
}
