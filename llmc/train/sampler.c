#include "llmc/train/sampler.h"

#include "llmc/base/rng.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int descending(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

// The k-th largest logit: tokens below it are not sampled.
static float top_k_threshold(const float *logits, int64_t V, int64_t k) {
    float *sorted = malloc((size_t)V * sizeof *sorted);
    REQUIRE(sorted, "no memory to sort logits");
    for (int64_t i = 0; i < V; i++) sorted[i] = logits[i];
    qsort(sorted, (size_t)V, sizeof *sorted, descending);
    float threshold = sorted[k - 1];
    free(sorted);
    return threshold;
}

int32_t sample_from_logits(const float *logits, int64_t V, const SamplerOptions *options, uint64_t index) {
    int64_t best = 0;
    for (int64_t i = 1; i < V; i++)
        if (logits[i] > logits[best]) best = i;
    if (options->temperature <= 0.0) return (int32_t)best;

    const bool limited = options->top_k > 0 && options->top_k < V;
    const float threshold = limited ? top_k_threshold(logits, V, options->top_k) : -INFINITY;
    double total = 0.0;
    for (int64_t i = 0; i < V; i++)
        if (logits[i] >= threshold) total += exp((logits[i] - logits[best]) / options->temperature);
    Philox bits = philox(options->seed, ((uint64_t)STREAM_SAMPLE << 48) + options->stream, index);
    double target = philox_uniform(bits.v[0]) * total, sum = 0.0;
    for (int64_t i = 0; i < V; i++) {
        if (logits[i] < threshold) continue;
        sum += exp((logits[i] - logits[best]) / options->temperature);
        if (sum > target) return (int32_t)i;
    }
    return (int32_t)best; // rounding left the target at the very end, or the logits are not finite
}

void sample_tokens(Gpt2 *model, int32_t *tokens, int64_t prompt_length, int64_t n, const SamplerOptions *options) {
    const Gpt2Options *o = gpt2_options(model);
    float *logits = malloc((size_t)o->config.V * sizeof *logits);
    REQUIRE(logits && prompt_length >= 1, "no memory for logits, or no prompt");
    for (int64_t i = prompt_length; i < n; i++) {
        const int64_t start = i > o->T ? i - o->T : 0; // a text longer than the context slides through it
        gpt2_next_logits(model, tokens + start, i - start, logits);
        tokens[i] = sample_from_logits(logits, o->config.V, options, (uint64_t)i);
    }
    free(logits);
}

// The bytes of tokens, or their numbers; malloced.
static char *render(const Tokenizer *tokenizer, const int32_t *tokens, int64_t n, int64_t *bytes) {
    enum { NUMBER = 12 };
    size_t size = 1, used = 0, length;
    for (int64_t i = 0; i < n; i++) {
        length = NUMBER;
        if (tokenizer) tokenizer_decode(tokenizer, tokens[i], &length);
        size += length;
    }
    char *text = malloc(size);
    for (int64_t i = 0; text && i < n; i++) {
        const char *piece = tokenizer ? tokenizer_decode(tokenizer, tokens[i], &length) : NULL;
        if (piece)
            memcpy(text + used, piece, length);
        else
            length = (size_t)snprintf(text + used, NUMBER, "%d ", (int)tokens[i]);
        used += length;
    }
    *bytes = (int64_t)used;
    return text;
}

char *sample_text(Gpt2 *model, const Tokenizer *tokenizer, const char *prompt, int64_t n, const SamplerOptions *options,
                  int64_t *bytes, Error *err) {
    const int64_t prompt_bytes = (int64_t)strlen(prompt);
    int32_t *tokens = malloc((size_t)(1 + prompt_bytes + n) * sizeof *tokens);
    char *text = NULL;
    if (tokens) {
        // Without a tokenizer the last token stands for end-of-text, as it does in GPT-2's vocabulary.
        tokens[0] = tokenizer ? tokenizer_eot(tokenizer) : (int32_t)(gpt2_options(model)->config.V - 1);
        const int64_t start = tokenizer ? tokenizer_encode(tokenizer, prompt, prompt_bytes, tokens + 1) + 1 : 1;
        sample_tokens(model, tokens, start, start + n, options);
        text = render(tokenizer, tokens + 1, start + n - 1, bytes);
    }
    free(tokens);
    if (!text) error_set(err, "no memory for a sample of %lld tokens", (long long)n);
    return text;
}
