// See plan_largest.h.
#include "llmc/plan/plan_largest.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/format.h"
#include "llmc/train/recipe.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_DEPTH = 4, LAST_DEPTH = 48, HEAD = 64, BESIDE = 2, TEXT = 64, SET_TEXT = 256 };
enum { SIZES = LAST_DEPTH - FIRST_DEPTH + 1 };
static const double SHARE_OF_LIMIT = 0.5; // as in the last column of the plan's table

typedef struct {
    char name[MODEL_DESCRIPTOR];
    // of the run; seconds 0: it does not fit into the memory
    double parameters, tokens, step_tokens, seconds;
    char chosen[TEXT]; // -b and -r
} SizePlan;

// The model of so many blocks, and its name. False: its block is more than a family and these
// sizes.
static bool size_of(ModelConfig *config, int depth, char name[MODEL_DESCRIPTOR]) {
    ModelConfig named;
    Error none;
    char size[32], family[32] = "", context[24] = "", vocabulary[24] = "";
    const char *known = model_family(config);
    config->L = config->NH = depth;
    config->C = HEAD * depth;
    if (known && strcmp(known, "gpt2") != 0) snprintf(family, sizeof family, "%s:", known);
    if (config->max_T != 1024)
        snprintf(context, sizeof context, ",T=%lld", (long long)config->max_T);
    if (config->V != GPT2_VOCAB)
        snprintf(vocabulary, sizeof vocabulary, ",V=%lld", (long long)config->V);

    snprintf(size, sizeof size, "L=%d,C=%d", depth, HEAD * depth);
    if (depth == 6 || depth == 12) snprintf(size, sizeof size, "d%d", depth);
    snprintf(name, MODEL_DESCRIPTOR, "%s%s%s%s", family, size, vocabulary, context);
    return known && model_config_parse(&named, name, &none) && model_same_block(&named, config);
}

// Plans the model of the request on its GPU.
static void plan_size(SizePlan *size, const PlanRequest *r, const GpuChoice *gpu, double ratio,
                      bool *is_predicted) {
    static DevicePlan plan;
    PlanRequest run = *r;
    const ModelOptions *m = &r->model;
    char set[SET_TEXT];
    const double of_model = ceil(ratio * recipe_parameters(&m->config));
    const bool has_length = r->tokens > 0 || r->max_steps > 0;
    if (!has_length) run.tokens = of_model;
    if (r->step_windows == 0) {
        double tokens = of_model;
        if (run.tokens > 0) tokens = run.tokens;
        run.step_windows =
            recipe_step_windows(recipe_batch(&m->config, m->optimizer, tokens, ratio), m->T,
                                max_i64(m->groups, 1), m->B);
        run.divides = true;
    }
    plan_device(&plan, &run, gpu);
    double seconds = plan.predicted.likely;
    *is_predicted = seconds > 0;
    if (seconds == 0) seconds = plan.step_seconds / SHARE_OF_LIMIT;
    size->parameters = (double)parameter_total(&m->config);
    size->tokens = plan.tokens;
    size->step_tokens = plan.step_tokens;
    size->seconds = 0;
    if (plan.fits) size->seconds = plan.steps * seconds;
    snprintf(size->chosen, TEXT, "-b %lld -r %.40s", (long long)plan.model.B,
             recompute_text(&plan.model.recompute, m->config.L, set, sizeof set));
}

bool plan_largest(FILE *out, const PlanRequest *request, double hours, double ratio,
                  char name[MODEL_DESCRIPTOR], double *tokens, Error *err) {
    static SizePlan sizes[SIZES];
    GpuChoice gpu[MOST_GPUS];
    PlanRequest r = *request;
    int gpus, count = 0, pick = -1;
    bool is_predicted = false;
    if (!gpu_find_all(gpu, &gpus, request->gpus, err)) return false;
    if (gpu->spec.bandwidth == 0)
        return error_set(err, "--hours: only the memory of --gpu %s is known; name a GPU",
                         request->gpus);
    if (ratio == 0) ratio = recipe_ratio(r.model.optimizer);
    while (count < SIZES && count <= pick + BESIDE) {
        SizePlan *s = &sizes[count];
        if (!size_of(&r.model.config, FIRST_DEPTH + count, s->name))
            return error_set(err, "--hours: chooses L and C of a family as it is; leave out what "
                                  "-e says of its block");
        plan_size(s, &r, gpu, ratio, &is_predicted);
        if (s->seconds > 0 && s->seconds <= hours * 3600) pick = count;
        count++;
    }
    if (pick < 0) {
        char time[TEXT] = "too much memory";
        if (sizes->seconds > 0) format_duration(sizes->seconds, time, TEXT);
        return error_set(err,
                         "--hours %g: the smallest, %s, takes %s on one %s; give more hours or a "
                         "smaller --ratio",
                         hours, sizes->name, time, gpu->spec.name);
    }
    char text[TEXT];
    fprintf(out, "largest     %s: %s takes %s, the largest of this family within %g hours\n",
            gpu->spec.name, sizes[pick].name, format_duration(sizes[pick].seconds, text, TEXT),
            hours);
    const char *by =
        "half the limit of the datasheet, since no rates are assumed for this GPU and kind of run";
    if (is_predicted) by = "by the rates that each kind of op is assumed to reach on this GPU";
    fprintf(out, "largest     time: %s\n", by);
    fprintf(out,
            "largest     %-22s parameters   tokens    a step  chosen            tokens/s  time\n",
            "model");
    for (int i = (int)max_i64(0, pick - BESIDE); i < count; i++) {
        const SizePlan *s = &sizes[i];
        char n[TEXT], trained[TEXT], rate[TEXT], time[TEXT];
        const char *mark = i == pick ? "=>" : "  ";
        fprintf(out, "largest  %s %-22s %10s  %7s  %8.0f", mark, s->name,
                format_count(s->parameters, n, TEXT), format_count(s->tokens, trained, TEXT),
                s->step_tokens);
        if (s->seconds > 0)
            fprintf(out, "  %-16s  %8s  %s\n", s->chosen,
                    format_count(s->tokens / s->seconds, rate, TEXT),
                    format_duration(s->seconds, time, TEXT));
        else
            fprintf(out, "  does not fit into the memory\n");
    }
    memcpy(name, sizes[pick].name, MODEL_DESCRIPTOR);
    *tokens = sizes[pick].tokens;
    return true;
}
