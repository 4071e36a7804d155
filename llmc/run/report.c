// What a run says before its first step and after its last one. See report.h.
#include "llmc/run/report.h"

#include "llmc/model/recompute.h"
#include "llmc/train/optimizer.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// -------------------------------------------------------------------------------------------------------------- header

enum { TEXT = 64 };

static void machine_lines(RunLog *log, const RunFacts *f) {
    const DeviceFacts *device = device_facts();
    char memory[TEXT];
    format_bytes((double)device->memory_free, memory, TEXT);
    runlog_text(log, "machine     %s: %s, %s free | %s", device->backend, device->name, memory, device->libraries);
    if (*device->advice) runlog_text(log, "warning     %s", device->advice);
    if (*device->attention) runlog_text(log, "            attention: %s", device->attention);
    DeviceSensors sensors;
    if (f->options->log_gpu_every > 0 && !device_sensors(&sensors))
        runlog_text(log, "            -lg: this device has no sensors");
    char datasheet[128] = "";
    if (!f->peak_is_measured)
        snprintf(datasheet, sizeof datasheet, " | datasheet: %.4g TFLOP/s, %.4g GB/s", f->peak_flops / 1e12,
                 device->peak_bandwidth / 1e9);
    if (f->speed.matmul_flops > 0)
        runlog_text(log, "limits      measured now: matmul %.4g TFLOP/s in %s, copy %.4g GB/s%s",
                    f->speed.matmul_flops / 1e12, dtype_name(f->model->dtype), f->speed.copy_bandwidth / 1e9,
                    datasheet);
    else
        runlog_text(log, "limits      not measured%s", datasheet);
}

// What becomes of the bits that a weight of 16 bits cannot hold.
static const char *weight_keeping(const Gpt2Options *m) {
    return m->master                               ? "fp32 master weights"
           : m->optimizer == OPTIMIZER_ADAMW_KAHAN ? "no master weights (Kahan summation)"
                                                   : "no master weights (stochastic rounding)";
}

static void precision_line(RunLog *log, const Gpt2Options *m) {
    const char *dtype = dtype_name(m->dtype);
    if (m->dtype == DTYPE_FP32) {
        runlog_text(log, "precision   fp32");
        return;
    }
    if (m->gradients_in_dtype)
        runlog_text(log,
                    "precision   %s weights, activations and gradients (stochastic rounding), fp32 accumulation, %s",
                    dtype, weight_keeping(m));
    else
        runlog_text(log, "precision   %s weights and activations, fp32 accumulation and gradients, %s", dtype,
                    weight_keeping(m));
    if (m->fp8)
        runlog_text(log, "            matmuls of the blocks in fp8: e4m3, gradients e5m2, %s scaling",
                    m->fp8_delayed ? "delayed" : "current");
}

static void model_lines(RunLog *log, const RunFacts *f) {
    const ModelConfig *c = &f->model->config;
    char n[TEXT];
    runlog_text(log, "model       %s", f->source);
    runlog_text(log,
                "            %lld blocks, %lld channels, %lld heads, context %lld, vocabulary %lld (padded to %lld): "
                "%s parameters",
                (long long)c->L, (long long)c->C, (long long)c->NH, (long long)c->max_T, (long long)c->V,
                (long long)c->Vp, format_count((double)parameter_total(c), n, TEXT));
    precision_line(log, f->model);
    if (f->model->train && f->loss_scale != 1.0f)
        runlog_text(log, "            loss scale %g, halved by a step that overflows, doubled after %d that do not",
                    (double)f->loss_scale, optimizer_scale_growth_interval(f->model->dtype));
}

// hfu - mfu of this run is what the repetition costs.
static void recompute_line(RunLog *log, const RunFacts *f) {
    const Recompute *r = &f->model->recompute;
    const Recompute none = {{0}};
    const ModelConfig *c = &f->model->config;
    char text[RECOMPUTE_TEXT];
    if (!f->model->train || memcmp(r, &none, sizeof none) == 0) return;
    runlog_text(log, "recompute   -r %s: %.3g%% more FLOPs", recompute_text(r, c->L, text, sizeof text),
                100 * recompute_flops_per_token(r, c, f->T) / flops_per_token_hardware(c, f->T, &none));
}

