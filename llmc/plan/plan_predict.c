// The predicted time of a step, op by op: the FLOP and bytes of the ops that --profile shows, and the rates that they
// are assumed to reach, by kind of op. It is the one list of both: --plan prints its sum, --plan json all of it, and
// dev/bench/predict.py lays a measured profile beside it. test/tools/test_predict.py compares calls, FLOP and bytes
// with those of a profile. Nothing here was measured with this code.
#include "llmc/model/gpu_sizes.h"
#include "llmc/model/parameters.h"
#include "llmc/model/recompute.h"
#include "llmc/plan/plan.h"

#include <math.h>
#include <string.h>

// --------------------------------------------------------------------------------------------------------------- rates

static const char *const RATE_NAMES[RATE_COUNT] = {
    [RATE_MATMUL] = "matmul",
    [RATE_ATTENTION_FORWARD] = "attention forward",
    [RATE_ATTENTION_BACKWARD] = "attention backward",
    [RATE_OUR_ATTENTION_FORWARD] = "our attention forward",
    [RATE_OUR_ATTENTION_BACKWARD] = "our attention backward",
    [RATE_COPY] = "copy",
    [RATE_LAYERNORM_BACKWARD] = "layernorm backward",
    [RATE_CROSS_ENTROPY] = "cross-entropy",
    [RATE_GELU] = "gelu in the epilogue",
    [RATE_GELU_GRADIENT] = "gelu' in the epilogue",
    [RATE_BIAS_GRADIENT] = "bias gradients",
    [RATE_FC_BIAS_GRADIENT] = "bias gradient of fc",
    [RATE_QKV_BIAS_GRADIENT] = "bias gradient of qkv",
    [RATE_LAUNCH] = "launch",
};

const char *rate_name(RateKind rate) { return RATE_NAMES[rate]; }

// Shares of the datasheet's peak (the first five) and bandwidth; a launch in seconds. From what others measured on
// these chips (llm.c's steps, cuDNN, FlashAttention) and from instruction counts of our own kernels. Two names: the
// same chip with another memory.
static const struct {
    const char *gpu, *also;
    Estimate rates[RATE_COUNT];
} RATES[] = {
    {"H200",
     "H100 SXM",
     {
         [RATE_MATMUL] = {0.64, 0.59, 0.70}, // mean of the shapes below: at K = 768 much is prologue and epilogue
         [RATE_ATTENTION_FORWARD] = {0.267, 0.19, 0.29},
         [RATE_ATTENTION_BACKWARD] = {0.163, 0.133, 0.201}, // of 5 products; cuDNN's form that writes dS, or ours
         [RATE_OUR_ATTENTION_FORWARD] = {0.192, 0.17, 0.22},
         [RATE_OUR_ATTENTION_BACKWARD] = {0.159, 0.132, 0.195},
         [RATE_COPY] = {0.79, 0.74, 0.84},
         [RATE_LAYERNORM_BACKWARD] = {0.74, 0.60, 0.81}, // 37 KB a multiprocessor on the way at any moment
         [RATE_CROSS_ENTROPY] = {0.76, 0.66, 0.83},
         [RATE_GELU] = {0.79, 0.37, 0.84}, // bytes of the pre-activation; worst: the kernel, which is then taken
         [RATE_GELU_GRADIENT] = {0.51, 0.24, 0.88}, // bytes of its operand
         [RATE_BIAS_GRADIENT] = {0.76, 0.71, 2.3},  // best: in the epilogue of the weight gradient
         [RATE_LAUNCH] = {2.5e-6, 4.5e-6, 1.5e-6},
     }},
    {"A100 40GB",
     "A100 80GB",
     {
         [RATE_MATMUL] = {0.745, 0.69, 0.79},
         [RATE_ATTENTION_FORWARD] = {0.378, 0.30, 0.45},
         [RATE_ATTENTION_BACKWARD] = {0.348, 0.28, 0.40},
         [RATE_OUR_ATTENTION_FORWARD] = {0.378, 0.30, 0.45},
         [RATE_OUR_ATTENTION_BACKWARD] = {0.348, 0.28, 0.40},
         [RATE_COPY] = {0.855, 0.80, 0.90},
         [RATE_LAYERNORM_BACKWARD] = {0.80, 0.70, 0.86},
         [RATE_CROSS_ENTROPY] = {0.84, 0.74, 0.90},
         [RATE_GELU] = {0}, // these two are expected to lose against the kernel
         [RATE_GELU_GRADIENT] = {0},
         [RATE_BIAS_GRADIENT] = {0.845, 0.79, 0.90},
         [RATE_LAUNCH] = {2.9e-6, 5e-6, 2e-6},
     }},
};

