// See ceilings.h. The search begins with cubes, then stretches and shrinks one side after the other of the best shape
// for as long as that gains. Data are normal random numbers: a product of zeros switches no transistors, takes less
// power and may run at clocks that no training step sees, so its rate is shown beside the other, and never kept.
#include "llmc/run/ceilings.h"

#include "llmc/base/arithmetic.h"
#include "llmc/cuda/tuning.h"
#include "llmc/device.h"
#include "llmc/ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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

static bool bench_open(Bench *b, const MatmulShape *shapes, int count, DType dtype, bool random, Error *err) {
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
        ok = (b->operands[i] = device_alloc(bytes, err)) && (!random || fill_random(b->operands[i], dtype, bytes, err));
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

static double flops_of(const MatmulShape *s) { return 2.0 * (double)s->M * (double)s->N * (double)s->K; }

enum { MAX_ROUNDS = 64 };

// ----------------------------------------------------------------------------------------------------------- one dtype

enum { SMALLEST_SIDE = 128, LARGEST_SIDE = 16384, SIDES = 3 };
// A product longer than this only takes time; the search spends SHAPE_SECONDS on each shape, and the winner is timed
// anew.
static const double LONGEST_PRODUCT = 0.05, SHAPE_SECONDS = 0.05, WINNER_SECONDS = 1.0;

typedef struct {
    DType dtype;
    double rate; // of the best so far
    MatmulShape best;
    int shapes;
} Search;

// Whether this shape is faster than the best so far, which it then is. By the least of at least three rounds, after one
// that makes plans: the search asks what can be reached, and whatever else the machine does must not choose the shape.
static bool try_shape(Search *s, MatmulShape shape, bool *better, Error *err) {
    const int64_t M = shape.M, N = shape.N, K = shape.K;
    const double bytes = (double)(M * N + M * K + N * K) * (double)dtype_size(s->dtype);
    double least = INFINITY, spent = 0;
    Bench b;
    *better = false;
    if (min_i64(M, min_i64(N, K)) < SMALLEST_SIDE || max_i64(M, max_i64(N, K)) > LARGEST_SIDE ||
        bytes > (double)device_facts()->memory_free / 8 ||
        (s->rate > 0 && flops_of(&shape) > LONGEST_PRODUCT * s->rate))
        return true;
    if (!bench_open(&b, &shape, 1, s->dtype, true, err)) return false;
    seconds_of(&b, &shape, FORWARD);
    for (int round = 0; round < MAX_ROUNDS && (round < 3 || spent < SHAPE_SECONDS); round++) {
        const double seconds = seconds_of(&b, &shape, FORWARD);
        least = fmin(least, seconds), spent += seconds;
    }
    bench_close(&b);
    s->shapes++;
    *better = flops_of(&shape) / least > s->rate;
    if (*better) s->rate = flops_of(&shape) / least, s->best = shape;
    return true;
}

static bool search(Search *s, Error *err) {
    static const double STEPS[] = {2, 0.5, 1.5, 0.75};
    enum { NUM_CHANGES = SIDES * sizeof STEPS / sizeof *STEPS, MOST_SHAPES = 60 };
    bool better;
    for (int64_t side = SMALLEST_SIDE; side <= LARGEST_SIDE; side *= 2)
        if (!try_shape(s, (MatmulShape){side, side, side, false}, &better, err)) return false;
    for (int i = 0, failed = 0; failed < NUM_CHANGES && s->shapes < MOST_SHAPES; i = (i + 1) % NUM_CHANGES) {
        MatmulShape shape = s->best;
        int64_t *side = i % SIDES == 0 ? &shape.M : i % SIDES == 1 ? &shape.N : &shape.K;
        *side = (int64_t)((double)*side * STEPS[i / SIDES]) / 64 * 64;
        if (!try_shape(s, shape, &better, err)) return false;
        failed = better ? 0 : failed + 1;
    }
    return true;
}

// The best shape once more, on random numbers and on zeros (memory as it comes) in turn.
static bool time_winner(const Search *s, Ceiling *c, Error *err) {
    Bench random, zero;
    double seconds[2][MAX_ROUNDS], spent = 0;
    int rounds = -1; // the first makes plans
    if (!bench_open(&random, &s->best, 1, s->dtype, true, err)) return false;
    if (!bench_open(&zero, &s->best, 1, s->dtype, false, err)) return bench_close(&random), false;
    for (; rounds < MAX_ROUNDS && (rounds < 5 || spent < WINNER_SECONDS); rounds++)
        for (int i = 0; i < 2; i++) {
            const double t = seconds_of(i ? &zero : &random, &s->best, FORWARD);
            if (rounds >= 0) seconds[i][rounds] = t, spent += t;
        }
    bench_close(&random), bench_close(&zero);
    *c = (Ceiling){.M = s->best.M, .N = s->best.N, .K = s->best.K};
    c->search_flops = flops_of(&s->best) / median_of(seconds[0], rounds);
    c->zero_gain = median_of(seconds[0], rounds) / median_of(seconds[1], rounds) - 1;
    return true;
}

static bool measure_dtype(DType dtype, Ceiling *c, int *shapes, Error *err) {
    Search s = {.dtype = dtype};
    DeviceSpeed plain;
    if (!search(&s, err) || !time_winner(&s, c, err) || !device_measure_speed(dtype, (size_t)1 << 30, &plain, err))
        return false;
    *shapes = s.shapes;
    c->copy_bandwidth = plain.copy_bandwidth;
    c->plain_flops = plain.matmul_flops;
    return true;
}

// ------------------------------------------------------------------------------------------------------------ the file

static void key_of(char key[TUNING_KEY_MAX], DType dtype, bool tf32) {
    const DeviceFacts *f = device_facts();
    snprintf(key, TUNING_KEY_MAX, "ceiling, %s, %s, %s%s", f->name, f->libraries, dtype_name(dtype),
             dtype == DTYPE_FP32 && !tf32 ? " without TF32" : "");
}

double ceiling_flops(const Ceiling *c) { return fmax(c->search_flops, c->plain_flops); }

bool ceiling_find(DType dtype, bool tf32, Ceiling *c) {
    static const double MOST = 1e18; // no device is so fast: the file is damaged
    char key[TUNING_KEY_MAX];
    key_of(key, dtype, tf32);
    return tuning_cache_look(key, c, sizeof *c) && ceiling_flops(c) > 0 && ceiling_flops(c) < MOST &&
           c->copy_bandwidth > 0 && c->copy_bandwidth < MOST;
}

static bool keep(DType dtype, bool tf32, const Ceiling *c) {
    char key[TUNING_KEY_MAX];
    Ceiling again;
    key_of(key, dtype, tf32);
    tuning_cache_put(key, c, sizeof *c);
    tuning_cache_close();
    return ceiling_find(dtype, tf32, &again);
}

bool ceilings_measure(FILE *out, const Options *o, Error *err) {
    static const DType dtypes[] = {DTYPE_BF16, DTYPE_FP16, DTYPE_FP32};
    const DeviceFacts *f = device_facts();
    bool kept = true;
    if (o->dtype != DTYPE_COUNT && !f->supports[o->dtype])
        return error_set(err, "--dtype %s: not available on %s; use %s", dtype_name(o->dtype), f->name,
                         dtype_name(f->default_dtype));
    fprintf(out, "ceilings    %s | %s\n", f->name, f->libraries);
    for (int i = 0; i < 3; i++) {
        const DType dtype = dtypes[i];
        Ceiling c;
        int shapes;
        if (!f->supports[dtype] || (o->dtype != DTYPE_COUNT && o->dtype != dtype)) continue;
        if (!measure_dtype(dtype, &c, &shapes, err)) return false;
        const double highest = ceiling_flops(&c);
        fprintf(
            out,
            "ceilings    %s matmul %.4g TFLOP/s at M=%lld N=%lld K=%lld, the best of %d shapes, and %.4g in a plain "
            "product of the library, on random numbers",
            dtype_name(dtype), c.search_flops / 1e12, (long long)c.M, (long long)c.N, (long long)c.K, shapes,
            c.plain_flops / 1e12);
        if (f->peak_flops[dtype] > 0)
            fprintf(out, "; %.1f%% of the datasheet's %.4g", 100 * highest / f->peak_flops[dtype],
                    f->peak_flops[dtype] / 1e12);
        fprintf(out, "\nceilings    %s %+.1f%% in the best shape on zeros: not what training sees, and not kept\n",
                dtype_name(dtype), 100 * c.zero_gain);
        fprintf(out, "ceilings    copy %.4g GB/s, read and written", c.copy_bandwidth / 1e9);
        if (f->peak_bandwidth > 0)
            fprintf(out, "; %.1f%% of the datasheet's %.4g", 100 * c.copy_bandwidth / f->peak_bandwidth,
                    f->peak_bandwidth / 1e9);
        fprintf(out, "\n");
        fflush(out);
        kept = keep(dtype, o->tf32 != 0, &c) && kept;
    }
    fprintf(out, kept ? "ceilings    kept: --mfu-base measured counts against them\n"
                      : "ceilings    not kept: the file of choices cannot be written (PRETRAIN_CACHE)\n");
    return true;
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
    const bool ok = bench_open(&b, shapes, count * FEED_FORWARD_MATMULS, dtype, true, err);
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
