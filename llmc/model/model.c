// The Model object: allocates the planned arena and frees everything; model_memory.c decides where its tensors are. It
// also moves weights and optimizer state between device and host, for initial values, checkpoints and import. All of
// that passes through one staging buffer, so that host memory stays small whatever the model.
#include "llmc/base/arithmetic.h"
#include "llmc/model/model_internal.h"

#include <stdlib.h>
#include <string.h>

static ModelOptions effective(const ModelOptions *options) {
    ModelOptions o = *options;
    if (o.dtype == DTYPE_FP32) o.gradients_in_dtype = false; // they are already fp32
    o.master = optimizer_keeps_master(o.optimizer, o.master, o.dtype);
    return o;
}

// fp8 matmuls need dimensions in multiples of 16: the dimensions of the model, and the tokens of a micro-batch. As a
// micro-batch may have any number of sequences (-b auto, the last one of a step), T must be such a multiple.
static bool check_fp8(const ModelOptions *o, Error *err) {
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

// Parameter i in the memory of its unit.
static Tensor in_unit(const Model *model, Tensor unit, int i) {
    const Partition *p = model->layout.partition;
    const int64_t first = p->offsets[i] - p->begin[p->units[i]];
    char *data = (char *)unit.data + first * (int64_t)dtype_size(unit.dtype);
    return parameter_tensor(&model->parameters[i], data, unit.dtype);
}

static Tensor gradient_of(const Model *model, int i) {
    return in_unit(model, model_unit_gradients(model, model->layout.partition->units[i]), i);
}

// Of the elements `own` of parameter i: where their sum over all processes is.
static Tensor own_gradient_of(const Model *model, int i, Range own) {
    const Partition *of = model->layout.partition;
    if (!model_is_divided(&model->options)) return gradient_of(model, i);
    const int64_t begin = partition_of_unit(of, of->units[i], model->options.rank).begin;
    const Tensor unit = model_own_gradients(model, of->units[i]);
    Tensor t = tensor_slice_elements(unit, of->offsets[i] + own.begin - begin, range_size(own));
    if (range_size(own) == parameter_numel(&model->parameters[i]))
        t = parameter_tensor(&model->parameters[i], t.data, t.dtype);
    t.name = model->parameters[i].name;
    return t;
}

// Makes the optimizer's tensors of the elements `own` of parameter i in t: on the device, or one after the other in
// host memory.
static void make_state(Model *model, UpdateTensor *t, int i, Range own, int64_t at[NUM_STATE_SLOTS], int64_t *host_at) {
    const ModelOptions *o = &model->options;
    for (int slot = 0; slot < NUM_STATE_SLOTS; slot++) {
        Tensor *s = state_slot_tensor(t, (StateSlot)slot);
        if (s->rank == 0) continue;
        *s = optimizer_state_slice(*s, (StateSlot)slot, &model->parameters[i], own.begin, range_size(own));
        const int64_t bytes = round_up((int64_t)tensor_bytes(*s), PLAN_ALIGNMENT);
        s->name = model->parameters[i].name;
        s->data =
            o->offload ? model->host_state + *host_at : (char *)model_at(model, model->layout.state[slot]) + at[slot];
        *(o->offload ? host_at : &at[slot]) += bytes;
    }
}

static UpdateTensor whole_tensor(const Model *model, int i) {
    const ModelOptions *o = &model->options;
    const Parameter *p = &model->parameters[i];
    UpdateTensor t = {.weight = in_unit(model, model_unit_weights(model, model->layout.partition->units[i]), i),
                      .rule = optimizer_rule(o->optimizer, p),
                      .rate = optimizer_rate(o->optimizer, p),
                      .weight_decay = p->spec->group == GROUP_VECTOR ? 0.0f : 1.0f,
                      .stream = i,
                      .padding = (p->rows - p->file_rows) * p->cols};
    if (o->train) t.grad = gradient_of(model, i);
    for (int slot = 0; o->train && slot < NUM_STATE_SLOTS; slot++) {
        Tensor *s = state_slot_tensor(&t, (StateSlot)slot);
        *s = optimizer_state(o->optimizer, o->master, o->dtype, p, (StateSlot)slot);
        s->name = p->name;
    }
    return t;
}

// The tensors of the model, and those that this process updates.
static void make_tensors(Model *model) {
    const ModelOptions *o = &model->options;
    int64_t at[NUM_STATE_SLOTS] = {0}, host_at = 0;
    for (int i = 0; i < model->num_tensors; i++) {
        const Parameter *p = &model->parameters[i];
        const Range own = model_own_range(o, model->layout.partition, p, i, o->rank);
        model->tensors[i] = whole_tensor(model, i);
        if (!o->train || range_size(own) == 0) continue;
        UpdateTensor *t = &model->own[model->num_own++];
        *t = model->tensors[i];
        make_state(model, t, i, own, at, &host_at);
        t->grad = own_gradient_of(model, i, own);
        t->offset = own.begin;
        if (range_size(own) < parameter_numel(p))
            t->weight = tensor_slice_elements(t->weight, own.begin, range_size(own));
        if (!model_is_divided(o)) model->tensors[i] = *t;
    }
}

static bool make_parts(Model *model, Error *err) {
    const int n = NUM_GRAPHS * model_num_parts(&model->options);
    model->parts = calloc((size_t)n, sizeof *model->parts);
    REQUIRE_MEMORY(model->parts, "the parts of a micro-step");
    for (int i = 0; i < n; i++)
        if (!(model->parts[i].graph = device_graph_create(err))) return false;
    return true;
}

Model *model_create(const ModelOptions *options, Error *err) {
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
    bool ok = (model->arena = device_alloc((size_t)memory_plan_total(model->plan), err)) != NULL &&
              (model->staging = host_alloc(STAGING_BYTES, err)) != NULL &&
              (model->layout.host_bytes == 0 ||
               (model->host_state = host_alloc((size_t)model->layout.host_bytes, err)) != NULL) &&
              (model->copied = device_event_create(err)) != NULL &&
              (model->unpacked = device_event_create(err)) != NULL;
    for (int i = 0; ok && i < NUM_GRAPHS; i++) ok = (model->graphs[i].graph = device_graph_create(err)) != NULL;
    ok = ok && (o->processes <= 1 || make_parts(model, err));
    ok = ok && model_decoder_create(model, err);
    if (!ok) {
        model_destroy(model);
        return NULL;
    }
    if (model->host_state) memset(model->host_state, 0, (size_t)model->layout.host_bytes);
    make_tensors(model);
    model_weights_changed(model);
    StepControl control = step_control_initial(1.0f);
    model_set_control(model, &control);
    return model;
}

void model_destroy(Model *model) {
    if (!model) return;
    ops_set_workspace(NULL, 0);
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
    if (model->arena) device_free(model->arena);
    free(model->tensors);
    free(model->own);
    free(model->parameters);
    model_layout_free(&model->layout);
    memory_plan_destroy(model->plan);
    free(model);
}

// ------------------------------------------------------------------------------ weights and state to and from the host

static bool on_host(const Model *model, Tensor t) {
    const char *data = t.data;
    return model->host_state && data >= model->host_state && data < model->host_state + model->layout.host_bytes;
}

void model_read_bytes(const Model *model, Tensor t, int64_t first, int64_t n, void *out) {
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

void model_write_bytes(Model *model, Tensor t, int64_t first, int64_t n, const void *in) {
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

// ------------------------------------------------------------------------------------------ the optimizer's state

Range model_state_range(const Model *model, int index, StateSlot slot, int process) {
    const Parameter *p = &model->parameters[index];
    UpdateTensor whole = model->tensors[index];
    const Tensor t = *state_slot_tensor(&whole, slot);
    const Range own = model_own_range(&model->options, model->layout.partition, p, index, process);
    if (range_size(own) == 0 || t.rank == 0) return (Range){0, 0};
    const int64_t size = (int64_t)dtype_size(t.dtype);
    if (range_size(own) == parameter_numel(p)) return (Range){0, (int64_t)tensor_bytes(t)};
    const bool is_scale = slot == SLOT_M_SCALE || slot == SLOT_V_SCALE;
    return is_scale ? (Range){own.begin / STATE_BLOCK * size, ceil_div(own.end, STATE_BLOCK) * size}
                    : (Range){own.begin * size, own.end * size};
}

static Tensor own_state(const Model *model, int index, StateSlot slot) {
    for (int i = 0; i < model->num_own; i++)
        if (model->own[i].stream == index) return *state_slot_tensor(&model->own[i], slot);
    return tensor_none();
}

void model_set_reader(Model *model, StateReader *reader, void *context) {
    model->reader = reader, model->reader_context = context;
}

bool model_read_state(const Model *model, int index, StateSlot slot, int64_t first, int64_t n, void *out) {
    const Range own = model_state_range(model, index, slot, model->options.rank);
    if (first >= own.begin && first + n <= own.end) {
        model_read_bytes(model, own_state(model, index, slot), first - own.begin, n, out);
        return true;
    }
    REQUIRE(model->reader, "the %s of %s belongs to another process", state_slot_name(slot),
            model->parameters[index].name);
    return model->reader(model->reader_context, index, slot, first, n, out);
}

void model_write_state(Model *model, int index, StateSlot slot, int64_t first, int64_t n, const void *in) {
    const Range own = model_state_range(model, index, slot, model->options.rank);
    const int64_t begin = max_i64(first, own.begin), end = min_i64(first + n, own.end);
    if (begin >= end) return;
    model_write_bytes(model, own_state(model, index, slot), begin - own.begin, end - begin,
                      (const char *)in + (begin - first));
}

// ------------------------------------------------------------------------------------------------ values of weights

// Elements [first, first + n) as fp32 of a slot, or with slot WEIGHT of the weight itself; 16-bit tensors are converted
// piece by piece through a buffer.
enum { PIECE = 1 << 17, WEIGHT = -1 };

static DType dtype_of(const Model *model, int index, int slot) {
    UpdateTensor t = model->tensors[index];
    return slot == WEIGHT ? t.weight.dtype : state_slot_tensor(&t, (StateSlot)slot)->dtype;
}

static bool read_elements(const Model *model, int index, int slot, int64_t first, int64_t n, void *out) {
    const int64_t size = (int64_t)dtype_size(dtype_of(model, index, slot));
    if (slot != WEIGHT) return model_read_state(model, index, (StateSlot)slot, first * size, n * size, out);
    model_read_bytes(model, model->tensors[index].weight, first * size, n * size, out);
    return true;
}

static void write_elements(Model *model, int index, int slot, int64_t first, int64_t n, const void *in) {
    const int64_t size = (int64_t)dtype_size(dtype_of(model, index, slot));
    if (slot == WEIGHT)
        model_write_bytes(model, model->tensors[index].weight, first * size, n * size, in);
    else
        model_write_state(model, index, (StateSlot)slot, first * size, n * size, in);
}

static uint16_t *make_piece(void) { // not on the stack, which may be small
    uint16_t *piece = malloc(PIECE * sizeof *piece);
    REQUIRE_MEMORY(piece, "a piece of a weight");
    return piece;
}

static bool read_floats(const Model *model, int index, int slot, int64_t first, int64_t n, float *out) {
    const DType dtype = dtype_of(model, index, slot);
    if (dtype == DTYPE_FP32) return read_elements(model, index, slot, first, n, out);
    uint16_t *piece = make_piece();
    bool ok = true;
    for (int64_t done = 0, count; ok && done < n; done += count) {
        count = min_i64(n - done, PIECE);
        ok = read_elements(model, index, slot, first + done, count, piece);
        if (ok) convert_elements(out + done, DTYPE_FP32, piece, dtype, count);
    }
    free(piece);
    return ok;
}

static void write_floats(Model *model, int index, int slot, int64_t first, int64_t n, const float *in) {
    const DType dtype = dtype_of(model, index, slot);
    if (dtype == DTYPE_FP32) {
        write_elements(model, index, slot, first, n, in);
        return;
    }
    uint16_t *piece = make_piece();
    for (int64_t done = 0, count; done < n; done += count) {
        count = min_i64(n - done, PIECE);
        convert_elements(piece, dtype, in + done, DTYPE_FP32, count);
        write_elements(model, index, slot, first + done, count, piece);
    }
    free(piece);
}

static bool has(const Model *model, int index, StateSlot slot) {
    UpdateTensor t = model->tensors[index];
    return state_slot_tensor(&t, slot)->rank > 0;
}

static float *floats(int64_t n) {
    float *values = calloc((size_t)n, sizeof *values);
    REQUIRE_MEMORY(values, "the rows of a weight");
    return values;
}

static bool get_values(const Model *model, int index, int64_t first, int64_t n, float *out) {
    const int slot = has(model, index, SLOT_MASTER) ? (int)SLOT_MASTER : (int)WEIGHT;
    if (!read_floats(model, index, slot, first, n, out)) return false;
    if (!has(model, index, SLOT_COMPENSATION)) return true;
    float *compensation = floats(n);
    const bool ok = read_floats(model, index, SLOT_COMPENSATION, first, n, compensation);
    for (int64_t i = 0; ok && i < n; i++) out[i] += compensation[i];
    free(compensation);
    return ok;
}

bool model_get_weight(const Model *model, int index, int64_t first_row, int64_t rows, float *out) {
    const int64_t cols = model->parameters[index].cols;
    return get_values(model, index, first_row * cols, rows * cols, out);
}

static void set_values(Model *model, int index, int64_t first, int64_t n, const float *in) {
    write_floats(model, index, WEIGHT, first, n, in);
    if (has(model, index, SLOT_MASTER)) write_floats(model, index, SLOT_MASTER, first, n, in);
    model_weights_changed(model);
    if (!has(model, index, SLOT_COMPENSATION)) return;
    float *compensation = floats(n);
    read_floats(model, index, WEIGHT, first, n, compensation);
    for (int64_t i = 0; i < n; i++) compensation[i] = in[i] - compensation[i];
    write_floats(model, index, SLOT_COMPENSATION, first, n, compensation);
    free(compensation);
}

void model_set_weight(Model *model, int index, int64_t first_row, int64_t rows, const float *in) {
    const int64_t cols = model->parameters[index].cols;
    set_values(model, index, first_row * cols, rows * cols, in);
}

void model_set_compensation(Model *model, int index, int64_t first_row, int64_t rows, const void *in) {
    const DType dtype = dtype_of(model, index, SLOT_COMPENSATION);
    const int64_t cols = model->parameters[index].cols, size = (int64_t)dtype_size(dtype);
    const Range own = model_state_range(model, index, SLOT_COMPENSATION, model->options.rank);
    const int64_t begin = max_i64(first_row * cols, own.begin / size);
    const int64_t n = min_i64((first_row + rows) * cols, own.end / size) - begin;
    if (n <= 0) return;
    const char *from = (const char *)in + (begin - first_row * cols) * size;
    float *values = floats(n), *taken = floats(n);
    get_values(model, index, begin, n, values);
    convert_elements(taken, DTYPE_FP32, from, dtype, n);
    for (int64_t k = 0; k < n; k++) values[k] -= taken[k];
    write_floats(model, index, WEIGHT, begin, n, values);
    write_elements(model, index, SLOT_COMPENSATION, begin, n, from);
    model_weights_changed(model);
    free(values);
    free(taken);
}

void model_init_weights(Model *model, uint64_t seed) {
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

void model_abandon_step(Model *model, const StepControl *last) {
    fp8_abandon_step(model);
    model_set_control(model, last); // restores the number of micro-steps
}