static void memory_line(RunLog *log, const RunFacts *f) {
    char line[512], bytes[TEXT];
    int used = snprintf(line, sizeof line, "memory      ");
    for (int c = 0; c < MEM_CLASS_COUNT; c++) {
        int64_t n = memory_plan_class_bytes(f->plan, (MemoryClass)c);
        if (n > 0 && used < (int)sizeof line)
            used += snprintf(line + used, sizeof line - (size_t)used, "%s %s, ", memory_class_name((MemoryClass)c),
                             format_bytes((double)n, bytes, TEXT));
    }
    runlog_text(log, "%splanned in all %s", line, format_bytes((double)memory_plan_total(f->plan), bytes, TEXT));
    const int64_t host = gpt2_host_bytes(f->model);
    if (host > 0)
        runlog_text(log, "            %s of the optimizer in host memory", format_bytes((double)host, bytes, TEXT));
    recompute_line(log, f);
}

static void data_lines(RunLog *log, const RunFacts *f) {
    char n[TEXT];
    if (f->train) {
        double seen = (double)(f->total_steps * f->step_windows) / (double)f->train->num_windows;
        runlog_text(log, "data        %s tokens in %d shard%s; %lld steps read %.2f epochs",
                    format_count((double)f->train->num_tokens, n, TEXT), f->train->count,
                    f->train->count == 1 ? "" : "s", (long long)f->total_steps, seen);
    }
    if (f->val)
        runlog_text(log, "validation  %s tokens in %d shard%s", format_count((double)f->val->num_tokens, n, TEXT),
                    f->val->count, f->val->count == 1 ? "" : "s");
    else
        runlog_text(log, "validation  off");
    if (f->train && f->val && f->train->vocab > 0 && f->train->vocab < f->model->config.V)
        runlog_text(log, "            note: the shards use %lld of the model's %lld tokens", (long long)f->train->vocab,
                    (long long)f->model->config.V);
}

static void schedule_lines(RunLog *log, const RunFacts *f) {
    const Schedule *s = f->schedule;
    if (!f->model->train) return;
    runlog_text(log, "batch       %lld tokens a step: %lld windows of %lld, %lld at a time",
                (long long)(f->step_windows * f->T), (long long)f->step_windows, (long long)f->T,
                (long long)f->model->B);
    runlog_text(log, "schedule    %s: warm-up over %lld steps to %.3g, %.3g at step %lld; %s, weight decay %g",
                schedule_name(s->kind), (long long)s->warmup, s->max_lr, schedule_lr(s, f->total_steps - 1),
                (long long)f->total_steps, optimizer_name(f->model->optimizer), f->options->weight_decay);
    runlog_text(log, "mfu         (6 N + 6 L C T) FLOP a token against %s",
                f->peak_is_measured ? "the measured matmul rate" : "the peak of the datasheet");
    if (!*f->options->output)
        runlog_text(log, "output      none: nothing is saved (-o DIR saves log and checkpoints)");
    else if (f->start_step > 0)
        runlog_text(log, "output      %s, going on after step %lld", f->options->output, (long long)f->start_step);
    else
        runlog_text(log, "output      %s", f->options->output);
}

static void add_shards(cJSON *run, const char *key, const ShardSet *set) {
    if (!set) return;
    cJSON *object = cJSON_AddObjectToObject(run, key);
    cJSON_AddNumberToObject(object, "tokens", (double)set->num_tokens);
    cJSON_AddNumberToObject(object, "windows", (double)set->num_windows);
    cJSON_AddNumberToObject(object, "shards", set->count);
}

