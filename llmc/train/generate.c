// Samples as texts. See generate.h.
// Turns prompts into tokens and drawn tokens into texts; the loop between them is decoding.c's.
#include "llmc/train/generate.h"

#include "llmc/train/decoding.h"
#include <stdlib.h>
#include <string.h>

// The tokens that a text begins with, malloced.
static bool prompt_tokens(const GenerateOptions *o, int64_t V, int32_t **tokens, int64_t *n, Error *err) {
    const char *prompt = o->prompt ? o->prompt : "";
    const int32_t begin = text_begin(o->tokenizer, V);
    if (!o->tokenizer && *prompt)
        return error_set(err, "--prompt: there is no tokenizer to read it with; name one with --tokenizer");
    *tokens = malloc(sizeof **tokens);
    if (!*tokens) return error_set(err, "out of memory");
    *n = 0;
    if (begin >= 0)
        (*tokens)[(*n)++] = begin;
    else if (!*prompt)
        prompt = "\n";
    return !*prompt || encode_prompt(o->tokenizer, prompt, (int64_t)strlen(prompt), V, tokens, n, err);
}

// prompt and the text of n tokens, malloced; NULL: out of memory.
static char *text_of(const GenerateOptions *o, const int32_t *tokens, int64_t n, int64_t *bytes) {
    const size_t prompt = o->prompt ? strlen(o->prompt) : 0;
    size_t total = prompt;
    TokenText memory;
    int64_t length;
    for (int64_t i = 0; i < n; i++) {
        token_text(o->tokenizer, tokens[i], &memory, &length);
        total += (size_t)length;
    }
    char *text = malloc(total + 1), *end = text;
    if (!text) return NULL;
    if (prompt > 0) memcpy(end, o->prompt, prompt), end += prompt;
    for (int64_t i = 0; i < n; i++) {
        const char *piece = token_text(o->tokenizer, tokens[i], &memory, &length);
        memcpy(end, piece, (size_t)length), end += length;
    }
    *end = '\0';
    *bytes = (int64_t)total;
    return text;
}

static bool fill(Generated *g, const GenerateOptions *o, const Drawn *drawn, Error *err) {
    g->samples = o->samples;
    g->prompt_tokens = drawn->prompt_tokens, g->prompt_cut = drawn->prompt_cut, g->slides = drawn->slides;
    g->prompt_seconds = drawn->prompt_seconds, g->decode_seconds = drawn->decode_seconds, g->cut = drawn->cut;
    g->texts = calloc((size_t)o->samples, sizeof *g->texts);
    g->bytes = calloc((size_t)o->samples, sizeof *g->bytes);
    bool ok = g->texts && g->bytes;
    for (int64_t s = 0; ok && s < o->samples; s++) {
        g->texts[s] = text_of(o, drawn->tokens + s * o->tokens, drawn->counts[s], &g->bytes[s]);
        g->new_tokens += drawn->counts[s];
        ok = g->texts[s] != NULL;
    }
    return ok || error_set(err, "the texts of %lld samples: out of memory", (long long)o->samples);
}

bool generate(Gpt2 *model, const GenerateOptions *options, Generated *result, Error *err) {
    int32_t *prompt = NULL;
    int64_t n = 0;
    Drawn drawn = {0};
    memset(result, 0, sizeof *result);
    const bool ok = prompt_tokens(options, gpt2_options(model)->config.V, &prompt, &n, err) &&
                    decode(model, options, prompt, n, 0, &drawn, err) && fill(result, options, &drawn, err);
    if (!ok) generated_free(result);
    drawn_free(&drawn);
    free(prompt);
    return ok;
}

void generated_free(Generated *result) {
    for (int64_t s = 0; result->texts && s < result->samples; s++) free(result->texts[s]);
    free(result->texts);
    free(result->bytes);
    memset(result, 0, sizeof *result);
}
