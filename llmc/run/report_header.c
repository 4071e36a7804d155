// See report_header.h.
#include "llmc/run/report_header.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/format.h"
#include "llmc/base/json.h"
#include "llmc/base/typed_path.h"
#include "llmc/comm/comm.h"
#include "llmc/model/recompute.h"
#include "llmc/plan/plan_json.h"
#include "llmc/run/options_together.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT = 64 };

static void machine_lines(const ReportFacts *r) {
    const DeviceFacts *device = device_facts();
    const int groups = model_options(r->model)->groups;
    char limits[256] = "not measured now", memory[TEXT];
    const char *name = "placement";
    const bool on_cpu = strcmp(device->backend, "cpu") == 0;
    DeviceSensors sensors;

    runlog_field(r->log, "machine", "%s: %s, %s free | %s", device->backend, device->name,
                 format_bytes((double)device->memory_free, memory, TEXT), device->libraries);
    if (comm_size() > 1)
        runlog_field(
            r->log, "processes",
            "%d on %d machine%s (%s), connected by %s; machine and limits are of process 0",
            comm_size(), comm_hosts(), format_plural(comm_hosts()), comm_launcher(),
            device_comm_library());
    for (const char *text = r->setup->placement.text; *text; name = "") {
        const size_t length = strcspn(text, "\n");
        runlog_field(r->log, name, "%.*s", (int)length, text);
        text += length + (text[length] == '\n');
    }

    if (groups > 1)
        runlog_field(r->log, "groups",
                     "a step is the sum of %d, in a fixed order: the same bits for any number of "
                     "processes%s",
                     groups, on_cpu ? " with as many threads each" : "");
    if (*device->attention) runlog_field(r->log, "", "attention: %s", device->attention);
    if (r->setup->options.log_gpu_every > 0 && !device_sensors(&sensors))
        runlog_field(r->log, "", "-lg: this device has no sensors");

    if (r->speed.matmul_flops > 0)
        snprintf(limits, sizeof limits,
                 "measured now, in a burst: matmul %.4g TFLOP/s in %s, copy %.4g GB/s",
                 r->speed.matmul_flops / 1e12, dtype_name(r->setup->dtype),
                 r->speed.copy_bandwidth / 1e9);
    if (r->datasheet > 0)
        snprintf(limits + strlen(limits), sizeof limits - strlen(limits),
                 " | datasheet: %.4g TFLOP/s, %.4g GB/s", r->datasheet / 1e12,
                 device->peak_bandwidth / 1e9);
    runlog_field(r->log, "limits", "%s", limits);
}

static void model_lines(const ReportFacts *r) {
    const ModelOptions *m = model_options(r->model);
    const ModelConfig *c = &m->config;
    const float loss_scale = r->setup->state.control.loss_scale;
    char shape[MODEL_TEXT], n[TEXT];

    runlog_field(r->log, "model", "%s", r->setup->source);
    runlog_field(r->log, "", "%s (padded to %lld): %s parameters",
                 model_config_text(c, c->max_T, shape, sizeof shape), (long long)c->Vp,
                 format_count((double)parameter_total(c), n, TEXT));
    if (!model_class(c))
        runlog_field(r->log, "",
                     "no class of transformers loads these blocks: its checkpoints are for this "
                     "program only");
    else if (model_class_refuses(c))
        runlog_field(r->log, "",
                     "%s of transformers refuses C = %lld that is no multiple of NH = %lld: "
                     "checkpoints are for this "
                     "program and llama.cpp",
                     model_class(c), (long long)c->C, (long long)c->NH);
    else if (!model_is_gpt2(c))
        runlog_field(r->log, "", "checkpoints load as %s", model_class(c));

    const Options *o = &r->setup->options;
    if (r->setup->extras.left_out && (*o->output || *o->export))
        runlog_field(r->log, "left out", "of its directory, in no checkpoint and no export: %s",
                     r->setup->extras.left_out);

    const char *stored = "weights and activations, fp32 accumulation and gradients";
    const char *weights = "no master weights (stochastic rounding)";
    if (m->gradients_in_dtype)
        stored = "weights, activations and gradients (stochastic rounding), fp32 accumulation";
    if (m->optimizer == OPTIMIZER_ADAMW_KAHAN) weights = "no master weights (Kahan summation)";
    if (m->master) weights = "fp32 master weights";
    if (m->dtype != DTYPE_FP32)
        runlog_field(r->log, "precision", "%s %s, %s", dtype_name(m->dtype), stored, weights);
    else if (device_facts()->widens_bf16)
        runlog_field(
            r->log, "precision",
            "fp32: there are no instructions for bf16 here, which would save memory (--plan "
            "tells how much), not time");
    else
        runlog_field(r->log, "precision", "fp32");
    if (m->fp8) runlog_field(r->log, "", "matmuls of the blocks in fp8: e4m3, gradients e5m2");
    if (m->train && loss_scale != 1.0f)
        runlog_field(r->log, "",
                     "loss scale %g, halved by a step that overflows, doubled after %d that do not",
                     (double)loss_scale, optimizer_scale_growth_interval(m->dtype));
}