static const Estimate *rates_of(const GpuSpec *gpu) {
    for (size_t i = 0; i < sizeof RATES / sizeof *RATES; i++)
        if (gpu->name && (strcmp(RATES[i].gpu, gpu->name) == 0 || strcmp(RATES[i].also, gpu->name) == 0))
            return RATES[i].rates;
    return NULL;
}

// ----------------------------------------------------------------------------------------------------------------- ops

// Matmuls of a block: size in units of C, and their rates over the mean. Short sums and narrow outputs cost.
typedef enum { FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, PASSES } Pass;
typedef struct {
    const char *tensor;
    Dimension in, out;
    double factors[PASSES];
} Product;

static const Product QKV = {"qkvw", DIM_C, DIM_3C, {1.01, 1.06, 0.93}},
                     ATTPROJ = {"attprojw", DIM_C, DIM_C, {0.935, 0.935, 0.885}},
                     FC = {"fcw", DIM_C, DIM_FF, {1.01, 1.075, 0.98}},
                     FCPROJ = {"fcprojw", DIM_FF, DIM_C, {1.075, 1.075, 0.98}};
static const double HEAD_FACTORS[PASSES] = {1.04, 1.09, 1.05};

// What the rows are made of. steps: how often a micro-step, and with it each of its rows, is in a step.
typedef struct {
    Prediction *to;
    const ModelOptions *model;
    double steps, L, C, N, s, u, hidden; // N: tokens; s: bytes of a number; u: of (B,T,C); hidden: of (B,T,d_ff)
    bool beside;                         // of the rows that follow
} Rows;

static double size(const Rows *r, Dimension d) { return (double)model_size(&r->model->config, d); }

// A row of `calls` calls in a micro-step; flops and bytes are those of a call.
static PredictedOp *add(Rows *r, const char *op, const char *tensor, double calls, double flops, double bytes) {
    REQUIRE(r->to->count < MOST_PREDICTED_OPS, "more than %d rows", MOST_PREDICTED_OPS);
    PredictedOp *row = &r->to->ops[r->to->count++];
    calls *= r->steps;
    *row = (PredictedOp){.op = op, .tensor = tensor, .calls = calls, .launches = calls, .beside = r->beside};
    row->flops = calls * flops, row->bytes = calls * bytes;
    return row;
}

// amount: FLOP or bytes of a call.
static PredictedOp *part(PredictedOp *row, RateKind rate, double amount, double factor) {
    REQUIRE(row->num_parts < MOST_PARTS, "more than %d parts", MOST_PARTS);
    if (amount > 0)
        row->parts[row->num_parts++] = (PredictedPart){.rate = rate, .amount = row->calls * amount, .factor = factor};
    return row;
}

// Of an op that launches several kernels.
static void launches(PredictedOp *row, int count) { row->launches *= count; }

static PredictedOp *copy(Rows *r, const char *op, const char *tensor, double calls, double bytes) {
    return part(add(r, op, tensor, calls, 0, bytes), RATE_COPY, bytes, 1);
}

