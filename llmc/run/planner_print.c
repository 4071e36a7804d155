// The plan as text, for people, and as one JSON object, for programs. Figures are planner_device's; every line says
// whether it is a plan or a limit. Keys of the object stay; doc/memory.md lists them. Bytes, FLOP and seconds are plain
// numbers there; what is not known is null.
#include "llmc/base/format.h"
#include "llmc/model/parameters.h"
#include "llmc/run/planner.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT = 64, SET_TEXT = 256, AUTO_WIDTH = 16 };

static const char *set_text(const Recompute *r, const Gpt2Options *model, char buf[SET_TEXT]) {
    return recompute_text(r, model->config.L, buf, SET_TEXT);
}

// ------------------------------------------------------------------------------------------------------------- the run

static void print_run(FILE *out, const PlanRequest *r) {
    const Gpt2Options *m = &r->model;
    const ModelConfig *c = &m->config;
    char n[TEXT];
    fprintf(out, "plan        %lld blocks, %lld channels, %lld heads, context %lld, vocabulary %lld: %s parameters\n",
            (long long)c->L, (long long)c->C, (long long)c->NH, (long long)m->T, (long long)c->V,
            format_count((double)parameter_total(c), n, TEXT));
    fprintf(out, "plan        ");
    if (r->any_batch)
        fprintf(out, "-b auto -r %s", r->recompute);
    else
        fprintf(out, "-b %lld -r %s", (long long)m->B, r->recompute);
    const int64_t windows = r->step_windows > 0 ? r->step_windows : r->any_batch ? 0 : m->B;
    if (windows > 0) fprintf(out, ", %lld tokens a step", (long long)(windows * m->T));
    const double tokens = planner_tokens(r, windows);
    if (tokens > 0 && windows > 0)
        fprintf(out, ", %.0f steps: %s tokens", planner_steps(tokens, windows * m->T), format_count(tokens, n, TEXT));
    fprintf(out, "\n");
    if (m->train)
        fprintf(out, "plan        %s%s, gradients in %s%s%s\n", optimizer_name(m->optimizer),
                optimizer_keeps_master(m->optimizer, m->master, m->dtype) ? " with master weights" : "",
                m->gradients_in_dtype ? dtype_name(m->dtype) : "fp32", m->offload ? ", its state in host memory" : "",
                m->fp8 ? ", matmuls of the blocks in fp8" : "");
    fprintf(out, "plan        computed from shapes and datasheets: nothing below was run or measured\n");
}

// ---------------------------------------------------------------------------------------------------------- the memory

static void print_classes(FILE *out, const DevicePlan *p) {
    char bytes[TEXT];
    const double N = (double)parameter_total(&p->model.config);
    for (int c = 0; c < MEM_CLASS_COUNT; c++) {
        const double n = p->memory.classes[c];
        if (n == 0) continue;
        fprintf(out, "planned     %-12s %9s", memory_class_name((MemoryClass)c), format_bytes(n, bytes, TEXT));
        if (c < MEM_ACTIVATIONS) fprintf(out, "  %5.2f bytes a parameter", n / N);
        if (c == MEM_ACTIVATIONS)
            fprintf(out, "  %.0f KiB a token; at the peak:", n / 1024 / (double)(p->model.B * p->model.T));
        fprintf(out, "\n");
        if (c != MEM_ACTIVATIONS) continue;
        for (int k = 0; k < KIND_COUNT; k++)
            if (p->memory.kinds[k] > 0)
                fprintf(out, "planned       %-17s %9s\n", activation_kind_name((ActivationKind)k),
                        format_bytes(p->memory.kinds[k], bytes, TEXT));
        if (p->memory.gaps > 0)
            fprintf(out, "planned       %-17s %9s\n", "gaps", format_bytes(p->memory.gaps, bytes, TEXT));
    }
}

