// The views of a model's arena that its passes use.
#include "llmc/model/model_object.h"

void *model_at(const Model *model, int handle) {
    if (handle < 0) return NULL;
    return model->arena + memory_plan_offset(model->plan, handle);
}

void model_use_workspace(const Model *model) {
    ops_set_workspace(model_at(model, model->layout.workspace),
                      ops_workspace_bytes(model_ops_shape(&model->options)));
}

Weights model_weights(const Model *model, int block) {
    Weights w;
    for (int s = 0; s < NUM_PARAMETER_SPECS; s++) {
        const int index = parameter_index(&model->options.config, s, block);
        w.all[s] = tensor_none();
        if (index >= 0) w.all[s] = model->tensors[index].weight;
    }
    return w;
}

// The gradient tensor itself, or fp32 memory that belongs to the micro-step and is shared by all
// blocks.
static Tensor micro_step_gradient(const Model *model, int spec, int block) {
    const int index = parameter_index(&model->options.config, spec, block);
    const int handle = model->layout.micro_gradients[spec];
    if (index < 0) return tensor_none();
    if (handle < 0) return model->tensors[index].grad;
    return parameter_tensor(&model->parameters[index], model_at(model, handle), DTYPE_FP32);
}

Gradients model_gradients(const Model *model, int block, const MicroStep *s) {
    const bool add = !s->first && model_gradient_dtype(&model->options) == DTYPE_FP32;
    Gradients g;
    for (int spec = 0; spec < NUM_PARAMETER_SPECS; spec++)
        g.all[spec] = gradient_to(micro_step_gradient(model, spec, block), add);
    return g;
}

Tensor model_rope_table(const Model *model) {
    const ModelOptions *o = &model->options;
    void *data = model_at(model, model->layout.rope_table);
    if (data)
        return tensor_make(data, DTYPE_FP32, "rope_table", o->T, 2, model_head_size(&o->config) / 2,
                           0);
    return tensor_none();
}

ModelActs model_acts(const Model *model, int64_t B, int64_t T) {
    ModelActs a;
    for (int i = 0; i < NUM_MODEL_ACTS; i++) {
        const ModelActivationSpec *s = &model_activations[i];
        void *data = model_at(model, model->layout.model_acts[i]);
        a.all[i] = model_activation(&model->options, s->shape, s->presence, s->name, data, B, T);
    }
    return a;
}

Block model_block(const Model *model, int number, Pass pass, int64_t B, int64_t T) {
    const int *handles = model->layout.decoder_acts;
    Block b = {.model = model, .number = number, .pass = pass, .p = model_weights(model, number)};
    b.table = model_rope_table(model);
    if (pass == PASS_FORWARD) handles = model->layout.forward[number];
    if (pass == PASS_BACKWARD) {
        handles = model->layout.backward[number];
        b.missing = model->options.recompute.blocks[number];
        if (b.missing & RECOMPUTE_LAYERNORM) b.missing |= RECOMPUTE_LN2 | RECOMPUTE_QKR;
    }

    for (int i = 0; i < NUM_BLOCK_ACTS; i++) {
        const ActivationSpec *s = &model_block_activations[i];
        void *data = model_at(model, handles[i]);
        b.a.all[i] = model_activation(&model->options, s->shape, s->presence, s->name, data, B, T);
    }
    return b;
}
