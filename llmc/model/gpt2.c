// One micro-step of GPT-2, in the order in which it runs: read it from top to bottom. Every line is an op of ops.h;
// where the tensors live is gpt2_memory.c's business.
//   forward   embedding -> L x block -> final layernorm -> head + loss
//   backward  head -> final layernorm -> L x block, last first -> embedding
#include "llmc/model/gpt2_internal.h"

// One transformer block, forward. The residual addition that ends a block is fused with the layernorm that follows it,
// so a block begins with ln1 done and leaves its last branch, fcproj, for the next block (or the final layernorm) to
// add.
//   ln1 -> qkv -> attention -> proj -> (+ residual, ln2) -> fc -> gelu -> fcproj
static void block_forward(const BlockParams *p, BlockActs *a, int num_heads) {
    matmul_forward(a->qkv, a->ln1, p->qkvw, p->qkvb);     // (B,T,3C)
    attention_forward(a->att, a->lse, a->qkv, num_heads); // (B,T,C), (B,NH,T)
    gpt2_block_mlp(p, a);
}

void gpt2_block_mlp(const BlockParams *p, BlockActs *a) {
    matmul_forward(a->proj, a->att, p->attprojw, p->attprojb);
    residual_layernorm_forward(a->residual2, a->ln2, a->ln2_mean, a->ln2_rstd, a->residual1, a->proj, p->ln2w, p->ln2b);
    matmul_gelu_forward(a->gelu, a->pre, a->ln2, p->fcw, p->fcb); // (B,T,4C)
}

// What the backward pass of a block finds missing at this recompute level, computed again: the same ops on the same
// inputs, so the same bits. GELU and layernorm (levels 1 and 2) are restored just before they are read, in
// block_backward.
static void block_recompute(const BlockParams *p, BlockActs *a, int num_heads) {
    layernorm_forward(a->ln1, a->ln1_mean, a->ln1_rstd, a->residual1, p->ln1w, p->ln1b);
    block_forward(p, a, num_heads);
}

// One transformer block, backward. dresidual (B,T,C) holds the gradient of the residual stream after the block and
// leaves as the gradient before it; g receives the weight gradients.
static void block_backward(const BlockParams *p, const BlockParams *g, BlockActs *a, Tensor dresidual, int num_heads,
                           int recompute, bool accumulate) {
    const bool again_gelu = recompute == RECOMPUTE_GELU || recompute == RECOMPUTE_LAYERNORM;
    const bool again_layernorm = recompute == RECOMPUTE_LAYERNORM;
    if (recompute == RECOMPUTE_BLOCK) block_recompute(p, a, num_heads);

    if (again_gelu) gelu_forward(a->gelu, a->pre);
    matmul_backward_weight(g->fcprojw, g->fcprojb, dresidual, a->gelu, accumulate);
    matmul_gelu_backward_input(a->dfc, dresidual, p->fcprojw, a->pre);
    if (again_layernorm) layernorm_forward(a->ln2, a->ln2_mean, a->ln2_rstd, a->residual2, p->ln2w, p->ln2b);
    matmul_backward_weight(g->fcw, g->fcb, a->dfc, a->ln2, accumulate);
    matmul_backward_input(a->dln2, a->dfc, p->fcw);
    layernorm_backward(dresidual, g->ln2w, g->ln2b, a->dln2, a->residual2, a->ln2_mean, a->ln2_rstd, p->ln2w, true,
                       accumulate);

    matmul_backward_weight(g->attprojw, g->attprojb, dresidual, a->att, accumulate);
    matmul_backward_input(a->datt, dresidual, p->attprojw);
    attention_backward(a->dqkv, a->datt, a->att, a->lse, a->qkv, num_heads);
    if (again_layernorm) layernorm_forward(a->ln1, a->ln1_mean, a->ln1_rstd, a->residual1, p->ln1w, p->ln1b);
    matmul_backward_weight(g->qkvw, g->qkvb, a->dqkv, a->ln1, accumulate);
    matmul_backward_input(a->dln1, a->dqkv, p->qkvw);
    layernorm_backward(dresidual, g->ln1w, g->ln1b, a->dln1, a->residual1, a->ln1_mean, a->ln1_rstd, p->ln1w, true,
                       accumulate);
}

// From tokens to the final layernorm.
static void forward_blocks(Gpt2 *model, int64_t B, int64_t T) {
    const int L = (int)model->options.config.L, num_heads = (int)model->options.config.NH;
    BlockActs before = {0};
    for (int l = 0; l < L; l++) {
        BlockParams p = gpt2_block_weights(model, l);
        BlockActs a = gpt2_block_acts(model, l, PASS_FORWARD, B, T);
        if (l == 0) {
            Tensor inputs = gpt2_act(model, ACT_INPUTS, B, T);
            embedding_forward(a.residual1, inputs, gpt2_weight(model, PARAM_WTE), gpt2_weight(model, PARAM_WPE));
            layernorm_forward(a.ln1, a.ln1_mean, a.ln1_rstd, a.residual1, p.ln1w, p.ln1b);
        } else {
            residual_layernorm_forward(a.residual1, a.ln1, a.ln1_mean, a.ln1_rstd, before.residual2, before.fcproj,
                                       p.ln1w, p.ln1b);
        }
        block_forward(&p, &a, num_heads);
        matmul_forward(a.fcproj, a.gelu, p.fcprojw, p.fcprojb);
        before = a;
    }
    residual_layernorm_forward(gpt2_act(model, ACT_FINAL_RESIDUAL, B, T), gpt2_act(model, ACT_LNF, B, T),
                               gpt2_act(model, ACT_LNF_MEAN, B, T), gpt2_act(model, ACT_LNF_RSTD, B, T),
                               before.residual2, before.fcproj, gpt2_weight(model, PARAM_LNFW),
                               gpt2_weight(model, PARAM_LNFB));
}

