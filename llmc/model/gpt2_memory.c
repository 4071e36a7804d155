// What memory the model takes: the table of activations with their lifetimes, the plan made from it, and the tensors
// that look into the arena. Which activations the backward pass keeps is decided here and nowhere else.
#include "llmc/model/gpt2_internal.h"

#include "llmc/base/checked.h"
#include <stdlib.h>

// -------------------------------------------------------------------------------------------- the table of activations

enum { NEVER = -1, ALWAYS_KEPT = RECOMPUTE_BLOCK + 1, NEVER_KEPT = 0 };

// One row: width a token, the ticks of the forward pass between which it is written and last read, those of the
// backward pass between which it is needed (first: when a recomputed one is written), and the recompute level from
// which on it is not kept from one pass to the other.
typedef struct {
    const char *name;
    char width; // '1' C, '3' 3C, '4' 4C in the compute dtype; 'h' NH, 's' one number, in fp32
    int forward_first, forward_last;
    int backward_first, backward_last;
    int dropped_at;
} ActivationSpec;

static const ActivationSpec block_acts[NUM_BLOCK_ACTS] = {
    [ACT_RESIDUAL1] = {"residual1", '1', F_LN1, F_LN2, B_RECOMPUTE, B_LN1, ALWAYS_KEPT},
    [ACT_LN1] = {"ln1", '1', F_LN1, F_QKV, B_QKV, B_QKV, RECOMPUTE_LAYERNORM},
    [ACT_LN1_MEAN] = {"ln1_mean", 's', F_LN1, F_LN1, B_RECOMPUTE, B_LN1, RECOMPUTE_BLOCK},
    [ACT_LN1_RSTD] = {"ln1_rstd", 's', F_LN1, F_LN1, B_RECOMPUTE, B_LN1, RECOMPUTE_BLOCK},
    [ACT_QKV] = {"qkv", '3', F_QKV, F_ATT, B_RECOMPUTE, B_ATT, RECOMPUTE_BLOCK},
    [ACT_LSE] = {"lse", 'h', F_ATT, F_ATT, B_RECOMPUTE, B_ATT, RECOMPUTE_BLOCK},
    [ACT_ATT] = {"att", '1', F_ATT, F_PROJ, B_RECOMPUTE, B_ATT, RECOMPUTE_BLOCK},
    [ACT_PROJ] = {"proj", '1', F_PROJ, F_LN2, B_RECOMPUTE, B_RECOMPUTE, NEVER_KEPT},
    [ACT_RESIDUAL2] = {"residual2", '1', F_LN2, F_NEXT_LN1, B_RECOMPUTE, B_LN2, RECOMPUTE_BLOCK},
    [ACT_LN2] = {"ln2", '1', F_LN2, F_FC, B_FC, B_FC, RECOMPUTE_LAYERNORM},
    [ACT_LN2_MEAN] = {"ln2_mean", 's', F_LN2, F_LN2, B_RECOMPUTE, B_LN2, RECOMPUTE_BLOCK},
    [ACT_LN2_RSTD] = {"ln2_rstd", 's', F_LN2, F_LN2, B_RECOMPUTE, B_LN2, RECOMPUTE_BLOCK},
    [ACT_PRE] = {"pre", '4', F_FC, F_FC, B_RECOMPUTE, B_GELU, RECOMPUTE_BLOCK},
    [ACT_GELU] = {"gelu", '4', F_FC, F_FCPROJ, B_FCPROJ, B_FCPROJ, RECOMPUTE_GELU},
    [ACT_FCPROJ] = {"fcproj", '1', F_FCPROJ, F_NEXT_LN1, NEVER, NEVER, NEVER_KEPT},
    [ACT_DFC] = {"dfc", '4', NEVER, NEVER, B_GELU, B_FC, NEVER_KEPT},
    [ACT_DLN2] = {"dln2", '1', NEVER, NEVER, B_FC, B_LN2, NEVER_KEPT},
    [ACT_DATT] = {"datt", '1', NEVER, NEVER, B_PROJ, B_ATT, NEVER_KEPT},
    [ACT_DQKV] = {"dqkv", '3', NEVER, NEVER, B_ATT, B_QKV, NEVER_KEPT},
    [ACT_DLN1] = {"dln1", '1', NEVER, NEVER, B_QKV, B_LN1, NEVER_KEPT},
};

static int64_t width_of(const ModelConfig *config, char width) {
    switch (width) {
    case '3':
        return 3 * config->C;
    case '4':
        return 4 * config->C;
    case 'h':
        return config->NH;
    case 's':
        return 1;
    default:
        return config->C;
    }
}