// The next part of a row: the FLOP of a call of its matmuls, each of `rows` tokens.
static PredictedOp *matmul(PredictedOp *row, Pass pass, double flops, double factor, double rows, double IC,
                           double OC) {
    const int64_t n = (int64_t)rows, in = (int64_t)IC, out = (int64_t)OC;
    part(row, RATE_MATMUL, flops, factor);
    row->parts[row->num_parts - 1].shape = pass == FORWARD          ? (MatmulShape){n, out, in, false}
                                           : pass == INPUT_GRADIENT ? (MatmulShape){n, in, out, false}
                                                                    : (MatmulShape){out, in, n, true};
    return row;
}

// more: bytes besides those of the three operands.
static PredictedOp *product(Rows *r, const char *op, const Product *p, Pass pass, double more) {
    const double IC = size(r, p->in), OC = size(r, p->out), flops = 2 * r->N * IC * OC;
    PredictedOp *row = add(r, op, p->tensor, r->L, flops, (r->N * IC + r->N * OC + IC * OC) * r->s + more);
    return matmul(row, pass, flops, p->factors[pass], r->N, IC, OC);
}
static void forward(Rows *r, const Product *p) { product(r, "matmul_forward", p, FORWARD, size(r, p->out) * r->s); }
static void forward_onto_residual(Rows *r, const Product *p) {
    part(product(r, "matmul_residual_forward", p, FORWARD, r->C * r->s + r->u), RATE_COPY, r->u, 1);
}
static void input_gradient(Rows *r, const Product *p) { product(r, "matmul_backward_input", p, INPUT_GRADIENT, 0); }
// bias_rate: RATE_COUNT where layernorm_backward has the bias gradient.
static void weight_gradient(Rows *r, const Product *p, RateKind bias_rate) {
    const double IC = size(r, p->in), OC = size(r, p->out);
    const bool has_bias = bias_rate < RATE_COUNT;
    PredictedOp *row =
        product(r, "matmul_backward_weight", p, WEIGHT_GRADIENT, (4 - r->s) * IC * OC + (has_bias ? 4 * OC : 0));
    if (has_bias) launches(part(row, bias_rate, r->N * OC * r->s, 1), 2);
}

static void normed(Rows *r, const char *tensor, double calls) {
    copy(r, "layernorm_forward", tensor, calls, 2 * r->u + 2 * r->C * r->s + 8 * r->N);
}
static void normed_backward(Rows *r, const char *tensor, double calls, int units) {
    const double bytes = units * r->u + r->C * r->s + 8 * r->N + 12 * r->C;
    part(add(r, "layernorm_backward", tensor, calls, 0, bytes), RATE_LAYERNORM_BACKWARD, bytes, 1);
}

// Rows of the vocabulary that a micro-step can reach.
static double touched(const Rows *r) { return fmin(r->N, (double)r->model->config.Vp) * r->C; }

static void add_forward(Rows *r, double scores, double lse) {
    const ModelOptions *m = r->model;
    const double B = (double)m->B, T = (double)m->T, tokens = 4 * r->N, token_bytes = m->config.V <= 1 << 16 ? 2 : 4;
    copy(r, "batch_unpack", "windows", 1, B * (T + 1) * token_bytes + 2 * tokens);
    copy(r, "embedding_forward", "residual1", 1, tokens + touched(r) * r->s + T * r->C * r->s + r->u);
    normed(r, "ln1w", r->L);
    forward(r, &QKV);
    part(add(r, "attention_forward", "qkv", r->L, 2 * scores, 4 * r->u + lse), RATE_ATTENTION_FORWARD, 2 * scores, 1);
    forward_onto_residual(r, &ATTPROJ);
    normed(r, "ln2w", r->L);
    launches(part(product(r, "matmul_gelu_forward", &FC, FORWARD, size(r, DIM_FF) * r->s + r->hidden), RATE_GELU,
                  r->hidden, 1),
             2);
    forward_onto_residual(r, &FCPROJ);
    normed(r, "lnfw", 1);
}

