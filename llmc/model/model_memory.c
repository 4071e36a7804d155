// The plan of a model's memory, made from the lists of weights and activations and the recomputation
// of each block (-r).
//
// If gradients are accumulated in fp32, the ops of a micro-step add to them in place. If they are accumulated in the
// compute dtype, which takes half the memory, a micro-step computes its gradients in fp32 memory of its own, first of
// the head, then block by block, and adds them to the gradient tensors with one stochastic rounding each. So within a
// micro-step there is no additional rounding. That memory exists within the backward pass only and has the size of one
// block and the embedding.
#include "llmc/model/model_memory.h"

#include "llmc/base/arithmetic.h"
#include "llmc/model/model_object.h"

#include <stdlib.h>

// -------------------------------------------------------------------------------------------- the table of activations

#define X(name, ...) {#name, __VA_ARGS__},
const ActivationSpec model_block_activations[NUM_BLOCK_ACTS] = {BLOCK_ACTIVATIONS(X)};
#undef X

// The tick at which the backward pass recomputes a tensor that it first reads at `tick`: that tick, or, if another op
// of the set needs it, the tick of that op. This is the order of the needs of block_backward in gpt2.c.
static int recompute_tick(int set, int tick) {
    const int ln2 = set & RECOMPUTE_FC ? B_RECOMPUTE : B_FC;
    const int attention = set & RECOMPUTE_ATTPROJ ? ln2 : B_ATTPROJ;
    const int qkv = set & RECOMPUTE_ATTENTION ? attention : B_ATT;
    const int ln1 = set & RECOMPUTE_QKV ? qkv : B_QKV;
    switch (tick) {
    case B_FC:
        return ln2;
    case B_ATTPROJ:
        return attention;
    case B_ATT:
        return qkv;
    case B_QKV:
        return ln1;
    default:
        return tick;
    }
}

Tensor model_activation(const ModelOptions *o, ActivationShape shape, const char *name, void *data, int64_t B,
                        int64_t T) {
    static const Dimension widths[] = {[BTC] = DIM_C, [BT3C] = DIM_3C, [BTFF] = DIM_FF};
    switch (shape) {
    case BT:
        return tensor_make(data, DTYPE_FP32, name, B, T, 0, 0);
    case BHT:
        return tensor_make(data, DTYPE_FP32, name, B, o->config.NH, T, 0);
    case BT_I32:
        return tensor_make(data, DTYPE_I32, name, B, T, 0, 0);
    case C_FP32:
        return tensor_make(data, DTYPE_FP32, name, o->config.C, 0, 0, 0);
    case LOGITS_CHUNK: {
        const OpsShape s = model_ops_shape(o);
        const int64_t rows = o->sizes ? o->sizes->head_chunk_rows(o->sizes->machine, s) : ops_head_chunk_rows(s);
        return tensor_make(data, o->dtype, name, rows, o->config.Vp, 0, 0);
    }
    default: // BTC, BT3C, BTFF
        return tensor_make(data, o->dtype, name, B, T, model_size(&o->config, widths[shape]), 0);
    }
}
static int64_t activation_bytes(const ModelOptions *o, ActivationShape shape, int64_t B, int64_t T) {
    return (int64_t)tensor_bytes(model_activation(o, shape, "activation", NULL, B, T));
}

// ------------------------------------------------------------------------------------------------------------ the plan

int model_head_tick(const ModelConfig *config) { return (int)config->L * FORWARD_TICKS; }
int model_backward_tick(const ModelConfig *config, int block) {
    return model_head_tick(config) + HEAD_TICKS + ((int)config->L - 1 - block) * BACKWARD_TICKS;
}
int model_end_tick(const ModelConfig *config) { return model_backward_tick(config, 0) + BACKWARD_TICKS; }

