// Times the ops of a training step alone, each in a loop on random numbers: matrix products,
// attention, what is bound by memory, the head in chunks of the size that is used and larger, and a
// launch. For dev/bench/gpu_hour.py: what of a step is lost between these times and those of
// --profile is caches, clocks and the order. Prints one JSON object a line; the last one tells who
// computed attention and what was chosen by measurement.
#include "llmc/base/random.h"
#include "llmc/device.h"
#include "llmc/ops.h"
#include "llmc/speed.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROUNDS = 100, LAUNCHES = 200, RANDOM_ELEMENTS = 1 << 20 };

static struct {
    int64_t B, T, C, NH, V, Vp, N, R; // R: rows of a chunk of the head
    int64_t IC, OC;                   // of the product that is timed
    double seconds;                   // to spend on an op
    Tensor x, y, z, qkv, dqkv, lse, table, rstds, weight, dweight, bias, dbias, mean, rstd, logits,
        targets, losses;
    DeviceGraph *graph;
} b;

// ----------------------------------------------------------------------------------------- tensors

// Random numbers, as products of zeros cost a GPU less power: uniform, of a standard deviation of
// 0.06. Tokens below V.
static bool fill(Tensor t, Error *err) {
    const size_t size = dtype_size(t.dtype), total = tensor_bytes(t);
    size_t block = RANDOM_ELEMENTS * size;
    char *host = host_alloc(block, err);
    if (!host) return false;

    for (int64_t i = 0; i < RANDOM_ELEMENTS; i++) {
        const uint32_t bits = philox(1, STREAM_SAMPLE, (uint64_t)i).v[0];
        const float value = ((float)(bits >> 8) / (float)(1 << 24) - 0.5f) * 0.2f;
        if (t.dtype == DTYPE_I32)
            ((int32_t *)(void *)host)[i] = (int32_t)(bits % (uint32_t)b.V);
        else
            convert_elements(host + (size_t)i * size, t.dtype, &value, DTYPE_FP32, 1);
    }

    for (size_t at = 0; at < total; at += block) {
        if (total - at < block) block = total - at;
        copy_h2d((char *)t.data + at, host, block, STREAM_COMPUTE);
    }

    device_sync();
    host_free(host);
    return true;
}

static bool make(Tensor *t, DType dtype, const char *name, int64_t rows, int64_t cols, Error *err) {
    void *data = device_alloc((size_t)(rows * cols) * dtype_size(dtype), err);
    *t = tensor_make(data, dtype, name, rows, cols, 0, 0);
    return data && fill(*t, err);
}

static bool make_all(DType dtype, Error *err) {
    const OpsShape shape = {
        .B = b.B, .T = b.T, .C = b.C, .NH = b.NH, .Vp = b.Vp, .num_tensors = 1, .dtype = dtype};
    const int64_t bytes = ops_workspace_bytes(shape), chunk = ops_head_chunk_rows(shape);
    void *workspace = device_alloc((size_t)bytes, err);
    if (!workspace) return false;
    ops_set_workspace(workspace, bytes);

    b.R = chunk;
    const int64_t rows = chunk > b.N / 2 ? chunk : b.N / 2;
    b.graph = device_graph_create(err);

    return b.graph && make(&b.x, dtype, "x", b.N, 4 * b.C, err) &&
           make(&b.y, dtype, "y", b.N, 4 * b.C, err) && make(&b.z, dtype, "z", b.N, 4 * b.C, err) &&
           make(&b.qkv, dtype, "qkv", b.N, 3 * b.C, err) &&
           make(&b.dqkv, dtype, "dqkv", b.N, 3 * b.C, err) &&
           make(&b.lse, DTYPE_FP32, "lse", b.B * b.NH, b.T, err) &&
           make(&b.weight, dtype, "weight", b.Vp > 4 * b.C ? b.Vp : 4 * b.C, b.C, err) &&
           make(&b.dweight, DTYPE_FP32, "dweight", b.Vp > 4 * b.C ? b.Vp : 4 * b.C, b.C, err) &&
           make(&b.bias, dtype, "bias", 1, 4 * b.C, err) &&
           make(&b.dbias, DTYPE_FP32, "dbias", 1, 4 * b.C, err) &&
           make(&b.mean, DTYPE_FP32, "mean", 1, b.N, err) &&
           make(&b.rstd, DTYPE_FP32, "rstd", 1, b.N, err) &&
           make(&b.logits, dtype, "logits", rows, b.Vp, err) &&
           make(&b.targets, DTYPE_I32, "targets", 1, b.N, err) &&
           make(&b.losses, DTYPE_FP32, "losses", 1, b.N, err) &&
           make(&b.table, DTYPE_FP32, "table", 2 * b.T, b.C / b.NH / 2, err) &&
           make(&b.rstds, DTYPE_FP32, "rstd", b.N, 2 * b.NH, err);
}

