// The arithmetic of planner.h: what a step computes and moves, and the least time that takes.
#include "llmc/run/planner.h"

#include "llmc/base/checked.h"
#include "llmc/model/flops.h"
#include "llmc/model/parameters.h"
#include "llmc/run/op_costs.h"
#include <stdlib.h>
#include <string.h>

// --------------------------------------------------------------------------------------------------------------- FLOPs

// Newton-Schulz, as llmc/train/muon.h has it: X X^T, its square, their product with X, MUON_STEPS times.
static double muon_flops(const Gpt2Options *model) {
    const int count = parameter_count(&model->config);
    Parameter *table = parameter_table(&model->config);
    double flops = 0;
    for (int i = 0; i < count; i++) {
        const Parameter *p = &table[i];
        if (optimizer_rule(model->optimizer, p) != RULE_DIRECTION) continue;
        const double rows = (double)p->rows / p->spec->stacked, cols = (double)p->cols;
        const double m = rows < cols ? rows : cols, n = rows < cols ? cols : rows;
        flops += p->spec->stacked * MUON_STEPS * (4 * m * m * n + 2 * m * m * m);
    }
    free(table);
    return flops;
}

double planner_step_flops(const Gpt2Options *model, int64_t tokens) {
    const double again = recompute_flops_per_token(&model->recompute, &model->config, model->T);
    const double exact = flops_per_token_exact(&model->config, model->T);
    return (double)tokens * (exact + again) + (model->train ? muon_flops(model) : 0);
}

double planner_step_fp8_flops(const Gpt2Options *model, int64_t tokens) {
    if (!model->fp8) return 0;
    const double L = (double)model->config.L, C = (double)model->config.C;
    const int64_t no_attention = -1; // its FLOPs are in proportion to T + 1
    return (double)tokens *
           (72 * L * C * C + recompute_flops_per_token(&model->recompute, &model->config, no_attention));
}

// --------------------------------------------------------------------------------------------------------------- bytes

static double elements_per_token(const Gpt2Options *model) {
    const ModelConfig *c = &model->config;
    const double L = (double)c->L, C = (double)c->C, Vp = (double)c->Vp;
    return (16 * L + 8) * C + 2 * Vp + recompute_elements_per_token(&model->recompute, c);
}

// Operands of the four linear layers of a block, 7 C going in and 9 C of gradients: quantised as they pass.
static double fp8_bytes_per_token(const Gpt2Options *model) {
    if (!model->fp8) return 0;
    const int64_t width = 16 * model->config.L * model->config.C;
    const Tensor in = tensor_make(NULL, model->dtype, "in", 1, width, 0, 0);
    const Tensor q = tensor_make(NULL, DTYPE_E4M3, "q", 1, width, 0, 0);
    const Fp8Scaling scaling = model->fp8_delayed ? FP8_DELAYED : FP8_CURRENT;
    return op_cost_fp8_quantize(q, q, in, tensor_none(), scaling).bytes;
}

// All tensors of the update, as gpt2_tensors has them; their data are never looked at, but that they are there is.
static UpdateTensor *update_tensors(const Gpt2Options *model, const Parameter *table, int count) {
    static char there;
    UpdateTensor *tensors = calloc((size_t)count, sizeof *tensors);
    REQUIRE_MEMORY(tensors, "a plan");
    const DType grad = model->gradients_in_dtype ? model->dtype : DTYPE_FP32;
    for (int i = 0; i < count; i++) {
        const Parameter *p = &table[i];
        tensors[i].weight = tensor_make(&there, model->dtype, "weight", p->rows, p->cols, 0, 0);
        tensors[i].grad = tensor_make(&there, grad, "grad", p->rows, p->cols, 0, 0);
        tensors[i].rule = optimizer_rule(model->optimizer, p);
        for (int slot = 0; slot < NUM_STATE_SLOTS; slot++) {
            Tensor t = optimizer_state(model->optimizer, model->master, model->dtype, p, (StateSlot)slot);
            if (t.rank > 0) t.data = &there;
            *state_slot_tensor(&tensors[i], (StateSlot)slot) = t;
        }
    }
    return tensors;
}

// The norm, the update, and in each micro-step the gradients that are added to the compute dtype.
static double update_bytes(const Gpt2Options *model, int64_t micro_steps) {
    if (!model->train) return 0;
    const int count = parameter_count(&model->config);
    Parameter *table = parameter_table(&model->config);
    UpdateTensor *t = update_tensors(model, table, count);
    const UpdateParams params = {0};
    const Tensor none = tensor_none();
    double bytes = op_cost_optimizer_update(t, count, 0, count, params, none).bytes +
                   op_cost_adafactor_statistics(t, count, params, none).bytes +
                   op_cost_momentum_update(t, count, params, none).bytes;
    for (int i = 0; i < count; i++) {
        const Tensor own = tensor_make(NULL, DTYPE_FP32, "own", table[i].rows, table[i].cols, 0, 0);
        bytes += op_cost_gradient_sumsq(none, &t[i].grad, 1).bytes;
        if (model->gradients_in_dtype)
            bytes += (double)micro_steps * op_cost_gradient_add(t[i].grad, own, true, 0, i, none).bytes;
    }
    free(t);
    free(table);
    return bytes;
}

double planner_step_bytes(const Gpt2Options *model, int64_t tokens) {
    const double a_token = elements_per_token(model) * (double)dtype_size(model->dtype) + fp8_bytes_per_token(model);
    return (double)tokens * a_token + update_bytes(model, ceil_div(tokens, model->B * model->T));
}

double planner_link_bytes(const Gpt2Options *model) { return (double)gpt2_host_bytes(model); }

StepLimit planner_step(const GpuSpec *gpu, const Gpt2Options *model, int64_t tokens) {
    const double peak = gpu_spec_peak(gpu, model->dtype), fp8_peak = gpu_spec_peak(gpu, DTYPE_E4M3);
    StepLimit s = {.flops = planner_step_flops(model, tokens),
                   .fp8_flops = planner_step_fp8_flops(model, tokens),
                   .bytes = planner_step_bytes(model, tokens),
                   .link_bytes = planner_link_bytes(model)};
    if (peak == 0 || (s.fp8_flops > 0 && fp8_peak == 0)) return s;
    s.seconds = (s.flops - s.fp8_flops) / peak + s.bytes / gpu->bandwidth + s.link_bytes / gpu->link;
    if (s.fp8_flops > 0) s.seconds += s.fp8_flops / fp8_peak;
    return s;
}
