// Text from the model: prompts go through the forward pass once, then token after token through the decoder, whose
// cache keeps keys and values. A text longer than the context goes on from its last half, computed anew; of a prompt
// longer than the context the last T-1 tokens count. `Generated` counts both.
// Samples of one call share the prompt and are drawn side by side, each with its own random numbers: sample i is the
// same whatever their number is. A signal (signals_pending) ends a text at the token it has reached; that is no error.
//
// The next token is drawn from logits by temperature, top-k, top-p, from a counter-based generator, so that a sample is
// a pure function of weights, seed, stream and prompt.
//   p = softmax(logits / temperature), of the top_k likeliest tokens; of these the smallest set of likeliest ones whose
//   probabilities sum to top_p or more (Holtzman et al., "The Curious Case of Neural Text Degeneration", 2019)
// Among equal logits the lower token counts as likelier, everywhere: the sets have exactly the stated size, and a tiny
// top_p, a top_k of 1 and a temperature of 0 give the same token. A logit of NaN is never drawn; +inf takes all
// probability. Where no logit is above -inf the answer is token 0.
#pragma once
#include "llmc/model/gpt2.h"
#include "llmc/text/tokenizer.h"

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

// Called with whole UTF-8 characters as they appear (a character whose bytes come in several tokens is held back until
// it is whole; bytes that are no UTF-8 come as they are). false: stop generating.
typedef bool GenerateSink(void *context, const char *bytes, int64_t n);

typedef struct {
    const Tokenizer *tokenizer; // NULL: texts are token numbers, and the prompt must be empty
    const char *prompt;         // special tokens in it count. The text begins with end-of-text, then the prompt
    int64_t samples;            // 1 .. the decoder's B
    int64_t tokens;             // new ones, of each sample
    bool stop_at_eot;           // a sample ends when it draws end-of-text, which is not part of its text then
    SamplerOptions sampler;     // tokens that the tokenizer does not have are never drawn
    GenerateSink *sink;         // of sample 0; NULL: none. The prompt is not sent
    void *context;
} GenerateOptions;

typedef struct {
    char **texts;          // samples texts, prompt included, malloced, '\0' behind
    int64_t *bytes;        // their lengths
    int64_t samples;       //
    int64_t prompt_tokens; // end-of-text included; those that count
    int64_t prompt_cut;    // tokens of the prompt that did not fit into the context and do not count
    int64_t slides;        // how often the texts had filled the context and went on from their last half
    int64_t new_tokens;    // of all samples
    double prompt_seconds; // until the first new token
    double decode_seconds; // for the others
    bool cut;              // a signal ended the texts before their time
} Generated;

// After a failure *result is all zero. A tokenizer without end-of-text: the text begins with the prompt, an empty one
// with a newline. No tokenizer: with the last token of the vocabulary, which is end-of-text in GPT-2's and in bytes.
bool generate(Gpt2 *model, const GenerateOptions *options, Generated *result, Error *err);
void generated_free(Generated *result); // all zero is fine

// Reads prompts from stdin line by line and goes on with each on stdout as it is drawn, until options->tokens tokens
// or end-of-text. What was said before stays in the context, lines joined by a newline, until a line "/new"; the
// oldest of it leaves when the context is full. Empty lines are passed over. Ends with the input, with "/quit" or with
// a signal, also in the middle of an answer. options->prompt comes first, if it is not empty. One sample only.
// With a terminal on both sides: a prompt sign, tokens/s behind each answer, control characters made visible.
// Otherwise stdout gets the answers and nothing else, as they are, a newline behind each.
bool generate_interactive(Gpt2 *model, const GenerateOptions *options, Error *err);