// The start of t as (d0, d1).
static Tensor as(Tensor t, int64_t d0, int64_t d1) {
    return tensor_make(t.data, t.dtype, t.name, d0, d1, 0, 0);
}
static Tensor row(Tensor t, int64_t n) { return tensor_make(t.data, t.dtype, t.name, n, 0, 0, 0); }
static Tensor batch(Tensor t, int64_t cols) {
    return tensor_make(t.data, t.dtype, t.name, b.B, b.T, cols, 0);
}
static Tensor lse(void) { return tensor_make(b.lse.data, DTYPE_FP32, "lse", b.B, b.NH, b.T, 0); }

// --------------------------------------------------------------------------------------------- ops

// attproj and fcproj add to the residual stream.
static void forward(void) {
    const Tensor out = as(b.y, b.N, b.OC), in = as(b.x, b.N, b.IC),
                 weight = as(b.weight, b.OC, b.IC);
    if (b.OC == b.C)
        matmul_residual_forward(out, as(b.z, b.N, b.C), in, weight, row(b.bias, b.OC));
    else
        matmul_forward(out, in, weight, row(b.bias, b.OC));
}
static void input_gradient(void) {
    matmul_backward_input(as(b.x, b.N, b.IC), as(b.y, b.N, b.OC), as(b.weight, b.OC, b.IC));
}
static void weight_gradient(void) {
    matmul_backward_weight(gradient_to(as(b.dweight, b.OC, b.IC), false),
                           gradient_to(row(b.dbias, b.OC), false), as(b.y, b.N, b.OC),
                           as(b.x, b.N, b.IC));
}
static void fc_gelu(void) {
    matmul_gelu_forward(as(b.y, b.N, b.OC), as(b.z, b.N, b.OC), as(b.x, b.N, b.IC),
                        as(b.weight, b.OC, b.IC), row(b.bias, b.OC));
}
static void fcproj_gelu_backward(void) {
    matmul_gelu_backward_input(as(b.y, b.N, b.IC), as(b.x, b.N, b.OC), as(b.weight, b.OC, b.IC),
                               as(b.z, b.N, b.IC), NULL);
}
static void attention(void) {
    attention_forward(batch(b.y, b.C), lse(), batch(b.qkv, 3 * b.C),
                      heads_of((int)b.NH, (int)b.NH));
}
static void attention_gradient(void) {
    attention_backward(batch(b.dqkv, 3 * b.C), batch(b.x, b.C), batch(b.y, b.C), lse(),
                       batch(b.qkv, 3 * b.C), heads_of((int)b.NH, (int)b.NH), NULL);
}
static void layernorm(void) {
    layernorm_forward(as(b.y, b.N, b.C), row(b.mean, b.N), row(b.rstd, b.N), as(b.x, b.N, b.C),
                      row(b.bias, b.C), row(b.bias, b.C), 1e-5f);
}
static void layernorm_gradient(void) {
    layernorm_backward(gradient_to(as(b.y, b.N, b.C), true),
                       gradient_to(row(b.dweight, b.C), false),
                       gradient_to(row(b.dbias, b.C), false),
                       gradient_to(row(b.losses, b.C), false), as(b.x, b.N, b.C),
                       as(b.qkv, b.N, b.C), row(b.mean, b.N), row(b.rstd, b.N), row(b.bias, b.C));
}
static void gelu(void) { gelu_forward(as(b.y, b.N, 4 * b.C), as(b.x, b.N, 4 * b.C)); }
static void gelu_gradient(void) {
    gelu_backward(as(b.y, b.N, 4 * b.C), gradient_none(), as(b.z, b.N, 4 * b.C),
                  as(b.x, b.N, 4 * b.C));
}

