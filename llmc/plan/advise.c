// --advise: which sizes of a model suit a GPU. Each matmul of the prediction's list is laid out in tiles and waves;
// what they leave empty is time that a size nearby may save. The predicted time of a step, or the datasheet's limit
// where no rates are assumed for a GPU, is stretched by it, so that steps of two sizes can be compared. Only the
// arithmetic of tiles is certain; every rate is an assumption. Nothing here was measured but what --measure times.
#include "llmc/base/arithmetic.h"
#include "llmc/base/format.h"
#include "llmc/model/gpu_sizes.h"
#include "llmc/model/parameters.h"
#include "llmc/model/recompute.h"
#include "llmc/run/feed_forward_speed.h"
#include "llmc/plan/plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT = 64 };
static const double WORTH = 1.005; // a gain below this is less than the assumptions may be wrong by

// ---------------------------------------------------------------------------------------------------------- one matmul

// Tiles of cuBLAS, of most work first, and the rate that each is assumed to reach, as a part of the first's: a tile of
// m x n loads m + n elements for m n products, so that smaller ones depend on the L2 cache (NVIDIA's guide, 2.3).
static const struct {
    int rows, cols;
    double rate;
} TILES[] = {{256, 128, 1.0}, {128, 256, 1.0}, {128, 128, 0.95}, {128, 64, 0.8}, {64, 128, 0.8}, {64, 64, 0.6}};
enum { NUM_TILES = sizeof TILES / sizeof *TILES, MAX_ALIGNMENT = 64 };

// More parts of K must gain this much: their sums pass through memory once more. None is shorter than MIN_SPLIT_K.
static const double SPLIT_GAIN = 1.02, EQUAL = 1 + 1e-9;
enum { MAX_SPLITS = 8, MIN_SPLIT_K = 512 };

int planner_alignment(int64_t n) {
    int a = 1;
    while (a < MAX_ALIGNMENT && n % (2 * a) == 0) a *= 2;
    return a;
}

// Rows that begin on a cache line of 128 bytes load at full rate; those that only begin on 16 bytes touch more sectors;
// below that a thread loads 8, 4 or 2 bytes at a time (the guide, 2.2). Assumed; the last one after nanoGPT, whose step
// became a quarter faster when a vocabulary of 50257 was padded to 50304: the head, 30% of the FLOP, ran at half its
// rate.
static double load_share(DType dtype, const MatmulShape *s) {
    const int other = planner_alignment(s->sums_tokens ? s->M : s->K), cols = planner_alignment(s->N);
    const size_t bytes = (size_t)(other < cols ? other : cols) * dtype_size(dtype);
    return bytes >= 128 ? 1 : bytes >= 32 ? 0.97 : bytes >= 16 ? 0.93 : bytes >= 8 ? 0.75 : bytes >= 4 ? 0.6 : 0.5;
}

static Tiling tiling_of(const GpuSpec *gpu, const MatmulShape *s, int tile, int splits) {
    Tiling t = {.rows = TILES[tile].rows, .cols = TILES[tile].cols, .splits = splits};
    t.tiles = ceil_div(s->M, t.rows) * ceil_div(s->N, t.cols);
    const int64_t all = t.tiles * splits, last = all % gpu->num_sms;
    t.waves = ceil_div(all, gpu->num_sms);
    t.last_wave = last == 0 ? 1 : (double)last / gpu->num_sms;
    t.tile_share = (double)(s->M * s->N) / (double)(t.tiles * t.rows * t.cols);
    t.wave_share = (double)all / (double)(t.waves * gpu->num_sms);
    t.share = TILES[tile].rate * t.tile_share * t.wave_share;
    return t;
}

Tiling planner_tiling(const GpuSpec *gpu, DType dtype, const MatmulShape *s) {
    const int64_t workspace = cuda_size_matmul((OpsShape){.C = 1 << 16}, gpu->compute_capability).library_bytes;
    Tiling best = {0};
    for (int splits = 1; splits <= MAX_SPLITS; splits++) {
        const bool fits = splits == 1 || (s->K / splits >= MIN_SPLIT_K && splits * s->M * s->N * 4 <= workspace);
        for (int tile = 0; tile < NUM_TILES && fits; tile++) {
            const Tiling t = tiling_of(gpu, s, tile, splits);
            if (t.share > best.share * (splits > best.splits ? SPLIT_GAIN : EQUAL)) best = t;
        }
    }
    best.load_share = load_share(dtype, s);
    best.share *= best.load_share;
    return best;
}

