// The rules between options: rates of the groups, and two tables, of what is refused and of what
// has no effect.
#include "llmc/run/options_together.h"

#include "llmc/base/format.h"

#include <stdlib.h>
#include <string.h>

double options_learning_rate(const Options *o) {
    if (o->lr >= 0) return o->lr;
    return optimizer_default_learning_rate(o->optimizer);
}

bool options_rates(const Options *o, GroupRates rates[NUM_GROUPS], Error *err) {
    double lr_head = o->lr_head;
    if (lr_head < 0) lr_head = o->lr_embedding;
    const struct {
        const char *option;
        double learning_rate;
    } own[NUM_GROUPS] = {
        [GROUP_EMBEDDING] = {"--lr-embedding", o->lr_embedding},
        [GROUP_HEAD] = {"--lr-head", lr_head},
        [GROUP_MATRIX] = {NULL, -1},
        [GROUP_VECTOR] = {"--lr-vectors", o->lr_vectors},
    };

    const double learning_rate = options_learning_rate(o);
    optimizer_default_rates(o->optimizer, o->weight_decay, rates);
    for (int i = 0; i < NUM_GROUPS; i++) {
        GroupRates *r = &rates[i];
        if (own[i].learning_rate >= 0) {
            if (own[i].learning_rate == 0 || learning_rate == 0)
                return error_set(err, "%s: it and -l must be above 0; leave it out", own[i].option);
            r->rate = own[i].learning_rate / learning_rate;
        }
        if (o->beta1 >= 0) r->beta1 = o->beta1;
        if (o->beta2 >= 0) r->beta2 = o->beta2;
        if (o->eps >= 0) r->eps = o->eps;
    }

    if (!optimizer_parse_rates(rates, o->by_group, err)) return error_prefix(err, "--by-group");
    return true;
}

bool options_check_together(const Options *o, Error *err) {
    const bool trains = o->max_steps != 0, largest = o->hours > 0;
    const bool scores = options_given(o, "choices") && *o->choices && strcmp(o->choices, "0") != 0;
    const bool in_tokens =
        options_given(o, "tokens") && o->tokens > 0 && !options_chosen(o, "tokens"); // else auto
    const bool in_steps = options_given(o, "max-steps");
    const bool saves = options_given(o, "checkpoint-every") && o->checkpoint_every > 0;
    const bool wants_master = options_given(o, "master-weights") && o->master;

    const struct {
        bool is_wrong;
        const char *message;
    } rules[] = {
        {o->resume && !*o->output, "-y: no run to resume; name its directory with -o DIR"},
        {saves && !*o->output, "-n: no directory for checkpoints; name one with -o DIR"},
        {scores && trains && o->val_every == 0,
         "-h: scored at every validation, but -v 0 turns it off; give -v N, or leave out -h"},
        {o->eps == 0, "--eps 0: must be above 0; 1e-8 is usual"},
        {*o->gpu && !o->plan, "--gpu: only applies to a plan; give --plan as well"},
        {in_tokens && in_steps, "--tokens and -x both set the length of the run; give only one"},
        {options_given(o, "ratio") && o->ratio > 0 && (in_tokens || in_steps),
         "--ratio: -x or --tokens N sets the length of the run already; leave one out"},
        {largest && o->plan != PLAN_TEXT,
         "--hours: only applies to --plan, as text; give --plan text as well"},
        {largest && (!*o->gpu || strchr(o->gpu, ',')),
         "--hours: name the one GPU, such as --gpu rtx4090"},
        {largest && !trains, "--hours: -x 0 trains nothing; leave it out"},
        {largest && options_given(o, "d-ff"),
         "--hours: chooses the size, and with it d_ff; leave out --d-ff"},
        {wants_master && !optimizer_has_master(o->optimizer),
         "-w 1: this --optimizer keeps no master weights; leave out -w, or use adamw or adamw8bit"},
        {o->interactive && trains,
         "--interactive answers prompts and does not train: give -x 0 as well"},
    };

    // A resume says first that -t is the run's (run_setup.c).
    if (o->total_batch > 0 && o->T > 0 && !o->resume &&
        !options_check_total_batch(o->total_batch, o->T, err))
        return false;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].is_wrong) return error_set(err, "%s", rules[i].message);

    GroupRates unused[NUM_GROUPS];
    return options_rates(o, unused, err);
}

// The options of settings that no group of this optimizer reads, with blanks between them.
static void list_unread(OptimizerKind kind, char *names, size_t size) {
    static const char *const options[SETTING_COUNT] = {"beta1", "beta2", "eps", "weight-decay",
                                                       "momentum"};
    *names = '\0';
    for (int setting = 0; setting < SETTING_COUNT; setting++) {
        bool is_read = false;
        for (int group = 0; group < NUM_GROUPS; group++)
            is_read |= optimizer_reads(kind, (ParameterGroup)group, (Setting)setting);
        const size_t used = strlen(names);
        if (!is_read)
            snprintf(names + used, size - used, "%s%s", used ? " " : "", options[setting]);
    }
}

