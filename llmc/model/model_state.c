// The weights, gradients and optimizer state of a model: views of them in the planned memory, and
// their bytes to and from the host, for checkpoints and import. All of these pass through one staging
// buffer, so that host memory stays small whatever the model. model_memory.c decides where they are.
#include "llmc/model/model_state.h"

#include "llmc/base/arithmetic.h"
#include "llmc/model/model_object.h"

#include <stdlib.h>
#include <string.h>

// ------------------------------------------------------------------------------------------------------------- tensors

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

void model_make_tensors(Model *model) {
    const ModelOptions *o = &model->options;
    int64_t at[NUM_STATE_SLOTS] = {0},
            host_at = 0; // offsets of the next tensor: in each slot, and under offload in all
    for (int i = 0; i < model->num_tensors; i++) {
        const Parameter *p = &model->parameters[i];
        const Range own = model_own_range(o, model->layout.partition, p, i, o->rank);
        model->tensors[i] = whole_tensor(model, i);
        if (!o->train || range_size(own) == 0) continue;
        UpdateTensor *t = &model->own[model->num_own++];
        *t = model->tensors[i];
        for (int slot = 0; slot < NUM_STATE_SLOTS; slot++) {
            Tensor *s = state_slot_tensor(t, (StateSlot)slot);
            if (s->rank == 0) continue;
            *s = optimizer_state_slice(*s, (StateSlot)slot, p, own.begin, range_size(own));
            s->name = p->name;
            if (o->offload)
                s->data = model->host_state + host_at;
            else
                s->data = (char *)model_at(model, model->layout.state[slot]) + at[slot];
            *(o->offload ? &host_at : &at[slot]) += round_up((int64_t)tensor_bytes(*s), PLAN_ALIGNMENT);
        }
        t->grad = own_gradient_of(model, i, own);
        t->offset = own.begin;
        if (range_size(own) < parameter_numel(p))
            t->weight = tensor_slice_elements(t->weight, own.begin, range_size(own));
        if (!model_is_divided(o)) model->tensors[i] = *t;
    }
}

int model_num_tensors(const Model *model) { return model->num_tensors; }
const Parameter *model_parameters(const Model *model) { return model->parameters; }
const UpdateTensor *model_tensors(const Model *model) { return model->tensors; }
Range model_own_elements(const Model *model, int index) {
    const ModelOptions *o = &model->options;
    return model_own_range(o, model->layout.partition, &model->parameters[index], index, o->rank);
}
const UpdateTensor *model_own_tensors(const Model *model, int *count) {
    *count = model->num_own;
    return model->own;
}

void model_weights_changed(Model *model) { model->weights_are_new = true; }

void *model_offload_buffer(const Model *model, int64_t *bytes) {
    const int handle = model->layout.offload_buffer;
    *bytes = handle < 0 ? 0 : memory_plan_tensor(model->plan, handle).bytes;
    return model_at(model, handle);
}
Tensor model_optimizer_scratch(const Model *model) {
    const int handle = model->layout.optimizer_scratch;
    if (handle < 0) return tensor_none();
    const int64_t bytes = memory_plan_tensor(model->plan, handle).bytes;
    return tensor_make(model_at(model, handle), DTYPE_U8, "optimizer_scratch", bytes, 0, 0, 0);
}

// ----------------------------------------------------------------------------------------------------- units of memory

const Partition *model_partition(const Model *model) { return model->layout.partition; }

static Tensor gradient_elements(const Model *model, int handle, int64_t first, int64_t n) {
    const DType dtype = model_gradient_dtype(&model->options);
    char *data = (char *)model_at(model, handle) + first * (int64_t)dtype_size(dtype);
    return tensor_make(data, dtype, "gradients", n, 0, 0, 0);
}

Tensor model_unit_gradients(const Model *model, int unit) {
    const Partition *p = model->layout.partition;
    const int64_t n = p->begin[unit + 1] - p->begin[unit], outside = p->elements - p->begin[p->num_units - 1];
    int64_t first = p->begin[unit];
    if (model_frees_gradients(&model->options))
        first = unit == p->num_units - 1 ? 0 : outside + unit % NUM_BUCKETS * model->layout.longest_block;
    return gradient_elements(model, model->layout.gradients, first, n);
}

