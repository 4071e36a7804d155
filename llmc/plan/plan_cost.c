// See plan_cost.h.
#include "llmc/plan/plan_cost.h"

#include "llmc/base/arithmetic.h"
#include "llmc/model/parameters.h"
#include "llmc/model/recompute.h"

#include <math.h>
#include <stdlib.h>

// ------------------------------------------------------------------------------------------- FLOPs

// The processes that divide the update among them.
static double update_sharers(const ModelOptions *model) {
    if (model->divided && model->processes > 1) return model->processes;
    return 1;
}

double plan_step_flops(const ModelOptions *model, int64_t tokens) {
    const double again = recompute_flops_per_token(&model->recompute, &model->config, model->T);
    const double exact = flops_per_token_exact(&model->config, model->T);
    Parameter *table = parameter_table(&model->config);
    double update = 0;
    for (int i = 0; model->train && i < parameter_count(&model->config); i++)
        update += optimizer_matmul_flops(model->optimizer, &table[i]);
    free(table);
    return (double)tokens * (exact + again) + update / update_sharers(model);
}

double plan_step_fp8_flops(const ModelOptions *model, int64_t tokens) {
    if (!model->fp8) return 0;
    const int64_t no_attention = -1; // its FLOPs are in proportion to T + 1
    return (double)tokens *
           (flops_per_token_linear(&model->config) +
            recompute_flops_per_token(&model->recompute, &model->config, no_attention));
}

// ------------------------------------------------------------------------------------------- bytes

// The norm, the update, and in each micro-step the gradients that are added to the compute dtype.
static double update_bytes(const ModelOptions *model, int64_t micro_steps) {
    if (!model->train) return 0;
    const int count = parameter_count(&model->config);
    Parameter *table = parameter_table(&model->config);

    // All tensors of the update, as model_tensors has them. Their data are never read.
    static char there;
    UpdateTensor *t = calloc((size_t)count, sizeof *t);
    REQUIRE_MEMORY(t, "a plan");

    for (int i = 0; i < count; i++) {
        const Parameter *p = &table[i];
        t[i].weight = tensor_make(&there, model->dtype, "weight", p->rows, p->cols, 0, 0);
        t[i].grad =
            tensor_make(&there, model_gradient_dtype(model), "grad", p->rows, p->cols, 0, 0);
        t[i].rule = optimizer_rule(model->optimizer, p);
        for (int slot = 0; slot < NUM_STATE_SLOTS; slot++) {
            Tensor *state = state_slot_tensor(&t[i], (StateSlot)slot);
            *state =
                optimizer_state(model->optimizer, model->master, model->dtype, p, (StateSlot)slot);
            if (state->rank > 0) state->data = &there;
        }
    }

    double bytes = op_cost_optimizer_update(t, count).bytes +
                   op_cost_adafactor_statistics(t, count).bytes +
                   op_cost_momentum_update(t, count).bytes;
    for (int i = 0; i < count; i++) bytes += (double)tensor_bytes(t[i].grad);
    bytes /= update_sharers(model);

    for (int i = 0; i < count; i++) {
        const Tensor own = tensor_make(NULL, DTYPE_FP32, "own", table[i].rows, table[i].cols, 0, 0);
        if (model->gradients_in_dtype)
            bytes +=
                (double)micro_steps * op_cost_gradient_add(gradient_to(t[i].grad, true), own).bytes;
    }

    free(t);
    free(table);
    return bytes;
}