// ------------------------------------------------------------------------------------------------------------ one step

// Heads are computed as 32, 64, 96 or 128 elements. The softmax of a score is assumed to cost as much as 32 elements of
// its products, which is why longer heads reach higher rates. Relative to 64 elements, whose rates are assumed.
static double head_factor(const ModelConfig *c) {
    const int64_t HS = c->C / c->NH;
    return (double)(round_up(HS, 32) + 32) / (double)HS / ((64.0 + 32) / 64);
}

static bool is_attention(RateKind rate) {
    return rate >= RATE_ATTENTION_FORWARD && rate <= RATE_OUR_ATTENTION_BACKWARD;
}

// Time of a step by tiles and heads, and what of the time of its matmuls full tiles in full waves would take.
typedef struct {
    double seconds, filled;
    Prediction p;
} Step;

static void step_of(Step *s, const GpuSpec *gpu, const ModelOptions *model, int64_t tokens, const Options *o,
                    double reference) {
    double full = 0, real = 0;
    planner_predict(&s->p, gpu, model, tokens, o, true);
    s->seconds = s->p.step.likely;
    for (int i = 0; i < s->p.count; i++)
        for (int k = 0; k < s->p.ops[i].num_parts; k++) {
            const PredictedPart *part = &s->p.ops[i].parts[k];
            const double likely = part->seconds.likely;
            if (is_attention(part->rate)) s->seconds += likely * (head_factor(&model->config) - 1);
            if (part->shape.M == 0) continue;
            const double share = planner_tiling(gpu, model->dtype, &part->shape).share;
            full += likely, real += likely / share;
            s->seconds += likely * (reference / share - 1);
        }
    s->filled = full / real;
}

// The rates are those of 124M with 65536 tokens, what its tiles leave empty included: where rates are assumed, a step
// is stretched by how much worse it is than that one.
static double reference_of(const GpuSpec *gpu, const Options *o) {
    Step s;
    Error none;
    ModelOptions model = {.dtype = DTYPE_BF16, .master = true, .train = true, .B = 64, .T = 1024};
    if (!model_config_parse(&model.config, "d12,V=50257", &none)) return 1;
    step_of(&s, gpu, &model, model.B * model.T, o, 1);
    return s.p.is_known && !s.p.is_limit ? s.filled : 1;
}

// ------------------------------------------------------------------------------------------------------------- changes

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
    const Options *options;
    int64_t tokens;         // of a step
    double reference, room; // bytes of the GPU
    Size now;
    Size best[NUM_CHANGES]; // work 0: none is better
} Advice;

static Size size_of(const Advice *a, const ModelConfig *config, int64_t B) {
    Step step;
    ModelOptions model = *a->model;
    ModelConfig useful = *config;
    model.config = *config, model.B = B;
    model_config_set_vocab(&useful, a->model->config.V);
    step_of(&step, a->gpu, &model, a->tokens, a->options, a->reference);
    const double rate = (double)a->tokens / step.seconds;
    return (Size){*config, B, rate, rate * flops_per_token_exact(&useful, model.T), step.filled};
}

// Of two that gain about as much, the one that was tried first: callers begin with what is nearest.
static void consider(Advice *a, ChangeKind kind, const ModelConfig *config, int64_t B) {
    Size *best = &a->best[kind];
    ModelOptions model = *a->model;
    model.config = *config;
    if ((kind == CHANGE_C || kind == CHANGE_D_FF) && planner_memory(&model).total > a->room) return;
    const Size s = size_of(a, config, B);
    if (s.work > WORTH * fmax(a->now.work, best->work)) *best = s;
}

static int64_t nearby(int64_t size) { return max_i64(size / 16, min_i64(64, size / 8)); }

// The multiples of 64 next to C, one step or a sixteenth away, never more than an eighth, in heads of 64 or 128. A
// model that is much larger always does more work a second: that is no advice.
static void consider_channels(Advice *a) {
    const ModelConfig *now = &a->model->config;
    const int64_t nearest = (now->C + 32) / 64, most = nearby(now->C);
    for (int64_t step = 0; step <= most / 64 + 1; step++)
        for (int sign = -1; sign <= 1; sign += 2) {
            ModelConfig c = *now;
            c.C = (nearest + sign * step) * 64;
            model_config_set_d_ff(&c, c.d_ff);
            const bool wide = c.C % 128 == 0 && now->C / now->NH > 96;
            c.NH = c.C / (wide ? 128 : 64);
            if (c.C >= 64 && c.C != now->C && llabs(c.C - now->C) <= most) consider(a, CHANGE_C, &c, a->model->B);
        }
}