// Parts of --by-group that the optimizer does not read for their group, ", --by-group vectors.eps=1
// (REASON)" each.
static bool list_unread_parts(const Options *o, FILE *f, bool any) {
    const char *at = o->by_group;
    RatePart part;
    while (o->max_steps != 0 && optimizer_next_rate(&at, &part)) {
        if (optimizer_reads(o->optimizer, part.group, part.setting)) continue;
        fprintf(f, "%s--by-group %.*s (--optimizer %s has no use for it there)", any ? ", " : "",
                part.length, part.text, optimizer_name(o->optimizer));
        any = true;
    }
    return any;
}

// Lists those of the named options that were given, "-x (REASON)" each.
static bool list_given(const Options *o, FILE *f, const char *names, const char *reason, bool any) {
    for (size_t n; *names; names += n + (names[n] == ' ')) {
        n = strcspn(names, " ");
        const OptionRow *row = option_find(names, n);
        REQUIRE(row, "there is no option %s", names);
        if (!options_given(o, row->long_name)) continue;

        if (any) fputs(", ", f);
        any = true;
        if (row->short_name)
            fprintf(f, "-%s (%s)", row->short_name, reason);
        else
            fprintf(f, "--%s (%s)", row->long_name, reason);
    }
    return any;
}

char *options_repeated(const Options *o) {
    char *list = NULL;
    size_t bytes = 0;
    FILE *f = text_open(&list, &bytes);
    fputs(o->repeated ? o->repeated : "", f);
    bool any = o->repeated != NULL;

    const char *at = o->by_group;
    for (RatePart part, later; optimizer_next_rate(&at, &part);) {
        const char *rest = at;
        while (optimizer_next_rate(&rest, &later)) {
            if (later.group != part.group || later.setting != part.setting) continue;
            fprintf(f, "%s--by-group %.*s, then %.*s", any ? "; " : "", part.length, part.text,
                    later.length, later.text);
            any = true;
            break;
        }
    }

    fclose(f);
    if (any) return list;
    free(list);
    return NULL;
}

char *options_without_effect(const Options *o, bool on_gpu) {
    const bool trains = o->max_steps != 0, samples = o->sample_every > 0, profiles = o->profile > 0;
    char unread[64], of_optimizer[64];
    list_unread(o->optimizer, unread, sizeof unread);
    snprintf(of_optimizer, sizeof of_optimizer, "--optimizer %s has no use for it",
             optimizer_name(o->optimizer));

    const struct {
        const char *reason; // in parentheses
        bool holds;
        const char *names; // long ones, with blanks between them
    } table[] = {
        {"-x 0 does not train", !trains,
         "learning-rate lr-embedding lr-head lr-vectors warmup final-lr-fraction schedule "
         "weight-decay beta1 beta2 eps "
         "by-group momentum grad-clip loss-outlier norm-outlier optimizer total-batch max-minutes "
         "overfit recompute grad-dtype master-weights offload tokens ratio checkpoint-every keep "
         "major-every "
         "numerics-every"},
        {"-v 0", o->val_every == 0, "val-data val-sequences"},
        {"--interactive", o->interactive != 0, "val-data val-sequences val-every prompt samples"},
        {"-s 0", !samples && !o->interactive,
         "sample-tokens temperature top-k top-p samples prompt"},
        {"--temperature 0", o->temperature <= 0 && samples, "top-k top-p"},
        {"no -o", !*o->output && trains, "keep major-every"},
        {"-n 0", o->checkpoint_every == 0 && trains, "major-every"},
        {"-k constant", o->schedule == SCHEDULE_CONSTANT && trains, "final-lr-fraction"},
        {of_optimizer, trains, unread},
        {"--profile", profiles,
         "val-data val-sequences val-every sample-every sample-tokens temperature top-k top-p "
         "samples prompt choices "
         "checkpoint-every keep major-every max-minutes"},
        {"--dtype fp32", o->dtype == DTYPE_FP32 && trains, "master-weights grad-dtype"},
        {"only on a GPU", !on_gpu, "tf32 attention gelu-fusion log-gpu-every"},
        {"no -pn", !options_given(o, "num-processes"),
         "process-rank gpus-per-node init-method server-ip"},
    };

    char *list = NULL;
    size_t bytes = 0;
    bool any = false;
    FILE *f = text_open(&list, &bytes);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (table[i].holds) any = list_given(o, f, table[i].names, table[i].reason, any);
    any = list_unread_parts(o, f, any);
    fclose(f);
    if (any) return list;
    free(list);
    return NULL;
}
