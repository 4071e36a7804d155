// Drawing the next token from logits. See generate.h.
// The tokens that may be drawn are found by partial selection, never by sorting all: top-k and top-p are the same
// question, "which likeliest tokens weigh this much together?", with weights of 1 and with probabilities.
#include "llmc/train/generate.h"

#include "llmc/base/error.h"
#include "llmc/base/rng.h"
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

typedef struct {
    float logit;
    int32_t token;
    double weight;
} Candidate;

static bool likelier(Candidate a, Candidate b) {
    return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

static void swap(Candidate *a, Candidate *b) {
    const Candidate old = *a;
    *a = *b, *b = old;
}

// Orders the first, the middle and the last of n >= 1 candidates; the median ends in the middle. As a pivot it keeps
// sorted and reversed logits from taking quadratic time.
static Candidate median_of_three(Candidate *c, int64_t n) {
    Candidate *a = &c[0], *b = &c[n / 2], *z = &c[n - 1];
    if (likelier(*b, *a)) swap(a, b);
    if (likelier(*z, *b)) swap(b, z);
    if (likelier(*b, *a)) swap(a, b);
    return *b;
}

// Moves those that are likelier than the pivot to the front, the pivot behind them, and returns its place.
static int64_t partition(Candidate *c, int64_t n) {
    const Candidate pivot = median_of_three(c, n);
    int64_t front = 0;
    swap(&c[n / 2], &c[n - 1]);
    for (int64_t i = 0; i < n - 1; i++)
        if (likelier(c[i], pivot)) swap(&c[front++], &c[i]);
    swap(&c[front], &c[n - 1]);
    return front;
}

// The smallest number of likeliest candidates whose weights sum to `mass` or more, moved to the front; n if rounding
// leaves even the sum of all below it. Hoare's FIND ("Algorithm 65", 1961) with weights: O(n) expected.
static int64_t select_mass(Candidate *c, int64_t n, double mass) {
    int64_t begin = 0, end = n; // the answer is in [begin, end]
    double before = 0.0;        // weight of c[0 .. begin)
    while (begin < end) {
        const int64_t pivot = begin + partition(c + begin, end - begin);
        double sum = before;
        for (int64_t i = begin; i < pivot; i++) sum += c[i].weight;
        if (sum >= mass) {
            end = pivot;
        } else if (sum + c[pivot].weight >= mass) {
            return pivot + 1;
        } else {
            before = sum + c[pivot].weight;
            begin = pivot + 1;
        }
    }
    return begin;
}

// Everything above -inf, in the order of tokens; best: the likeliest of them.
static int64_t collect(Candidate *c, const float *logits, int64_t V, Candidate *best) {
    int64_t n = 0;
    *best = (Candidate){-INFINITY, 0, 0.0};
    for (int64_t i = 0; i < V; i++) {
        if (!(logits[i] > -INFINITY)) continue;
        c[n] = (Candidate){logits[i], (int32_t)i, 1.0};
        if (logits[i] > best->logit) *best = c[n];
        n++;
    }
    return n;
}

// Probabilities up to a common factor: the likeliest weighs 1, nothing overflows.
static void weigh(Candidate *c, int64_t n, float best, double temperature) {
    for (int64_t i = 0; i < n; i++)
        c[i].weight =
            isinf(best) ? (isinf(c[i].logit) ? 1.0 : 0.0) : exp(((double)c[i].logit - (double)best) / temperature);
}

// In [0, 1), 53 bits: with the usual 24 a token of probability 1e-8 would never be drawn, or ten times too often.
static double uniform(const SamplerOptions *o, uint64_t index) {
    const Philox bits = philox(o->seed, ((uint64_t)STREAM_SAMPLE << 48) + o->stream, index);
    return (double)(((uint64_t)bits.v[0] << 32 | bits.v[1]) >> 11) * 0x1p-53;
}

static double sum_of_weights(const Candidate *c, int64_t n) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) sum += c[i].weight;
    return sum;
}

// The candidate at this place of the line on which each takes as much room as it weighs.
static Candidate at(const Candidate *c, int64_t n, double place, Candidate otherwise) {
    double passed = 0.0;
    for (int64_t i = 0; i < n; i++) {
        passed += c[i].weight;
        if (passed > place) return c[i];
    }
    return otherwise; // rounding left the place at the very end
}

int32_t sample_from_logits(const float *logits, int64_t V, const SamplerOptions *options, uint64_t index) {
    Candidate *c = malloc((size_t)V * sizeof *c), best;
    REQUIRE_MEMORY(c, "the %lld candidates of a token", (long long)V);
    int64_t n = collect(c, logits, V, &best);
    if (options->temperature > 0.0) {
        if (options->top_k > 0 && options->top_k < n) n = select_mass(c, n, (double)options->top_k);
        weigh(c, n, best.logit, options->temperature);
        if (options->top_p > 0.0 && options->top_p < 1.0) n = select_mass(c, n, options->top_p * sum_of_weights(c, n));
        best = at(c, n, uniform(options, index) * sum_of_weights(c, n), best);
    }
    free(c);
    return best.token;
}