static void consider_heads(Advice *a) {
    for (int64_t HS = 64; HS <= 128; HS += 64) {
        ModelConfig c = a->model->config;
        if (c.C % HS != 0 || c.NH == c.C / HS) continue;
        c.NH = c.C / HS;
        consider(a, CHANGE_NH, &c, a->model->B);
    }
}

// The same of d_ff, alone.
static void consider_d_ff(Advice *a) {
    const ModelConfig *config = &a->model->config;
    const int64_t now = model_size(config, DIM_FF), most = nearby(now);
    for (int64_t step = 0; step <= most / 64 + 1; step++)
        for (int sign = -1; sign <= 1; sign += 2) {
            const int64_t d_ff = ((now + 32) / 64 + sign * step) * 64;
            ModelConfig c = *config;
            model_config_set_d_ff(&c, d_ff);
            if (d_ff >= 64 && d_ff != now && llabs(d_ff - now) <= most) consider(a, CHANGE_D_FF, &c, a->model->B);
        }
}

static void consider_vocabulary(Advice *a) {
    for (int64_t more = 1; more <= 8; more++) {
        ModelConfig c = a->model->config;
        model_config_set_vocab(&c, c.Vp + more * VOCAB_PADDING);
        consider(a, CHANGE_V, &c, a->model->B);
    }
}

// From half to twice as many, of those that fit.
static void consider_batch(Advice *a, int64_t most) {
    const int64_t B = a->model->B;
    for (int64_t step = 1; step <= B; step++)
        for (int sign = -1; sign <= 1; sign += 2) {
            const int64_t other = B + sign * step;
            if (other >= ceil_div(B, 2) && other <= most) consider(a, CHANGE_B, &a->model->config, other);
        }
}

// ------------------------------------------------------------------------------------------------------------ as text

static const char *count_text(double n, char buf[TEXT]) { return format_count(n, buf, TEXT); }

static void print_change(FILE *out, const Advice *a, ChangeKind kind, int number) {
    const Size *s = &a->best[kind], *now = &a->now;
    const ModelConfig *c = &s->config, *was = &now->config;
    char old[TEXT], rate[TEXT], what[TEXT], flag[2 * TEXT];
    const double parameters = (double)parameter_total(c), before = (double)parameter_total(was);
    snprintf(flag, sizeof flag, "-e L=%lld,C=%lld,NH=%lld,V=%lld,T=%lld", (long long)c->L, (long long)c->C,
             (long long)c->NH, (long long)c->V, (long long)c->max_T);
    if (kind == CHANGE_D_FF || c->d_ff) // which -e has no part for
        snprintf(kind == CHANGE_D_FF ? flag : flag + strlen(flag), TEXT, "%s--d-ff %lld",
                 kind == CHANGE_D_FF ? "" : " ", (long long)model_size(c, DIM_FF));
    if (kind == CHANGE_C)
        snprintf(what, TEXT, "C %lld -> %lld with NH %lld", (long long)was->C, (long long)c->C, (long long)c->NH);
    else if (kind == CHANGE_NH)
        snprintf(what, TEXT, "NH %lld -> %lld (head size %lld -> %lld)", (long long)was->NH, (long long)c->NH,
                 (long long)(was->C / was->NH), (long long)(c->C / c->NH));
    else if (kind == CHANGE_D_FF)
        snprintf(what, TEXT, "d_ff %lld -> %lld", (long long)model_size(was, DIM_FF), (long long)model_size(c, DIM_FF));
    else if (kind == CHANGE_V)
        snprintf(what, TEXT, "V %lld -> %lld", (long long)was->V, (long long)c->V);
    else
        snprintf(what, TEXT, "B %lld -> %lld", (long long)now->B, (long long)s->B),
            snprintf(flag, sizeof flag, "-b %lld", (long long)s->B);
    fprintf(out, "advise      %d. %s: %s\n", number, what, flag);
    fprintf(out, "advise         %s -> %s tokens/s (%+.1f%%)", count_text(now->rate, old), count_text(s->rate, rate),
            100 * (s->rate / now->rate - 1));
    if (parameters == before)
        fprintf(out, ", the same parameters");
    else
        fprintf(out, ", parameters %s -> %s (%+.1f%%)", count_text(before, old), count_text(parameters, rate),
                100 * (parameters / before - 1));
    if (kind == CHANGE_C || kind == CHANGE_D_FF)
        fprintf(out, ", %+.1f%% work a second", 100 * (s->work / now->work - 1));
    if (fabs(s->filled - now->filled) >= 0.005)
        fprintf(out, "; tiles and waves of the matmuls are %.0f%% full, not %.0f%%", 100 * s->filled,
                100 * now->filled);
    fprintf(out, "\n");
}

