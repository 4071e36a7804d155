// The loop of generation, on tokens, and samples as texts. See generate.h.
// Owns the window: of every sample the tokens that are in front of the decoder, at most the context. When it is full
// the last half of it becomes a new prompt, so that a text of any length costs one prompt pass every T/2 tokens.
#include "llmc/train/generate.h"

#include "llmc/base/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    Gpt2 *model;
    const GenerateOptions *options;
    int64_t T, V;     // V: of the model, the row length of logits
    int64_t drawable; // tokens from this one on are never drawn
    int32_t eot;      // that ends a sample; -1: none does
    int32_t *window;  // (samples, T)
    int32_t *prompts; // (samples, n) as the decoder takes them
    int32_t *next;    // (samples)
    bool *ended;      // (samples)
    float *logits;    // (samples, V)
    int64_t length;   // tokens in the window
    int64_t running;  // samples that have not ended
    Utf8Stream held;  // of sample 0, for the sink
    bool refused;     // by the sink
} Decoding;

// ------------------------------------------------------------------------------------------------------------- tokens

const char *token_text(const Tokenizer *tokenizer, int32_t token, TokenText *memory, int64_t *bytes) {
    if (!tokenizer) {
        *bytes = snprintf(memory->number, sizeof memory->number, "%d ", token);
        return memory->number;
    }
    size_t length;
    const char *text = tokenizer_decode(tokenizer, token, &length);
    *bytes = (int64_t)length;
    return text;
}

int32_t text_begin(const Tokenizer *tokenizer, int64_t V) {
    if (!tokenizer) return (int32_t)(V - 1);
    const int32_t eot = tokenizer_eot(tokenizer);
    return eot < V ? eot : -1;
}

bool encode_prompt(const Tokenizer *tokenizer, const char *prompt, int64_t bytes, int64_t V, int32_t **out, int64_t *n,
                   Error *err) {
    int32_t *grown = realloc(*out, (size_t)(*n + bytes + 1) * sizeof *grown);
    if (!grown) return error_set(err, "the prompt of %lld bytes: out of memory", (long long)bytes);
    *out = grown;
    Encoder *encoder = encoder_create(tokenizer, err);
    if (!encoder) return false;
    const int64_t first = *n;
    *n += encoder_encode_special(encoder, prompt, bytes, grown + first);
    encoder_free(encoder);
    for (int64_t i = first; i < *n; i++)
        if (grown[i] < 0 || grown[i] >= V)
            return error_set(err,
                             "the prompt has token %d, but the model's vocabulary ends at %lld: name the model's "
                             "tokenizer with --tokenizer",
                             grown[i], (long long)V - 1);
    return true;
}

// ------------------------------------------------------------------------------------------------------------- window

// The decoder begins anew with what is in the window.
static void restart(Decoding *d) {
    const int64_t samples = d->options->samples, n = d->length;
    for (int64_t s = 0; s < samples; s++)
        memcpy(d->prompts + s * n, d->window + s * d->T, (size_t)n * sizeof *d->prompts);
    gpt2_decode_start(d->model, d->prompts, n, samples, d->logits);
}

// The last T-1 tokens of the prompt, so that there is room for a token behind them; returns how many were left out.
static int64_t start(Decoding *d, const int32_t *prompt, int64_t n) {
    const int64_t most = d->T > 1 ? d->T - 1 : 1;
    d->length = n < most ? n : most;
    for (int64_t s = 0; s < d->options->samples; s++)
        memcpy(d->window + s * d->T, prompt + n - d->length, (size_t)d->length * sizeof *prompt);
    restart(d);
    return n - d->length;
}

// The next token of every sample into the model; true if the window was full and went on from its last half.
static bool append(Decoding *d) {
    const bool full = d->length == d->T;
    const int64_t kept = !full ? d->length : d->T > 1 ? d->T / 2 - 1 + d->T % 2 : 0; // with the new one T/2, rounded up
    for (int64_t s = 0; s < d->options->samples; s++) {
        int32_t *window = d->window + s * d->T;
        memmove(window, window + d->length - kept, (size_t)kept * sizeof *window);
        window[kept] = d->next[s];
    }
    d->length = kept + 1;
    if (full)
        restart(d);
    else
        gpt2_decode_step(d->model, d->next, d->logits);
    return full;
}

// ------------------------------------------------------------------------------------------------------------ drawing

