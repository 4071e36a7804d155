// A whole GPT-2 in fp64, forward and backward, from the ops of this directory: the specification of llmc/model/gpt2.c.
// Keeps every activation, recomputes nothing. See reference.h.
#include "llmc/base/error.h"
#include "llmc/model/parameters.h"
#include "test/reference/reference.h"
#include <stdlib.h>

typedef struct {
    double *in; // (N,C) the residual stream that enters the block
    double *ln1, *ln1_mean, *ln1_rstd, *qkv, *att, *lse;
    double *mid; // (N,C) the residual stream between attention and MLP
    double *ln2, *ln2_mean, *ln2_rstd, *pre, *gelu;
} Block;

typedef struct {
    const ModelConfig *config;
    double *const *params;
    double *const *grads;
    int64_t B, T, N;
    int32_t *inputs, *targets;
    Block *blocks;
    double *last, *lnf, *lnf_mean, *lnf_rstd, *losses; // last (N,C): the residual stream after all blocks
    double *branch, *dresidual, *dbranch, *dln, *dwide;
    double *pool, *pool_next; // one allocation for all arrays of doubles
} Reference;

static double *take(Reference *m, int64_t n) {
    double *array = m->pool_next;
    m->pool_next += n;
    return array;
}

static const double *weight(const Reference *m, int spec, int l) {
    return m->params[parameter_index(m->config, spec, l)];
}
static double *grad(const Reference *m, int spec, int l) { return m->grads[parameter_index(m->config, spec, l)]; }

static void model_alloc(Reference *m) {
    int64_t N = m->N, C = m->config->C, L = m->config->L, NH = m->config->NH, FF = model_size(m->config, DIM_FF);
    const int64_t wide = FF > 3 * C ? FF : 3 * C; // dpre, or dqkv
    int64_t block = N * (8 * C + 2 * FF + NH + 4), outside = N * (7 * C + wide + 3);
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
            .qkv = take(m, 3 * N * C),
            .att = take(m, N * C),
            .lse = take(m, N * NH),
            .mid = take(m, N * C),
            .ln2 = take(m, N * C),
            .ln2_mean = take(m, N),
            .ln2_rstd = take(m, N),
            .pre = take(m, N * FF),
            .gelu = take(m, N * FF),
        };
    }
    m->last = take(m, N * C), m->lnf = take(m, N * C), m->lnf_mean = take(m, N), m->lnf_rstd = take(m, N);
    m->losses = take(m, N), m->branch = take(m, N * C), m->dresidual = take(m, N * C);
    m->dbranch = take(m, N * C), m->dln = take(m, N * C), m->dwide = take(m, N * wide);
}

static void model_free(Reference *m) { free(m->pool), free(m->inputs), free(m->targets), free(m->blocks); }

static void add(double *out, const double *a, const double *b, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = a[i] + b[i];
}

static void block_forward(Reference *m, int l, double *out) {
    const Block *a = &m->blocks[l];
    int64_t N = m->N, C = m->config->C, NH = m->config->NH, FF = model_size(m->config, DIM_FF);
    ref_layernorm_forward(a->ln1, a->ln1_mean, a->ln1_rstd, a->in, weight(m, PARAM_LN1W, l), weight(m, PARAM_LN1B, l),
                          N, C, 1e-5);
    ref_matmul_forward(a->qkv, a->ln1, weight(m, PARAM_QKVW, l), weight(m, PARAM_QKVB, l), N, C, 3 * C);
    ref_attention_forward(a->att, a->lse, a->qkv, m->B, m->T, NH, NH, C / NH);
    ref_matmul_forward(m->branch, a->att, weight(m, PARAM_ATTPROJW, l), weight(m, PARAM_ATTPROJB, l), N, C, C);
    add(a->mid, a->in, m->branch, N * C);
    ref_layernorm_forward(a->ln2, a->ln2_mean, a->ln2_rstd, a->mid, weight(m, PARAM_LN2W, l), weight(m, PARAM_LN2B, l),
                          N, C, 1e-5);
    ref_matmul_forward(a->pre, a->ln2, weight(m, PARAM_FCW, l), weight(m, PARAM_FCB, l), N, C, FF);
    ref_gelu_forward(a->gelu, a->pre, N * FF);
    ref_matmul_forward(m->branch, a->gelu, weight(m, PARAM_FCPROJW, l), weight(m, PARAM_FCPROJB, l), N, FF, C);
    add(out, a->mid, m->branch, N * C);
}

