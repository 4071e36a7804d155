// The memory of the model: the table of activations with their lifetimes, the plan made from it, and the tensors that
// are views into it. This is the only place that decides which activations the backward pass keeps.
//
// If gradients are accumulated in fp32, the ops of a micro-step add to them in place. If they are accumulated in the
// compute dtype, which takes half the memory, a micro-step computes its gradients in fp32 memory of its own, first of
// the head, then block by block, and adds them to the gradient tensors with one stochastic rounding each. So within a
// micro-step there is no additional rounding. That memory exists within the backward pass only and has the size of one
// block.
#include "llmc/base/arithmetic.h"
#include "llmc/model/gpt2_internal.h"

#include <stdlib.h>

// -------------------------------------------------------------------------------------------- the table of activations

enum { NEVER = -1, NEVER_KEPT = AGAIN_BLOCK + 1 };

// One row: width a token, the ticks of the forward pass from its first write to its last read, the ticks of the
// backward pass in which it is read (gradients: written and read), and the recomputed ops that write it. If one of
// those runs again, the activation is not kept from one pass to the other.
typedef struct {
    const char *name;
    char width; // '1' C, '3' 3C, '4' 4C in the compute dtype; 'h' NH, 's' one number, in fp32
    int forward_first, forward_last;
    int backward_first, backward_last;
    int again;
} ActivationSpec;

static const ActivationSpec block_acts[NUM_BLOCK_ACTS] = {
    [ACT_RESIDUAL1] = {"residual1", '1', F_LN1, F_LN2, B_LN1, B_LN1, 0},
    [ACT_LN1] = {"ln1", '1', F_LN1, F_QKV, B_QKV, B_QKV, AGAIN_LAYERNORM},
    [ACT_LN1_MEAN] = {"ln1_mean", 's', F_LN1, F_LN1, B_QKV, B_LN1, AGAIN_LAYERNORM},
    [ACT_LN1_RSTD] = {"ln1_rstd", 's', F_LN1, F_LN1, B_QKV, B_LN1, AGAIN_LAYERNORM},
    [ACT_QKV] = {"qkv", '3', F_QKV, F_ATT, B_ATT, B_ATT, AGAIN_QKV},
    [ACT_LSE] = {"lse", 'h', F_ATT, F_ATT, B_PROJ, B_ATT, AGAIN_ATTENTION},
    [ACT_ATT] = {"att", '1', F_ATT, F_PROJ, B_PROJ, B_ATT, AGAIN_ATTENTION},
    [ACT_PROJ] = {"proj", '1', F_PROJ, F_LN2, B_FC, B_FC, NEVER_KEPT | AGAIN_ATTPROJ},
    [ACT_RESIDUAL2] = {"residual2", '1', F_LN2, F_NEXT_LN1, B_FC, B_LN2, AGAIN_ATTPROJ},
    [ACT_LN2] = {"ln2", '1', F_LN2, F_FC, B_FC, B_FC, AGAIN_LAYERNORM},
    [ACT_LN2_MEAN] = {"ln2_mean", 's', F_LN2, F_LN2, B_FC, B_LN2, AGAIN_LAYERNORM},
    [ACT_LN2_RSTD] = {"ln2_rstd", 's', F_LN2, F_LN2, B_FC, B_LN2, AGAIN_LAYERNORM},
    [ACT_PRE] = {"pre", '4', F_FC, F_FC, B_FCPROJ, B_GELU, AGAIN_FC},
    [ACT_GELU] = {"gelu", '4', F_FC, F_FCPROJ, B_FCPROJ, B_FCPROJ, AGAIN_GELU | AGAIN_FC},
    [ACT_FCPROJ] = {"fcproj", '1', F_FCPROJ, F_NEXT_LN1, NEVER, NEVER, 0},
    [ACT_DFC] = {"dfc", '4', NEVER, NEVER, B_GELU, B_FC, 0},
    [ACT_DLN2] = {"dln2", '1', NEVER, NEVER, B_FC, B_LN2, 0},
    [ACT_DATT] = {"datt", '1', NEVER, NEVER, B_PROJ, B_ATT, 0},
    [ACT_DQKV] = {"dqkv", '3', NEVER, NEVER, B_ATT, B_QKV, 0},
    [ACT_DLN1] = {"dln1", '1', NEVER, NEVER, B_QKV, B_LN1, 0},
};

