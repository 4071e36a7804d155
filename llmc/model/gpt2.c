// One micro-step of GPT-2, in the order in which it runs, from top to bottom. Every line is an op of ops.h or a linear
// layer, which is also one op except with --fp8. gpt2_memory.c decides where the tensors are.
//
//   forward   embedding -> L x block -> final layernorm -> head + loss
//   backward  head -> final layernorm -> L x block, last first -> embedding
//
// Which activations of a block are kept in between is chosen block by block (recompute.h); the others are recomputed.
#include "llmc/model/gpt2_internal.h"

static int num_heads(const Block *b) { return (int)b->model->options.config.NH; }

// ----------------------------------------------------------------------------------------------------- linear layers

Tensor linear_weight(const BlockParams *p, LinearLayer layer) {
    const Tensor weights[NUM_LINEARS] = {p->qkvw, p->attprojw, p->fcw, p->fcprojw};
    return weights[layer];
}
Tensor linear_bias(const BlockParams *p, LinearLayer layer) {
    const Tensor biases[NUM_LINEARS] = {p->qkvb, p->attprojb, p->fcb, p->fcprojb};
    return biases[layer];
}

// The forward pass has already counted what the backward pass repeats.
static void observe_once(const Block *b, LinearLayer layer, Role role, Tensor t) {
    if (b->pass == PASS_FORWARD) observe(b->model, layer, role, t);
}

// out (B,T,OC) = in (B,T,IC) @ weight^T + bias.
static void linear_forward(const Block *b, LinearLayer layer, Tensor out, Tensor in) {
    observe_once(b, layer, ROLE_IN, in);
    if (b->model->options.fp8)
        fp8_forward(b, layer, out, in);
    else
        matmul_forward(out, in, linear_weight(&b->p, layer), linear_bias(&b->p, layer));
    observe_once(b, layer, ROLE_OUT, out);
}

// pre = in @ weight^T + bias; out = gelu(pre). For LINEAR_FC.
static void linear_gelu_forward(const Block *b, Tensor out, Tensor pre, Tensor in) {
    observe_once(b, LINEAR_FC, ROLE_IN, in);
    if (b->model->options.fp8) {
        fp8_forward(b, LINEAR_FC, pre, in);
        gelu_forward(out, pre);
    } else {
        matmul_gelu_forward(out, pre, in, b->p.fcw, b->p.fcb);
    }
    observe_once(b, LINEAR_FC, ROLE_OUT, pre);
}

// From dout (B,T,OC): the gradients of weight and bias into b->g, and din (B,T,IC). in is the input of the forward
// pass.
static void linear_backward(const Block *b, LinearLayer layer, Tensor din, Tensor dout, Tensor in, bool accumulate) {
    observe(b->model, layer, ROLE_GRADIENT, dout);
    if (b->model->options.fp8) {
        fp8_backward(b, layer, din, dout, in, accumulate);
        return;
    }
    matmul_backward_weight(linear_weight(&b->g, layer), linear_bias(&b->g, layer), dout, in, accumulate);
    matmul_backward_input(din, dout, linear_weight(&b->p, layer));
}

// The same through the GELU before LINEAR_FCPROJ: dpre = (dout @ weight) * gelu'(pre); in is gelu(pre), which dpre may
// overlap.
static void linear_gelu_backward(const Block *b, Tensor dpre, Tensor dout, Tensor in, Tensor pre, bool accumulate) {
    observe(b->model, LINEAR_FCPROJ, ROLE_GRADIENT, dout);
    if (b->model->options.fp8) {
        fp8_backward(b, LINEAR_FCPROJ, dpre, dout, in, accumulate);
        gelu_backward(dpre, dpre, pre);
        return;
    }
    matmul_backward_weight(b->g.fcprojw, b->g.fcprojb, dout, in, accumulate);
    matmul_gelu_backward_input(dpre, dout, b->p.fcprojw, pre);
}

// ----------------------------------------------------------------------------------------------------------- forward

