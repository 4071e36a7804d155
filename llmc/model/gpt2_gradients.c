// Where gradients are accumulated: in fp32, then the ops of a micro-step add to them in place; or in the compute dtype,
// which takes half the memory. Then a micro-step computes its gradients in fp32 memory of its own, first of the head,
// then block by block, and adds them to the gradient tensors with one stochastic rounding each: within a micro-step
// nothing is rounded more than otherwise. That memory lives within the backward pass only, and is that of one block.
#include "llmc/model/gpt2_internal.h"

#include <stdlib.h>

DType gpt2_gradient_dtype(const Gpt2Options *o) { return o->gradients_in_dtype ? o->dtype : DTYPE_FP32; }

// From which tick to which the micro-step's own gradient of this kind of parameter is in use.
static void lifetime(const ModelConfig *c, int spec, int *first, int *last) {
    *first = gpt2_backward_tick(c, (int)c->L - 1), *last = gpt2_end_tick(c) - 1; // of one block after the other
    if (spec == PARAM_LNFW || spec == PARAM_LNFB) *first = *last = gpt2_head_tick(c) + H_LNF_BACKWARD;
    if (spec == PARAM_WTE) *first = gpt2_head_tick(c) + H_HEAD; // the embedding adds to what the head has left
    if (spec == PARAM_WPE) *first = gpt2_end_tick(c);
    if (spec == PARAM_WTE || spec == PARAM_WPE) *last = gpt2_end_tick(c);
}

void gradients_plan(MemoryPlan *plan, Layout *layout, const Gpt2Options *o) {
    Parameter *table = parameter_table(&o->config);
    for (int spec = 0; spec < NUM_PARAMETER_SPECS; spec++) {
        layout->micro_gradients[spec] = -1;
        if (!o->train || gpt2_gradient_dtype(o) == DTYPE_FP32) continue;
        const int64_t bytes = 4 * parameter_numel(&table[parameter_index(&o->config, spec, 0)]);
        int first, last;
        lifetime(&o->config, spec, &first, &last);
        layout->micro_gradients[spec] = memory_plan_add(plan, MEM_ACTIVATIONS, "micro_gradients", bytes, first, last);
    }
    free(table);
}

Tensor gpt2_micro_gradient(const Gpt2 *model, int index) {
    const Parameter *p = &model->parameters[index];
    const int handle = model->layout.micro_gradients[p->spec - parameter_specs];
    if (handle < 0) return model->gradients[index];
    return parameter_tensor(p, gpt2_at(model, handle), DTYPE_FP32);
}

void gpt2_add_gradients(const Gpt2 *model, int from, int to, int block, bool first) {
    for (int spec = from; spec <= to; spec++) {
        if (model->layout.micro_gradients[spec] < 0) continue;
        const int index = parameter_index(&model->options.config, spec, block);
        gradient_add(model->gradients[index], gpt2_micro_gradient(model, index), !first, model->options.seed, index,
                     gpt2_control(model));
    }
}
