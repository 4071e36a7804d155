// The model: allocates the planned arena and frees everything, loads micro-batches and runs passes
// over them, as recorded graphs where the device has them. gpt2.c has what runs.
#include "llmc/model/model.h"

#include "llmc/base/arithmetic.h"
#include "llmc/model/gpt2.h"
#include "llmc/model/model_decode.h"
#include "llmc/model/model_fp8.h"
#include "llmc/model/model_memory.h"
#include "llmc/model/model_state.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

MemoryPlan *model_plan(const ModelOptions *options) {
    Layout layout;
    ModelOptions o = model_options_effective(options);
    MemoryPlan *plan = model_plan_all(&layout, &o);
    model_layout_free(&layout);
    return plan;
}

int64_t model_host_bytes(const ModelOptions *options) {
    const ModelOptions o = model_options_effective(options);
    int64_t slots[NUM_STATE_SLOTS], bytes = 0;
    if (!o.offload) return 0;
    Partition *p = partition_create(&o.config, o.optimizer, o.groups, o.processes);
    model_state_bytes(&o, p, slots);
    partition_destroy(p);
    for (int slot = 0; slot < NUM_STATE_SLOTS; slot++) bytes += slots[slot];
    return bytes;
}

// -------------------------------------------------------------------------------------- the object

// Parameter i in the memory of its unit.
static Tensor in_unit(const Model *model, Tensor unit, int i) {
    const Partition *p = model->layout.partition;
    const int64_t first = p->offsets[i] - p->begin[p->units[i]];
    char *data = (char *)unit.data + first * (int64_t)dtype_size(unit.dtype);
    return parameter_tensor(&model->parameters[i], data, unit.dtype);
}

// Parameter i with its gradient and the shapes of its states, which have no memory yet.
static UpdateTensor whole_tensor(const Model *model, int i) {
    const ModelOptions *o = &model->options;
    const Parameter *p = &model->parameters[i];
    const int unit = model->layout.partition->units[i];
    UpdateTensor t = {.weight = in_unit(model, model_unit_weights(model, unit), i),
                      .rule = optimizer_rule(o->optimizer, p),
                      .rate = optimizer_rate(o->optimizer, p),
                      .group = (int)p->spec->group,
                      .stream = i,
                      .padding = (p->rows - p->file_rows) * p->cols};
    if (!o->train) return t;

    t.grad = in_unit(model, model_unit_gradients(model, unit), i);
    for (int slot = 0; slot < NUM_STATE_SLOTS; slot++) {
        Tensor *s = state_slot_tensor(&t, (StateSlot)slot);
        *s = optimizer_state(o->optimizer, o->master, o->dtype, p, (StateSlot)slot);
        s->name = p->name;
    }
    return t;
}

// Where the next state tensor begins: in each slot of the arena; under offload in host memory,
// which has all slots.
typedef struct {
    int64_t slot[NUM_STATE_SLOTS], host;
} StatePlaces;

// Gives the states of t, elements `own` of parameter p, their memory.
static void place_states(const Model *model, UpdateTensor *t, const Parameter *p, Range own,
                         StatePlaces *next) {
    for (int slot = 0; slot < NUM_STATE_SLOTS; slot++) {
        Tensor *s = state_slot_tensor(t, (StateSlot)slot);
        if (s->rank == 0) continue;
        *s = optimizer_state_slice(*s, (StateSlot)slot, p, own.begin, range_size(own));
        s->name = p->name;

        const int64_t bytes = round_up((int64_t)tensor_bytes(*s), PLAN_ALIGNMENT);
        if (model->options.offload) {
            s->data = model->host_state + next->host;
            next->host += bytes;
        } else {
            s->data = (char *)model_at(model, model->layout.state[slot]) + next->slot[slot];
            next->slot[slot] += bytes;
        }
    }
}