const char *model_tick_name(const ModelConfig *config, int tick, char name[TICK_NAME]) {
    static const char *const forward[FORWARD_TICKS] = {"fcproj", "ln1", "qkv", "attention", "attproj", "ln2", "fc"};
    static const char *const head[HEAD_TICKS] = {"fcproj", "final layernorm", "logits and loss",
                                                 "final layernorm backward"};
    static const char *const backward[BACKWARD_TICKS] = {"recompute", "fcproj",    "gelu", "fc", "ln2",
                                                         "attproj",   "attention", "qkv",  "ln1"};
    const int L = (int)config->L, first = model_backward_tick(config, L - 1), end = model_end_tick(config);
    const int in_head = tick - model_head_tick(config), block = tick / FORWARD_TICKS - (tick % FORWARD_TICKS == F_IN);
    if (tick == 0)
        snprintf(name, TICK_NAME, "embedding");
    else if (in_head <= H_IN)
        snprintf(name, TICK_NAME, "block %d %s", block, forward[tick % FORWARD_TICKS]);
    else if (tick < first)
        snprintf(name, TICK_NAME, "%s", head[in_head]);
    else if (tick < end)
        snprintf(name, TICK_NAME, "block %d %s%s", L - 1 - (tick - first) / BACKWARD_TICKS,
                 backward[(tick - first) % BACKWARD_TICKS],
                 (tick - first) % BACKWARD_TICKS == B_RECOMPUTE ? "" : " backward");
    else if (tick == end)
        snprintf(name, TICK_NAME, "embedding backward");
    else
        snprintf(name, TICK_NAME, tick <= end + 1 + F_NEXT_LN1 ? "generation" : "update");
    return name;
}

OpsShape model_ops_shape(const ModelOptions *o) {
    OpsShape shape = {.B = o->B,
                      .T = o->T,
                      .C = o->config.C,
                      .NH = o->config.NH,
                      .Vp = o->config.Vp,
                      .widest = max_i64(model_size(&o->config, DIM_3C), model_size(&o->config, DIM_FF)),
                      .num_tensors = partition_max_norm_parts(&o->config, o->groups),
                      .sequences = o->sequences,
                      .factored = o->train && o->optimizer == OPTIMIZER_ADAFACTOR ? parameter_total(&o->config) : 0,
                      .fp8 = o->fp8,
                      .overlap = o->overlap,
                      .forward_only = !o->train,
                      .gelu_again = o->train && recompute_gelu_alone(&o->recompute, o->config.L),
                      .dtype = o->dtype};
    return shape;
}

void model_state_bytes(const ModelOptions *o, const Partition *p, int64_t bytes[NUM_STATE_SLOTS]) {
    Parameter *table = parameter_table(&o->config);
    const int count = o->train ? parameter_count(&o->config) : 0;
    for (int slot = 0; slot < NUM_STATE_SLOTS; slot++) {
        bytes[slot] = 0;
        for (int r = 0; r < (model_is_divided(o) ? p->processes : 1); r++) {
            int64_t of_process = 0;
            for (int i = 0; i < count; i++) {
                const Tensor t = optimizer_state(o->optimizer, o->master, o->dtype, &table[i], (StateSlot)slot);
                const Range own = model_own_range(o, p, &table[i], i, r);
                if (t.rank == 0 || range_size(own) == 0) continue;
                const Tensor part = optimizer_state_slice(t, (StateSlot)slot, &table[i], own.begin, range_size(own));
                of_process += round_up((int64_t)tensor_bytes(part), PLAN_ALIGNMENT);
            }
            bytes[slot] = max_i64(bytes[slot], of_process);
        }
    }
    free(table);
}

// The slots of the optimizer, each with all its tensors one after the other; under offload they are in host memory, and
// a buffer is here.
static void plan_state(MemoryPlan *plan, Layout *layout, const ModelOptions *o) {
    int64_t bytes[NUM_STATE_SLOTS];
    model_state_bytes(o, layout->partition, bytes);
    layout->host_bytes = 0;
    layout->offload_buffer = -1;
    for (int slot = 0; slot < NUM_STATE_SLOTS; slot++) {
        const MemoryClass class = slot == SLOT_MASTER ? MEM_MASTER : MEM_OPTIMIZER;
        layout->state[slot] = -1;
        if (bytes[slot] == 0) continue;
        if (o->offload)
            layout->host_bytes += bytes[slot];
        else
            layout->state[slot] = memory_plan_add_always(plan, class, state_slot_name((StateSlot)slot), bytes[slot]);
    }
    if (o->train && o->offload)
        layout->offload_buffer =
            memory_plan_add_always(plan, MEM_OPTIMIZER, "offload_buffer", optimizer_offload_buffer(layout->host_bytes));
}

