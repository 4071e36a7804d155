// A whole model in fp64, forward and backward, from the ops of this directory: the specification of
// llmc/model/gpt2.c, for GPT-2 and every other block that ModelConfig describes. Keeps every
// activation, recomputes nothing. See reference.h.
#include "llmc/base/error.h"
#include "llmc/model/parameters.h"
#include "test/reference/blocks.h"
#include "test/reference/reference.h"
#include <stdlib.h>

typedef struct {
    double *in; // (N,C) the residual stream that enters the block
    double *ln1, *ln1_mean, *ln1_rstd, *qkv;
    double *qkr, *qkr_rstd; // what attention reads: qkv, or with RoPE a copy with q and k
                            // normalised and rotated
    double *att, *lse;
    double *mid; // (N,C) the residual stream between attention and MLP
    double *ln2, *ln2_mean, *ln2_rstd, *pre, *act; // pre (N,d_ff), or gate and up (N,2 d_ff)
} Block;

typedef struct {
    const ModelConfig *config;
    double *const *params;
    double *const *grads;
    int64_t B, T, N;
    RefHeads heads;
    double eps;
    bool rounds; // what is stored between two ops, to this dtype
    DType stored;
    double scale; // of the loss
    int32_t *inputs, *targets;
    Block *blocks;
    // last (N,C): the residual stream after all blocks
    double *last, *lnf, *lnf_mean, *lnf_rstd, *losses;
    double *table; // of RoPE
    double *branch, *dresidual, *dbranch, *dln, *dwide;
    double *pool, *pool_next; // one allocation for all arrays of doubles
} Reference;

static double *take(Reference *m, int64_t n) {
    double *array = m->pool_next;
    m->pool_next += n;
    return array;
}

// Of the tensor of this row of the table at block l; NULL if the model has none.
static double *tensor_of(double *const *tensors, const Reference *m, int spec, int l) {
    const int index = parameter_index(m->config, spec, l);
    return index < 0 ? NULL : tensors[index];
}
static const double *weight(const Reference *m, int spec, int l) {
    return tensor_of(m->params, m, spec, l);
}
static double *grad(const Reference *m, int spec, int l) { return tensor_of(m->grads, m, spec, l); }

static int64_t size(const Reference *m, Dimension dimension) {
    return model_size(m->config, dimension);
}

static void model_alloc(Reference *m) {
    const int64_t N = m->N, C = m->config->C, L = m->config->L, NH = m->heads.NH,
                  QK = NH + m->heads.NKV;
    const int64_t QKV = size(m, DIM_QKV), ATT = size(m, DIM_ATT), FF = size(m, DIM_FF),
                  FC = size(m, DIM_FC);
    // dpre or dqkv; dact or datt
    const int64_t wide = FC > QKV ? FC : QKV, branch = FF > ATT ? FF : ATT;
    const int64_t block = N * (4 * C + 2 * QKV + QK + ATT + NH + FC + FF + 4),
                  table = m->heads.maxT * m->heads.HS;
    const int64_t outside = N * (5 * C + branch + wide + 3) + table;
    m->pool = m->pool_next = malloc((size_t)(L * block + outside) * sizeof(double));
    m->inputs = malloc((size_t)N * sizeof *m->inputs);
    m->targets = malloc((size_t)N * sizeof *m->targets);
    m->blocks = malloc((size_t)L * sizeof *m->blocks);
    REQUIRE(m->pool && m->inputs && m->targets && m->blocks, "reference model: out of memory");
    for (int64_t l = 0; l < L; l++) {
        m->blocks[l] = (Block){
            .in = take(m, N * C),
            .ln1 = take(m, N * C),
            .ln1_mean = take(m, N),
            .ln1_rstd = take(m, N),
            .qkv = take(m, N * QKV),
            .qkr = take(m, N * QKV),
            .qkr_rstd = take(m, N * QK),
            .att = take(m, N * ATT),
            .lse = take(m, N * NH),
            .mid = take(m, N * C),
            .ln2 = take(m, N * C),
            .ln2_mean = take(m, N),
            .ln2_rstd = take(m, N),
            .pre = take(m, N * FC),
            .act = take(m, N * FF),
        };
    }
    m->last = take(m, N * C), m->lnf = take(m, N * C), m->lnf_mean = take(m, N),
    m->lnf_rstd = take(m, N);
    m->losses = take(m, N), m->branch = take(m, N * C), m->dresidual = take(m, N * C),
    m->dln = take(m, N * C);
    m->dbranch = take(m, N * branch), m->dwide = take(m, N * wide), m->table = take(m, table);
}

