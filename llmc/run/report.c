// See report.h. In the order of a run: start, header, steps, evaluation and saving, summary, end.
#include "llmc/run/report.h"

#include "llmc/comm/comm.h"

#include "llmc/base/json.h"
#include "llmc/base/signals.h"
#include "llmc/base/typed_path.h"
#include "llmc/model/model_state.h"
#include "llmc/model/recompute.h"
#include "llmc/plan/plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct Report {
    const RunSetup *setup;
    const Options *options;
    const Model *gpt2;
    const ModelOptions *model;
    RunLog *log;
    RunSummary summary;
    DeviceSpeed speed;
    double started;        // launch
    double peak_flops;     // what mfu is a fraction of
    bool peak_is_measured; // no datasheet peak is known
    double datasheet;      // its peak; 0: not known
    float loss_scale;      // after the last step that was reported
    StepTime step_time;
    char attention[256]; // who computes it, as the header said
    char kept[1024];     // what was said of an old checkpoint that could not be removed
};

enum { TEXT = 64 };

static bool on_gpu(void) { return strcmp(device_facts()->backend, "cpu") != 0; }

// Says how long these tokens take at least, forward or forward and backward, if that is a second or more.
static void takes_at_least(const Report *r, const char *what, double tokens, bool train) {
    const RunSetup *s = r->setup;
    const double rate = r->speed.matmul_flops, // 0: unknown
        flops = train ? flops_per_token_hardware(&s->config, s->T, &s->recompute)
                      : flops_per_token_llmc(&s->config, s->T) / 3;
    const double seconds = tokens / comm_size() * flops / rate;
    if (rate > 0 && seconds >= 1)
        runlog_field(r->log, what, "takes at least %.3g s at the measured matmul rate", seconds);
}

// --------------------------------------------------------------------------------------------------------------- start

bool report_is_silent(const RunSetup *setup) { return setup->options.interactive && !isatty(STDOUT_FILENO); }

// Anything that takes more than a second is announced: on a GPU always, on a CPU from 1 GiB on, whose first touch takes
// that long.
void report_starting(const RunSetup *setup, int64_t bytes) {
    char memory[TEXT];
    if (report_is_silent(setup) || (!on_gpu() && bytes < 1 << 30)) return;
    printf("starting    %s: measuring its speed, then allocating %s and %s the weights\n", device_facts()->name,
           format_bytes((double)bytes, memory, TEXT),
           setup->resume_path || !model_config_is_descriptor(setup->options.model) ? "reading" : "initialising");
    fflush(stdout);
}

// -------------------------------------------------------------------------------------------------------------- header

static void machine_lines(const Report *r) {
    const DeviceFacts *device = device_facts();
    char memory[TEXT];
    format_bytes((double)device->memory_free, memory, TEXT);
    runlog_field(r->log, "machine", "%s: %s, %s free | %s", device->backend, device->name, memory, device->libraries);
    if (comm_size() > 1)
        runlog_field(r->log, "processes",
                     "%d on %d machine%s (%s), connected by %s; machine and limits are of process 0", comm_size(),
                     comm_hosts(), comm_hosts() == 1 ? "" : "s", comm_launcher(), device_comm_library());
    const char *name = "placement";
    for (const char *line = r->setup->placement.text; *line; name = "") {
        const int length = (int)strcspn(line, "\n");
        runlog_field(r->log, name, "%.*s", length, line);
        line += length + (line[length] == '\n');
    }
    if (r->model->groups > 1)
        runlog_field(r->log, "groups",
                     "a step is the sum of %d, in a fixed order: the same bits for any number of processes%s",
                     r->model->groups, on_gpu() ? "" : " with as many threads each");
    if (*device->attention) runlog_field(r->log, "", "attention: %s", device->attention);
    DeviceSensors sensors;
    if (r->options->log_gpu_every > 0 && !device_sensors(&sensors))
        runlog_field(r->log, "", "-lg: this device has no sensors");
    char datasheet[128] = "";
    if (r->datasheet > 0)
        snprintf(datasheet, sizeof datasheet, " | datasheet: %.4g TFLOP/s, %.4g GB/s", r->datasheet / 1e12,
                 device->peak_bandwidth / 1e9);
    if (r->speed.matmul_flops > 0)
        runlog_field(r->log, "limits", "measured now: matmul %.4g TFLOP/s in %s, copy %.4g GB/s%s",
                     r->speed.matmul_flops / 1e12, dtype_name(r->model->dtype), r->speed.copy_bandwidth / 1e9,
                     datasheet);
    else
        runlog_field(r->log, "limits", "not measured now%s", datasheet);
}