static void memory_lines(const ReportFacts *r) {
    const ModelOptions *m = model_options(r->model);
    const MemoryPlan *plan = model_memory(r->model);
    const Recompute none = {{0}};
    char *classes = NULL, bytes[TEXT], text[RECOMPUTE_TEXT];
    size_t length = 0;

    FILE *f = text_open(&classes, &length);
    for (MemoryClass c = 0; c < MEM_CLASS_COUNT; c++) {
        const int64_t n = memory_plan_class_bytes(plan, c);
        if (n > 0)
            fprintf(f, "%s %s, ", memory_class_name(c), format_bytes((double)n, bytes, TEXT));
    }
    fclose(f);
    runlog_field(r->log, "memory", "%stotal planned %s", classes,
                 format_bytes((double)memory_plan_total(plan), bytes, TEXT));
    free(classes);

    const int64_t host = model_host_bytes(m);
    if (host > 0)
        runlog_field(r->log, "", "%s of the optimizer in host memory",
                     format_bytes((double)host, bytes, TEXT));
    // hfu - mfu of this run is what the repetition costs.
    if (m->train && memcmp(&m->recompute, &none, sizeof none) != 0)
        runlog_field(r->log, "recompute", "-r %s: %.3g%% more FLOPs",
                     recompute_text(&m->recompute, m->config.L, text, sizeof text),
                     100 * recompute_flops_per_token(&m->recompute, &m->config, r->setup->T) /
                         flops_per_token_hardware(&m->config, r->setup->T, &none));
}

static void data_lines(const ReportFacts *r) {
    const RunSetup *s = r->setup;
    const Sources *train = NULL, *val = NULL; // NULL: this run does not use them
    if (s->data.has_train) train = &s->data.train;
    if (s->data.has_val) val = &s->data.val;
    const int64_t left = max_i64(s->total_steps - s->first_step, 0) * s->step_windows;
    int64_t drawn[MIXTURE_MAX];
    char n[TEXT], seen[TEXT];
    const Mixture *m = &s->data.train.mixture;

    if (train && m->count == 1) {
        runlog_field(r->log, "data", "%s tokens in %d shard%s; %lld steps read %.2f epochs",
                     format_count((double)train->num_tokens, n, TEXT), train->num_shards,
                     format_plural(train->num_shards), (long long)s->total_steps,
                     (double)(s->total_steps * s->step_windows) / (double)train->num_windows);
    } else if (train) {
        mixture_count(m, s->state.position + left, drawn);
        runlog_field(r->log, "data", "%d corpora, %s tokens in %d shards; %lld step%s read",
                     m->count, format_count((double)train->num_tokens, n, TEXT), train->num_shards,
                     (long long)s->total_steps, format_plural(s->total_steps));
    }
    for (int i = 0; train && m->count > 1 && i < m->count;
         i++) { // what the run will have read of each at its end
        const ShardSet *set = &train->sets[i];
        runlog_field(r->log, "", "%s: share %.4g%%, %s tokens of %s in %d shard%s, %.2f epochs",
                     m->names[i], 100 * mixture_share(m, i),
                     format_count((double)(drawn[i] * s->T), seen, TEXT),
                     format_count((double)set->num_tokens, n, TEXT), set->count,
                     format_plural(set->count), (double)drawn[i] / (double)set->num_windows);
    }

    if (val)
        runlog_field(r->log, "validation", "%s tokens in %d shard%s: %s%s",
                     format_count((double)val->num_tokens, n, TEXT), val->num_shards,
                     format_plural(val->num_shards), path_quoted(s->data.val_pattern).text,
                     s->data.val_is_train ? ", the text that is trained on" : "");
    else
        runlog_field(r->log, "validation", "off: %s", s->data.no_validation);

    if (train && val && train->vocab > 0 && train->vocab < model_options(r->model)->config.V)
        runlog_field(r->log, "", "note: the shards use %lld of the model's %lld tokens",
                     (long long)train->vocab, (long long)model_options(r->model)->config.V);
}

