// Times whole training steps (forward, loss, backward, gradient norm, AdamW) on random tokens, beside the rate of a
// plain library matmul measured in the same process, between the steps: on a shared machine only their ratio is steady.
// Prints one JSON object. Never reads data or writes files; dev/bench/bench_cpu.py runs it and makes the table.
#include "llmc/base/arithmetic.h"
#include "llmc/log/runlog.h"
#include "llmc/model/model.h"
#include "llmc/model/recompute.h"
#include "llmc/speed.h"
#include "llmc/train/optimizer.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WARMUP_STEPS = 2, MAX_SAMPLES = 1000 };

// Measurements of which the median counts.
typedef struct {
    double values[MAX_SAMPLES];
    int count;
} Samples;

static void samples_add(Samples *s, double x) {
    if (s->count < MAX_SAMPLES) s->values[s->count++] = x;
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// Sorts, so that values[0] is the least and the last the largest.
static double samples_median(Samples *s) {
    qsort(s->values, (size_t)s->count, sizeof s->values[0], compare_doubles);
    return 0.5 * (s->values[(s->count - 1) / 2] + s->values[s->count / 2]);
}

// B windows of random tokens in memory of host_alloc, as a loader would hand them over.
static uint16_t *random_windows(const ModelOptions *o, Error *err) {
    int64_t n = o->B * (o->T + 1);
    uint16_t *windows = host_alloc((size_t)n * sizeof *windows, err);
    for (int64_t i = 0; windows && i < n; i++)
        windows[i] = (uint16_t)(philox(1, STREAM_SAMPLE, (uint64_t)i).v[0] % (uint64_t)o->config.V);
    return windows;
}

static double timed_step(Model *model, Optimizer *optimizer, const uint16_t *windows) {
    const ModelOptions *o = model_options(model);
    double start = now_seconds();
    model_load_batch(model, windows, o->B, o->T, sizeof *windows);
    model_forward_backward(model, o->B * o->T, true);
    optimizer_norm(optimizer);
    optimizer_step(optimizer, 6e-4, o->B * o->T, false);
    device_sync();
    return now_seconds() - start;
}

typedef struct {
    Samples step, matmul, bandwidth;
} Measurement;

// Steps until `seconds` of them are timed, at least 5, with the matmul rate measured after each.
static bool measure(Measurement *m, Model *model, Optimizer *optimizer, const uint16_t *windows, double seconds,
                    Error *err) {
    const size_t memory = (size_t)memory_plan_total(model_memory(model));
    double total = 0.0;
    for (int64_t step = 1; step <= WARMUP_STEPS || m->step.count < 5 || total < seconds; step++) {
        double t = timed_step(model, optimizer, windows);
        if (step <= WARMUP_STEPS) continue;
        DeviceSpeed speed;
        if (!speed_measure(model_options(model)->dtype, memory, &speed, err)) return false;
        samples_add(&m->step, t);
        samples_add(&m->matmul, speed.matmul_flops);
        samples_add(&m->bandwidth, speed.copy_bandwidth);
        total += t;
        if (m->step.count == MAX_SAMPLES) break;
    }
    return true;
}

static void print_json(Measurement *m, const Model *model, const char *descriptor) {
    const ModelOptions *o = model_options(model);
    double step = samples_median(&m->step), tokens = (double)(o->B * o->T), matmul = samples_median(&m->matmul);
    double flops_per_token = flops_per_token_exact(&o->config, o->T), flops = flops_per_token * tokens / step;
    static char recompute[RECOMPUTE_TEXT];
    printf("{\"model\": \"%s\", \"dtype\": \"%s\", \"B\": %lld, \"T\": %lld, \"recompute\": \"%s\", \"parameters\": "
           "%lld, ",
           descriptor, dtype_name(o->dtype), (long long)o->B, (long long)o->T,
           recompute_text(&o->recompute, o->config.L, recompute, sizeof recompute),
           (long long)parameter_total(&o->config));
    printf("\"steps\": %d, \"step_seconds\": %.6f, \"step_seconds_min\": %.6f, \"step_seconds_max\": %.6f, ",
           m->step.count, step, m->step.values[0], m->step.values[m->step.count - 1]);
    printf("\"tokens_per_second\": %.1f, \"flops_per_token\": %.0f, \"step_flops\": %.4e, ", tokens / step,
           flops_per_token, flops);
    printf("\"matmul_flops\": %.4e, \"copy_bandwidth\": %.4e, \"ratio\": %.4f, ", matmul, samples_median(&m->bandwidth),
           flops / matmul);
    printf("\"memory_planned\": %lld, \"memory_peak\": %zu, \"device\": \"%s\", \"libraries\": \"%s\"}\n",
           (long long)memory_plan_total(model_memory(model)), device_memory_peak(), device_facts()->name,
           device_facts()->libraries);
}

static bool bench(const char *descriptor, const ModelOptions *options, double seconds, Error *err) {
    static Measurement measurement;
    OptimizerOptions adamw = {.seed = 1, .limits = {.clip = 1.0f}};
    optimizer_default_rates(OPTIMIZER_ADAMW, 0.1, adamw.rates);
    Model *model = model_create(options, err);
    if (!model) return false;
    model_init_weights(model, 1);
    Optimizer *optimizer = optimizer_create(model, &adamw, err);
    uint16_t *windows = random_windows(options, err);
    bool ok = optimizer && windows && measure(&measurement, model, optimizer, windows, seconds, err);
    if (ok) print_json(&measurement, model, descriptor);
    if (windows) host_free(windows);
    optimizer_destroy(optimizer);
    model_destroy(model);
    return ok;
}

int main(int argc, char **argv) {
    if (argc != 7) {
        fprintf(stderr,
                "usage: bench_step MODEL B T fp32|bf16 RECOMPUTE SECONDS     e.g. d12,V=50257 4 256 bf16 0 10\n");
        return EXIT_BAD_INPUT;
    }
    device_prepare_process(argv);
    Error err = {""};
    DType dtype = strcmp(argv[4], "fp32") == 0 ? DTYPE_FP32 : DTYPE_BF16;
    ModelOptions options = {
        .dtype = dtype, .master = dtype != DTYPE_FP32, .train = true, .B = atoll(argv[2]), .T = atoll(argv[3])};
    DeviceOptions device = {0};
    bool ok = model_config_parse(&options.config, argv[1], &err) &&
              recompute_parse(&options.recompute, argv[5], options.config.L, &err) && device_init(&device, &err);
    if (ok) {
        model_config_set_vocab(&options.config, options.config.V > 0 ? options.config.V : GPT2_VOCAB);
        ok = bench(argv[1], &options, atof(argv[6]), &err);
        device_shutdown();
    }
    if (!ok) fprintf(stderr, "bench_step: %s\n", err.text);
    return ok ? EXIT_OK : EXIT_RUN_FAILED;
}