// The next ops belong to blocks after GPT-2. q and k of qkv are in heads as k and v; gate and up
// have 2 C columns each.
static void rmsnorm(void) {
    rmsnorm_forward(as(b.y, b.N, b.C), row(b.rstd, b.N), as(b.x, b.N, b.C), row(b.bias, b.C),
                    1e-6f);
}
static void rmsnorm_gradient(void) {
    rmsnorm_backward(gradient_to(as(b.y, b.N, b.C), true), gradient_to(row(b.dweight, b.C), false),
                     gradient_none(), as(b.x, b.N, b.C), as(b.qkv, b.N, b.C), row(b.rstd, b.N),
                     row(b.bias, b.C));
}
static Tensor table(void) {
    return tensor_make(b.table.data, DTYPE_FP32, "table", b.T, 2, b.C / b.NH / 2, 0);
}
static void rope(void) {
    const Tensor none = tensor_none();
    const Tensor qkv = batch(b.qkv, 3 * b.C);
    qk_norm_rope_forward(qkv, none, qkv, none, none, table(), heads_of((int)b.NH, (int)b.NH), 0.0f,
                         none);
}
static void rope_gradient(void) {
    const Tensor none = tensor_none();
    qk_norm_rope_backward(batch(b.dqkv, 3 * b.C), gradient_none(), gradient_none(), none, none,
                          none, none, table(), heads_of((int)b.NH, (int)b.NH));
}
static void qk_norm(void) {
    const Tensor weight = row(b.bias, b.C / b.NH);
    qk_norm_rope_forward(batch(b.dqkv, 3 * b.C), as(b.rstds, b.N, 2 * b.NH), batch(b.qkv, 3 * b.C),
                         weight, weight, table(), heads_of((int)b.NH, (int)b.NH), 1e-6f,
                         tensor_none());
}
static void qk_norm_gradient(void) {
    const int64_t HS = b.C / b.NH;
    const Tensor weight = row(b.bias, HS), dq = row(b.dweight, HS),
                 dk = tensor_slice_elements(b.dweight, HS, HS);
    qk_norm_rope_backward(batch(b.dqkv, 3 * b.C), gradient_to(dq, true), gradient_to(dk, true),
                          batch(b.qkv, 3 * b.C), as(b.rstds, b.N, 2 * b.NH), weight, weight,
                          table(), heads_of((int)b.NH, (int)b.NH));
}
static void swiglu(void) { swiglu_forward(as(b.y, b.N, 2 * b.C), as(b.x, b.N, 4 * b.C)); }
static void swiglu_gradient(void) {
    swiglu_backward(as(b.y, b.N, 4 * b.C), gradient_none(), as(b.z, b.N, 2 * b.C),
                    as(b.x, b.N, 4 * b.C));
}
static void relu2(void) { relu2_forward(as(b.y, b.N, 4 * b.C), as(b.x, b.N, 4 * b.C)); }
static void relu2_gradient(void) {
    relu2_backward(as(b.y, b.N, 4 * b.C), gradient_none(), as(b.z, b.N, 4 * b.C),
                   as(b.x, b.N, 4 * b.C));
}

static void head(void) {
    head_loss_backward(row(b.losses, b.N), as(b.y, b.N, b.C),
                       gradient_to(as(b.dweight, b.Vp, b.C), false), as(b.logits, b.R, b.Vp),
                       as(b.x, b.N, b.C), as(b.weight, b.Vp, b.C), row(b.targets, b.N), b.V,
                       loss_scale_make(1.0f / (float)b.N, tensor_none()));
}
static void launches(void) {
    for (int i = 0; i < LAUNCHES; i++) tensor_fill(row(b.mean, 32), 0.0f);
}
static void replayed_launches(void) {
    if (device_graph_replay(b.graph)) return;
    device_graph_begin(b.graph);
    launches();
    device_graph_end(b.graph);
}