static void precision_line(const Report *r) {
    const ModelOptions *m = r->model;
    if (m->dtype == DTYPE_FP32 && device_facts()->widens_bf16)
        runlog_field(r->log, "precision",
                     "fp32: there are no instructions for bf16 here, which would save memory (--plan "
                     "tells how much), not time");
    else if (m->dtype == DTYPE_FP32)
        runlog_field(r->log, "precision", "fp32");
    else
        runlog_field(r->log, "precision", "%s %s, %s", dtype_name(m->dtype),
                     m->gradients_in_dtype
                         ? "weights, activations and gradients (stochastic rounding), fp32 accumulation"
                         : "weights and activations, fp32 accumulation and gradients",
                     m->master                               ? "fp32 master weights"
                     : m->optimizer == OPTIMIZER_ADAMW_KAHAN ? "no master weights (Kahan summation)"
                                                             : "no master weights (stochastic rounding)");
    if (m->fp8)
        runlog_field(r->log, "", "matmuls of the blocks in fp8: e4m3, gradients e5m2, %s scaling",
                     m->fp8_delayed ? "delayed" : "current");
}

static void model_lines(const Report *r) {
    const ModelConfig *c = &r->model->config;
    char shape[128], n[TEXT];
    runlog_field(r->log, "model", "%s", r->setup->source);
    runlog_field(r->log, "", "%s (padded to %lld): %s parameters", model_config_text(c, c->max_T, shape, sizeof shape),
                 (long long)c->Vp, format_count((double)parameter_total(c), n, TEXT));
    precision_line(r);
    if (r->model->train && r->loss_scale != 1.0f)
        runlog_field(r->log, "", "loss scale %g, halved by a step that overflows, doubled after %d that do not",
                     (double)r->loss_scale, optimizer_scale_growth_interval(r->model->dtype));
}

// hfu - mfu of this run is what the repetition costs.
static void recompute_line(const Report *r) {
    const Recompute *set = &r->model->recompute, none = {{0}};
    const ModelConfig *c = &r->model->config;
    char text[RECOMPUTE_TEXT];
    if (!r->model->train || memcmp(set, &none, sizeof none) == 0) return;
    runlog_field(r->log, "recompute", "-r %s: %.3g%% more FLOPs", recompute_text(set, c->L, text, sizeof text),
                 100 * recompute_flops_per_token(set, c, r->setup->T) /
                     flops_per_token_hardware(c, r->setup->T, &none));
}

static void memory_line(const Report *r) {
    const MemoryPlan *plan = model_memory(r->gpt2);
    char *classes = NULL, bytes[TEXT];
    size_t length = 0;
    FILE *f = text_open(&classes, &length);
    for (MemoryClass c = 0; c < MEM_CLASS_COUNT; c++) {
        const int64_t n = memory_plan_class_bytes(plan, c);
        if (n > 0) fprintf(f, "%s %s, ", memory_class_name(c), format_bytes((double)n, bytes, TEXT));
    }
    fclose(f);
    runlog_field(r->log, "memory", "%stotal planned %s", classes,
                 format_bytes((double)memory_plan_total(plan), bytes, TEXT));
    free(classes);
    const int64_t host = model_host_bytes(r->model);
    if (host > 0)
        runlog_field(r->log, "", "%s of the optimizer in host memory", format_bytes((double)host, bytes, TEXT));
    recompute_line(r);
}

