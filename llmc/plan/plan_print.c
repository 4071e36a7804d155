// See plan_print.h. Figures are those of plan_device; every line says whether it is a plan or a
// limit.
#include "llmc/plan/plan_print.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/format.h"
#include "llmc/model/parameters.h"
#include "llmc/model/recompute.h"
#include "llmc/plan/plan_json.h"

#include <stdlib.h>
#include <string.h>

enum { TEXT = 64, SET_TEXT = 256, AUTO_WIDTH = 16 };

// "H100 SXM", "8 x H100 SXM", "this machine".
static const char *device_text(const DevicePlan *p, char buf[TEXT]) {
    const char *name = p->gpu.spec.name;
    if (p->gpus == 1) return name ? name : "this machine";
    snprintf(buf, TEXT, "%d processes on this machine", p->gpus);
    if (name) snprintf(buf, TEXT, "%d x %s", p->gpus, name);
    return buf;
}

static const char *set_text(const Recompute *r, const ModelOptions *model, char buf[SET_TEXT]) {
    return recompute_text(r, model->config.L, buf, SET_TEXT);
}

// ----------------------------------------------------------------------------------------- the run

// first: the plan for any device. The length of a step is known only with -d or -b.
static void print_run(FILE *out, const PlanRequest *r, const DevicePlan *first) {
    const ModelOptions *m = &r->model;
    char n[TEXT], shape[MODEL_TEXT], batch[TEXT] = "auto";

    fprintf(out, "plan        %s: %s parameters\n",
            model_config_text(&m->config, m->T, shape, sizeof shape),
            format_count((double)parameter_total(&m->config), n, TEXT));

    if (m->B > 0) snprintf(batch, TEXT, "%lld", (long long)m->B);
    fprintf(out, "plan        -b %s -r %s", batch, r->recompute);
    if (m->B > 0 || r->step_windows > 0) {
        fprintf(out, ", %.0f tokens a step", first->step_tokens);
        if (first->tokens > 0)
            fprintf(out, ", %.0f steps: %s tokens", first->steps,
                    format_count(first->tokens, n, TEXT));
    }
    fprintf(out, "\n");

    for (int i = 0; r->data && r->data->count > 1 && i < r->data->count; i++) {
        const double share = mixture_share(r->data, i);
        fprintf(out, "plan        %s: share %.4g%%", r->data->names[i], 100 * share);
        if (first->tokens > 0)
            fprintf(out, ", %s tokens", format_count(share * first->tokens, n, TEXT));
        fprintf(out, "\n");
    }

    const bool has_master = optimizer_keeps_master(m->optimizer, m->master, m->dtype);
    const DType gradients = m->gradients_in_dtype ? m->dtype : DTYPE_FP32;
    if (m->train)
        fprintf(out, "plan        %s%s, gradients in %s%s%s\n", optimizer_name(m->optimizer),
                has_master ? " with master weights" : "", dtype_name(gradients),
                m->offload ? ", its state in host memory" : "",
                m->fp8 ? ", matmuls of the blocks in fp8" : "");

    if (first->gpus > 1)
        fprintf(out,
                "plan        %d GPUs, %d groups of sequences; memory, -b and -r are those of each "
                "GPU, tokens those of "
                "all\n",
                first->gpus, m->groups);

    fprintf(out,
            "plan        computed from shapes and datasheets: nothing below was run or measured\n");
}

// -------------------------------------------------------------------------------------- the memory