// The tick at which the backward pass recomputes a tensor that it first reads at `tick`: that tick, or, if another op
// of the set needs it, the tick of that op. This is the order of the needs of block_backward in gpt2.c.
static int again_tick(int set, int tick) {
    const int ln2 = set & AGAIN_FC ? B_RECOMPUTE : B_FC;
    const int attention = set & AGAIN_ATTPROJ ? ln2 : B_PROJ;
    const int qkv = set & AGAIN_ATTENTION ? attention : B_ATT;
    const int ln1 = set & AGAIN_QKV ? qkv : B_QKV;
    return tick == B_FC ? ln2 : tick == B_PROJ ? attention : tick == B_ATT ? qkv : tick == B_QKV ? ln1 : tick;
}

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
int gpt2_head_tick(const ModelConfig *config) { return (int)config->L * FORWARD_TICKS; }
int gpt2_backward_tick(const ModelConfig *config, int block) {
    return gpt2_head_tick(config) + HEAD_TICKS + ((int)config->L - 1 - block) * BACKWARD_TICKS;
}
int gpt2_end_tick(const ModelConfig *config) { return gpt2_backward_tick(config, 0) + BACKWARD_TICKS; }

OpsShape gpt2_ops_shape(const Gpt2Options *o) {
    OpsShape shape = {.B = o->B,
                      .T = o->T,
                      .C = o->config.C,
                      .NH = o->config.NH,
                      .Vp = o->config.Vp,
                      .num_tensors = parameter_count(&o->config),
                      .sequences = o->sequences,
                      .factored = o->train && o->optimizer == OPTIMIZER_ADAFACTOR ? parameter_total(&o->config) : 0,
                      .fp8 = o->fp8,
                      .forward_only = !o->train,
                      .dtype = o->dtype};
    return shape;
}

// Asks this backend, or the sizes of the machine that is planned for.
static int64_t workspace_bytes(const Gpt2Options *o) {
    const OpsShape shape = gpt2_ops_shape(o);
    return o->sizes ? o->sizes->workspace_bytes(o->sizes->machine, shape) : ops_workspace_bytes(shape);
}
static int64_t head_chunk_rows(const Gpt2Options *o) {
    const OpsShape shape = gpt2_ops_shape(o);
    return o->sizes ? o->sizes->head_chunk_rows(o->sizes->machine, shape) : ops_head_chunk_rows(shape);
}

void gpt2_state_bytes(const Gpt2Options *o, int64_t bytes[NUM_STATE_SLOTS]) {
    Parameter *table = parameter_table(&o->config);
    const int count = o->train ? parameter_count(&o->config) : 0;
    for (int slot = 0; slot < NUM_STATE_SLOTS; slot++) {
        bytes[slot] = 0;
        for (int i = 0; i < count; i++) {
            const Tensor t = optimizer_state(o->optimizer, o->master, o->dtype, &table[i], (StateSlot)slot);
            bytes[slot] += round_up((int64_t)tensor_bytes(t), PLAN_ALIGNMENT);
        }
    }
    free(table);
}

// The slots of the optimizer, each with all its tensors one after the other; under offload they are in host memory, and
// a buffer is here.
static void plan_state(MemoryPlan *plan, Layout *layout, const Gpt2Options *o) {
    int64_t bytes[NUM_STATE_SLOTS];
    gpt2_state_bytes(o, bytes);
    layout->host_bytes = 0, layout->offload_buffer = -1;
    for (int slot = 0; slot < NUM_STATE_SLOTS; slot++) {
        layout->state[slot] = -1;
        if (bytes[slot] == 0) continue;
        if (o->offload)
            layout->host_bytes += bytes[slot];
        else
            layout->state[slot] =
                memory_plan_add(plan, slot == SLOT_MASTER ? MEM_MASTER : MEM_OPTIMIZER,
                                state_slot_name((StateSlot)slot), bytes[slot], PLAN_ALWAYS, PLAN_ALWAYS);
    }
    if (o->train && o->offload)
        layout->offload_buffer =
            memory_plan_add(plan, MEM_OPTIMIZER, "offload_buffer", optimizer_offload_buffer(layout->host_bytes),
                            PLAN_ALWAYS, PLAN_ALWAYS);
}

