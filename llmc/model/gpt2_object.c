// The Gpt2 object: allocates the planned arena and frees everything; gpt2_memory.c decides where its tensors are. It
// also moves weights and optimizer state between device and host, for initial values, checkpoints and import. All of
// that passes through one staging buffer, so that host memory stays small whatever the model.
#include "llmc/base/arithmetic.h"
#include "llmc/model/gpt2_internal.h"

#include <stdlib.h>
#include <string.h>

static Gpt2Options effective(const Gpt2Options *options) {
    Gpt2Options o = *options;
    if (o.dtype == DTYPE_FP32) o.gradients_in_dtype = false; // they are already fp32
    o.master = optimizer_keeps_master(o.optimizer, o.master, o.dtype);
    return o;
}

// fp8 matmuls need dimensions in multiples of 16: the dimensions of the model, and the tokens of a micro-batch. As a
// micro-batch may have any number of sequences (-b auto, the last one of a step), T must be such a multiple.
static bool check_fp8(const Gpt2Options *o, Error *err) {
    if (o->dtype != DTYPE_BF16)
        return error_set(err, "--fp8: needs --dtype bf16, not %s; head and attention stay in bf16",
                         dtype_name(o->dtype));
    if (!device_facts()->supports[DTYPE_E4M3])
        return error_set(err, "--fp8: %s has no fp8 matmuls (GPUs from sm_89 on have them); leave it out",
                         device_facts()->name);
    if (o->config.C % FP8_MULTIPLE != 0)
        return error_set(err, "--fp8: C = %lld is not a multiple of %d", (long long)o->config.C, FP8_MULTIPLE);
    return o->T % FP8_MULTIPLE == 0 ||
           error_set(err, "--fp8: -t %lld is not a multiple of %d; use %lld", (long long)o->T, FP8_MULTIPLE,
                     (long long)round_up(o->T, FP8_MULTIPLE));
}

