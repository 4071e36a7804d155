// Bytes and values of a model's tensors to and from the host. They pass through one staging buffer,
// so that host memory stays small whatever the model.
#include "llmc/model/model_state.h"

#include "llmc/base/arithmetic.h"
#include "llmc/model/model_object.h"

#include <stdlib.h>
#include <string.h>

// ---------------------------------------------------------------------- bytes to and from the host

static bool is_host_state(const Model *model, Tensor t) {
    const char *data = t.data;
    return model->host_state && data >= model->host_state &&
           data < model->host_state + model->layout.host_bytes;
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

// --------------------------------------------------------------------------- the optimizer's state

Range model_state_range(const Model *model, int index, StateSlot slot, int process) {
    const Parameter *p = &model->parameters[index];
    UpdateTensor whole = model->tensors[index];
    const Tensor t = *state_slot_tensor(&whole, slot);
    const Range own = model_own_range(&model->options, model->layout.partition, p, index, process);
    if (range_size(own) == 0 || t.rank == 0) return (Range){0, 0};

    const int64_t size = (int64_t)dtype_size(t.dtype);
    if (range_size(own) == parameter_numel(p)) return (Range){0, (int64_t)tensor_bytes(t)};
    const bool is_scale = slot == SLOT_M_SCALE || slot == SLOT_V_SCALE;
    if (is_scale)
        return (Range){own.begin / STATE_BLOCK * size, ceil_div(own.end, STATE_BLOCK) * size};
    return (Range){own.begin * size, own.end * size};
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

bool model_read_state(const Model *model, int index, StateSlot slot, int64_t first, int64_t n,
                      void *out) {
    const Range own = model_state_range(model, index, slot, model->options.rank);
    if (first >= own.begin && first + n <= own.end) {
        model_read_bytes(model, own_state(model, index, slot), first - own.begin, n, out);
        return true;
    }

    REQUIRE(model->reader, "the %s of %s belongs to another process", state_slot_name(slot),
            model->parameters[index].name);
    return model->reader(model->reader_context, index, slot, first, n, out);
}

void model_write_state(Model *model, int index, StateSlot slot, int64_t first, int64_t n,
                       const void *in) {
    const Range own = model_state_range(model, index, slot, model->options.rank);
    const int64_t begin = max_i64(first, own.begin), end = min_i64(first + n, own.end);

    if (begin >= end) return;
    model_write_bytes(model, own_state(model, index, slot), begin - own.begin, end - begin,
                      (const char *)in + (begin - first));
}

// ------------------------------------------------------------------------------- values of weights

// Elements [first, first + n) as fp32 of a slot, or with slot WEIGHT of the weight itself; 16-bit
// tensors are converted piece by piece through a buffer.
enum { PIECE = 1 << 17, WEIGHT = -1 };

static Tensor value_tensor(const Model *model, int index, int slot) {
    UpdateTensor t = model->tensors[index];
    if (slot == WEIGHT) return t.weight;
    return *state_slot_tensor(&t, (StateSlot)slot);
}

static bool read_elements(const Model *model, int index, int slot, int64_t first, int64_t n,
                          void *out) {
    const int64_t size = (int64_t)dtype_size(value_tensor(model, index, slot).dtype);
    if (slot != WEIGHT)
        return model_read_state(model, index, (StateSlot)slot, first * size, n * size, out);
    model_read_bytes(model, model->tensors[index].weight, first * size, n * size, out);
    return true;
}

static void write_elements(Model *model, int index, int slot, int64_t first, int64_t n,
                           const void *in) {
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

static bool read_floats(const Model *model, int index, int slot, int64_t first, int64_t n,
                        float *out) {
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

static void write_floats(Model *model, int index, int slot, int64_t first, int64_t n,
                         const float *in) {
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
    const int slot = has_slot(model, index, SLOT_MASTER) ? SLOT_MASTER : WEIGHT;
    if (!read_floats(model, index, slot, first, n, out)) return false;
    if (!has_slot(model, index, SLOT_COMPENSATION)) return true;

    float *compensation = make_floats(n);
    const bool ok = read_floats(model, index, SLOT_COMPENSATION, first, n, compensation);
    for (int64_t i = 0; ok && i < n; i++) out[i] += compensation[i];
    free(compensation);
    return ok;
}

bool model_get_weight(const Model *model, int index, int64_t first_row, int64_t rows, float *out,
                      Error *err) {
    const int64_t cols = model->parameters[index].cols;
    if (model->weight_reader)
        return model->weight_reader(model->weight_reader_context, index, first_row, rows, out, err);
    if (!get_values(model, index, first_row * cols, rows * cols, out))
        return error_set(err, "the state of another process cannot be read");
    return true;
}

void model_set_weight_reader(Model *model, WeightReader *reader, void *context) {
    model->weight_reader = reader;
    model->weight_reader_context = context;
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

void model_set_compensation(Model *model, int index, int64_t first_row, int64_t rows,
                            const void *in) {
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

// ------------------------------------------------------------------------ the decision of the step

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