// One transformer block, forward. The residual addition that ends a block is fused with the layernorm that follows it,
// so a block begins with ln1 done and leaves its last branch, fcproj, for the next block (or the final layernorm) to
// add.
//   ln1 -> qkv -> attention -> proj -> (+ residual, ln2) -> fc -> gelu -> fcproj
static void block_forward(const Block *b) {
    const BlockActs *a = &b->a;
    linear_forward(b, LINEAR_QKV, a->qkv, a->ln1);           // (B,T,3C)
    attention_forward(a->att, a->lse, a->qkv, num_heads(b)); // (B,T,C), (B,NH,T)
    linear_forward(b, LINEAR_ATTPROJ, a->proj, a->att);
    residual_layernorm_forward(a->residual2, a->ln2, a->ln2_mean, a->ln2_rstd, a->residual1, a->proj, b->p.ln2w,
                               b->p.ln2b);
    linear_gelu_forward(b, a->gelu, a->pre, a->ln2); // (B,T,4C)
}

// ------------------------------------------------------------------------------------------------------- recomputation

// The backward pass of a block requests each tensor before it reads it. A tensor that was not kept is recomputed at
// that moment, by the same op on the same inputs, so with the same bits; an op requests its own inputs first. Nothing
// is computed twice, whatever the set.

static Missing missing_of(int set) {
    return (Missing){.ln1 = set & AGAIN_LAYERNORM,
                     .ln2 = set & AGAIN_LAYERNORM,
                     .qkv = set & AGAIN_QKV,
                     .attention = set & AGAIN_ATTENTION,
                     .residual2 = set & AGAIN_ATTPROJ,
                     .pre = set & AGAIN_FC,
                     .gelu = set & AGAIN_GELU};
}

// Returns whether the tensor is missing, and marks it as present.
static bool take(bool *missing) {
    const bool was = *missing;
    *missing = false;
    return was;
}

static void need_ln1(Block *b) {
    const BlockActs *a = &b->a;
    if (take(&b->missing.ln1)) layernorm_forward(a->ln1, a->ln1_mean, a->ln1_rstd, a->residual1, b->p.ln1w, b->p.ln1b);
}

static void need_qkv(Block *b) {
    if (!take(&b->missing.qkv)) return;
    need_ln1(b);
    linear_forward(b, LINEAR_QKV, b->a.qkv, b->a.ln1);
}

static void need_attention(Block *b) {
    if (!take(&b->missing.attention)) return;
    need_qkv(b);
    attention_forward(b->a.att, b->a.lse, b->a.qkv, num_heads(b));
}

// Also provides residual2, the input of ln2.
static void need_ln2(Block *b) {
    const BlockActs *a = &b->a;
    if (take(&b->missing.residual2)) {
        need_attention(b);
        linear_forward(b, LINEAR_ATTPROJ, a->proj, a->att);
        residual_layernorm_forward(a->residual2, a->ln2, a->ln2_mean, a->ln2_rstd, a->residual1, a->proj, b->p.ln2w,
                                   b->p.ln2b);
        b->missing.ln2 = false;
    }
    if (take(&b->missing.ln2)) layernorm_forward(a->ln2, a->ln2_mean, a->ln2_rstd, a->residual2, b->p.ln2w, b->p.ln2b);
}

// Also provides pre, the input of gelu.
static void need_gelu(Block *b) {
    const BlockActs *a = &b->a;
    if (take(&b->missing.pre)) {
        need_ln2(b);
        linear_gelu_forward(b, a->gelu, a->pre, a->ln2);
        b->missing.gelu = false;
    }
    if (take(&b->missing.gelu)) gelu_forward(a->gelu, a->pre);
}

// ------------------------------------------------------------------------------------------------------------ backward

// One transformer block, backward. dresidual (B,T,C) is the gradient of the residual stream, after the block on entry
// and before the block on return; b->g receives the weight gradients.
static void block_backward(Block *b, Tensor dresidual, bool accumulate) {
    const BlockActs *a = &b->a;
    const BlockParams *p = &b->p, *g = &b->g;
    need_gelu(b);
    linear_gelu_backward(b, a->dfc, dresidual, a->gelu, a->pre, accumulate);
    need_ln2(b);
    linear_backward(b, LINEAR_FC, a->dln2, a->dfc, a->ln2, accumulate);
    layernorm_backward(dresidual, g->ln2w, g->ln2b, a->dln2, a->residual2, a->ln2_mean, a->ln2_rstd, p->ln2w, true,
                       accumulate);

    need_attention(b);
    linear_backward(b, LINEAR_ATTPROJ, a->datt, dresidual, a->att, accumulate);
    need_qkv(b);
    attention_backward(a->dqkv, a->datt, a->att, a->lse, a->qkv, num_heads(b));
    need_ln1(b);
    linear_backward(b, LINEAR_QKV, a->dln1, a->dqkv, a->ln1, accumulate);
    layernorm_backward(dresidual, g->ln1w, g->ln1b, a->dln1, a->residual1, a->ln1_mean, a->ln1_rstd, p->ln1w, true,
                       accumulate);
}

