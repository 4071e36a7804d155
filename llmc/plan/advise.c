// See advise.h. The predicted time of a step, or the datasheet's limit where no rates are assumed
// for a GPU, is stretched by the empty part of tiles and waves, so that steps of two sizes can be
// compared. Only the arithmetic of tiles is certain; every rate is an assumption. Nothing here was
// measured.
#include "llmc/plan/advise.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/format.h"
#include "llmc/model/parameters.h"
#include "llmc/model/recompute.h"
#include "llmc/plan/tiling.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT = 64 };
static const double WORTH = 1.005; // a smaller gain is within the error of the assumptions

// ---------------------------------------------------------------------------------------- one step

// Time of a step by tiles and heads, and the share of its matmuls' time that full tiles would take.
typedef struct {
    double seconds, filled;
    Prediction p;
} Step;

static void advise_step(Step *s, const GpuSpec *gpu, const ModelOptions *model, int64_t tokens,
                        const PredictOptions *o, double reference) {
    double full = 0, real = 0;
    plan_predict(&s->p, gpu, model, tokens, o, true);
    s->seconds = s->p.step.likely;
    for (int i = 0; i < s->p.count; i++)
        for (int k = 0; k < s->p.ops[i].num_parts; k++) {
            const PredictedPart *part = &s->p.ops[i].parts[k];
            const double likely = part->seconds.likely;
            if (part->shape.M == 0) continue;
            const double share = tiling_best(gpu, model->dtype, &part->shape).share;
            full += likely;
            real += likely / share;
            s->seconds += likely * (reference / share - 1);
        }
    s->filled = full / real;
}

// ----------------------------------------------------------------------------------------- changes

typedef enum { CHANGE_C, CHANGE_NH, CHANGE_D_FF, CHANGE_V, CHANGE_B, NUM_CHANGES } ChangeKind;

// rate: tokens/s. work: FLOP/s that the model needs; padding of the vocabulary is none.
typedef struct {
    ModelConfig config;
    int64_t B;
    double rate, work, filled;
} Size;

typedef struct {
    const GpuSpec *gpu;
    const ModelOptions *model;
    const PredictOptions *options;
    int64_t tokens;         // of a step
    double reference, room; // bytes of the GPU
    Size now;
    Size best[NUM_CHANGES]; // work 0: none is better
} Advice;

static Size size_at(const Advice *a, const ModelConfig *config, int64_t B) {
    Step step;
    ModelOptions model = *a->model;
    ModelConfig useful = *config;
    model.config = *config;
    model.B = B;
    model_config_set_vocab(&useful, a->model->config.V);
    advise_step(&step, a->gpu, &model, a->tokens, a->options, a->reference);
    const double rate = (double)a->tokens / step.seconds;
    return (Size){*config, B, rate, rate * flops_per_token_exact(&useful, model.T), step.filled};
}

// Keeps the first one tried of two that gain about as much: callers begin with the nearest.
static void consider(Advice *a, ChangeKind kind, const ModelConfig *config, int64_t B) {
    Size *best = &a->best[kind];
    ModelOptions model = *a->model;
    Error err; // heads of keys and values that do not divide the heads, say
    model.config = *config;
    if (!model_config_check(config, &err)) return;
    if ((kind == CHANGE_C || kind == CHANGE_D_FF) && plan_memory(&model).total > a->room) return;
    const Size s = size_at(a, config, B);
    if (s.work > WORTH * fmax(a->now.work, best->work)) *best = s;
}

// The multiples of 64 next to C in heads of 64 or 128, or those next to d_ff alone: one step or a
// sixteenth away, never more than an eighth. A model that is much larger always does more work a
// second: that is no advice.
static void consider_widths(Advice *a, ChangeKind kind) {
    const ModelConfig *config = &a->model->config;
    const int64_t now = kind == CHANGE_C ? config->C : model_size(config, DIM_FF);
    const int64_t most = max_i64(now / 16, min_i64(64, now / 8));

    for (int64_t step = 0; step <= most / 64 + 1; step++)
        for (int sign = -1; sign <= 1; sign += 2) {
            const int64_t width = ((now + 32) / 64 + sign * step) * 64;
            ModelConfig c = *config;
            if (width < 64 || width == now || llabs(width - now) > most) continue;
            if (kind == CHANGE_C) {
                c.C = width;
                model_config_set_d_ff(&c, c.d_ff);
                const int64_t HS = width % 128 == 0 && model_head_size(config) > 96 ? 128 : 64;
                c.NH = width / HS;
                c.HS = 0;
            } else {
                model_config_set_d_ff(&c, width);
            }
            consider(a, kind, &c, a->model->B);
        }
}

