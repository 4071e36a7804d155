// GPT-2's forward and backward pass, in the order in which they run, from top to bottom. Every line
// is an op of ops.h or a linear layer: one op forward, two backward, more with --fp8. model.c runs
// these parts, model_memory.c decides where the tensors are.
//
//   forward   embedding -> L x block -> final layernorm -> head + loss
//   backward  head -> final layernorm -> L x block, last first -> embedding
//
// Which activations of a block are kept in between is chosen block by block (recompute.h); the others are recomputed.
#include "llmc/model/gpt2.h"
#include "llmc/model/model_fp8.h"
#include "llmc/model/model_numerics.h"
#include "llmc/model/model_tensors.h"

static int num_heads(const Block *b) { return (int)b->model->options.config.NH; }

// ------------------------------------------------------------------------------------------------------- linear layers

// The forward pass has already counted what the backward pass repeats.
static void observe_once(const Block *b, LinearLayer layer, Role role, Tensor t) {
    if (b->pass == PASS_FORWARD) model_observe_tensor(b->model, layer, role, t);
}

// Decoding uses the weights as they are.
static bool in_fp8(const Block *b) {
    return b->model->options.fp8 && (b->pass == PASS_FORWARD || b->pass == PASS_BACKWARD);
}

// out (B,T,OC) = residual (B,T,OC), which may be absent, + in (B,T,IC) @ weight^T + bias.
static void linear_forward(const Block *b, LinearLayer layer, Tensor out, Tensor residual, Tensor in, Tensor weight,
                           Tensor bias) {
    observe_once(b, layer, ROLE_IN, in);
    if (in_fp8(b))
        model_fp8_forward(b, layer, out, residual, in, bias);
    else if (residual.data)
        matmul_residual_forward(out, residual, in, weight, bias);
    else
        matmul_forward(out, in, weight, bias);
    observe_once(b, layer, ROLE_OUT, out);
}

// pre = in @ weight^T + bias; out = gelu(pre).
static void linear_gelu_forward(const Block *b, LinearLayer layer, Tensor out, Tensor pre, Tensor in, Tensor weight,
                                Tensor bias) {
    observe_once(b, layer, ROLE_IN, in);
    if (in_fp8(b)) {
        model_fp8_forward(b, layer, pre, tensor_none(), in, bias);
        gelu_forward(out, pre);
    } else {
        matmul_gelu_forward(out, pre, in, weight, bias);
    }
    observe_once(b, layer, ROLE_OUT, pre);
}

// From dout (B,T,OC): din (B,T,IC), dweight and dbias, which is absent where another op sums dout. in is the input of
// the forward pass.
static void linear_backward(const Block *b, LinearLayer layer, Tensor din, Tensor dweight, Tensor dbias, Tensor dout,
                            Tensor in, Tensor weight) {
    model_observe_tensor(b->model, layer, ROLE_GRADIENT, dout);
    if (in_fp8(b)) {
        model_fp8_backward(b, layer, din, dweight, dbias, dout, in);
        return;
    }
    matmul_backward_input(din, dout, weight);
    matmul_backward_weight(dweight, dbias, dout, in, b->accumulate); // last: with --overlap beside the next op
}

// The same through the GELU before the layer: dpre = (dout @ weight) * gelu'(pre); in is gelu(pre), which dpre may
// overlap. dbias_before, of the layer before the GELU, is made on the way where the GELU is a kernel, and then becomes
// absent.
static void linear_gelu_backward(const Block *b, LinearLayer layer, Tensor dpre, Tensor *dbias_before, Tensor dweight,
                                 Tensor dbias, Tensor dout, Tensor in, Tensor pre, Tensor weight) {
    model_observe_tensor(b->model, layer, ROLE_GRADIENT, dout);
    if (in_fp8(b)) {
        model_fp8_backward(b, layer, dpre, dweight, dbias, dout, in);
        gelu_backward(dpre, *dbias_before, dpre, pre, b->accumulate);
        *dbias_before = tensor_none();
        return;
    }
    matmul_backward_weight(dweight, dbias, dout, in, b->accumulate);
    matmul_gelu_backward_input(dpre, dout, weight, pre, dbias_before, b->accumulate);
}

// ------------------------------------------------------------------------------------------------------------- forward

// Stores keys and values of a prompt in the cache of each sequence that begins with it.
static void keep_prompt(const Block *b) {
    Tensor cache = tensor_slice_first(b->cache, 1);
    for (int64_t s = 0; s < b->cache.shape[0]; s++) {
        kv_cache_store(cache, b->a.qkv, 0);
        cache.data = (char *)cache.data + tensor_bytes(cache);
    }
}

