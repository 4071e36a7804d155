// See plan_predict.h. Calls, FLOP and bytes are those of a dry run of the step (dry_run.h); the
// rates, by kind of op, are this file's. --plan prints the sum, --plan json all of it, and
// dev/bench/predict.py compares it with a measured profile.
#include "llmc/plan/plan_predict.h"

#include "llmc/base/error.h"
#include "llmc/model/gpu_sizes.h"
#include "llmc/model/parameters.h"
#include "llmc/plan/dry_run.h"

#include <math.h>
#include <string.h>

// ------------------------------------------------------------------------------------------- rates

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

// Shares of the datasheet's peak (the first five) and bandwidth; a launch in seconds. Hopper:
// fitted to the profiles of 13 models on an H200 and an H100 (dev/bench/results), whose steps they
// give within 5%. Ampere: not measured, from measurements of others (llm.c's steps, cuDNN,
// FlashAttention) and from instruction counts of our kernels. Two names: the same chip with another
// memory.
static const struct {
    const char *gpu, *also;
    Estimate rates[RATE_COUNT];
} RATES[] = {
    {"H200",
     "H100 SXM",
     {
         [RATE_MATMUL] = {0.715, 0.67, 0.76}, // mean of the shapes below: at K = 768 much is
                                              // prologue and epilogue
         [RATE_ATTENTION_FORWARD] = {0.288, 0.26, 0.31},
         [RATE_ATTENTION_BACKWARD] = {0.178, 0.155,
                                      0.205}, // of 5 products; cuDNN's form that writes dS, or ours
         [RATE_OUR_ATTENTION_FORWARD] = {0.192, 0.17, 0.22},
         [RATE_OUR_ATTENTION_BACKWARD] = {0.163, 0.14, 0.19},
         [RATE_COPY] = {0.86, 0.80, 0.90},
         [RATE_LAYERNORM_BACKWARD] = {0.72, 0.62,
                                      0.81}, // 37 KB a multiprocessor on the way at any moment
         [RATE_CROSS_ENTROPY] = {0.86, 0.76, 0.90},
         [RATE_GELU] = {0.79, 0.6, 0.9},           // bytes of the pre-activation
         [RATE_GELU_GRADIENT] = {0.51, 0.4, 0.6},  // bytes of its operand
         [RATE_BIAS_GRADIENT] = {0.86, 0.75, 2.3}, // best: in the epilogue of the weight gradient
         [RATE_LAUNCH] = {2.1e-6, 3e-6, 1.5e-6},
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

static bool is_of_peak(RateKind rate) { return rate <= RATE_OUR_ATTENTION_BACKWARD; }

// --------------------------------------------------------------------------------------------- ops

typedef enum {
    PRODUCT_FORWARD,
    PRODUCT_INPUT_GRADIENT,
    PRODUCT_WEIGHT_GRADIENT,
    PRODUCT_KINDS,
    NO_PRODUCT
} ProductKind;

// The limits of ops. An op that is not listed moves its bytes at RATE_COPY, in one launch.
static const struct {
    const char *op;
    ProductKind product;
    RateKind rate; // of what the epilogue of a product moves (RATE_COUNT: nothing); else of the
                   // op's FLOP or bytes
    int launches;
} OPS[] = {
    {"matmul_forward", PRODUCT_FORWARD, RATE_COUNT, 1},
    {"matmul_residual_forward", PRODUCT_FORWARD, RATE_COPY, 1},
    {"matmul_gelu_forward", PRODUCT_FORWARD, RATE_GELU, 2},
    {"matmul_backward_input", PRODUCT_INPUT_GRADIENT, RATE_COUNT, 1},
    {"matmul_gelu_backward_input", PRODUCT_INPUT_GRADIENT, RATE_GELU_GRADIENT, 1},
    {"matmul_backward_weight", PRODUCT_WEIGHT_GRADIENT, RATE_COUNT,
     1}, // and its bias gradient, see WEIGHTS
    {"matmul_stack", PRODUCT_FORWARD, RATE_COUNT, 1},
    {"attention_forward", NO_PRODUCT, RATE_ATTENTION_FORWARD, 1},
    {"attention_backward", NO_PRODUCT, RATE_ATTENTION_BACKWARD, 3},
    {"layernorm_backward", NO_PRODUCT, RATE_LAYERNORM_BACKWARD, 1},
    {"rmsnorm_backward", NO_PRODUCT, RATE_LAYERNORM_BACKWARD, 1},
    {"head_loss_backward", NO_PRODUCT, RATE_CROSS_ENTROPY, 10},
    {"embedding_backward", NO_PRODUCT, RATE_COPY, 4},
    {"gradient_sumsq", NO_PRODUCT, RATE_COPY, 2},
    {"another", NO_PRODUCT, RATE_COPY, 1},
};

// The matmuls of a block: their rates over the mean, as short sums and narrow outputs cost; and the
// bias gradient of their layer, unless layernorm_backward has it.
static const struct {
    const char *tensor;
    double factors[PRODUCT_KINDS];
    RateKind bias_rate;
    int bias; // in ModelConfig.no_bias
} WEIGHTS[] = {
    {"qkvw", {1.01, 1.06, 0.93}, RATE_QKV_BIAS_GRADIENT, BIAS_QKV},
    {"attprojw", {0.935, 0.935, 0.885}, RATE_COUNT, 0},
    {"fcw", {1.01, 1.075, 0.98}, RATE_FC_BIAS_GRADIENT, BIAS_MLP},
    {"fcprojw", {1.075, 1.075, 0.98}, RATE_COUNT, 0},
    {"wte", {1.04, 1.09, 1.05}, RATE_COUNT, 0}, // the logits
    {"another", {1, 1, 1}, RATE_COUNT, 0},      // Muon's
};
enum { NUM_OPS = sizeof OPS / sizeof *OPS, NUM_WEIGHTS = sizeof WEIGHTS / sizeof *WEIGHTS };

typedef struct {
    Prediction *to;
    double element_bytes, chunk_rows; // of the compute dtype; of the logits
    double heads;                     // attention's rate at this head size over that at 64
    int no_bias;                      // of ModelConfig
} StepView;

static PredictedOp *predicted_row(Prediction *to, const OpCost *cost) {
    const char *tensor = parameter_label(cost->shape.tensor);
    for (int i = 0; i < to->count; i++) {
        PredictedOp *row = &to->ops[i];
        if (strcmp(row->op, cost->op) == 0 && strcmp(row->tensor, tensor) == 0 &&
            memcmp(row->shape, cost->shape.shape, sizeof row->shape) == 0)
            return row;
    }
    REQUIRE(to->count < MOST_PREDICTED_OPS, "more than %d rows", MOST_PREDICTED_OPS);
    PredictedOp *row = &to->ops[to->count++];
    *row = (PredictedOp){.op = cost->op};
    // The names of other tensors may go with the model of the dry run.
    snprintf(row->tensor, sizeof row->tensor, "%s", tensor);
    memcpy(row->shape, cost->shape.shape, sizeof row->shape);
    return row;
}

// Adds to part k of a row.
static void add_part(PredictedOp *row, int k, RateKind rate, double amount, double factor) {
    REQUIRE(k < MOST_PARTS, "more than %d parts", MOST_PARTS);
    if (k == row->num_parts)
        row->parts[row->num_parts++] = (PredictedPart){.rate = rate, .factor = factor};
    row->parts[k].amount += amount;
}

// FLOP of a product of `rows` rows with a weight (OC,IC).
static void add_product(PredictedOp *row, int k, ProductKind kind, double flops, int64_t rows,
                        int weight) {
    const int64_t IC = row->shape[1], OC = row->shape[2];
    const MatmulShape shapes[PRODUCT_KINDS] = {
        {rows, OC, IC, false}, {rows, IC, OC, false}, {OC, IC, rows, true}};
    add_part(row, k, RATE_MATMUL, flops, WEIGHTS[weight].factors[kind]);
    row->parts[k].shape = shapes[kind];
}

static void see_op(void *context, const OpCost *cost, double calls) {
    StepView *s = context;
    PredictedOp *row = predicted_row(s->to, cost);
    const double N = (double)row->shape[0], IC = (double)row->shape[1], OC = (double)row->shape[2];

    int weight = 0, i = 0;
    while (i < NUM_OPS - 1 && strcmp(OPS[i].op, cost->op) != 0) i++;
    while (weight < NUM_WEIGHTS - 1 && strcmp(WEIGHTS[weight].tensor, row->tensor) != 0) weight++;

    const ProductKind product = OPS[i].product;
    const RateKind rate = OPS[i].rate;
    double launches = OPS[i].launches;

    if (rate == RATE_CROSS_ENTROPY) {
        for (int kind = 0; kind < PRODUCT_KINDS; kind++)
            add_product(row, kind, (ProductKind)kind, calls * cost->flops / 3,
                        (int64_t)s->chunk_rows, weight);
        add_part(row, PRODUCT_KINDS, rate, calls * 2 * N * OC * s->element_bytes, 1);
    } else if (product == PRODUCT_WEIGHT_GRADIENT) {
        const double bias = N * OC * s->element_bytes;
        add_product(row, 0, product, calls * cost->flops, (int64_t)N, weight);
        if (WEIGHTS[weight].bias & ~s->no_bias) {
            add_part(row, 1, WEIGHTS[weight].bias_rate, calls * bias, 1);
            launches++;
        }
    } else if (product < PRODUCT_KINDS) {
        double moved = N * IC * s->element_bytes;
        if (product == PRODUCT_FORWARD) moved = N * OC * s->element_bytes;
        add_product(row, 0, product, calls * cost->flops, (int64_t)N, weight);
        if (rate < RATE_COUNT) add_part(row, 1, rate, calls * moved, 1);
    } else if (is_of_peak(rate)) { // attention
        add_part(row, 0, rate, calls * cost->flops, s->heads);
    } else {
        add_part(row, 0, rate, calls * cost->bytes, 1);
    }

    row->calls += calls;
    row->flops += calls * cost->flops;
    row->bytes += calls * cost->bytes;
    row->launches += calls * launches;
}

// -------------------------------------------------------------------------------------------- time

// The rate that a part has on this GPU with these options, and its FLOP or bytes.
static PredictedPart chosen(PredictedPart p, const Estimate *rates, const PredictOptions *o) {
    const bool own = o->attention == ATTENTION_OWN;
    const bool is_kernel = o->gelu_fusion == 0 || rates[p.rate].likely == 0;
    switch (p.rate) {
    case RATE_GELU: // a kernel instead of an epilogue reads and writes
        if (is_kernel) p.amount *= 2;
        if (is_kernel) p.rate = RATE_COPY;
        break;
    case RATE_GELU_GRADIENT: // reads two tensors and writes one
        if (is_kernel) p.amount *= 3;
        if (is_kernel) p.rate = RATE_COPY;
        break;
    case RATE_FC_BIAS_GRADIENT: // the kernel of GELU's derivative has it
        if (o->gelu_fusion == 0 || rates[RATE_GELU_GRADIENT].likely == 0) p.amount = 0;
        p.rate = RATE_BIAS_GRADIENT;
        break;
    case RATE_QKV_BIAS_GRADIENT: // our attention's backward kernels have it, but for 1/32 of its
                                 // bytes
        if (own) p.amount *= 1.0 / 32;
        p.rate = RATE_BIAS_GRADIENT;
        break;
    case RATE_ATTENTION_FORWARD:
        if (own) p.rate = RATE_OUR_ATTENTION_FORWARD;
        break;
    case RATE_ATTENTION_BACKWARD:
        if (own) p.rate = RATE_OUR_ATTENTION_BACKWARD;
        break;
    default:
        break;
    }
    return p;
}

static void find_times(Prediction *p, const GpuSpec *gpu, const ModelOptions *model,
                       const PredictOptions *o, bool or_limit) {
    const Estimate *rates = NULL; // of 16-bit matmuls
    for (size_t i = 0; model->dtype != DTYPE_FP32 && gpu->name && i < sizeof RATES / sizeof *RATES;
         i++)
        if (strcmp(RATES[i].gpu, gpu->name) == 0 || strcmp(RATES[i].also, gpu->name) == 0)
            rates = RATES[i].rates;
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
            if (p->is_limit && row->parts[k].rate == RATE_MATMUL) row->parts[k].factor = 1;
            if (row->parts[k].amount == 0) row->parts[k--] = row->parts[--row->num_parts];
        }
        for (int k = 0; k < row->num_parts; k++) {
            PredictedPart *part = &row->parts[k];
            const Estimate rate = rates[part->rate];
            const double limit = is_of_peak(part->rate) ? peak : gpu->bandwidth;
            const double amount = part->amount / (limit * part->factor);
            part->seconds =
                (Estimate){amount / rate.likely, amount / rate.worst, amount / rate.best};
            Estimate *sum = &by_rate[part->rate];
            sum->likely += part->seconds.likely;
            sum->worst += part->seconds.worst;
            sum->best += part->seconds.best;
        }
    }
    p->launch = rates[RATE_LAUNCH];
    p->between =
        (Estimate){kernels * p->launch.likely, kernels * p->launch.worst, kernels * p->launch.best};
    by_rate[RATE_LAUNCH] = p->between;
    // Ops of one rate err together, different rates do not.
    double likely = 0, worse = 0, better = 0;
    for (int i = 0; i < RATE_COUNT; i++) {
        const Estimate e = by_rate[i];
        likely += e.likely;
        worse += (e.worst - e.likely) * (e.worst - e.likely);
        better += (e.best - e.likely) * (e.best - e.likely);
    }
    p->step = (Estimate){likely, likely + sqrt(worse), likely - sqrt(better)};
}

void plan_predict(Prediction *p, const GpuSpec *gpu, const ModelOptions *model, int64_t tokens,
                  const PredictOptions *o, bool or_limit) {
    const OpsShape shape = {.B = model->B,
                            .T = model->T,
                            .C = model->config.C,
                            .Vp = model->config.Vp,
                            .dtype = model->dtype};
    const int num_sms = (int)max_i64(gpu->num_sms, 1);
    // Heads are computed as 32, 64, 96 or 128 elements. The softmax of a score costs as much as 64
    // elements of its products (cuDNN on an H100: 128 elements reach 1.33 times the rate of 64), so
    // longer heads reach higher rates. Relative to 64 elements, which the rates above are of.
    const int64_t HS = model_head_size(&model->config);
    const double heads = (double)HS / (double)(round_up(HS, 32) + 64) * ((64.0 + 64) / 64);
    StepView view = {.to = p,
                     .element_bytes = (double)dtype_size(model->dtype),
                     .heads = heads,
                     .no_bias = model->config.no_bias,
                     .chunk_rows =
                         (double)cuda_size_head_chunk_rows(shape, num_sms, (int64_t)gpu->memory)};
    memset(p, 0, sizeof *p);
    if (!model->train || model->fp8) return; // no rates are assumed for these
    if (dry_run_step(model, (double)tokens / (double)(model->B * model->T), see_op, &view))
        find_times(p, gpu, model, o, or_limit);
}
