// Generation: sequences grow token by token, and the keys and values of earlier tokens stay in a
// cache. All tokens of a prompt but the last go through the blocks at once, as in the forward pass,
// and only their keys and values are kept. The last token is the first to be decoded, so that
// logits come from one place. Prompts are read one by one, so the bits of a sequence do not depend
// on the others in its batch if the ops' bits do not.
#include "llmc/model/model_decode.h"

#include "llmc/base/arithmetic.h"
#include "llmc/model/gpt2.h"
#include <string.h>

// i32 values on the device and, in the same order, in host memory: prompts (sequences, up to T),
// then the input of a step: one token of each sequence and the position.
static int64_t prompt_tokens(const ModelOptions *o) { return o->sequences * o->T; }
int64_t model_decoder_tokens(const ModelOptions *o) { return prompt_tokens(o) + o->sequences + 1; }
int64_t model_decoder_host_bytes(const ModelOptions *o) {
    return max_i64(model_decoder_tokens(o) * (int64_t)sizeof(int32_t),
                   o->sequences * o->config.Vp * (int64_t)dtype_size(o->dtype));
}

// ----------------------------------------------------------------------------------------- tensors

static int32_t *host_tokens(const Model *model) { return (int32_t *)(void *)model->decoder.host; }

// rows x cols tokens, starting at index first.
static Tensor device_tokens(const Model *model, const char *name, int64_t first, int64_t rows,
                            int64_t cols) {
    int32_t *tokens = model_at(model, model->layout.decoder_tokens);
    return tensor_make(tokens + first, DTYPE_I32, name, rows, cols, 0, 0);
}

// The cache of a block for `count` sequences, starting at `first`.
static Tensor cache_of(const Model *model, int block, int64_t first, int64_t count) {
    const ModelOptions *o = &model->options;
    const int64_t NKV = model_kv_heads(&o->config), HS = model_head_size(&o->config);
    const int64_t sequence = 2 * NKV * o->T * HS,
                  skipped = (block * o->sequences + first) * sequence;
    char *data =
        (char *)model_at(model, model->layout.cache) + skipped * (int64_t)dtype_size(o->dtype);
    return tensor_make(data, o->dtype, "cache", count, 2 * NKV, o->T, HS);
}

// ----------------------------------------------------------------------------------------- prompts

// Computes keys and values of the first n tokens of each prompt (sequences, stride) and stores them
// in the cache of its sequence. Equal neighbours are computed once. All blocks share their
// activations.
static void read_prompts(const Model *model, const int32_t *prompts, int64_t stride, int64_t n) {
    const int64_t rounded = round_up(n, 32), longest = model->options.T,
                  sequences = model->decoder.sequences;
    // Tokens after a prompt do not affect it; rounding up keeps the number of distinct shapes
    // small.
    const int64_t T = min_i64(rounded, longest);

    int32_t *host = host_tokens(model);
    memset(host, 0, (size_t)(sequences * T) * sizeof *host);
    for (int64_t s = 0; s < sequences; s++)
        memcpy(host + s * T, prompts + s * stride, (size_t)n * sizeof *host);
    Tensor all = device_tokens(model, "prompts", 0, sequences, T);
    copy_h2d(all.data, host, tensor_bytes(all), STREAM_COMPUTE);

    const ModelConfig *config = &model->options.config;
    for (int64_t s = 0, count; s < sequences; s += count) {
        count = 1;
        while (s + count < sequences &&
               memcmp(host + s * T, host + (s + count) * T, (size_t)T * sizeof *host) == 0)
            count++;
        const Tensor prompt = device_tokens(model, "prompt", s * T, 1, T);

        for (int l = 0; l < config->L; l++) {
            Block b = model_block(model, l, PASS_PROMPT, 1, T);
            b.cache = cache_of(model, l, s, count);
            if (l == 0) gpt2_embedding_forward(config, b.a.residual1, prompt, b.p.wte, b.p.wpe);
            block_forward(&b, b.a.residual1);
        }
    }
}

// ----------------------------------------------------------------------------------------- a token