static void print_memory(FILE *out, const DevicePlan *p) {
    char bytes[TEXT], more[TEXT], set[SET_TEXT];
    const double N = (double)parameter_total(&p->model.config);
    for (MemoryClass c = 0; c < MEM_CLASS_COUNT; c++) {
        const double n = p->memory.classes[c];
        if (n == 0) continue;
        fprintf(out, "planned     %-12s %9s", memory_class_name(c), format_bytes(n, bytes, TEXT));
        if (c < MEM_ACTIVATIONS) fprintf(out, "  %5.2f bytes a parameter", n / N);
        if (c == MEM_ACTIVATIONS)
            fprintf(out, "  %.0f KiB a token; at the peak:",
                    n / 1024 / (double)(p->model.B * p->model.T));
        fprintf(out, "\n");
        for (int k = 0; c == MEM_ACTIVATIONS && k < KIND_COUNT; k++)
            if (p->memory.kinds[k] > 0)
                fprintf(out, "planned       %-17s %9s\n", activation_kind_name(k),
                        format_bytes(p->memory.kinds[k], bytes, TEXT));
    }

    fprintf(out, "planned     %-12s %9s  with -b %lld -r %s in %s", "total",
            format_bytes(p->memory.total, bytes, TEXT), (long long)p->model.B,
            set_text(&p->model.recompute, &p->model, set), dtype_name(p->model.dtype));
    if (p->gpu.spec.memory > 0) {
        fprintf(out, "; plus %s for the CUDA context",
                format_bytes(plan_reserve(p->gpu.spec.memory), more, TEXT));
        if (p->nccl > 0) fprintf(out, " and %s for NCCL", format_bytes(p->nccl, more, TEXT));
        fprintf(out, "\n");
    } else
        fprintf(out, ", laid out for the %s backend of this machine\n", device_facts()->backend);

    if (p->gpu.spec.memory == 0 && device_facts()->widens_bf16) { // bf16 is chosen for its memory
        ModelOptions other = p->model;
        other.dtype = DTYPE_FP32;
        if (p->model.dtype == DTYPE_FP32) other.dtype = DTYPE_BF16;
        fprintf(out,
                "planned     in %s      %9s  there are no instructions for bf16 here: a run with "
                "--dtype auto takes "
                "fp32\n",
                dtype_name(other.dtype), format_bytes(plan_memory(&other).total, bytes, TEXT));
    }

    if (p->memory.host > 0)
        fprintf(out, "planned     %-12s %9s  master weights and state of the optimizer\n",
                "host memory", format_bytes(p->memory.host, bytes, TEXT));
}

static const char *batch_text(int64_t B, char buf[TEXT]) {
    if (B <= 0) return "none";
    snprintf(buf, TEXT, "-b %lld", (long long)B);
    return buf;
}

static void print_most(FILE *out, const DevicePlan *p) {
    char batch[TEXT], set[SET_TEXT], bytes[TEXT];
    const int levels = p->model.train ? 4 : 1;
    fprintf(out, "planned     max -b in %s:", format_bytes(p->room, bytes, TEXT));
    for (int level = 0; level < levels; level++)
        fprintf(out, "%s -r %d %s", level > 0 ? "," : "", level, batch_text(p->most[level], batch));
    if (p->model.train && p->auto_batch > 0)
        fprintf(out, "; -b auto -r auto: %s -r %s", batch_text(p->auto_batch, batch),
                set_text(&p->auto_recompute, &p->model, set));
    fprintf(out, "\n");
    if (!p->fits) fprintf(out, "planned     %s\n", p->why_not.text);
}

// -------------------------------------------------------------------------------------- the limits