// A schedule that does less than its options say.
static void schedule_warning(const ReportFacts *r) {
    const Schedule *s = &r->setup->schedule;
    const double last = schedule_lr(s, s->total - 1);
    if (!schedule_reaches_end(s))
        runlog_field(r->log, "",
                     "the schedule never reaches its end: step %lld, the last, is in the warm-up "
                     "of %lld steps, at a "
                     "learning rate of %.3g; a -u below %lld, or a larger -x, ends it",
                     (long long)s->total, (long long)s->warmup, last, (long long)s->total);
    else if (!schedule_reaches_peak(s))
        runlog_field(r->log, "",
                     "the schedule never reaches its peak: its only step has the rate of the last, "
                     "%.3g%s; -k constant "
                     "has the peak",
                     last, last == 0 ? ", and changes no weight" : "");
}

// Logs the settings of a group that differ from the matrices'; vectors usually have no weight
// decay.
static void group_lines(const ReportFacts *r) {
    const RunSetup *s = r->setup;
    const OptimizerKind kind = model_options(r->model)->optimizer;
    const GroupRates *usual = &s->rates[GROUP_MATRIX];
    for (ParameterGroup i = 0; i < NUM_GROUPS; i++) {
        const GroupRates *own = &s->rates[i];
        const double decay = i == GROUP_VECTOR ? 0 : s->options.weight_decay;
        if (i == GROUP_HEAD && !s->config.untied) continue;

        const struct {
            const char *name;
            int setting; // SETTING_COUNT: every rule reads it
            double own, usual;
        } facts[] = {
            {"learning rate", SETTING_COUNT, own->rate * s->schedule.max_lr,
             usual->rate * s->schedule.max_lr},
            {"beta1", SETTING_BETA1, own->beta1, usual->beta1},
            {"beta2", SETTING_BETA2, own->beta2, usual->beta2},
            {"eps", SETTING_EPS, own->eps, usual->eps},
            {"weight decay", SETTING_DECAY, own->weight_decay, decay},
        };

        char *text = NULL;
        size_t bytes = 0;
        FILE *f = text_open(&text, &bytes);
        const char *before = parameter_group_name(i);
        for (size_t k = 0; k < sizeof facts / sizeof *facts; k++) {
            if (facts[k].own == facts[k].usual) continue;
            if (facts[k].setting < SETTING_COUNT &&
                !optimizer_reads(kind, i, (Setting)facts[k].setting))
                continue;
            fprintf(f, "%s %s %.3g", before, facts[k].name, facts[k].own);
            before = ",";
        }
        fclose(f);
        if (*text) runlog_field(r->log, "", "%s", text);
        free(text);
    }
}

static void schedule_lines(const ReportFacts *r) {
    const RunSetup *s = r->setup;
    const ModelOptions *m = model_options(r->model);
    char line[RECIPE_TEXT];
    const char *name = "recipe";
    if (!m->train) return;

    runlog_field(r->log, "batch", "%lld tokens a step: %lld windows of %lld, %lld at a time",
                 (long long)(s->step_windows * s->T), (long long)s->step_windows, (long long)s->T,
                 (long long)m->B);
    runlog_field(r->log, "schedule",
                 "%s: warm-up over %lld steps to %.3g, %.3g at step %lld; %s, weight decay %g",
                 schedule_name(s->schedule.kind), (long long)s->schedule.warmup, s->schedule.max_lr,
                 schedule_lr(&s->schedule, s->total_steps - 1), (long long)s->total_steps,
                 optimizer_name(m->optimizer), s->options.weight_decay);
    schedule_warning(r);
    group_lines(r);

    for (int i = 0; i < RECIPE_COUNT; i++) {
        if (s->recipe[i] == 0) continue;
        recipe_line((RecipeNumber)i, s->recipe[i], &m->config, m->optimizer, line);
        runlog_field(r->log, name, "%s", line);
        name = "";
    }

    const char *peak = "the measured matmul rate";
    if (r->datasheet > 0) peak = "the peak of the datasheet";
    runlog_field(r->log, "mfu", "(6 N + 6 L C T) FLOP a token against %s", peak);
    if (!*s->options.output)
        runlog_field(r->log, "output", "none: nothing is saved (-o DIR saves log and checkpoints)");
    else if (s->first_step > 0)
        runlog_field(r->log, "output", "%s, resuming after step %lld", s->options.output,
                     (long long)s->first_step);
    else
        runlog_field(r->log, "output", "%s", s->options.output);
}

