// The arithmetic of planner.h, and its table for people.
#include "llmc/run/planner.h"

#include "llmc/model/flops.h"
#include "llmc/model/parameters.h"
#include "llmc/run/format.h"
#include <string.h>

enum { TEXT = 64 };

// -------------------------------------------------------------------------------------------------------- arithmetic

double planner_step_flops(const Gpt2Options *model, int64_t tokens) {
    const double again = flops_per_token_hardware(&model->config, model->T, model->recompute) -
                         flops_per_token_hardware(&model->config, model->T, 0);
    return (double)tokens * (flops_per_token_exact(&model->config, model->T) + again);
}

static double optimizer_bytes_per_parameter(const Gpt2Options *model) {
    const double norm = 4, moments = 16, gradient = 4;
    const double weights = model->dtype == DTYPE_FP32 ? 8 : model->master ? 10 : 4; // master 4 + 4, weight 2 (+ 2)
    return norm + gradient + moments + weights;
}

static double elements_per_token(const Gpt2Options *model) {
    const ModelConfig *c = &model->config;
    const double L = (double)c->L, C = (double)c->C, Vp = (double)c->Vp;
    const double again[] = {0, 8, 12, 6}; // by recompute level, C a block
    return (16 * L + 8) * C + 2 * Vp + again[model->recompute] * L * C;
}

double planner_step_bytes(const Gpt2Options *model, int64_t tokens) {
    return (double)tokens * elements_per_token(model) * (double)dtype_size(model->dtype) +
           (double)parameter_total(&model->config) * optimizer_bytes_per_parameter(model);
}

double planner_reserve(void) {
    const double context = 0.5e9, other_backend = 1e9;
    return context + (strcmp(device_facts()->backend, "cuda") == 0 ? 0 : other_backend);
}

static double plan_bytes(const Gpt2Options *model, int64_t B) {
    Gpt2Options at = *model;
    at.B = B;
    MemoryPlan *plan = gpt2_plan(&at);
    const double bytes = (double)memory_plan_total(plan);
    memory_plan_destroy(plan);
    return bytes;
}

// Memory grows by nearly the same with every sequence: a straight line between one that fits and one that does not
// finds the edge in a few plans, where halving would take ten.
int64_t planner_largest_batch(const Gpt2Options *model, double bytes, int64_t most) {
    int64_t low = 1, high = most;
    double low_bytes = plan_bytes(model, low), high_bytes = plan_bytes(model, high);
    if (low_bytes > bytes) return 0;
    if (high_bytes <= bytes) return high;
    while (high - low > 1) {
        int64_t B = low + (int64_t)((double)(high - low) * (bytes - low_bytes) / (high_bytes - low_bytes));
        B = B <= low ? low + 1 : B >= high ? high - 1 : B;
        const double needed = plan_bytes(model, B);
        if (needed <= bytes)
            low = B, low_bytes = needed;
        else
            high = B, high_bytes = needed;
    }
    return low;
}

GpuPlan planner_gpu(const GpuSpec *gpu, const Gpt2Options *model, int64_t step_windows) {
    Gpt2Options there = *model;
    there.dtype = gpu_spec_dtype(gpu, model->dtype);
    const double room = gpu->memory - planner_reserve();
    const int64_t tokens = step_windows * model->T;
    return (GpuPlan){
        .dtype = there.dtype,
        .fits = plan_bytes(&there, model->B) <= room,
        .largest_batch = planner_largest_batch(&there, room, step_windows),
        .step_seconds = planner_step_flops(&there, tokens) / gpu_spec_peak(gpu, there.dtype) +
                        planner_step_bytes(&there, tokens) / gpu->bandwidth,
    };
}

// ---------------------------------------------------------------------------------------------------------- printing

static const char *recompute_text(int level) {
    static const char *const TEXTS[] = {"", ", GELU again (-r 1)", ", GELU and layernorm again (-r 2)",
                                        ", blocks again (-r 3)"};
    return TEXTS[level];
}

static void print_run(FILE *out, const Gpt2Options *model, int64_t tokens, int64_t steps) {
    const ModelConfig *c = &model->config;
    char n[TEXT], all[TEXT];
    fprintf(out, "plan        %lld blocks, %lld channels, %lld heads, context %lld, vocabulary %lld: %s parameters\n",
            (long long)c->L, (long long)c->C, (long long)c->NH, (long long)model->T, (long long)c->V,
            format_count((double)parameter_total(c), n, TEXT));
    fprintf(out, "plan        -b %lld, %lld tokens a step", (long long)model->B, (long long)tokens);
    if (steps > 0)
        fprintf(out, ", %lld steps: %s tokens", (long long)steps,
                format_count((double)steps * (double)tokens, all, TEXT));
    fprintf(out, "\nplan        computed from shapes and datasheets: nothing below was run or measured\n");
}