// One transformer block, forward.
//   residual1 -> ln1 -> qkv -> attention -> attproj (+ residual1) -> residual2 -> ln2 -> fc -> gelu -> fcproj
//   (+ residual2) -> out
// The last matmul of each branch adds the residual stream that the branch began with. out is residual1 of the next
// block, or the input of the final layernorm.
void block_forward(const Block *b, Tensor out) {
    const BlockActs *a = &b->a;
    const Weights *p = &b->p;
    layernorm_forward(a->ln1, a->ln1_mean, a->ln1_rstd, a->residual1, p->ln1w, p->ln1b, 1e-5f); // (B,T,C)
    linear_forward(b, LINEAR_QKV, a->qkv, tensor_none(), a->ln1, p->qkvw, p->qkvb);             // (B,T,3C)
    if (b->pass == PASS_TOKEN) {
        attention_decode(a->att, b->cache, a->qkv, b->position);
    } else {
        if (b->pass == PASS_PROMPT) keep_prompt(b);
        if (b->pass == PASS_PROMPT && b->number == b->model->options.config.L - 1) return; // nobody reads its output
        attention_forward(a->att, a->lse, a->qkv, num_heads(b), num_heads(b));             // (B,T,C), (B,NH,T)
    }
    linear_forward(b, LINEAR_ATTPROJ, a->residual2, a->residual1, a->att, p->attprojw, p->attprojb);
    layernorm_forward(a->ln2, a->ln2_mean, a->ln2_rstd, a->residual2, p->ln2w, p->ln2b, 1e-5f);
    linear_gelu_forward(b, LINEAR_FC, a->gelu, a->pre, a->ln2, p->fcw, p->fcb); // (B,T,d_ff)
    linear_forward(b, LINEAR_FCPROJ, out, a->residual2, a->gelu, p->fcprojw, p->fcprojb);
}

// ------------------------------------------------------------------------------------------------------- recomputation

// The backward pass of a block requests each tensor before it reads it. A tensor that was not kept is recomputed at
// that moment, by the same op on the same inputs, so with the same bits; an op requests its own inputs first. Within
// the backward pass no op runs twice.

// Returns whether the results of this op are missing, and marks them as present.
static bool take_missing(Block *b, int op) {
    const bool missing = b->missing & op;
    b->missing &= ~op;
    return missing;
}

static void need_ln1(Block *b) {
    const BlockActs *a = &b->a;
    if (take_missing(b, RECOMPUTE_LAYERNORM))
        layernorm_forward(a->ln1, a->ln1_mean, a->ln1_rstd, a->residual1, b->p.ln1w, b->p.ln1b, 1e-5f);
}

static void need_qkv(Block *b) {
    if (!take_missing(b, RECOMPUTE_QKV)) return;
    need_ln1(b);
    linear_forward(b, LINEAR_QKV, b->a.qkv, tensor_none(), b->a.ln1, b->p.qkvw, b->p.qkvb);
}

static void need_attention(Block *b) {
    if (!take_missing(b, RECOMPUTE_ATTENTION)) return;
    need_qkv(b);
    attention_forward(b->a.att, b->a.lse, b->a.qkv, num_heads(b), num_heads(b));
}

// Also provides residual2, the input of ln2.
static void need_ln2(Block *b) {
    const BlockActs *a = &b->a;
    const Weights *p = &b->p;
    if (take_missing(b, RECOMPUTE_ATTPROJ)) {
        need_attention(b);
        linear_forward(b, LINEAR_ATTPROJ, a->residual2, a->residual1, a->att, p->attprojw, p->attprojb);
    }
    if (take_missing(b, RECOMPUTE_LN2))
        layernorm_forward(a->ln2, a->ln2_mean, a->ln2_rstd, a->residual2, p->ln2w, p->ln2b, 1e-5f);
}

// Also provides pre, the input of gelu.
static void need_gelu(Block *b) {
    const BlockActs *a = &b->a;
    if (take_missing(b, RECOMPUTE_FC)) {
        need_ln2(b);
        linear_gelu_forward(b, LINEAR_FC, a->gelu, a->pre, a->ln2, b->p.fcw, b->p.fcb);
        b->missing &= ~RECOMPUTE_GELU;
    }
    if (take_missing(b, RECOMPUTE_GELU)) gelu_forward(a->gelu, a->pre);
}

// ------------------------------------------------------------------------------------------------------------ backward

