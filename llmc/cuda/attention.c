// attention_forward and attention_backward: the choice between our own kernels and cuDNN.
//
// A choice belongs to a shape for which ops_workspace_bytes was asked: the micro-batch of a run. It
// is made separately for forward and backward, which may be mixed since both store the same lse,
// the first time that a pass runs (tuning.c states what it guarantees), among our own kernels and
// all ways of cuDNN that fit into its share of memory. Every other shape (samples, a short last
// batch), fp32, sm_75 and head sizes that cuDNN does not take have the own kernels.
// --attention fast takes the backward form whose bits need not repeat.
#include "llmc/base/choices_file.h"
#include "llmc/cuda/cudnn_attention.h"
#include "llmc/cuda/cudnn_library.h"
#include "llmc/cuda/tuning.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    bool planned; // not the backward pass of a model that only evaluates
    AttentionWay choice;
    bool is_known; // an earlier run measured that the one way of cuDNN below is the fastest
    CudnnAttention *cudnn[ATTENTION_WAYS]; // NULL: takes no part
    Error why_not; // why cuDNN does not compute this pass; empty when --attention own says so
} Pass;

// Kept until device_shutdown: a captured graph may hold the kernels of any shape that ever ran.
typedef struct PlannedShape {
    AttentionShape shape;
    Pass passes[ATTENTION_PASSES];
    struct PlannedShape *next; // the one that was asked for before
} PlannedShape;

static PlannedShape *planned; // asked for last

static const char *const pass_names[ATTENTION_PASSES] = {"forward", "backward"};

// One call of an op.
typedef struct {
    AttentionPass pass;
    AttentionShape shape;
    Tensor out, lse, qkv, dqkv, dout; // the last two: backward
    Gradient dbias;                   // backward; may be absent
} Call;

// ---------------------------------------------------------------------------------------- planning

static bool is_cudnn(AttentionChoice asked) {
    return asked == ATTENTION_CUDNN || asked == ATTENTION_FAST;
}
static const char *option_text(AttentionChoice asked) {
    if (asked == ATTENTION_FAST) return "--attention fast";
    return "--attention cudnn";
}

bool cuda_attention_check(const DeviceOptions *options, Error *err) {
    Error why;
    if (!is_cudnn(options->attention) || cudnn_attention_open(&why)) return true;
    return error_set(err, "%s: %s; use --attention own, or auto to use cuDNN where available",
                     option_text(options->attention), why.text);
}

// Whether the choice is still to be made by measurement; otherwise it is cuDNN's first way that
// compiles and agrees.
static bool is_measured(const Pass *p) {
    return cuda_backend.options.attention == ATTENTION_AUTO && !cuda_backend.options.no_tuning &&
           !p->is_known;
}

static void choice_key(char key[CHOICES_KEY_MAX], AttentionPass pass, AttentionShape s) {
    char kv[32] = "";
    if (s.NKV != s.NH) snprintf(kv, sizeof kv, " NKV %lld", (long long)s.NKV);
    snprintf(key, CHOICES_KEY_MAX, "%s, cuDNN %d, attention %s B %lld T %lld NH %lld%s HS %lld %s",
             tuning_machine(), cudnn_library_version(), pass_names[pass], (long long)s.B,
             (long long)s.T, (long long)s.NH, kv, (long long)s.HS, dtype_name(s.dtype));
}

static void plan_pass(Pass *p, AttentionPass pass, AttentionShape shape) {
    const AttentionChoice asked = cuda_backend.options.attention;
    const bool fast = asked == ATTENTION_FAST && pass == ATTENTION_BACKWARD;
    p->planned = true;
    if (asked == ATTENTION_OWN || !cudnn_attention_open(&p->why_not)) return;

    char key[CHOICES_KEY_MAX];
    choice_key(key, pass, shape);
    uint8_t known = ATTENTION_WAY_UNKNOWN; // else the choice of an earlier run
    if (asked != ATTENTION_AUTO || !choices_file_get(key, &known, sizeof known) ||
        known > BY_CUDNN_ORDERED)
        known = ATTENTION_WAY_UNKNOWN;

    if (known == BY_OWN_KERNELS) {
        error_set(&p->why_not, "faster %s than cuDNN %s", pass_names[pass],
                  cudnn_library_version_text());
        return;
    }

    // The memory limit of cuDNN's deterministic backward pass, unless cuDNN was requested: see
    // cuda_size_cudnn.
    const int64_t bytes = (int64_t)cuda_backend.facts.memory_free;
    const int64_t limit = is_cudnn(asked) ? bytes : cuda_size_cudnn_limit(bytes);

    if (known != ATTENTION_WAY_UNKNOWN) {
        p->cudnn[known] =
            cudnn_attention_create(pass, shape, (AttentionWay)known, limit, &p->why_not);
        p->is_known = p->cudnn[known] != NULL;
        if (p->is_known) p->choice = ATTENTION_WAY_UNKNOWN;
    }

    int first = BY_CUDNN_STORED, last = BY_CUDNN_ORDERED;
    if (fast) first = last = BY_CUDNN_UNORDERED;
    for (int way = first; way <= last; way++) {
        if (p->choice == ATTENTION_WAY_UNKNOWN && !is_measured(p)) break;
        p->cudnn[way] = cudnn_attention_create(pass, shape, (AttentionWay)way, limit, &p->why_not);
        if (p->cudnn[way]) p->choice = ATTENTION_WAY_UNKNOWN;
    }
}