static void add_head(Rows *r, double chunk) {
    const double Vp = (double)r->model->config.Vp, logits = 2 * r->N * r->C * Vp;
    PredictedOp *head =
        add(r, "head_loss_backward", "wte", 1, 3 * logits, 2 * r->u + Vp * r->C * (r->s + 4) + 8 * r->N);
    for (Pass pass = FORWARD; pass < PASSES; pass++) matmul(head, pass, logits, HEAD_FACTORS[pass], chunk, r->C, Vp);
    part(head, RATE_CROSS_ENTROPY, 2 * r->N * Vp * r->s, 1);
    launches(head, 10);
    copy(r, "sequence_losses", "losses", 1, 4 * r->N + 4 * (double)r->model->B);
}

static void add_backward(Rows *r, double scores, double lse) {
    const ModelOptions *m = r->model;
    normed_backward(r, "lnfw", 1, 3);
    r->beside = true;
    copy(r, "gradient_add", "dresidual_sum", r->L, 8 * r->C);
    weight_gradient(r, &FCPROJ, RATE_COUNT);
    part(product(r, "matmul_gelu_backward_input", &FCPROJ, INPUT_GRADIENT, r->hidden), RATE_GELU_GRADIENT, r->hidden,
         1);
    weight_gradient(r, &FC, RATE_FC_BIAS_GRADIENT);
    input_gradient(r, &FC);
    normed_backward(r, "ln2w", r->L, 4);
    weight_gradient(r, &ATTPROJ, RATE_COUNT);
    input_gradient(r, &ATTPROJ);
    launches(part(add(r, "attention_backward", "qkv", r->L, 5 * scores, 8 * r->u + lse), RATE_ATTENTION_BACKWARD,
                  5 * scores, 1),
             3);
    weight_gradient(r, &QKV, RATE_QKV_BIAS_GRADIENT);
    input_gradient(r, &QKV);
    normed_backward(r, "ln1w", r->L, 4);
    launches(copy(r, "embedding_backward", "dresidual", 1,
                  r->u + 4 * r->N + 8 * touched(r) + 4 * (double)m->config.max_T * r->C),
             4);
}

// -r, as one row: its matmuls, attention and everything else.
static void add_recomputation(Rows *r) {
    const ModelOptions *m = r->model;
    const int64_t no_attention = -1; // its FLOPs are in proportion to T + 1
    const double all = r->N * recompute_flops_per_token(&m->recompute, &m->config, m->T);
    const double matmuls = r->N * recompute_flops_per_token(&m->recompute, &m->config, no_attention);
    double elements = recompute_elements_per_token(&m->recompute, &m->config);
    for (int64_t l = 0; l < m->config.L; l++)
        if (m->recompute.blocks[l] & RECOMPUTE_FC)
            elements += 2 * size(r, DIM_FF); // its GELU, a kernel as in the forward pass
    const double bytes = r->N * elements * r->s;
    if (all + bytes == 0) return;
    PredictedOp *row = add(r, "recomputation", "blocks", 1, all, bytes);
    part(row, RATE_MATMUL, matmuls, 1);
    part(row, RATE_ATTENTION_FORWARD, all - matmuls, 1);
    part(row, RATE_COPY, bytes, 1);
    launches(row, (int)r->L * 4);
}

// --grad-dtype compute: the difference that it makes to planner_step_bytes, in a micro-step.
static void add_gradient_sums(Rows *r) {
    if (!r->model->gradients_in_dtype) return;
    ModelOptions apart = *r->model;
    apart.gradients_in_dtype = false;
    const double with = planner_step_bytes(r->model, 1) - planner_step_bytes(r->model, 0),
                 without = planner_step_bytes(&apart, 1) - planner_step_bytes(&apart, 0);
    launches(copy(r, "gradient_add", "gradients", 1, with - without), parameter_count(&r->model->config));
}