static void forward_backward(Gpt2 *model, int64_t B, int64_t T, float scale, bool accumulate) {
    const Gpt2Options *o = &model->options;
    Tensor losses = gpt2_act(model, ACT_LOSSES, B, T), dresidual = gpt2_act(model, ACT_DRESIDUAL, B, T);
    Tensor lnf = gpt2_act(model, ACT_LNF, B, T), dlnf = gpt2_act(model, ACT_DLNF, B, T);
    Tensor wte = gpt2_weight(model, PARAM_WTE), dwte = gpt2_gradient(model, PARAM_WTE);

    forward_blocks(model, B, T);
    head_loss_backward(losses, dlnf, dwte, gpt2_act(model, ACT_LOGITS, B, T), lnf, wte,
                       gpt2_act(model, ACT_TARGETS, B, T), o->config.V, scale, gpt2_control(model), accumulate);
    sequence_losses(tensor_slice_first(gpt2_sequence_losses(model), B), losses, accumulate);
    layernorm_backward(dresidual, gpt2_gradient(model, PARAM_LNFW), gpt2_gradient(model, PARAM_LNFB), dlnf,
                       gpt2_act(model, ACT_FINAL_RESIDUAL, B, T), gpt2_act(model, ACT_LNF_MEAN, B, T),
                       gpt2_act(model, ACT_LNF_RSTD, B, T), gpt2_weight(model, PARAM_LNFW), false, accumulate);
    for (int l = (int)o->config.L - 1; l >= 0; l--) {
        BlockParams p = gpt2_block_weights(model, l), g = gpt2_block_gradients(model, l);
        BlockActs a = gpt2_block_acts(model, l, PASS_BACKWARD, B, T);
        block_backward(&p, &g, &a, dresidual, (int)o->config.NH, o->recompute, accumulate);
    }
    embedding_backward(dwte, gpt2_gradient(model, PARAM_WPE), dresidual, gpt2_act(model, ACT_INPUTS, B, T), accumulate);
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
    // At most one copy waits for its turn, so the loader's buffers are free again after two calls; the copy itself
    // waits only for the unpacking of the batch before, and runs while that batch computes.
    if (model->copy_in_flight) device_event_wait(model->copied);
    device_stream_wait(STREAM_COPY, model->unpacked);
    device_copy_to_device(buffer, windows, tensor_bytes(on_device), STREAM_COPY);
    device_event_record(model->copied, STREAM_COPY);
    model->copy_in_flight = true;
    device_stream_wait(STREAM_COMPUTE, model->copied);
    batch_unpack(gpt2_act(model, ACT_INPUTS, B, T), gpt2_act(model, ACT_TARGETS, B, T), on_device);
    device_event_record(model->unpacked, STREAM_COMPUTE);
    model->B = B, model->T = T;
    model->decoder.sequences = model->decoder.length = 0; // its cache shares memory with what follows
}

void gpt2_forward_backward(Gpt2 *model, int64_t tokens_in_step, bool first) {
    const int64_t B = model->B, T = model->options.T;
    REQUIRE(model->options.train, "a model made for inference cannot train");
    REQUIRE(B > 0 && model->T == T, "no batch is loaded, or a short one, which is for gpt2_forward only");
    const float scale = 1.0f / (float)tokens_in_step;
    if (first) tensor_fill(gpt2_sequence_losses(model), 0.0f); // a short micro-batch leaves no old losses behind
    // One recording per kind of micro-step: first or not, whole or the shorter last one of a step.
    const int kind = 2 * first + (B == model->options.B);
    if (model->graphs[kind].B == B && model->graphs[kind].tokens_in_step == tokens_in_step &&
        device_graph_replay(model->graphs[kind].graph))
        return;
    model->graphs[kind].B = B, model->graphs[kind].tokens_in_step = tokens_in_step;
    device_graph_begin(model->graphs[kind].graph);
    forward_backward(model, B, T, scale, !first);
    device_graph_end(model->graphs[kind].graph);
}

void gpt2_forward(Gpt2 *model) {
    const int64_t B = model->B, T = model->T;
    REQUIRE(B > 0, "no batch is loaded");
    Tensor losses = gpt2_act(model, ACT_LOSSES, B, T);
    forward_blocks(model, B, T);
    head_loss_forward(losses, gpt2_act(model, ACT_LOGITS, B, T), gpt2_act(model, ACT_LNF, B, T),
                      gpt2_weight(model, PARAM_WTE), gpt2_act(model, ACT_TARGETS, B, T), model->options.config.V);
    sequence_losses(tensor_slice_first(gpt2_sequence_losses(model), B), losses, false);
}

Tensor gpt2_token_losses(const Gpt2 *model) { return gpt2_act(model, ACT_LOSSES, model->B, model->T); }
