#include "llmc/train/optimizer.h"

#include <stdlib.h>
#include <string.h>

struct Optimizer {
    Gpt2 *model;
    OptimizerOptions options;
    int count;
    AdamWTensor *tensors;
};

float optimizer_first_loss_scale(DType dtype) { return dtype == DTYPE_FP16 ? 65536.0f : 1.0f; }
int32_t optimizer_scale_growth_interval(DType dtype) { return dtype == DTYPE_FP16 ? 2000 : 0; }

Optimizer *optimizer_create(Gpt2 *model, const OptimizerOptions *options, Error *err) {
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
    for (int i = 0; i < count; i++)
        o->tensors[i].weight_decay = gpt2_parameters(model)[i].spec->weight_decay ? options->weight_decay : 0.0f;
    return o;
}

void optimizer_destroy(Optimizer *optimizer) {
    if (optimizer) free(optimizer->tensors);
    free(optimizer);
}

void optimizer_step(Optimizer *o, int64_t step, double learning_rate, int64_t tokens_in_step) {
    Tensor control = gpt2_control(o->model), sumsq = gpt2_gradient_sumsq(o->model);
    gradient_sumsq(sumsq, gpt2_gradients(o->model), o->count);
    step_control_update(control, sumsq, gpt2_sequence_losses(o->model), tokens_in_step, o->options.limits);
    AdamWParams params = {.learning_rate = (float)learning_rate,
                          .beta1 = o->options.beta1,
                          .beta2 = o->options.beta2,
                          .eps = o->options.eps,
                          .step = step,
                          .seed = o->options.seed};
    adamw_update(o->tensors, o->count, params, control);
}
