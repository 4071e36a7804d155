// Times whole training steps (forward, loss, backward, gradient norm, AdamW), and between them the
// rate of a plain library matmul in the same process: on a shared machine only their ratio is
// steady. Prints one JSON object at the end and never writes files; dev/bench/bench_cpu.py runs it
// and makes the table.
//
// With WEIGHTS and SHARD it does what torch_step.py does: it starts from exported weights, reads
// the windows of the shard in file order, makes one step for each line of standard input, and
// prints the loss and the seconds of that step. So two programs can take turns, and their losses
// show whether they do the same. Otherwise weights and tokens are random, and the steps last for
// SECONDS.
#include "llmc/base/clock.h"
#include "llmc/base/random.h"
#include "llmc/data/dataloader.h"
#include "llmc/log/runlog.h"
#include "llmc/model/model.h"
#include "llmc/model/recompute.h"
#include "llmc/speed.h"
#include "llmc/store/weights_file.h"
#include "llmc/train/optimizer.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WARMUP_STEPS = 1, MIN_SAMPLES = 5, MAX_SAMPLES = 1000 };

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

// The tokens of the steps: B random windows, again and again, or the next ones of a shard.
typedef struct {
    uint16_t *random; // NULL: a shard is read
    Sources sources;
    DataLoader *loader;
} Tokens;

static bool random_windows(Tokens *tokens, const ModelOptions *o, Error *err) {
    int64_t n = o->B * (o->T + 1);
    tokens->random = host_alloc((size_t)n * sizeof *tokens->random, err);
    if (!tokens->random) return false;
    for (int64_t i = 0; i < n; i++)
        tokens->random[i] =
            (uint16_t)(philox(1, STREAM_SAMPLE, (uint64_t)i).v[0] % (uint64_t)o->config.V);

    return true;
}

static bool tokens_open(Tokens *tokens, const ModelOptions *o, const char *shard, Error *err) {
    if (!shard) return random_windows(tokens, o, err);
    if (!sources_open(&tokens->sources, shard, o->T, err)) return false;
    DataLoaderOptions options = {.sources = &tokens->sources,
                                 .vocab = o->config.V,
                                 .batch_windows = o->B,
                                 .step_windows = o->B};
    tokens->loader = dataloader_create(&options, err);
    return tokens->loader != NULL;
}

static void tokens_close(Tokens *tokens) {
    if (tokens->random) host_free(tokens->random);
    dataloader_destroy(tokens->loader);
    sources_close(&tokens->sources);
}

static bool timed_step(Model *model, Optimizer *optimizer, Tokens *tokens, double *seconds,
                       Error *err) {
    const ModelOptions *o = model_options(model);
    const void *windows = tokens->random;
    int64_t count = o->B;
    double start = now_seconds();
    if (tokens->loader && !dataloader_next(tokens->loader, &windows, &count, err)) return false;
    model_load_batch(model, windows, count, o->T, tokens->loader ? tokens->sources.token_bytes : 2);
    model_forward_backward(model, o->B * o->T, true);
    optimizer_norm(optimizer);
    optimizer_step(optimizer, 6e-4, o->B * o->T, false);
    device_sync();
    *seconds = now_seconds() - start;
    return true;
}

// The mean loss of the last step.
static double last_loss(const Model *model) {
    const ModelOptions *o = model_options(model);
    float losses[MAX_SAMPLES];
    copy_d2h(losses, model_sequence_losses(model).data, (size_t)o->B * sizeof *losses,
             STREAM_COMPUTE);
    device_sync();
    double sum = 0.0;
    for (int64_t b = 0; b < o->B; b++) sum += losses[b];

    return sum / (double)(o->B * o->T);
}

typedef struct {
    Samples step, matmul, bandwidth;
} Measurement;

typedef struct {
    const char *descriptor;
    const char *weights, *shard; // NULL: random
    double seconds;              // without a shard
} Job;

// Measures the matmul rate right after a step of these seconds.
static bool sample(Measurement *m, const Model *model, double step_seconds, Error *err) {
    DeviceSpeed speed;
    size_t memory = (size_t)memory_plan_total(model_memory(model));
    if (!speed_measure(model_options(model)->dtype, memory, &speed, err)) return false;
    samples_add(&m->step, step_seconds);
    samples_add(&m->matmul, speed.matmul_flops);
    samples_add(&m->bandwidth, speed.copy_bandwidth);
    return true;
}

// True if another step is due: with a shard, if another line can be read.
static bool step_is_due(const Measurement *m, const Job *job, double total) {
    if (m->step.count == MAX_SAMPLES) return false;
    if (!job->shard) return m->step.count < MIN_SAMPLES || total < job->seconds;
    char line[64];
    return fgets(line, sizeof line, stdin) != NULL;
}

