// The choice of the next token, see sampler.h. For top-k and top-p all tokens are sorted; both are
// then the first of them.
#include "llmc/train/sampler.h"

#include "llmc/base/error.h"
#include "llmc/base/random.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    uint32_t key; // grows as the logit falls
    int32_t token;
} Candidate;

// Sorts by logit, the highest first; equal ones keep their order, that of tokens. A radix sort:
// four passes, whatever the logits are. spare: n more.
static void sort_candidates(Candidate *c, Candidate *spare, int64_t n) {
    for (int shift = 0; shift < 32; shift += 8) {
        int64_t begin[256 + 1] = {0};
        for (int64_t i = 0; i < n; i++) begin[(c[i].key >> shift & 255) + 1]++;
        for (int byte = 0; byte < 256; byte++) begin[byte + 1] += begin[byte];
        for (int64_t i = 0; i < n; i++) spare[begin[c[i].key >> shift & 255]++] = c[i];
        Candidate *sorted = spare;
        spare = c;
        c = sorted;
    }
}

int32_t sample_from_logits(const float *logits, int64_t V, const SamplerOptions *o,
                           uint64_t index) {
    Candidate *c = malloc(2 * (size_t)V * sizeof *c);
    double *weights = malloc((size_t)V * sizeof *weights);
    REQUIRE_MEMORY(c && weights, "the %lld candidates of a token", (long long)V);

    int64_t n = 0;
    int32_t token = 0;
    float best = -INFINITY;

    for (int64_t i = 0; i < V; i++) {
        if (!(logits[i] > -INFINITY)) continue;
        // The bits of a float order like the float itself once those of negative ones are inverted;
        // all are inverted here.
        const float logit = logits[i] + 0.0f; // -0 becomes 0, which it equals
        uint32_t bits;
        memcpy(&bits, &logit, sizeof bits);
        if (bits >> 31 == 0) bits = ~bits & 0x7FFFFFFFu;
        c[n++] = (Candidate){bits, (int32_t)i};
        if (logits[i] <= best) continue;
        best = logits[i];
        token = (int32_t)i;
    }

    if (o->temperature > 0.0 && n > 0) {
        const bool by_number =
            o->top_k > 0 && o->top_k<n, by_mass = o->top_p> 0.0 && o->top_p < 1.0;
        if (by_number || by_mass) sort_candidates(c, c + n, n);
        if (by_number) n = o->top_k;

        // The softmax of the candidates up to a common factor: the likeliest has weight 1, so
        // nothing overflows.
        double sum = 0.0;
        for (int64_t i = 0; i < n; i++) {
            const float logit = logits[c[i].token];
            if (isinf(best))
                weights[i] = logit == best;
            else
                weights[i] = exp(((double)logit - (double)best) / o->temperature);
            sum += weights[i];
        }

        if (by_mass) {
            const double mass = o->top_p * sum;
            int64_t kept = 0;
            for (sum = 0.0; kept < n && sum < mass; kept++) sum += weights[kept];
            n = kept;
        }

        // Uniform in [0, 1), 53 bits: with the usual 24, a token of probability 1e-8 would never be
        // drawn, or ten times too often.
        const Philox bits = philox(o->seed, ((uint64_t)STREAM_SAMPLE << 48) + o->stream, index);
        const double uniform = (double)(((uint64_t)bits.v[0] << 32 | bits.v[1]) >> 11) * 0x1p-53;

        // The place on a line on which each candidate has a length equal to its weight. Rounding
        // may put it at the very end, after all of them: then the likeliest one is drawn.
        const double place = uniform * sum;
        double passed = 0.0;
        for (int64_t i = 0; i < n && passed <= place; i++) {
            passed += weights[i];
            if (passed > place) token = c[i].token;
        }
    }

    free(c);
    free(weights);
    return token;
}
