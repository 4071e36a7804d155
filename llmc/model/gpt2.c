// The forward and backward pass of GPT-2 and of the models with its structure, in the order in
// which they run, from top to bottom. Every line is an op of ops.h or a linear layer: one op
// forward, two backward, more with --fp8. In four places the model's description (ModelConfig)
// chooses the op: the embedding, the norms, the treatment of q and k before attention, and the
// activation. model.c runs these parts, model_memory.c places the tensors.
//
//   forward   embedding -> L x block -> final layernorm -> head + loss
//   backward  head -> final layernorm -> L x block, last first -> embedding
//
// recompute.h chooses for each block the activations that are kept in between; the others are
// recomputed.
#include "llmc/model/gpt2.h"
#include "llmc/model/model_fp8.h"
#include "llmc/model/model_numerics.h"
#include "llmc/model/model_tensors.h"

static const ModelConfig *config_of(const Block *b) { return &b->model->options.config; }
static Heads heads(const Block *b) {
    const ModelConfig *c = config_of(b);
    return heads_of((int)c->NH, (int)model_kv_heads(c));
}

// -------------------------------------------------------- the description's choices: the embedding

void gpt2_embedding_forward(const ModelConfig *config, Tensor out, Tensor tokens, Tensor wte,
                            Tensor wpe) {
    if (config->embed_norm)
        embedding_norm_forward(out, tokens, wte, EMBED_NORM_EPS);
    else
        embedding_forward(out, tokens, wte, wpe);
}

// ---------------------------------------------------------------------------------------- the norm

void gpt2_norm_forward(const ModelConfig *config, Tensor out, Tensor mean, Tensor rstd, Tensor in,
                       Tensor weight, Tensor bias) {
    if (config->norm == NORM_RMS)
        rmsnorm_forward(out, rstd, in, weight, model_eps(config));
    else
        layernorm_forward(out, mean, rstd, in, weight, bias, model_eps(config));
}

// With din_sum as layernorm_backward's; it is absent where the linear layers have no bias.
static void norm_backward(const ModelConfig *config, Gradient din, Gradient dweight, Gradient dbias,
                          Gradient din_sum, Tensor dout, Tensor in, Tensor mean, Tensor rstd,
                          Tensor weight) {
    if (config->norm == NORM_RMS)
        rmsnorm_backward(din, dweight, din_sum, dout, in, rstd, weight);
    else
        layernorm_backward(din, dweight, dbias, din_sum, dout, in, mean, rstd, weight);
}

// ------------------------------------------------------------------------ q and k before attention

// The input of attention: qkv, with q and k rotated by RoPE; with QK-norm, whose backward pass
// needs the unchanged qkv, a copy.
static Tensor attention_input(const Block *b) {
    if (config_of(b)->qk_norm) return b->a.qkr;
    return b->a.qkv;
}

static void qk_forward(const Block *b) {
    if (b->table.data)
        qk_norm_rope_forward(attention_input(b), b->a.qkr_rstd, b->a.qkv, b->p.qnormw, b->p.knormw,
                             b->table, heads(b), model_eps(config_of(b)), b->position);
}

// Turns the gradient of attention's input into that of qkv, in place. Only QK-norm needs values of
// the forward pass.
static void qk_backward(const Block *b) {
    const Tensor qkv = config_of(b)->qk_norm ? b->a.qkv : tensor_none();
    if (b->table.data)
        qk_norm_rope_backward(b->a.dqkv, b->g.qnormw, b->g.knormw, qkv, b->a.qkr_rstd, b->p.qnormw,
                              b->p.knormw, b->table, heads(b));
}

// ---------------------------------------------------------------------------------- the activation

static void activation_forward(const Block *b, Tensor out, Tensor pre) {
    if (config_of(b)->activation == ACTIVATION_SWIGLU)
        swiglu_forward(out, pre);
    else if (config_of(b)->activation == ACTIVATION_RELU2)
        relu2_forward(out, pre);
    else
        gelu_forward(out, pre);
}

