// The ops of blocks after GPT-2 against transformers' own classes: losses and all gradients of tiny
// Starcoder2, Llama, Qwen3 and Arcee models, put together from ops as a trainer does. From files
// that dev/golden/generate_blocks.py wrote (its head lists them). In fp32.
#include "llmc/device.h"
#include "llmc/store/safetensors.h"
#include "test/ops/op_test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TestFixture test_all = {op_group_setup, op_group_teardown};

enum {
    B = 3,
    T = 16,
    N = B * T,
    V = 37,
    L = 2,
    C = 16,
    NH = 4,
    NKV = 2,
    D_FF = 24,
    MAX_T = 24,
    ARENA = 1 << 20
};

typedef struct {
    const char *name;
    int HS;
    float eps, base;
    // names of the linear layers of the feed-forward part; gate and up with a comma
    const char *up, *down;
} Golden;

static const Golden models[] = {
    {"starcoder2", 4, 1e-5f, 1e4f, "mlp.c_fc", "mlp.c_proj"},
    {"llama", 4, 1e-6f, 1e4f, "mlp.gate_proj,mlp.up_proj", "mlp.down_proj"},
    {"qwen3", 6, 1e-6f, 1e3f, "mlp.gate_proj,mlp.up_proj", "mlp.down_proj"},
    {"arcee", 4, 1e-5f, 1e4f, "mlp.up_proj", "mlp.down_proj"},
};

static struct {
    const Golden *golden;
    SafetensorsFile *weights, *values;
    char *memory; // of all tensors
    size_t used;
    float *host; // what goes to the device or comes from it
} m;

// ----------------------------------------------------------------------------------------- tensors

static Tensor take(DType dtype, int64_t d0, int64_t d1, int64_t d2) {
    const Tensor t = tensor_make(m.memory + m.used, dtype, "tensor", d0, d1, d2, 0);
    m.used += (tensor_bytes(t) + 63) / 64 * 64;
    if (m.used > ARENA) op_fail("more than %d bytes", ARENA);
    return t;
}
static Tensor fp32(int64_t d0, int64_t d1) { return take(DTYPE_FP32, d0, d1, 0); }

// A weight, which may be several of the file one below the other, and its gradient. Absent: the
// model has none.
typedef struct {
    Tensor w, g;
    const SafetensorsEntry *of[3];
    int parts;
} Weight;

// layers: "a,b" with a suffix such as ".weight".
static Weight weight(const char *prefix, const char *layers, const char *suffix) {
    Weight x = {0};
    Error err;
    char list[128], *next = list, *layer;

    snprintf(list, sizeof list, "%s", layers);
    int64_t rows = 0, cols = 0;
    while ((layer = strsep(&next, ","))) {
        char full[256];
        snprintf(full, sizeof full, "%s%s%s", prefix, layer, suffix);
        const SafetensorsEntry *e = safetensors_find(m.weights, full);
        if (!e) return (Weight){0};
        x.of[x.parts++] = e;
        rows += e->shape[0], cols = e->rank == 2 ? e->shape[1] : 0;
    }

    x.w = fp32(rows, cols), x.g = fp32(rows, cols);
    float *to = x.w.data;
    for (int i = 0; i < x.parts; i++) {
        const int64_t n = x.of[i]->bytes / 4;
        if (!safetensors_read_fp32(m.weights, x.of[i], 0, n, m.host, &err)) op_fail("%s", err.text);
        copy_h2d(to, m.host, (size_t)n * sizeof *to, STREAM_COMPUTE);
        device_sync();
        to += n;
    }

    return x;
}

// The caller frees them.
static float *golden_values(const char *prefix, const char *name, int64_t *n) {
    char full[256];
    Error err;
    snprintf(full, sizeof full, "%s%s", prefix, name);
    const SafetensorsEntry *e = safetensors_find(m.values, full);
    if (!e) op_fail("%s.safetensors has no %s", m.golden->name, full);
    *n = e->bytes / 4;
    float *values = calloc((size_t)*n, sizeof *values);
    if (!safetensors_read_fp32(m.values, e, 0, *n, values, &err)) op_fail("%s", err.text);
    return values;
}