// Once a step. The update is that of planner_step_bytes.
static void add_update(Rows *r) {
    const ModelOptions *m = r->model;
    const int count = parameter_count(&m->config);
    const double sharers = m->divided && m->processes > 1 ? m->processes : 1;
    const double norm = (double)parameter_total(&m->config) * (m->gradients_in_dtype ? r->s : 4) / sharers;
    r->steps = 1;
    copy(r, "tensor_fill", "sequence_losses", 1, 4 * (double)m->B);
    launches(copy(r, "gradient_sumsq", "sumsq", 1, norm + 4.0 * count), 2);
    copy(r, "step_control_update", "sumsq", 1, 2048 + 4.0 * count + 4 * (double)m->B);
    PredictedOp *update = copy(r, "optimizer_update", "weights", 1, planner_step_bytes(m, 0) - norm);
    part(update, RATE_MATMUL, planner_step_flops(m, 0), 1); // Muon's products
    update->flops = planner_step_flops(m, 0);
}

// ---------------------------------------------------------------------------------------------------------------- time

static bool is_of_peak(RateKind rate) { return rate <= RATE_OUR_ATTENTION_BACKWARD; }

// The rate that a part has on this GPU with these options, and its FLOP or bytes.
static PredictedPart chosen(PredictedPart p, const Estimate *rates, const Options *o) {
    // A kernel instead of an epilogue reads and writes, or reads two tensors and writes one.
    const int moved = p.rate == RATE_GELU ? 2 : p.rate == RATE_GELU_GRADIENT ? 3 : 0;
    if (p.rate == RATE_FC_BIAS_GRADIENT) { // the kernel of GELU's derivative has it
        if (o->gelu_fusion == 0 || rates[RATE_GELU_GRADIENT].likely == 0) p.amount = 0;
        p.rate = RATE_BIAS_GRADIENT;
    }
    if (p.rate == RATE_QKV_BIAS_GRADIENT) { // our attention's backward kernels have it, but for 1/32 of its bytes
        if (o->attention == ATTENTION_OWN) p.amount /= 32;
        p.rate = RATE_BIAS_GRADIENT;
    }
    if (moved > 0 && (o->gelu_fusion == 0 || rates[p.rate].likely == 0)) p.rate = RATE_COPY, p.amount *= moved;
    if (o->attention == ATTENTION_OWN && p.rate == RATE_ATTENTION_FORWARD) p.rate = RATE_OUR_ATTENTION_FORWARD;
    if (o->attention == ATTENTION_OWN && p.rate == RATE_ATTENTION_BACKWARD) p.rate = RATE_OUR_ATTENTION_BACKWARD;
    return p;
}

static Estimate seconds_of(const PredictedPart *p, const Estimate *rates, double peak, double bandwidth) {
    const Estimate rate = rates[p->rate];
    const double full = is_of_peak(p->rate) ? peak : bandwidth, amount = p->amount / (full * p->factor);
    return (Estimate){amount / rate.likely, amount / rate.worst, amount / rate.best};
}

// --overlap: whether this part is a memory-bound kernel that may run beside a weight gradient. It is assumed to be
// hidden whole: that the product leaves it multiprocessors and becomes no slower by it, that no product of the compute
// stream takes its place, and that it follows before the weight gradient ends. None of this is known, so the sum is a
// bound and no part of the step's time. Epilogues belong to their product; attention, which needs the tensor cores too,
// gains nothing.
static bool may_be_hidden(const PredictedOp *row, RateKind rate) {
    return row->beside && !is_of_peak(rate) && rate != RATE_GELU && rate != RATE_GELU_GRADIENT;
}

static void accumulate(Estimate *sum, Estimate e) {
    sum->likely += e.likely, sum->worst += e.worst, sum->best += e.best;
}