static void model_free(Reference *m) {
    free(m->pool), free(m->inputs), free(m->targets), free(m->blocks);
}

// What an op leaves for the next one.
static void store(const Reference *m, double *array, int64_t n) {
    for (int64_t i = 0; m->rounds && i < n; i++) array[i] = ref_round(array[i], m->stored);
}

// -------------------------------------------------------------------- what the description chooses

static void norm_forward(const Reference *m, double *out, double *mean, double *rstd,
                         const double *in, int weight_spec, int bias_spec, int l) {
    const double *w = weight(m, weight_spec, l);
    if (m->config->norm == NORM_RMS)
        ref_rmsnorm_forward(out, rstd, in, w, m->N, m->config->C, m->eps);
    else
        ref_layernorm_forward(out, mean, rstd, in, w, weight(m, bias_spec, l), m->N, m->config->C,
                              m->eps);
    store(m, out, m->N * m->config->C);
}

// From m->dln; added to m->dresidual, or, after the last block, it.
static void norm_backward(const Reference *m, const double *in, const double *mean,
                          const double *rstd, int weight_spec, int bias_spec, int l) {
    const double *w = weight(m, weight_spec, l);
    double *dw = grad(m, weight_spec, l);
    if (m->config->norm == NORM_RMS)
        ref_rmsnorm_backward(m->dresidual, dw, NULL, m->dln, in, rstd, w, m->N, m->config->C,
                             l >= 0, false, false);
    else
        ref_layernorm_backward(m->dresidual, dw, grad(m, bias_spec, l), NULL, m->dln, in, mean,
                               rstd, w, m->N, m->config->C, l >= 0, false, false);
    store(m, m->dresidual, m->N * m->config->C);
}

static const double *attention_input(const Reference *m, const Block *a) {
    return m->config->rope_base ? a->qkr : a->qkv;
}

static void activation_forward(const Reference *m, const Block *a) {
    const int64_t FF = size(m, DIM_FF);
    if (m->config->activation == ACTIVATION_SWIGLU)
        ref_swiglu_forward(a->act, a->pre, m->N, FF);
    else if (m->config->activation == ACTIVATION_RELU2)
        ref_relu2_forward(a->act, a->pre, m->N * FF);
    else
        ref_gelu_forward(a->act, a->pre, m->N * FF);
    store(m, a->act, m->N * FF);
}

// dact is stored where no matmul has the activation's derivative in its epilogue.
static void activation_backward(const Reference *m, double *dpre, double *dact, const double *pre) {
    const int64_t FF = size(m, DIM_FF);
    if (m->config->activation != ACTIVATION_GELU) store(m, dact, m->N * FF);
    if (m->config->activation == ACTIVATION_SWIGLU)
        ref_swiglu_backward(dpre, dact, pre, m->N, FF);
    else if (m->config->activation == ACTIVATION_RELU2)
        ref_relu2_backward(dpre, dact, pre, m->N * FF);
    else
        for (int64_t i = 0; i < m->N * FF; i++) dpre[i] = dact[i] * ref_gelu_derivative(pre[i]);
    store(m, dpre, m->N * size(m, DIM_FC));
}

// -------------------------------------------------------------------------------------- the passes

static void add(double *out, const double *a, const double *b, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = a[i] + b[i];
}

