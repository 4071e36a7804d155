// See speed.h. Keeps nothing: buffers of a measurement are freed when it returns.
#include "llmc/speed.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/random.h"
#include "llmc/device.h"
#include "llmc/ops.h"

#include <string.h>

// Rounds: at least MIN_ROUNDS, then until the time is used up. The first one loads code and is not
// counted.
enum { MIN_ROUNDS = 3, MAX_ROUNDS = 200 };

typedef struct {
    Tensor out, in, weight; // a matmul; without weight a copy
} SpeedWork;

// backend_ops: an observer of ops sees no measurement.
static double one_round(const SpeedWork *w, DeviceEvent *start, DeviceEvent *stop) {
    device_event_record(start, STREAM_COMPUTE);
    if (w->weight.data)
        backend_ops()->matmul_forward(w->out, w->in, w->weight, tensor_none());
    else
        device_copy(w->out.data, w->in.data, tensor_bytes(w->in));
    device_event_record(stop, STREAM_COMPUTE);
    device_event_wait(stop);
    return device_event_seconds(start, stop);
}

// The median over `budget` seconds of rounds; if the first alone takes several budgets, its
// seconds.
static double median_seconds(const SpeedWork *w, double budget) {
    double seconds[MAX_ROUNDS], spent = 0;
    int rounds = 0;
    Error err;
    DeviceEvent *start = device_event_create(&err), *stop = device_event_create(&err);
    REQUIRE_MEMORY(start && stop, "events");
    seconds[0] = one_round(w, start, stop);
    if (seconds[0] > 4 * budget) rounds = 1;
    while (seconds[0] <= 4 * budget && rounds < MAX_ROUNDS &&
           (rounds < MIN_ROUNDS || spent < budget)) {
        seconds[rounds] = one_round(w, start, stop);
        spent += seconds[rounds++];
    }
    device_event_destroy(start);
    device_event_destroy(stop);
    return median_of(seconds, rounds);
}

// Fills device memory with standard normal numbers, a block of them over and over: what a chip sees
// of a row does not depend on the others. A product of zeros switches no transistors, draws half
// the power and runs at clocks that no training step sees.
static bool speed_fill_random(void *device, DType dtype, int64_t numel, Error *err) {
    enum { BLOCK = 1 << 16 };
    const int64_t size = (int64_t)dtype_size(dtype), block = min_i64(numel, BLOCK);
    char *host = host_alloc((size_t)(round_up(block, 2) * size), err), *data = device;
    if (!host) return false;
    for (int64_t i = 0; i < block; i += 2) {
        float pair[2];
        const Philox bits = philox(1, STREAM_INIT, (uint64_t)i);
        philox_normal2(bits.v[0], bits.v[1], pair);
        convert_elements(host + i * size, dtype, pair, DTYPE_FP32, 2);
    }
    copy_h2d(data, host, (size_t)(block * size), STREAM_COMPUTE);
    for (int64_t done = block; done < numel; done *= 2)
        device_copy(data + done * size, data, (size_t)(min_i64(done, numel - done) * size));
    device_sync();
    host_free(host);
    return true;
}

// ------------------------------------------------------------------------------------------ matmul

typedef struct {
    int64_t M, N, K;
} SpeedShape;

// The smallest that takes MIN_SECONDS, so that launches do not count: the first on the simulator,
// the second on the CPU (one library call, hot operands), the last on an H200 (1.4 ms in bf16).
static const SpeedShape SHAPES[] = {
    {128, 128, 128}, {1024, 1536, 768}, {2048, 2048, 2048}, {8192, 8192, 8192}};
enum { NUM_SHAPES = sizeof SHAPES / sizeof *SHAPES };
static const double MIN_SECONDS = 0.5e-3, MATMUL_SECONDS = 0.15, COPY_SECONDS = 0.07;