bool gpt2_check_options(const Gpt2Options *o, Error *err) {
    if (o->fp8 && !check_fp8(o, err)) return false;
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

MemoryPlan *gpt2_plan(const Gpt2Options *options) {
    Layout layout;
    Gpt2Options o = effective(options);
    MemoryPlan *plan = gpt2_plan_all(&layout, &o);
    free(layout.forward);
    free(layout.backward);
    return plan;
}

int64_t gpt2_host_bytes(const Gpt2Options *options) {
    const Gpt2Options o = effective(options);
    int64_t slots[NUM_STATE_SLOTS], bytes = 0;
    if (!o.offload) return 0;
    gpt2_state_bytes(&o, slots);
    for (int slot = 0; slot < NUM_STATE_SLOTS; slot++) bytes += slots[slot];
    return bytes;
}

// ---------------------------------------------------------------------------------------------------------- the object

// The tensor of parameter p at element offset n of the memory that handle names.
static Tensor tensor_in(const Gpt2 *model, int handle, DType dtype, const Parameter *p, int64_t n) {
    if (handle < 0) return tensor_none();
    char *data = (char *)gpt2_at(model, handle) + n * (int64_t)dtype_size(dtype);
    return parameter_tensor(p, data, dtype);
}

// Makes the optimizer's tensors of parameter p in t: on the device, or one after the other in host memory.
static void make_state(Gpt2 *model, UpdateTensor *t, const Parameter *p, int64_t at[NUM_STATE_SLOTS],
                       int64_t *host_at) {
    const Gpt2Options *o = &model->options;
    for (int slot = 0; slot < NUM_STATE_SLOTS; slot++) {
        Tensor *s = state_slot_tensor(t, (StateSlot)slot);
        *s = optimizer_state(o->optimizer, o->master, o->dtype, p, (StateSlot)slot);
        if (!o->train || s->rank == 0) {
            *s = tensor_none();
            continue;
        }
        const int64_t bytes = round_up((int64_t)tensor_bytes(*s), PLAN_ALIGNMENT);
        s->name = p->name;
        s->data =
            o->offload ? model->host_state + *host_at : (char *)gpt2_at(model, model->layout.state[slot]) + at[slot];
        *(o->offload ? host_at : &at[slot]) += bytes;
    }
}

static void make_tensors(Gpt2 *model) {
    const Gpt2Options *o = &model->options;
    const Layout *layout = &model->layout;
    int64_t n = 0, at[NUM_STATE_SLOTS] = {0}, host_at = 0;
    for (int i = 0; i < model->num_tensors; i++) {
        const Parameter *p = &model->parameters[i];
        UpdateTensor *t = &model->tensors[i];
        t->weight = tensor_in(model, layout->weights, o->dtype, p, n);
        t->grad = tensor_in(model, layout->gradients, gpt2_gradient_dtype(o), p, n);
        make_state(model, t, p, at, &host_at);
        t->rule = optimizer_rule(o->optimizer, p);
        t->rate = optimizer_rate(o->optimizer, p);
        t->weight_decay = p->spec->group == GROUP_VECTOR ? 0.0f : 1.0f;
        t->stream = i;
        t->padding = (p->rows - p->file_rows) * p->cols;
        n += round_up(parameter_numel(p), PLAN_ALIGNMENT);
    }
}

Gpt2 *gpt2_create(const Gpt2Options *options, Error *err) {
    Gpt2 *model = calloc(1, sizeof *model);
    REQUIRE_MEMORY(model, "the model");
    model->options = effective(options);
    const Gpt2Options *o = &model->options;
    model->plan = gpt2_plan_all(&model->layout, o);
    model->num_tensors = parameter_count(&o->config);
    model->parameters = parameter_table(&o->config);
    model->tensors = calloc((size_t)model->num_tensors, sizeof *model->tensors);
    REQUIRE_MEMORY(model->tensors, "the model");
    bool ok = (model->arena = device_alloc((size_t)memory_plan_total(model->plan), err)) != NULL &&
              (model->staging = host_alloc(STAGING_BYTES, err)) != NULL &&
              (model->layout.host_bytes == 0 ||
               (model->host_state = host_alloc((size_t)model->layout.host_bytes, err)) != NULL) &&
              (model->copied = device_event_create(err)) != NULL &&
              (model->unpacked = device_event_create(err)) != NULL;
    for (int i = 0; ok && i < NUM_GRAPHS; i++) ok = (model->graphs[i].graph = device_graph_create(err)) != NULL;
    ok = ok && gpt2_decoder_create(model, err);
    if (!ok) {
        gpt2_destroy(model);
        return NULL;
    }
    if (model->host_state) memset(model->host_state, 0, (size_t)model->layout.host_bytes);
    make_tensors(model);
    gpt2_weights_changed(model);
    StepControl control = step_control_initial(1.0f);
    gpt2_set_control(model, &control);
    return model;
}

void gpt2_destroy(Gpt2 *model) {
    if (!model) return;
    ops_set_workspace(NULL, 0);
    for (int i = 0; i < NUM_GRAPHS; i++)
        if (model->graphs[i].graph) device_graph_destroy(model->graphs[i].graph);
    gpt2_decoder_destroy(model);
    if (model->copied) device_event_destroy(model->copied);
    if (model->unpacked) device_event_destroy(model->unpacked);
    if (model->staging) host_free(model->staging);
    if (model->host_state) host_free(model->host_state);
    if (model->arena) device_free(model->arena);
    free(model->tensors);
    free(model->parameters);
    free(model->layout.forward);
    free(model->layout.backward);
    memory_plan_destroy(model->plan);
    free(model);
}

// ------------------------------------------------------------------------------ weights and state to and from the host

static bool on_host(const Gpt2 *model, Tensor t) {
    const char *data = t.data;
    return model->host_state && data >= model->host_state && data < model->host_state + model->layout.host_bytes;
}

void gpt2_read_bytes(const Gpt2 *model, Tensor t, int64_t first, int64_t n, void *out) {
    REQUIRE(first >= 0 && first + n <= (int64_t)tensor_bytes(t), "bytes beyond %s", t.name);
    const char *from = (const char *)t.data + first;
    if (on_host(model, t)) {
        device_sync();
        memcpy(out, from, (size_t)n);
        return;
    }
    for (int64_t done = 0, count; done < n; done += count) {
        count = min_i64(n - done, STAGING_BYTES);
        copy_d2h(model->staging, from + done, (size_t)count, STREAM_COMPUTE);
        device_sync();
        memcpy((char *)out + done, model->staging, (size_t)count);
    }
}

void gpt2_write_bytes(Gpt2 *model, Tensor t, int64_t first, int64_t n, const void *in) {
    REQUIRE(first >= 0 && first + n <= (int64_t)tensor_bytes(t), "bytes beyond %s", t.name);
    char *to = (char *)t.data + first;
    if (on_host(model, t)) {
        device_sync();
        memcpy(to, in, (size_t)n);
        return;
    }
    for (int64_t done = 0, count; done < n; done += count) {
        count = min_i64(n - done, STAGING_BYTES);
        memcpy(model->staging, (const char *)in + done, (size_t)count);
        copy_h2d(to + done, model->staging, (size_t)count, STREAM_COMPUTE);
        device_sync();
    }
}

// Elements [first, first + n) of a floating-point tensor as fp32; 16-bit tensors are converted piece by piece through a
// buffer.
enum { PIECE = 1 << 17 };

static void read_floats(const Gpt2 *model, Tensor t, int64_t first, int64_t n, float *out) {
    const int64_t size = (int64_t)dtype_size(t.dtype);
    if (t.dtype == DTYPE_FP32) {
        gpt2_read_bytes(model, t, first * size, n * size, out);
        return;
    }
    uint16_t piece[PIECE];
    for (int64_t done = 0, count; done < n; done += count) {
        count = min_i64(n - done, PIECE);
        gpt2_read_bytes(model, t, (first + done) * size, count * size, piece);
        convert_elements(out + done, DTYPE_FP32, piece, t.dtype, count);
    }
}

static void write_floats(Gpt2 *model, Tensor t, int64_t first, int64_t n, const float *in) {
    const int64_t size = (int64_t)dtype_size(t.dtype);
    if (t.dtype == DTYPE_FP32) {
        gpt2_write_bytes(model, t, first * size, n * size, in);
        return;
    }
    uint16_t piece[PIECE];
    for (int64_t done = 0, count; done < n; done += count) {
        count = min_i64(n - done, PIECE);
        convert_elements(piece, t.dtype, in + done, DTYPE_FP32, count);
        gpt2_write_bytes(model, t, (first + done) * size, count * size, piece);
    }
}

void gpt2_get_weight(const Gpt2 *model, int index, int64_t first_row, int64_t rows, float *out) {
    const UpdateTensor *t = &model->tensors[index];
    const int64_t cols = model->parameters[index].cols, first = first_row * cols, n = rows * cols;
    read_floats(model, t->master.data ? t->master : t->weight, first, n, out);
    if (!t->compensation.data) return;
    float *compensation = calloc((size_t)n, sizeof *compensation);
    REQUIRE_MEMORY(compensation, "the rows of a weight");
    read_floats(model, t->compensation, first, n, compensation);
    for (int64_t i = 0; i < n; i++) out[i] += compensation[i];
    free(compensation);
}

static void set_values(Gpt2 *model, int index, int64_t first, int64_t n, const float *in) {
    const UpdateTensor *t = &model->tensors[index];
    write_floats(model, t->weight, first, n, in);
    if (t->master.data) write_floats(model, t->master, first, n, in);
    gpt2_weights_changed(model);
    if (!t->compensation.data) return;
    float *compensation = calloc((size_t)n, sizeof *compensation);
    REQUIRE_MEMORY(compensation, "the rows of a weight");
    read_floats(model, t->weight, first, n, compensation);
    for (int64_t i = 0; i < n; i++) compensation[i] = in[i] - compensation[i];
    write_floats(model, t->compensation, first, n, compensation);
    free(compensation);
}

void gpt2_set_weight(Gpt2 *model, int index, int64_t first_row, int64_t rows, const float *in) {
    const int64_t cols = model->parameters[index].cols;
    set_values(model, index, first_row * cols, rows * cols, in);
}

void gpt2_init_weights(Gpt2 *model, uint64_t seed) {
    enum { CHUNK = 1 << 18 };
    float *values = malloc(CHUNK * sizeof *values);
    REQUIRE_MEMORY(values, "initial values");
    for (int i = 0; i < model->num_tensors; i++) {
        const int64_t n = parameter_numel(&model->parameters[i]);
        for (int64_t done = 0; done < n; done += CHUNK) {
            int64_t count = min_i64(n - done, CHUNK);
            parameter_init_values(values, &model->options.config, &model->parameters[i], i, seed, done, count);
            set_values(model, i, done, count, values);
        }
    }
    free(values);
}

StepControl gpt2_get_control(const Gpt2 *model) {
    StepControl control;
    copy_d2h(model->staging, gpt2_control(model).data, sizeof control, STREAM_COMPUTE);
    device_sync();
    memcpy(&control, model->staging, sizeof control);
    return control;
}

void gpt2_set_control(Gpt2 *model, const StepControl *control) {
    memcpy(model->staging, control, sizeof *control);
    copy_h2d(gpt2_control(model).data, model->staging, sizeof *control, STREAM_COMPUTE);
    device_sync();
}

void gpt2_abandon_step(Gpt2 *model, const StepControl *last) {
    fp8_abandon_step(model);
    gpt2_set_control(model, last); // restores the number of micro-steps
}