// The gradient of elements `own` of parameter i, where the state is divided: the sum over all
// processes.
static Tensor own_gradient(const Model *model, int i, Range own) {
    const Partition *part = model->layout.partition;
    const Parameter *p = &model->parameters[i];
    const int unit = part->units[i];
    const int64_t begin = partition_of_unit(part, unit, model->options.rank).begin,
                  n = range_size(own);

    Tensor g = tensor_slice_elements(model_own_gradients(model, unit),
                                     part->offsets[i] + own.begin - begin, n);
    if (n == parameter_numel(p)) g = parameter_tensor(p, g.data, g.dtype);
    g.name = p->name;
    return g;
}

// The tensors of the model, and those that this process updates.
static void make_tensors(Model *model) {
    const ModelOptions *o = &model->options;
    const bool divided = model_is_divided(o);
    StatePlaces next = {0};

    for (int i = 0; i < model->num_tensors; i++) {
        const Parameter *p = &model->parameters[i];
        UpdateTensor t = whole_tensor(model, i);
        model->tensors[i] = t;

        const Range own = model_own_range(o, model->layout.partition, p, i, o->rank);
        if (!o->train || range_size(own) == 0) continue;
        place_states(model, &t, p, own, &next);
        if (divided) t.grad = own_gradient(model, i, own);
        t.offset = own.begin;
        if (range_size(own) < parameter_numel(p))
            t.weight = tensor_slice_elements(t.weight, own.begin, range_size(own));
        model->own[model->num_own++] = t;
        if (!divided) model->tensors[i] = t;
    }
}

// Makes everything but memory and what belongs to the device.
static Model *model_shape(const ModelOptions *options) {
    Model *model = calloc(1, sizeof *model);
    REQUIRE_MEMORY(model, "the model");

    model->options = model_options_effective(options);
    const ModelOptions *o = &model->options;
    model->plan = model_plan_all(&model->layout, o);
    model->num_tensors = parameter_count(&o->config);
    model->parameters = parameter_table(&o->config);
    model->tensors = calloc((size_t)model->num_tensors, sizeof *model->tensors);
    model->own = calloc((size_t)model->num_tensors, sizeof *model->own);
    REQUIRE_MEMORY(model->tensors && model->own, "the model");
    return model;
}

