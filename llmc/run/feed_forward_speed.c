// See feed_forward_speed.h. Data are normal random numbers: a product of zeros switches no transistors, takes less
// power and may run at clocks that no training step sees.
#include "llmc/run/feed_forward_speed.h"

#include "llmc/base/arithmetic.h"
#include "llmc/device.h"
#include "llmc/ops.h"

#include <stdlib.h>

// ---------------------------------------------------------------------------------------------------------- one matmul

typedef enum { FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, PASSES } Pass; // as feed_forward_matmuls has them in turn

// Two operands, a result, and the workspace of the ops; large enough for each of the shapes it was opened for.
typedef struct {
    DType dtype;
    char *operands[2], *result, *workspace;
    DeviceEvent *start, *stop;
} Bench;

static void bench_close(Bench *b) {
    char *const memory[] = {b->operands[0], b->operands[1], b->result, b->workspace};
    ops_set_workspace(NULL, 0);
    for (int i = 0; i < 4; i++)
        if (memory[i]) device_free(memory[i]);
    if (b->start) device_event_destroy(b->start);
    if (b->stop) device_event_destroy(b->stop);
}

// Random numbers repeat after BLOCK: what a chip sees of a row does not depend on the others.
static bool fill_random(char *data, DType dtype, size_t bytes, Error *err) {
    enum { BLOCK = 1 << 16 };
    const size_t size = dtype_size(dtype), block = BLOCK * size;
    char *host = host_alloc(block, err);
    if (!host) return false;
    for (int64_t i = 0; i < BLOCK; i += 2) {
        float pair[2];
        const Philox bits = philox(1, STREAM_INIT, (uint64_t)i);
        philox_normal2(bits.v[0], bits.v[1], pair);
        convert_elements(host + (size_t)i * size, dtype, pair, DTYPE_FP32, 2);
    }
    for (size_t at = 0; at < bytes; at += block)
        copy_h2d(data + at, host, bytes - at < block ? bytes - at : block, STREAM_COMPUTE);
    device_sync();
    host_free(host);
    return true;
}

static bool bench_open(Bench *b, const MatmulShape *shapes, int count, DType dtype, Error *err) {
    int64_t operands[2] = {0, 0}, result = 0, rows = 0, widest = 0;
    for (int i = 0; i < count; i++) {
        const MatmulShape *s = &shapes[i];
        operands[0] = max_i64(operands[0], s->M * s->K), operands[1] = max_i64(operands[1], s->N * s->K);
        result = max_i64(result, s->M * s->N);
        rows = max_i64(rows, s->sums_tokens ? s->K : s->M);
        widest = max_i64(widest, max_i64(s->N, s->sums_tokens ? s->M : s->K));
    }
    // There is no attention: heads of a size for which no library is asked for kernels.
    const int64_t C = round_up(ceil_div(widest, 4), 64) + 4;
    const OpsShape shape = {.B = rows, .T = 1, .C = C, .NH = 1, .Vp = 128, .num_tensors = 1, .dtype = dtype};
    const int64_t workspace = ops_workspace_bytes(shape);
    *b = (Bench){.dtype = dtype};
    bool ok = (b->workspace = device_alloc((size_t)workspace, err)) && (b->start = device_event_create(err)) &&
              (b->stop = device_event_create(err)) &&
              (b->result = device_alloc((size_t)result * dtype_size(DTYPE_FP32), err));
    for (int i = 0; ok && i < 2; i++) {
        const size_t bytes = (size_t)operands[i] * dtype_size(dtype);
        ok = (b->operands[i] = device_alloc(bytes, err)) && fill_random(b->operands[i], dtype, bytes, err);
    }
    if (ok) return ops_set_workspace(b->workspace, workspace), true;
    bench_close(b);
    return false;
}

static double seconds_of(const Bench *b, const MatmulShape *s, Pass pass) {
    const bool sums = pass == WEIGHT_GRADIENT, input = pass == INPUT_GRADIENT;
    const Tensor out = tensor_make(b->result, sums ? DTYPE_FP32 : b->dtype, "out", s->M, s->N, 0, 0);
    const Tensor left = tensor_make(b->operands[0], b->dtype, "left", sums ? s->K : s->M, sums ? s->M : s->K, 0, 0);
    const Tensor right =
        tensor_make(b->operands[1], b->dtype, "right", sums || input ? s->K : s->N, sums || input ? s->N : s->K, 0, 0);
    device_event_record(b->start, STREAM_COMPUTE);
    if (pass == FORWARD)
        matmul_forward(out, left, right, tensor_none());
    else if (pass == INPUT_GRADIENT)
        matmul_backward_input(out, left, right);
    else
        matmul_backward_weight(out, tensor_none(), left, right, false);
    device_event_record(b->stop, STREAM_COMPUTE);
    device_event_wait(b->stop);
    return device_event_seconds(b->start, b->stop);
}

// -------------------------------------------------------------------------------------------------------------- layers

bool measure_feed_forward(const FeedForward *layers, int count, DType dtype, double *rates, double *const halves[2],
                          Error *err) {
    static const double BUDGET = 20; // seconds
    enum { ROUNDS = 24 };
    double(*seconds)[ROUNDS] = calloc((size_t)count, sizeof *seconds), spent = 0;
    MatmulShape *shapes = calloc((size_t)count * FEED_FORWARD_MATMULS, sizeof *shapes);
    int rounds = -1; // the first makes plans
    Bench b;
    REQUIRE_MEMORY(seconds && shapes, "times");
    for (int i = 0; i < count; i++) feed_forward_matmuls(&layers[i], shapes + i * FEED_FORWARD_MATMULS);
    const bool ok = bench_open(&b, shapes, count * FEED_FORWARD_MATMULS, dtype, err);
    for (; ok && rounds < ROUNDS && (rounds < 4 || spent < BUDGET); rounds++)
        for (int i = 0; i < count * FEED_FORWARD_MATMULS; i++) {
            const double t = seconds_of(&b, &shapes[i], (Pass)(i % PASSES));
            if (rounds >= 0) seconds[i / FEED_FORWARD_MATMULS][rounds] += t, spent += t;
        }
    if (ok) bench_close(&b);
    for (int i = 0; ok && i < count; i++) {
        double half[2][ROUNDS];
        const double flops = feed_forward_flops(&layers[i]);
        for (int r = 0; r < rounds; r++) half[r % 2][r / 2] = seconds[i][r];
        halves[0][i] = flops / median_of(half[0], (rounds + 1) / 2);
        halves[1][i] = flops / median_of(half[1], rounds / 2);
        rates[i] = flops / median_of(seconds[i], rounds);
    }
    free(seconds), free(shapes);
    return ok;
}