// Heads of 64 and 128, more of the vocabulary's padding, and from half to twice as many sequences,
// of those that fit.
static void consider_others(Advice *a, int64_t most_sequences) {
    const ModelConfig *config = &a->model->config;
    const int64_t B = a->model->B, stride = ceil_div(B, 64);
    for (int64_t HS = 64; HS <= 128; HS += 64) {
        ModelConfig c = *config;
        c.NH = c.C / HS;
        c.HS = 0;
        if (c.C % HS == 0 && c.NH != config->NH) consider(a, CHANGE_NH, &c, B);
    }
    for (int64_t more = 1; more <= 8; more++) {
        ModelConfig c = *config;
        model_config_set_vocab(&c, c.Vp + more * VOCAB_PADDING);
        consider(a, CHANGE_V, &c, B);
    }
    for (int64_t step = stride; step <= B; step += stride) {
        if (B - step >= ceil_div(B, 2)) consider(a, CHANGE_B, config, B - step);
        if (B + step <= most_sequences) consider(a, CHANGE_B, config, B + step);
    }
}

// ----------------------------------------------------------------------------------------- as text

static void print_change(FILE *out, const Advice *a, ChangeKind kind, int number) {
    const Size *s = &a->best[kind], *now = &a->now;
    char old[TEXT], rate[TEXT], what[TEXT], flag[MODEL_DESCRIPTOR + TEXT];
    const double parameters = (double)parameter_total(&s->config),
                 before = (double)parameter_total(&now->config);

    // what: "C 1000 -> 1024 with NH 8"; flag: the options that make it, all of -e or one of its
    // own.
    const ModelConfig *c = &s->config, *was = &now->config;
    const long long d_ff = model_size(c, DIM_FF);
    char descriptor[MODEL_DESCRIPTOR];
    int n = snprintf(flag, sizeof flag, "-e %s", model_config_descriptor(c, descriptor));
    if (c->d_ff) snprintf(flag + n, sizeof flag - (size_t)n, " --d-ff %lld", d_ff);

    switch (kind) {
    case CHANGE_C:
        snprintf(what, TEXT, "C %lld -> %lld with NH %lld", (long long)was->C, (long long)c->C,
                 (long long)c->NH);
        break;
    case CHANGE_NH:
        snprintf(what, TEXT, "NH %lld -> %lld (head size %lld -> %lld)", (long long)was->NH,
                 (long long)c->NH, (long long)model_head_size(was), (long long)model_head_size(c));
        break;
    case CHANGE_D_FF:
        snprintf(what, TEXT, "d_ff %lld -> %lld", (long long)model_size(was, DIM_FF), d_ff);
        snprintf(flag, TEXT, "--d-ff %lld", d_ff);
        break;
    case CHANGE_V:
        snprintf(what, TEXT, "V %lld -> %lld", (long long)was->V, (long long)c->V);
        break;
    default:
        snprintf(what, TEXT, "B %lld -> %lld", (long long)now->B, (long long)s->B);
        snprintf(flag, TEXT, "-b %lld", (long long)s->B);
    }

    fprintf(out, "advise      %d. %s: %s\n", number, what, flag);
    fprintf(out, "advise         %s -> %s tokens/s (%+.1f%%)", format_count(now->rate, old, TEXT),
            format_count(s->rate, rate, TEXT), 100 * (s->rate / now->rate - 1));

    if (parameters == before)
        fprintf(out, ", the same parameters");
    else
        fprintf(out, ", parameters %s -> %s (%+.1f%%)", format_count(before, old, TEXT),
                format_count(parameters, rate, TEXT), 100 * (parameters / before - 1));
    if (kind == CHANGE_C || kind == CHANGE_D_FF)
        fprintf(out, ", %+.1f%% work a second", 100 * (s->work / now->work - 1));
    if (fabs(s->filled - now->filled) >= 0.005)
        fprintf(out, "; tiles and waves of the matmuls are %.0f%% full, not %.0f%%",
                100 * s->filled, 100 * now->filled);

    fprintf(out, "\n");
}