// What several groups and several processes need: see train/data_parallel.h.
static void plan_gradients(MemoryPlan *plan, Layout *layout, const ModelOptions *o) {
    const Partition *p = layout->partition;
    const int64_t size = (int64_t)dtype_size(model_gradient_dtype(o)), bytes = p->elements * size;
    layout->longest_block = 0;
    for (int u = 0; u + 1 < p->num_units; u++)
        layout->longest_block = max_i64(layout->longest_block, p->begin[u + 1] - p->begin[u]);
    if (!model_frees_gradients(o)) {
        int levels = 0; // the binary counter that adds n groups has a digit for each bit of n - 1
        while ((o->group_count - 1) >> levels > 0) levels++;
        layout->gradients = memory_plan_add_always(plan, MEM_GRADIENTS, "gradients", bytes);
        if (levels > 0)
            layout->gradient_sums = memory_plan_add_always(plan, MEM_GRADIENTS, "gradient_sums", levels * bytes);
        return;
    }
    const int64_t outside = p->elements - p->begin[p->num_units - 1];
    int64_t most = 0; // elements that one process owns
    for (int r = 0; r < p->processes; r++) {
        int64_t own = 0;
        for (int u = 0; u < p->num_units; u++) own += range_size(partition_of_unit(p, u, r));
        most = max_i64(most, own);
    }
    layout->gradients = memory_plan_add_always(plan, MEM_GRADIENTS, "gradient_buckets",
                                               (outside + NUM_BUCKETS * layout->longest_block) * size);
    layout->own_gradients = memory_plan_add_always(plan, MEM_GRADIENTS, "own_gradients", most * size);
}

// A half of the exchange buffer receives this process's range of a block from all processes, or a part of that range
// which is long enough for any network. The parameters outside blocks pass through it part by part.
static void plan_exchange_buffer(MemoryPlan *plan, Layout *layout, const ModelOptions *o) {
    const Partition *p = layout->partition;
    const int64_t size = (int64_t)dtype_size(model_gradient_dtype(o)), enough = ((int64_t)256 << 20) / size;
    int64_t longest = 0;
    for (int u = 0; u + 1 < p->num_units; u++)
        for (int r = 0; r < p->processes; r++) longest = max_i64(longest, range_size(partition_of_unit(p, u, r)));
    const int64_t aligned = max_i64(enough / p->processes / PLAN_ALIGNMENT, 1) * PLAN_ALIGNMENT;
    layout->exchange_elements = min_i64(longest, aligned) * p->processes;
    layout->exchange = memory_plan_add_always(plan, MEM_WORKSPACE, "exchange", 2 * layout->exchange_elements * size);
}

static void plan_permanent(MemoryPlan *plan, Layout *layout, const ModelOptions *o) {
    const OpsShape shape = model_ops_shape(o);
    const int64_t workspace =
        o->sizes ? o->sizes->workspace_bytes(o->sizes->machine, shape) : ops_workspace_bytes(shape);
    layout->gradients = layout->gradient_sums = layout->own_gradients = -1;
    layout->exchange = layout->step_losses = layout->norm = -1;
    layout->weights = memory_plan_add_always(plan, MEM_WEIGHTS, "weights",
                                             layout->partition->elements * (int64_t)dtype_size(o->dtype));
    if (o->train) {
        // Rows of the norm are aligned, and end with a 0.
        layout->norm_columns = round_up(layout->partition->num_norm_parts + 1, PLAN_ALIGNMENT / (int64_t)sizeof(float));
        plan_gradients(plan, layout, o);
        if (o->groups > 1)
            layout->step_losses = memory_plan_add_always(plan, MEM_WORKSPACE, "step_losses", o->groups * o->B * 4);
        layout->norm =
            memory_plan_add_always(plan, MEM_WORKSPACE, "norm", layout->norm_columns * max_i64(o->processes, 1) * 4);
        if (o->processes > 1) plan_exchange_buffer(plan, layout, o);
    }
    plan_state(plan, layout, o);
    layout->control = memory_plan_add_always(plan, MEM_WORKSPACE, "control", (int64_t)sizeof(StepControl));
    layout->sequence_losses = memory_plan_add_always(plan, MEM_WORKSPACE, "sequence_losses", o->B * 4);
    layout->windows = memory_plan_add_always(plan, MEM_WORKSPACE, "windows", o->B * (o->T + 1) * 4);
    layout->workspace = memory_plan_add_always(plan, MEM_WORKSPACE, "workspace", workspace);
}