// ------------------------------------------------------------------------------------------ timing

static int compare_doubles(const void *left, const void *right) {
    const double x = *(const double *)left, y = *(const double *)right;
    return (x > y) - (x < y);
}

// The median of rounds after three to warm up (plans, recording); 0: no memory.
static double seconds_of(void (*op)(void), Error *err) {
    double times[MAX_ROUNDS], total = 0.0;
    int count = 0;
    DeviceEvent *start = device_event_create(err), *stop = start ? device_event_create(err) : NULL;

    for (int round = 0; stop && count < MAX_ROUNDS && (count < 3 || total < b.seconds); round++) {
        device_event_record(start, STREAM_COMPUTE);
        op();
        device_event_record(stop, STREAM_COMPUTE);
        device_sync();
        if (round < 3) continue;
        times[count] = device_event_seconds(start, stop);
        total += times[count++];
    }

    if (stop) device_event_destroy(stop);
    if (start) device_event_destroy(start);
    if (!count) return 0;

    qsort(times, (size_t)count, sizeof times[0], compare_doubles);
    return times[count / 2];
}

// Prints a line.
static bool timed(const char *name, void (*op)(void), double flops, double bytes, Error *err) {
    const double seconds = seconds_of(op, err);
    if (seconds == 0) return false;
    printf("{\"op\": \"%s\", \"seconds\": %.9g, \"flops\": %.9g, \"bytes\": %.9g}\n", name, seconds,
           flops, bytes);
    fflush(stdout);
    return true;
}

static bool time_products(Error *err) {
    const struct {
        const char *name;
        int64_t IC, OC;
    } layers[] = {{"qkv", b.C, 3 * b.C},
                  {"attproj", b.C, b.C},
                  {"fc", b.C, 4 * b.C},
                  {"fcproj", 4 * b.C, b.C}};
    const struct {
        const char *name;
        void (*op)(void);
    } passes[] = {{"forward", forward},
                  {"input gradient", input_gradient},
                  {"weight gradient", weight_gradient}};

    for (int l = 0; l < 4; l++) {
        b.IC = layers[l].IC, b.OC = layers[l].OC;
        const double flops = 2.0 * (double)b.N * (double)b.IC * (double)b.OC;
        for (int p = 0; p < 3; p++) {
            char name[64];
            snprintf(name, sizeof name, "%s %s", layers[l].name, passes[p].name);
            if (!timed(name, passes[p].op, flops, 0.0, err)) return false;
        }
        if (l == 2 && !timed("fc forward with GELU", fc_gelu, flops, 0.0, err)) return false;
        if (l == 3 &&
            !timed("fcproj input gradient with GELU", fcproj_gelu_backward, flops, 0.0, err))
            return false;
    }
    return true;
}

// The backward pass as llm.c and PyTorch run it: what repeatable bits cost.
static bool time_fast(double flops, Error *err) {
    attention();
    return timed("attention backward, fast", attention_gradient, flops, 0.0, err);
}

// Ops that only the CPU has so far. What has no weights runs first: with them rstd is needed.
static bool time_blocks(double unit, Error *err) {
    if (strcmp(device_facts()->backend, "cpu") != 0) return true;
    return timed("GELU backward", gelu_gradient, 0.0, 12.0 * unit, err) &&
           timed("RMSNorm forward", rmsnorm, 0.0, 2.0 * unit, err) &&
           timed("RMSNorm backward", rmsnorm_gradient, 0.0, 4.0 * unit, err) &&
           timed("RoPE forward", rope, 0.0, 4.0 * unit, err) &&
           timed("RoPE backward", rope_gradient, 0.0, 4.0 * unit, err) &&
           timed("QK-norm and RoPE forward", qk_norm, 0.0, 6.0 * unit, err) &&
           timed("QK-norm and RoPE backward", qk_norm_gradient, 0.0, 6.0 * unit, err) &&
           timed("SwiGLU forward", swiglu, 0.0, 6.0 * unit, err) &&
           timed("SwiGLU backward", swiglu_gradient, 0.0, 10.0 * unit, err) &&
           timed("ReLU^2 forward", relu2, 0.0, 8.0 * unit, err) &&
           timed("ReLU^2 backward", relu2_gradient, 0.0, 12.0 * unit, err);
}

