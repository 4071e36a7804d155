// Weights and moments between device and host, in fp32 and row by row: initial values, checkpoints, import. Everything
// passes through one staging buffer, so that host memory stays small whatever the model.
#include "llmc/model/gpt2_internal.h"

#include <stdlib.h>
#include <string.h>

static Tensor state_tensor(const Gpt2 *model, int index, StateKind kind) {
    const AdamWTensor *t = &model->tensors[index];
    if (kind == STATE_M) return t->m;
    if (kind == STATE_V) return t->v;
    return t->master.data ? t->master : t->weight;
}

static void to_device(const Gpt2 *model, Tensor t, int64_t first, const float *in, int64_t n) {
    const int64_t size = (int64_t)dtype_size(t.dtype), chunk = STAGING_BYTES / size;
    for (int64_t done = 0; done < n; done += chunk) {
        int64_t count = n - done < chunk ? n - done : chunk;
        convert_elements(model->staging, t.dtype, in + done, DTYPE_FP32, count);
        device_copy_to_device((char *)t.data + (first + done) * size, model->staging, (size_t)(count * size),
                              STREAM_COMPUTE);
        device_sync();
    }
}

void gpt2_get_state(const Gpt2 *model, int index, StateKind kind, int64_t first_row, int64_t rows, float *out) {
    Tensor t = state_tensor(model, index, kind);
    const int64_t cols = model->parameters[index].cols, size = (int64_t)dtype_size(t.dtype);
    const int64_t first = first_row * cols, n = rows * cols, chunk = STAGING_BYTES / size;
    REQUIRE(first >= 0 && first + n <= tensor_numel(t), "rows beyond %s", t.name);
    for (int64_t done = 0; done < n; done += chunk) {
        int64_t count = n - done < chunk ? n - done : chunk;
        device_copy_to_host(model->staging, (char *)t.data + (first + done) * size, (size_t)(count * size),
                            STREAM_COMPUTE);
        device_sync();
        convert_elements(out + done, DTYPE_FP32, model->staging, t.dtype, count);
    }
}

void gpt2_set_state(Gpt2 *model, int index, StateKind kind, int64_t first_row, int64_t rows, const float *in) {
    Tensor t = state_tensor(model, index, kind);
    const int64_t cols = model->parameters[index].cols;
    REQUIRE(first_row >= 0 && first_row * cols + rows * cols <= tensor_numel(t), "rows beyond %s", t.name);
    to_device(model, t, first_row * cols, in, rows * cols);
    if (kind == STATE_WEIGHT && model->tensors[index].master.data)
        to_device(model, model->tensors[index].weight, first_row * cols, in, rows * cols);
}

void gpt2_init_weights(Gpt2 *model, uint64_t seed) {
    enum { CHUNK = 1 << 18 };
    float *values = malloc(CHUNK * sizeof *values);
    REQUIRE(values, "no memory for initial values");
    for (int i = 0; i < model->num_tensors; i++) {
        const AdamWTensor *t = &model->tensors[i];
        const int64_t n = parameter_numel(&model->parameters[i]);
        for (int64_t done = 0; done < n; done += CHUNK) {
            int64_t count = n - done < CHUNK ? n - done : CHUNK;
            parameter_init_values(values, &model->options.config, &model->parameters[i], i, seed, done, count);
            to_device(model, t->weight, done, values, count);
            if (t->master.data) to_device(model, t->master, done, values, count);
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