static void print_memory(FILE *out, const DevicePlan *p) {
    char bytes[TEXT], more[TEXT], set[SET_TEXT];
    print_classes(out, p);
    fprintf(out, "planned     %-12s %9s  with -b %lld -r %s in %s", "in all",
            format_bytes(p->memory.total, bytes, TEXT), (long long)p->model.B,
            set_text(&p->model.recompute, &p->model, set), dtype_name(p->model.dtype));
    if (p->gpu.spec.memory > 0)
        fprintf(out, "; beside it %s for the CUDA context\n",
                format_bytes(planner_reserve(p->gpu.spec.memory), more, TEXT));
    else
        fprintf(out, ", as the %s backend of this machine lays it out\n", device_facts()->backend);
    if (p->memory.host > 0)
        fprintf(out, "planned     %-12s %9s  master weights and state of the optimizer\n", "host memory",
                format_bytes(p->memory.host, bytes, TEXT));
}

static const char *batch_text(int64_t B, char buf[TEXT]) {
    snprintf(buf, TEXT, B > 0 ? "-b %lld" : "none", (long long)B);
    return buf;
}

static void print_most(FILE *out, const DevicePlan *p) {
    char batch[TEXT], set[SET_TEXT], bytes[TEXT];
    fprintf(out, "planned     most in %s:", format_bytes(p->room, bytes, TEXT));
    for (int level = 0; level < (p->model.train ? 4 : 1); level++)
        fprintf(out, "%s -r %d %s", level ? "," : "", level, batch_text(p->most[level], batch));
    if (p->model.train && p->auto_batch > 0)
        fprintf(out, "; -b auto -r auto: %s -r %s", batch_text(p->auto_batch, batch),
                set_text(&p->auto_recompute, &p->model, set));
    fprintf(out, "\n");
    if (!p->fits) fprintf(out, "planned     %s\n", p->why_not.text);
}

// ---------------------------------------------------------------------------------------------------------- the limits

static void print_floors(FILE *out, const Gpt2Options *model, const StepLimit *s, int64_t tokens) {
    char bytes[TEXT];
    const double again = (double)tokens * recompute_flops_per_token(&model->recompute, &model->config, model->T);
    fprintf(out, "limit       a step computes %.5g TFLOP: 72 L C^2 + 6 Vp C + 6 L C (T+1) a token", s->flops / 1e12);
    if (again > 0) fprintf(out, ", and %.3g%% for -r", 100 * again / (s->flops - again));
    if (s->fp8_flops > 0) fprintf(out, "; %.3g%% of it in fp8", 100 * s->fp8_flops / s->flops);
    fprintf(out, "\nlimit       a step moves %s beside its matmuls, %.3g bytes a parameter for norm and update\n",
            format_bytes(s->bytes, bytes, TEXT),
            planner_step_bytes(model, 0) / (double)parameter_total(&model->config));
    if (s->link_bytes > 0)
        fprintf(out, "limit       a step sends %s to the GPU and as many back\n",
                format_bytes(s->link_bytes, bytes, TEXT));
    fprintf(out,
            "limit       least time of a step = FLOP / dense peak + bytes / bandwidth%s of the datasheet; real steps "
            "take longer\n",
            s->link_bytes > 0 ? " + bytes / link" : "");
}

// The figures of one GPU as they stand in a line; "-" where there is none.
typedef struct {
    char step[TEXT], rate[TEXT], all[TEXT], half[TEXT], cost[TEXT], half_cost[TEXT];
} Limits;

static Limits limits_of(const DevicePlan *p, const PlanRequest *r) {
    Limits l = {"-", "-", "-", "-", "-", "-"};
    char text[TEXT];
    const int64_t step_tokens = p->windows * p->model.T;
    const double seconds = p->step.seconds, tokens = planner_tokens(r, p->windows);
    if (p->batch == 0 || seconds == 0) return l;
    snprintf(l.step, TEXT, ">= %.3g s", seconds);
    snprintf(l.rate, TEXT, "<= %s", format_count((double)step_tokens / seconds, text, TEXT));
    if (tokens == 0) return l;
    const double all = seconds * planner_steps(tokens, step_tokens), hours = all / 3600;
    snprintf(l.all, TEXT, ">= %s", format_duration(all, text, TEXT));
    format_duration(2 * all, l.half, TEXT);
    if (r->price == 0) return l;
    snprintf(l.cost, TEXT, ">= $%.2f", hours * r->price);
    snprintf(l.half_cost, TEXT, "$%.2f", 2 * hours * r->price);
    return l;
}

