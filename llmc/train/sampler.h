// Drawing the next token from logits: temperature, top-k, top-p, from a counter-based generator, so that a sample is a
// pure function of weights, seed, stream and prompt.
//   p = softmax(logits / temperature), of the top_k likeliest tokens; of these the smallest set of likeliest ones whose
//   probabilities sum to top_p or more (Holtzman et al., "The Curious Case of Neural Text Degeneration", 2019)
// Among equal logits the lower token counts as likelier, everywhere: the sets have exactly the stated size, and a tiny
// top_p, a top_k of 1 and a temperature of 0 give the same token. A logit of NaN is never drawn; +inf takes all
// probability. Where no logit is above -inf the answer is token 0.
#pragma once
#include <stdint.h>

typedef struct {
    double temperature; // 0 = always the most likely token
    int64_t top_k;      // 0 = all
    double top_p;       // 1 (or 0, "not set") = all
    uint64_t seed;
    uint64_t stream; // the step: each sample of a run has its own numbers
} SamplerOptions;

// The next token from logits (V); index: position in the text and sample, for the generator. Takes O(V) expected time:
// 0.1 ms (top_k = 50) to 0.7 ms (all of them, or top_p) at V = 50,257.
int32_t sample_from_logits(const float *logits, int64_t V, const SamplerOptions *options, uint64_t index);
