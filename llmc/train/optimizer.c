// See optimizer.h. How an optimizer gets from gradients to an update is written in optimizer_step, in the order in
// which it runs; what a rule computes is written in ops.h.
#include "llmc/train/optimizer.h"

#include "llmc/model/gpt2_numerics.h"
#include "llmc/train/muon.h"
#include "llmc/train/offload.h"
#include <stdlib.h>
#include <string.h>

struct Optimizer {
    Gpt2 *model;
    OptimizerOptions options;
    int count;
    UpdateTensor *tensors; // the model's, with the run's weight decay
    Muon *muon;            // NULL: another optimizer
    Offload *offload;      // NULL: the state is on the device
};

float optimizer_first_loss_scale(DType dtype) { return dtype == DTYPE_FP16 ? 65536.0f : 1.0f; }
int32_t optimizer_scale_growth_interval(DType dtype) { return dtype == DTYPE_FP16 ? 2000 : 0; }

Optimizer *optimizer_create(Gpt2 *model, const OptimizerOptions *options, Error *err) {
    const Gpt2Options *of = gpt2_options(model);
    Optimizer *o = calloc(1, sizeof *o);
    const int count = gpt2_num_tensors(model);
    if (o) o->tensors = malloc((size_t)count * sizeof *o->tensors);
    if (!o || !o->tensors) {
        free(o);
        error_set(err, "out of memory");
        return NULL;
    }
    o->model = model, o->options = *options, o->count = count;
    memcpy(o->tensors, gpt2_tensors(model), (size_t)count * sizeof *o->tensors);
    for (int i = 0; i < count; i++) o->tensors[i].weight_decay *= options->weight_decay;
    if (of->optimizer == OPTIMIZER_MUON)
        o->muon = muon_create(o->tensors, gpt2_parameters(model), count, gpt2_optimizer_scratch(model));
    if (of->offload && !(o->offload = offload_create(model, o->tensors, err))) {
        optimizer_destroy(o);
        return NULL;
    }
    return o;
}

void optimizer_destroy(Optimizer *o) {
    if (!o) return;
    muon_destroy(o->muon);
    offload_destroy(o->offload);
    free(o->tensors);
    free(o);
}

// ---------------------------------------------------------------------------------------------------------- the update

// The array that is updated: whole parameters, or under offload slices of them.
typedef struct {
    Gpt2 *model;
    const UpdateTensor *tensors;
    int n;
    UpdateParams params;
    bool watched;
} Update;

static void update_range(const Update *u, int first, int count) {
    const Tensor control = gpt2_control(u->model);
    if (!u->watched) {
        optimizer_update(u->tensors, u->n, first, count, u->params, control);
        return;
    }
    for (int i = first; i < first + count; i++) {
        const UpdateTensor *t = &u->tensors[i];
        const int64_t end = t->offset + tensor_numel(t->weight);
        if (t->offset == 0) gpt2_numerics_update_begin(u->model, t->stream);
        optimizer_update(u->tensors, u->n, i, 1, u->params, control);
        if (end == parameter_numel(&gpt2_parameters(u->model)[t->stream]))
            gpt2_numerics_update_end(u->model, t->stream);
    }
}

static void update(const Optimizer *o, UpdateParams params, bool watched) {
    Update u = {.model = o->model, .tensors = o->tensors, .n = o->count, .params = params, .watched = watched};
    if (!o->offload) {
        update_range(&u, 0, o->count);
        return;
    }
    u.tensors = offload_slices(o->offload, &u.n);
    for (int c = 0; c < offload_chunks(o->offload); c++) {
        int first, count;
        offload_take(o->offload, c, &first, &count);
        update_range(&u, first, count);
        offload_return(o->offload, c);
    }
}

void optimizer_step(Optimizer *o, int64_t step, double learning_rate, int64_t tokens_in_step, bool watched) {
    const Tensor control = gpt2_control(o->model), sumsq = gpt2_gradient_sumsq(o->model);
    const UpdateParams params = {.learning_rate = (float)learning_rate,
                                 .beta1 = o->options.beta1,
                                 .beta2 = o->options.beta2,
                                 .eps = o->options.eps,
                                 .momentum = o->options.momentum,
                                 .step = step,
                                 .seed = o->options.seed};
    if (o->offload) offload_begin(o->offload); // beside the backward pass, which still runs
    gradient_sumsq(sumsq, gpt2_gradients(o->model), o->count);
    step_control_update(control, sumsq, gpt2_sequence_losses(o->model), tokens_in_step, o->options.limits);
    if (watched) gpt2_numerics_gradients(o->model);
    if (gpt2_options(o->model)->optimizer == OPTIMIZER_ADAFACTOR)
        adafactor_statistics(o->tensors, o->count, params, control);
    if (o->muon) muon_directions(o->muon, params, control);
    update(o, params, watched);
    gpt2_weights_changed(o->model);
}
