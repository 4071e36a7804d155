// Times whole training steps (forward, loss, backward, gradient norm, AdamW) on random tokens, beside the rate of a
// plain library matmul measured in the same process, between the steps: on a shared machine only their ratio is steady.
// Prints one JSON object. Never reads data or writes files; dev/bench/bench_cpu.py runs it and makes the table.
#include "llmc/base/rng.h"
#include "llmc/model/flops.h"
#include "llmc/model/gpt2.h"
#include "llmc/run/runlog.h"
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

static bool fill_windows(Gpt2 *model, Error *err) {
    Tensor windows = gpt2_windows(model);
    uint16_t *host = host_alloc(tensor_bytes(windows), err);
    if (!host) return false;
    uint64_t V = (uint64_t)gpt2_options(model)->config.V;
    for (int64_t i = 0; i < tensor_numel(windows); i++)
        host[i] = (uint16_t)(philox(1, STREAM_SAMPLE, (uint64_t)i).v[0] % V);
    device_copy_to_device(windows.data, host, tensor_bytes(windows), STREAM_COMPUTE);
    device_sync();
    host_free(host);
    return true;
}

static bool init_control(Gpt2 *model, Error *err) {
    StepControl *host = host_alloc(sizeof *host, err);
    if (!host) return false;
    *host = step_control_initial(1.0f);
    device_copy_to_device(gpt2_control(model).data, host, sizeof *host, STREAM_COMPUTE);
    device_sync();
    host_free(host);
    return true;
}

static double timed_step(Gpt2 *model, int64_t step) {
    const Gpt2Options *o = gpt2_options(model);
    StepLimits limits = {.clip = 1.0f};
    AdamWParams adamw = {.learning_rate = 6e-4f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .step = step, .seed = 1};
    double start = now_seconds();
    gpt2_forward_backward(model, o->B, false, o->B * o->T, true);
    gradient_sumsq(gpt2_gradient_sumsq(model), gpt2_gradients(model), gpt2_num_tensors(model));
    step_control_update(gpt2_control(model), gpt2_gradient_sumsq(model), gpt2_sequence_losses(model), o->B * o->T,
                        limits);
    adamw_update(gpt2_tensors(model), gpt2_num_tensors(model), adamw, gpt2_control(model));
    device_sync();
    return now_seconds() - start;
}

// Steps until `seconds` of them are timed, at least 5, with the matmul rate measured before, between and after.
static bool measure(Gpt2 *model, double seconds, Samples *steps, Samples *matmul, Samples *bandwidth, Error *err) {
    double total = 0.0;
    for (int64_t step = 1; step <= WARMUP_STEPS || steps->count < 5 || total < seconds; step++) {
        double t = timed_step(model, step);
        if (step <= WARMUP_STEPS) continue;
        DeviceSpeed speed;
        if (!device_measure_speed(gpt2_options(model)->dtype, &speed, err)) return false;
        samples_add(steps, t), samples_add(matmul, speed.matmul_flops), samples_add(bandwidth, speed.copy_bandwidth);
        total += t;
        if (steps->count == MAX_SAMPLES) break;
    }
    return true;
}

static void print_json(const Gpt2 *model, const char *descriptor, Samples *steps, Samples *matmul, Samples *bandwidth) {
    const Gpt2Options *o = gpt2_options(model);
    double step = samples_median(steps), tokens = (double)(o->B * o->T);
    double flops_per_token = flops_per_token_exact(&o->config, o->T), flops = flops_per_token * tokens / step;
    printf("{\"model\": \"%s\", \"dtype\": \"%s\", \"B\": %lld, \"T\": %lld, \"recompute\": %d, \"parameters\": %lld, ",
           descriptor, dtype_name(o->dtype), (long long)o->B, (long long)o->T, o->recompute,
           (long long)parameter_total(&o->config));
    printf("\"steps\": %d, \"step_seconds\": %.6f, \"step_seconds_min\": %.6f, \"step_seconds_max\": %.6f, ",
           steps->count, step, steps->values[0], steps->values[steps->count - 1]);
    printf("\"tokens_per_second\": %.1f, \"flops_per_token\": %.0f, \"step_flops\": %.4e, ", tokens / step,
           flops_per_token, flops);
    double reference = samples_median(matmul);
    printf("\"matmul_flops\": %.4e, \"copy_bandwidth\": %.4e, \"ratio\": %.4f, ", reference, samples_median(bandwidth),
           flops / reference);
    printf("\"memory_planned_bytes\": %lld, \"memory_peak_bytes\": %zu, \"device\": \"%s\", \"libraries\": \"%s\"}\n",
           (long long)memory_plan_total(gpt2_memory(model)), device_memory_peak(), device_facts()->name,
           device_facts()->libraries);
}

static bool bench(const char *descriptor, Gpt2Options options, double seconds, Error *err) {
    static Samples steps, matmul, bandwidth;
    Gpt2 *model = gpt2_create(&options, err);
    if (!model) return false;
    gpt2_init_weights(model, 1);
    bool ok = fill_windows(model, err) && init_control(model, err) &&
              measure(model, seconds, &steps, &matmul, &bandwidth, err);
    if (ok) print_json(model, descriptor, &steps, &matmul, &bandwidth);
    gpt2_destroy(model);
    return ok;
}

int main(int argc, char **argv) {
    if (argc != 7) {
        fprintf(stderr,
                "usage: bench_step MODEL B T fp32|bf16 RECOMPUTE SECONDS     e.g. d12,V=50257 4 256 bf16 0 10\n");
        return EXIT_BAD_INPUT;
    }
    Error err = {""};
    DType dtype = strcmp(argv[4], "fp32") == 0 ? DTYPE_FP32 : DTYPE_BF16;
    Gpt2Options options = {.dtype = dtype,
                           .master = dtype != DTYPE_FP32,
                           .train = true,
                           .B = atoll(argv[2]),
                           .T = atoll(argv[3]),
                           .recompute = atoi(argv[5])};
    DeviceOptions device = {0};
    bool ok = model_config_parse(&options.config, argv[1], &err) && device_init(&device, &err);
    if (ok) {
        model_config_set_vocab(&options.config, options.config.V > 0 ? options.config.V : GPT2_VOCAB);
        ok = bench(argv[1], options, atof(argv[6]), &err);
        device_shutdown();
    }
    if (!ok) fprintf(stderr, "bench_step: %s\n", err.text);
    return ok ? EXIT_OK : EXIT_RUN_FAILED;
}