double plan_step_bytes(const ModelOptions *model, int64_t tokens) {
    const ModelConfig *c = &model->config;
    const double L = (double)c->L, C = (double)c->C, Vp = (double)c->Vp;
    const double QKV = (double)model_size(c, DIM_QKV),
                 QK = QKV - (double)(model_kv_heads(c) * model_head_size(c));

    // Elements that a block moves for a token outside its matmuls, attention and norms: RoPE and
    // QK-norm, forward and backward, on the heads of q and k (QK-norm copies v too, and reads q and
    // k once more in the backward pass); and an activation that is not an epilogue, three times
    // what it reads and twice what it writes.
    double block = 0;
    if (c->rope_base > 0 && c->qk_norm) block += 2 * QKV + 3 * QK;
    if (c->rope_base > 0 && !c->qk_norm) block += 4 * QK;
    if (c->activation != ACTIVATION_GELU)
        block += (double)(3 * model_size(c, DIM_FC) + 2 * model_size(c, DIM_FF));

    const double embedding = c->embed_norm ? 2 * C : 0; // its norm backward, in place

    const double elements = (12 * L + 8) * C + embedding + L * block + 2 * Vp +
                            recompute_elements_per_token(&model->recompute, c);
    double a_token = elements * (double)dtype_size(model->dtype);

    // quantises operands of the linear layers: 3 C + d_ff in, gradients 5 C + d_ff
    if (model->fp8) {
        const int64_t width = c->L * (4 * c->C + model_size(c, DIM_ATT) + model_size(c, DIM_QKV) +
                                      model_size(c, DIM_FC) + model_size(c, DIM_FF));
        const Tensor in = tensor_make(NULL, model->dtype, "in", 1, width, 0, 0);
        const Tensor q = tensor_make(NULL, DTYPE_E4M3, "q", 1, width, 0, 0);
        a_token += op_cost_fp8_quantize(q, q, in, FP8_CURRENT).bytes;
    }

    return (double)tokens * a_token + update_bytes(model, ceil_div(tokens, model->B * model->T));
}

StepLimit plan_step_limit(const GpuSpec *gpu, const ModelOptions *model, int64_t tokens) {
    const double peak = gpu_spec_peak(gpu, model->dtype), fp8_peak = gpu_spec_peak(gpu, DTYPE_E4M3);
    StepLimit s = {.flops = plan_step_flops(model, tokens),
                   .fp8_flops = plan_step_fp8_flops(model, tokens),
                   .bytes = plan_step_bytes(model, tokens),
                   .link_bytes = (double)model_host_bytes(model)};
    if (peak == 0 || (s.fp8_flops > 0 && fp8_peak == 0)) return s;
    s.seconds =
        (s.flops - s.fp8_flops) / peak + s.bytes / gpu->bandwidth + s.link_bytes / gpu->link;
    if (s.fp8_flops > 0) s.seconds += s.fp8_flops / fp8_peak;
    return s;
}

// Returns the elements of a unit that process r sends in an all-to-all and receives in an
// all-gather, or the other way round if that is more: everything but its own range, and its own
// range once for each of the others.
static double passed(const Partition *p, int unit, int r) {
    const double all = (double)(p->begin[unit + 1] - p->begin[unit]);
    const double own = (double)range_size(partition_of_unit(p, unit, r));
    return fmax(all - own, (p->processes - 1) * own);
}

PlannedExchange plan_step_exchange(const ModelOptions *model) {
    PlannedExchange most = {0};
    if (model->processes <= 1 || !model->train) return most;

    // Gradients go to their owners; then, with -z 1, the new weights to all, and otherwise the
    // gradients back.
    double gradient = 2 * (double)dtype_size(model_gradient_dtype(model)), weight = 0;
    if (model->divided) {
        gradient /= 2;
        weight = (double)dtype_size(model->dtype);
    }

    Partition *p =
        partition_create(&model->config, model->optimizer, model->groups, model->processes);
    const int outside = p->num_units - 1;
    for (int r = 0; r < p->processes; r++) {
        double all = 0;
        for (int u = 0; u <= outside; u++) all += passed(p, u, r);
        const PlannedExchange e = {.gradients = all * gradient,
                                   .weights = all * weight,
                                   .last_gradients = passed(p, outside, r) * gradient,
                                   .first_weights = passed(p, outside, r) * weight};
        if (e.gradients + e.weights > most.gradients + most.weights) most = e;
    }

    partition_destroy(p);
    return most;
}