static bool time_all(AttentionChoice kind, Error *err) {
    const double N = (double)b.N, C = (double)b.C, unit = N * C * (double)dtype_size(b.x.dtype);
    // FLOP of both products below the diagonal
    const double scores = 2.0 * N * C * ((double)b.T + 1.0);
    const double logits = 2.0 * N * C * (double)b.Vp;
    if (kind == ATTENTION_FAST) return time_fast(2.5 * scores, err);
    bool ok = time_products(err) && timed("attention forward", attention, scores, 0.0, err) &&
              timed("attention backward", attention_gradient, 2.5 * scores, 0.0, err) &&
              timed("layernorm forward", layernorm, 0.0, 2.0 * unit, err) &&
              timed("layernorm backward", layernorm_gradient, 0.0, 4.0 * unit, err) &&
              timed("GELU forward", gelu, 0.0, 8.0 * unit, err) && time_blocks(unit, err);

    char name[64];
    snprintf(name, sizeof name, "head, chunks of %lld", (long long)b.R);
    ok = ok && timed(name, head, 3.0 * logits, 0.0, err);
    if (b.R < b.N / 2) {
        b.R = b.N / 2;
        snprintf(name, sizeof name, "head, chunks of %lld", (long long)b.R);
        ok = ok && timed(name, head, 3.0 * logits, 0.0, err);
    }

    return ok && timed("200 launches", launches, 0.0, 0.0, err) &&
           timed("200 launches, replayed", replayed_launches, 0.0, 0.0, err);
}

int main(int argc, char **argv) {
    if (argc != 9) {
        fprintf(stderr, "usage: bench_ops B T C NH V fp32|fp16|bf16 auto|own|cudnn|fast SECONDS    "
                        " e.g. 64 1024 768 12 "
                        "50257 bf16 auto 0.2\nfast: the backward pass of attention alone, by cuDNN "
                        "in the form whose bits "
                        "need not repeat\n");
        return EXIT_BAD_INPUT;
    }

    device_prepare_process(argv);
    Error err = {""};
    const DType dtype = strcmp(argv[6], "fp32") == 0   ? DTYPE_FP32
                        : strcmp(argv[6], "fp16") == 0 ? DTYPE_FP16
                                                       : DTYPE_BF16;
    b.B = atoll(argv[1]), b.T = atoll(argv[2]), b.C = atoll(argv[3]), b.NH = atoll(argv[4]),
    b.V = atoll(argv[5]);
    b.Vp = (b.V + 127) / 128 * 128, b.N = b.B * b.T, b.seconds = atof(argv[8]);

    DeviceOptions device = {0};
    if (strcmp(argv[7], "own") == 0) device.attention = ATTENTION_OWN;
    if (strcmp(argv[7], "cudnn") == 0) device.attention = ATTENTION_CUDNN;
    if (strcmp(argv[7], "fast") == 0) device.attention = ATTENTION_FAST;
    bool ok = device_init(&device, &err);
    DeviceSpeed speed = {0};
    ok = ok && speed_measure(dtype, (size_t)1 << 30, &speed, &err);

    if (ok) {
        printf("{\"device\": \"%s\", \"matmul_flops\": %.9g, \"copy_bandwidth\": %.9g}\n",
               device_facts()->name, speed.matmul_flops, speed.copy_bandwidth);
        // the memory goes with the process
        ok = make_all(dtype, &err) && time_all(device.attention, &err);
        printf("{\"attention\": \"%s\"}\n", device_facts()->attention);
    }

    if (!ok) fprintf(stderr, "bench_ops: %s\n", err.text);
    return ok ? EXIT_OK : EXIT_RUN_FAILED;
}