// Prints the best change of each kind, at most three of them, by work a second.
static void print_changes(FILE *out, const Advice *a) {
    enum { SHOWN = 3 };
    bool done[NUM_CHANGES] = {false};
    int number = 0;
    for (; number < SHOWN; number++) {
        int next = -1;
        double most = 0;
        for (int k = 0; k < NUM_CHANGES; k++) {
            if (done[k] || a->best[k].work <= most) continue;
            most = a->best[k].work;
            next = k;
        }

        if (next < 0) break;
        if (number == 0)
            fprintf(out, "advise      what would gain most nearby, each alone, at the same tokens "
                         "a step:\n");
        print_change(out, a, (ChangeKind)next, number + 1);
        done[next] = true;
    }

    if (number == 0)
        fprintf(out, "advise      no C, NH, d_ff, V or B nearby would gain half a per cent: these "
                     "sizes suit this GPU\n");
    else if (number < SHOWN)
        fprintf(out, "advise      other changes nearby of C, NH, d_ff, V or B gain less than half "
                     "a per cent\n");
}

static void print_matmuls(FILE *out, const Advice *a) {
    // of the head, as the prediction lists them
    static const char *const PASS_NAMES[] = {"logits", "dlnf", "dwte"};
    Step s;
    advise_step(&s, a->gpu, a->model, a->tokens, a->options, a->reference);

    fprintf(out, "advise      %-35s %7s %7s %7s  %-12s %8s %7s %6s %9s %9s\n", "matmul", "M", "N",
            "K", "aligned by", "tile", "tiles", "waves", "last wave", "of peak");
    for (int i = 0; i < s.p.count; i++)
        for (int k = 0, pass = 0; k < s.p.ops[i].num_parts; k++) {
            const PredictedOp *op = &s.p.ops[i];
            const PredictedPart *part = &op->parts[k];
            const MatmulShape *m = &part->shape;

            if (m->M == 0) continue;
            const Tiling t = tiling_best(a->gpu, a->model->dtype, m);

            const char *of = op->tensor;
            char name[TEXT], aligned[TEXT], tile[TEXT], tiles[TEXT];

            if (strcmp(op->op, "head_loss_backward") == 0) of = PASS_NAMES[pass++];
            snprintf(name, TEXT, "%s %s", op->op, of);
            snprintf(aligned, TEXT, "%d %d %d", tiling_alignment(m->M), tiling_alignment(m->N),
                     tiling_alignment(m->K));
            snprintf(tile, TEXT, "%dx%d", t.rows, t.cols);
            snprintf(tiles, TEXT, "%lld", (long long)t.tiles);
            if (t.splits > 1) snprintf(tiles, TEXT, "%lldx%d", (long long)t.tiles, t.splits);

            const double of_peak =
                part->amount / part->seconds.likely / gpu_spec_peak(a->gpu, a->model->dtype);
            fprintf(out,
                    "advise      %-35s %7lld %7lld %7lld  %-12s %8s %7s %6lld %8.0f%% %8.1f%%\n",
                    name, (long long)m->M, (long long)m->N, (long long)m->K, aligned, tile, tiles,
                    (long long)t.waves, 100 * t.last_wave, 100 * of_peak * t.share / a->reference);
        }
}

static void print_sources(FILE *out) {
    fprintf(out, "advise      tiles, waves and alignment as in NVIDIA's \"Matrix Multiplication "
                 "Background User's "
                 "Guide\" and Anthony et "
                 "al.,\nadvise      \"The Case for Co-Designing Model Architectures with "
                 "Hardware\", 2024; computed, "
                 "not measured\n");
}

