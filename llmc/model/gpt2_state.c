// Weights and optimizer state between device and host: initial values, checkpoints, import. Everything passes through
// one staging buffer, so that host memory stays small whatever the model.
#include "llmc/model/gpt2_internal.h"
#include "llmc/model/gpt2_linear.h"

#include "llmc/base/checked.h"
#include <stdlib.h>
#include <string.h>

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
        device_copy_to_host(model->staging, from + done, (size_t)count, STREAM_COMPUTE);
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
        device_copy_to_device(to + done, model->staging, (size_t)count, STREAM_COMPUTE);
        device_sync();
    }
}

// Elements [first, first + n) of a floating tensor as fp32; those of 16 bits piece by piece through a buffer.
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
    if (!t->lost.data) return;
    float *lost = calloc((size_t)n, sizeof *lost);
    REQUIRE_MEMORY(lost, "the rows of a weight");
    read_floats(model, t->lost, first, n, lost);
    for (int64_t i = 0; i < n; i++) out[i] += lost[i];
    free(lost);
}

static void set_values(Gpt2 *model, int index, int64_t first, int64_t n, const float *in) {
    const UpdateTensor *t = &model->tensors[index];
    write_floats(model, t->weight, first, n, in);
    if (t->master.data) write_floats(model, t->master, first, n, in);
    gpt2_weights_changed(model);
    if (!t->lost.data) return;
    float *lost = calloc((size_t)n, sizeof *lost);
    REQUIRE_MEMORY(lost, "the rows of a weight");
    read_floats(model, t->weight, first, n, lost);
    for (int64_t i = 0; i < n; i++) lost[i] = in[i] - lost[i];
    write_floats(model, t->lost, first, n, lost);
    free(lost);
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
    device_copy_to_host(model->staging, gpt2_control(model).data, sizeof control, STREAM_COMPUTE);
    device_sync();
    memcpy(&control, model->staging, sizeof control);
    return control;
}

void gpt2_set_control(Gpt2 *model, const StepControl *control) {
    memcpy(model->staging, control, sizeof *control);
    device_copy_to_device(gpt2_control(model).data, model->staging, sizeof *control, STREAM_COMPUTE);
    device_sync();
}

void gpt2_abandon_step(Gpt2 *model, const StepControl *last) {
    linear_abandon_step(model);
    gpt2_set_control(model, last); // its number of micro-steps
}
