#include "llmc/train/evals.h"

#include <stdlib.h>

// Window i of n, spread evenly over all of them: the same ones at every evaluation.
static int64_t spread(int64_t i, int64_t n, int64_t all) { return (int64_t)((double)i * (double)all / (double)n); }

static bool sum_losses(Gpt2 *model, const ShardSet *val, int64_t n, char *batch, float *losses, double *sum,
                       Error *err) {
    const Gpt2Options *o = gpt2_options(model);
    const int64_t window_bytes = (o->T + 1) * val->token_bytes;
    *sum = 0.0;
    for (int64_t first = 0; first < n; first += o->B) {
        const int64_t count = n - first < o->B ? n - first : o->B;
        for (int64_t i = 0; i < count; i++) {
            int64_t window = spread(first + i, n, val->num_windows);
            if (!shards_read_window(val, window, o->config.V, batch + i * window_bytes, err)) return false;
        }
        gpt2_load_batch(model, batch, count, val->token_bytes);
        gpt2_forward(model);
        device_copy_to_host(losses, gpt2_sequence_losses(model).data, (size_t)count * sizeof *losses, STREAM_COMPUTE);
        device_sync();
        for (int64_t i = 0; i < count; i++) *sum += losses[i];
    }
    return true;
}

bool evaluate_loss(Gpt2 *model, const ShardSet *val, int64_t windows, double *loss, int64_t *tokens, Error *err) {
    const Gpt2Options *o = gpt2_options(model);
    const int64_t n = windows > 0 && windows < val->num_windows ? windows : val->num_windows;
    char *batch = host_alloc((size_t)(o->B * (o->T + 1) * val->token_bytes), err);
    float *losses = batch ? host_alloc((size_t)o->B * sizeof *losses, err) : NULL;
    double sum = 0.0;
    bool ok = losses && sum_losses(model, val, n, batch, losses, &sum, err);
    if (losses) host_free(losses);
    if (batch) host_free(batch);
    *tokens = n * o->T;
    *loss = sum / (double)*tokens;
    return ok;
}