static void print_memory(FILE *out, const Gpt2Options *model) {
    char bytes[TEXT];
    MemoryPlan *plan = gpt2_plan(model);
    const double N = (double)parameter_total(&model->config);
    const double total = (double)memory_plan_total(plan);
    for (int c = 0; c < MEM_CLASS_COUNT; c++) {
        const double n = (double)memory_plan_class_bytes(plan, (MemoryClass)c);
        if (n == 0) continue;
        fprintf(out, "planned     %-12s %9s", memory_class_name((MemoryClass)c), format_bytes(n, bytes, TEXT));
        if (c < MEM_ACTIVATIONS) fprintf(out, "  %5.2f bytes a parameter", n / N);
        if (c == MEM_ACTIVATIONS)
            fprintf(out, "  %.0f KiB a token%s", n / 1024 / (double)(model->B * model->T),
                    recompute_text(model->recompute));
        fprintf(out, "\n");
    }
    fprintf(out, "planned     %-12s %9s  in %s, as the %s backend lays it out\n", "in all",
            format_bytes(total, bytes, TEXT), dtype_name(model->dtype), device_facts()->backend);
    memory_plan_destroy(plan);
}

static void print_floors(FILE *out, const Gpt2Options *model, int64_t tokens) {
    char bytes[TEXT];
    fprintf(out, "limit       a step computes %.5g TFLOP: 72 L C^2 + 6 Vp C + 6 L C (T+1) a token%s\n",
            planner_step_flops(model, tokens) / 1e12,
            model->recompute == RECOMPUTE_BLOCK ? ", and 16 L C^2 + 2 L C (T+1) again" : "");
    fprintf(out,
            "limit       a step moves %s beside its matmuls: %.0f elements a token, %.0f bytes a parameter (norm, "
            "AdamW)\n",
            format_bytes(planner_step_bytes(model, tokens), bytes, TEXT), elements_per_token(model),
            optimizer_bytes_per_parameter(model));
    fprintf(out,
            "limit       least time of a step = FLOP / dense peak + bytes / bandwidth of the datasheet; real steps "
            "take longer\n");
}

// "" in front where there is no figure to be a limit.
static const char *bound(const char *sign, const char *figure, char *buf) {
    snprintf(buf, TEXT, "%s%s", *figure ? sign : "", *figure ? figure : "-");
    return buf;
}

static void print_gpu(FILE *out, const GpuSpec *gpu, const Gpt2Options *model, int64_t step_windows, int64_t steps) {
    const GpuPlan p = planner_gpu(gpu, model, step_windows);
    const bool times = p.largest_batch > 0 && model->train;
    char batch[TEXT] = "none", flops[TEXT], step[TEXT] = "", rate[TEXT] = "", all[TEXT] = "", half[TEXT] = "-";
    char s[TEXT], r[TEXT], a[TEXT];
    if (p.largest_batch > 0) snprintf(batch, TEXT, "%lld", (long long)p.largest_batch);
    if (times) {
        format_count((double)(step_windows * model->T) / p.step_seconds, rate, TEXT);
        snprintf(step, TEXT, "%.3g s", p.step_seconds);
    }
    if (times && steps > 0) {
        format_duration(p.step_seconds * (double)steps, all, TEXT);
        format_duration(2 * p.step_seconds * (double)steps, half, TEXT);
    }
    snprintf(flops, TEXT, "%.4g", gpu_spec_peak(gpu, p.dtype) / 1e12);
    fprintf(out, "limit       %-12s %4.0f GB  %s %6s TFLOP/s %5.0f GB/s  %-5s %5s  %-10s %-9s  %-9s  %s\n", gpu->name,
            gpu->memory / 1e9, dtype_name(p.dtype), flops, gpu->bandwidth / 1e9, p.fits ? "yes" : "no", batch,
            bound(">= ", step, s), bound("<= ", rate, r), bound(">= ", all, a), half);
}

void planner_print(FILE *out, const Gpt2Options *model, int64_t step_windows, int64_t steps) {
    const int64_t tokens = step_windows * model->T;
    int count;
    const GpuSpec *gpus = gpu_table(&count);
    print_run(out, model, tokens, steps);
    print_memory(out, model);
    fprintf(out, "planned     %.1f GB of a GPU stay free for %s\n", planner_reserve() / 1e9,
            strcmp(device_facts()->backend, "cuda") == 0
                ? "the CUDA context"
                : "the CUDA context (about 0.5) and the larger logits and workspace there");
    fprintf(out, "planned     less memory, same model: a smaller -b; -r 1 to 3, computing more; -w 0\n");
    if (model->train) print_floors(out, model, tokens);
    char fits[TEXT];
    snprintf(fits, TEXT, "-b %lld", (long long)model->B);
    fprintf(out, "limit       %-12s %7s  %-20s %10s  %-5s %5s  %-10s %-9s  %-9s  %s\n", "GPU", "memory",
            "datasheet peak", "bandwidth", fits, "most", "a step", "tokens/s", "all steps", "at 50%");
    for (int i = 0; i < count; i++) print_gpu(out, &gpus[i], model, step_windows, steps);
}