// NULL: this run does not use them.
static const ShardSet *train_shards(const Report *r) { return r->setup->has_train ? &r->setup->train : NULL; }
static const ShardSet *val_shards(const Report *r) { return r->setup->has_val ? &r->setup->val : NULL; }

static void data_lines(const Report *r) {
    const ShardSet *train = train_shards(r), *val = val_shards(r);
    char n[TEXT];
    if (train) {
        double seen = (double)(r->setup->total_steps * r->setup->step_windows) / (double)train->num_windows;
        runlog_field(r->log, "data", "%s tokens in %d shard%s; %lld steps read %.2f epochs",
                     format_count((double)train->num_tokens, n, TEXT), train->count, train->count == 1 ? "" : "s",
                     (long long)r->setup->total_steps, seen);
    }
    if (val)
        runlog_field(r->log, "validation", "%s tokens in %d shard%s: %s%s",
                     format_count((double)val->num_tokens, n, TEXT), val->count, val->count == 1 ? "" : "s",
                     path_quoted(r->setup->val_pattern).text,
                     r->setup->val_is_train ? ", the text that is trained on" : "");
    else
        runlog_field(r->log, "validation", "off: %s", r->setup->no_validation);
    if (train && val && train->vocab > 0 && train->vocab < r->model->config.V)
        runlog_field(r->log, "", "note: the shards use %lld of the model's %lld tokens", (long long)train->vocab,
                     (long long)r->model->config.V);
}

static void schedule_lines(const Report *r) {
    const Schedule *s = &r->setup->schedule;
    if (!r->model->train) return;
    runlog_field(r->log, "batch", "%lld tokens a step: %lld windows of %lld, %lld at a time",
                 (long long)(r->setup->step_windows * r->setup->T), (long long)r->setup->step_windows,
                 (long long)r->setup->T, (long long)r->model->B);
    runlog_field(r->log, "schedule", "%s: warm-up over %lld steps to %.3g, %.3g at step %lld; %s, weight decay %g",
                 schedule_name(s->kind), (long long)s->warmup, s->max_lr, schedule_lr(s, r->setup->total_steps - 1),
                 (long long)r->setup->total_steps, optimizer_name(r->model->optimizer), r->options->weight_decay);
    runlog_field(r->log, "mfu", "(6 N + 6 L C T) FLOP a token against %s",
                 r->peak_is_measured ? "the measured matmul rate" : "the peak of the datasheet");
    if (!*r->options->output)
        runlog_field(r->log, "output", "none: nothing is saved (-o DIR saves log and checkpoints)");
    else if (r->setup->first_step > 0)
        runlog_field(r->log, "output", "%s, resuming after step %lld", r->options->output,
                     (long long)r->setup->first_step);
    else
        runlog_field(r->log, "output", "%s", r->options->output);
}

// Options that are not what their user may think.
static void option_lines(const Report *r) {
    char *unused = options_without_effect(r->options, on_gpu());
    if (unused) runlog_field(r->log, "options", "without effect in this run: %s", unused);
    if (r->options->repeated) runlog_field(r->log, "options", "given twice, the last counts: %s", r->options->repeated);
    free(unused);
}

static void add_shards(cJSON *run, const char *key, const ShardSet *set) {
    if (set)
        JSON_ADD(cJSON_AddObjectToObject(run, key), JSON_NUMBER("tokens", set->num_tokens),
                 JSON_NUMBER("windows", set->num_windows), JSON_NUMBER("shards", set->count));
}