// ------------------------------------------------------------------------------------------------------- whole passes

// From tokens to the final layernorm.
static void forward_blocks(Gpt2 *model, int64_t B, int64_t T) {
    const int L = (int)model->options.config.L;
    BlockActs before = {0};
    for (int l = 0; l < L; l++) {
        const Block b = {.model = model,
                         .number = l,
                         .pass = PASS_FORWARD,
                         .p = gpt2_block_weights(model, l),
                         .a = gpt2_block_acts(model, l, PASS_FORWARD, B, T)};
        const BlockParams p = b.p;
        const BlockActs a = b.a;
        if (l == 0) {
            Tensor inputs = gpt2_act(model, ACT_INPUTS, B, T);
            embedding_forward(a.residual1, inputs, gpt2_weight(model, PARAM_WTE), gpt2_weight(model, PARAM_WPE));
            layernorm_forward(a.ln1, a.ln1_mean, a.ln1_rstd, a.residual1, p.ln1w, p.ln1b);
        } else {
            residual_layernorm_forward(a.residual1, a.ln1, a.ln1_mean, a.ln1_rstd, before.residual2, before.fcproj,
                                       p.ln1w, p.ln1b);
        }
        block_forward(&b);
        linear_forward(&b, LINEAR_FCPROJ, a.fcproj, a.gelu);
        before = a;
    }
    residual_layernorm_forward(gpt2_act(model, ACT_FINAL_RESIDUAL, B, T), gpt2_act(model, ACT_LNF, B, T),
                               gpt2_act(model, ACT_LNF_MEAN, B, T), gpt2_act(model, ACT_LNF_RSTD, B, T),
                               before.residual2, before.fcproj, gpt2_weight(model, PARAM_LNFW),
                               gpt2_weight(model, PARAM_LNFB));
}

// Adds the gradients of this micro-step to those of the step so far; the first micro-step overwrites them.
static void forward_backward(Gpt2 *model, int64_t B, int64_t T, float scale, bool first) {
    const Gpt2Options *o = &model->options;
    Tensor losses = gpt2_act(model, ACT_LOSSES, B, T), dresidual = gpt2_act(model, ACT_DRESIDUAL, B, T);
    Tensor lnf = gpt2_act(model, ACT_LNF, B, T), dlnf = gpt2_act(model, ACT_DLNF, B, T);
    Tensor wte = gpt2_weight(model, PARAM_WTE), dwte = gpt2_gradient(model, PARAM_WTE);
    // Whether ops add to the gradients in place; otherwise gpt2_add_gradients does.
    const bool accumulate = !first && gpt2_gradient_dtype(o) == DTYPE_FP32;

    forward_blocks(model, B, T);
    head_loss_backward(losses, dlnf, dwte, gpt2_act(model, ACT_LOGITS, B, T), lnf, wte,
                       gpt2_act(model, ACT_TARGETS, B, T), o->config.V, scale, gpt2_control(model), accumulate);
    sequence_losses(tensor_slice_first(gpt2_sequence_losses(model), B), losses, !first);
    layernorm_backward(dresidual, gpt2_gradient(model, PARAM_LNFW), gpt2_gradient(model, PARAM_LNFB), dlnf,
                       gpt2_act(model, ACT_FINAL_RESIDUAL, B, T), gpt2_act(model, ACT_LNF_MEAN, B, T),
                       gpt2_act(model, ACT_LNF_RSTD, B, T), gpt2_weight(model, PARAM_LNFW), false, accumulate);
    gpt2_add_gradients(model, PARAM_LNFW, PARAM_LNFB, 0, first);
    for (int l = (int)o->config.L - 1; l >= 0; l--) {
        Block b = {.model = model,
                   .number = l,
                   .pass = PASS_BACKWARD,
                   .p = gpt2_block_weights(model, l),
                   .g = gpt2_block_gradients(model, l),
                   .a = gpt2_block_acts(model, l, PASS_BACKWARD, B, T),
                   .missing = missing_of(o->recompute.blocks[l])};
        block_backward(&b, dresidual, accumulate);
        gpt2_add_gradients(model, PARAM_LN1W, PARAM_FCPROJB, l, first);
    }
    embedding_backward(dwte, gpt2_gradient(model, PARAM_WPE), dresidual, gpt2_act(model, ACT_INPUTS, B, T), accumulate);
    gpt2_add_gradients(model, PARAM_WTE, PARAM_WPE, 0, first);
    if (gpt2_gradient_dtype(o) != DTYPE_FP32) micro_step_count(gpt2_control(model));
}