// One transformer block, backward. dresidual (B,T,C) is the gradient of the residual stream, after the block on entry
// and before the block on return; dresidual_sum (C) the sums of its columns, which are the bias gradient of the last
// branch, fcproj. attproj's come from the layernorm in between.
static void block_backward(Block *b, Tensor dresidual, Tensor dresidual_sum) {
    const BlockActs *a = &b->a;
    const Weights *p = &b->p, *g = &b->g;
    const Tensor none = tensor_none();
    gradient_add(g->fcprojb, dresidual_sum, b->accumulate, 0, 0, model_control(b->model)); // fp32: nothing is rounded
    Tensor fcb = g->fcb;
    need_gelu(b);
    linear_gelu_backward(b, LINEAR_FCPROJ, a->dpre, &fcb, g->fcprojw, none, dresidual, a->gelu, a->pre, p->fcprojw);
    need_ln2(b);
    linear_backward(b, LINEAR_FC, a->dln2, g->fcw, fcb, a->dpre, a->ln2, p->fcw);
    layernorm_backward(dresidual, g->ln2w, g->ln2b, g->attprojb, a->dln2, a->residual2, a->ln2_mean, a->ln2_rstd,
                       p->ln2w, true, b->accumulate, b->accumulate);

    need_attention(b);
    linear_backward(b, LINEAR_ATTPROJ, a->datt, g->attprojw, none, dresidual, a->att, p->attprojw);
    need_qkv(b);
    Tensor qkvb = g->qkvb;
    attention_backward(a->dqkv, a->datt, a->att, a->lse, a->qkv, num_heads(b), num_heads(b), &qkvb, b->accumulate);
    need_ln1(b);
    linear_backward(b, LINEAR_QKV, a->dln1, g->qkvw, qkvb, a->dqkv, a->ln1, p->qkvw);
    layernorm_backward(dresidual, g->ln1w, g->ln1b, dresidual_sum, a->dln1, a->residual1, a->ln1_mean, a->ln1_rstd,
                       p->ln1w, true, b->accumulate, false);
}

// ----------------------------------------------------------------------------------------------- parts of a micro-step

void gpt2_forward(Model *model, const MicroStep *s, int block) {
    const Block b = model_block(model, block, PASS_FORWARD, s->B, s->T);
    const ModelActs m = model_acts(model, s->B, s->T);
    const bool last = block == model->options.config.L - 1;
    if (block == 0) embedding_forward(b.a.residual1, m.inputs, b.p.wte, b.p.wpe);
    block_forward(&b, last ? m.final_residual : model_block(model, block + 1, PASS_FORWARD, s->B, s->T).a.residual1);
}

// Call when the micro-step's gradients of the specs from .. to of this block are complete. Unless they were written in
// place, they are added to the gradient tensors or, in the first micro-step, overwrite them.
static void add_gradients(const Model *model, int from, int to, int block, bool first) {
    const Weights g = model_gradients(model, block);
    for (int spec = from; spec <= to; spec++) {
        if (model->layout.micro_gradients[spec] < 0) continue;
        const int index = parameter_index(&model->options.config, spec, block);
        gradient_add(model->tensors[index].grad, g.all[spec], !first, model->options.seed, index, model_control(model));
    }
}

static void final_layernorm_forward(const ModelActs *m, const Weights *p) {
    layernorm_forward(m->lnf, m->lnf_mean, m->lnf_rstd, m->final_residual, p->lnfw, p->lnfb, 1e-5f);
}

void gpt2_head_forward(Model *model, const MicroStep *s) {
    const ModelActs m = model_acts(model, s->B, s->T);
    const Weights p = model_weights(model, 0);
    final_layernorm_forward(&m, &p);
    head_loss_forward(m.losses, m.logits, m.lnf, p.wte, m.targets, model->options.config.V);
    sequence_losses(tensor_slice_first(model_sequence_losses(model), s->B), m.losses, false);
}

// The loss, and its gradients down to the last block.
static void head_backward(Model *model, const MicroStep *s, bool accumulate) {
    const ModelActs m = model_acts(model, s->B, s->T);
    const Weights p = model_weights(model, 0), g = model_gradients(model, 0);
    const float scale = 1.0f / (float)s->tokens_in_step;
    final_layernorm_forward(&m, &p);
    head_loss_backward(m.losses, m.dlnf, g.wte, m.logits, m.lnf, p.wte, m.targets, model->options.config.V, scale,
                       model_control(model), accumulate);
    sequence_losses(tensor_slice_first(model_sequence_losses(model), s->B), m.losses, !s->first);
    layernorm_backward(m.dresidual, g.lnfw, g.lnfb, m.dresidual_sum, m.dlnf, m.final_residual, m.lnf_mean, m.lnf_rstd,
                       p.lnfw, false, accumulate, false);
    add_gradients(model, PARAM_LNFW, PARAM_LNFB, 0, s->first);
}

void gpt2_backward(Model *model, const MicroStep *s, int unit) {
    const int L = (int)model->options.config.L;
    const ModelActs m = model_acts(model, s->B, s->T);
    const bool is_fp32 = model_gradient_dtype(&model->options) == DTYPE_FP32;
    const bool accumulate = !s->first && is_fp32; // in place; otherwise add_gradients does
    if (unit == L) {                              // the parameters outside blocks
        const Weights g = model_gradients(model, 0);
        embedding_backward(g.wte, g.wpe, m.dresidual, m.inputs, true, accumulate);
        add_gradients(model, PARAM_WTE, PARAM_WPE, 0, s->first);
        if (!is_fp32) micro_step_count(model_control(model), 1);
        return;
    }
    if (unit == L - 1) head_backward(model, s, accumulate);
    Block b = model_block(model, unit, PASS_BACKWARD, s->B, s->T);
    b.accumulate = accumulate;
    block_backward(&b, m.dresidual, m.dresidual_sum);
    add_gradients(model, PARAM_LN1W, PARAM_FCPROJB, unit, s->first);
}