// The link to the shape, or the one that ends the list.
static PlannedShape **find_planned(AttentionShape a) {
    PlannedShape **link = &planned;
    for (; *link; link = &(*link)->next) {
        const AttentionShape b = (*link)->shape;
        if (a.B == b.B && a.T == b.T && a.NH == b.NH && a.NKV == b.NKV && a.HS == b.HS &&
            a.dtype == b.dtype)
            break;
    }
    return link;
}

int64_t cuda_cudnn_workspace(OpsShape ops) {
    const AttentionShape shape = {.B = ops.B,
                                  .T = ops.T,
                                  .NH = ops.NH,
                                  .NKV = ops_kv_heads(ops),
                                  .HS = ops_head_size(ops),
                                  .dtype = ops.dtype};
    PlannedShape **link = find_planned(shape), *p = *link;
    if (p) {
        *link = p->next;
    } else {
        p = (PlannedShape *)calloc(1, sizeof *p);
        REQUIRE_MEMORY(p, "a shape of attention");
        p->shape = shape;
    }

    p->next = planned; // first: the shape that was asked for last is the one described
    planned = p;

    int64_t bytes = 0;
    for (int pass = 0; pass < ATTENTION_PASSES; pass++) {
        if (pass == ATTENTION_BACKWARD && ops.forward_only) break;
        if (!p->passes[pass].planned) plan_pass(&p->passes[pass], (AttentionPass)pass, shape);
        for (int way = 0; way < ATTENTION_WAYS; way++)
            if (p->passes[pass].cudnn[way])
                bytes = max_i64(bytes, cudnn_attention_workspace(p->passes[pass].cudnn[way]));
    }

    return bytes;
}

void cuda_attention_shutdown(void) {
    while (planned) {
        PlannedShape *p = planned;
        planned = p->next;
        for (int pass = 0; pass < ATTENTION_PASSES; pass++)
            for (int way = 0; way < ATTENTION_WAYS; way++)
                cudnn_attention_destroy(p->passes[pass].cudnn[way]);
        free(p);
    }
    cudnn_attention_close();
}

// ----------------------------------------------------------------------------------------- running

// Returns whether it made dbias as well.
static bool run_own(const Call *c) {
    const Heads heads = heads_of((int)c->shape.NH, (int)c->shape.NKV);
    if (c->pass == ATTENTION_BACKWARD)
        return cuda_flash_backward(c->dqkv, c->dout, c->out, c->lse, c->qkv, heads, c->dbias);
    cuda_flash_forward(c->out, c->lse, c->qkv, heads);
    return false;
}

static bool run_cudnn(const Call *c, CudnnAttention *a, Error *why) {
    void *workspace = cuda_scratch("attention by cuDNN", cudnn_attention_workspace(a));
    return cudnn_attention_run(a, c->out, c->lse, c->qkv, c->dqkv, c->dout, workspace, why);
}

// --------------------------------------------------------------------------------------- measuring

// The tolerance of cuDNN's results, as ||x - own|| / ||own||. Both sum in fp32 and round P, dS and
// the result: each by 2^-9 on average in bf16. In fp16 small dS are rounded to multiples of 2^-24,
// by a per cent of themselves. Wrong results differ by tens of per cent.
static const double TOLERANCE = 5e-2;

// A choice that is being made.
typedef struct {
    Call call;
    Pass *pass;
    bool timed;
    Tensor outputs[2]; // what the call writes
    int count;
    size_t bytes;
} Contest;

static void pass_without(Pass *p, int way) {
    cudnn_attention_destroy(p->cudnn[way]);
    p->cudnn[way] = NULL;
}

// A way, those of cuDNN with the kernel of the bias gradient that they leave to the layer before.
// False: it does not run, and takes no part any more.
static bool run_way(void *context, int way) {
    const Contest *c = (const Contest *)context;
    const Call *call = &c->call;
    Pass *p = c->pass;
    const bool has_dbias = way == BY_OWN_KERNELS && run_own(call);
    const bool ran =
        way == BY_OWN_KERNELS || (p->cudnn[way] && run_cudnn(call, p->cudnn[way], &p->why_not));
    if (ran && call->dbias.to.data && !has_dbias) backend_bias_backward(call->dbias, call->dqkv);
    if (!ran) pass_without(p, way);
    return ran;
}