static void print_floors(FILE *out, const DevicePlan *p, const StepLimit *s) {
    char bytes[TEXT], share[TEXT] = "a step";
    const ModelOptions *model = &p->model;

    const double again = (double)p->share_tokens *
                         recompute_flops_per_token(&model->recompute, &model->config, model->T);
    if (p->gpus > 1)
        snprintf(share, TEXT, "in a step, each GPU with %lld tokens", (long long)p->share_tokens);

    const char *formula = "72 L C^2 + 6 Vp C + 6 L C (T+1)";
    if (model->config.d_ff) formula = "24 L C^2 + 12 L C d_ff + 6 Vp C + 6 L C (T+1)";
    if (!model_is_gpt2(&model->config)) // q, k, v, attproj; fc, fcproj
        formula = "12 L C ((NH + NKV) HS + d_ff) + 6 Vp C + 6 L NH HS (T+1)";
    if (model->config.activation == ACTIVATION_SWIGLU) // and the gate
        formula = "6 L C (2 (NH + NKV) HS + 3 d_ff) + 6 Vp C + 6 L NH HS (T+1)";

    fprintf(out, "limit       %s computes %.5g TFLOP: %s a token", share, s->flops / 1e12, formula);
    if (again > 0) fprintf(out, ", and %.3g%% for -r", 100 * again / (s->flops - again));
    if (s->fp8_flops > 0) fprintf(out, "; %.3g%% of it in fp8", 100 * s->fp8_flops / s->flops);
    if (p->gpus > 1) snprintf(share, TEXT, "in a step, each GPU");
    fprintf(out,
            "\nlimit       %s moves %s outside its matmuls; norm and update take %.3g bytes a "
            "parameter\n",
            share, format_bytes(s->bytes, bytes, TEXT),
            plan_step_bytes(model, 0) / (double)parameter_total(&model->config));

    if (s->link_bytes > 0)
        fprintf(out, "limit       a step sends %s to the GPU and as much back\n",
                format_bytes(s->link_bytes, bytes, TEXT));

    fprintf(out,
            "limit       min time of a step = FLOP / dense peak + bytes / bandwidth%s%s of the "
            "datasheet; real steps "
            "take longer\n",
            s->link_bytes > 0 ? " + bytes / link" : "", p->gpus > 1 ? " + exposed exchange" : "");
}

// The figures of one GPU as printed in a line; "-" where there is none.
typedef struct {
    char step[TEXT], rate[TEXT], all[TEXT], half[TEXT];
} Limits;

static Limits limits_of(const DevicePlan *p) {
    Limits l = {"-", "-", "-", "-"};
    char text[TEXT];
    if (p->step_seconds == 0) return l;
    snprintf(l.step, TEXT, ">= %.3g s", p->step_seconds);
    snprintf(l.rate, TEXT, "<= %s", format_count(p->step_tokens / p->step_seconds, text, TEXT));
    if (p->run_seconds == 0) return l;
    snprintf(l.all, TEXT, ">= %s", format_duration(p->run_seconds, text, TEXT));
    format_duration(2 * p->run_seconds, l.half, TEXT);
    return l;
}

// ------------------------------------------------------------------------------- one GPU, all GPUs

static void print_gpu(FILE *out, const DevicePlan *p, const PlanRequest *r) {
    const GpuSpec *g = &p->gpu.spec;
    fprintf(out, "planned     %s: %.4g GB", g->name, g->memory / 1e9);
    if (g->bandwidth > 0)
        fprintf(out, ", %.4g TFLOP/s in %s, %.4g GB/s", gpu_spec_peak(g, p->model.dtype) / 1e12,
                dtype_name(p->model.dtype), g->bandwidth / 1e9);
    if (p->model.fp8)
        fprintf(out, ", %.4g TFLOP/s in fp8", g->peak_fp8 / 1e12);
    else if (r->model.fp8)
        fprintf(out, ", no fp8");
    fprintf(out, "\n");
    print_memory(out, p);
    print_most(out, p);
    if (!p->model.train || g->bandwidth == 0) return;
    print_floors(out, p, &p->step);

    const Limits l = limits_of(p);
    const Estimate e = p->predicted;
    const char *over = "PCIe", *unknown = "this GPU and dtype";
    char name[TEXT], bytes[TEXT], likely[TEXT], worst[TEXT], best[TEXT];
    if (g->nvlink > 0) over = "NVLink";
    if (p->gpus > 1 && p->exchange_rate > 0) {
        fprintf(out,
                "limit       in a step, each GPU sends %s and receives as much: %.4g GB/s over %s, "
                ">= %.3g s\n",
                format_bytes(p->exchange_bytes, bytes, TEXT), p->exchange_rate / 1e9, over,
                p->exchange_seconds);
        fprintf(out,
                "limit       computation hides at most %.3g s of it, %.3g s are exposed: "
                "efficiency %.1f%% if both "
                "reach the datasheet\n",
                p->exchange_seconds - p->exposed_seconds, p->exposed_seconds, 100 * p->efficiency);
    }
    if (p->step_seconds == 0) return;
    fprintf(out, "limit       %s: a step %s, %s tokens/s", device_text(p, name), l.step, l.rate);
    if (*l.all != '-') fprintf(out, "; all steps %s, at 50%% of the limit %s", l.all, l.half);
    fprintf(out, "\n");

    // "0.118 s (0.111 to 0.127)", "554K (518K to 593K)".
    if (p->model.fp8 || p->model.offload) unknown = "this kind of run";
    if (e.likely == 0) {
        fprintf(out, "predicted   %s: no rates are assumed for %s\n", device_text(p, name),
                unknown);
        return;
    }
    fprintf(out, "predicted   %s: a step %.3g s (%.3g to %.3g)", device_text(p, name), e.likely,
            e.best, e.worst);
    fprintf(out, ", %s tokens/s (%s to %s), by the rates that each kind of op is assumed to reach",
            format_count(p->step_tokens / e.likely, likely, TEXT),
            format_count(p->step_tokens / e.worst, worst, TEXT),
            format_count(p->step_tokens / e.best, best, TEXT));
    if (p->steps > 0)
        fprintf(out, "; all steps %s", format_duration(e.likely * p->steps, likely, TEXT));
    fprintf(out, "\n");
}

