// The plan of a model's memory, made from the lists of weights and activations and the
// recomputation of each block (-r).
//
// If gradients are accumulated in fp32, the ops of a micro-step add to them in place. If they are
// accumulated in the compute dtype, which takes half the memory, a micro-step computes its
// gradients in fp32 memory of its own, first of the head, then block by block, and adds them to the
// gradient tensors with one stochastic rounding each. So within a micro-step there is no additional
// rounding. That memory exists within the backward pass only and has the size of one block and the
// embedding.
#include "llmc/model/model_memory.h"

#include "llmc/base/arithmetic.h"
#include "llmc/model/model_decode.h"
#include "llmc/model/model_fp8.h"
#include "llmc/model/model_numerics.h"

#include <stdlib.h>

static int64_t activation_bytes(const ModelOptions *o, ActivationShape shape, int64_t B,
                                int64_t T) {
    return (int64_t)tensor_bytes(model_activation(o, shape, IN_ALL, "activation", NULL, B, T));
}

void model_state_bytes(const ModelOptions *o, const Partition *p, int64_t bytes[NUM_STATE_SLOTS]) {
    Parameter *table = parameter_table(&o->config);
    const int count = o->train ? parameter_count(&o->config) : 0;

    for (int slot = 0; slot < NUM_STATE_SLOTS; slot++) {
        bytes[slot] = 0;
        for (int r = 0; r < (model_is_divided(o) ? p->processes : 1); r++) {
            int64_t of_process = 0;
            for (int i = 0; i < count; i++) {
                const Tensor t =
                    optimizer_state(o->optimizer, o->master, o->dtype, &table[i], (StateSlot)slot);
                const Range own = model_own_range(o, p, &table[i], i, r);
                if (t.rank == 0 || range_size(own) == 0) continue;
                const Tensor part = optimizer_state_slice(t, (StateSlot)slot, &table[i], own.begin,
                                                          range_size(own));
                of_process += round_up((int64_t)tensor_bytes(part), PLAN_ALIGNMENT);
            }
            bytes[slot] = max_i64(bytes[slot], of_process);
        }
    }
    free(table);
}

// The slots of the optimizer, each with all its tensors one after the other. Under offload they are
// in host memory, and the arena has only a buffer.
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
            layout->state[slot] =
                memory_plan_add_always(plan, class, state_slot_name((StateSlot)slot), bytes[slot]);
    }

    if (o->train && o->offload)
        layout->offload_buffer = memory_plan_add_always(
            plan, MEM_OPTIMIZER, "offload_buffer", optimizer_offload_buffer(layout->host_bytes));
}

// The memory of several groups and several processes, see train/data_parallel.h.
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
            layout->gradient_sums =
                memory_plan_add_always(plan, MEM_GRADIENTS, "gradient_sums", levels * bytes);
        return;
    }

    const int64_t outside = p->elements - p->begin[p->num_units - 1];
    int64_t most = 0; // elements that one process owns
    for (int r = 0; r < p->processes; r++) {
        int64_t own = 0;
        for (int u = 0; u < p->num_units; u++) own += range_size(partition_of_unit(p, u, r));
        most = max_i64(most, own);
    }

    layout->gradients =
        memory_plan_add_always(plan, MEM_GRADIENTS, "gradient_buckets",
                               (outside + NUM_BUCKETS * layout->longest_block) * size);
    layout->own_gradients =
        memory_plan_add_always(plan, MEM_GRADIENTS, "own_gradients", most * size);
}