static DType dtype_of(DType compute, char width) { return width == 'h' || width == 's' ? DTYPE_FP32 : compute; }

// ------------------------------------------------------------------------------------------------------------ the plan

static int forward_tick(int block) { return block * FORWARD_TICKS; }
static int head_tick(const ModelConfig *config) { return (int)config->L * FORWARD_TICKS; }
static int backward_tick(const ModelConfig *config, int block) {
    return head_tick(config) + HEAD_TICKS + ((int)config->L - 1 - block) * BACKWARD_TICKS;
}

static OpsShape ops_shape(const Gpt2Options *o) {
    OpsShape shape = {.B = o->B,
                      .T = o->T,
                      .C = o->config.C,
                      .NH = o->config.NH,
                      .Vp = o->config.Vp,
                      .num_tensors = parameter_count(&o->config),
                      // Level 3 runs the whole matmul again, and so gets its bits anyway.
                      .gelu_again = o->train && (o->recompute == RECOMPUTE_GELU || o->recompute == RECOMPUTE_LAYERNORM),
                      .dtype = o->dtype};
    return shape;
}

static void plan_permanent(MemoryPlan *plan, Layout *layout, const Gpt2Options *o) {
    int64_t n = 0; // elements of all tensors, each starting on an aligned address whatever its dtype
    Parameter *table = parameter_table(&o->config);
    const int count = parameter_count(&o->config);
    for (int i = 0; i < count; i++) n += round_up(parameter_numel(&table[i]), PLAN_ALIGNMENT);
    free(table);
    const int64_t element = (int64_t)dtype_size(o->dtype);
    layout->weights = memory_plan_add(plan, MEM_WEIGHTS, "weights", n * element, PLAN_ALWAYS, PLAN_ALWAYS);
    layout->master = layout->gradients = layout->m = layout->v = layout->sumsq = -1;
    if (o->train) {
        if (o->master) layout->master = memory_plan_add(plan, MEM_MASTER, "master", n * 4, PLAN_ALWAYS, PLAN_ALWAYS);
        layout->gradients = memory_plan_add(plan, MEM_GRADIENTS, "gradients", n * 4, PLAN_ALWAYS, PLAN_ALWAYS);
        layout->m = memory_plan_add(plan, MEM_OPTIMIZER, "m", n * 4, PLAN_ALWAYS, PLAN_ALWAYS);
        layout->v = memory_plan_add(plan, MEM_OPTIMIZER, "v", n * 4, PLAN_ALWAYS, PLAN_ALWAYS);
        layout->sumsq = memory_plan_add(plan, MEM_WORKSPACE, "sumsq", (int64_t)count * 4, PLAN_ALWAYS, PLAN_ALWAYS);
    }
    layout->control =
        memory_plan_add(plan, MEM_WORKSPACE, "control", (int64_t)sizeof(StepControl), PLAN_ALWAYS, PLAN_ALWAYS);
    layout->sequence_losses =
        memory_plan_add(plan, MEM_WORKSPACE, "sequence_losses", o->B * 4, PLAN_ALWAYS, PLAN_ALWAYS);
    layout->windows = memory_plan_add(plan, MEM_WORKSPACE, "windows", o->B * (o->T + 1) * 4, PLAN_ALWAYS, PLAN_ALWAYS);
    layout->workspace =
        memory_plan_add(plan, MEM_WORKSPACE, "workspace", ops_workspace_bytes(ops_shape(o)), PLAN_ALWAYS, PLAN_ALWAYS);
}

static void plan_block(MemoryPlan *plan, Layout *layout, const Gpt2Options *o, int block) {
    const int f = forward_tick(block), b = backward_tick(&o->config, block);
    for (int i = 0; i < NUM_BLOCK_ACTS; i++) {
        const ActivationSpec *s = &block_acts[i];
        const int64_t bytes =
            o->B * o->T * width_of(&o->config, s->width) * (int64_t)dtype_size(dtype_of(o->dtype, s->width));
        const bool in_forward = s->forward_first != NEVER;
        const bool in_backward = o->train && s->backward_first != NEVER;
        const bool kept = in_forward && in_backward && o->recompute < s->dropped_at;
        layout->forward[block][i] = layout->backward[block][i] = -1;
        if (kept) {
            layout->forward[block][i] = layout->backward[block][i] =
                memory_plan_add(plan, MEM_ACTIVATIONS, s->name, bytes, f + s->forward_first, b + s->backward_last);
            continue;
        }
        if (in_forward)
            layout->forward[block][i] =
                memory_plan_add(plan, MEM_ACTIVATIONS, s->name, bytes, f + s->forward_first, f + s->forward_last);
        // When the whole block runs again, everything it computes is written then.
        const int first = in_forward && o->recompute == RECOMPUTE_BLOCK ? B_RECOMPUTE : s->backward_first;
        if (in_backward && (!in_forward || s->dropped_at != NEVER_KEPT || o->recompute == RECOMPUTE_BLOCK))
            layout->backward[block][i] =
                memory_plan_add(plan, MEM_ACTIVATIONS, s->name, bytes, b + first, b + s->backward_last);
    }
}