// The table: a row for each GPU, a column for each figure.
typedef struct {
    char title[TEXT];
    int width; // below 0: text begins at the left
    char text[TEXT];
    bool hidden;
} Column;

// The figures of a GPU, or the titles of the columns, which depend on the same facts.
static void print_row(FILE *out, const DevicePlan *p, const PlanRequest *r, bool titles) {
    const GpuSpec *g = &p->gpu.spec;
    const bool is_auto = r->model.B == 0 || strcmp(r->recompute, "auto") == 0;
    const Limits l = limits_of(p);
    Column c[] = {
        {.title = "GPU", .width = -12},
        {.title = "memory", .width = 7},
        {.title = "datasheet peak", .width = -19},
        {.title = "bandwidth", .width = 10},
        {.title = "chosen", .width = -AUTO_WIDTH, .text = "none", .hidden = !is_auto},
        {.width = -6, .text = "no", .hidden = is_auto},
        {.title = "max", .width = 5, .text = "none"},
        {.title = "a step", .width = -11},
        {.title = "tokens/s", .width = -9},
        {.title = "predicted", .width = -9, .text = "-"},
        {.title = "all steps", .width = -9},
        {.title = "at 50%", .width = -6 * (p->gpus > 1)},
    };

    char set[SET_TEXT];
    snprintf(c[0].text, TEXT, "%s", g->name);
    snprintf(c[1].text, TEXT, "%.0f GB", g->memory / 1e9);
    snprintf(c[2].text, TEXT, "%s %6.4g TFLOP/s", dtype_name(p->model.dtype),
             gpu_spec_peak(g, p->model.dtype) / 1e12);
    snprintf(c[3].text, TEXT, "%.0f GB/s", g->bandwidth / 1e9);

    if (p->fits)
        snprintf(c[4].text, TEXT, "-b %lld -r %.40s", (long long)p->model.B,
                 set_text(&p->model.recompute, &p->model, set));
    snprintf(c[5].title, TEXT, "-b %lld", (long long)r->model.B);
    if (p->fits) snprintf(c[5].text, TEXT, "yes");
    if (p->batch > 0) snprintf(c[6].text, TEXT, "%lld", (long long)p->batch);
    memcpy(c[7].text, l.step, TEXT);
    memcpy(c[8].text, l.rate, TEXT);
    if (p->predicted.likely > 0)
        format_count(p->step_tokens / p->predicted.likely, c[9].text, TEXT);
    memcpy(c[10].text, l.all, TEXT);
    memcpy(c[11].text, l.half, TEXT);

    fprintf(out, "limit     ");
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        const char *shown = titles ? c[i].title : c[i].text;
        if (!c[i].hidden) fprintf(out, "  %*s", c[i].width, shown);
    }

    if (p->gpus > 1 && titles) fprintf(out, "  efficiency");
    if (p->gpus > 1 && !titles && p->step_seconds > 0)
        fprintf(out, "  %.1f%%", 100 * p->efficiency);
    fprintf(out, "\n");
}