static void print_limits(FILE *out, const DevicePlan *p, const PlanRequest *r) {
    const Limits l = limits_of(p, r);
    if (p->step.seconds == 0 || p->batch == 0) return;
    fprintf(out, "limit       %s: a step %s, %s tokens/s", p->gpu.spec.name, l.step, l.rate);
    if (*l.all != '-') fprintf(out, "; all steps %s, at 50%% of the limit %s", l.all, l.half);
    if (*l.cost != '-') fprintf(out, "; at $%.4g an hour %s, at 50%% %s", r->price, l.cost, l.half_cost);
    fprintf(out, "\n");
}

// --------------------------------------------------------------------------------------------------- one GPU, all GPUs

static void print_gpu(FILE *out, const DevicePlan *p, const PlanRequest *r) {
    const GpuSpec *g = &p->gpu.spec;
    fprintf(out, "planned     %s: %.4g GB", g->name, g->memory / 1e9);
    if (g->bandwidth > 0)
        fprintf(out, ", %.4g TFLOP/s in %s, %.4g GB/s", gpu_spec_peak(g, p->model.dtype) / 1e12,
                dtype_name(p->model.dtype), g->bandwidth / 1e9);
    if (r->model.fp8) fprintf(out, p->model.fp8 ? ", %.4g TFLOP/s in fp8" : ", no fp8", g->peak_fp8 / 1e12);
    fprintf(out, "\n");
    print_memory(out, p);
    print_most(out, p);
    if (!p->model.train || g->bandwidth == 0) return;
    print_floors(out, &p->model, &p->step, p->windows * p->model.T);
    print_limits(out, p, r);
}

static void print_row(FILE *out, const DevicePlan *p, const PlanRequest *r) {
    const GpuSpec *g = &p->gpu.spec;
    const Limits l = limits_of(p, r);
    const bool is_auto = planner_is_auto(r), priced = r->price > 0;
    char fits[TEXT], set[SET_TEXT], most[TEXT] = "none";
    snprintf(fits, TEXT, p->fits ? "yes" : is_auto ? "none" : "no");
    if (p->fits && is_auto)
        snprintf(fits, TEXT, "-b %lld -r %.40s", (long long)p->model.B, set_text(&p->model.recompute, &p->model, set));
    if (p->batch > 0) snprintf(most, TEXT, "%lld", (long long)p->batch);
    fprintf(out, "limit       %-12s %4.0f GB  %s %6.4g TFLOP/s %5.0f GB/s  %-*s %5s  %-10s %-9s  %-9s  %*s%s%s\n",
            g->name, g->memory / 1e9, dtype_name(p->model.dtype), gpu_spec_peak(g, p->model.dtype) / 1e12,
            g->bandwidth / 1e9, is_auto ? AUTO_WIDTH : 6, fits, most, l.step, l.rate, l.all, priced ? -6 : 0, l.half,
            priced ? "  " : "", priced ? l.cost : "");
}

static bool print_table(FILE *out, const PlanRequest *r, Error *err) {
    int count;
    const GpuSpec *gpus = gpu_table(&count);
    char fits[TEXT];
    DevicePlan p;
    if (!planner_device(&p, r, NULL, err)) return false;
    planner_alternatives(&p, r);
    print_memory(out, &p);
    print_most(out, &p);
    fprintf(out,
            "planned     for a GPU --gpu shows the same; 1 GB of each, at most 6%%, stays free for the CUDA context\n");
    if (p.model.train) {
        const StepLimit s = planner_step(&gpus[0], &p.model, p.windows * p.model.T);
        print_floors(out, &p.model, &s, p.windows * p.model.T);
    }
    snprintf(fits, TEXT, "-b %lld", (long long)r->model.B);
    fprintf(out, "limit       %-12s %7s  %-20s %10s  %-*s %5s  %-10s %-9s  %-9s  %s%s\n", "GPU", "memory",
            "datasheet peak", "bandwidth", planner_is_auto(r) ? AUTO_WIDTH : 6, planner_is_auto(r) ? "chosen" : fits,
            "most", "a step", "tokens/s", "all steps", "at 50%", r->price > 0 ? "  cost at least" : "");
    for (int i = 0; i < count; i++) {
        const GpuChoice gpu = {.spec = gpus[i]};
        if (!planner_device(&p, r, &gpu, err)) return false;
        print_row(out, &p, r);
    }
    return true;
}