static void plan_permanent(MemoryPlan *plan, Layout *layout, const ModelOptions *o) {
    layout->gradients = layout->gradient_sums = layout->own_gradients = -1;
    layout->exchange = layout->step_losses = layout->norm = -1;
    layout->weights = memory_plan_add_always(
        plan, MEM_WEIGHTS, "weights", layout->partition->elements * (int64_t)dtype_size(o->dtype));

    if (o->train) {
        // Rows of the norm are aligned, and end with a 0.
        layout->norm_columns = round_up(layout->partition->num_norm_parts + 1,
                                        PLAN_ALIGNMENT / (int64_t)sizeof(float));
        plan_gradients(plan, layout, o);
        if (o->groups > 1)
            layout->step_losses =
                memory_plan_add_always(plan, MEM_WORKSPACE, "step_losses", o->groups * o->B * 4);
        layout->norm = memory_plan_add_always(plan, MEM_WORKSPACE, "norm",
                                              layout->norm_columns * max_i64(o->processes, 1) * 4);
    }

    if (o->train && o->processes > 1) {
        // A half of the exchange buffer receives this process's range of a block from all
        // processes, or a part of that range which is long enough for any network. The parameters
        // outside blocks pass through it part by part.
        const Partition *p = layout->partition;

        const int64_t size = (int64_t)dtype_size(model_gradient_dtype(o)),
                      enough = ((int64_t)256 << 20) / size;
        int64_t longest = 0;
        for (int u = 0; u + 1 < p->num_units; u++)
            for (int r = 0; r < p->processes; r++)
                longest = max_i64(longest, range_size(partition_of_unit(p, u, r)));
        const int64_t aligned = max_i64(enough / p->processes / PLAN_ALIGNMENT, 1) * PLAN_ALIGNMENT;
        layout->exchange_elements = min_i64(longest, aligned) * p->processes;
        layout->exchange = memory_plan_add_always(plan, MEM_WORKSPACE, "exchange",
                                                  2 * layout->exchange_elements * size);
    }

    plan_state(plan, layout, o);
    layout->control =
        memory_plan_add_always(plan, MEM_WORKSPACE, "control", (int64_t)sizeof(StepControl));
    layout->sequence_losses =
        memory_plan_add_always(plan, MEM_WORKSPACE, "sequence_losses", o->B * 4);
    layout->windows = memory_plan_add_always(plan, MEM_WORKSPACE, "windows", o->B * (o->T + 1) * 4);
    layout->workspace =
        memory_plan_add_always(plan, MEM_WORKSPACE, "workspace", model_workspace_bytes(o));

    layout->rope_table = -1;
    if (o->config.rope_base > 0)
        layout->rope_table =
            memory_plan_add_always(plan, MEM_WORKSPACE, "rope_table",
                                   o->T * model_size(&o->config, DIM_HS) * (int64_t)sizeof(float));
}

// The micro-step's own gradients, by kind of parameter. Blocks share theirs, one after the other.
static void plan_micro_gradients(MemoryPlan *plan, Layout *layout, const ModelOptions *o) {
    const ModelConfig *c = &o->config;
    Parameter *table = parameter_table(c);
    for (int spec = 0; spec < NUM_PARAMETER_SPECS; spec++) {
        layout->micro_gradients[spec] = -1;
        if (!o->train || model_gradient_dtype(o) == DTYPE_FP32 || parameter_index(c, spec, 0) < 0)
            continue;
        // of wte: the embedding adds to the head's
        int first = model_head_tick(c) + H_HEAD, last = model_end_tick(c);
        if (parameter_specs[spec].per_block) {
            first = model_backward_tick(c, (int)c->L - 1);
            last = model_end_tick(c) - 1;
        } else if (spec == PARAM_LNFW || spec == PARAM_LNFB) {
            first = last = model_head_tick(c) + H_LNF_BACKWARD;
        } else if (spec == PARAM_HEADW) {
            last = model_head_tick(c) + H_LNF_BACKWARD;
        } else if (spec == PARAM_WPE) {
            first = model_end_tick(c);
        }

        const int64_t bytes = 4 * parameter_numel(&table[parameter_index(c, spec, 0)]);
        layout->micro_gradients[spec] =
            memory_plan_add(plan, MEM_ACTIVATIONS, "micro_gradients", bytes, first, last);
    }
    free(table);
}

static void plan_block(MemoryPlan *plan, Layout *layout, const ModelOptions *o, int block) {
    const int f = block * FORWARD_TICKS, b = model_backward_tick(&o->config, block),
              set = o->recompute.blocks[block];
    for (int i = 0; i < NUM_BLOCK_ACTS; i++) {
        const ActivationSpec *s = &model_block_activations[i];
        layout->forward[block][i] = layout->backward[block][i] = -1;
        if (!model_has(&o->config, s->presence)) continue;
        const int64_t bytes = activation_bytes(o, s->shape, o->B, o->T);

        const bool in_forward = s->forward_first != NEVER, recomputed = (s->written_by & set) != 0;
        const bool in_backward = o->train && s->backward_first != NEVER;
        const bool kept = in_forward && in_backward && !recomputed;

        if (kept) {
            layout->forward[block][i] = layout->backward[block][i] = memory_plan_add(
                plan, MEM_ACTIVATIONS, s->name, bytes, f + s->forward_first, b + s->backward_last);
            continue;
        }

        if (in_forward)
            layout->forward[block][i] = memory_plan_add(plan, MEM_ACTIVATIONS, s->name, bytes,
                                                        f + s->forward_first, f + s->forward_last);
        if (in_backward && (recomputed || !in_forward)) {
            const int first =
                recomputed ? model_recompute_tick(set, s->backward_first) : s->backward_first;
            layout->backward[block][i] = memory_plan_add(plan, MEM_ACTIVATIONS, s->name, bytes,
                                                         b + first, b + s->backward_last);
        }
    }
}