// Computes dpre from dout, and the sums of its columns. dpre may be dout if the activation has no
// gate.
static void activation_backward(const Block *b, Tensor dpre, Gradient dbias, Tensor dout,
                                Tensor pre) {
    if (config_of(b)->activation == ACTIVATION_SWIGLU)
        swiglu_backward(dpre, dbias, dout, pre);
    else if (config_of(b)->activation == ACTIVATION_RELU2)
        relu2_backward(dpre, dbias, dout, pre);
    else
        gelu_backward(dpre, dbias, dout, pre);
}

// ----------------------------------------------------------------------------------- linear layers

// Counts each tensor once: recomputation in the backward pass is not counted again.
static void observe_once(const Block *b, LinearLayer layer, Role role, Tensor t) {
    if (b->pass == PASS_FORWARD) model_observe_tensor(b->model, layer, role, t);
}

// Decoding multiplies by the unquantised weights.
static bool in_fp8(const Block *b) {
    return b->model->options.fp8 && (b->pass == PASS_FORWARD || b->pass == PASS_BACKWARD);
}

// out (B,T,OC) = residual (B,T,OC), which may be absent, + in (B,T,IC) @ weight^T + bias.
static void linear_forward(const Block *b, LinearLayer layer, Tensor out, Tensor residual,
                           Tensor in, Tensor weight, Tensor bias) {
    observe_once(b, layer, ROLE_IN, in);
    if (in_fp8(b))
        model_fp8_forward(b, layer, out, residual, in, bias);
    else if (residual.data)
        matmul_residual_forward(out, residual, in, weight, bias);
    else
        matmul_forward(out, in, weight, bias);
    observe_once(b, layer, ROLE_OUT, out);
}

// pre = in @ weight^T + bias; out = activation(pre).
static void linear_activation_forward(const Block *b, LinearLayer layer, Tensor out, Tensor pre,
                                      Tensor in, Tensor weight, Tensor bias) {
    if (config_of(b)->activation == ACTIVATION_GELU && bias.data && !in_fp8(b)) {
        observe_once(b, layer, ROLE_IN, in);
        matmul_gelu_forward(out, pre, in, weight, bias);
        observe_once(b, layer, ROLE_OUT, pre);
        return;
    }
    linear_forward(b, layer, pre, tensor_none(), in, weight, bias);
    activation_forward(b, out, pre);
}

// Computes din (B,T,IC), dweight and dbias from dout (B,T,OC). dbias is absent if another op sums
// dout. in is the input of the forward pass.
static void linear_backward(const Block *b, LinearLayer layer, Tensor din, Gradient dweight,
                            Gradient dbias, Tensor dout, Tensor in, Tensor weight) {
    model_observe_tensor(b->model, layer, ROLE_GRADIENT, dout);
    if (in_fp8(b)) {
        model_fp8_backward(b, layer, din, dweight, dbias, dout, in);
        return;
    }
    matmul_backward_input(din, dout, weight);
    matmul_backward_weight(dweight, dbias, dout, in);
}

// The same through the activation before the layer: dpre = (dout @ weight) * activation'(pre); in
// is activation(pre), which dpre may overlap. dact, the gradient in between, is absent if dpre can
// hold it. If the activation's gradient is a kernel, it also sums dbias_before, of the layer before
// the activation, which then becomes absent.
static void linear_activation_backward(const Block *b, LinearLayer layer, Tensor dpre, Tensor dact,
                                       Gradient *dbias_before, Gradient dweight, Gradient dbias,
                                       Tensor dout, Tensor in, Tensor pre, Tensor weight) {
    model_observe_tensor(b->model, layer, ROLE_GRADIENT, dout);
    if (!dact.data) dact = dpre;
    if (in_fp8(b)) {
        model_fp8_backward(b, layer, dact, dweight, dbias, dout, in);
    } else {
        matmul_backward_weight(dweight, dbias, dout, in);
        if (config_of(b)->activation == ACTIVATION_GELU) {
            matmul_gelu_backward_input(dpre, dout, weight, pre, dbias_before);
            return;
        }
        matmul_backward_input(dact, dout, weight);
    }
    activation_backward(b, dpre, *dbias_before, dact, pre);
    *dbias_before = gradient_none();
}