static bool measure(Measurement *m, const Job *job, Model *model, Optimizer *optimizer,
                    Tokens *tokens, Error *err) {
    double total = 0.0;
    for (int64_t step = 1; step_is_due(m, job, total); step++) {
        double seconds;
        if (!timed_step(model, optimizer, tokens, &seconds, err)) return false;
        if (step > WARMUP_STEPS) {
            if (!sample(m, model, seconds, err)) return false;
            total += seconds;
        }

        if (job->shard) { // last, because now it may be another program's turn
            printf("{\"loss\": %.7f, \"step_seconds\": %.6f}\n", last_loss(model), seconds);
            fflush(stdout);
        }
    }
    if (m->step.count == 0)
        return error_set(err, "no step after the %d that warm up", WARMUP_STEPS);
    return true;
}

static void print_json(Measurement *m, const Model *model, const char *descriptor) {
    const ModelOptions *o = model_options(model);
    double step = samples_median(&m->step), tokens = (double)(o->B * o->T),
           matmul = samples_median(&m->matmul);
    double flops_per_token = flops_per_token_exact(&o->config, o->T),
           flops = flops_per_token * tokens / step;
    static char recompute[RECOMPUTE_TEXT];

    printf("{\"model\": \"%s\", \"dtype\": \"%s\", \"B\": %lld, \"T\": %lld, \"recompute\": "
           "\"%s\", \"parameters\": "
           "%lld, ",
           descriptor, dtype_name(o->dtype), (long long)o->B, (long long)o->T,
           recompute_text(&o->recompute, o->config.L, recompute, sizeof recompute),
           (long long)parameter_total(&o->config));
    printf("\"steps\": %d, \"step_seconds\": %.6f, \"step_seconds_min\": %.6f, "
           "\"step_seconds_max\": %.6f, ",
           m->step.count, step, m->step.values[0], m->step.values[m->step.count - 1]);
    printf("\"tokens_per_second\": %.1f, \"flops_per_token\": %.0f, \"step_flops\": %.4e, ",
           tokens / step, flops_per_token, flops);
    printf("\"matmul_flops\": %.4e, \"copy_bandwidth\": %.4e, \"ratio\": %.4f, ", matmul,
           samples_median(&m->bandwidth), flops / matmul);
    printf("\"memory_planned\": %lld, \"memory_peak\": %zu, \"device\": \"%s\", \"libraries\": "
           "\"%s\"}\n",
           (long long)memory_plan_total(model_memory(model)), device_memory_peak(),
           device_facts()->name, device_facts()->libraries);
}

static bool bench_model(const Job *job, Model *model, Optimizer *optimizer, Error *err) {
    static Measurement measurement;
    Tokens tokens = {0};
    bool ok = tokens_open(&tokens, model_options(model), job->shard, err) &&
              measure(&measurement, job, model, optimizer, &tokens, err);
    tokens_close(&tokens);
    if (ok) print_json(&measurement, model, job->descriptor);
    return ok;
}

static bool bench(const Job *job, const ModelOptions *options, Error *err) {
    if (options->B > MAX_SAMPLES)
        return error_set(err, "B is %lld, at most %d", (long long)options->B, MAX_SAMPLES);
    OptimizerOptions adamw = {.seed = 1, .limits = {.clip = 1.0f}};
    optimizer_default_rates(OPTIMIZER_ADAMW, 0.1, adamw.rates);
    Model *model = model_create(options, err);
    if (!model) return false;

    bool ok = true;
    if (job->weights)
        ok = weights_file_load(model, job->weights, err);
    else
        model_init_weights(model, 1);
    Optimizer *optimizer = ok ? optimizer_create(model, &adamw, err) : NULL;
    ok = optimizer && bench_model(job, model, optimizer, err);

    optimizer_destroy(optimizer);
    model_destroy(model);
    return ok;
}

int main(int argc, char **argv) {
    if (argc != 7 && argc != 8) {
        fprintf(stderr, "usage: bench_step MODEL B T fp32|bf16 RECOMPUTE SECONDS     e.g. "
                        "d12,V=50257 4 256 bf16 0 10\n"
                        "       bench_step MODEL B T fp32|bf16 RECOMPUTE WEIGHTS SHARD\n");
        return EXIT_BAD_INPUT;
    }

    device_prepare_process(argv);
    Error err = {""};
    DType dtype = strcmp(argv[4], "fp32") == 0 ? DTYPE_FP32 : DTYPE_BF16;
    Job job = {.descriptor = argv[1]};
    if (argc == 7) {
        job.seconds = atof(argv[6]);
    } else {
        job.weights = argv[6];
        job.shard = argv[7];
    }

    ModelOptions options = {.dtype = dtype,
                            .master = dtype != DTYPE_FP32,
                            .train = true,
                            .B = atoll(argv[2]),
                            .T = atoll(argv[3])};
    DeviceOptions device = {0};

    bool ok = model_config_parse(&options.config, argv[1], &err) &&
              recompute_parse(&options.recompute, argv[5], options.config.L, &err) &&
              device_init(&device, &err);
    if (ok) {
        model_config_set_vocab(&options.config,
                               options.config.V > 0 ? options.config.V : GPT2_VOCAB);
        ok = bench(&job, &options, &err);
        device_shutdown();
    }

    if (!ok) fprintf(stderr, "bench_step: %s\n", err.text);
    return ok ? EXIT_OK : EXIT_RUN_FAILED;
}