static void run_event(const Report *r) {
    const ModelConfig *c = &r->model->config;
    const DeviceFacts *device = device_facts();
    const MemoryPlan *plan = model_memory(r->gpt2);
    cJSON *run = cJSON_CreateObject();
    char *options = options_to_json(r->options, true);
    cJSON_AddItemToObject(run, "options", cJSON_Parse(options));
    free(options);
    JSON_ADD(cJSON_AddObjectToObject(run, "model"), JSON_SHAPE(c), JSON_NUMBER("T", r->setup->T),
             JSON_NUMBER("B", r->model->B), JSON_NUMBER("parameters", parameter_total(c)),
             JSON_TEXT("dtype", dtype_name(r->model->dtype)), JSON_TEXT("source", r->setup->source));
    cJSON *memory = cJSON_AddObjectToObject(run, "memory_planned");
    for (MemoryClass i = 0; i < MEM_CLASS_COUNT; i++)
        JSON_ADD(memory, JSON_NUMBER(memory_class_name(i), memory_plan_class_bytes(plan, i)));
    JSON_ADD(memory, JSON_NUMBER("total", memory_plan_total(plan)));
    JSON_ADD(cJSON_AddObjectToObject(run, "device"), JSON_TEXT("backend", device->backend),
             JSON_TEXT("name", device->name), JSON_TEXT("libraries", device->libraries),
             JSON_TEXT("attention", device->attention), JSON_TEXT("placement", r->setup->placement.text),
             JSON_NUMBER("peak_bandwidth", device->peak_bandwidth), JSON_NUMBER("matmul_flops", r->speed.matmul_flops),
             JSON_NUMBER("copy_bandwidth", r->speed.copy_bandwidth), JSON_NUMBER("peak_flops", r->peak_flops),
             JSON_TEXT("mfu_base", r->peak_is_measured ? "measured" : "datasheet"));
    add_shards(run, "train", train_shards(r));
    add_shards(run, "val", val_shards(r));
    JSON_ADD(run, JSON_NUMBER("processes", comm_size()), JSON_NUMBER("start_step", r->setup->first_step),
             JSON_NUMBER("total_steps", r->setup->total_steps),
             JSON_NUMBER("tokens_per_step", r->setup->step_windows * r->setup->T),
             JSON_NUMBER("flops_per_token", flops_per_token_llmc(c, r->setup->T)),
             JSON_NUMBER("flops_per_token_exact", flops_per_token_exact(c, r->setup->T)));
    char *text = cJSON_PrintUnformatted(run); // without its braces
    if (text) runlog_event(r->log, "run", "%.*s", (int)strlen(text) - 2, text + 1);
    free(text);
    cJSON_Delete(run);
}

// The differences between a resumed run and the run that it continues.
static void resume_lines(const Report *r) {
    const RunSetup *s = r->setup;
    if (r->options->reset_optimizer && r->options->max_steps != 0)
        runlog_field(r->log, "optimizer", "--reset-optimizer: %s starts with a new state after step %lld",
                     optimizer_name(r->options->optimizer), (long long)s->state.step);
    char *changed = options_diff_json(r->options, s->state.options_json);
    if (changed) runlog_text(r->log, "changed since the checkpoint:\n%.*s", (int)strlen(changed) - 1, changed);
    free(changed);
}

Report *report_open(const RunSetup *setup, const Model *model, RunLog *log, DeviceSpeed speed, double started) {
    Report *r = calloc(1, sizeof *r);
    REQUIRE_MEMORY(r, "the log");
    const double datasheet = device_facts()->peak_flops[setup->dtype];
    *r = (Report){
        .setup = setup,
        .options = &setup->options,
        .gpt2 = model,
        .model = model_options(model),
        .log = log,
        .speed = speed,
        .started = started,
        .peak_flops = datasheet > 0 ? datasheet : speed.matmul_flops,
        .peak_is_measured = datasheet <= 0,
        .datasheet = datasheet,
        .loss_scale = setup->state.control.loss_scale,
    };
    DeviceSensors sensors; // where the energy of the run is counted from
    if (device_sensors(&sensors)) run_summary_energy(&r->summary, sensors.energy_joules);
    if (!report_is_silent(setup)) {
        machine_lines(r);
        model_lines(r);
        memory_line(r);
        data_lines(r);
        schedule_lines(r);
        option_lines(r);
        run_event(r);
    }
    snprintf(r->attention, sizeof r->attention, "%s", device_facts()->attention);
    if (setup->resume_path) resume_lines(r);
    return r;
}