// ----------------------------------------------------------------------------------------- forward

// One transformer block, forward.
//   residual1 -> ln1 -> qkv -> (q and k normalised, rotated) -> attention
//     -> attproj (+ residual1) -> residual2 -> ln2 -> fc -> gelu -> fcproj (+ residual2) -> out
// The last matmul of each branch adds the residual stream that the branch began with. out is
// residual1 of the next block, or the input of the final layernorm.
void block_forward(const Block *b, Tensor out) {
    const BlockActs *a = &b->a;
    const Weights *p = &b->p;
    gpt2_norm_forward(config_of(b), a->ln1, a->ln1_mean, a->ln1_rstd, a->residual1, p->ln1w,
                      p->ln1b); // (B,T,C)
    // (B,T,(NH + 2 NKV) HS)
    linear_forward(b, LINEAR_QKV, a->qkv, tensor_none(), a->ln1, p->qkvw, p->qkvb);
    qk_forward(b);

    if (b->pass == PASS_TOKEN) {
        attention_decode(a->att, b->cache, attention_input(b), b->position);
    } else {
        for (int64_t s = 0; b->pass == PASS_PROMPT && s < b->cache.shape[0];
             s++) { // each that begins with this prompt
            Tensor cache = tensor_slice_first(b->cache, 1);
            cache.data = (char *)cache.data + (size_t)s * tensor_bytes(cache);
            kv_cache_store(cache, attention_input(b), 0);
        }
        // nobody reads its output
        if (b->pass == PASS_PROMPT && b->number == b->model->options.config.L - 1) return;
        attention_forward(a->att, a->lse, attention_input(b), heads(b)); // (B,T,NH HS), (B,NH,T)
    }

    linear_forward(b, LINEAR_ATTPROJ, a->residual2, a->residual1, a->att, p->attprojw, p->attprojb);
    gpt2_norm_forward(config_of(b), a->ln2, a->ln2_mean, a->ln2_rstd, a->residual2, p->ln2w,
                      p->ln2b);
    linear_activation_forward(b, LINEAR_FC, a->gelu, a->pre, a->ln2, p->fcw, p->fcb); // (B,T,d_ff)
    linear_forward(b, LINEAR_FCPROJ, out, a->residual2, a->gelu, p->fcprojw, p->fcprojb);
}

// ----------------------------------------------------------------------------------- recomputation

// The backward pass of a block requests each tensor before it reads it. A tensor that was not kept
// is recomputed at that moment, by the same op on the same inputs, so with the same bits; an op
// requests its own inputs first. Within the backward pass no op runs twice.

// Returns whether the results of this op are missing, and marks them as present.
static bool take_missing(Block *b, int op) {
    const bool missing = b->missing & op;
    b->missing &= ~op;
    return missing;
}

static void need_ln1(Block *b) {
    const BlockActs *a = &b->a;
    if (take_missing(b, RECOMPUTE_LAYERNORM))
        gpt2_norm_forward(config_of(b), a->ln1, a->ln1_mean, a->ln1_rstd, a->residual1, b->p.ln1w,
                          b->p.ln1b);
}

static void need_qkv(Block *b) {
    if (!take_missing(b, RECOMPUTE_QKV)) return;
    need_ln1(b);
    linear_forward(b, LINEAR_QKV, b->a.qkv, tensor_none(), b->a.ln1, b->p.qkvw, b->p.qkvb);
    if (!config_of(b)->qk_norm) qk_forward(b); // in place
}

// The input of attention.
static void need_attention_input(Block *b) {
    if (!config_of(b)->qk_norm) {
        need_qkv(b);
    } else if (take_missing(b, RECOMPUTE_QKR)) {
        need_qkv(b);
        qk_forward(b);
    }
}

static void need_attention(Block *b) {
    if (!take_missing(b, RECOMPUTE_ATTENTION)) return;
    need_attention_input(b);
    attention_forward(b->a.att, b->a.lse, attention_input(b), heads(b));
}