// plans: of this machine, then of the GPUs of the table.
static void print_table(FILE *out, const DevicePlan *plans, int count, const PlanRequest *r) {
    print_memory(out, plans);
    print_most(out, plans);
    fprintf(out, "planned     --gpu shows the same for a GPU; 1 GB of each, at most 6%%, stays "
                 "free for the CUDA context\n");

    if (plans->model.train) {
        const StepLimit s = plan_step_limit(&plans[1].gpu.spec, &plans->model, plans->share_tokens);
        print_floors(out, plans, &s);
    }

    for (int row = 0; row < count; row++) { // the first has the titles
        const DevicePlan *p = &plans[max_i64(row, 1)];
        print_row(out, p, r, row == 0);
    }
}

// The answer in one sentence: whether it fits, with which -b and -r, in how much memory, and for
// how long at least.
static void print_answer(FILE *out, const DevicePlan *p) {
    char set[SET_TEXT], bytes[TEXT], there[TEXT];
    fprintf(out, "plan        %s: ", device_text(p, there));

    if (!p->fits) {
        fprintf(out, "%s\n", p->why_not.text);
        return;
    }

    fprintf(out, "it fits with -b %lld -r %s and takes %s of %s%s", (long long)p->model.B,
            set_text(&p->model.recompute, &p->model, set),
            format_bytes(p->memory.total, bytes, TEXT), format_bytes(p->room, there, TEXT),
            p->gpus > 1 ? " each" : "");

    if (p->run_seconds > 0) {
        fprintf(out, "; all steps take at least %s, at half the datasheet speed %s",
                format_duration(p->run_seconds, bytes, TEXT),
                format_duration(2 * p->run_seconds, there, TEXT));
        if (p->predicted.likely > 0)
            fprintf(out, ", predicted %s",
                    format_duration(p->predicted.likely * p->steps, there, TEXT));
    } else if (p->step_seconds > 0) {
        fprintf(out, "; a step takes at least %.3g s", p->step_seconds);
        if (p->predicted.likely > 0) fprintf(out, ", predicted %.3g s", p->predicted.likely);
    } else if (p->model.train) {
        fprintf(out, "; no datasheet for this device: time per step unknown");
    }
    fprintf(out, "\n");
}

bool plan_print(FILE *out, const PlanRequest *r, bool json, Error *err) {
    GpuChoice gpus[MOST_GPUS] = {0};
    Recompute ignored;
    int count = 0, of_table;
    const GpuSpec *table = gpu_table(&of_table);
    if (strcmp(r->recompute, "auto") != 0 &&
        !recompute_parse(&ignored, r->recompute, r->model.config.L, err))
        return false;

    if (!gpu_find_all(gpus, &count, r->gpus, err)) return false;
    const bool all = count == 0;
    REQUIRE(of_table < MOST_GPUS, "%d GPUs in the table", of_table);
    for (int i = 0; i < of_table && all; i++) gpus[i + 1].spec = table[i];
    if (all) count = of_table + 1;
    DevicePlan *plans = calloc((size_t)count, sizeof *plans);
    REQUIRE_MEMORY(plans, "a plan");

    for (int i = 0; i < count; i++) {
        const GpuChoice *gpu = all && i == 0 ? NULL : &gpus[i]; // this machine
        plan_device(&plans[i], r, gpu);
        if (json || !all || i == 0) plan_alternatives(&plans[i], r);
    }

    if (json) {
        plan_json(out, plans, count, r);
    } else {
        for (int i = 0; i < count && !(all && i > 0); i++) print_answer(out, &plans[i]);
        print_run(out, r, plans);
        if (all) print_table(out, plans, count, r);
        for (int i = 0; i < count && !all; i++) print_gpu(out, &plans[i], r);
    }

    free(plans);
    return true;
}