static void block_forward(Reference *m, int l, double *out) {
    const Block *a = &m->blocks[l];
    const RefHeads h = m->heads;
    const int64_t N = m->N, C = m->config->C, QKV = size(m, DIM_QKV), ATT = size(m, DIM_ATT);
    norm_forward(m, a->ln1, a->ln1_mean, a->ln1_rstd, a->in, PARAM_LN1W, PARAM_LN1B, l);
    ref_matmul_forward(a->qkv, a->ln1, weight(m, PARAM_QKVW, l), weight(m, PARAM_QKVB, l), N, C,
                       QKV);
    store(m, a->qkv, N * QKV);
    if (m->config->rope_base)
        ref_qk_norm_rope_forward(a->qkr, a->qkr_rstd, a->qkv, weight(m, PARAM_QNORMW, l),
                                 weight(m, PARAM_KNORMW, l), m->table, h, m->eps, 0);
    store(m, a->qkr, N * QKV);
    ref_attention_forward(a->att, a->lse, attention_input(m, a), h.B, h.T, h.NH, h.NKV, h.HS);
    store(m, a->att, N * ATT);
    ref_matmul_forward(m->branch, a->att, weight(m, PARAM_ATTPROJW, l),
                       weight(m, PARAM_ATTPROJB, l), N, ATT, C);
    add(a->mid, a->in, m->branch, N * C);
    store(m, a->mid, N * C);
    norm_forward(m, a->ln2, a->ln2_mean, a->ln2_rstd, a->mid, PARAM_LN2W, PARAM_LN2B, l);
    ref_matmul_forward(a->pre, a->ln2, weight(m, PARAM_FCW, l), weight(m, PARAM_FCB, l), N, C,
                       size(m, DIM_FC));
    store(m, a->pre, N * size(m, DIM_FC));
    activation_forward(m, a);
    ref_matmul_forward(m->branch, a->act, weight(m, PARAM_FCPROJW, l), weight(m, PARAM_FCPROJB, l),
                       N, size(m, DIM_FF), C);
    add(out, a->mid, m->branch, N * C);
    store(m, out, N * C);
}

// The gradients of a linear layer's weight and bias, and that of its input.
static void linear_backward(Reference *m, double *din, int weight_spec, int bias_spec, int l,
                            const double *dout, const double *in, int64_t IC, int64_t OC) {
    ref_matmul_backward_weight(grad(m, weight_spec, l), grad(m, bias_spec, l), dout, in, m->N, IC,
                               OC, false);
    ref_matmul_backward_input(din, dout, weight(m, weight_spec, l), m->N, IC, OC);
}

// dresidual: the gradient of the block's output on entry, of its input on return.
static void block_backward(Reference *m, int l) {
    const Block *a = &m->blocks[l];
    const RefHeads h = m->heads;
    const int64_t C = m->config->C;
    linear_backward(m, m->dbranch, PARAM_FCPROJW, PARAM_FCPROJB, l, m->dresidual, a->act,
                    size(m, DIM_FF), C);
    activation_backward(m, m->dwide, m->dbranch, a->pre);
    linear_backward(m, m->dln, PARAM_FCW, PARAM_FCB, l, m->dwide, a->ln2, C, size(m, DIM_FC));
    store(m, m->dln, m->N * C);
    norm_backward(m, a->mid, a->ln2_mean, a->ln2_rstd, PARAM_LN2W, PARAM_LN2B, l);
    linear_backward(m, m->dbranch, PARAM_ATTPROJW, PARAM_ATTPROJB, l, m->dresidual, a->att,
                    size(m, DIM_ATT), C);
    store(m, m->dbranch, m->N * size(m, DIM_ATT));
    ref_attention_backward(m->dwide, m->dbranch, a->att, a->lse, attention_input(m, a), h.B, h.T,
                           h.NH, h.NKV, h.HS);
    store(m, m->dwide, m->N * size(m, DIM_QKV));
    if (m->config->rope_base)
        ref_qk_norm_rope_backward(m->dwide, grad(m, PARAM_QNORMW, l), grad(m, PARAM_KNORMW, l),
                                  a->qkv, a->qkr_rstd, weight(m, PARAM_QNORMW, l),
                                  weight(m, PARAM_KNORMW, l), m->table, h, false);
    store(m, m->dwide, m->N * size(m, DIM_QKV));
    linear_backward(m, m->dln, PARAM_QKVW, PARAM_QKVB, l, m->dwide, a->ln1, C, size(m, DIM_QKV));
    store(m, m->dln, m->N * C);
    norm_backward(m, a->in, a->ln1_mean, a->ln1_rstd, PARAM_LN1W, PARAM_LN1B, l);
}