// Of each kind the best, at most three of them, the one with the most work a second first.
static void print_changes(FILE *out, const Advice *a) {
    enum { SHOWN = 3 };
    bool done[NUM_CHANGES] = {false};
    int number = 0;
    for (; number < SHOWN; number++) {
        int next = -1;
        for (int k = 0; k < NUM_CHANGES; k++)
            if (!done[k] && a->best[k].work > (next < 0 ? 0 : a->best[next].work)) next = k;
        if (next < 0) break;
        if (number == 0)
            fprintf(out, "advise      what would gain most nearby, each alone, at the same tokens a step:\n");
        print_change(out, a, (ChangeKind)next, number + 1);
        done[next] = true;
    }
    if (number == 0)
        fprintf(out,
                "advise      no C, NH, d_ff, V or B nearby would gain half a per cent: these sizes suit this GPU\n");
    else if (number < SHOWN)
        fprintf(out, "advise      other changes nearby of C, NH, d_ff, V or B gain less than half a per cent\n");
}

static void print_now(FILE *out, const Advice *a, bool is_limit) {
    char rate[TEXT], shape[2 * TEXT];
    const ModelOptions *m = a->model;
    const ModelConfig *c = &m->config;
    fprintf(out, "advise      %s, %d multiprocessors, %s: %s, -b %lld -t %lld\n", a->gpu->name, a->gpu->num_sms,
            dtype_name(m->dtype), model_config_text(c, m->T, shape, sizeof shape), (long long)m->B, (long long)m->T);
    fprintf(out, "advise      %s %s tokens/s %s; tiles and waves of the matmuls are %.0f%% full\n",
            is_limit ? "at most" : "predicted", count_text(a->now.rate, rate),
            is_limit ? "at the datasheet's rates, as none are assumed for this GPU and dtype" : "by assumed rates",
            100 * a->now.filled);
}

static void print_sizes(FILE *out, const Advice *a) {
    const ModelOptions *m = a->model;
    const ModelConfig *c = &m->config;
    const int64_t HS = c->C / c->NH;
    fprintf(
        out, "advise      head size %lld: %s\n", (long long)HS,
        HS % 8 != 0 || HS > 128
            ? "no fast attention kernel takes it, only multiples of 8 up to 128; that costs more than is counted here"
        : HS % 32 != 0 ? "attention computes it as the next multiple of 32"
                       : "attention computes nothing that only pads it");
    fprintf(out, "advise      vocabulary %lld, padded to %lld; B*T = %lld rows, aligned by %d\n", (long long)c->V,
            (long long)c->Vp, (long long)(m->B * m->T), planner_alignment(m->B * m->T));
}

static void print_matmuls(FILE *out, const Advice *a) {
    static const char *const PASS_NAMES[] = {"logits", "dlnf", "dwte"}; // of the head, as the prediction lists them
    Step s;
    step_of(&s, a->gpu, a->model, a->tokens, a->options, a->reference);
    fprintf(out, "advise      %-35s %7s %7s %7s  %-12s %8s %7s %6s %9s %9s\n", "matmul", "M", "N", "K", "aligned by",
            "tile", "tiles", "waves", "last wave", "of peak");
    for (int i = 0; i < s.p.count; i++)
        for (int k = 0, pass = 0; k < s.p.ops[i].num_parts; k++) {
            const PredictedOp *op = &s.p.ops[i];
            const PredictedPart *part = &op->parts[k];
            const MatmulShape *m = &part->shape;
            if (m->M == 0) continue;
            const Tiling t = planner_tiling(a->gpu, a->model->dtype, m);
            const bool head = strcmp(op->op, "head_loss_backward") == 0;
            char name[TEXT], aligned[TEXT], tile[TEXT], tiles[TEXT];
            snprintf(name, TEXT, "%s %s", op->op, head ? PASS_NAMES[pass++] : op->tensor);
            snprintf(aligned, TEXT, "%d %d %d", planner_alignment(m->M), planner_alignment(m->N),
                     planner_alignment(m->K));
            snprintf(tile, TEXT, "%dx%d", t.rows, t.cols);
            snprintf(tiles, TEXT, t.splits > 1 ? "%lldx%d" : "%lld", (long long)t.tiles, t.splits);
            const double of_peak = part->amount / part->seconds.likely / gpu_spec_peak(a->gpu, a->model->dtype);
            fprintf(out, "advise      %-35s %7lld %7lld %7lld  %-12s %8s %7s %6lld %8.0f%% %8.1f%%\n", name,
                    (long long)m->M, (long long)m->N, (long long)m->K, aligned, tile, tiles, (long long)t.waves,
                    100 * t.last_wave, 100 * of_peak * t.share / a->reference);
        }
}