static void check_values(const char *prefix, const char *name, const float *device) {
    int64_t n;
    float *want = golden_values(prefix, name, &n);
    const float *got = m.host;
    copy_d2h(m.host, device, (size_t)n * sizeof *got, STREAM_COMPUTE);
    device_sync();

    double error = 0.0, norm = 0.0;
    for (int64_t i = 0; i < n; i++) {
        error += ((double)got[i] - (double)want[i]) * ((double)got[i] - (double)want[i]);
        norm += (double)want[i] * (double)want[i];
    }

    free(want);
    if (!(error <= 1e-10 * norm)) // also when it is NaN
        op_fail("%s: %s%s: relative error %.3g", m.golden->name, prefix, name, sqrt(error / norm));
}

static void check_gradients(const Weight *x) {
    const float *got = x->g.data;
    for (int i = 0; i < x->parts; i++) {
        check_values("grad.", x->of[i]->name, got);
        got += x->of[i]->bytes / 4;
    }
}

// --------------------------------------------------------------------------------------- the model

typedef struct {
    Weight w, b;
} Layer;
static Layer layer(const char *prefix, const char *names) {
    return (Layer){weight(prefix, names, ".weight"), weight(prefix, names, ".bias")};
}

typedef struct {
    Layer ln1, qkv, attproj, ln2, up, down;
    Weight q_norm, k_norm;
    Tensor x, n1, mean1, rstd1, packed, rotated, rstds, att, lse, x2, n2, mean2, rstd2, pre, act;
} TestBlock;

static void norm_forward(Tensor out, Tensor mean, Tensor rstd, Tensor in, const Layer *ln) {
    if (ln->b.w.data)
        layernorm_forward(out, mean, rstd, in, ln->w.w, ln->b.w, m.golden->eps);
    else
        rmsnorm_forward(out, rstd, in, ln->w.w, m.golden->eps);
}

static void norm_backward(Tensor din, Tensor dout, Tensor mean, Tensor rstd, Tensor in,
                          const Layer *ln, bool add) {
    if (ln->b.w.data)
        layernorm_backward(gradient_to(din, add), gradient_to(ln->w.g, false),
                           gradient_to(ln->b.g, false), gradient_none(), dout, in, mean, rstd,
                           ln->w.w);
    else
        rmsnorm_backward(gradient_to(din, add), gradient_to(ln->w.g, false), gradient_none(), dout,
                         in, rstd, ln->w.w);
}

static void activation_forward(Tensor act, Tensor pre) {
    if (strcmp(m.golden->name, "starcoder2") == 0)
        gelu_forward(act, pre);
    else if (strcmp(m.golden->name, "arcee") == 0)
        relu2_forward(act, pre);
    else
        swiglu_forward(act, pre);
}

// The gradient of act becomes that of pre.
static void activation_backward(Tensor dpre, Tensor dact, Tensor pre) {
    if (strcmp(m.golden->name, "starcoder2") == 0)
        gelu_backward(dpre, gradient_none(), dact, pre);
    else if (strcmp(m.golden->name, "arcee") == 0)
        relu2_backward(dpre, gradient_none(), dact, pre);
    else
        swiglu_backward(dpre, gradient_none(), dact, pre);
}