// From the embedded tokens in residual1 to the logits (sequences, Vp).
static void decode_blocks(const Model *model, Tensor logits) {
    Block b = {0};
    const int64_t sequences = model->decoder.sequences;

    for (int l = 0; l < model->options.config.L; l++) {
        b = model_block(model, l, PASS_TOKEN, sequences, 1);
        b.cache = cache_of(model, l, 0, sequences);
        b.position =
            device_tokens(model, "position", prompt_tokens(&model->options) + sequences, 1, 1);
        block_forward(&b, b.a.residual1);
    }

    const BlockActs *a = &b.a;
    gpt2_norm_forward(&model->options.config, a->ln1, a->ln1_mean, a->ln1_rstd, a->residual1,
                      b.p.lnfw, b.p.lnfb);
    matmul_forward(logits, a->ln1, gpt2_head_weight(&b.p), tensor_none());
}

static void check_decoder_tokens(const Model *model, const int32_t *tokens, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        REQUIRE(tokens[i] >= 0 && tokens[i] < model->options.config.V,
                "token %d in a vocabulary of %lld", tokens[i], (long long)model->options.config.V);
}

// Tokens and position are adjacent in pinned memory and are uploaded with one copy. The ops read
// the position on the device, so that one recording serves every token. Only the row of wpe is
// selected by the host, so the embedding stays outside the recording.
static void decode_token(Model *model, float *logits) {
    const ModelOptions *o = &model->options;
    Decoder *d = &model->decoder;
    const int64_t Vp = o->config.Vp, V = o->config.V, first = prompt_tokens(o), S = d->sequences;
    Tensor on_device =
        tensor_make(model_at(model, model->layout.decoder_logits), o->dtype, "logits", S, Vp, 0, 0);

    int32_t *host = host_tokens(model) + first;
    host[S] = (int32_t)d->length;
    Tensor inputs = device_tokens(model, "tokens", first, S, 1);
    copy_h2d(inputs.data, host, (size_t)(S + 1) * sizeof *host, STREAM_COMPUTE);

    const Block b = model_block(model, 0, PASS_TOKEN, S, 1);
    Tensor wpe = b.p.wpe;
    if (wpe.data) wpe = tensor_slice_rows(wpe, d->length, tensor_rows(wpe) - d->length);
    gpt2_embedding_forward(&o->config, b.a.residual1, inputs, b.p.wte, wpe);
    if (ops_are_observed()) {
        decode_blocks(model, on_device);
    } else if (d->recorded != S || !device_graph_replay(d->graph)) {
        d->recorded = S;
        device_graph_begin(d->graph);
        decode_blocks(model, on_device);
        device_graph_end(d->graph);
    }

    copy_d2h(d->host, on_device.data, tensor_bytes(on_device), STREAM_COMPUTE);
    device_sync();
    for (int64_t s = 0; s < S; s++)
        convert_elements(logits + s * V, DTYPE_FP32,
                         d->host + (size_t)(s * Vp) * dtype_size(o->dtype), o->dtype, V);
    d->length++;
}

void model_decode_step(Model *model, const int32_t *tokens, float *logits) {
    const ModelOptions *o = &model->options;
    const Decoder *d = &model->decoder;
    REQUIRE(d->sequences > 0,
            "model_decode_step: nothing was begun, or another pass of the model has ended it");
    REQUIRE(d->length < o->T, "model_decode_step: %lld tokens in a context of %lld",
            (long long)d->length + 1, (long long)o->T);

    check_decoder_tokens(model, tokens, d->sequences);
    model_use_workspace(model);
    memcpy(host_tokens(model) + prompt_tokens(o), tokens, (size_t)d->sequences * sizeof *tokens);
    decode_token(model, logits);
}

void model_decode_start(Model *model, const int32_t *prompts, int64_t n, int64_t sequences,
                        float *logits) {
    const ModelOptions *o = &model->options;
    Decoder *d = &model->decoder;
    REQUIRE(n >= 1 && n <= o->T, "a prompt of %lld tokens in a context of %lld", (long long)n,
            (long long)o->T);
    REQUIRE(sequences >= 1 && sequences <= o->sequences,
            "%lld sequences in a model planned for %lld", (long long)sequences,
            (long long)o->sequences);
    check_decoder_tokens(model, prompts, n * sequences);

    model->B = 0; // a loaded batch is where the cache will be
    model_use_workspace(model);
    d->sequences = sequences;
    if (n > 1) read_prompts(model, prompts, n, n - 1);
    d->length = n - 1;

    // not over the prompts, whose copy may still be running
    int32_t *last = host_tokens(model) + prompt_tokens(o);
    for (int64_t s = 0; s < sequences; s++) last[s] = prompts[s * n + n - 1];
    decode_token(model, logits);
}

int64_t model_decode_length(const Model *model) { return model->decoder.length; }
