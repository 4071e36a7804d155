// Which options of the command line change nothing in a run, because others turn off what they are about: see
// options_without_effect in options.h. What would be wrong to do silently is refused by options_parse instead.
#include "llmc/run/options.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_NAMES = 24 };

typedef struct {
    const char *reason; // in parentheses
    bool holds;
    const char *names[MAX_NAMES]; // long ones
} Inactive;

// Appends "-m (-v 0), " for the options of the command line that have no effect for this reason.
static void print_inactive(FILE *f, const Options *o, const Inactive *inactive, bool *any) {
    for (const char *const *name = inactive->names; inactive->holds && *name; name++) {
        const OptionRow *row = option_find(*name, strlen(*name));
        if (!options_given(o, *name)) continue;
        fprintf(f, "%s%s%s (%s)", *any ? ", " : "", row->short_name ? "-" : "--",
                row->short_name ? row->short_name : row->long_name, inactive->reason);
        *any = true;
    }
}

char *options_without_effect(const Options *o, bool on_gpu) {
    const bool trains = o->max_steps != 0;
    const OptimizerKind kind = o->optimizer;
    const Inactive table[] = {
        {"-x 0 does not train",
         !trains,
         {"learning-rate",
          "warmup",
          "final-lr-fraction",
          "schedule",
          "weight-decay",
          "beta1",
          "beta2",
          "eps",
          "momentum",
          "grad-clip",
          "loss-outlier",
          "norm-outlier",
          "optimizer",
          "total-batch",
          "max-minutes",
          "overfit",
          "recompute",
          "grad-dtype",
          "checkpoint-every",
          "keep",
          "major-every",
          "numerics-every",
          "reset-optimizer"}},
        {"-v 0", o->val_every == 0, {"val-data", "val-sequences"}},
        {"--interactive", o->interactive != 0, {"val-data", "val-sequences", "val-every", "prompt", "samples"}},
        {"-s 0",
         o->sample_every == 0 && !o->interactive,
         {"sample-tokens", "temperature", "top-k", "top-p", "samples", "prompt"}},
        {"--temperature 0", o->temperature <= 0 && o->sample_every > 0, {"top-k", "top-p"}},
        {"no -h 1 and no --choices", !o->hellaswag && !*o->choices, {"choice-examples"}},
        {"--choices names other files", *o->choices != '\0', {"hellaswag"}},
        {"no -o", !*o->output && trains, {"keep", "major-every", "tensorboard"}},
        {"-n 0", o->checkpoint_every == 0 && trains, {"major-every"}},
        {"no --export", !*o->export_path, {"export-dtype"}},
        {"-k constant", o->schedule == SCHEDULE_CONSTANT && trains, {"final-lr-fraction"}},
        {"--optimizer is neither sgd nor muon",
         kind != OPTIMIZER_SGD && kind != OPTIMIZER_MUON && trains,
         {"momentum"}},
        {"--optimizer sgd", kind == OPTIMIZER_SGD && trains, {"beta1", "beta2", "eps"}},
        {"only on a GPU", !on_gpu, {"tf32", "attention", "gelu-fusion", "early-launch", "overlap", "log-gpu-every"}},
        {"only on a CPU", on_gpu, {"cpu"}},
        {"no --plan", !o->plan, {"link"}},
        {"no -pn", !options_given(o, "num-processes"), {"process-rank"}},
    };
    char *list = NULL;
    size_t bytes = 0;
    bool any = false;
    FILE *f = text_open(&list, &bytes);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) print_inactive(f, o, &table[i], &any);
    fclose(f);
    if (any) return list;
    free(list);
    return NULL;
}
