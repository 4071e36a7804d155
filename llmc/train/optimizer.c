// The end of a step, see optimizer.h: optimizer_norm and optimizer_step have the path from
// gradients to an update in the order in which it runs; ops.h has the formulas of the rules.
#include "llmc/train/optimizer.h"

#include "llmc/model/model_numerics.h"
#include "llmc/model/model_state.h"
#include "llmc/train/muon.h"
#include "llmc/train/offload.h"

#include <stdlib.h>
#include <string.h>

struct Optimizer {
    Model *model;
    OptimizerOptions options;
    UpdateTensor *tensors; // of this process, with the rates of their groups
    UpdateList list;       // of them
    UpdateTensor *parts;   // of the gradient norm
    UpdateList norm;       // of them
    Muon *muon;            // NULL: another optimizer
    Offload *offload;      // NULL: the state is on the device
};

typedef struct {
    Model *model;
    UpdateList *list; // whole parameters, or under offload slices of them
    UpdateParams params;
    bool watched;
} Update;

static void update_range(const Update *u, int first, int count) {
    const Tensor control = model_control(u->model);
    if (!u->watched) {
        optimizer_update(u->list, first, count, u->params, control);
        return;
    }
    for (int i = first; i < first + count; i++) {
        const UpdateTensor *t = &u->list->tensors[i];
        const Range own = model_own_elements(u->model, t->stream);
        if (t->offset == own.begin) model_numerics_update_begin(u->model, t->stream);
        optimizer_update(u->list, i, 1, u->params, control);
        if (t->offset + tensor_numel(t->weight) == own.end)
            model_numerics_update_end(u->model, t->stream);
    }
}

// The row of the norm that a process fills; where the state is divided, each has its own.
static Tensor norm_row(const Model *model, int row) {
    const Tensor norm = tensor_slice_rows(model_norm(model), row, 1);
    return tensor_slice_elements(norm, 0, model_partition(model)->num_norm_parts);
}

void optimizer_norm(Optimizer *o) {
    const ModelOptions *of = model_options(o->model);
    const int row = of->divided && of->processes > 1 ? of->rank : 0;
    // runs during the backward pass, which is still active
    if (o->offload) offload_begin(o->offload);
    gradient_sumsq(norm_row(o->model, row), &o->norm);
}

void optimizer_step(Optimizer *o, double learning_rate, int64_t tokens_in_step, bool watched) {
    const Tensor control = model_control(o->model);
    UpdateParams params = {.learning_rate = (float)learning_rate,
                           .momentum = o->options.momentum,
                           .seed = o->options.seed};
    memcpy(params.moments, o->options.limits.moments, sizeof params.moments);

    step_control_update(control, norm_row(o->model, 0), model_step_losses(o->model), tokens_in_step,
                        o->options.limits);
    if (watched) model_numerics_gradients(o->model);

    if (o->list.n > 0) {
        if (model_options(o->model)->optimizer == OPTIMIZER_ADAFACTOR)
            adafactor_statistics(&o->list, control);
        if (o->muon) muon_directions(o->muon, params, control);

        UpdateList *list = &o->list;
        if (o->offload) list = offload_slices(o->offload);
        const Update u = {.model = o->model, .list = list, .params = params, .watched = watched};
        if (!o->offload) update_range(&u, 0, list->n);
        for (int c = 0; o->offload && c < offload_chunks(o->offload); c++) {
            int first, count;
            offload_take(o->offload, c, &first, &count);
            update_range(&u, first, count);
            offload_return(o->offload, c);
        }
    }
    model_weights_changed(o->model);
}

// -------------------------------------------------------------------------------------- the object

int32_t optimizer_scale_growth_interval(DType dtype) {
    if (dtype == DTYPE_FP16) return 2000;
    return 0;
}

// The gradient of a part of the norm. If it belongs to another process: a single 0, the one at the
// end of the row.
static Tensor norm_part(const Model *model, const NormPart *part) {
    int count;
    const UpdateTensor *own = model_own_tensors(model, &count);
    for (int i = 0; i < count; i++) {
        const int64_t first = part->elements.begin - own[i].offset, n = range_size(part->elements);
        if (own[i].stream != part->parameter || first < 0 || first + n > tensor_numel(own[i].grad))
            continue;
        if (n == tensor_numel(own[i].grad)) return own[i].grad;
        return tensor_slice_elements(own[i].grad, first, n);
    }

    void *zero =
        tensor_slice_elements(model_norm(model), model_partition(model)->num_norm_parts, 1).data;
    return tensor_make(zero, model_unit_gradients(model, 0).dtype, "zero", 1, 0, 0, 0);
}

Optimizer *optimizer_create(Model *model, const OptimizerOptions *options, Error *err) {
    const ModelOptions *of = model_options(model);
    Optimizer *o = calloc(1, sizeof *o);
    int count;
    const UpdateTensor *own = model_own_tensors(model, &count);
    const Partition *p = model_partition(model);
    REQUIRE_MEMORY(o && (o->tensors = malloc((size_t)(count + 1) * sizeof *o->tensors)),
                   "the optimizer's tensors");

    o->model = model;
    o->options = *options;
    for (int i = 0; i < NUM_GROUPS; i++) {
        const GroupRates *r = &options->rates[i];
        o->options.limits.moments[i] =
            (MomentRates){(float)r->beta1, (float)r->beta2, (float)r->eps};
    }

    o->list = update_list(o->tensors, count);
    o->parts = calloc((size_t)p->num_norm_parts, sizeof *o->parts);
    REQUIRE_MEMORY(o->parts, "the parts of the gradient norm");
    for (int i = 0; i < p->num_norm_parts; i++)
        o->parts[i].grad = norm_part(model, &p->norm_parts[i]);
    o->norm = update_list(o->parts, p->num_norm_parts);

    memcpy(o->tensors, own, (size_t)count * sizeof *o->tensors);
    for (int i = 0; i < count; i++) {
        const GroupRates *r = &options->rates[o->tensors[i].group];
        o->tensors[i].rate *= (float)r->rate;
        o->tensors[i].weight_decay = (float)r->rate * (float)r->weight_decay;
    }

    if (of->optimizer == OPTIMIZER_MUON)
        o->muon = muon_create(&o->list, model_parameters(model), model_num_tensors(model),
                              model_optimizer_scratch(model));
    if (of->offload && !(o->offload = offload_create(model, o->tensors, count, err))) {
        optimizer_destroy(o);
        return NULL;
    }
    return o;
}

void optimizer_destroy(Optimizer *o) {
    if (!o) return;
    muon_destroy(o->muon);
    offload_destroy(o->offload);
    update_list_free(&o->list);
    update_list_free(&o->norm);
    free(o->tensors);
    free(o->parts);
    free(o);
}