static int head_spec(const Reference *m) { return m->config->untied ? PARAM_HEADW : PARAM_WTE; }

static void backward(Reference *m) {
    const ModelConfig *c = m->config;
    ref_head_loss_backward(m->losses, m->dln, grad(m, head_spec(m), -1), m->lnf,
                           weight(m, head_spec(m), -1), m->targets, m->N, c->C, c->V, c->Vp,
                           m->scale / (double)m->N, false);
    store(m, m->dln, m->N * c->C);
    norm_backward(m, m->last, m->lnf_mean, m->lnf_rstd, PARAM_LNFW, PARAM_LNFB, -1);
    for (int l = (int)c->L - 1; l >= 0; l--) block_backward(m, l);
    if (c->embed_norm) {
        ref_embedding_norm_backward(m->dresidual, m->inputs, weight(m, PARAM_WTE, -1), m->N, c->C,
                                    EMBED_NORM_EPS);
        store(m, m->dresidual, m->N * c->C);
    }
    ref_embedding_backward(grad(m, PARAM_WTE, -1), grad(m, PARAM_WPE, -1), m->dresidual, m->inputs,
                           m->B, m->T, c->C, c->Vp, c->max_T, !c->untied, false);
}

static double run(Reference m, const int32_t *windows, double *losses, double *logits) {
    const ModelConfig *config = m.config;
    const int64_t B = m.B, T = m.T;
    REQUIRE(config->L >= 1, "reference model: a model of no blocks");
    m.N = B * T;
    m.heads = (RefHeads){
        B, T, config->NH, model_kv_heads(config), model_head_size(config), config->max_T};
    m.eps = (double)model_eps(config);
    model_alloc(&m);
    ref_batch_unpack(m.inputs, m.targets, windows, B, T);
    if (config->rope_base)
        ref_rope_table(m.table, m.heads.maxT, m.heads.HS, (double)config->rope_base);
    if (config->embed_norm)
        ref_embedding_norm_forward(m.blocks[0].in, m.inputs, weight(&m, PARAM_WTE, -1), m.N,
                                   config->C, EMBED_NORM_EPS);
    else
        ref_embedding_forward(m.blocks[0].in, m.inputs, weight(&m, PARAM_WTE, -1),
                              weight(&m, PARAM_WPE, -1), B, T, config->C);
    store(&m, m.blocks[0].in, m.N * config->C);
    for (int l = 0; l < config->L; l++)
        block_forward(&m, l, l + 1 < config->L ? m.blocks[l + 1].in : m.last);
    norm_forward(&m, m.lnf, m.lnf_mean, m.lnf_rstd, m.last, PARAM_LNFW, PARAM_LNFB, -1);
    const double *head = weight(&m, head_spec(&m), -1);
    ref_head_loss_forward(m.losses, m.lnf, head, m.targets, m.N, config->C, config->V);
    if (logits) ref_matmul_forward(logits, m.lnf, head, NULL, m.N, config->C, config->V);
    if (m.grads) backward(&m);

    double total = 0.0;
    for (int64_t n = 0; n < m.N; n++) {
        total += m.losses[n];
        if (losses) losses[n] = m.losses[n];
    }
    model_free(&m);
    return total / (double)(B * T);
}

double ref_gpt2(const ModelConfig *config, double *const *params, const int32_t *windows, int64_t B,
                int64_t T, double *losses, double *logits, double *const *grads) {
    Reference m = {
        .config = config, .params = params, .grads = grads, .B = B, .T = T, .scale = 1.0};
    return run(m, windows, losses, logits);
}

double ref_gpt2_stored(const ModelConfig *config, DType dtype, double scale, double *const *params,
                       const int32_t *windows, int64_t B, int64_t T, double *logits,
                       double *const *grads) {
    Reference m = {
        .config = config, .params = params, .grads = grads, .B = B, .T = T, .scale = scale};
    m.rounds = true;
    m.stored = dtype;
    return run(m, windows, NULL, logits);
}