// Adds the shards, and for a mixture also the facts by which data/whereis finds the draws again.
static void add_shards(cJSON *run, const char *key, const Sources *all) {
    const Mixture *m = &all->mixture;
    cJSON *facts = cJSON_AddObjectToObject(run, key);
    JSON_ADD(facts, JSON_NUMBER("tokens", all->num_tokens),
             JSON_NUMBER("windows", all->num_windows), JSON_NUMBER("shards", all->num_shards));
    if (m->count == 1 && m->drawn[0] == m->start) return;
    JSON_ADD(facts, JSON_NUMBER("start", m->start));

    cJSON *sources = cJSON_AddArrayToObject(facts, "sources");
    for (int i = 0; i < m->count; i++) {
        cJSON *source = cJSON_CreateObject();
        cJSON_AddItemToObject(source, "name", json_text(m->names[i]));
        JSON_ADD(source, JSON_NUMBER("share", mixture_share(m, i)),
                 JSON_NUMBER("weight", m->weights[i]), JSON_NUMBER("drawn", m->drawn[i]),
                 JSON_NUMBER("tokens", all->sets[i].num_tokens),
                 JSON_NUMBER("windows", all->sets[i].num_windows),
                 JSON_NUMBER("shards", all->sets[i].count));
        cJSON_AddItemToArray(sources, source);
    }
}

static void run_event(const ReportFacts *r) {
    const ModelConfig *c = &model_options(r->model)->config;
    const DeviceFacts *device = device_facts();
    const MemoryPlan *plan = model_memory(r->model);
    cJSON *run = cJSON_CreateObject();
    const char *mfu_base = r->datasheet > 0 ? "datasheet" : "measured";
    char *options = options_to_json(&r->setup->options, true);
    cJSON_AddItemToObject(run, "options", cJSON_Parse(options));
    free(options);

    cJSON *model = cJSON_AddObjectToObject(run, "model");
    plan_json_shape(model, c);
    JSON_ADD(model, JSON_NUMBER("T", r->setup->T), JSON_NUMBER("B", model_options(r->model)->B),
             JSON_NUMBER("parameters", parameter_total(c)),
             JSON_TEXT("dtype", dtype_name(model_options(r->model)->dtype)),
             JSON_TEXT("source", r->setup->source));

    cJSON *groups = cJSON_AddObjectToObject(run, "groups");
    for (int i = 0; i < NUM_GROUPS && model_options(r->model)->train; i++) {
        const GroupRates *of = &r->setup->rates[i];
        JSON_ADD(cJSON_AddObjectToObject(groups, parameter_group_name((ParameterGroup)i)),
                 JSON_NUMBER("learning_rate", of->rate * r->setup->schedule.max_lr),
                 JSON_NUMBER("beta1", of->beta1), JSON_NUMBER("beta2", of->beta2),
                 JSON_NUMBER("eps", of->eps), JSON_NUMBER("decay", of->weight_decay));
    }

    cJSON *memory = cJSON_AddObjectToObject(run, "memory_planned");
    for (MemoryClass i = 0; i < MEM_CLASS_COUNT; i++)
        JSON_ADD(memory, JSON_NUMBER(memory_class_name(i), memory_plan_class_bytes(plan, i)));
    JSON_ADD(memory, JSON_NUMBER("total", memory_plan_total(plan)));

    JSON_ADD(cJSON_AddObjectToObject(run, "device"), JSON_TEXT("backend", device->backend),
             JSON_TEXT("name", device->name), JSON_TEXT("libraries", device->libraries),
             JSON_TEXT("attention", device->attention),
             JSON_TEXT("placement", r->setup->placement.text),
             JSON_NUMBER("peak_bandwidth", device->peak_bandwidth),
             JSON_NUMBER("matmul_flops", r->speed.matmul_flops),
             JSON_NUMBER("copy_bandwidth", r->speed.copy_bandwidth),
             JSON_NUMBER("peak_flops", r->peak_flops), JSON_TEXT("mfu_base", mfu_base));

    if (r->setup->data.has_train) add_shards(run, "train", &r->setup->data.train);
    if (r->setup->data.has_val) add_shards(run, "val", &r->setup->data.val);
    JSON_ADD(run, JSON_NUMBER("processes", comm_size()),
             JSON_NUMBER("start_step", r->setup->first_step),
             JSON_NUMBER("total_steps", r->setup->total_steps),
             JSON_NUMBER("tokens_per_step", r->setup->step_windows * r->setup->T),
             JSON_NUMBER("flops_per_token", flops_per_token_llmc(c, r->setup->T)),
             JSON_NUMBER("flops_per_token_exact", flops_per_token_exact(c, r->setup->T)));

    char *text = cJSON_PrintUnformatted(run); // without its braces
    if (text) runlog_event(r->log, "run", "%.*s", (int)strlen(text) - 2, text + 1);
    free(text);
    cJSON_Delete(run);
}

