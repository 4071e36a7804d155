// -b auto and -r auto, and the message when nothing fits. See plan_fit.h.
//
// Every answer is a plan that was made. A plan of 1558M takes 1 ms.
#include "llmc/plan/plan_fit.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/format.h"
#include "llmc/base/limits.h"
#include "llmc/model/recompute.h"
#include "llmc/plan/plan_memory.h"

#include <stdlib.h>
#include <string.h>

// --------------------------------------------------------------------------------- bytes of a plan

static double bytes_needed(const ModelOptions *model) {
    MemoryPlan *plan = model_plan(model);
    double bytes = (double)memory_plan_total(plan);
    memory_plan_destroy(plan);
    const bool same_memory = !model->sizes && strcmp(device_facts()->backend, "cpu") == 0;
    if (model->offload && model->train && same_memory) bytes += (double)model_host_bytes(model);
    return bytes;
}

static double bytes_at(const ModelOptions *model, int64_t B) {
    ModelOptions at = *model;
    at.B = B;
    return bytes_needed(&at);
}

// ------------------------------------------------------------------------------------------- batch

int64_t plan_largest_batch(const ModelOptions *model, double bytes, int64_t most) {
    enum { MOST = 65536 }; // of -b
    static const PlannedSizes no_scratch = {0};
    if (most <= 0 || most > MOST) most = MOST;
    // Needs less than a smaller one where a single micro-step lets gradients be freed.
    if (most < MOST && bytes_at(model, most) <= bytes) return most;

    // The largest that fits without logits and workspace: without them every tensor grows with
    // every sequence, and the bytes are at least those of a line through the first two, but for
    // alignment and gaps.
    ModelOptions m = *model;
    m.sizes = &no_scratch;
    const double one = bytes_at(&m, 1), more = bytes_at(&m, 2) - one;
    double end = (double)most + 1;
    if (more > 0) end = fmin(end, 2 + 1.05 * fmax(0, bytes - one) / more);
    int64_t low = 0, high = (int64_t)end; // low fits, high does not
    while (high - low > 1) {
        const int64_t B = low + (high - low) / 2;
        if (bytes_at(&m, B) <= bytes)
            low = B;
        else
            high = B;
    }
    while (low > 0 && bytes_at(model, low) > bytes) low--;
    return low;
}

// --------------------------------------------------------------------------------------- recompute

// The sets that a block can drop, each larger than the one before. Every product costs 2 C FLOPs
// for each element that it restores, attention 2 (T + 1).
static const int SETS[] = {
    0,
    RECOMPUTE_GELU,
    RECOMPUTE_GELU | RECOMPUTE_LAYERNORM,
    RECOMPUTE_GELU | RECOMPUTE_LAYERNORM | RECOMPUTE_ATTENTION,
    RECOMPUTE_GELU | RECOMPUTE_LAYERNORM | RECOMPUTE_FC,
    RECOMPUTE_GELU | RECOMPUTE_LAYERNORM | RECOMPUTE_FC | RECOMPUTE_ATTENTION,
    RECOMPUTE_GELU | RECOMPUTE_LAYERNORM | RECOMPUTE_FC | RECOMPUTE_ATTENTION | RECOMPUTE_QKV,
    RECOMPUTE_BLOCK,
};
enum { NUM_SETS = sizeof SETS / sizeof *SETS };

Recompute plan_recompute(const RecomputeChoice *choice, int64_t L) {
    Recompute r = recompute_all(choice->set);
    const Recompute first = recompute_all(choice->first_set);
    memcpy(r.blocks, first.blocks, (size_t)min_i64(choice->count, L));
    return r;
}

static int by_cost(const void *a, const void *b) {
    const RecomputeChoice *x = a, *y = b;
    if (x->flops != y->flops) return (x->flops > y->flops) - (x->flops < y->flops);
    if (x->elements != y->elements)
        return (x->elements > y->elements) - (x->elements < y->elements);
    return (x->count > y->count) - (x->count < y->count); // the same on every machine
}

// The blocks that drop more come first: they run backward last, when the others have freed their
// activations.
int plan_ladder(RecomputeChoice **ladder, const ModelConfig *config, int64_t T) {
    RecomputeChoice *c = malloc((size_t)(NUM_SETS * NUM_SETS * config->L) * sizeof *c);
    REQUIRE_MEMORY(c, "a plan");
    int n = 0;
    for (int s = 0; s < NUM_SETS; s++)
        for (int more = s; more < NUM_SETS; more++) {
            int64_t count = 1, end = config->L; // of the first blocks, which drop more
            if (more == s) count = end++;
            for (; count < end; count++) {
                c[n] = (RecomputeChoice){SETS[more], SETS[s], count, 0, 0};
                const Recompute r = plan_recompute(&c[n], config->L);
                c[n].flops = recompute_flops_per_token(&r, config, T);
                c[n++].elements = recompute_elements_per_token(&r, config);
            }
        }

    qsort(c, (size_t)n, sizeof *c, by_cost);
    *ladder = c;
    return n;
}