static void print_sources(FILE *out) {
    fprintf(out, "advise      tiles, waves and alignment as in NVIDIA's \"Matrix Multiplication Background User's "
                 "Guide\" and Anthony et "
                 "al.,\nadvise      \"The Case for Co-Designing Model Architectures with Hardware\", 2024; computed, "
                 "not measured\n");
}

static bool advise_sizes(FILE *out, const PlanRequest *r, const GpuChoice *gpu, Error *err) {
    static DevicePlan plan;
    planner_device(&plan, r, gpu);
    if (!plan.fits) return error_set(err, "%s: %s", gpu->spec.name, plan.why_not.text);
    Advice a = {.gpu = &plan.gpu.spec,
                .model = &plan.model,
                .options = r->options,
                .tokens = plan.share_tokens,
                .room = plan.room};
    a.reference = plan.model.dtype == DTYPE_FP32 ? 1 : reference_of(a.gpu, r->options);
    a.now = size_of(&a, &plan.model.config, plan.model.B);
    consider_channels(&a), consider_heads(&a), consider_d_ff(&a), consider_vocabulary(&a),
        consider_batch(&a, plan.batch);
    print_now(out, &a, !plan.prediction.is_known);
    print_changes(out, &a);
    print_sizes(out, &a);
    print_matmuls(out, &a);
    print_sources(out);
    return true;
}

// ---------------------------------------------------------------------------------------------------------------- d_ff

double feed_forward_flops(const FeedForward *f) {
    return 3 * 2 * (double)f->tokens * (double)f->C * (double)f->d_ff * (f->gated ? 3 : 2);
}

void feed_forward_matmuls(const FeedForward *f, MatmulShape shapes[FEED_FORWARD_MATMULS]) {
    const int64_t N = f->tokens, C = f->C, up = f->d_ff * (f->gated ? 2 : 1), down = f->d_ff;
    const MatmulShape all[FEED_FORWARD_MATMULS] = {{N, up, C, false},   {N, C, up, false},   {up, C, N, true},
                                                   {N, C, down, false}, {N, down, C, false}, {C, down, N, true}};
    memcpy(shapes, all, sizeof all);
}

// About a mean of 0; equal values share theirs.
static double rank_of(const double *x, int n, int i) {
    double rank = -0.5 * n;
    for (int k = 0; k < n; k++) rank += (x[k] < x[i]) + 0.5 * (x[k] == x[i]);
    return rank;
}

double rank_correlation(const double *a, const double *b, int n) {
    double ab = 0, aa = 0, bb = 0;
    for (int i = 0; i < n; i++) {
        const double x = rank_of(a, n, i), y = rank_of(b, n, i);
        ab += x * y, aa += x * x, bb += y * y;
    }
    return aa > 0 && bb > 0 ? ab / sqrt(aa * bb) : 0;
}

enum { MOST_SIZES = 24, D_FF_STEP = 64, D_FF_STEPS = 4 };

typedef struct {
    FeedForward layer[MOST_SIZES];
    double predicted[MOST_SIZES], measured[MOST_SIZES]; // FLOP/s; 0: not known
    double halves[2][MOST_SIZES];                       // measured, in every other round
    int count;
} Search;

static int64_t exact_size(const FeedForward *f) { return f->gated ? (8 * f->C + 1) / 3 : 4 * f->C; }

