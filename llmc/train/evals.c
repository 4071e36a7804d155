// Validation. See evals.h.
// Owns the buffers of one evaluation: a batch of windows, their losses, the bytes of every token of the vocabulary.
#include "llmc/train/evals.h"

#include "llmc/run/signals.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    Gpt2 *model;
    const ShardSet *val;
    char *batch;          // (B, T+1) tokens
    float *losses;        // (B), sums over T
    uint32_t *byte_count; // (V) of each token; NULL: the tokenizer is not known
    double sum;
    int64_t windows, bytes; // done
} Evaluation;

// Window i of n, spread evenly over all of them: the same ones at every evaluation.
static int64_t spread(int64_t i, int64_t n, int64_t all) { return (int64_t)((double)i * (double)all / (double)n); }

static uint32_t *bytes_of_tokens(const Tokenizer *tokenizer, int64_t V) {
    uint32_t *count = calloc((size_t)V, sizeof *count);
    const int64_t known = tokenizer_vocab(tokenizer);
    for (int32_t token = 0; count && token < V && token < known; token++) {
        size_t length;
        tokenizer_decode(tokenizer, token, &length);
        if (!tokenizer_is_special(tokenizer, token)) count[token] = (uint32_t)length;
    }
    return count;
}

// Bytes of the targets of a window: all of its tokens but the first.
static int64_t bytes_of_window(const Evaluation *e, const char *window) {
    int64_t bytes = 0;
    for (int64_t t = 1; t <= e->val->T; t++) {
        uint16_t narrow;
        uint32_t token;
        memcpy(&narrow, window + t * 2, sizeof narrow);
        token = narrow;
        if (e->val->token_bytes == 4) memcpy(&token, window + t * 4, sizeof token);
        bytes += e->byte_count[token]; // below V: shards_read_window has seen to it
    }
    return bytes;
}

// All n windows, or as many as there were before a signal.
static bool sum_losses(Evaluation *e, int64_t n, Error *err) {
    const Gpt2Options *o = gpt2_options(e->model);
    const int64_t window_bytes = (o->T + 1) * e->val->token_bytes;
    for (int64_t first = 0; first < n && !signals_pending(); first += o->B) {
        const int64_t count = n - first < o->B ? n - first : o->B;
        for (int64_t i = 0; i < count; i++) {
            char *window = e->batch + i * window_bytes;
            const int64_t number = spread(first + i, n, e->val->num_windows);
            if (!shards_read_window(e->val, number, o->config.V, window, err)) return false;
            if (e->byte_count) e->bytes += bytes_of_window(e, window);
        }
        gpt2_load_batch(e->model, e->batch, count, e->val->token_bytes);
        gpt2_forward(e->model);
        device_copy_to_host(e->losses, gpt2_sequence_losses(e->model).data, (size_t)count * sizeof *e->losses,
                            STREAM_COMPUTE);
        device_sync();
        for (int64_t i = 0; i < count; i++) e->sum += e->losses[i];
        e->windows += count;
    }
    return true;
}

bool evaluate_loss(Gpt2 *model, const ShardSet *val, int64_t windows, const Tokenizer *tokenizer,
                   ValidationScore *score, Error *err) {
    const Gpt2Options *o = gpt2_options(model);
    const int64_t n = windows > 0 && windows < val->num_windows ? windows : val->num_windows;
    Evaluation e = {.model = model, .val = val};
    e.batch = host_alloc((size_t)(o->B * (o->T + 1) * val->token_bytes), err);
    e.losses = e.batch ? host_alloc((size_t)o->B * sizeof *e.losses, err) : NULL;
    e.byte_count = tokenizer ? bytes_of_tokens(tokenizer, o->config.V) : NULL;
    bool ok = e.losses != NULL;
    if (ok && tokenizer && !e.byte_count) ok = error_set(err, "validation: out of memory");
    ok = ok && sum_losses(&e, n, err);
    if (e.losses) host_free(e.losses);
    if (e.batch) host_free(e.batch);
    free(e.byte_count);
    memset(score, 0, sizeof *score);
    score->loss = NAN;
    if (!ok || e.windows < n) return ok; // failed, or interrupted by a signal
    score->tokens = n * o->T;
    score->bytes = e.bytes;
    score->loss = e.sum / (double)score->tokens;
    if (e.bytes > 0) score->bits_per_byte = e.sum / (log(2.0) * (double)e.bytes);
    return true;
}
