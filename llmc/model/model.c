// The model: allocates the planned arena and frees everything, loads micro-batches and runs passes
// over them, as recorded graphs where the device has them. gpt2.c has what runs.
#include "llmc/model/model.h"

#include "llmc/base/arithmetic.h"
#include "llmc/model/model_object.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static ModelOptions effective(const ModelOptions *options) {
    ModelOptions o = *options;
    if (o.dtype == DTYPE_FP32) o.gradients_in_dtype = false; // they are already fp32
    o.master = optimizer_keeps_master(o.optimizer, o.master, o.dtype);
    return o;
}

// fp8 matmuls need dimensions in multiples of 16: the dimensions of the model, and the tokens of a micro-batch. As a
// micro-batch may have any number of sequences (-b auto, the last one of a step), T must be such a multiple.
static bool check_fp8_options(const ModelOptions *o, Error *err) {
    if (o->dtype != DTYPE_BF16)
        return error_set(err, "--fp8: needs --dtype bf16, not %s; head and attention stay in bf16",
                         dtype_name(o->dtype));
    if (!device_facts()->supports[DTYPE_E4M3])
        return error_set(err, "--fp8: %s has no fp8 matmuls (GPUs from sm_89 on have them); leave it out",
                         device_facts()->name);
    if (o->config.C % FP8_MULTIPLE != 0)
        return error_set(err, "--fp8: C = %lld is not a multiple of %d", (long long)o->config.C, FP8_MULTIPLE);
    if (o->config.d_ff % FP8_MULTIPLE != 0)
        return error_set(err, "--fp8: d_ff = %lld is not a multiple of %d; use --d-ff %lld", (long long)o->config.d_ff,
                         FP8_MULTIPLE, (long long)round_up(o->config.d_ff, FP8_MULTIPLE));
    return o->T % FP8_MULTIPLE == 0 ||
           error_set(err, "--fp8: -t %lld is not a multiple of %d; use %lld", (long long)o->T, FP8_MULTIPLE,
                     (long long)round_up(o->T, FP8_MULTIPLE));
}

bool model_check_options(const ModelOptions *o, Error *err) {
    if (o->fp8 && !check_fp8_options(o, err)) return false;
    if (o->train && o->offload && !optimizer_is_elementwise(o->optimizer))
        return error_set(err,
                         "--offload optimizer: the state is streamed in slices, but %s needs whole matrices; use "
                         "another --optimizer, or leave --offload out",
                         optimizer_name(o->optimizer));
    if (o->train && o->optimizer == OPTIMIZER_MUON && o->dtype == DTYPE_FP16 && o->gradients_in_dtype)
        return error_set(err,
                         "--grad-dtype compute: muon writes its directions to the gradients without the loss "
                         "scale, and fp16 cannot represent numbers that small; use --grad-dtype fp32 or --dtype bf16");
    return true;
}

MemoryPlan *model_plan(const ModelOptions *options) {
    Layout layout;
    ModelOptions o = effective(options);
    MemoryPlan *plan = model_plan_all(&layout, &o);
    model_layout_free(&layout);
    return plan;
}

int64_t model_host_bytes(const ModelOptions *options) {
    const ModelOptions o = effective(options);
    int64_t slots[NUM_STATE_SLOTS], bytes = 0;
    if (!o.offload) return 0;
    Partition *p = partition_create(&o.config, o.optimizer, o.groups, o.processes);
    model_state_bytes(&o, p, slots);
    partition_destroy(p);
    for (int slot = 0; slot < NUM_STATE_SLOTS; slot++) bytes += slots[slot];
    return bytes;
}

// ---------------------------------------------------------------------------------------------------------- the object

// Makes everything but memory and what belongs to the device.
static Model *model_shape(const ModelOptions *options) {
    Model *model = calloc(1, sizeof *model);
    REQUIRE_MEMORY(model, "the model");
    model->options = effective(options);
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
    model_make_tensors(model);
    return model;
}

