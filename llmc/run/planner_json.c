// The plan as one JSON object, for programs: the figures of planner_device, under keys that stay. doc/memory.md lists
// them. Bytes, FLOP and seconds are plain numbers; what is not known is null.
#include "llmc/run/planner_internal.h"

#include "llmc/model/parameters.h"
#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

enum { SET_TEXT = 1024 };

static void add_number(cJSON *to, const char *key, double n) { cJSON_AddNumberToObject(to, key, n); }

// 0 stands for what is not known.
static void add_known(cJSON *to, const char *key, double n) {
    if (n > 0)
        cJSON_AddNumberToObject(to, key, n);
    else
        cJSON_AddNullToObject(to, key);
}

static void add_recompute(cJSON *to, const char *key, const Recompute *r, const Gpt2Options *model) {
    char text[SET_TEXT];
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