// The answer in one sentence: whether it fits, with which -b and -r, in how much memory, and for how long at least.
static bool print_answer(FILE *out, const PlanRequest *r, const GpuChoice *gpu, Error *err) {
    char set[SET_TEXT], bytes[TEXT], there[TEXT], text[TEXT];
    const char *where = gpu ? gpu->spec.name : "this machine";
    DevicePlan p;
    if (!planner_device(&p, r, gpu, err)) return false;
    if (gpu && *gpu->name) where = gpu->name;
    if (!p.fits) {
        fprintf(out, "plan        %s: %s\n", where, p.why_not.text);
        return true;
    }
    fprintf(out, "plan        %s: it fits with -b %lld -r %s and takes %s of %s", where, (long long)p.model.B,
            set_text(&p.model.recompute, &p.model, set), format_bytes(p.memory.total, bytes, TEXT),
            format_bytes(p.room, there, TEXT));
    const double tokens = planner_tokens(r, p.windows), seconds = p.step.seconds;
    if (seconds > 0 && tokens > 0) {
        const double all = seconds * planner_steps(tokens, p.windows * p.model.T);
        fprintf(out, "; all steps take at least %s", format_duration(all, text, TEXT));
        fprintf(out, ", at half the speed of the datasheet %s", format_duration(2 * all, text, TEXT));
    } else if (seconds > 0) {
        fprintf(out, "; a step takes at least %.3g s", seconds);
    } else if (p.model.train) {
        fprintf(out, "; its first steps will tell how long they take");
    }
    fprintf(out, "\n");
    return true;
}

bool planner_print_text(FILE *out, const PlanRequest *r, const GpuChoice *gpus, int count, Error *err) {
    DevicePlan p;
    for (int i = 0; i < count || i == 0; i++)
        if (!print_answer(out, r, count ? &gpus[i] : NULL, err)) return false;
    print_run(out, r);
    if (count == 0) return print_table(out, r, err);
    for (int i = 0; i < count; i++) {
        if (!planner_device(&p, r, &gpus[i], err)) return false;
        planner_alternatives(&p, r);
        print_gpu(out, &p, r);
    }
    return true;
}

// ---------------------------------------------------------------------------------------------------------------- both

double planner_tokens(const PlanRequest *r, int64_t step_windows) {
    return r->tokens > 0 ? r->tokens : (double)r->steps * (double)(step_windows * r->model.T);
}

double planner_steps(double tokens, int64_t tokens_per_step) { return ceil(tokens / (double)tokens_per_step); }

bool planner_is_auto(const PlanRequest *r) { return r->any_batch || strcmp(r->recompute, "auto") == 0; }

bool planner_check_recompute(const PlanRequest *r, Error *err) {
    Recompute ignored;
    return strcmp(r->recompute, "auto") == 0 || recompute_parse(&ignored, r->recompute, r->model.config.L, err);
}

bool planner_print(FILE *out, const PlanRequest *r, Error *err) {
    enum { MOST_GPUS = 32 };
    GpuChoice gpus[MOST_GPUS];
    int count = 0;
    if (!planner_check_recompute(r, err)) return false;
    for (const char *at = r->gpus; *r->gpus; at++) {
        const size_t length = strcspn(at, ",");
        if (length == 0)
            return error_set(err, "--gpu %.80s: no GPU before or after a comma; leave the comma out", r->gpus);
        if (count == MOST_GPUS) return error_set(err, "--gpu: more than %d GPUs", MOST_GPUS);
        if (!gpu_find(&gpus[count++], at, length, err)) return false;
        at += length;
        if (!*at) break;
    }
    return r->json ? planner_print_json(out, r, gpus, count, err) : planner_print_text(out, r, gpus, count, err);
}

