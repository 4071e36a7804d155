// Text from the model: one token after the other by temperature and top-k, from a counter-based generator, so that a
// sample is a pure function of weights, seed, step and prompt. Texts longer than the context go on in a sliding window.
#pragma once
#include "llmc/model/gpt2.h"
#include "llmc/tokens/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    double temperature; // 0 = always the most likely token
    int64_t top_k;      // 0 = all
    uint64_t seed;
    uint64_t stream; // the step: each sample of a run has its own numbers
} SamplerOptions;

// The next token from logits (V); index: position in the text, for the generator. Exposed for tests.
int32_t sample_from_logits(const float *logits, int64_t V, const SamplerOptions *options, uint64_t index);

// Continues tokens[0..prompt_length) up to n tokens in all, in place (room for n). prompt_length >= 1.
void sample_tokens(Gpt2 *model, int32_t *tokens, int64_t prompt_length, int64_t n, const SamplerOptions *options);

// A text of n tokens after end-of-text and prompt, prompt included; malloced, *bytes long. Without a tokenizer (NULL)
// the prompt must be empty and the text is the token numbers.
char *sample_text(Gpt2 *model, const Tokenizer *tokenizer, const char *prompt, int64_t n, const SamplerOptions *options,
                  int64_t *bytes, Error *err);

#ifdef __cplusplus
}
#endif