Model *model_create(const ModelOptions *options, Error *err) {
    Model *model = model_shape(options);
    const ModelOptions *o = &model->options;
    const int num_parts = o->processes > 1 ? NUM_GRAPHS * model_num_parts(o) : 0;
    if (num_parts > 0) {
        model->parts = calloc((size_t)num_parts, sizeof *model->parts);
        REQUIRE_MEMORY(model->parts, "the parts of a micro-step");
    }
    bool ok = (model->arena = device_alloc((size_t)memory_plan_total(model->plan), err)) != NULL &&
              (model->staging = host_alloc(STAGING_BYTES, err)) != NULL &&
              (model->layout.host_bytes == 0 ||
               (model->host_state = host_alloc((size_t)model->layout.host_bytes, err)) != NULL) &&
              (model->copied = device_event_create(err)) != NULL &&
              (model->unpacked = device_event_create(err)) != NULL;
    for (int i = 0; ok && i < NUM_GRAPHS; i++) ok = (model->graphs[i].graph = device_graph_create(err)) != NULL;
    for (int i = 0; ok && i < num_parts; i++) ok = (model->parts[i].graph = device_graph_create(err)) != NULL;
    ok = ok && model_decoder_create(model, err);
    if (!ok) {
        model_destroy(model);
        return NULL;
    }
    if (model->host_state) memset(model->host_state, 0, (size_t)model->layout.host_bytes);
    model_make_tensors(model);
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
    for (int i = 0; model->parts && i < NUM_GRAPHS * model_num_parts(&model->options); i++)
        if (model->parts[i].graph) device_graph_destroy(model->parts[i].graph);
    free(model->parts);
    model_decoder_destroy(model);
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
            parameter_init_values(values, &model->options.config, p, i, seed, row * p->cols, rows * p->cols);
            model_set_weight(model, i, row, rows, values);
        }
        free(values);
    }
}

// -------------------------------------------------------------------------------------------------- views of the arena

void *model_at(const Model *model, int handle) {
    return handle < 0 ? NULL : model->arena + memory_plan_offset(model->plan, handle);
}

void model_use_workspace(const Model *model) {
    ops_set_workspace(model_at(model, model->layout.workspace), ops_workspace_bytes(model_ops_shape(&model->options)));
}

Tensor model_control(const Model *model) {
    return tensor_make(model_at(model, model->layout.control), DTYPE_U8, "control", (int64_t)sizeof(StepControl), 0, 0,
                       0);
}
Tensor model_sequence_losses(const Model *model) {
    void *data = model_at(model, model->layout.sequence_losses);
    return tensor_make(data, DTYPE_FP32, "sequence_losses", model->options.B, 0, 0, 0);
}
Tensor model_step_losses(const Model *model) {
    const ModelOptions *o = &model->options;
    if (o->groups <= 1) return model_sequence_losses(model);
    return tensor_make(model_at(model, model->layout.step_losses), DTYPE_FP32, "step_losses", o->groups, o->B, 0, 0);
}
Tensor model_token_losses(const Model *model) { return model_acts(model, model->B, model->T).losses; }