void gpt2_load_batch(Gpt2 *model, const void *windows, int64_t B, int token_bytes) {
    gpt2_load_short_batch(model, windows, B, model->options.T, token_bytes);
}

void gpt2_load_short_batch(Gpt2 *model, const void *windows, int64_t B, int64_t T, int token_bytes) {
    const Gpt2Options *o = &model->options;
    REQUIRE(B >= 1 && B <= o->B && T >= 1 && T <= o->T,
            "a batch of %lld windows of %lld in a model planned for %lld of %lld", (long long)B, (long long)T,
            (long long)o->B, (long long)o->T);
    DType dtype = token_bytes == 2 ? DTYPE_U16 : DTYPE_I32;
    void *buffer = model->arena + memory_plan_offset(model->plan, model->layout.windows);
    Tensor on_device = tensor_make(buffer, dtype, "windows", B, T + 1, 0, 0);
    gpt2_use_workspace(model);
    // At most one copy is pending, so the loader's buffers are free again after two calls. The copy itself waits only
    // for the unpacking of the previous batch, and runs while that batch computes.
    if (model->copy_in_flight) device_event_wait(model->copied);
    device_stream_wait(STREAM_COPY, model->unpacked);
    device_copy_to_device(buffer, windows, tensor_bytes(on_device), STREAM_COPY);
    device_event_record(model->copied, STREAM_COPY);
    model->copy_in_flight = true;
    device_stream_wait(STREAM_COMPUTE, model->copied);
    batch_unpack(gpt2_act(model, ACT_INPUTS, B, T), gpt2_act(model, ACT_TARGETS, B, T), on_device);
    device_event_record(model->unpacked, STREAM_COMPUTE);
    model->B = B, model->T = T;
    model->decoder.sequences = model->decoder.length = 0; // its cache shares memory with the next pass
}

void gpt2_forward_backward(Gpt2 *model, int64_t tokens_in_step, bool first) {
    const int64_t B = model->B, T = model->options.T;
    REQUIRE(model->options.train, "a model made for inference cannot train");
    REQUIRE(B > 0 && model->T == T, "no batch is loaded, or a short one, which is for gpt2_forward only");
    const float scale = 1.0f / (float)tokens_in_step;
    if (first) tensor_fill(gpt2_sequence_losses(model), 0.0f); // a short micro-batch must not leave old losses
    fp8_prepare(model, false);
    if (model->observing || ops_are_observed()) { // what is observed is not part of the recording
        forward_backward(model, B, T, scale, first);
        return;
    }
    // One recording per kind of micro-step: first or not, whole or the shorter last one of a step.
    const int kind = 2 * first + (B == model->options.B);
    if (model->graphs[kind].B == B && model->graphs[kind].tokens_in_step == tokens_in_step &&
        device_graph_replay(model->graphs[kind].graph))
        return;
    model->graphs[kind].B = B, model->graphs[kind].tokens_in_step = tokens_in_step;
    device_graph_begin(model->graphs[kind].graph);
    forward_backward(model, B, T, scale, first);
    device_graph_end(model->graphs[kind].graph);
}

void gpt2_forward(Gpt2 *model) {
    const int64_t B = model->B, T = model->T;
    REQUIRE(B > 0, "no batch is loaded");
    Tensor losses = gpt2_act(model, ACT_LOSSES, B, T);
    fp8_prepare(model, true);
    forward_blocks(model, B, T);
    head_loss_forward(losses, gpt2_act(model, ACT_LOGITS, B, T), gpt2_act(model, ACT_LNF, B, T),
                      gpt2_weight(model, PARAM_WTE), gpt2_act(model, ACT_TARGETS, B, T), model->options.config.V);
    sequence_losses(tensor_slice_first(gpt2_sequence_losses(model), B), losses, false);
}

Tensor gpt2_token_losses(const Gpt2 *model) { return gpt2_act(model, ACT_LOSSES, model->B, model->T); }