void report_close(Report *r) {
    if (r) run_summary_free(&r->summary);
    free(r);
}

// --------------------------------------------------------------------------------------------------------------- steps

void report_first_step(const Report *r) {
    if (on_gpu())
        runlog_field(r->log, "first step", "loads kernels and measures which to use; it takes longer than the others");
    else
        takes_at_least(r, "first step", (double)(r->setup->step_windows * r->setup->T), true);
}

static void after_first_step(Report *r, const StepControl *control) {
    char measured[TEXT], planned[TEXT];
    const long long peak = (long long)device_memory_peak(), arena = (long long)memory_plan_total(model_memory(r->gpt2));
    const double expected = log((double)r->setup->config.V);
    if (!r->setup->resume_path && model_config_is_descriptor(r->options->model) && fabs(control->loss - expected) > 0.5)
        runlog_field(r->log, "warning", "the first loss is %.3f; with new weights it should be near ln(V) = %.3f",
                     control->loss, expected);
    runlog_field(r->log, "memory", "measured %s, planned %s; first step done %.2f s after launch",
                 format_bytes((double)peak, measured, TEXT), format_bytes((double)arena, planned, TEXT),
                 now_seconds() - r->started);
    runlog_event(r->log, "memory", "\"measured\":%lld,\"planned\":%lld", peak, arena);
    char *choices = device_choices();
    if (*choices) runlog_event(r->log, "candidates", "\"candidates\":[%s]", choices);
    free(choices);
    if (strcmp(r->attention, device_facts()->attention) != 0) // it was chosen by measurement
        runlog_field(r->log, "attention", "%s", device_facts()->attention);
}

// Nothing is faster than its limit: a step that seems to be shows that the machine was busy when the limit was
// measured.
static void raise_measured_peak(Report *r, double step_flops) {
    DeviceSpeed again;
    Error ignored;
    if (!r->peak_is_measured || r->peak_flops <= 0 || step_flops <= r->peak_flops) return;
    if (device_measure_speed(r->setup->dtype, 0, &again, &ignored) && again.matmul_flops > r->peak_flops)
        r->peak_flops = again.matmul_flops;
    if (step_flops > r->peak_flops) r->peak_flops = step_flops;
    runlog_field(r->log, "limits", "matmul now %.4g TFLOP/s: the machine was busy before", r->peak_flops / 1e12);
}

void step_time_add(StepTime *t, double seconds) {
    static const double WINDOW = 30.0;
    const double kept = t->after_first ? exp(-seconds / WINDOW) : 0.0;
    t->after_first = t->mean > 0.0;
    t->steps = kept * t->steps + 1;
    t->seconds = kept * t->seconds + seconds;
    t->mean = t->seconds / t->steps;
}

// A part of the gradient norm belongs to a parameter.
static const char *name_of_part(const Model *model, int part) {
    const Partition *p = model_partition(model);
    return part < p->num_norm_parts ? model_parameters(model)[p->norm_parts[part].parameter].name : NULL;
}

