// Options that do not go together: what is refused, and what changes nothing in a run because other options turn it
// off.
#include "llmc/run/options.h"

#include "llmc/run/placement.h"

#include <stdlib.h>
#include <string.h>

static bool check_questions(const Options *o, Error *err) {
    if (o->plan && o->advise) return error_set(err, "--plan and --advise: give one of them at a time");
    return !*o->gpu || o->plan || o->advise ||
           error_set(err, "--gpu: only applies to a plan or advice; give --plan or --advise as well");
}

// Options that only make sense together.
bool options_check_together(const Options *o, Error *err) {
    if (o->total_batch > 0 && o->T > 0 && !options_check_total_batch(o->total_batch, o->T, err)) return false;
    if (!placement_check(o->numa, err)) return false;
    if (o->resume && !*o->output) return error_set(err, "-y: no run to resume; name its directory with -o DIR");
    if (options_given(o, "checkpoint-every") && o->checkpoint_every > 0 && !*o->output) {
        return error_set(err, "-n %lld: no directory for checkpoints; name one with -o DIR",
                         (long long)o->checkpoint_every);
    }
    if ((o->hellaswag || *o->choices) && o->val_every == 0 && o->max_steps != 0)
        return error_set(err, "%s: scored at every validation, but -v 0 turns it off; give -v N, or leave out %s",
                         o->hellaswag ? "-h 1" : "--choices", o->hellaswag ? "-h (-h 0)" : "--choices");
    if (!check_questions(o, err)) return false;
    if (o->tokens > 0 && options_given(o, "max-steps"))
        return error_set(err, "--tokens and -x both set the length of the run; give only one");
    if (options_given(o, "master-weights") && o->master && !optimizer_has_master(o->optimizer))
        return error_set(err, "-w 1: --optimizer %s keeps no master weights; leave out -w, or use adamw or adamw8bit",
                         optimizer_name(o->optimizer));
    if (o->reset_optimizer && !o->resume)
        return error_set(err, "--reset-optimizer: a new run already has a new optimizer; use it with -y");
    if (o->interactive && o->max_steps != 0)
        return error_set(err, "--interactive answers prompts and does not train: give -x 0 as well");
    return true;
}

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