// dresidual: the gradient of the block's output on entry, of its input on return.
static void block_backward(Reference *m, int l) {
    const Block *a = &m->blocks[l];
    int64_t N = m->N, C = m->config->C, FF = model_size(m->config, DIM_FF);
    double *dres = m->dresidual;
    ref_matmul_backward_weight(grad(m, PARAM_FCPROJW, l), grad(m, PARAM_FCPROJB, l), dres, a->gelu, N, FF, C, false);
    ref_matmul_gelu_backward_input(m->dwide, dres, weight(m, PARAM_FCPROJW, l), a->pre, N, FF, C);
    ref_matmul_backward_weight(grad(m, PARAM_FCW, l), grad(m, PARAM_FCB, l), m->dwide, a->ln2, N, C, FF, false);
    ref_matmul_backward_input(m->dln, m->dwide, weight(m, PARAM_FCW, l), N, C, FF);
    ref_layernorm_backward(dres, grad(m, PARAM_LN2W, l), grad(m, PARAM_LN2B, l), NULL, m->dln, a->mid, a->ln2_mean,
                           a->ln2_rstd, weight(m, PARAM_LN2W, l), N, C, true, false, false);
    ref_matmul_backward_weight(grad(m, PARAM_ATTPROJW, l), grad(m, PARAM_ATTPROJB, l), dres, a->att, N, C, C, false);
    ref_matmul_backward_input(m->dbranch, dres, weight(m, PARAM_ATTPROJW, l), N, C, C);
    ref_attention_backward(m->dwide, m->dbranch, a->att, a->lse, a->qkv, m->B, m->T, m->config->NH, m->config->NH,
                           C / m->config->NH);
    ref_matmul_backward_weight(grad(m, PARAM_QKVW, l), grad(m, PARAM_QKVB, l), m->dwide, a->ln1, N, C, 3 * C, false);
    ref_matmul_backward_input(m->dln, m->dwide, weight(m, PARAM_QKVW, l), N, C, 3 * C);
    ref_layernorm_backward(dres, grad(m, PARAM_LN1W, l), grad(m, PARAM_LN1B, l), NULL, m->dln, a->in, a->ln1_mean,
                           a->ln1_rstd, weight(m, PARAM_LN1W, l), N, C, true, false, false);
}

static void backward(Reference *m) {
    const ModelConfig *c = m->config;
    const double *wte = weight(m, PARAM_WTE, -1);
    ref_head_loss_backward(m->losses, m->dln, grad(m, PARAM_WTE, -1), m->lnf, wte, m->targets, m->N, c->C, c->V, c->Vp,
                           1.0 / (double)m->N, false);
    ref_layernorm_backward(m->dresidual, grad(m, PARAM_LNFW, -1), grad(m, PARAM_LNFB, -1), NULL, m->dln, m->last,
                           m->lnf_mean, m->lnf_rstd, weight(m, PARAM_LNFW, -1), m->N, c->C, false, false, false);
    for (int l = (int)c->L - 1; l >= 0; l--) block_backward(m, l);
    ref_embedding_backward(grad(m, PARAM_WTE, -1), grad(m, PARAM_WPE, -1), m->dresidual, m->inputs, m->B, m->T, c->C,
                           c->Vp, c->max_T, true, false);
}

double ref_gpt2(const ModelConfig *config, double *const *params, const int32_t *windows, int64_t B, int64_t T,
                double *losses, double *logits, double *const *grads) {
    REQUIRE(config->L >= 1, "reference model: a model of no blocks");
    Reference m = {.config = config, .params = params, .grads = grads, .B = B, .T = T, .N = B * T};
    model_alloc(&m);
    ref_batch_unpack(m.inputs, m.targets, windows, B, T);
    const double *wte = weight(&m, PARAM_WTE, -1);
    ref_embedding_forward(m.blocks[0].in, m.inputs, wte, weight(&m, PARAM_WPE, -1), B, T, config->C);
    for (int l = 0; l < config->L; l++) block_forward(&m, l, l + 1 < config->L ? m.blocks[l + 1].in : m.last);
    ref_layernorm_forward(m.lnf, m.lnf_mean, m.lnf_rstd, m.last, weight(&m, PARAM_LNFW, -1), weight(&m, PARAM_LNFB, -1),
                          m.N, config->C, 1e-5);
    ref_head_loss_forward(m.losses, m.lnf, wte, m.targets, m.N, config->C, config->V);
    if (logits) ref_matmul_forward(logits, m.lnf, wte, NULL, m.N, config->C, config->V);
    if (grads) backward(&m);

    double total = 0.0;
    for (int64_t n = 0; n < m.N; n++) {
        total += m.losses[n];
        if (losses) losses[n] = m.losses[n];
    }
    model_free(&m);
    return total / (double)(B * T);
}