Model *model_create_dry(const ModelOptions *options) {
    Model *model = model_shape(options);
    REQUIRE(!model->options.offload, "a dry run with the optimizer's state in host memory");
    void *reserved = mmap(NULL, (size_t)memory_plan_total(model->plan), PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    model->is_dry = true;
    if (reserved == MAP_FAILED) {
        model_destroy(model);
        return NULL;
    }

    model->arena = reserved;
    make_tensors(model);
    return model;
}

// Parts of a micro-step with hooks: L forward, L + 1 backward.
static int num_parts_of(const ModelOptions *o) { return 2 * (int)o->config.L + 1; }

// The arena, and memory of the host that the device copies from and to.
static bool allocate_memory(Model *model, Error *err) {
    const ModelOptions *o = &model->options;
    const size_t host_bytes = (size_t)model->layout.host_bytes;

    model->arena = device_alloc((size_t)memory_plan_total(model->plan), err);
    if (!model->arena) return false;
    model->staging = host_alloc(STAGING_BYTES, err);
    if (!model->staging) return false;
    if (host_bytes > 0) {
        model->host_state = host_alloc(host_bytes, err);
        if (!model->host_state) return false;
        memset(model->host_state, 0, host_bytes);
    }
    if (o->sequences > 0) {
        model->decoder.host = host_alloc((size_t)model_decoder_host_bytes(o), err);
        if (!model->decoder.host) return false;
    }
    return true;
}

static bool create_recordings(Recording *r, int count, Error *err) {
    for (int i = 0; i < count; i++) {
        r[i].graph = device_graph_create(err);
        if (!r[i].graph) return false;
    }
    return true;
}

// Events, and the graphs that micro-steps, their parts and tokens are recorded in.
static bool create_events_and_graphs(Model *model, Error *err) {
    const ModelOptions *o = &model->options;
    const int num_parts = o->processes > 1 ? NUM_GRAPHS * num_parts_of(o) : 0;

    model->copied = device_event_create(err);
    if (!model->copied) return false;
    model->unpacked = device_event_create(err);
    if (!model->unpacked) return false;

    if (num_parts > 0) {
        model->parts = calloc((size_t)num_parts, sizeof *model->parts);
        REQUIRE_MEMORY(model->parts, "the parts of a micro-step");
    }
    if (!create_recordings(model->graphs, NUM_GRAPHS, err)) return false;
    if (!create_recordings(model->parts, num_parts, err)) return false;
    if (o->sequences > 0) {
        model->decoder.graph = device_graph_create(err);
        if (!model->decoder.graph) return false;
    }
    return true;
}

Model *model_create(const ModelOptions *options, Error *err) {
    Model *model = model_shape(options);
    const ModelOptions *o = &model->options;
    if (!allocate_memory(model, err) || !create_events_and_graphs(model, err)) {
        model_destroy(model);
        return NULL;
    }

    make_tensors(model);
    if (o->config.rope_base > 0) rope_table(model_rope_table(model), (float)o->config.rope_base);
    model_weights_changed(model);
    StepControl control = step_control_initial(1.0f);
    model_set_control(model, &control);
    return model;
}

void model_destroy(Model *model) {
    if (!model) return;
    if (!model->is_dry) ops_set_workspace(NULL, 0);
    for (int i = 0; i < NUM_GRAPHS; i++)
        if (model->graphs[i].graph) device_graph_destroy(model->graphs[i].graph);
    for (int i = 0; model->parts && i < NUM_GRAPHS * num_parts_of(&model->options); i++)
        if (model->parts[i].graph) device_graph_destroy(model->parts[i].graph);
    free(model->parts);

    if (model->decoder.graph) device_graph_destroy(model->decoder.graph);
    if (model->decoder.host) host_free(model->decoder.host);
    if (model->copied) device_event_destroy(model->copied);
    if (model->unpacked) device_event_destroy(model->unpacked);
    if (model->staging) host_free(model->staging);
    if (model->host_state) host_free(model->host_state);
    if (model->arena && model->is_dry) munmap(model->arena, (size_t)memory_plan_total(model->plan));
    if (model->arena && !model->is_dry) device_free(model->arena);

    free(model->tensors);
    free(model->own);
    free(model->parameters);
    model_layout_free(&model->layout);
    memory_plan_destroy(model->plan);
    free(model);
}

const ModelOptions *model_options(const Model *model) { return &model->options; }
const MemoryPlan *model_memory(const Model *model) { return model->plan; }

void model_init_weights(Model *model, uint64_t seed) {
    enum { CHUNK = 1 << 18 }; // elements, or a row
    for (int i = 0; i < model->num_tensors; i++) {
        const Parameter *p = &model->parameters[i];
        const int64_t most = max_i64(1, CHUNK / p->cols);
        float *values = malloc((size_t)(most * p->cols) * sizeof *values);
        REQUIRE_MEMORY(values, "initial values");

        for (int64_t row = 0, rows; row < p->rows; row += rows) {
            rows = min_i64(p->rows - row, most);
            parameter_init_values(values, &model->options.config, p, i, seed, row * p->cols,
                                  rows * p->cols);
            model_set_weight(model, i, row, rows, values);
        }
        free(values);
    }
}

// ------------------------------------------------------------------------------------------ passes

void model_load_batch(Model *model, const void *windows, int64_t B, int64_t T, int token_bytes) {
    const ModelOptions *o = &model->options;
    REQUIRE(B >= 1 && B <= o->B && T >= 1 && T <= o->T,
            "a batch of %lld windows of %lld in a model planned for %lld of %lld", (long long)B,
            (long long)T, (long long)o->B, (long long)o->T);
    const DType dtype = token_bytes == 2 ? DTYPE_U16 : DTYPE_I32;
    void *buffer = model->arena + memory_plan_offset(model->plan, model->layout.windows);
    Tensor on_device = tensor_make(buffer, dtype, "windows", B, T + 1, 0, 0);

    if (!model->is_dry) {
        model_use_workspace(model);
        // At most one copy is pending, so the loader's buffers are free again after two calls. The
        // copy itself waits only for the unpacking of the previous batch, and runs while that batch
        // computes.
        if (model->copy_in_flight) device_event_wait(model->copied);
        device_stream_wait(STREAM_COPY, model->unpacked);
        copy_h2d(buffer, windows, tensor_bytes(on_device), STREAM_COPY);
        device_event_record(model->copied, STREAM_COPY);
        model->copy_in_flight = true;
        device_stream_wait(STREAM_COMPUTE, model->copied);
    }

    const ModelActs m = model_acts(model, B, T);
    batch_unpack(m.inputs, m.targets, on_device);
    if (!model->is_dry) device_event_record(model->unpacked, STREAM_COMPUTE);

    model->B = B;
    model->T = T;
    // its cache shares memory with the next pass
    model->decoder.sequences = model->decoder.length = 0;
}

// A part of a micro-step: a block of the forward pass, or a unit (partition.h) of the backward
// pass.
typedef void PassPart(Model *model, const MicroStep *s, int number);

static void whole_micro_step(Model *model, const MicroStep *s, int unused) {
    const int L = (int)model->options.config.L;
    (void)unused;
    for (int l = 0; l < L; l++) gpt2_forward(model, s, l);
    for (int l = L - 1; l >= 0; l--) gpt2_backward(model, s, l);
    gpt2_backward(model, s, L);
}

// Runs a part, or replays its recording. An observed pass is not recorded.
static void run_part(Model *model, Recording *r, const MicroStep *s, int number, PassPart *part) {
    if (model->observing || ops_are_observed()) {
        part(model, s, number);
        return;
    }

    if (r->B == s->B && r->tokens_in_step == s->tokens_in_step && device_graph_replay(r->graph))
        return;
    r->B = s->B;
    r->tokens_in_step = s->tokens_in_step;
    device_graph_begin(r->graph);
    part(model, s, number);
    device_graph_end(r->graph);
}

void model_set_hooks(Model *model, const UnitHooks *hooks) {
    REQUIRE(!hooks || model->parts, "hooks of a model for one process");
    model->hooks = hooks;
}

void model_forward_backward(Model *model, int64_t tokens_in_step, bool first) {
    const MicroStep s = {model->B, model->options.T, tokens_in_step, first};
    const UnitHooks *h = model->hooks;
    const int L = (int)model->options.config.L;
    REQUIRE(model->options.train, "a model made for inference cannot train");
    REQUIRE(s.B > 0 && model->T == s.T,
            "no batch is loaded, or a short one, which is for model_forward only");

    if (first)
        tensor_fill(model_sequence_losses(model),
                    0.0f); // a short micro-batch must not leave old losses
    for (int u = 0; h && model->options.fp8 && u <= L; u++) h->before_forward(h->context, u);
    model_fp8_prepare(model);

    // One recording per kind of micro-step: first or not, whole or the shorter last one of a step.
    const int kind = 2 * first + (s.B == model->options.B);
    if (!h) {
        run_part(model, &model->graphs[kind], &s, 0, whole_micro_step);
        return;
    }

    // Between the parts the units of the model pass from process to process. A forward part ends
    // where the next block's weights are needed, a backward part where the gradients of a unit are
    // complete.
    Recording *parts = model->parts + kind * num_parts_of(&model->options);
    h->before_forward(h->context, L);
    for (int l = 0; l < L; l++) {
        h->before_forward(h->context, l);
        run_part(model, &parts[l], &s, l, gpt2_forward);
    }
    for (int l = L - 1; l >= 0; l--) {
        run_part(model, &parts[L + l], &s, l, gpt2_backward);
        h->after_backward(h->context, l);
    }
    run_part(model, &parts[2 * L], &s, L, gpt2_backward);
    h->after_backward(h->context, L);
}

void model_forward(Model *model) {
    const MicroStep s = {.B = model->B, .T = model->T};
    REQUIRE(s.B > 0, "no batch is loaded");
    model_fp8_prepare(model);
    for (int l = 0; l < model->options.config.L; l++) gpt2_forward(model, &s, l);
    gpt2_head_forward(model, &s);
}