Tensor model_unit_sums(const Model *model, int unit, int level) {
    const Partition *p = model->layout.partition;
    return gradient_elements(model, model->layout.gradient_sums, level * p->elements + p->begin[unit],
                             p->begin[unit + 1] - p->begin[unit]);
}

Tensor model_own_gradients(const Model *model, int unit) {
    const Partition *p = model->layout.partition;
    const int rank = model->options.rank;
    const Range own = partition_of_unit(p, unit, rank);
    int64_t first = 0;
    if (!model_frees_gradients(&model->options))
        return tensor_slice_elements(model_unit_gradients(model, unit), own.begin - p->begin[unit], range_size(own));
    for (int u = 0; u < unit; u++) first += range_size(partition_of_unit(p, u, rank));
    return gradient_elements(model, model->layout.own_gradients, first, range_size(own));
}

Tensor model_unit_weights(const Model *model, int unit) {
    const Partition *p = model->layout.partition;
    const DType dtype = model->options.dtype;
    char *data = (char *)model_at(model, model->layout.weights) + p->begin[unit] * (int64_t)dtype_size(dtype);
    return tensor_make(data, dtype, "weights", p->begin[unit + 1] - p->begin[unit], 0, 0, 0);
}

Tensor model_exchange_buffer(const Model *model, int half) {
    const int64_t n = model->layout.exchange_elements;
    return gradient_elements(model, model->layout.exchange, half * n, n);
}

Tensor model_norm(const Model *model) {
    return tensor_make(model_at(model, model->layout.norm), DTYPE_FP32, "sumsq", max_i64(model->options.processes, 1),
                       model->layout.norm_columns, 0, 0);
}

// ----------------------------------------------------------------------------------------------------------- one block

// Where the ops of a micro-step write the gradient of parameter `index`: the gradient tensor itself, or fp32 memory
// that belongs to the micro-step and is shared by all blocks.
static Tensor micro_gradient(const Model *model, int index) {
    const Parameter *p = &model->parameters[index];
    const int handle = model->layout.micro_gradients[p->spec - parameter_specs];
    if (handle < 0) return model->tensors[index].grad;
    return parameter_tensor(p, model_at(model, handle), DTYPE_FP32);
}

Weights model_weights(const Model *model, int block) {
    Weights w;
    for (int s = 0; s < NUM_PARAMETER_SPECS; s++)
        w.all[s] = model->tensors[parameter_index(&model->options.config, s, block)].weight;
    return w;
}
Weights model_gradients(const Model *model, int block) {
    Weights g;
    for (int s = 0; s < NUM_PARAMETER_SPECS; s++)
        g.all[s] = micro_gradient(model, parameter_index(&model->options.config, s, block));
    return g;
}

void model_add_gradients(const Model *model, int from, int to, int block, bool first) {
    for (int spec = from; spec <= to; spec++) {
        if (model->layout.micro_gradients[spec] < 0) continue;
        const int index = parameter_index(&model->options.config, spec, block);
        gradient_add(model->tensors[index].grad, micro_gradient(model, index), !first, model->options.seed, index,
                     model_control(model));
    }
}

// ------------------------------------------------------------------------------------------ bytes to and from the host

static bool is_host_state(const Model *model, Tensor t) {
    const char *data = t.data;
    return model->host_state && data >= model->host_state && data < model->host_state + model->layout.host_bytes;
}