static bool advise_sizes(FILE *out, const PlanRequest *r, const GpuChoice *gpu, Error *err) {
    static DevicePlan plan;
    const PredictOptions options = {r->attention, r->gelu_fusion};
    plan_device(&plan, r, gpu);
    if (!plan.fits) return error_set(err, "%s: %s", gpu->spec.name, plan.why_not.text);
    Advice a = {.gpu = &plan.gpu.spec,
                .model = &plan.model,
                .options = &options,
                .tokens = plan.share_tokens,
                .reference = 1,
                .room = plan.room};

    // Assumed rates are those of 124M with 65536 tokens, including the empty part of its tiles. So
    // a step with assumed rates is stretched only as far as its tiles are emptier.
    ModelOptions rated = {.dtype = DTYPE_BF16, .master = true, .train = true, .B = 64, .T = 1024};
    if (plan.model.dtype != DTYPE_FP32 && model_config_parse(&rated.config, "d12,V=50257", err)) {
        Step s;
        advise_step(&s, a.gpu, &rated, rated.B * rated.T, &options, 1);
        if (s.p.is_known && !s.p.is_limit) a.reference = s.filled;
    }

    a.now = size_at(&a, &plan.model.config, plan.model.B);
    consider_widths(&a, CHANGE_C);
    consider_widths(&a, CHANGE_D_FF);
    consider_others(&a, plan.batch);

    const ModelOptions *m = a.model;
    const ModelConfig *c = &m->config;
    const int64_t HS = model_head_size(c);
    char rate[TEXT], shape[MODEL_TEXT];
    const char *heads = "attention computes nothing that only pads it";
    if (HS % 32 != 0) heads = "attention computes it as the next multiple of 32";
    if (HS % 8 != 0 || HS > 128)
        heads = "no fast attention kernel takes it, only multiples of 8 up to 128; that costs more "
                "than is counted";
    const char *said = "predicted", *by = "by assumed rates";
    if (!plan.prediction.is_known) {
        said = "at most";
        by = "at the datasheet's rates, as none are assumed for this GPU and dtype";
    }

    fprintf(out, "advise      %s, %d multiprocessors, %s: %s, -b %lld -t %lld\n", a.gpu->name,
            a.gpu->num_sms, dtype_name(m->dtype), model_config_text(c, m->T, shape, sizeof shape),
            (long long)m->B, (long long)m->T);
    fprintf(out, "advise      %s %s tokens/s %s; tiles and waves of the matmuls are %.0f%% full\n",
            said, format_count(a.now.rate, rate, TEXT), by, 100 * a.now.filled);
    fprintf(out, "advise      head size %lld: %s\n", (long long)HS, heads);
    fprintf(out, "advise      vocabulary %lld, padded to %lld; B*T = %lld rows, aligned by %d\n",
            (long long)c->V, (long long)c->Vp, (long long)(m->B * m->T),
            tiling_alignment(m->B * m->T));
    print_changes(out, &a);
    print_matmuls(out, &a);
    print_sources(out);
    return true;
}

// -------------------------------------------------------------------------------------------- d_ff

enum { AROUND = 4, STEP = 64, MOST_SIZES = 2 * AROUND + 2 };

// The sizes considered: multiples of 64 around the default, 4 C or for SwiGLU 8/3 C, and the
// default itself.
typedef struct {
    int64_t sizes[MOST_SIZES];
    double shares[MOST_SIZES]; // of the rate of full tiles in full waves
    int count;
    int best; // the one advised
    double of_exact;
} FeedForwardSizes;

// Rates the sizes. The best is the nearest to the default of those with nearly the highest share,
// if that is worth the change.
static void rate_d_ff(FeedForwardSizes *all, const ModelOptions *m, const GpuSpec *gpu) {
    static const double NEARLY = 1.02;
    const DType dtype = gpu_spec_dtype(gpu, m->dtype);
    const int64_t B = max_i64(m->B, 1), C = m->config.C, exact = model_default_d_ff(&m->config);
    const int64_t products = model_size(&m->config, DIM_FC) / model_size(&m->config, DIM_FF),
                  middle = (exact + STEP / 2) / STEP;
    int64_t *sizes = all->sizes;
    double *shares = all->shares, most = 0, of_exact = 0;
    int count = 0, best = 0;

    sizes[0] = exact;
    for (int64_t i = middle - AROUND; i <= middle + AROUND; i++) {
        if (exact > (i - 1) * STEP && exact < i * STEP) sizes[count++] = exact;
        if (i >= 1) sizes[count++] = i * STEP;
    }

    for (int i = 0; i < count; i++) {
        const int64_t N = B * m->T, FF = sizes[i], FC = products * FF;
        const MatmulShape shapes[] = {{N, FC, C, false}, {N, C, FC, false}, {FC, C, N, true},
                                      {N, C, FF, false}, {N, FF, C, false}, {C, FF, N, true}};

        double flops = 0, seconds = 0;
        for (int k = 0; k < 6; k++) { // with SwiGLU's gate the first three have twice the FLOP
            const double work = k < 3 ? (double)products : 1;
            flops += work;
            seconds += work / tiling_best(gpu, dtype, &shapes[k]).share;
        }
        shares[i] = flops / seconds;
        most = fmax(most, shares[i]);
        if (sizes[i] != exact) continue;
        of_exact = shares[i];
        best = i;
    }

    if (most >= WORTH * of_exact) {
        const double enough = fmax(WORTH * of_exact, most / NEARLY);
        for (int i = 0; i < count; i++) {
            const bool nearer =
                shares[best] < enough || llabs(sizes[i] - exact) < llabs(sizes[best] - exact);
            if (shares[i] >= enough && nearer) best = i;
        }
    }

    all->count = count;
    all->best = best;
    all->of_exact = of_exact;
}