void report_step(Report *r, StepRecord *record) {
    const RunSetup *s = r->setup;
    const StepControl *control = record->control;
    if (record->step == 0) return;
    device_event_wait(record->stop);
    StepReport line = {
        .step = record->step,
        .total = s->total_steps,
        .control = *control,
        .last_loss_scale = r->loss_scale,
        .bad_tensor = control->bad_tensor >= 0 ? name_of_part(r->gpt2, control->bad_tensor) : NULL,
        .lr = record->lr,
        .seconds = device_event_seconds(record->start, record->stop),
        .tokens = (double)(s->step_windows * s->T),
    };
    r->loss_scale = control->loss_scale;
    const double tokens_per_second = line.tokens / line.seconds;
    const double each = tokens_per_second / comm_size(); // of all processes: the tokens of this device
    const double model_flops = each * flops_per_token_llmc(&s->config, s->T);
    const double all_flops = each * flops_per_token_hardware(&s->config, s->T, &s->recompute);
    raise_measured_peak(r, fmax(model_flops, all_flops));
    line.mfu = r->peak_flops > 0 ? model_flops / r->peak_flops : 0; // of each device
    line.hfu = r->peak_flops > 0 ? all_flops / r->peak_flops : 0;
    step_time_add(&r->step_time, line.seconds);
    line.eta_seconds = r->step_time.mean * (double)(s->total_steps - record->step);
    runlog_step(r->log, &line);
    run_summary_step(&r->summary, line.seconds, line.tokens, line.mfu);
    if (record->step == s->first_step + 1) after_first_step(r, control);
    DeviceSensors sensors;
    const int64_t every = r->options->log_gpu_every;
    if (every > 0 && record->step % every == 0 && device_sensors(&sensors))
        runlog_sensors(r->log, record->step, &sensors);
    record->step = 0;
}

// ----------------------------------------------------------------------------------------------- evaluation and saving

void report_validating(const Report *r) {
    const RunSetup *s = r->setup;
    const int64_t most = r->options->val_sequences, all = s->val.num_windows;
    if (s->state.step == s->first_step)
        takes_at_least(r, "validating", (double)((most > 0 && most < all ? most : all) * s->T), false);
}

void report_validation(Report *r, const ValidationScore *score, double seconds) {
    const int64_t step = r->setup->state.step;
    run_summary_validation(&r->summary, step, score->loss);
    runlog_validation(r->log, step, score, seconds);
}

void report_generated(Report *r, const Generated *drawn, int64_t first, bool shown) {
    const bool alone = r->options->max_steps == 0;
    const bool again = drawn->cut && !alone; // by the run that goes on, and whole
    for (int64_t i = first; i < drawn->samples && !again; i++)
        runlog_sample(r->log, r->setup->state.step, drawn->texts[i], drawn->bytes[i], shown, drawn->cut);
    if (drawn->prompt_cut > 0)
        runlog_field(r->log, "prompt", "longer than the context: the last %lld tokens are used, %lld are dropped",
                     (long long)drawn->prompt_tokens, (long long)drawn->prompt_cut);
    if (drawn->slides > 0)
        runlog_field(r->log, "context", "filled %lld time%s; each time the text continued from its last half",
                     (long long)drawn->slides, drawn->slides == 1 ? "" : "s");
    if (alone)
        runlog_field(r->log, "generated", "%lld tokens after a prompt of %lld; prompt %.0f ms, then %.1f tokens/s",
                     (long long)drawn->new_tokens, (long long)drawn->prompt_tokens, drawn->prompt_seconds * 1e3,
                     drawn->decode_seconds > 0 ? (double)(drawn->new_tokens - drawn->samples) / drawn->decode_seconds
                                               : 0.0);
}

void report_tuning(Report *r, const char *tuning) {
    const char *old = r->setup->state.tuning;
    char *quoted = NULL;
    size_t bytes;
    if (!tuning || !*tuning || (old && strcmp(old, tuning) == 0)) return;
    FILE *out = text_open(&quoted, &bytes);
    format_json_string(out, tuning, strlen(tuning));
    fclose(out);
    runlog_event(r->log, "tuning", "\"tuning\":%s", quoted);
    free(quoted);
}

