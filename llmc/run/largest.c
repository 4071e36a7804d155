// See largest.h.
#include "llmc/run/largest.h"

#include "llmc/base/typed_path.h"
#include "llmc/plan/plan_largest.h"

#include <string.h>

static const double FINEWEB_10B = 10e9; // tokens to train on, of data/get.py fineweb-10B-gpt2

bool largest_take(Options *o, Error *err) {
    if (!options_given(o, "model")) {
        if (!options_given(o, "optimizer")) o->optimizer = OPTIMIZER_MUON;
        options_set_string(&o->model, "qwen3:d12");
    }
    if (!model_config_is_descriptor(o->model))
        return error_set(
            err, "--hours: -e %s has a size; name a family by one of its sizes, such as qwen3:d12",
            o->model);

    if (o->optimizer == OPTIMIZER_MUON) {
        if (!options_given(o, "beta2")) o->beta2 = 0.99;
        if (!options_given(o, "schedule")) o->schedule = SCHEDULE_LINEAR;
        if (!options_given(o, "final-lr-fraction")) o->final_fraction = 0;
    }

    if (!options_given(o, "batch-size")) o->B = 0;
    if (!options_given(o, "recompute")) options_set_string(&o->recompute, "auto");
    if (!options_given(o, "total-batch")) o->total_batch = -1;
    if (!options_given(o, "weight-decay")) o->weight_decay = -1;
    if (o->ratio == 0 && !options_given(o, "max-steps") && !options_given(o, "tokens"))
        o->tokens = -1;
    return true;
}

bool largest_print(Options *o, const PlanRequest *request, Error *err) {
    char model[MODEL_DESCRIPTOR];
    double tokens;
    if (!plan_largest(stdout, request, o->hours, o->ratio, model, &tokens, err)) return false;
    options_set_string(&o->model, model);

    const char *shards = "data/fineweb-10B-gpt2/*train_*.bin";
    if (tokens > FINEWEB_10B) shards = "data/fineweb-100B-gpt2/*train_*.bin";
    if (!options_given(o, "train-data") && request->model.config.V == GPT2_VOCAB)
        options_set_string(&o->train_data, shards);
    if (!options_given(o, "reduce-groups")) o->reduce_groups = 0;
    if (!*o->output) options_set_string(&o->output, "runs/largest");

    // The command as it is typed: the options that differ from their defaults.
    printf("largest     ./train_gpt2cu");

    for (const OptionRow *row = option_table; row->long_name; row++) {
        char buf[OPTION_VALUE], key[64];
        const char *value = option_typed_value(row, o, buf), *dashes = "--", *name = row->long_name;

        snprintf(key, sizeof key, " %s ", row->long_name);
        bool is_default = strcmp(value, row->fallback) == 0;
        if (row->type < OPTION_STRING && strcmp(value, "auto") != 0 &&
            strcmp(row->fallback, "auto") != 0)
            is_default = strtod(value, NULL) == strtod(row->fallback, NULL);
        if (is_default || strstr(" plan gpu hours ", key)) continue;

        if (row->short_name) {
            dashes = "-";
            name = row->short_name;
        }
        printf(" %s%s %s", dashes, name, path_quoted(value).text);
    }

    printf("\n");
    return true;
}