static void advise_d_ff(FILE *out, const PlanRequest *r, const GpuChoice *gpu) {
    const ModelOptions *m = &r->model;
    const DType dtype = gpu_spec_dtype(&gpu->spec, m->dtype);
    const int64_t B = max_i64(m->B, 1), C = m->config.C, exact = model_default_d_ff(&m->config);
    FeedForwardSizes all = {0};
    rate_d_ff(&all, m, &gpu->spec);
    const int64_t *sizes = all.sizes;
    const double *shares = all.shares;
    const int best = all.best;

    fprintf(out,
            "advise      %s, %s: feed-forward layers of C=%lld, -b %lld -t %lld, forward and "
            "backward\n",
            gpu->spec.name, dtype_name(dtype), (long long)C, (long long)B, (long long)m->T);

    const char *name = m->config.activation == ACTIVATION_SWIGLU ? "8/3 C" : "4 C";
    fprintf(out, "advise      near %s: take %lld", name, (long long)sizes[best]);
    if (sizes[best] == exact)
        fprintf(out, ", which is %s; none nearby is %.1f%% faster\n", name, 100 * (WORTH - 1));
    else
        fprintf(out,
                " (--d-ff %lld), %+.1f%% FLOP/s over %lld, with %+.1f%% parameters in the layer\n",
                (long long)sizes[best], 100 * (shares[best] / all.of_exact - 1), (long long)exact,
                100 * ((double)sizes[best] / (double)exact - 1));

    char share_of[16];
    snprintf(share_of, sizeof share_of, "of %s", name);
    fprintf(out, "advise      %7s %9s %9s  tiles and waves full\n", "d_ff", share_of, "aligned");
    for (int i = 0; i < all.count; i++)
        fprintf(out, "advise      %7lld %8.1f%% %9d %21.1f%%\n", (long long)sizes[i],
                100 * (double)sizes[i] / (double)exact, tiling_alignment(sizes[i]),
                100 * shares[i]);

    print_sources(out);
}

// -------------------------------------------------------------------------------------------- both

bool advise_print(FILE *out, const PlanRequest *r, bool d_ff, Error *err) {
    static GpuChoice gpus[MOST_GPUS];
    const char *unknown = NULL, *names = "this", *asked = "sizes";
    int count = 0;
    if (!r->model.train) unknown = "-x 0";
    if (r->model.fp8) unknown = "--fp8";
    if (r->model.offload) unknown = "--offload";
    if (d_ff) asked = "d_ff";

    if (unknown)
        return error_set(err, "--plan %s: no rates are assumed for %s; leave it out", asked,
                         unknown);
    if (!*r->gpus && strcmp(device_facts()->backend, "cpu") == 0)
        return error_set(err,
                         "--plan %s: this program computes on the CPU, whose matmuls have no tiles "
                         "to count; name a "
                         "GPU, such as --gpu h100",
                         asked);

    if (*r->gpus) names = r->gpus;
    if (!gpu_find_all(gpus, &count, names, err)) return false;
    for (int i = 0; i < count; i++)
        if (gpus[i].spec.num_sms == 0 ||
            gpu_spec_peak(&gpus[i].spec, gpu_spec_dtype(&gpus[i].spec, r->model.dtype)) == 0)
            return error_set(err,
                             "--plan %s --gpu %s: its multiprocessors and peak are not known; name "
                             "one of the GPUs of --plan",
                             asked, gpus[i].spec.name);

    for (int i = 0; i < count; i++) {
        if (d_ff)
            advise_d_ff(out, r, &gpus[i]);
        else if (!advise_sizes(out, r, &gpus[i], err))
            return false;
    }
    return true;
}
