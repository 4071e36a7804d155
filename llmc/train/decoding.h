// The loop of generation: a prompt, then token after token for several samples side by side, each drawn from the
// logits and given back to the model; what to do when the context is full; when to end. Works on tokens: texts are
// generate.c's business, conversations interactive.c's.
#pragma once
#include "llmc/train/generate.h"

typedef struct {
    int32_t *tokens; // (samples, options->tokens): those of sample i at tokens + i * options->tokens
    int64_t *counts; // of each sample: how many there are. End-of-text that ended a sample is not among them
    int64_t prompt_tokens, prompt_cut, slides;
    double prompt_seconds, decode_seconds;
    bool cut; // a signal came before all of them were drawn
} Drawn;

// Goes on with n >= 1 tokens of prompt as generate() says; options->prompt is not looked at. first: number of the
// first token for the random generator, so that the answers of a conversation differ.
bool decode(Gpt2 *model, const GenerateOptions *options, const int32_t *prompt, int64_t n, int64_t first, Drawn *drawn,
            Error *err);
void drawn_free(Drawn *drawn); // also after a failure

// The text of one token for a reader: its bytes, or its number and a space without a tokenizer. Good until the next
// call; not terminated.
typedef struct {
    char number[16];
} TokenText;
const char *token_text(const Tokenizer *tokenizer, int32_t token, TokenText *memory, int64_t *bytes);

// prompt as tokens behind what stands in out already (*n tokens, end-of-text for example); out is grown. A token that
// the model does not have: false.
bool encode_prompt(const Tokenizer *tokenizer, const char *prompt, int64_t bytes, int64_t V, int32_t **out, int64_t *n,
                   Error *err);

// The token before every text: end-of-text, or what generate() says where there is none; -1: none.
int32_t text_begin(const Tokenizer *tokenizer, int64_t V);