ModelActs model_acts(const Model *model, int64_t B, int64_t T) {
    static const struct {
        const char *name;
        ActivationShape shape;
    } acts[NUM_MODEL_ACTS] = {
#define X(name, shape, ...) {#name, shape},
        MODEL_ACTIVATIONS(X)
#undef X
    };
    ModelActs a;
    for (int i = 0; i < NUM_MODEL_ACTS; i++) {
        void *data = model_at(model, model->layout.model_acts[i]);
        a.all[i] = model_activation(&model->options, acts[i].shape, acts[i].name, data, B, T);
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

// -------------------------------------------------------------------------------------------------------------- passes

void model_load_batch(Model *model, const void *windows, int64_t B, int64_t T, int token_bytes) {
    const ModelOptions *o = &model->options;
    REQUIRE(B >= 1 && B <= o->B && T >= 1 && T <= o->T,
            "a batch of %lld windows of %lld in a model planned for %lld of %lld", (long long)B, (long long)T,
            (long long)o->B, (long long)o->T);
    const DType dtype = token_bytes == 2 ? DTYPE_U16 : DTYPE_I32;
    void *buffer = model->arena + memory_plan_offset(model->plan, model->layout.windows);
    Tensor on_device = tensor_make(buffer, dtype, "windows", B, T + 1, 0, 0);
    if (!model->is_dry) {
        model_use_workspace(model);
        // At most one copy is pending, so the loader's buffers are free again after two calls. The copy itself waits
        // only for the unpacking of the previous batch, and runs while that batch computes.
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
    model->decoder.sequences = model->decoder.length = 0; // its cache shares memory with the next pass
}

// A part of a micro-step: a block of the forward pass, or a unit (partition.h) of the backward pass.
typedef void PassPart(Model *model, const MicroStep *s, int number);

static void whole_micro_step(Model *model, const MicroStep *s, int unused) {
    const int L = (int)model->options.config.L;
    (void)unused;
    for (int l = 0; l < L; l++) gpt2_forward(model, s, l);
    for (int l = L - 1; l >= 0; l--) gpt2_backward(model, s, l);
    gpt2_backward(model, s, L);
}

// Runs a part, or replays its recording. What is observed is not part of a recording.
static void run_part(Model *model, Recording *r, const MicroStep *s, int number, PassPart *part) {
    if (model->observing || ops_are_observed()) {
        part(model, s, number);
        return;
    }
    if (r->B == s->B && r->tokens_in_step == s->tokens_in_step && device_graph_replay(r->graph)) return;
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

// Between the parts the units of the model pass from process to process. A forward part ends where
// the next block's weights are needed, a backward part where the gradients of a unit are complete.
static void run_with_hooks(Model *model, const MicroStep *s, Recording *parts) {
    const int L = (int)model->options.config.L;
    const UnitHooks *h = model->hooks;
    for (int l = 0; l < L; l++) {
        if (l == 0) h->before_forward(h->context, L);
        h->before_forward(h->context, l);
        run_part(model, &parts[l], s, l, gpt2_forward);
    }
    for (int l = L - 1; l >= 0; l--) {
        run_part(model, &parts[L + l], s, l, gpt2_backward);
        h->after_backward(h->context, l);
    }
    run_part(model, &parts[2 * L], s, L, gpt2_backward);
    h->after_backward(h->context, L);
}

void model_forward_backward(Model *model, int64_t tokens_in_step, bool first) {
    const MicroStep s = {model->B, model->options.T, tokens_in_step, first};
    const UnitHooks *h = model->hooks;
    REQUIRE(model->options.train, "a model made for inference cannot train");
    REQUIRE(s.B > 0 && model->T == s.T, "no batch is loaded, or a short one, which is for model_forward only");
    if (first) tensor_fill(model_sequence_losses(model), 0.0f); // a short micro-batch must not leave old losses
    for (int u = 0; h && model->options.fp8 && u <= model->options.config.L; u++) h->before_forward(h->context, u);
    model_fp8_prepare(model);
    // One recording per kind of micro-step: first or not, whole or the shorter last one of a step.
    const int kind = 2 * first + (s.B == model->options.B);
    if (h)
        run_with_hooks(model, &s, model->parts + kind * model_num_parts(&model->options));
    else
        run_part(model, &model->graphs[kind], &s, 0, whole_micro_step);
}

void model_forward(Model *model) {
    const MicroStep s = {.B = model->B, .T = model->T};
    REQUIRE(s.B > 0, "no batch is loaded");
    model_fp8_prepare(model);
    for (int l = 0; l < model->options.config.L; l++) gpt2_forward(model, &s, l);
    gpt2_head_forward(model, &s);
}

// --------------------------------------------------------------------------------------------------- the decision of a
// step

StepControl model_get_control(const Model *model) {
    StepControl control;
    copy_d2h(model->staging, model_control(model).data, sizeof control, STREAM_COMPUTE);
    device_sync();
    memcpy(&control, model->staging, sizeof control);
    return control;
}

void model_set_control(Model *model, const StepControl *control) {
    memcpy(model->staging, control, sizeof *control);
    copy_h2d(model_control(model).data, model->staging, sizeof *control, STREAM_COMPUTE);
    device_sync();
}