static void plan_permanent(MemoryPlan *plan, Layout *layout, const Gpt2Options *o) {
    int64_t n = 0; // elements of all tensors, each starting on an aligned address whatever its dtype
    Parameter *table = parameter_table(&o->config);
    const int count = parameter_count(&o->config);
    for (int i = 0; i < count; i++) n += round_up(parameter_numel(&table[i]), PLAN_ALIGNMENT);
    free(table);
    const int64_t element = (int64_t)dtype_size(o->dtype);
    layout->weights = memory_plan_add(plan, MEM_WEIGHTS, "weights", n * element, PLAN_ALWAYS, PLAN_ALWAYS);
    layout->gradients = layout->sumsq = -1;
    if (o->train) {
        layout->gradients = memory_plan_add(plan, MEM_GRADIENTS, "gradients",
                                            n * (int64_t)dtype_size(gpt2_gradient_dtype(o)), PLAN_ALWAYS, PLAN_ALWAYS);
        layout->sumsq = memory_plan_add(plan, MEM_WORKSPACE, "sumsq", (int64_t)count * 4, PLAN_ALWAYS, PLAN_ALWAYS);
    }
    plan_state(plan, layout, o);
    layout->control =
        memory_plan_add(plan, MEM_WORKSPACE, "control", (int64_t)sizeof(StepControl), PLAN_ALWAYS, PLAN_ALWAYS);
    layout->sequence_losses =
        memory_plan_add(plan, MEM_WORKSPACE, "sequence_losses", o->B * 4, PLAN_ALWAYS, PLAN_ALWAYS);
    layout->windows = memory_plan_add(plan, MEM_WORKSPACE, "windows", o->B * (o->T + 1) * 4, PLAN_ALWAYS, PLAN_ALWAYS);
    layout->workspace = memory_plan_add(plan, MEM_WORKSPACE, "workspace", workspace_bytes(o), PLAN_ALWAYS, PLAN_ALWAYS);
}

static void plan_block(MemoryPlan *plan, Layout *layout, const Gpt2Options *o, int block) {
    const int f = forward_tick(block), b = gpt2_backward_tick(&o->config, block), set = o->recompute.blocks[block];
    for (int i = 0; i < NUM_BLOCK_ACTS; i++) {
        const ActivationSpec *s = &block_acts[i];
        const int64_t bytes =
            o->B * o->T * width_of(&o->config, s->width) * (int64_t)dtype_size(dtype_of(o->dtype, s->width));
        const bool in_forward = s->forward_first != NEVER, again = (s->again & set) != 0;
        const bool in_backward = o->train && s->backward_first != NEVER;
        const bool kept = in_forward && in_backward && !again && !(s->again & NEVER_KEPT);
        layout->forward[block][i] = layout->backward[block][i] = -1;
        if (kept) {
            layout->forward[block][i] = layout->backward[block][i] =
                memory_plan_add(plan, MEM_ACTIVATIONS, s->name, bytes, f + s->forward_first, b + s->backward_last);
            continue;
        }
        if (in_forward)
            layout->forward[block][i] =
                memory_plan_add(plan, MEM_ACTIVATIONS, s->name, bytes, f + s->forward_first, f + s->forward_last);
        if (in_backward && (again || !in_forward)) {
            const int first = again ? again_tick(set, s->backward_first) : s->backward_first;
            const int last = i == ACT_PROJ ? first : s->backward_last;
            layout->backward[block][i] = memory_plan_add(plan, MEM_ACTIVATIONS, s->name, bytes, b + first, b + last);
        }
    }
}