// Returns what a way writes over NaN, on the host since device memory may be short. NULL: it does
// not run.
static char *results_of(Contest *c, int way) {
    for (int i = 0; i < c->count; i++)
        CUDA_CHECK(cudaMemsetAsync(c->outputs[i].data, 0xFF, tensor_bytes(c->outputs[i]),
                                   cuda_compute_stream()));
    if (!run_way(c, way)) return NULL;
    char *host = (char *)malloc(c->bytes), *at = host;
    REQUIRE_MEMORY(host, "%zu bytes of results of attention", c->bytes);
    CUDA_CHECK(cudaStreamSynchronize(cuda_compute_stream()));
    for (int i = 0; i < c->count; i++) {
        CUDA_CHECK(cudaMemcpy(at, c->outputs[i].data, tensor_bytes(c->outputs[i]),
                              cudaMemcpyDeviceToHost));
        at += tensor_bytes(c->outputs[i]);
    }
    return host;
}

// Infinite when x is not finite where expected is.
static double relative_difference(const char *x, const char *expected, DType dtype, int64_t n) {
    enum { CHUNK = 4096 };
    const int64_t size = (int64_t)dtype_size(dtype);
    double difference = 0.0, norm = 0.0;
    for (int64_t at = 0; at < n; at += CHUNK) {
        float a[CHUNK], b[CHUNK];
        const int64_t count = min_i64(n - at, CHUNK);
        convert_elements(a, DTYPE_FP32, x + at * size, dtype, count);
        convert_elements(b, DTYPE_FP32, expected + at * size, dtype, count);
        for (int64_t i = 0; i < count; i++) {
            if (!isfinite(b[i])) continue; // fp16 overflows by any way
            difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
            norm += (double)b[i] * b[i];
        }
    }
    if (difference == 0.0) return 0.0;
    if (isfinite(difference)) return sqrt(difference / norm);
    return INFINITY;
}

// Whether a way of cuDNN agrees with our own kernels and, where it won by time, writes the same
// bits again. Our own are right, but without a contest they are what remains.
static bool way_is_right(void *context, int way) {
    Contest *c = (Contest *)context;
    Pass *p = c->pass;
    const char *name = pass_names[c->call.pass], *version = cudnn_library_version_text();
    if (way == BY_OWN_KERNELS) return c->timed;
    if (!p->cudnn[way] || p->is_known) return p->cudnn[way] != NULL;

    char *expected = results_of(c, BY_OWN_KERNELS), *got = results_of(c, way);
    double worst = 0.0;
    size_t at = 0;
    for (int i = 0; got && i < c->count; i++) {
        const Tensor t = c->outputs[i];
        worst = fmax(worst, relative_difference(got + at, expected + at, t.dtype, tensor_numel(t)));
        at += tensor_bytes(t);
    }
    free(expected);

    bool right = got != NULL;
    if (right && !(worst <= TOLERANCE))
        right = error_set(&p->why_not, "cuDNN %s differs %s by %.2g", version, name, worst);
    if (right && c->timed) {
        char *again = results_of(c, way);
        right = again != NULL;
        if (right && memcmp(got, again, c->bytes) != 0) {
            error_set(&p->why_not, "cuDNN %s gives different bits %s each time", version, name);
            right = false;
        }
        free(again);
    }

    free(got);
    if (!right) pass_without(p, way);
    return right;
}