// ---------------------------------------------------------------------------------------------------------------- JSON

enum { JSON_SET_TEXT = 1024 };

static void add_number(cJSON *to, const char *key, double n) { cJSON_AddNumberToObject(to, key, n); }

// 0 stands for what is not known.
static void add_known(cJSON *to, const char *key, double n) {
    if (n > 0)
        cJSON_AddNumberToObject(to, key, n);
    else
        cJSON_AddNullToObject(to, key);
}

static void add_recompute(cJSON *to, const char *key, const Recompute *r, const Gpt2Options *model) {
    char text[JSON_SET_TEXT];
    cJSON_AddStringToObject(to, key, recompute_text(r, model->config.L, text, sizeof text));
}

static void add_model(cJSON *to, const ModelConfig *c) {
    cJSON *model = cJSON_AddObjectToObject(to, "model");
    add_number(model, "L", (double)c->L);
    add_number(model, "C", (double)c->C);
    add_number(model, "NH", (double)c->NH);
    add_number(model, "V", (double)c->V);
    add_number(model, "Vp", (double)c->Vp);
    add_number(model, "max_T", (double)c->max_T);
    add_number(model, "parameters", (double)parameter_total(c));
}

static void add_run(cJSON *to, const PlanRequest *r) {
    const Gpt2Options *m = &r->model;
    cJSON *run = cJSON_AddObjectToObject(to, "run");
    add_number(run, "T", (double)m->T);
    if (r->any_batch)
        cJSON_AddStringToObject(run, "batch_size", "auto");
    else
        add_number(run, "batch_size", (double)m->B);
    cJSON_AddStringToObject(run, "recompute", r->recompute);
    add_known(run, "tokens", r->tokens);
    cJSON_AddStringToObject(run, "optimizer", optimizer_name(m->optimizer));
    cJSON_AddBoolToObject(run, "master_weights", m->master && optimizer_has_master(m->optimizer));
    cJSON_AddStringToObject(run, "grad_dtype", m->gradients_in_dtype ? "compute" : "fp32");
    cJSON_AddStringToObject(run, "offload", m->offload ? "optimizer" : "none");
    cJSON_AddBoolToObject(run, "fp8", m->fp8);
    cJSON_AddBoolToObject(run, "train", m->train);
    add_known(run, "price", r->price);
}

static void add_memory(cJSON *to, const DevicePlan *p) {
    const double N = (double)parameter_total(&p->model.config);
    double a_parameter = 0;
    cJSON *memory = cJSON_AddObjectToObject(to, "memory");
    for (int c = 0; c < MEM_CLASS_COUNT; c++) {
        add_number(memory, memory_class_name((MemoryClass)c), p->memory.classes[c]);
        if (c < MEM_ACTIVATIONS) a_parameter += p->memory.classes[c] / N;
    }
    add_number(memory, "total", p->memory.total);
    add_number(memory, "context", planner_reserve(p->gpu.spec.memory));
    add_number(memory, "host", p->memory.host);
    add_number(memory, "room", p->room);
    add_number(memory, "bytes_per_parameter", a_parameter);
    cJSON *kinds = cJSON_AddObjectToObject(memory, "activations_at_peak");
    for (int k = 0; k < KIND_COUNT; k++) add_number(kinds, activation_kind_name((ActivationKind)k), p->memory.kinds[k]);
    add_number(kinds, "gaps", p->memory.gaps);
}

static void add_most(cJSON *to, const DevicePlan *p) {
    const char *const levels[] = {"0", "1", "2", "3"};
    cJSON *most = cJSON_AddObjectToObject(to, "largest_batch");
    for (int level = 0; level < 4; level++) add_number(most, levels[level], (double)p->most[level]);
    cJSON *chosen = cJSON_AddObjectToObject(to, "auto");
    add_number(chosen, "batch_size", (double)p->auto_batch);
    if (p->auto_batch > 0)
        add_recompute(chosen, "recompute", &p->auto_recompute, &p->model);
    else
        cJSON_AddNullToObject(chosen, "recompute");
}