static void plan_model_acts(MemoryPlan *plan, Layout *layout, const Gpt2Options *o) {
    const int head = gpt2_head_tick(&o->config);
    const int end = o->train ? gpt2_end_tick(&o->config) : head + H_HEAD;
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
        [ACT_LOGITS] = {"logits", head_chunk_rows(o) * o->config.Vp * e, head + H_HEAD, head + H_HEAD, false},
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

// Decoding gets its own ticks after the micro-step. Lifetimes never overlap, so the cache and its activations reuse the
// memory of training, and a training run needs no more memory for them. All blocks share one set of activations, large
// enough for a prompt of T tokens and for a token of every sequence; the first op of a block does not write to memory
// that the last block's output occupies.
static void plan_decoder(MemoryPlan *plan, Layout *layout, const Gpt2Options *o) {
    const ModelConfig *c = &o->config;
    const int begin = gpt2_end_tick(c) + 1, end = begin + F_NEXT_LN1;
    const int64_t tokens = o->T > o->sequences ? o->T : o->sequences, e = (int64_t)dtype_size(o->dtype);
    for (int i = 0; i < NUM_BLOCK_ACTS; i++) {
        const ActivationSpec *s = &block_acts[i];
        if (s->forward_first == NEVER || o->sequences == 0) {
            layout->decoder_acts[i] = -1;
            continue;
        }
        const int64_t bytes = tokens * width_of(c, s->width) * (int64_t)dtype_size(dtype_of(o->dtype, s->width));
        const int last = s->forward_first == F_LN1 ? F_NEXT_LN1 : s->forward_last;
        layout->decoder_acts[i] =
            memory_plan_add(plan, MEM_ACTIVATIONS, s->name, bytes, begin + s->forward_first, begin + last);
    }
    layout->cache = layout->decoder_tokens = layout->decoder_logits = -1;
    if (o->sequences == 0) return;
    layout->cache =
        memory_plan_add(plan, MEM_ACTIVATIONS, "cache", c->L * o->sequences * o->T * 2 * c->C * e, begin, end);
    layout->decoder_tokens =
        memory_plan_add(plan, MEM_ACTIVATIONS, "decoder_tokens", gpt2_decoder_tokens(o) * 4, begin, end);
    layout->decoder_logits =
        memory_plan_add(plan, MEM_ACTIVATIONS, "decoder_logits", o->sequences * c->Vp * e, end, end);
}

// Between the last micro-step and the next; its tick comes after those of the decoder.
static void plan_optimizer_scratch(MemoryPlan *plan, Layout *layout, const Gpt2Options *o) {
    const int tick = gpt2_end_tick(&o->config) + F_NEXT_LN1 + 2;
    const int64_t bytes = o->train ? optimizer_scratch_bytes(o->optimizer, &o->config, o->dtype, o->numerics) : 0;
    layout->optimizer_scratch =
        bytes > 0 ? memory_plan_add(plan, MEM_ACTIVATIONS, "optimizer_scratch", bytes, tick, tick) : -1;
}

MemoryPlan *gpt2_plan_all(Layout *layout, const Gpt2Options *o) {
    MemoryPlan *plan = memory_plan_create();
    const size_t L = (size_t)o->config.L;
    layout->forward = malloc(L * sizeof *layout->forward);
    layout->backward = malloc(L * sizeof *layout->backward);
    REQUIRE_MEMORY(layout->forward && layout->backward, "the layout");
    plan_permanent(plan, layout, o);
    gradients_plan(plan, layout, o);
    plan_model_acts(plan, layout, o);
    for (int block = 0; block < o->config.L; block++) plan_block(plan, layout, o, block);
    plan_decoder(plan, layout, o);
    plan_optimizer_scratch(plan, layout, o);
    fp8_plan(plan, layout, o);
    numerics_plan(plan, layout, o);
    memory_plan_solve(plan);
    return plan;
}

// ------------------------------------------------------------------------------------------------------------- views

void *gpt2_at(const Gpt2 *model, int handle) {
    return handle < 0 ? NULL : model->arena + memory_plan_offset(model->plan, handle);
}

void gpt2_use_workspace(const Gpt2 *model) {
    ops_set_workspace(gpt2_at(model, model->layout.workspace), ops_workspace_bytes(gpt2_ops_shape(&model->options)));
}

const Gpt2Options *gpt2_options(const Gpt2 *model) { return &model->options; }
const MemoryPlan *gpt2_memory(const Gpt2 *model) { return model->plan; }
int gpt2_num_tensors(const Gpt2 *model) { return model->num_tensors; }
const Parameter *gpt2_parameters(const Gpt2 *model) { return model->parameters; }
const UpdateTensor *gpt2_tensors(const Gpt2 *model) { return model->tensors; }

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

void gpt2_weights_changed(Gpt2 *model) { model->weights_are_new = true; }

void *gpt2_offload_buffer(const Gpt2 *model, int64_t *bytes) {
    const int handle = model->layout.offload_buffer;
    *bytes = handle < 0 ? 0 : memory_plan_bytes(model->plan, handle);
    return gpt2_at(model, handle);
}
Tensor gpt2_optimizer_scratch(const Gpt2 *model) {
    const int handle = model->layout.optimizer_scratch;
    if (handle < 0) return tensor_none();
    return tensor_make(gpt2_at(model, handle), DTYPE_U8, "optimizer_scratch", memory_plan_bytes(model->plan, handle), 0,
                       0, 0);
}

static BlockParams block_params(const Gpt2 *model, int block, bool gradients) {
    Tensor t[NUM_PARAMETER_SPECS];
    for (int s = PARAM_LN1W; s <= PARAM_FCPROJB; s++) {
        const int index = parameter_index(&model->options.config, s, block);
        t[s] = gradients ? gpt2_micro_gradient(model, index) : model->tensors[index].weight;
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
    return gpt2_micro_gradient(model, parameter_index(&model->options.config, spec, 0));
}

BlockActs gpt2_block_acts(const Gpt2 *model, int block, Pass pass, int64_t B, int64_t T) {
    const int *handles = pass == PASS_FORWARD    ? model->layout.forward[block]
                         : pass == PASS_BACKWARD ? model->layout.backward[block]
                                                 : model->layout.decoder_acts;
    Tensor t[NUM_BLOCK_ACTS];
    for (int i = 0; i < NUM_BLOCK_ACTS; i++) {
        const ActivationSpec *s = &block_acts[i];
        const DType dtype = dtype_of(model->options.dtype, s->width);
        const int64_t width = width_of(&model->options.config, s->width);
        void *data = gpt2_at(model, handles[i]);
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
    void *data = gpt2_at(model, model->layout.model_acts[act]);
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
        return tensor_make(data, o->dtype, "logits", head_chunk_rows(o), o->config.Vp, 0, 0);
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

// ----------------------------------------------------------------------------------------------------------- gradients

DType gpt2_gradient_dtype(const Gpt2Options *o) { return o->gradients_in_dtype ? o->dtype : DTYPE_FP32; }

// The first and last tick at which the micro-step's own gradient of this kind of parameter is in use.
static void lifetime(const ModelConfig *c, int spec, int *first, int *last) {
    *first = gpt2_backward_tick(c, (int)c->L - 1), *last = gpt2_end_tick(c) - 1; // of one block after the other
    if (spec == PARAM_LNFW || spec == PARAM_LNFB) *first = *last = gpt2_head_tick(c) + H_LNF_BACKWARD;
    if (spec == PARAM_WTE) *first = gpt2_head_tick(c) + H_HEAD; // the embedding adds to the head's gradient
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
    if (handle < 0) return model->tensors[index].grad;
    return parameter_tensor(p, gpt2_at(model, handle), DTYPE_FP32);
}

void gpt2_add_gradients(const Gpt2 *model, int from, int to, int block, bool first) {
    for (int spec = from; spec <= to; spec++) {
        if (model->layout.micro_gradients[spec] < 0) continue;
        const int index = parameter_index(&model->options.config, spec, block);
        gradient_add(model->tensors[index].grad, gpt2_micro_gradient(model, index), !first, model->options.seed, index,
                     gpt2_control(model));
    }
}
