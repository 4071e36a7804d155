// See plan_json.h.
#include "llmc/plan/plan_json.h"

#include "llmc/model/model_activations.h"
#include "llmc/model/parameters.h"
#include "llmc/model/recompute.h"

#include <stdlib.h>

static void add_recompute(cJSON *to, const Recompute *r, const ModelOptions *model) {
    enum { JSON_SET_TEXT = 1024 };
    char text[JSON_SET_TEXT];
    JSON_ADD(to, JSON_TEXT("recompute", recompute_text(r, model->config.L, text, sizeof text)));
}

static void add_estimate(cJSON *to, const char *name, Estimate e) {
    const double seconds[] = {e.likely, e.worst, e.best};
    if (e.likely > 0)
        cJSON_AddItemToObject(to, name, cJSON_CreateDoubleArray(seconds, 3));
    else
        cJSON_AddNullToObject(to, name);
}

// Likely, worst, best. The ops of each of all GPUs would be thousands of lines.
static void add_predicted(cJSON *device, const DevicePlan *p, bool with_ops) {
    const Estimate e = p->predicted;
    Estimate rate = {0};
    if (e.likely > 0)
        rate = (Estimate){p->step_tokens / e.likely, p->step_tokens / e.worst,
                          p->step_tokens / e.best};

    cJSON *predicted = cJSON_AddObjectToObject(device, "predicted");
    add_estimate(predicted, "step_seconds", e);
    add_estimate(predicted, "tokens_per_second", rate);

    if (!with_ops) return;
    add_estimate(predicted, "between_ops_seconds", p->prediction.between);
    add_estimate(predicted, "launch_seconds", p->prediction.launch);

    cJSON *ops = cJSON_AddArrayToObject(predicted, "ops");
    for (int i = 0; i < p->prediction.count; i++) {
        const PredictedOp *op = &p->prediction.ops[i];
        cJSON *row = cJSON_CreateObject();
        cJSON_AddItemToArray(ops, row);
        JSON_ADD(row, JSON_TEXT("op", op->op), JSON_TEXT("tensor", op->tensor),
                 JSON_NUMBER("calls", op->calls), JSON_NUMBER("flop", op->flops),
                 JSON_NUMBER("bytes", op->bytes), JSON_NUMBER("launches", op->launches));

        cJSON *parts = cJSON_AddArrayToObject(row, "parts");
        for (int k = 0; k < op->num_parts; k++) {
            cJSON *part = cJSON_CreateObject();
            cJSON_AddItemToArray(parts, part);
            JSON_ADD(part, JSON_TEXT("rate", rate_name(op->parts[k].rate)),
                     JSON_NUMBER("amount", op->parts[k].amount));
            add_estimate(part, "seconds", op->parts[k].seconds);
        }
    }
}

// The arena: a rectangle for each tensor, its ticks and its addresses. scripts/plot_memory.py draws
// it.
static void add_arena(cJSON *device, const ModelOptions *model) {
    char name[TICK_NAME];
    int last_tick = 0, peak_tick;
    MemoryPlan *plan = model_plan(model);
    const int64_t peak = memory_plan_live_peak(plan, &peak_tick);
    const int count = memory_plan_count(plan);

    for (int i = 0; i < count; i++) {
        const PlannedTensor t = memory_plan_tensor(plan, i);
        if (t.last_use > last_tick) last_tick = t.last_use;
    }

    cJSON *arena = cJSON_AddObjectToObject(device, "arena");
    JSON_ADD(arena, JSON_NUMBER("total", memory_plan_total(plan)), JSON_NUMBER("peak", peak),
             JSON_NUMBER("peak_tick", peak_tick));
    cJSON *ticks = cJSON_AddArrayToObject(arena, "ticks"),
          *tensors = cJSON_AddArrayToObject(arena, "tensors");
    for (int t = 0; t <= last_tick; t++)
        cJSON_AddItemToArray(ticks, cJSON_CreateString(model_tick_name(&model->config, t, name)));

    for (int i = 0; i < count; i++) {
        const PlannedTensor t = memory_plan_tensor(plan, i);
        if (t.bytes == 0) continue;
        const bool always = t.first_use == PLAN_ALWAYS;
        const char *kind = activation_kind_name(activation_kind(t.name));
        int first = t.first_use, last = t.last_use;
        if (always) {
            kind = memory_class_name(t.memory_class);
            first = 0;
            last = last_tick;
        }

        cJSON *tensor = cJSON_CreateObject();
        cJSON_AddItemToArray(tensors, tensor);
        JSON_ADD(tensor, JSON_TEXT("name", t.name), JSON_TEXT("kind", kind),
                 JSON_NUMBER("offset", memory_plan_offset(plan, i)), JSON_NUMBER("bytes", t.bytes),
                 JSON_NUMBER("first", first), JSON_NUMBER("last", last),
                 JSON_BOOL("always", always));
    }

    memory_plan_destroy(plan);
}