// Also provides residual2, the input of ln2.
static void need_ln2(Block *b) {
    const BlockActs *a = &b->a;
    const Weights *p = &b->p;
    if (take_missing(b, RECOMPUTE_ATTPROJ)) {
        need_attention(b);
        linear_forward(b, LINEAR_ATTPROJ, a->residual2, a->residual1, a->att, p->attprojw,
                       p->attprojb);
    }
    if (take_missing(b, RECOMPUTE_LN2))
        gpt2_norm_forward(config_of(b), a->ln2, a->ln2_mean, a->ln2_rstd, a->residual2, p->ln2w,
                          p->ln2b);
}

// Also provides pre, the input of gelu.
static void need_gelu(Block *b) {
    const BlockActs *a = &b->a;
    if (take_missing(b, RECOMPUTE_FC)) {
        need_ln2(b);
        linear_activation_forward(b, LINEAR_FC, a->gelu, a->pre, a->ln2, b->p.fcw, b->p.fcb);
        b->missing &= ~RECOMPUTE_GELU;
    }
    if (take_missing(b, RECOMPUTE_GELU)) activation_forward(b, a->gelu, a->pre);
}

// ---------------------------------------------------------------------------------------- backward

// One transformer block, backward. dresidual (B,T,C) is the gradient of the residual stream, after
// the block on entry and before the block on return: each branch adds to it. dresidual_sum (C) has
// the sums of its columns, which are the bias gradient of the last branch, fcproj; attproj's come
// from the layernorm in between.
static void block_backward(Block *b, Tensor dresidual, Tensor dresidual_sum) {
    const BlockActs *a = &b->a;
    const Weights *p = &b->p;
    const Gradients *g = &b->g;
    const Gradient none = gradient_none(), residual = gradient_to(dresidual, true);

    if (g->fcprojb.to.data) // fp32: nothing is rounded
        gradient_add(g->fcprojb, dresidual_sum, 0, 0, model_control(b->model));
    Gradient fcb = g->fcb;
    need_gelu(b);
    linear_activation_backward(b, LINEAR_FCPROJ, a->dpre, a->dgelu, &fcb, g->fcprojw, none,
                               dresidual, a->gelu, a->pre, p->fcprojw);
    need_ln2(b);
    linear_backward(b, LINEAR_FC, a->dln2, g->fcw, fcb, a->dpre, a->ln2, p->fcw);
    norm_backward(config_of(b), residual, g->ln2w, g->ln2b, g->attprojb, a->dln2, a->residual2,
                  a->ln2_mean, a->ln2_rstd, p->ln2w);

    need_attention(b);
    linear_backward(b, LINEAR_ATTPROJ, a->datt, g->attprojw, none, dresidual, a->att, p->attprojw);
    need_attention_input(b);
    need_qkv(b);
    Gradient qkvb = g->qkvb;
    Gradient *made = b->table.data ? NULL : &qkvb; // attention sums it, unless a rotation follows
    attention_backward(a->dqkv, a->datt, a->att, a->lse, attention_input(b), heads(b), made);
    qk_backward(b);
    need_ln1(b);
    linear_backward(b, LINEAR_QKV, a->dln1, g->qkvw, qkvb, a->dqkv, a->ln1, p->qkvw);
    norm_backward(config_of(b), residual, g->ln1w, g->ln1b, gradient_to(dresidual_sum, false),
                  a->dln1, a->residual1, a->ln1_mean, a->ln1_rstd, p->ln1w);
}

// --------------------------------------------------------------------------- parts of a micro-step

void gpt2_forward(Model *model, const MicroStep *s, int block) {
    const Block b = model_block(model, block, PASS_FORWARD, s->B, s->T);
    const ModelActs m = model_acts(model, s->B, s->T);
    const bool last = block == model->options.config.L - 1;
    Tensor out = m.final_residual;
    if (!last) out = model_block(model, block + 1, PASS_FORWARD, s->B, s->T).a.residual1;
    if (block == 0)
        gpt2_embedding_forward(config_of(&b), b.a.residual1, m.inputs, b.p.wte, b.p.wpe);
    block_forward(&b, out);
}

