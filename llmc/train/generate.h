// Text generation: a prompt goes through the forward pass once, then the decoder adds token after
// token, with keys and values in its cache. A text longer than the context continues from its last
// half, which is recomputed. Of a prompt longer than the context, the last T-1 tokens count.
// `Generated` counts both. Samples of one call share the prompt and are drawn in parallel, each
// with its own random numbers: sample i is the same whatever the number of samples. A signal
// (signals_pending) ends a text at its current token; that is not an error.
#pragma once
#include "llmc/model/model.h"
#include "llmc/text/tokenizer.h"
#include "llmc/train/sampler.h"

#include <stdint.h>

// Called with whole UTF-8 characters as they appear (a character whose bytes are spread over
// several tokens is held back until it is complete; bytes that are not UTF-8 are passed unchanged).
// false: stop generating.
typedef bool GenerateSink(void *context, const char *bytes, int64_t n);

typedef struct {
    const Tokenizer *tokenizer; // NULL: texts are token numbers, and the prompt must be empty
    // may contain special tokens. The text begins with tokenizer_begin, then the prompt
    const char *prompt;
    int64_t samples;  // 1 .. the decoder's B
    int64_t tokens;   // new tokens of each sample
    bool stop_at_eot; // a sample ends when it draws end-of-text, which is then not part of its text
    const int32_t *ends; // other tokens that end a sample: all that the model states
    int num_ends;
    SamplerOptions sampler; // tokens that the tokenizer does not have are never drawn
    GenerateSink *sink;     // for sample 0; NULL: none. It does not get the prompt
    void *context;
} GenerateOptions;

typedef struct {
    char **texts;          // one for each sample, prompt included, malloced, NUL-terminated
    int64_t *bytes;        // their lengths
    int64_t samples;       //
    int64_t prompt_tokens; // tokens of the prompt that count, including end-of-text
    int64_t prompt_cut; // tokens of the prompt that did not fit into the context and do not count
    int64_t slides;     // how often the texts filled the context and continued from their last half
    int64_t new_tokens; // of all samples
    double prompt_seconds; // until the first new token
    double decode_seconds; // for the others
    bool cut;              // a signal ended the texts early
} Generated;

// After a failure *result is all zeros. With a tokenizer without end-of-text, the text begins with
// the prompt, or with a newline if the prompt is empty. Without a tokenizer it begins with the last
// token of the vocabulary, which is end-of-text for GPT-2 and for bytes.
bool generate(Model *model, const GenerateOptions *options, Generated *result, Error *err);
void generated_free(Generated *result); // all zeros is fine

// Whether a prompt ends in a space that the tokenizer would have taken into the token of the next
// word: the model has hardly seen the two apart.
bool generate_prompt_ends_in_space(const Tokenizer *t, const char *prompt);

// Reads prompts from stdin line by line and continues each on stdout as it is drawn, until
// options->tokens tokens or end-of-text. The conversation stays in the context, lines joined by a
// newline, until a line "/new"; its oldest part is dropped when the context is full. Empty lines
// are skipped. It ends with the input, with "/quit" or with a signal, also in the middle of an
// answer. options->prompt comes first, if it is not empty. There is one sample only. With a
// terminal on both sides it shows a prompt sign, tokens/s after each answer, and control characters
// made visible. Otherwise stdout gets only the answers, unchanged, each followed by a newline.
bool generate_interactive(Model *model, const GenerateOptions *options, Error *err);