// The bytes by class, those of the activations at their peak, and the largest batch of each -r.
static void add_memory(cJSON *device, const DevicePlan *p) {
    const double N = (double)parameter_total(&p->model.config);
    double a_parameter = 0;
    cJSON *memory = cJSON_AddObjectToObject(device, "memory");
    for (MemoryClass c = 0; c < MEM_CLASS_COUNT; c++) {
        JSON_ADD(memory, JSON_NUMBER(memory_class_name(c), p->memory.classes[c]));
        if (c < MEM_ACTIVATIONS) a_parameter += p->memory.classes[c] / N;
    }
    JSON_ADD(memory, JSON_NUMBER("total", p->memory.total),
             JSON_NUMBER("context", plan_reserve(p->gpu.spec.memory)), JSON_NUMBER("nccl", p->nccl),
             JSON_NUMBER("host", p->memory.host), JSON_NUMBER("room", p->room),
             JSON_NUMBER("bytes_per_parameter", a_parameter));

    cJSON *kinds = cJSON_AddObjectToObject(memory, "activations_at_peak");
    for (int k = 0; k < KIND_COUNT; k++)
        JSON_ADD(kinds, JSON_NUMBER(activation_kind_name(k), p->memory.kinds[k]));
    JSON_ADD(cJSON_AddObjectToObject(device, "largest_batch"), JSON_NUMBER("0", p->most[0]),
             JSON_NUMBER("1", p->most[1]), JSON_NUMBER("2", p->most[2]),
             JSON_NUMBER("3", p->most[3]));
}

// The least time of a step and of the run.
static void add_limit(cJSON *device, const DevicePlan *p) {
    const StepLimit *s = &p->step;
    double tokens_per_second = 0;
    if (p->step_seconds > 0) tokens_per_second = p->step_tokens / p->step_seconds;
    JSON_ADD(cJSON_AddObjectToObject(device, "limit"), JSON_NUMBER("step_flop", s->flops),
             JSON_NUMBER("step_fp8_flop", s->fp8_flops), JSON_NUMBER("step_bytes", s->bytes),
             JSON_NUMBER("step_link_bytes", s->link_bytes),
             JSON_NUMBER("step_exchange_bytes", p->exchange_bytes),
             JSON_KNOWN("step_exchange_seconds", p->exchange_seconds),
             JSON_KNOWN("step_exposed_seconds", p->exposed_seconds),
             JSON_KNOWN("efficiency", p->efficiency), JSON_NUMBER("step_tokens", p->step_tokens),
             JSON_KNOWN("step_seconds", p->step_seconds),
             JSON_KNOWN("tokens_per_second", tokens_per_second), JSON_KNOWN("steps", p->steps),
             JSON_KNOWN("run_seconds", p->run_seconds));
}

static void add_device(cJSON *devices, const DevicePlan *p, bool with_ops) {
    const GpuSpec *g = &p->gpu.spec;
    const char *name = g->name;
    double memory_bytes = g->memory, fp8_flops = 0;
    JsonField why_not = JSON_KNOWN("why_not", 0);
    if (!name) {
        name = device_facts()->name;
        memory_bytes = (double)device_facts()->memory_free;
    }

    if (p->model.fp8) fp8_flops = g->peak_fp8;
    if (!p->fits) why_not = JSON_TEXT("why_not", p->why_not.text);

    cJSON *device = cJSON_CreateObject();
    cJSON_AddItemToArray(devices, device);
    JSON_ADD(device, JSON_TEXT("name", name), JSON_NUMBER("memory_bytes", memory_bytes),
             JSON_TEXT("dtype", dtype_name(p->model.dtype)),
             JSON_KNOWN("peak_flops", gpu_spec_peak(g, p->model.dtype)),
             JSON_KNOWN("peak_fp8_flops", fp8_flops), JSON_KNOWN("bandwidth", g->bandwidth),
             JSON_KNOWN("link", g->link), JSON_KNOWN("gpu_link", p->exchange_rate),
             JSON_BOOL("fits", p->fits), why_not, JSON_NUMBER("batch_size", p->model.B));

    add_recompute(device, &p->model.recompute, &p->model);
    add_memory(device, p);

    cJSON *chosen = cJSON_AddObjectToObject(device, "auto");
    JSON_ADD(chosen, JSON_NUMBER("batch_size", p->auto_batch));
    if (p->auto_batch > 0)
        add_recompute(chosen, &p->auto_recompute, &p->model);
    else
        JSON_ADD(chosen, JSON_KNOWN("recompute", 0));

    add_limit(device, p);
    add_predicted(device, p, with_ops);
}

