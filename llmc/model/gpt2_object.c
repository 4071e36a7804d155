// The Gpt2 object: the arena that was planned for it is taken, its weights are found in there, everything is given
// back. What lies where is gpt2_memory.c's business.
#include "llmc/model/gpt2_internal.h"

#include "llmc/base/checked.h"
#include <stdlib.h>

static Gpt2Options effective(const Gpt2Options *options) {
    Gpt2Options o = *options;
    if (o.dtype == DTYPE_FP32) o.master = false; // the weights are their own master
    return o;
}

MemoryPlan *gpt2_plan(const Gpt2Options *options) {
    Layout layout;
    Gpt2Options o = effective(options);
    MemoryPlan *plan = gpt2_plan_all(&layout, &o);
    free(layout.forward);
    free(layout.backward);
    return plan;
}

// ---------------------------------------------------------------------------------------------------------- the object

void *gpt2_at(const Gpt2 *model, int handle) {
    return handle < 0 ? NULL : model->arena + memory_plan_offset(model->plan, handle);
}

// Tensor of parameter p at element offset n of the block of all tensors that handle names.
static Tensor parameter_tensor(const Gpt2 *model, int handle, DType dtype, const Parameter *p, int64_t n) {
    if (handle < 0) return tensor_none();
    char *data = (char *)gpt2_at(model, handle) + n * (int64_t)dtype_size(dtype);
    return tensor_make(data, dtype, p->name, p->rows, p->rank == 2 ? p->cols : 0, 0, 0);
}

static void make_tensors(Gpt2 *model) {
    const Gpt2Options *o = &model->options;
    const Layout *layout = &model->layout;
    int64_t n = 0;
    for (int i = 0; i < model->num_tensors; i++) {
        const Parameter *p = &model->parameters[i];
        AdamWTensor *t = &model->tensors[i];
        t->weight = parameter_tensor(model, layout->weights, o->dtype, p, n);
        t->master = parameter_tensor(model, layout->master, DTYPE_FP32, p, n);
        t->grad = parameter_tensor(model, layout->gradients, DTYPE_FP32, p, n);
        t->m = parameter_tensor(model, layout->m, DTYPE_FP32, p, n);
        t->v = parameter_tensor(model, layout->v, DTYPE_FP32, p, n);
        model->gradients[i] = t->grad;
        n += round_up(parameter_numel(p), PLAN_ALIGNMENT);
    }
}

Gpt2 *gpt2_create(const Gpt2Options *options, Error *err) {
    Gpt2 *model = calloc(1, sizeof *model);
    REQUIRE(model, "no memory for the model");
    model->options = effective(options);
    const Gpt2Options *o = &model->options;
    model->plan = gpt2_plan_all(&model->layout, o);
    model->num_tensors = parameter_count(&o->config);
    model->parameters = parameter_table(&o->config);
    model->tensors = calloc((size_t)model->num_tensors, sizeof *model->tensors);
    model->gradients = calloc((size_t)model->num_tensors, sizeof *model->gradients);
    REQUIRE(model->tensors && model->gradients, "no memory for the model");
    bool ok = (model->arena = device_alloc((size_t)memory_plan_total(model->plan), err)) != NULL &&
              (model->staging = host_alloc(STAGING_BYTES, err)) != NULL &&
              (model->copied = device_event_create(err)) != NULL &&
              (model->unpacked = device_event_create(err)) != NULL;
    for (int i = 0; ok && i < 4; i++) ok = (model->graphs[i].graph = device_graph_create(err)) != NULL;
    ok = ok && gpt2_decoder_create(model, err);
    if (!ok) {
        gpt2_destroy(model);
        return NULL;
    }
    make_tensors(model);
    StepControl control = step_control_initial(1.0f);
    gpt2_set_control(model, &control);
    return model;
}

void gpt2_use_workspace(const Gpt2 *model) {
    ops_set_workspace(gpt2_at(model, model->layout.workspace), ops_workspace_bytes(gpt2_ops_shape(&model->options)));
}

void gpt2_destroy(Gpt2 *model) {
    if (!model) return;
    ops_set_workspace(NULL, 0);
    for (int i = 0; i < 4; i++)
        if (model->graphs[i].graph) device_graph_destroy(model->graphs[i].graph);
    gpt2_decoder_destroy(model);
    if (model->copied) device_event_destroy(model->copied);
    if (model->unpacked) device_event_destroy(model->unpacked);
    if (model->staging) host_free(model->staging);
    if (model->arena) device_free(model->arena);
    free(model->gradients);
    free(model->tensors);
    free(model->parameters);
    free(model->layout.forward);
    free(model->layout.backward);
    memory_plan_destroy(model->plan);
    free(model);
}

const Gpt2Options *gpt2_options(const Gpt2 *model) { return &model->options; }
const MemoryPlan *gpt2_memory(const Gpt2 *model) { return model->plan; }
int gpt2_num_tensors(const Gpt2 *model) { return model->num_tensors; }
const Parameter *gpt2_parameters(const Gpt2 *model) { return model->parameters; }
const AdamWTensor *gpt2_tensors(const Gpt2 *model) { return model->tensors; }
const Tensor *gpt2_gradients(const Gpt2 *model) { return model->gradients; }

Tensor gpt2_control(const Gpt2 *model) {
    return tensor_make(gpt2_at(model, model->layout.control), DTYPE_U8, "control", (int64_t)sizeof(StepControl), 0, 0,
                       0);
}
Tensor gpt2_sequence_losses(const Gpt2 *model) {
    void *data = gpt2_at(model, model->layout.sequence_losses);
    return tensor_make(data, DTYPE_FP32, "sequence_losses", model->options.B, 0, 0, 0);
}
Tensor gpt2_gradient_sumsq(const Gpt2 *model) {
    return tensor_make(gpt2_at(model, model->layout.sumsq), DTYPE_FP32, "sumsq", model->num_tensors, 0, 0, 0);
}

// ------------------------------------------------------------------------------------------------------------- views

static BlockParams block_params(const Gpt2 *model, int block, bool gradients) {
    Tensor t[NUM_PARAMETER_SPECS];
    for (int s = PARAM_LN1W; s <= PARAM_FCPROJB; s++) {
        const AdamWTensor *tensor = &model->tensors[parameter_index(&model->options.config, s, block)];
        t[s] = gradients ? tensor->grad : tensor->weight;
    }
    return (BlockParams){
        .ln1w = t[PARAM_LN1W],
        .ln1b = t[PARAM_LN1B],
        .qkvw = t[PARAM_QKVW],
        .qkvb = t[PARAM_QKVB],
        .attprojw = t[PARAM_ATTPROJW],
        .attprojb = t[PARAM_ATTPROJB],
        .ln2w = t[PARAM_LN2W],
        .ln2b = t[PARAM_LN2B],
        .fcw = t[PARAM_FCW],
        .fcb = t[PARAM_FCB],
        .fcprojw = t[PARAM_FCPROJW],
        .fcprojb = t[PARAM_FCPROJB],
    };
}
BlockParams gpt2_block_weights(const Gpt2 *model, int block) { return block_params(model, block, false); }
BlockParams gpt2_block_gradients(const Gpt2 *model, int block) { return block_params(model, block, true); }

Tensor gpt2_weight(const Gpt2 *model, int spec) {
    return model->tensors[parameter_index(&model->options.config, spec, 0)].weight;
}
Tensor gpt2_gradient(const Gpt2 *model, int spec) {
    return model->tensors[parameter_index(&model->options.config, spec, 0)].grad;
}