// The size itself, as it would be without a thought of alignment, and the multiples of 64 around it.
static void add_sizes(Search *s, int64_t tokens, int64_t C, bool gated) {
    const int64_t exact = exact_size(&(FeedForward){tokens, C, 0, gated}), middle = (exact + D_FF_STEP / 2) / D_FF_STEP;
    bool has_exact = false;
    for (int64_t i = middle - D_FF_STEPS; i <= middle + D_FF_STEPS; i++) {
        if (i * D_FF_STEP >= exact && !has_exact) {
            has_exact = true;
            if (i * D_FF_STEP > exact) s->layer[s->count++] = (FeedForward){tokens, C, exact, gated};
        }
        if (i >= 1) s->layer[s->count++] = (FeedForward){tokens, C, i * D_FF_STEP, gated};
    }
}

static double predicted_rate(const GpuSpec *gpu, DType dtype, const FeedForward *layer) {
    MatmulShape shapes[FEED_FORWARD_MATMULS];
    double relative = 0;
    feed_forward_matmuls(layer, shapes);
    for (int i = 0; i < FEED_FORWARD_MATMULS; i++) {
        const double f = 2 * (double)shapes[i].M * (double)shapes[i].N * (double)shapes[i].K;
        relative += f / planner_tiling(gpu, dtype, &shapes[i]).share;
    }
    return gpu_spec_peak(gpu, dtype) * feed_forward_flops(layer) / relative;
}

// By how much two measurements of one size differ: the median over all sizes of what even and odd rounds say.
static double noise_of(const Search *s) {
    double difference[MOST_SIZES];
    for (int i = 0; i < s->count; i++) difference[i] = fabs(s->halves[0][i] / s->halves[1][i] - 1);
    return median_of(difference, s->count);
}

// The exact size, unless others are faster by a factor of `worth`: then the nearest of those with nearly the highest
// rate.
static int best_of(const Search *s, const double *rates, double worth, bool gated) {
    static const double NEARLY = 1.02;
    double most = 0, enough;
    int best = -1;
    for (int i = 0; i < s->count; i++) {
        if (s->layer[i].gated != gated) continue;
        most = fmax(most, rates[i]);
        if (s->layer[i].d_ff == exact_size(&s->layer[i])) best = i;
    }
    enough = fmax(worth * rates[best], most / NEARLY);
    if (most < worth * rates[best]) return best;
    best = -1;
    for (int i = 0; i < s->count; i++) {
        const int64_t exact = exact_size(&s->layer[i]);
        if (s->layer[i].gated != gated || rates[i] < enough) continue;
        if (best < 0 || llabs(s->layer[i].d_ff - exact) < llabs(s->layer[best].d_ff - exact)) best = i;
    }
    return best;
}

static void print_kind(FILE *out, const Search *s, const double *rates, double worth, bool gated) {
    const int best = best_of(s, rates, worth, gated);
    const int64_t found = s->layer[best].d_ff, exact = exact_size(&s->layer[best]);
    double there = 0;
    for (int i = 0; i < s->count; i++)
        if (s->layer[i].gated == gated && s->layer[i].d_ff == exact) there = rates[i];
    fprintf(out, "advise      near %s C%s: take %lld", gated ? "8/3" : "4", gated ? " (gated)" : "", (long long)found);
    if (found == exact)
        fprintf(out, ", which is %s C; none nearby is %.1f%% faster\n", gated ? "8/3" : "4", 100 * (worth - 1));
    else
        fprintf(out, ", %+.1f%% FLOP/s over %lld, with %+.1f%% parameters in the layer\n",
                100 * (rates[best] / there - 1), (long long)exact, 100 * ((double)found / (double)exact - 1));
}

static void print_search(FILE *out, const Search *s, const GpuSpec *gpu, DType dtype) {
    const double peak = gpu ? gpu_spec_peak(gpu, dtype) : 0;
    fprintf(out, "advise      %-6s %7s %9s %9s%s%s\n", "kind", "d_ff", "of exact", "aligned",
            gpu ? "  tiles and waves full" : "", s->measured[0] > 0 ? "  measured TFLOP/s" : "");
    for (int i = 0; i < s->count; i++) {
        const FeedForward *f = &s->layer[i];
        const double exact = f->gated ? 8.0 / 3 * (double)f->C : 4 * (double)f->C;
        fprintf(out, "advise      %-6s %7lld %8.1f%% %9d", f->gated ? "gated" : "plain", (long long)f->d_ff,
                100 * (double)f->d_ff / exact, planner_alignment(f->d_ff));
        if (gpu) fprintf(out, " %21.1f%%", 100 * s->predicted[i] / peak);
        if (s->measured[i] > 0) fprintf(out, " %17.4g", s->measured[i] / 1e12);
        fprintf(out, "\n");
    }
}

