// The tensors of a model by parameter and by unit of memory.
#include "llmc/model/model_tensors.h"

#include "llmc/base/arithmetic.h"
#include "llmc/model/model_object.h"

int model_num_tensors(const Model *model) { return model->num_tensors; }
const Parameter *model_parameters(const Model *model) { return model->parameters; }
const UpdateTensor *model_tensors(const Model *model) { return model->tensors; }
Range model_own_elements(const Model *model, int index) {
    const ModelOptions *o = &model->options;
    return model_own_range(o, model->layout.partition, &model->parameters[index], index, o->rank);
}
const UpdateTensor *model_own_tensors(const Model *model, int *count) {
    *count = model->num_own;
    return model->own;
}

void model_weights_changed(Model *model) { model->weights_are_new = true; }

void *model_offload_buffer(const Model *model, int64_t *bytes) {
    const int handle = model->layout.offload_buffer;
    *bytes = 0;
    if (handle >= 0) *bytes = memory_plan_tensor(model->plan, handle).bytes;
    return model_at(model, handle);
}
Tensor model_optimizer_scratch(const Model *model) {
    const int handle = model->layout.optimizer_scratch;
    if (handle < 0) return tensor_none();
    const int64_t bytes = memory_plan_tensor(model->plan, handle).bytes;
    return tensor_make(model_at(model, handle), DTYPE_U8, "optimizer_scratch", bytes, 0, 0, 0);
}

// --------------------------------------------------------------------------------- units of memory

const Partition *model_partition(const Model *model) { return model->layout.partition; }

static Tensor gradient_elements(const Model *model, int handle, int64_t first, int64_t n) {
    const DType dtype = model_gradient_dtype(&model->options);
    char *data = (char *)model_at(model, handle) + first * (int64_t)dtype_size(dtype);
    return tensor_make(data, dtype, "gradients", n, 0, 0, 0);
}

Tensor model_unit_gradients(const Model *model, int unit) {
    const Partition *p = model->layout.partition;
    const int64_t n = p->begin[unit + 1] - p->begin[unit],
                  outside = p->elements - p->begin[p->num_units - 1];
    int64_t first = p->begin[unit];
    if (model_frees_gradients(&model->options))
        first = outside + unit % NUM_BUCKETS * model->layout.longest_block;
    if (model_frees_gradients(&model->options) && unit == p->num_units - 1) first = 0;
    return gradient_elements(model, model->layout.gradients, first, n);
}

Tensor model_unit_sums(const Model *model, int unit, int level) {
    const Partition *p = model->layout.partition;
    return gradient_elements(model, model->layout.gradient_sums,
                             level * p->elements + p->begin[unit],
                             p->begin[unit + 1] - p->begin[unit]);
}

Tensor model_own_gradients(const Model *model, int unit) {
    const Partition *p = model->layout.partition;
    const int rank = model->options.rank;
    const Range own = partition_of_unit(p, unit, rank);
    int64_t first = 0;
    if (!model_frees_gradients(&model->options))
        return tensor_slice_elements(model_unit_gradients(model, unit), own.begin - p->begin[unit],
                                     range_size(own));
    for (int u = 0; u < unit; u++) first += range_size(partition_of_unit(p, u, rank));
    return gradient_elements(model, model->layout.own_gradients, first, range_size(own));
}

Tensor model_unit_weights(const Model *model, int unit) {
    const Partition *p = model->layout.partition;
    const DType dtype = model->options.dtype;
    char *data = (char *)model_at(model, model->layout.weights) +
                 p->begin[unit] * (int64_t)dtype_size(dtype);
    return tensor_make(data, dtype, "weights", p->begin[unit + 1] - p->begin[unit], 0, 0, 0);
}

Tensor model_exchange_buffer(const Model *model, int half) {
    const int64_t n = model->layout.exchange_elements;
    return gradient_elements(model, model->layout.exchange, half * n, n);
}

Tensor model_norm(const Model *model) {
    return tensor_make(model_at(model, model->layout.norm), DTYPE_FP32, "sumsq",
                       max_i64(model->options.processes, 1), model->layout.norm_columns, 0, 0);
}

// -------------------------------------------------------------------------------- losses, decision

Tensor model_control(const Model *model) {
    return tensor_make(model_at(model, model->layout.control), DTYPE_U8, "control",
                       (int64_t)sizeof(StepControl), 0, 0, 0);
}
Tensor model_sequence_losses(const Model *model) {
    void *data = model_at(model, model->layout.sequence_losses);
    return tensor_make(data, DTYPE_FP32, "sequence_losses", model->options.B, 0, 0, 0);
}
Tensor model_step_losses(const Model *model) {
    const ModelOptions *o = &model->options;
    if (o->groups <= 1) return model_sequence_losses(model);
    return tensor_make(model_at(model, model->layout.step_losses), DTYPE_FP32, "step_losses",
                       o->groups, o->B, 0, 0);
}
Tensor model_token_losses(const Model *model) {
    return model_acts(model, model->B, model->T).losses;
}