void plan_json_shape(cJSON *to, const ModelConfig *c) {
    static const char *const norms[] = {"layernorm", "rmsnorm"}, *const activations[] = {
                                                                     "gelu", "swiglu", "relu2"};
    JSON_ADD(to, JSON_NUMBER("L", c->L), JSON_NUMBER("C", c->C), JSON_NUMBER("NH", c->NH),
             JSON_NUMBER("V", c->V), JSON_NUMBER("Vp", c->Vp), JSON_NUMBER("max_T", c->max_T),
             JSON_NUMBER("d_ff", model_size(c, DIM_FF)));
    if (model_is_gpt2(c)) return;
    JsonField class = JSON_KNOWN("class", 0);
    if (model_class(c)) class = JSON_TEXT("class", model_class(c));
    JSON_ADD(to, class, JSON_NUMBER("NKV", model_kv_heads(c)),
             JSON_NUMBER("HS", model_head_size(c)), JSON_KNOWN("rope_base", (double)c->rope_base),
             JSON_TEXT("norm", norms[c->norm]), JSON_TEXT("activation", activations[c->activation]),
             JSON_BOOL("qk_norm", c->qk_norm), JSON_BOOL("bias", !c->no_bias),
             JSON_BOOL("tied", !c->untied), JSON_BOOL("embed_norm", c->embed_norm));
}

void plan_json(FILE *out, const DevicePlan *plans, int count, const PlanRequest *r) {
    const bool is_named = *r->gpus != '\0'; // otherwise: this machine and the whole table
    const ModelOptions *m = &r->model;
    cJSON *plan = cJSON_CreateObject();
    cJSON *model = cJSON_AddObjectToObject(plan, "model");
    plan_json_shape(model, &m->config);
    JSON_ADD(model, JSON_NUMBER("parameters", parameter_total(&m->config)));

    const char *grad_dtype = "fp32", *offload = "none";
    JsonField batch_size = JSON_TEXT("batch_size", "auto");
    if (m->gradients_in_dtype) grad_dtype = "compute";
    if (m->offload) offload = "optimizer";
    if (m->B > 0) batch_size = JSON_NUMBER("batch_size", m->B);

    cJSON *run = cJSON_AddObjectToObject(plan, "run");
    JSON_ADD(run, JSON_NUMBER("T", m->T), batch_size, JSON_TEXT("recompute", r->recompute),
             JSON_KNOWN("tokens", r->tokens), JSON_TEXT("optimizer", optimizer_name(m->optimizer)),
             JSON_BOOL("master_weights", m->master && optimizer_has_master(m->optimizer)),
             JSON_TEXT("grad_dtype", grad_dtype), JSON_TEXT("offload", offload),
             JSON_BOOL("fp8", m->fp8), JSON_BOOL("train", m->train),
             JSON_NUMBER("gpus", max_i64(m->processes, 1)),
             JSON_NUMBER("reduce_groups", max_i64(m->groups, 1)));

    cJSON *sources = NULL;
    if (r->data && r->data->count > 1) sources = cJSON_AddArrayToObject(run, "sources");
    for (int i = 0; sources && i < r->data->count; i++) {
        cJSON *source = cJSON_CreateObject();
        cJSON_AddItemToObject(source, "name", json_text(r->data->names[i]));
        JSON_ADD(source, JSON_NUMBER("share", mixture_share(r->data, i)));
        cJSON_AddItemToArray(sources, source);
    }

    cJSON *devices = cJSON_AddArrayToObject(plan, "devices");
    for (int i = 0; i < count; i++) {
        add_device(devices, &plans[i], is_named);
        if (is_named || i == 0) add_arena(cJSON_GetArrayItem(devices, i), &plans[i].model);
    }

    char *text = cJSON_Print(plan);
    if (text) fprintf(out, "%s\n", text);
    free(text);
    cJSON_Delete(plan);
}