// Bytes for the sink, in portions that fit on the stack: a special token of a foreign tokenizer may be long.
static void show(Decoding *d, const char *bytes, int64_t n) {
    char out[256 + UTF8_MOST_HELD];
    for (int64_t done = 0; done < n && !d->refused;) {
        const int64_t portion = n - done < 256 ? n - done : 256;
        const int64_t whole = utf8_stream_push(&d->held, bytes + done, portion, out);
        if (whole > 0 && !d->options->sink(d->options->context, out, whole)) d->refused = true;
        done += portion;
    }
}

static void show_rest(Decoding *d) {
    char out[UTF8_MOST_HELD];
    const int64_t n = utf8_stream_end(&d->held, out);
    if (n > 0 && !d->refused) d->options->sink(d->options->context, out, n);
}

// A token for every sample that has not ended. number: of this token in its text, for the random generator.
static void draw(Decoding *d, int64_t number, Drawn *drawn) {
    const GenerateOptions *o = d->options;
    for (int64_t s = 0; s < o->samples; s++) {
        if (d->ended[s]) continue; // the decoder is fed its last token again, and nobody looks at the logits
        const uint64_t index = ((uint64_t)s << 40) + (uint64_t)number;
        d->next[s] = sample_from_logits(d->logits + s * d->V, d->drawable, &o->sampler, index);
        if (d->next[s] == d->eot) {
            d->ended[s] = true;
            d->running--;
            continue;
        }
        drawn->tokens[s * o->tokens + drawn->counts[s]++] = d->next[s];
        if (s == 0 && o->sink) {
            TokenText memory;
            int64_t bytes;
            const char *text = token_text(o->tokenizer, d->next[s], &memory, &bytes);
            show(d, text, bytes);
        }
    }
}

static bool allocate(Decoding *d, Drawn *drawn, Error *err) {
    const GenerateOptions *o = d->options;
    const size_t samples = (size_t)o->samples, T = (size_t)d->T;
    d->window = malloc(samples * T * sizeof *d->window);
    d->prompts = malloc(samples * T * sizeof *d->prompts);
    d->next = calloc(samples, sizeof *d->next);
    d->ended = calloc(samples, sizeof *d->ended);
    d->logits = malloc(samples * (size_t)d->V * sizeof *d->logits);
    drawn->tokens = malloc(samples * (size_t)o->tokens * sizeof *drawn->tokens);
    drawn->counts = calloc(samples, sizeof *drawn->counts);
    return (d->window && d->prompts && d->next && d->ended && d->logits && drawn->tokens && drawn->counts) ||
           error_set(err, "%lld samples of %lld tokens: out of memory; fewer --samples or -g", (long long)o->samples,
                     (long long)o->tokens);
}

static void run(Decoding *d, const int32_t *prompt, int64_t n, int64_t first, Drawn *drawn) {
    const double began = now_seconds();
    drawn->prompt_cut = start(d, prompt, n);
    drawn->prompt_tokens = d->length;
    for (int64_t i = 0; i < d->options->tokens; i++) {
        if (i > 0) drawn->slides += append(d);
        draw(d, first + i, drawn);
        if (i == 0) drawn->prompt_seconds = now_seconds() - began;
        if (d->running == 0 || d->refused) break;
        drawn->cut = i + 1 < d->options->tokens && signals_pending();
        if (drawn->cut) break;
    }
    drawn->decode_seconds = now_seconds() - began - drawn->prompt_seconds;
    if (d->options->sink) show_rest(d);
}

bool decode(Gpt2 *model, const GenerateOptions *o, const int32_t *prompt, int64_t n, int64_t first, Drawn *drawn,
            Error *err) {
    const Gpt2Options *planned = gpt2_options(model);
    memset(drawn, 0, sizeof *drawn);
    if (o->samples < 1 || o->samples > planned->sequences)
        return error_set(err, "--samples %lld: the model was made for %lld side by side", (long long)o->samples,
                         (long long)planned->sequences);
    Decoding d = {.model = model, .options = o, .T = planned->T, .V = planned->config.V, .running = o->samples};
    const int64_t known = o->tokenizer ? tokenizer_vocab(o->tokenizer) : d.V;
    d.drawable = known < d.V ? known : d.V;
    d.eot = o->stop_at_eot ? text_begin(o->tokenizer, d.V) : -1;
    const bool ok = allocate(&d, drawn, err);
    if (ok) run(&d, prompt, n, first, drawn);
    free(d.window), free(d.prompts), free(d.next), free(d.ended), free(d.logits);
    return ok;
}

void drawn_free(Drawn *drawn) {
    free(drawn->tokens), free(drawn->counts);
    memset(drawn, 0, sizeof *drawn);
}

// --------------------------------------------------------------------------------------------------------------- texts

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