static void run_event(RunLog *log, const RunFacts *f) {
    const ModelConfig *c = &f->model->config;
    cJSON *run = cJSON_CreateObject();
    char *options = options_to_json(f->options);
    cJSON_AddItemToObject(run, "options", cJSON_Parse(options));
    free(options);
    cJSON *model = cJSON_AddObjectToObject(run, "model");
    const struct {
        const char *key;
        int64_t value;
    } shape[] = {{"L", c->L}, {"C", c->C},        {"NH", c->NH},
                 {"V", c->V}, {"Vp", c->Vp},      {"max_T", c->max_T},
                 {"T", f->T}, {"B", f->model->B}, {"parameters", parameter_total(c)}};
    for (size_t i = 0; i < sizeof shape / sizeof shape[0]; i++)
        cJSON_AddNumberToObject(model, shape[i].key, (double)shape[i].value);
    cJSON_AddStringToObject(model, "dtype", dtype_name(f->model->dtype));
    cJSON_AddStringToObject(model, "source", f->source);
    cJSON *memory = cJSON_AddObjectToObject(run, "memory_planned");
    for (int i = 0; i < MEM_CLASS_COUNT; i++)
        cJSON_AddNumberToObject(memory, memory_class_name((MemoryClass)i),
                                (double)memory_plan_class_bytes(f->plan, (MemoryClass)i));
    cJSON_AddNumberToObject(memory, "total", (double)memory_plan_total(f->plan));
    cJSON *device = cJSON_AddObjectToObject(run, "device");
    cJSON_AddStringToObject(device, "backend", device_facts()->backend);
    cJSON_AddStringToObject(device, "name", device_facts()->name);
    cJSON_AddStringToObject(device, "libraries", device_facts()->libraries);
    cJSON_AddStringToObject(device, "attention", device_facts()->attention);
    cJSON_AddNumberToObject(device, "peak_bandwidth", device_facts()->peak_bandwidth);
    cJSON_AddNumberToObject(device, "matmul_flops", f->speed.matmul_flops);
    cJSON_AddNumberToObject(device, "copy_bandwidth", f->speed.copy_bandwidth);
    cJSON_AddNumberToObject(device, "peak_flops", f->peak_flops);
    add_shards(run, "train", f->train);
    add_shards(run, "val", f->val);
    cJSON_AddNumberToObject(run, "start_step", (double)f->start_step);
    cJSON_AddNumberToObject(run, "total_steps", (double)f->total_steps);
    cJSON_AddNumberToObject(run, "tokens_per_step", (double)(f->step_windows * f->T));
    cJSON_AddNumberToObject(run, "flops_per_token", flops_per_token_llmc(c, f->T));
    cJSON_AddNumberToObject(run, "flops_per_token_exact", flops_per_token_exact(c, f->T));
    char *text = cJSON_PrintUnformatted(run);
    if (text) runlog_event(log, "run", text);
    free(text);
    cJSON_Delete(run);
}

void run_header(RunLog *log, const RunFacts *facts) {
    machine_lines(log, facts);
    model_lines(log, facts);
    memory_line(log, facts);
    data_lines(log, facts);
    schedule_lines(log, facts);
    run_event(log, facts);
}

// ------------------------------------------------------------------------------------------------------------- summary

struct RunSummary {
    float *times; // seconds of each step, in order: 4 bytes a step is less than its line in main.log
    size_t steps, room;
    bool times_lost; // out of memory: the order statistics are left out
    double seconds, tokens;
    double step_tokens, step_mfu_seconds; // of the last step: tokens, mfu x seconds (FLOP of a step / peak)
    double best_loss;                     // INFINITY: none
    int64_t best_step;
    double first_joules, last_joules; // 0: not known
};

RunSummary *run_summary_create(void) {
    RunSummary *s = calloc(1, sizeof *s);
    if (s) s->best_loss = INFINITY;
    return s;
}

void run_summary_free(RunSummary *s) {
    if (s) free(s->times);
    free(s);
}

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
    if (!s) return;
    s->times_lost = s->times_lost || !reserve_time(s);
    if (!s->times_lost) s->times[s->steps] = (float)seconds;
    s->steps++;
    s->seconds += seconds;
    s->tokens += tokens;
    s->step_tokens = tokens;
    s->step_mfu_seconds = mfu * seconds;
}