// Call when the micro-step's gradients of the specs from .. to of this block are complete. Unless
// they were written in place, they are added to the gradient tensors or, in the first micro-step,
// overwrite them.
static void add_gradients(const Model *model, int from, int to, int block, const MicroStep *s) {
    const Gradients g = model_gradients(model, block, s);
    for (int spec = from; spec <= to; spec++) {
        if (model->layout.micro_gradients[spec] < 0) continue;
        const int index = parameter_index(&model->options.config, spec, block);
        const Gradient sum = gradient_to(model->tensors[index].grad, !s->first);
        gradient_add(sum, g.all[spec].to, model->options.seed, index, model_control(model));
    }
}

static void final_norm_forward(const Model *model, const ModelActs *m, const Weights *p) {
    gpt2_norm_forward(&model->options.config, m->lnf, m->lnf_mean, m->lnf_rstd, m->final_residual,
                      p->lnfw, p->lnfb);
}

Tensor gpt2_head_weight(const Weights *w) {
    if (w->headw.data) return w->headw;
    return w->wte;
}

Gradient gpt2_head_gradient(const Gradients *g) {
    if (g->headw.to.data) return g->headw;
    return g->wte;
}

void gpt2_head_forward(Model *model, const MicroStep *s) {
    const ModelActs m = model_acts(model, s->B, s->T);
    const Weights p = model_weights(model, 0);
    final_norm_forward(model, &m, &p);
    head_loss_forward(m.losses, m.logits, m.lnf, gpt2_head_weight(&p), m.targets,
                      model->options.config.V);
    sequence_losses(tensor_slice_first(model_sequence_losses(model), s->B), m.losses, false);
}

// The loss, and its gradients down to the last block.
static void head_backward(Model *model, const MicroStep *s) {
    const ModelActs m = model_acts(model, s->B, s->T);
    const Weights p = model_weights(model, 0);
    const Gradients g = model_gradients(model, 0, s);
    const LossScale scale = loss_scale_make(1.0f / (float)s->tokens_in_step, model_control(model));

    final_norm_forward(model, &m, &p);
    head_loss_backward(m.losses, m.dlnf, gpt2_head_gradient(&g), m.logits, m.lnf,
                       gpt2_head_weight(&p), m.targets, model->options.config.V, scale);
    sequence_losses(tensor_slice_first(model_sequence_losses(model), s->B), m.losses, !s->first);
    norm_backward(&model->options.config, gradient_to(m.dresidual, false), g.lnfw, g.lnfb,
                  gradient_to(m.dresidual_sum, false), m.dlnf, m.final_residual, m.lnf_mean,
                  m.lnf_rstd, p.lnfw);
    add_gradients(model, PARAM_LNFW, PARAM_HEADW, 0, s);
}

// The parameters outside blocks, but for the head's and the final norm's.
static void embeddings_backward(Model *model, const MicroStep *s) {
    const ModelConfig *config = &model->options.config;
    const ModelActs m = model_acts(model, s->B, s->T);
    Gradients g = model_gradients(model, 0, s);

    if (config->embed_norm)
        embedding_norm_backward(m.dresidual, m.inputs, model_weights(model, 0).wte, EMBED_NORM_EPS);
    if (!config->untied) g.wte.add = true; // a tied head has written it
    embedding_backward(g.wte, g.wpe, m.dresidual, m.inputs);
    add_gradients(model, PARAM_WTE, PARAM_WPE, 0, s);
    if (model_gradient_dtype(&model->options) != DTYPE_FP32)
        micro_step_count(model_control(model), 1);
}

void gpt2_backward(Model *model, const MicroStep *s, int unit) {
    const int L = (int)model->options.config.L;
    if (unit == L) {
        embeddings_backward(model, s);
        return;
    }
    if (unit == L - 1) head_backward(model, s);

    const ModelActs m = model_acts(model, s->B, s->T);
    Block b = model_block(model, unit, PASS_BACKWARD, s->B, s->T);
    b.g = model_gradients(model, unit, s);
    block_backward(&b, m.dresidual, m.dresidual_sum);
    add_gradients(model, PARAM_LN1W, PARAM_FCPROJB, unit, s);
}
