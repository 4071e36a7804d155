// Validation, see validation.h. Owns the buffers of one evaluation: a batch of windows, their
// losses, the bytes of every token of the vocabulary.
#include "llmc/train/validation.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/signals.h"
#include "llmc/comm/comm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    Model *model;
    const ShardSet *val;
    char *batch;          // (B, T+1) tokens
    float *losses;        // (B), sums over T
    uint32_t *byte_count; // (V) of each token; NULL: the tokenizer is not known
    double sum;
    int64_t windows, bytes; // done
} Evaluation;

// The message of a process about its batch of a round; the losses follow.
typedef struct {
    int32_t failed, signal;
    int64_t bytes;
} BatchHead;

// The losses of windows [first, first + count) of n, into e->losses; their bytes into *bytes.
static bool compute_losses(Evaluation *e, int64_t first, int64_t count, int64_t n, int64_t *bytes,
                           Error *err) {
    const ModelOptions *o = model_options(e->model);
    const int64_t window_bytes = (o->T + 1) * e->val->token_bytes;

    for (int64_t i = 0; i < count; i++) {
        char *window = e->batch + i * window_bytes;
        // Spread evenly over all windows: the same ones at every evaluation.
        const int64_t number =
            (int64_t)((double)(first + i) * (double)e->val->num_windows / (double)n);
        if (!shards_read_window(e->val, number, o->config.V, window, err)) return false;
        for (int64_t t = 1; e->byte_count && t <= e->val->T; t++) { // all tokens but the first
            uint16_t narrow;
            uint32_t token;
            memcpy(&narrow, window + t * 2, sizeof narrow);
            token = narrow;
            if (e->val->token_bytes == 4) memcpy(&token, window + t * 4, sizeof token);
            *bytes += e->byte_count[token]; // below V: shards_read_window has checked it
        }
    }

    model_load_batch(e->model, e->batch, count, o->T, e->val->token_bytes);
    model_forward(e->model);
    copy_d2h(e->losses, model_sequence_losses(e->model).data, (size_t)count * sizeof *e->losses,
             STREAM_COMPUTE);
    device_sync();
    return true;
}

// Sums the losses of all n windows, or of those before a signal. In each round every process
// computes one batch, and all add the losses in the order of windows, so that the sum does not
// depend on the number of processes.
static bool sum_losses(Evaluation *e, int64_t n, Error *err) {
    const int64_t B = model_options(e->model)->B, processes = comm_size();
    const size_t message = sizeof(BatchHead) + (size_t)B * sizeof(float);
    char *mine = calloc(1, message), *all = malloc((size_t)processes * message);
    REQUIRE_MEMORY(mine && all, "the losses of a batch");

    bool ok = true;
    for (int64_t round = 0; ok && round < n && !signals_pending(); round += processes * B) {
        const int64_t first = round + comm_rank() * B, count = max_i64(min_i64(n - first, B), 0);
        BatchHead head = {.signal = signals_received()};
        const bool computed = count == 0 || compute_losses(e, first, count, n, &head.bytes, err);
        head.failed = !computed;
        memcpy(mine, &head, sizeof head);
        memcpy(mine + sizeof head, e->losses, (size_t)count * sizeof(float));

        ok = comm_gather(mine, all, message, err);
        int signal = 0;
        bool failed = false;
        for (int64_t p = 0; ok && p < processes; p++) {
            memcpy(&head, all + (size_t)p * message, sizeof head);
            failed = failed || head.failed;
            if (signal == 0) signal = head.signal;
            e->bytes += head.bytes;
            for (int64_t i = 0; i < B && round + p * B + i < n; i++) {
                float loss;
                memcpy(&loss, all + (size_t)p * message + sizeof head + (size_t)i * sizeof loss,
                       sizeof loss);
                e->sum += loss;
                e->windows++;
            }
        }

        if (ok && failed) ok = comm_all_ok(computed, err);
        if (ok && processes > 1) signals_agree(signal);
    }

    free(mine);
    free(all);
    return ok;
}

bool evaluate_loss(Model *model, const ShardSet *val, int64_t windows, const Tokenizer *tokenizer,
                   ValidationScore *score, Error *err) {
    const ModelOptions *o = model_options(model);
    const int64_t n = min_i64(positive_or(windows, val->num_windows), val->num_windows);
    Evaluation e = {.model = model, .val = val};
    e.batch = host_alloc((size_t)(o->B * (o->T + 1) * val->token_bytes), err);
    if (e.batch) e.losses = host_alloc((size_t)o->B * sizeof *e.losses, err);

    int64_t known = 0;
    if (tokenizer) {
        known = min_i64(tokenizer_vocab(tokenizer), o->config.V);
        e.byte_count = calloc((size_t)o->config.V, sizeof *e.byte_count);
        REQUIRE_MEMORY(e.byte_count, "the bytes of the tokens");
    }
    for (int32_t token = 0; token < known; token++) {
        size_t length;
        tokenizer_decode(tokenizer, token, &length);
        if (!tokenizer_is_special(tokenizer, token)) e.byte_count[token] = (uint32_t)length;
    }

    bool ok = false;
    if (e.losses) ok = sum_losses(&e, n, err);
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

bool evaluate_sources(Model *model, const Sources *val, int64_t windows, const Tokenizer *tokenizer,
                      ValidationScore each[MIXTURE_MAX], ValidationScore *total, Error *err) {
    const int count = val->mixture.count;
    double loss = 0.0, bytes = 0.0; // of a token
    *total = (ValidationScore){.loss = NAN};
    ValidationScore sum = {0};
    for (int i = 0; i < count; i++) {
        if (!evaluate_loss(model, &val->sets[i], windows, tokenizer, &each[i], err)) return false;
        if (each[i].tokens == 0) return true; // a signal came
        const double share = mixture_share(&val->mixture, i);
        loss += share * each[i].loss;
        bytes += share * (double)each[i].bytes / (double)each[i].tokens;
        sum.tokens += each[i].tokens;
        sum.bytes += each[i].bytes;
    }

    sum.loss = loss;
    if (bytes > 0.0) sum.bits_per_byte = loss / (log(2.0) * bytes);
    *total = sum;
    if (count == 1) *total = each[0];
    return true;
}