// One shape, quickly; with care if it takes long enough, or if it is the last one. A matmul of this
// size needs no more workspace than one of a model that is as wide. Where a model has set its
// workspace, that serves.
static bool measure_shape(const SpeedShape *s, DType dtype, bool last, double *seconds,
                          Error *err) {
    const int64_t size = (int64_t)dtype_size(dtype), in = s->M * s->K, weight = s->N * s->K;
    const bool lent = ops_workspace_is_set();
    // There is no attention: heads of a size for which no library is asked for kernels.
    const OpsShape shape = {.B = s->M,
                            .T = 1,
                            .C = s->K / 4 + 4,
                            .NH = 1,
                            .Vp = 128,
                            .widest = s->N,
                            .forward_only = true,
                            .dtype = dtype};
    const int64_t workspace = lent ? 0 : ops_workspace_bytes(shape);
    char *memory = device_alloc((size_t)((in + weight + s->M * s->N) * size + workspace), err),
         *at = memory + workspace;
    if (!memory) return false;
    if (!lent) ops_set_workspace(memory, workspace);
    const SpeedWork work = {
        .in = tensor_make(at, dtype, "in", s->M, s->K, 0, 0),
        .weight = tensor_make(at + in * size, dtype, "weight", s->N, s->K, 0, 0),
        .out = tensor_make(at + (in + weight) * size, dtype, "out", s->M, s->N, 0, 0)};
    const bool ok = speed_fill_random(at, dtype, in + weight, err);
    if (ok) *seconds = median_seconds(&work, 0);
    if (ok && (last || *seconds >= MIN_SECONDS)) *seconds = median_seconds(&work, MATMUL_SECONDS);
    if (!lent) ops_set_workspace(NULL, 0);
    device_free(memory);
    return ok;
}

// Memory that is short ends the search at the shape before.
static bool measure_matmul(DType dtype, size_t limit, double *flops, Error *err) {
    double seconds = 0;
    *flops = 0;
    for (int i = 0; i < NUM_SHAPES && seconds < MIN_SECONDS; i++) {
        const SpeedShape *s = &SHAPES[i], *next = s + 1;
        const bool last =
            i + 1 == NUM_SHAPES || (size_t)(3 * next->M * next->N) * dtype_size(dtype) > limit;
        if (!measure_shape(s, dtype, last, &seconds, err)) break;
        *flops = 2.0 * (double)s->M * (double)s->N * (double)s->K / seconds;
        if (last) break;
    }
    return *flops > 0;
}

// -------------------------------------------------------------------------------------------- copy

// At least twice the caches, so four times them passes through; then larger, as long as there is
// memory, until a copy takes COPY_ROUND: that moves 30 times what the L2 cache of an H200 holds,
// and no round lives on what the last one left.
enum { SMALLEST_COPY = 4 << 20 };
static const double COPY_ROUND = 0.4e-3;

static bool measure_copy(size_t limit, double *bandwidth, Error *err) {
    size_t bytes = 2 * device_facts()->cache_bytes;
    if (bytes > limit / 2) bytes = limit / 2;
    if (bytes < SMALLEST_COPY) bytes = SMALLEST_COPY;
    for (bool last = false; !last; bytes *= 4) {
        char *memory = device_alloc(2 * bytes, err);
        if (!memory) return false;
        const int64_t numel = (int64_t)bytes;
        const SpeedWork work = {
            .out = tensor_make(memory, DTYPE_U8, "copy", numel, 0, 0, 0),
            .in = tensor_make(memory + bytes, DTYPE_U8, "source", numel, 0, 0, 0)};
        double seconds = median_seconds(&work, 0);
        last = seconds >= COPY_ROUND || 8 * bytes > limit;
        if (last) seconds = median_seconds(&work, COPY_SECONDS);
        *bandwidth = 2.0 * (double)bytes / seconds;
        device_free(memory);
    }
    return true;
}

bool speed_measure(DType dtype, size_t memory, DeviceSpeed *speed, Error *err) {
    enum { LEAST = 32 << 20 };
    const DeviceFacts *facts = device_facts();
    size_t limit = facts->memory_free / 4;
    if (strcmp(facts->backend, "cpu") == 0) limit = max_size(memory, LEAST);
    if (!facts->supports[dtype])
        return error_set(err, "%s: %s does not compute in it", dtype_name(dtype), facts->name);
    const size_t peak = device_memory_peak();
    const bool ok = measure_matmul(dtype, limit, &speed->matmul_flops, err) &&
                    measure_copy(limit, &speed->copy_bandwidth, err);
    device_memory_peak_restore(peak);
    return ok;
}