// The micro-step's own gradients, by kind of parameter. Blocks share theirs, one after the other.
static void plan_micro_gradients(MemoryPlan *plan, Layout *layout, const ModelOptions *o) {
    const ModelConfig *c = &o->config;
    Parameter *table = parameter_table(c);
    for (int spec = 0; spec < NUM_PARAMETER_SPECS; spec++) {
        layout->micro_gradients[spec] = -1;
        if (!o->train || model_gradient_dtype(o) == DTYPE_FP32) continue;
        int first = model_head_tick(c) + H_HEAD, last = model_end_tick(c); // of wte: the embedding adds to the head's
        if (parameter_specs[spec].per_block) {
            first = model_backward_tick(c, (int)c->L - 1);
            last = model_end_tick(c) - 1;
        } else if (spec == PARAM_LNFW || spec == PARAM_LNFB) {
            first = last = model_head_tick(c) + H_LNF_BACKWARD;
        } else if (spec == PARAM_WPE) {
            first = model_end_tick(c);
        }
        const int64_t bytes = 4 * parameter_numel(&table[parameter_index(c, spec, 0)]);
        layout->micro_gradients[spec] = memory_plan_add(plan, MEM_ACTIVATIONS, "micro_gradients", bytes, first, last);
    }
    free(table);
}

static void plan_block(MemoryPlan *plan, Layout *layout, const ModelOptions *o, int block) {
    const int f = block * FORWARD_TICKS, b = model_backward_tick(&o->config, block), set = o->recompute.blocks[block];
    for (int i = 0; i < NUM_BLOCK_ACTS; i++) {
        const ActivationSpec *s = &model_block_activations[i];
        const int64_t bytes = activation_bytes(o, s->shape, o->B, o->T);
        const bool in_forward = s->forward_first != NEVER, recomputed = (s->written_by & set) != 0;
        const bool in_backward = o->train && s->backward_first != NEVER;
        const bool kept = in_forward && in_backward && !recomputed;
        layout->forward[block][i] = layout->backward[block][i] = -1;
        if (kept) {
            layout->forward[block][i] = layout->backward[block][i] =
                memory_plan_add(plan, MEM_ACTIVATIONS, s->name, bytes, f + s->forward_first, b + s->backward_last);
            continue;
        }
        if (in_forward)
            layout->forward[block][i] =
                memory_plan_add(plan, MEM_ACTIVATIONS, s->name, bytes, f + s->forward_first, f + s->forward_last);
        if (in_backward && (recomputed || !in_forward)) {
            const int first = recomputed ? recompute_tick(set, s->backward_first) : s->backward_first;
            layout->backward[block][i] =
                memory_plan_add(plan, MEM_ACTIVATIONS, s->name, bytes, b + first, b + s->backward_last);
        }
    }
}

static void plan_model_acts(MemoryPlan *plan, Layout *layout, const ModelOptions *o) {
    const int head = model_head_tick(&o->config);
    const int end = o->train ? model_end_tick(&o->config) : head + H_HEAD;
    const int final = o->train ? head + H_LNF_BACKWARD : head + H_HEAD;
    const struct {
        const char *name;
        ActivationShape shape;
        int first, last;
        bool train_only;
    } acts[NUM_MODEL_ACTS] = {
#define X(name, ...) {#name, __VA_ARGS__},
        MODEL_ACTIVATIONS(X)
#undef X
    };
    for (int i = 0; i < NUM_MODEL_ACTS; i++) {
        layout->model_acts[i] = -1;
        if (acts[i].train_only && !o->train) continue;
        const int64_t bytes = activation_bytes(o, acts[i].shape, o->B, o->T);
        layout->model_acts[i] =
            memory_plan_add(plan, MEM_ACTIVATIONS, acts[i].name, bytes, acts[i].first, acts[i].last);
    }
}