void model_read_bytes(const Model *model, Tensor t, int64_t first, int64_t n, void *out) {
    REQUIRE(first >= 0 && first + n <= (int64_t)tensor_bytes(t), "bytes beyond %s", t.name);
    const char *from = (const char *)t.data + first;
    if (is_host_state(model, t)) {
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
    if (is_host_state(model, t)) {
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

// ----------------------------------------------------------------------------------------------- the optimizer's state

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
    model->reader = reader;
    model->reader_context = context;
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

// --------------------------------------------------------------------------------------------------- values of weights

// Elements [first, first + n) as fp32 of a slot, or with slot WEIGHT of the weight itself; 16-bit tensors are converted
// piece by piece through a buffer.
enum { PIECE = 1 << 17, WEIGHT = -1 };

static Tensor value_tensor(const Model *model, int index, int slot) {
    UpdateTensor t = model->tensors[index];
    return slot == WEIGHT ? t.weight : *state_slot_tensor(&t, (StateSlot)slot);
}

static bool read_elements(const Model *model, int index, int slot, int64_t first, int64_t n, void *out) {
    const int64_t size = (int64_t)dtype_size(value_tensor(model, index, slot).dtype);
    if (slot != WEIGHT) return model_read_state(model, index, (StateSlot)slot, first * size, n * size, out);
    model_read_bytes(model, model->tensors[index].weight, first * size, n * size, out);
    return true;
}

static void write_elements(Model *model, int index, int slot, int64_t first, int64_t n, const void *in) {
    const int64_t size = (int64_t)dtype_size(value_tensor(model, index, slot).dtype);
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
    const DType dtype = value_tensor(model, index, slot).dtype;
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
    const DType dtype = value_tensor(model, index, slot).dtype;
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

static bool has_slot(const Model *model, int index, StateSlot slot) {
    return value_tensor(model, index, (int)slot).rank > 0;
}

static float *make_floats(int64_t n) {
    float *values = calloc((size_t)n, sizeof *values);
    REQUIRE_MEMORY(values, "the rows of a weight");
    return values;
}

static bool get_values(const Model *model, int index, int64_t first, int64_t n, float *out) {
    const int slot = has_slot(model, index, SLOT_MASTER) ? (int)SLOT_MASTER : (int)WEIGHT;
    if (!read_floats(model, index, slot, first, n, out)) return false;
    if (!has_slot(model, index, SLOT_COMPENSATION)) return true;
    float *compensation = make_floats(n);
    const bool ok = read_floats(model, index, SLOT_COMPENSATION, first, n, compensation);
    for (int64_t i = 0; ok && i < n; i++) out[i] += compensation[i];
    free(compensation);
    return ok;
}

bool model_get_weight(const Model *model, int index, int64_t first_row, int64_t rows, float *out) {
    const int64_t cols = model->parameters[index].cols;
    return get_values(model, index, first_row * cols, rows * cols, out);
}

void model_set_weight(Model *model, int index, int64_t first_row, int64_t rows, const float *in) {
    const int64_t cols = model->parameters[index].cols, first = first_row * cols, n = rows * cols;
    write_floats(model, index, WEIGHT, first, n, in);
    if (has_slot(model, index, SLOT_MASTER)) write_floats(model, index, SLOT_MASTER, first, n, in);
    model_weights_changed(model);
    if (!has_slot(model, index, SLOT_COMPENSATION)) return;
    float *compensation = make_floats(n);
    read_floats(model, index, WEIGHT, first, n, compensation);
    for (int64_t i = 0; i < n; i++) compensation[i] = in[i] - compensation[i];
    write_floats(model, index, SLOT_COMPENSATION, first, n, compensation);
    free(compensation);
}

void model_set_compensation(Model *model, int index, int64_t first_row, int64_t rows, const void *in) {
    const DType dtype = value_tensor(model, index, SLOT_COMPENSATION).dtype;
    const int64_t cols = model->parameters[index].cols, size = (int64_t)dtype_size(dtype);
    const Range own = model_state_range(model, index, SLOT_COMPENSATION, model->options.rank);
    const int64_t begin = max_i64(first_row * cols, own.begin / size);
    const int64_t n = min_i64((first_row + rows) * cols, own.end / size) - begin;
    if (n <= 0) return;
    const char *from = (const char *)in + (begin - first_row * cols) * size;
    float *values = make_floats(n), *taken = make_floats(n);
    get_values(model, index, begin, n, values);
    convert_elements(taken, DTYPE_FP32, from, dtype, n);
    for (int64_t k = 0; k < n; k++) values[k] -= taken[k];
    write_floats(model, index, WEIGHT, begin, n, values);
    write_elements(model, index, SLOT_COMPENSATION, begin, n, from);
    model_weights_changed(model);
    free(values);
    free(taken);
}
