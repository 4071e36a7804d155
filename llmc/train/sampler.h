// The next token, drawn from logits by temperature, top-k and top-p, with a counter-based
// generator, so that a sample is a pure function of logits, seed, stream and place:
//
//   p = softmax(logits / temperature), of the top_k likeliest tokens; of these the smallest set of
//   likeliest ones whose probabilities sum to top_p or more (Holtzman et al., "The Curious Case of
//   Neural Text Degeneration", 2019)
//
// Among equal logits the lower token always counts as likelier, so the sets have exactly the stated
// size, and a tiny top_p, a top_k of 1 and a temperature of 0 give the same token. A logit of NaN
// is never drawn; +inf takes all probability. If no logit is above -inf the result is token 0.
#pragma once
#include <stdint.h>

typedef struct {
    double temperature; // 0 = always the most likely token
    int64_t top_k;      // 0 = all
    double top_p;       // 1 (or 0, "not set") = all
    uint64_t seed;
    uint64_t stream; // the step: each sample of a run has its own numbers
} SamplerOptions;

// Draws the next token from logits (V); index: position in the text and sample, for the random
// generator.
int32_t sample_from_logits(const float *logits, int64_t V, const SamplerOptions *options,
                           uint64_t index);