// The first call of a pass: the kernels are compiled and the choice is made. It is not stored where
// no way of cuDNN is left: the reason may be gone in the next run, and is reported again if not.
static void decide(const Call *call, Pass *p) {
    Contest c = {.call = *call,
                 .pass = p,
                 .timed = is_measured(p),
                 .outputs = {call->out, call->lse},
                 .count = 2};
    if (call->pass == ATTENTION_BACKWARD) {
        c.outputs[0] = call->dqkv;
        c.count = 1;
    }
    REQUIRE(!cuda_backend.capturing, "attention: the first %s pass of a shape is under capture",
            pass_names[call->pass]);

    for (int i = 0; i < c.count; i++) c.bytes += tensor_bytes(c.outputs[i]);
    void *block = NULL; // trials must not change the bias gradient
    const Tensor dbias = call->dbias.to;
    if (dbias.data)
        c.call.dbias.to.data = cuda_memory_like(dbias.data, tensor_bytes(dbias), &block);

    for (int way = 0; way < ATTENTION_WAYS; way++)
        if (p->cudnn[way] && !cudnn_attention_compile(p->cudnn[way], &p->why_not))
            pass_without(p, way);

    const int best = cuda_choose(ATTENTION_WAYS, c.timed, run_way, way_is_right, &c);
    p->choice = BY_OWN_KERNELS;
    if (best >= 0) p->choice = (AttentionWay)best;
    REQUIRE(best > BY_OWN_KERNELS || !is_cudnn(cuda_backend.options.attention), "%s: %s",
            option_text(cuda_backend.options.attention), p->why_not.text);

    bool cudnn_is_left = false;
    for (int way = 0; way < ATTENTION_WAYS; way++) cudnn_is_left |= p->cudnn[way] != NULL;
    if (cudnn_is_left)
        error_set(&p->why_not, "faster %s than cuDNN %s", pass_names[call->pass],
                  cudnn_library_version_text());
    if (cudnn_is_left && c.timed) {
        const uint8_t choice = (uint8_t)p->choice;
        char key[CHOICES_KEY_MAX];
        choice_key(key, call->pass, call->shape);
        choices_file_put(key, &choice, sizeof choice);
    }

    if (block) CUDA_CHECK(cudaFree(block));
}

// --------------------------------------------------------------------------------------------- ops

// Returns whether it made dbias as well.
static bool run_pass(const Call *c) {
    PlannedShape *shape = *find_planned(c->shape);
    Pass *p = shape ? &shape->passes[c->pass] : NULL;
    if (p && p->choice == ATTENTION_WAY_UNKNOWN) decide(c, p);
    if (!p || p->choice == BY_OWN_KERNELS) return run_own(c);
    Error why;
    REQUIRE(run_cudnn(c, p->cudnn[p->choice], &why), "attention %s: %s", pass_names[c->pass],
            why.text);
    return false;
}

static AttentionShape shape_of(Tensor qkv, Heads heads) {
    return (AttentionShape){.B = qkv.shape[0],
                            .T = qkv.shape[1],
                            .NH = heads.NH,
                            .NKV = heads.NKV,
                            .HS = qkv.shape[2] / (heads.NH + 2 * heads.NKV),
                            .dtype = qkv.dtype};
}

void backend_attention_forward(Tensor out, Tensor lse, Tensor qkv, Heads heads) {
    const AttentionShape s = shape_of(qkv, heads);
    run_pass(&(Call){.pass = ATTENTION_FORWARD, .shape = s, .out = out, .lse = lse, .qkv = qkv});
}

void backend_attention_backward(Tensor dqkv, Tensor dout, Tensor out, Tensor lse, Tensor qkv,
                                Heads heads, Gradient *dbias) {
    const Call c = {.pass = ATTENTION_BACKWARD,
                    .shape = shape_of(qkv, heads),
                    .out = out,
                    .lse = lse,
                    .qkv = qkv,
                    .dqkv = dqkv,
                    .dout = dout,
                    .dbias = gradient_or_none(dbias)};
    if (run_pass(&c) && dbias) *dbias = gradient_none();
}

// ------------------------------------------------------------------------------------- description

const char *cuda_attention_description(void) {
    static char text[2 * sizeof(Error)];
    if (!planned) return "";

    enum { NAME = 128 };
    char names[ATTENTION_PASSES][NAME];
    const char *why_not = "", *version = cudnn_library_version_text();
    for (int pass = ATTENTION_PASSES - 1; pass >= 0; pass--) {
        const int described = planned->passes[pass].planned ? pass : ATTENTION_FORWARD;
        const Pass *p = &planned->passes[described];
        if (p->choice == BY_OWN_KERNELS)
            snprintf(names[pass], NAME, "own kernels");
        else if (described == ATTENTION_BACKWARD &&
                 cuda_backend.options.attention == ATTENTION_FAST)
            snprintf(names[pass], NAME, "cuDNN %s without repeatable bits", version);
        else if (p->choice == BY_CUDNN_ORDERED)
            snprintf(names[pass], NAME, "cuDNN %s with dQ in order", version);
        else if (p->choice == BY_CUDNN_STORED || !is_measured(p))
            snprintf(names[pass], NAME, "cuDNN %s", version);
        else
            snprintf(names[pass], NAME, "cuDNN %s or own kernels, to be measured", version);
        if (p->choice == BY_OWN_KERNELS && p->why_not.text[0]) why_not = p->why_not.text;
    }

    int length = snprintf(text, sizeof text, "%s", names[0]);
    if (strcmp(names[0], names[1]) != 0)
        length = snprintf(text, sizeof text, "forward %s, backward %s", names[0], names[1]);
    if (why_not[0]) snprintf(text + length, sizeof text - (size_t)length, " (%s)", why_not);
    return text;
}