void report_kept_checkpoint(Report *r, const Error *why) {
    if (strcmp(why->text, r->kept) != 0) runlog_field(r->log, "warning", "%s", why->text);
    snprintf(r->kept, sizeof r->kept, "%s", why->text);
}

// ------------------------------------------------------------------------------------------------------------- summary

void run_summary_free(RunSummary *s) { free(s->times); }

static bool reserve_time(RunSummary *s) {
    if (s->steps < s->room) return true;
    const size_t room = s->room ? 2 * s->room : 1024;
    float *grown = realloc(s->times, room * sizeof *grown);
    if (!grown) return false;
    s->times = grown;
    s->room = room;
    return true;
}

void run_summary_step(RunSummary *s, double seconds, double tokens, double mfu) {
    s->times_lost = s->times_lost || !reserve_time(s);
    if (!s->times_lost) s->times[s->steps] = (float)seconds;
    s->steps++;
    s->seconds += seconds;
    s->tokens += tokens;
    s->step_tokens = tokens;
    s->step_mfu_seconds = mfu * seconds;
}

void run_summary_validation(RunSummary *s, int64_t step, double loss) {
    if (!(loss < (s->has_best ? s->best_loss : (double)INFINITY))) return;
    s->has_best = true;
    s->best_loss = loss;
    s->best_step = step;
}

void run_summary_energy(RunSummary *s, double joules) {
    if (!(joules > 0.0)) return;
    if (!(s->first_joules > 0.0)) s->first_joules = joules;
    s->last_joules = joules;
}

// ------------------------------------------------------------------------------------------------------- what is said