// The least time of a step and of the run, and what that costs.
static void add_limit(cJSON *to, const DevicePlan *p, const PlanRequest *r) {
    const StepLimit *s = &p->step;
    const double step_tokens = (double)(p->windows * p->model.T), tokens = planner_tokens(r, p->windows);
    const bool known = p->batch > 0 && s->seconds > 0;
    const double seconds = known ? s->seconds : 0,
                 all = tokens > 0 ? seconds * planner_steps(tokens, p->windows * p->model.T) : 0;
    cJSON *limit = cJSON_AddObjectToObject(to, "limit");
    add_number(limit, "step_flop", s->flops);
    add_number(limit, "step_fp8_flop", s->fp8_flops);
    add_number(limit, "step_bytes", s->bytes);
    add_number(limit, "step_link_bytes", s->link_bytes);
    add_number(limit, "step_tokens", step_tokens);
    add_known(limit, "step_seconds", seconds);
    add_known(limit, "tokens_per_second", known ? step_tokens / seconds : 0);
    add_known(limit, "steps", tokens > 0 ? planner_steps(tokens, p->windows * p->model.T) : 0);
    add_known(limit, "run_seconds", all);
    add_known(limit, "run_cost", all / 3600 * r->price);
}

static void add_gpu(cJSON *to, const DevicePlan *p) {
    const GpuSpec *g = &p->gpu.spec;
    cJSON_AddStringToObject(to, "name", g->memory > 0 ? g->name : device_facts()->name);
    add_number(to, "memory_bytes", g->memory > 0 ? g->memory : (double)device_facts()->memory_free);
    cJSON_AddStringToObject(to, "dtype", dtype_name(p->model.dtype));
    add_known(to, "peak_flops", gpu_spec_peak(g, p->model.dtype));
    add_known(to, "peak_fp8_flops", p->model.fp8 ? g->peak_fp8 : 0);
    add_known(to, "bandwidth", g->bandwidth);
    add_known(to, "link", g->link);
}

static bool add_device(cJSON *devices, const PlanRequest *r, const GpuChoice *gpu, Error *err) {
    DevicePlan p;
    if (!planner_device(&p, r, gpu, err)) return false;
    planner_alternatives(&p, r);
    cJSON *device = cJSON_CreateObject();
    cJSON_AddItemToArray(devices, device);
    add_gpu(device, &p);
    cJSON_AddBoolToObject(device, "fits", p.fits);
    if (p.fits)
        cJSON_AddNullToObject(device, "why_not");
    else
        cJSON_AddStringToObject(device, "why_not", p.why_not.text);
    add_number(device, "batch_size", (double)p.model.B);
    add_recompute(device, "recompute", &p.model.recompute, &p.model);
    add_memory(device, &p);
    add_most(device, &p);
    add_limit(device, &p, r);
    return true;
}

bool planner_print_json(FILE *out, const PlanRequest *r, const GpuChoice *gpus, int count, Error *err) {
    int all;
    const GpuSpec *table = gpu_table(&all);
    cJSON *plan = cJSON_CreateObject();
    add_model(plan, &r->model.config);
    add_run(plan, r);
    cJSON *devices = cJSON_AddArrayToObject(plan, "devices");
    bool ok = count > 0 || add_device(devices, r, NULL, err);
    for (int i = 0; ok && i < count; i++) ok = add_device(devices, r, &gpus[i], err);
    for (int i = 0; ok && count == 0 && i < all; i++) {
        const GpuChoice gpu = {.spec = table[i]};
        ok = add_device(devices, r, &gpu, err);
    }
    char *text = ok ? cJSON_Print(plan) : NULL;
    if (text) fprintf(out, "%s\n", text);
    free(text);
    cJSON_Delete(plan);
    return ok;
}