static TestBlock block_make(int l) {
    char prefix[64];
    const int HS = m.golden->HS;
    snprintf(prefix, sizeof prefix, "model.layers.%d.", l);

    TestBlock b = {.ln1 = layer(prefix, "input_layernorm"),
                   .qkv = layer(prefix, "self_attn.q_proj,self_attn.k_proj,self_attn.v_proj"),
                   .attproj = layer(prefix, "self_attn.o_proj"),
                   .ln2 = layer(prefix, "post_attention_layernorm"),
                   .up = layer(prefix, m.golden->up),
                   .down = layer(prefix, m.golden->down),
                   .q_norm = weight(prefix, "self_attn.q_norm", ".weight"),
                   .k_norm = weight(prefix, "self_attn.k_norm", ".weight")};

    b.x = fp32(N, C), b.n1 = fp32(N, C), b.x2 = fp32(N, C), b.n2 = fp32(N, C);
    b.mean1 = fp32(N, 0), b.rstd1 = fp32(N, 0), b.mean2 = fp32(N, 0), b.rstd2 = fp32(N, 0);
    b.packed = take(DTYPE_FP32, B, T, (NH + 2 * NKV) * HS),
    b.rotated = take(DTYPE_FP32, B, T, (NH + 2 * NKV) * HS);
    b.rstds = fp32(N, NH + NKV), b.att = take(DTYPE_FP32, B, T, NH * HS),
    b.lse = take(DTYPE_FP32, B, NH, T);
    b.pre = fp32(N, tensor_rows(b.up.w.w)), b.act = fp32(N, D_FF);

    return b;
}

static void block_forward(const TestBlock *b, Tensor out, Tensor table) {
    norm_forward(b->n1, b->mean1, b->rstd1, b->x, &b->ln1);
    matmul_forward(b->packed, b->n1, b->qkv.w.w, b->qkv.b.w);
    qk_norm_rope_forward(b->rotated, b->rstds, b->packed, b->q_norm.w, b->k_norm.w, table,
                         heads_of(NH, NKV), m.golden->eps, tensor_none());
    attention_forward(b->att, b->lse, b->rotated, heads_of(NH, NKV));
    matmul_residual_forward(b->x2, b->x, b->att, b->attproj.w.w, b->attproj.b.w);
    norm_forward(b->n2, b->mean2, b->rstd2, b->x2, &b->ln2);
    matmul_forward(b->pre, b->n2, b->up.w.w, b->up.b.w);
    activation_forward(b->act, b->pre);
    matmul_residual_forward(out, b->x2, b->act, b->down.w.w, b->down.b.w);
}

// dx: the gradient of the block's output on entry, of its input on return.
static void block_backward(const TestBlock *b, Tensor dx, Tensor table) {
    const int HS = m.golden->HS;
    Tensor dact = fp32(N, D_FF), dpre = fp32(N, tensor_cols(b->pre)), dn = fp32(N, C),
           datt = fp32(N, NH * HS);
    Tensor dpacked = take(DTYPE_FP32, B, T, (NH + 2 * NKV) * HS);

    matmul_backward_weight(gradient_to(b->down.w.g, false), gradient_to(b->down.b.g, false), dx,
                           b->act);
    matmul_backward_input(dact, dx, b->down.w.w);
    activation_backward(dpre, dact, b->pre);

    matmul_backward_weight(gradient_to(b->up.w.g, false), gradient_to(b->up.b.g, false), dpre,
                           b->n2);
    matmul_backward_input(dn, dpre, b->up.w.w);
    norm_backward(dx, dn, b->mean2, b->rstd2, b->x2, &b->ln2, true);

    matmul_backward_weight(gradient_to(b->attproj.w.g, false), gradient_to(b->attproj.b.g, false),
                           dx, b->att);
    matmul_backward_input(datt, dx, b->attproj.w.w);
    attention_backward(dpacked, datt, b->att, b->lse, b->rotated, heads_of(NH, NKV), NULL);
    qk_norm_rope_backward(dpacked, gradient_to(b->q_norm.g, false), gradient_to(b->k_norm.g, false),
                          b->packed, b->rstds, b->q_norm.w, b->k_norm.w, table, heads_of(NH, NKV));

    matmul_backward_weight(gradient_to(b->qkv.w.g, false), gradient_to(b->qkv.b.g, false), dpacked,
                           b->n1);
    matmul_backward_input(dn, dpacked, b->qkv.w.w);
    norm_backward(dx, dn, b->mean1, b->rstd1, b->x, &b->ln1, true);
}