// A longer run, or another -l, lifts the learning rate again: after a decay that undoes a part of
// what was learned.
static void rise_lines(const ReportFacts *r) {
    const RunSetup *s = r->setup;
    const double last = s->state.learning_rate, next = schedule_lr(&s->schedule, s->first_step);
    // by this schedule, which rises in its warm-up
    const double then = schedule_lr(&s->schedule, s->first_step - 1);
    const double least = last * 1.001; // a longer run moves each step a little
    if (s->options.max_steps == 0 || s->first_step >= s->total_steps || isinf(last)) return;
    if (next <= least || then <= least) return;

    const struct {
        const char *option;
        double rate;
    } rates[] = {{"-l", s->schedule.max_lr},
                 {"--lr-embedding", s->options.lr_embedding},
                 {"--lr-head", s->options.lr_head},
                 {"--lr-vectors", s->options.lr_vectors}};

    char *advice = NULL;
    size_t bytes = 0;
    FILE *f = text_open(&advice, &bytes);
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++)
        if (last > 0 && rates[i].rate > 0)
            fprintf(f, "%s %.3g ", rates[i].option, rates[i].rate * last / next);
    if (last > 0)
        fprintf(f, "continues at the old rate");
    else
        fprintf(f, "a smaller -l rises less, and a run by -k constant or wsd that has not decayed "
                   "can be continued");
    fclose(f);

    runlog_field(r->log, "rate",
                 "the learning rate rises at this resume: %.3g at step %lld, %.3g at step %lld; %s",
                 last, (long long)s->first_step, next, (long long)s->first_step + 1, advice);
    free(advice);
}

void report_differences(const ReportFacts *r) {
    const RunSetup *s = r->setup;
    if (s->options.resume == RESUME_WEIGHTS && s->options.max_steps != 0)
        runlog_field(r->log, "optimizer", "-y weights: %s starts with a new state after step %lld",
                     optimizer_name(s->options.optimizer), (long long)s->state.step);

    char *changed = options_diff_json(&s->options, s->state.options_json), *rest = changed;
    const char *mixture = s->data.changes ? s->data.changes : "";
    if (changed || *mixture) runlog_text(r->log, "changed since the checkpoint:");
    for (const char *line; (line = strsep(&rest, "\n")) != NULL;)
        if (*line) runlog_text(r->log, "%s", line);
    for (size_t n; *mixture; mixture += n + 1) {
        n = strcspn(mixture, "\n");
        runlog_text(r->log, "%.*s", (int)n, mixture);
    }

    free(changed);
    rise_lines(r);
}

void report_header(const ReportFacts *facts) {
    machine_lines(facts);
    model_lines(facts);
    memory_lines(facts);
    data_lines(facts);
    schedule_lines(facts);

    // Options that may not do what their user thinks.
    const Options *o = &facts->setup->options;
    char *unused = options_without_effect(o, strcmp(device_facts()->backend, "cpu") != 0);
    if (unused) runlog_field(facts->log, "options", "without effect in this run: %s", unused);
    char *repeated = options_repeated(o);
    if (repeated) runlog_field(facts->log, "options", "given twice, the last counts: %s", repeated);
    free(repeated);
    free(unused);
    run_event(facts);
}
