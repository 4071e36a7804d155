// The views of a model's arena that its passes use.
#include "llmc/model/model_object.h"

void *model_at(const Model *model, int handle) {
    return handle < 0 ? NULL : model->arena + memory_plan_offset(model->plan, handle);
}

void model_use_workspace(const Model *model) {
    ops_set_workspace(model_at(model, model->layout.workspace), ops_workspace_bytes(model_ops_shape(&model->options)));
}

Weights model_weights(const Model *model, int block) {
    Weights w;
    for (int s = 0; s < NUM_PARAMETER_SPECS; s++)
        w.all[s] = model->tensors[parameter_index(&model->options.config, s, block)].weight;
    return w;
}

// The gradient tensor itself, or fp32 memory that belongs to the micro-step and is shared by all blocks.
Weights model_gradients(const Model *model, int block) {
    Weights g;
    for (int s = 0; s < NUM_PARAMETER_SPECS; s++) {
        const int index = parameter_index(&model->options.config, s, block), handle = model->layout.micro_gradients[s];
        g.all[s] = handle < 0 ? model->tensors[index].grad
                              : parameter_tensor(&model->parameters[index], model_at(model, handle), DTYPE_FP32);
    }
    return g;
}

ModelActs model_acts(const Model *model, int64_t B, int64_t T) {
    ModelActs a;
    for (int i = 0; i < NUM_MODEL_ACTS; i++) {
        const ModelActivationSpec *s = &model_activations[i];
        void *data = model_at(model, model->layout.model_acts[i]);
        a.all[i] = model_activation(&model->options, s->shape, s->name, data, B, T);
    }
    return a;
}

Block model_block(const Model *model, int number, Pass pass, int64_t B, int64_t T) {
    const int *handles = model->layout.decoder_acts;
    Block b = {.model = model, .number = number, .pass = pass, .p = model_weights(model, number)};
    if (pass == PASS_FORWARD) handles = model->layout.forward[number];
    if (pass == PASS_BACKWARD) {
        handles = model->layout.backward[number];
        b.g = model_gradients(model, number);
        b.missing = model->options.recompute.blocks[number];
        if (b.missing & RECOMPUTE_LAYERNORM) b.missing |= RECOMPUTE_LN2;
    }
    for (int i = 0; i < NUM_BLOCK_ACTS; i++) {
        const ActivationSpec *s = &model_block_activations[i];
        b.a.all[i] = model_activation(&model->options, s->shape, s->name, model_at(model, handles[i]), B, T);
    }
    return b;
}