// Decoding gets its own ticks after the micro-step. Lifetimes never overlap, so the cache and its
// activations reuse the memory of training, and a training run needs no more memory for them. All
// blocks share one set of activations, large enough for a prompt of T tokens and for a token of
// every sequence. A block leaves its output in residual1, which the first op of the next one must
// not overwrite.
static void plan_decoder(MemoryPlan *plan, Layout *layout, const ModelOptions *o) {
    const ModelConfig *c = &o->config;
    const int begin = model_end_tick(c) + 1, end = begin + F_NEXT_LN1;
    const int64_t tokens = max_i64(o->T, o->sequences), e = (int64_t)dtype_size(o->dtype);

    for (int i = 0; i < NUM_BLOCK_ACTS; i++) {
        const ActivationSpec *s = &model_block_activations[i];
        if (s->forward_first == NEVER || o->sequences == 0 || !model_has(c, s->presence)) {
            layout->decoder_acts[i] = -1;
            continue;
        }

        const int64_t bytes = activation_bytes(o, s->shape, 1, tokens);
        const int last = s->forward_first > F_LN1 ? s->forward_last : F_NEXT_LN1;
        layout->decoder_acts[i] = memory_plan_add(plan, MEM_ACTIVATIONS, s->name, bytes,
                                                  begin + s->forward_first, begin + last);
    }

    const int64_t kv_columns = model_kv_heads(c) * model_head_size(c);
    layout->cache = layout->decoder_tokens = layout->decoder_logits = -1;
    if (o->sequences == 0) return;

    layout->cache = memory_plan_add(plan, MEM_ACTIVATIONS, "cache",
                                    c->L * o->sequences * o->T * 2 * kv_columns * e, begin, end);
    layout->decoder_tokens = memory_plan_add(plan, MEM_ACTIVATIONS, "decoder_tokens",
                                             model_decoder_tokens(o) * 4, begin, end);
    layout->decoder_logits = memory_plan_add(plan, MEM_ACTIVATIONS, "decoder_logits",
                                             o->sequences * c->Vp * e, end, end);
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

    for (int i = 0; i < NUM_MODEL_ACTS; i++) {
        const ModelActivationSpec *s = &model_activations[i];
        layout->model_acts[i] = -1;
        if ((s->train_only && !o->train) || !model_has(&o->config, s->presence)) continue;
        const int last = !o->train && s->last > H_HEAD ? H_HEAD : s->last;
        layout->model_acts[i] = memory_plan_add(
            plan, MEM_ACTIVATIONS, s->name, activation_bytes(o, s->shape, o->B, o->T),
            model_tick_of_head(&o->config, s->first), model_tick_of_head(&o->config, last));
    }

    for (int block = 0; block < o->config.L; block++) plan_block(plan, layout, o, block);
    plan_decoder(plan, layout, o);

    int64_t scratch = 0;
    if (o->train)
        scratch = optimizer_scratch_bytes(o->optimizer, &o->config, o->dtype, o->numerics);
    const int update = model_end_tick(&o->config) + F_NEXT_LN1 + 2; // after the decoder's ticks
    layout->optimizer_scratch = -1;
    if (scratch > 0)
        layout->optimizer_scratch =
            memory_plan_add(plan, MEM_ACTIVATIONS, "optimizer_scratch", scratch, update, update);

    model_fp8_plan(plan, layout, o);
    layout->stats = -1;
    if (o->numerics)
        layout->stats = memory_plan_add_always(plan, MEM_WORKSPACE, "numerics",
                                               NUMERICS_MAX_ROWS * (int64_t)sizeof(TensorStats));
    memory_plan_solve(plan);
    return plan;
}

void model_layout_free(Layout *layout) {
    free(layout->forward);
    free(layout->backward);
    partition_destroy(layout->partition);
}