static int by_value(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

// Nearest rank: the smallest time that at least this share of the steps does not exceed. n > 0.
static double nearest_rank(const float *sorted, size_t n, double share) {
    const size_t rank = (size_t)ceil(share * (double)n);
    return (double)sorted[rank > 0 ? rank - 1 : 0];
}

// Derived from the steps; 0: unknown.
typedef struct {
    double p50, p99; // seconds
    double tokens_per_second, mfu, joules;
} Figures;

static Figures figures_of(const RunSummary *s) {
    Figures f = {.joules = s->last_joules - s->first_joules};
    const size_t first = s->steps > 1 ? 1 : 0, n = s->steps - first;
    float *sorted = s->times_lost ? NULL : malloc(n * sizeof *sorted);
    if (!sorted) return f;
    memcpy(sorted, s->times + first, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, by_value);
    f.p50 = nearest_rank(sorted, n, 0.50);
    f.p99 = nearest_rank(sorted, n, 0.99);
    free(sorted);
    if (!(f.p50 > 0.0)) return f;
    f.tokens_per_second = s->step_tokens / f.p50;
    f.mfu = s->step_mfu_seconds / f.p50;
    return f;
}

static void print_speed(const RunSummary *s, const Figures *f, RunLog *log) {
    char tokens[32], time[32], rate[32], p50[32], p99[32], speed[160] = "", mfu[48] = "";
    if (f->mfu > 0.0) snprintf(mfu, sizeof mfu, ", mfu %.1f%%", 100.0 * f->mfu);
    if (f->p50 > 0.0)
        snprintf(speed, sizeof speed, " | median %s tok/s%s | step p50 %s ms, p99 %s ms",
                 format_count(f->tokens_per_second, rate, sizeof rate), mfu,
                 format_fixed(1e3 * f->p50, 5, 3, p50, sizeof p50), format_fixed(1e3 * f->p99, 5, 3, p99, sizeof p99));
    runlog_field(log, "summary", "%zu step%s, %s tokens, %s in steps%s", s->steps, s->steps == 1 ? "" : "s",
                 format_count(s->tokens, tokens, sizeof tokens), format_duration(s->seconds, time, sizeof time), speed);
}

void run_summary_print(const RunSummary *s, RunLog *log) {
    if (s->steps == 0) return;
    char best[96] = "", used[96] = "";
    const Figures f = figures_of(s);
    const double kwh = f.joules / 3.6e6;
    print_speed(s, &f, log);
    if (s->has_best)
        snprintf(best, sizeof best, "best validation loss %.4f at step %lld", s->best_loss, (long long)s->best_step);
    if (f.joules > 0.0)
        snprintf(used, sizeof used, "%s%.4g %s, %.3g J/1K tokens", *best ? " | " : "", kwh < 0.1 ? 1e3 * kwh : kwh,
                 kwh < 0.1 ? "Wh" : "kWh", 1e3 * f.joules / s->tokens);
    if (*best || *used) runlog_field(log, "", "%s%s", best, used);
}

char *run_summary_json(const RunSummary *s) {
    char *json = NULL;
    size_t bytes = 0;
    FILE *out = text_open(&json, &bytes);
    if (s->steps > 0) {
        const Figures f = figures_of(s);
        const struct {
            const char *key;
            double value;
            int digits;
            bool known;
        } fields[] = {{"steps", (double)s->steps, 17, true},
                      {"tokens", s->tokens, 17, true},
                      {"step_seconds", s->seconds, 6, true},
                      {"tokens_per_second_p50", f.tokens_per_second, 6, f.p50 > 0.0},
                      {"ms_p50", 1e3 * f.p50, 6, f.p50 > 0.0},
                      {"ms_p99", 1e3 * f.p99, 6, f.p50 > 0.0},
                      {"mfu_p50", f.mfu, 6, f.mfu > 0.0},
                      {"best_val_loss", s->best_loss, 17, s->has_best},
                      {"best_val_step", (double)s->best_step, 17, s->has_best},
                      {"energy_joules", f.joules, 9, f.joules > 0.0}};
        for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
            if (fields[i].known) fprintf(out, ",\"%s\":%.*g", fields[i].key, fields[i].digits, fields[i].value);
    }
    fclose(out);
    return json;
}

// ----------------------------------------------------------------------------------------------------------------- end

static void last_line(const Report *r, int64_t steps) {
    const RunSetup *s = r->setup;
    const long long step = (long long)s->state.step, total = (long long)s->total_steps;
    char tokens[TEXT], time[TEXT];
    if (signals_pending())
        runlog_text(r->log, "stopped by %s after step %lld; %s", signals_name(signals_pending()), step,
                    *r->options->output ? "resume with -o and -y" : "nothing was saved (no -o)");
    else if (r->options->max_steps != 0 && steps == 0 && r->options->profile == 0)
        runlog_field(r->log, "done",
                     "nothing to do: the run is at step %lld of %lld; a larger -x continues it, such as -x %lld", step,
                     total, 2 * step);
    else if (r->options->max_steps != 0)
        runlog_field(r->log, "done", "%lld steps, %s tokens in %s%s", (long long)steps,
                     format_count((double)(steps * s->step_windows * s->T), tokens, TEXT),
                     format_duration(now_seconds() - r->started, time, TEXT),
                     step < total ? " (time limit; resume with -o and -y)" : "");
}

void report_end(Report *r, double wait_seconds) {
    const RunSetup *s = r->setup;
    DeviceSensors sensors;
    if (report_is_silent(s)) return;
    if (device_sensors(&sensors)) run_summary_energy(&r->summary, sensors.energy_joules);
    last_line(r, s->state.step - s->first_step);
    run_summary_print(&r->summary, r->log);
    char *summary = run_summary_json(&r->summary);
    runlog_event(r->log, "end",
                 "\"step\":%lld,\"seconds\":%.3f,\"memory_peak\":%lld,\"memory_planned\":%lld,"
                 "\"wait_seconds\":%.4f%s",
                 (long long)s->state.step, now_seconds() - r->started, (long long)device_memory_peak(),
                 (long long)memory_plan_total(model_memory(r->gpt2)), wait_seconds, summary);
    free(summary);
}
