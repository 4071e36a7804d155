#include "llmc/run/run_header.h"

#include "llmc/model/flops.h"
#include "llmc/train/optimizer.h"
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