static void plan_model_acts(MemoryPlan *plan, Layout *layout, const Gpt2Options *o) {
    const int head = head_tick(&o->config);
    const int end = o->train ? backward_tick(&o->config, 0) + BACKWARD_TICKS : head + H_HEAD;
    const int64_t rows = o->B * o->T, e = (int64_t)dtype_size(o->dtype), C = o->config.C;
    const int after_head = o->train ? head + H_LNF_BACKWARD : head + H_HEAD;
    const struct {
        const char *name;
        int64_t bytes;
        int first, last;
        bool train_only;
    } acts[NUM_MODEL_ACTS] = {
        [ACT_INPUTS] = {"inputs", rows * 4, 0, end, false},
        [ACT_TARGETS] = {"targets", rows * 4, 0, head + H_HEAD, false},
        [ACT_FINAL_RESIDUAL] = {"final_residual", rows * C * e, head + H_LNF, after_head, false},
        [ACT_LNF] = {"lnf", rows * C * e, head + H_LNF, head + H_HEAD, false},
        [ACT_LNF_MEAN] = {"lnf_mean", rows * 4, head + H_LNF, after_head, false},
        [ACT_LNF_RSTD] = {"lnf_rstd", rows * 4, head + H_LNF, after_head, false},
        [ACT_LOGITS] = {"logits", ops_head_chunk_rows(ops_shape(o)) * o->config.Vp * e, head + H_HEAD, head + H_HEAD,
                        false},
        [ACT_LOSSES] = {"losses", rows * 4, head + H_HEAD, head + H_HEAD, false},
        [ACT_DLNF] = {"dlnf", rows * C * e, head + H_HEAD, head + H_LNF_BACKWARD, true},
        [ACT_DRESIDUAL] = {"dresidual", rows * C * e, head + H_LNF_BACKWARD, end, true},
    };
    for (int i = 0; i < NUM_MODEL_ACTS; i++)
        layout->model_acts[i] =
            acts[i].train_only && !o->train
                ? -1
                : memory_plan_add(plan, MEM_ACTIVATIONS, acts[i].name, acts[i].bytes, acts[i].first, acts[i].last);
}

static MemoryPlan *plan_all(Layout *layout, const Gpt2Options *o) {
    MemoryPlan *plan = memory_plan_create();
    const size_t L = (size_t)o->config.L;
    layout->forward = malloc(L * sizeof *layout->forward);
    layout->backward = malloc(L * sizeof *layout->backward);
    REQUIRE(layout->forward && layout->backward, "no memory for the layout");
    plan_permanent(plan, layout, o);
    plan_model_acts(plan, layout, o);
    for (int block = 0; block < o->config.L; block++) plan_block(plan, layout, o, block);
    memory_plan_solve(plan);
    return plan;
}

static Gpt2Options effective(const Gpt2Options *options) {
    Gpt2Options o = *options;
    if (o.dtype == DTYPE_FP32) o.master = false; // the weights are their own master
    return o;
}

MemoryPlan *gpt2_plan(const Gpt2Options *options) {
    Layout layout;
    Gpt2Options o = effective(options);
    MemoryPlan *plan = plan_all(&layout, &o);
    free(layout.forward);
    free(layout.backward);
    return plan;
}

// ---------------------------------------------------------------------------------------------------------- the object

static void *at(const Gpt2 *model, int handle) {
    return handle < 0 ? NULL : model->arena + memory_plan_offset(model->plan, handle);
}

// Tensor of parameter p at element offset n of the block of all tensors that handle names.
static Tensor parameter_tensor(const Gpt2 *model, int handle, DType dtype, const Parameter *p, int64_t n) {
    if (handle < 0) return tensor_none();
    char *data = (char *)at(model, handle) + n * (int64_t)dtype_size(dtype);
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
    model->plan = plan_all(&model->layout, o);
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
    ops_set_workspace(at(model, model->layout.workspace), ops_workspace_bytes(ops_shape(&model->options)));
}