void run_summary_validation(RunSummary *s, int64_t step, double loss) {
    if (!s || !(loss < s->best_loss)) return;
    s->best_loss = loss;
    s->best_step = step;
}

void run_summary_energy(RunSummary *s, double joules) {
    if (!s || !(joules > 0.0)) return;
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

typedef struct {
    double p50, p99; // seconds; 0: not known
} Spread;

static Spread step_spread(const RunSummary *s) {
    Spread spread = {0.0, 0.0};
    const size_t first = s->steps > 1 ? 1 : 0, n = s->steps - first;
    float *sorted = s->times_lost ? NULL : malloc(n * sizeof *sorted);
    if (!sorted) return spread;
    memcpy(sorted, s->times + first, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, by_value);
    spread.p50 = nearest_rank(sorted, n, 0.50);
    spread.p99 = nearest_rank(sorted, n, 0.99);
    free(sorted);
    return spread;
}

static double energy(const RunSummary *s) { return s->last_joules - s->first_joules; } // 0: not known

static void print_speed(const RunSummary *s, RunLog *log) {
    char tokens[32], time[32], rate[32], p50[32], p99[32], speed[160] = "", mfu[48] = "";
    const Spread spread = step_spread(s);
    if (spread.p50 > 0.0) {
        if (s->step_mfu_seconds > 0.0)
            snprintf(mfu, sizeof mfu, ", mfu %.1f%%", 100.0 * s->step_mfu_seconds / spread.p50);
        snprintf(speed, sizeof speed, " | median %s tok/s%s | step p50 %s ms, p99 %s ms",
                 format_count(s->step_tokens / spread.p50, rate, sizeof rate), mfu,
                 format_fixed(1e3 * spread.p50, 5, 3, p50, sizeof p50),
                 format_fixed(1e3 * spread.p99, 5, 3, p99, sizeof p99));
    }
    runlog_text(log, "summary     %zu step%s, %s tokens, %s in steps%s", s->steps, s->steps == 1 ? "" : "s",
                format_count(s->tokens, tokens, sizeof tokens), format_duration(s->seconds, time, sizeof time), speed);
}

void run_summary_print(const RunSummary *s, RunLog *log) {
    if (!s || s->steps == 0) return;
    print_speed(s, log);
    char best[96] = "", used[96] = "";
    const double joules = energy(s);
    if (isfinite(s->best_loss))
        snprintf(best, sizeof best, "best validation loss %.4f at step %lld", s->best_loss, (long long)s->best_step);
    if (joules > 0.0) {
        const double kwh = joules / 3.6e6;
        snprintf(used, sizeof used, "%s%.4g %s, %.3g J/1K tokens", *best ? " | " : "", kwh < 0.1 ? 1e3 * kwh : kwh,
                 kwh < 0.1 ? "Wh" : "kWh", 1e3 * joules / s->tokens);
    }
    if (*best || *used) runlog_text(log, "            %s%s", best, used);
}

char *run_summary_json(const RunSummary *s) {
    char *json = NULL;
    size_t bytes = 0;
    FILE *f = text_open(&json, &bytes);
    if (s && s->steps > 0) {
        const Spread spread = step_spread(s);
        fprintf(f, "\"steps\":%zu,\"tokens\":%.17g,\"step_seconds\":%.6g", s->steps, s->tokens, s->seconds);
        if (spread.p50 > 0.0) {
            fprintf(f, ",\"tokens_per_second_p50\":%.6g,\"ms_p50\":%.6g,\"ms_p99\":%.6g", s->step_tokens / spread.p50,
                    1e3 * spread.p50, 1e3 * spread.p99);
            if (s->step_mfu_seconds > 0.0) fprintf(f, ",\"mfu_p50\":%.6g", s->step_mfu_seconds / spread.p50);
        }
        if (isfinite(s->best_loss))
            fprintf(f, ",\"best_val_loss\":%.17g,\"best_val_step\":%lld", s->best_loss, (long long)s->best_step);
        if (energy(s) > 0.0) fprintf(f, ",\"energy_joules\":%.9g", energy(s));
    }
    fclose(f);
    return json;
}