// Stores the first choice of the ladder that fits in model->recompute; false if none does.
static bool fit_recompute(ModelOptions *model, double room) {
    RecomputeChoice *ladder;
    // Lower bounds of the bytes with a set in all blocks: while the logits exist, every block holds
    // what it keeps. That adds up, so a mixture of two sets needs at least the mixture of their
    // bounds, and few plans are made.
    double least[RECOMPUTE_BLOCK + 1] = {0}; // by set
    const int64_t L = model->config.L;
    bool fits = false;
    const int n = plan_ladder(&ladder, &model->config, model->T);

    for (int s = 0; s < NUM_SETS; s++) {
        ModelOptions m = *model;
        m.recompute = recompute_all(SETS[s]);
        MemoryPlan *plan = model_plan(&m);
        int tick = 0;
        for (int i = 0; i < memory_plan_count(plan); i++)
            if (strcmp(memory_plan_tensor(plan, i).name, "logits") == 0)
                tick = memory_plan_tensor(plan, i).first_use;
        for (int i = 0; i < memory_plan_count(plan); i++) {
            const PlannedTensor t = memory_plan_tensor(plan, i);
            const bool lives =
                t.first_use == PLAN_ALWAYS || (t.first_use <= tick && t.last_use >= tick);
            if (lives) least[SETS[s]] += (double)t.bytes;
        }
        memory_plan_destroy(plan);
    }

    for (int i = 0; i < n && !fits; i++) {
        const double first = least[ladder[i].first_set] * (double)ladder[i].count,
                     others = least[ladder[i].set] * (double)(L - ladder[i].count);
        if ((first + others) / (double)L > room) continue;
        model->recompute = plan_recompute(&ladder[i], L);
        fits = bytes_needed(model) <= room;
    }
    if (!fits) model->recompute = recompute_all(RECOMPUTE_BLOCK);
    free(ladder);
    return fits;
}

// -------------------------------------------------------------------------------------- the choice

typedef struct {
    bool any_batch, any_recompute;
    double room;
    int64_t most;
} Search;

// Tokens of a micro-step that keep a GPU busy: its matmuls then have several times as many tiles as
// there are multiprocessors, and more tokens make it no faster. Recomputing GELU and layernorm for
// a larger one only costs, 4 to 5% by their bytes.
enum { ENOUGH_TOKENS = 65536 };

// Sets model->B and model->recompute; false, and B 1 where it was free, when nothing fits.
static bool fit_model(ModelOptions *model, const Search *s) {
    const bool trades = s->any_recompute && model->train;
    if (s->any_recompute) model->recompute = recompute_all(0);
    if (s->any_batch) {
        int64_t enough = ceil_div(ENOUGH_TOKENS, model->T);
        int64_t B = plan_largest_batch(model, s->room, s->most);
        if (trades && B < enough) { // a larger one, up to enough, that repeats no matmul
            model->recompute = recompute_all(RECOMPUTE_GELU | RECOMPUTE_LAYERNORM);
            enough = min_i64(enough, positive_or(s->most, enough));
            B = max_i64(B, plan_largest_batch(model, s->room, enough));
        }
        model->B = max_i64(B, 1);
    }
    if (trades) return fit_recompute(model, s->room);
    return bytes_needed(model) <= s->room;
}

// On a GPU the workspace of cuDNN's attention is known only when its kernels are chosen, which
// takes a while for every micro-batch: the search goes by the formulas, and the backend checks its
// result.
static bool choose_checked(ModelOptions *model, const Search *search) {
    if (model->sizes || strcmp(device_facts()->backend, "cuda") != 0)
        return fit_model(model, search);
    const GpuSpec here = {.memory = (double)device_facts()->memory_total,
                          .num_sms = device_facts()->units};
    const PlannedSizes sizes = plan_sizes(&here, ATTENTION_AUTO);
    Search s = *search;
    for (;;) {
        model->sizes = &sizes;
        const bool fits = fit_model(model, &s);
        model->sizes = NULL;
        const double over = bytes_needed(model) - search->room;
        if (!fits || over <= 0) return over <= 0;
        s.room -= over;
    }
}

// ---------------------------------------------------------------------------------------- remedies

enum {
    ONE_SAMPLE = 1,
    FEWER_B = 2,
    RECOMPUTE = 4,
    DIVIDE = 8,
    OPTIMIZER = 16,
    GRADIENTS = 32,
    OFFLOAD = 64,
    NUM_REMEDIES = 7
};