static bool advise_d_ff(FILE *out, const PlanRequest *r, const GpuChoice *gpu, Error *err) {
    static Search s;
    const ModelOptions *m = &r->model;
    const bool measure = r->options->measure;
    double *const halves[2] = {s.halves[0], s.halves[1]};
    const DType dtype = gpu ? gpu_spec_dtype(&gpu->spec, m->dtype) : m->dtype;
    const int64_t tokens = (m->B > 0 ? m->B : 1) * m->T;
    memset(&s, 0, sizeof s);
    add_sizes(&s, tokens, m->config.C, false), add_sizes(&s, tokens, m->config.C, true);
    for (int i = 0; i < s.count && gpu; i++) s.predicted[i] = predicted_rate(&gpu->spec, dtype, &s.layer[i]);
    if (measure && !measure_feed_forward(s.layer, s.count, dtype, s.measured, halves, err)) return false;
    fprintf(out, "advise      %s%s, %s: feed-forward layers of C=%lld, -b %lld -t %lld, forward and backward\n",
            gpu ? gpu->spec.name : device_facts()->name, gpu && measure ? ", this machine" : "", dtype_name(dtype),
            (long long)m->config.C, (long long)(m->B > 0 ? m->B : 1), (long long)m->T);
    const double noise = measure ? noise_of(&s) : 0, worth = fmax(WORTH, 1 + 2 * noise);
    const double *rates = measure ? s.measured : s.predicted;
    print_kind(out, &s, rates, worth, false), print_kind(out, &s, rates, worth, true);
    if (measure)
        fprintf(
            out,
            "advise      timed in rounds over all sizes; even and odd rounds differ by %.1f%% at the median, and their "
            "orders have a rank correlation of %.2f\n",
            100 * noise, rank_correlation(s.halves[0], s.halves[1], s.count));
    if (measure && gpu)
        fprintf(out, "advise      prediction and measurement: rank correlation %.2f\n",
                rank_correlation(s.predicted, s.measured, s.count));
    fprintf(out, "advise      --d-ff %lld sets the one near 4 C; gated layers are for other programs\n",
            (long long)s.layer[best_of(&s, rates, worth, false)].d_ff);
    print_search(out, &s, gpu ? &gpu->spec : NULL, dtype);
    if (gpu) print_sources(out);
    return true;
}

// ---------------------------------------------------------------------------------------------------------------- both

bool planner_advise(FILE *out, const PlanRequest *r, Error *err) {
    static GpuChoice gpus[MOST_GPUS];
    const Options *o = r->options;
    const bool d_ff = o->advise == ADVISE_D_FF, on_cpu = strcmp(device_facts()->backend, "cpu") == 0;
    int count = 0;
    if (!r->model.train || r->model.fp8 || r->model.offload)
        return error_set(err, "--advise: no rates are assumed for %s; leave it out",
                         !r->model.train ? "-x 0"
                         : r->model.fp8  ? "--fp8"
                                         : "--offload");
    if (d_ff && o->measure && on_cpu) return advise_d_ff(out, r, NULL, err);
    if (!*o->gpu && on_cpu)
        return error_set(
            err,
            "--advise: this program computes on the CPU, whose matmuls have no tiles to count; name a GPU, such as "
            "--gpu h100, or time the sizes of d_ff here with --advise d_ff --measure");
    if (!gpu_find_all(gpus, &count, *o->gpu ? o->gpu : "this", err)) return false;
    for (int i = 0; i < count; i++)
        if (gpus[i].spec.num_sms == 0 ||
            gpu_spec_peak(&gpus[i].spec, gpu_spec_dtype(&gpus[i].spec, r->model.dtype)) == 0)
            return error_set(
                err, "--advise --gpu %s: its multiprocessors and peak are not known; name one of the GPUs of --plan",
                gpus[i].spec.name);
    for (int i = 0; i < count; i++)
        if (!(d_ff ? advise_d_ff : advise_sizes)(out, r, &gpus[i], err)) return false;
    return true;
}