// Decoding gets its own ticks after the micro-step. Lifetimes never overlap, so the cache and its activations reuse the
// memory of training, and a training run needs no more memory for them. All blocks share one set of activations, large
// enough for a prompt of T tokens and for a token of every sequence. A block leaves its output in residual1, which the
// first op of the next one must not overwrite.
static void plan_decoder(MemoryPlan *plan, Layout *layout, const ModelOptions *o) {
    const ModelConfig *c = &o->config;
    const int begin = model_end_tick(c) + 1, end = begin + F_NEXT_LN1;
    const int64_t tokens = max_i64(o->T, o->sequences), e = (int64_t)dtype_size(o->dtype);
    for (int i = 0; i < NUM_BLOCK_ACTS; i++) {
        const ActivationSpec *s = &model_block_activations[i];
        if (s->forward_first == NEVER || o->sequences == 0) {
            layout->decoder_acts[i] = -1;
            continue;
        }
        const int64_t bytes = activation_bytes(o, s->shape, 1, tokens);
        const int last = s->forward_first <= F_LN1 ? F_NEXT_LN1 : s->forward_last;
        layout->decoder_acts[i] =
            memory_plan_add(plan, MEM_ACTIVATIONS, s->name, bytes, begin + s->forward_first, begin + last);
    }
    layout->cache = layout->decoder_tokens = layout->decoder_logits = -1;
    if (o->sequences == 0) return;
    layout->cache =
        memory_plan_add(plan, MEM_ACTIVATIONS, "cache", c->L * o->sequences * o->T * 2 * c->C * e, begin, end);
    layout->decoder_tokens =
        memory_plan_add(plan, MEM_ACTIVATIONS, "decoder_tokens", model_decoder_tokens(o) * 4, begin, end);
    layout->decoder_logits =
        memory_plan_add(plan, MEM_ACTIVATIONS, "decoder_logits", o->sequences * c->Vp * e, end, end);
}

MemoryPlan *model_plan_all(Layout *layout, const ModelOptions *o) {
    MemoryPlan *plan = memory_plan_create();
    const size_t L = (size_t)o->config.L;
    layout->forward = malloc(L * sizeof *layout->forward);
    layout->backward = malloc(L * sizeof *layout->backward);
    REQUIRE_MEMORY(layout->forward && layout->backward, "the layout");
    layout->partition = partition_create(&o->config, o->optimizer, o->groups, o->processes);
    plan_permanent(plan, layout, o);
    plan_micro_gradients(plan, layout, o);
    plan_model_acts(plan, layout, o);
    for (int block = 0; block < o->config.L; block++) plan_block(plan, layout, o, block);
    plan_decoder(plan, layout, o);
    const int64_t scratch = o->train ? optimizer_scratch_bytes(o->optimizer, &o->config, o->dtype, o->numerics) : 0;
    const int update = model_end_tick(&o->config) + F_NEXT_LN1 + 2; // after the decoder's ticks
    layout->optimizer_scratch =
        scratch > 0 ? memory_plan_add(plan, MEM_ACTIVATIONS, "optimizer_scratch", scratch, update, update) : -1;
    model_fp8_plan(plan, layout, o);
    model_numerics_plan(plan, layout, o);
    memory_plan_solve(plan);
    return plan;
}

void model_layout_free(Layout *layout) {
    free(layout->forward);
    free(layout->backward);
    partition_destroy(layout->partition);
}

// ---------------------------------------------------------------------------------------------- what the options imply

DType model_gradient_dtype(const ModelOptions *o) { return o->gradients_in_dtype ? o->dtype : DTYPE_FP32; }

bool model_is_divided(const ModelOptions *o) { return o->divided && o->processes > 1; }

bool model_frees_gradients(const ModelOptions *o) {
    return model_is_divided(o) && o->group_count <= 1 && o->group_windows <= o->B && o->config.L > NUM_BUCKETS;
}

Range model_own_range(const ModelOptions *o, const Partition *p, const Parameter *parameter, int index, int process) {
    const int64_t numel = parameter_numel(parameter);
    return model_is_divided(o) ? partition_of_parameter(p, index, numel, process) : (Range){0, numel};
}