static void check_block(const TestBlock *b) {
    const Layer *layers[] = {&b->ln1, &b->qkv, &b->attproj, &b->ln2, &b->up, &b->down};
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
        check_gradients(&layers[i]->w), check_gradients(&layers[i]->b);
    check_gradients(&b->q_norm), check_gradients(&b->k_norm);
}

static void unpack_windows(Tensor tokens, Tensor targets) {
    int64_t n;
    float *windows = golden_values("", "windows", &n);
    int32_t *inputs = (int32_t *)m.host, *shifted = inputs + N;

    for (int64_t i = 0; i < N; i++) {
        const float *token = windows + i / T * (T + 1) + i % T;
        inputs[i] = (int32_t)token[0];
        shifted[i] = (int32_t)token[1];
    }

    copy_h2d(tokens.data, inputs, tensor_bytes(tokens), STREAM_COMPUTE);
    copy_h2d(targets.data, shifted, tensor_bytes(targets), STREAM_COMPUTE);
    device_sync();
    free(windows);
}

static void model_case(const Golden *golden) {
    char path[128];
    Error err;
    op_begin((OpsShape){.B = B,
                        .T = T,
                        .C = 48,
                        .NH = NH,
                        .NKV = NKV,
                        .HS = golden->HS,
                        .Vp = V,
                        .num_tensors = 1},
             "%s", golden->name);
    m.golden = golden, m.used = 0;
    m.memory = op_output(DTYPE_U8, "memory", DIMS(ARENA)).t.data;
    m.host = host_alloc(ARENA, &err);
    if (!m.host) op_fail("%s", err.text);
    snprintf(path, sizeof path, "test/golden/tiny_%s/model.safetensors", golden->name);
    m.weights = safetensors_open(path, &err);
    snprintf(path, sizeof path, "test/golden/%s.safetensors", golden->name);
    m.values = m.weights ? safetensors_open(path, &err) : NULL;
    if (!m.values) op_fail("%s", err.text);

    const Weight wte = weight("model.", "embed_tokens", ".weight"),
                 own_head = weight("", "lm_head", ".weight");
    const Weight *head = own_head.w.data ? &own_head : &wte;
    const Layer lnf = layer("model.", "norm");
    TestBlock blocks[L];
    for (int l = 0; l < L; l++) blocks[l] = block_make(l);
    Tensor tokens = take(DTYPE_I32, B, T, 0), targets = take(DTYPE_I32, N, 0, 0),
           last = take(DTYPE_FP32, B, T, C);
    Tensor n = fp32(N, C), dn = fp32(N, C), mean = fp32(N, 0), rstd = fp32(N, 0),
           dx = take(DTYPE_FP32, B, T, C);
    Tensor losses = fp32(N, 0), logits = fp32(N, V),
           table = take(DTYPE_FP32, MAX_T, 2, golden->HS / 2);
    unpack_windows(tokens, targets);
    rope_table(table, golden->base);
    embedding_forward(blocks[0].x, tokens, wte.w, tensor_none());
    for (int l = 0; l < L; l++)
        block_forward(&blocks[l], l + 1 < L ? blocks[l + 1].x : last, table);
    norm_forward(n, mean, rstd, last, &lnf);
    head_loss_backward(losses, dn, gradient_to(head->g, false), logits, n, head->w, targets, V,
                       loss_scale_make(1.0f / N, tensor_none()));
    norm_backward(dx, dn, mean, rstd, last, &lnf, false);
    for (int l = L - 1; l >= 0; l--) block_backward(&blocks[l], dx, table);
    embedding_backward(gradient_to(wte.g, head == &wte), gradient_none(), dx, tokens);

    check_values("", "losses", losses.data);
    check_gradients(&wte), check_gradients(&own_head), check_gradients(&lnf.w),
        check_gradients(&lnf.b);
    for (int l = 0; l < L; l++) check_block(&blocks[l]);
    safetensors_close(m.weights);
    safetensors_close(m.values);
    host_free(m.host);
    op_end();
}

TEST_WITH(losses_and_all_gradients_are_those_of_transformers, NULL, op_teardown) {
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) model_case(&models[i]);
}