void gpt2_destroy(Gpt2 *model) {
    if (!model) return;
    ops_set_workspace(NULL, 0);
    for (int i = 0; i < 4; i++)
        if (model->graphs[i].graph) device_graph_destroy(model->graphs[i].graph);
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
    return tensor_make(at(model, model->layout.control), DTYPE_U8, "control", (int64_t)sizeof(StepControl), 0, 0, 0);
}
Tensor gpt2_sequence_losses(const Gpt2 *model) {
    void *data = at(model, model->layout.sequence_losses);
    return tensor_make(data, DTYPE_FP32, "sequence_losses", model->options.B, 0, 0, 0);
}
Tensor gpt2_gradient_sumsq(const Gpt2 *model) {
    return tensor_make(at(model, model->layout.sumsq), DTYPE_FP32, "sumsq", model->num_tensors, 0, 0, 0);
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

BlockActs gpt2_block_acts(const Gpt2 *model, int block, Pass pass, int64_t B, int64_t T) {
    const int *handles = pass == PASS_FORWARD ? model->layout.forward[block] : model->layout.backward[block];
    Tensor t[NUM_BLOCK_ACTS];
    for (int i = 0; i < NUM_BLOCK_ACTS; i++) {
        const ActivationSpec *s = &block_acts[i];
        const DType dtype = dtype_of(model->options.dtype, s->width);
        const int64_t width = width_of(&model->options.config, s->width);
        void *data = at(model, handles[i]);
        if (s->width == 'h')
            t[i] = tensor_make(data, dtype, s->name, B, width, T, 0); // lse (B,NH,T)
        else if (s->width == 's')
            t[i] = tensor_make(data, dtype, s->name, B, T, 0, 0);
        else
            t[i] = tensor_make(data, dtype, s->name, B, T, width, 0);
    }
    return (BlockActs){
        .residual1 = t[ACT_RESIDUAL1],
        .ln1 = t[ACT_LN1],
        .ln1_mean = t[ACT_LN1_MEAN],
        .ln1_rstd = t[ACT_LN1_RSTD],
        .qkv = t[ACT_QKV],
        .lse = t[ACT_LSE],
        .att = t[ACT_ATT],
        .proj = t[ACT_PROJ],
        .residual2 = t[ACT_RESIDUAL2],
        .ln2 = t[ACT_LN2],
        .ln2_mean = t[ACT_LN2_MEAN],
        .ln2_rstd = t[ACT_LN2_RSTD],
        .pre = t[ACT_PRE],
        .gelu = t[ACT_GELU],
        .fcproj = t[ACT_FCPROJ],
        .dfc = t[ACT_DFC],
        .dln2 = t[ACT_DLN2],
        .datt = t[ACT_DATT],
        .dqkv = t[ACT_DQKV],
        .dln1 = t[ACT_DLN1],
    };
}

Tensor gpt2_act(const Gpt2 *model, ModelAct act, int64_t B, int64_t T) {
    const Gpt2Options *o = &model->options;
    void *data = at(model, model->layout.model_acts[act]);
    switch (act) {
    case ACT_INPUTS:
        return tensor_make(data, DTYPE_I32, "inputs", B, T, 0, 0);
    case ACT_TARGETS:
        return tensor_make(data, DTYPE_I32, "targets", B, T, 0, 0);
    case ACT_LNF_MEAN:
        return tensor_make(data, DTYPE_FP32, "lnf_mean", B, T, 0, 0);
    case ACT_LNF_RSTD:
        return tensor_make(data, DTYPE_FP32, "lnf_rstd", B, T, 0, 0);
    case ACT_LOSSES:
        return tensor_make(data, DTYPE_FP32, "losses", B, T, 0, 0);
    case ACT_LOGITS:
        return tensor_make(data, o->dtype, "logits", ops_head_chunk_rows(ops_shape(o)), o->config.Vp, 0, 0);
    case ACT_LNF:
        return tensor_make(data, o->dtype, "lnf", B, T, o->config.C, 0);
    case ACT_FINAL_RESIDUAL:
        return tensor_make(data, o->dtype, "final_residual", B, T, o->config.C, 0);
    case ACT_DLNF:
        return tensor_make(data, o->dtype, "dlnf", B, T, o->config.C, 0);
    default:
        return tensor_make(data, o->dtype, "dresidual", B, T, o->config.C, 0);
    }
}