// What is computed at one rate errs together, different rates do not.
static Estimate of_all(const Estimate by_rate[RATE_COUNT]) {
    double likely = 0, worse = 0, better = 0;
    for (int i = 0; i < RATE_COUNT; i++) {
        const Estimate e = by_rate[i];
        likely += e.likely;
        worse += (e.worst - e.likely) * (e.worst - e.likely), better += (e.best - e.likely) * (e.best - e.likely);
    }
    return (Estimate){likely, likely + sqrt(worse), likely - sqrt(better)};
}

static void find_times(Prediction *p, const GpuSpec *gpu, const ModelOptions *model, const Options *o, bool or_limit) {
    const Estimate *rates = model->dtype == DTYPE_FP32 ? NULL : rates_of(gpu); // of 16-bit matmuls
    const double peak = gpu_spec_peak(gpu, model->dtype);
    Estimate limits[RATE_COUNT];
    for (int i = 0; i < RATE_COUNT; i++) limits[i] = (Estimate){1, 1, 1};
    limits[RATE_GELU] = limits[RATE_GELU_GRADIENT] = limits[RATE_LAUNCH] = (Estimate){0};
    p->is_limit = !rates && or_limit;
    if (p->is_limit) rates = limits;
    Estimate by_rate[RATE_COUNT];
    memset(by_rate, 0, sizeof by_rate);
    double kernels = 0;
    p->is_known = rates && peak > 0;
    if (!p->is_known) return;
    for (int i = 0; i < p->count; i++) {
        PredictedOp *row = &p->ops[i];
        kernels += row->launches;
        for (int k = 0; k < row->num_parts; k++) {
            row->parts[k] = chosen(row->parts[k], rates, o);
            if (p->is_limit) row->parts[k].factor = 1;
            if (row->parts[k].amount == 0) row->parts[k--] = row->parts[--row->num_parts];
        }
        for (int k = 0; k < row->num_parts; k++) {
            row->parts[k].seconds = seconds_of(&row->parts[k], rates, peak, gpu->bandwidth);
            accumulate(&by_rate[row->parts[k].rate], row->parts[k].seconds);
            if (may_be_hidden(row, row->parts[k].rate)) accumulate(&p->overlap, row->parts[k].seconds);
        }
    }
    p->launch = rates[RATE_LAUNCH];
    p->between = (Estimate){kernels * p->launch.likely, kernels * p->launch.worst, kernels * p->launch.best};
    by_rate[RATE_LAUNCH] = p->between;
    p->step = of_all(by_rate);
}

void planner_predict(Prediction *p, const GpuSpec *gpu, const ModelOptions *model, int64_t tokens, const Options *o,
                     bool or_limit) {
    const double N = (double)(model->B * model->T), C = (double)model->config.C, s = (double)dtype_size(model->dtype);
    const double scores = N * C * (double)(model->T + 1), lse = 4 * (double)(model->B * model->config.NH * model->T);
    Rows r = {.to = p,
              .model = model,
              .steps = (double)tokens / N,
              .L = (double)model->config.L,
              .C = C,
              .N = N,
              .s = s,
              .u = N * C * s,
              .hidden = N * (double)model_size(&model->config, DIM_FF) * s};
    memset(p, 0, sizeof *p);
    if (!model->train || model->fp8 || model->offload) return; // no rates are assumed for these
    add_forward(&r, scores, lse);
    const OpsShape shape = {
        .B = model->B, .T = model->T, .C = model->config.C, .Vp = model->config.Vp, .dtype = model->dtype};
    add_head(&r, (double)cuda_size_head_chunk_rows(shape, gpu->num_sms > 0 ? gpu->num_sms : 1, (int64_t)gpu->memory));
    add_backward(&r, scores, lse);
    add_recomputation(&r);
    r.beside = false;
    add_gradient_sums(&r);
    add_update(&r);
    find_times(p, gpu, model, o, or_limit);
}