// Whether the model fits with these remedies, which it applies to *m.
static bool try_remedies(ModelOptions *m, const Search *search, int remedies) {
    Search s = *search;
    Error ignored;
    if (remedies & ONE_SAMPLE) m->sequences = 1;
    if (remedies & FEWER_B) {
        s.most = m->B - 1;
        s.any_batch = true;
    }
    if (remedies & RECOMPUTE) s.any_recompute = true;
    if (remedies & DIVIDE) m->divided = true;
    if (remedies & OPTIMIZER) {
        m->optimizer = OPTIMIZER_ADAMW_8BIT;
        m->master = false;
    }
    if (remedies & GRADIENTS) m->gradients_in_dtype = true;
    if (remedies & OFFLOAD) m->offload = true;

    if (!model_check_options(m, &ignored)) return false;
    ModelOptions least = *m; // shows quickly that nothing fits
    if (s.any_batch) least.B = 1;
    if (s.any_recompute) least.recompute = recompute_all(RECOMPUTE_BLOCK);
    if (bytes_needed(&least) > s.room) {
        *m = least;
        return false;
    }
    return choose_checked(m, &s);
}

static bool explain_fit(const ModelOptions *model, const Search *search, Error *err) {
    static const char smaller[] = "use a smaller model or context (-e, -t)";
    char asked[64], set[64], needs[64], there[64], batch[32], what[160] = "", least[64],
                                                              advice[320];
    const bool master = optimizer_keeps_master(model->optimizer, model->master, model->dtype);

    int known = 0; // remedies that would change something
    if (model->sequences > 1) known |= ONE_SAMPLE;
    if (!search->any_batch && model->B > 1) known |= FEWER_B;
    if (!search->any_recompute && model->train) known |= RECOMPUTE;
    if (model->train && model->processes > 1 && !model->divided) known |= DIVIDE;
    if (model->train && (model->optimizer != OPTIMIZER_ADAMW_8BIT || master)) known |= OPTIMIZER;
    if (model->train && !model->gradients_in_dtype && model->dtype != DTYPE_FP32)
        known |= GRADIENTS;
    if (model->train && !model->offload) known |= OFFLOAD;

    // Fewer before more, and among as many in the order of the list.
    ModelOptions m;
    int remedies = known;
    bool found = false;
    for (int count = 1; count <= NUM_REMEDIES && !found; count++)
        for (int r = 1; r < 1 << NUM_REMEDIES && !found; r++) {
            if (__builtin_popcount((unsigned)r) != count || (r & known) != r) continue;
            m = *model;
            found = try_remedies(&m, search, r);
            if (found) remedies = r;
        }
    if (!found) {
        m = *model;
        try_remedies(&m, search, known);
    }

    recompute_text(&model->recompute, model->config.L, set, sizeof set);
    snprintf(asked, sizeof asked, "-b %lld -r %s", (long long)model->B, set);
    snprintf(batch, sizeof batch, "-b %lld", (long long)m.B);
    const char *const names[NUM_REMEDIES] = {"--samples 1",
                                             batch,
                                             "-r auto",
                                             "-z 1",
                                             "--optimizer adamw8bit -w 0",
                                             "--grad-dtype compute",
                                             "--offload optimizer"};
    for (int i = 0; i < NUM_REMEDIES; i++) {
        const size_t used = strlen(what);
        if (remedies >> i & 1)
            snprintf(what + used, sizeof what - used, "%s%s", used ? " " : "", names[i]);
    }

    format_bytes(bytes_needed(&m), least, sizeof least);
    if (found)
        snprintf(advice, sizeof advice, "it fits with %s (%s)", what, least);
    else if (remedies == 0)
        snprintf(advice, sizeof advice, "%s", smaller);
    else
        snprintf(advice, sizeof advice, "even %s needs %s; %s", what, least, smaller);
    return error_set(err, "not enough memory: %s needs %s, but only %s is available%s; %s", asked,
                     format_bytes(bytes_needed(model), needs, sizeof needs),
                     format_bytes(search->room, there, sizeof there), limits_of_memory(), advice);
}

bool plan_choose(ModelOptions *model, double room, int64_t most) {
    const Search search = {true, true, room, most};
    return choose_checked(model, &search);
}

bool plan_fit(ModelOptions *model, bool any_batch, const char *recompute, double room, int64_t most,
              Error *err) {
    const Search search = {any_batch, strcmp(recompute, "auto") == 0, room, most};
    if (!search.any_recompute &&
        !recompute_parse(&model->recompute, recompute, model->config.L, err))
        return false;
    if (choose_checked(model, &search)) return true;
    return explain_fit(model, &search, err);
}

bool plan_fit_divisor(ModelOptions *model, const char *recompute, double room, Error *err) {
    int64_t B = 1;
    while (2 * B <= model->B) B *= 2;
    model->B = B;
    return plan_fit(model, false, recompute, room, 0, err);
}
