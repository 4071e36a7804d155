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

// ------------------------------------------------------------------------------------------------------------- buffers

// Random numbers repeat after so many: what a chip sees of a row does not depend on the others.
enum { BLOCK = 1 << 16, MAX_ROUNDS = 64 };

static bool fill_random(Tensor t, Error *err) {
    const size_t size = dtype_size(t.dtype), total = tensor_bytes(t);
    char *host = host_alloc(BLOCK * size, err);
    if (!host) return false;
    for (int64_t i = 0; i < BLOCK; i += 2) {
        float pair[2];
        const Philox bits = philox(1, STREAM_INIT, (uint64_t)i);
        philox_normal2(bits.v[0], bits.v[1], pair);
        convert_elements(host + (size_t)i * size, t.dtype, pair, DTYPE_FP32, 2);
    }
    for (size_t at = 0; at < total; at += BLOCK * size)
        copy_h2d((char *)t.data + at, host, total - at < BLOCK * size ? total - at : BLOCK * size, STREAM_COMPUTE);
    device_sync();
    host_free(host);
    return true;
}

// Device memory that tensors are cut from, and the workspace of the ops.
typedef struct {
    char *memory, *workspace;
    size_t used, operands; // bytes; the second of a layer, before its results
} Bench;

static void bench_close(Bench *b) {
    ops_set_workspace(NULL, 0);
    device_free(b->memory);
    device_free(b->workspace);
}

// bytes: of all tensors. rows, widest: the most rows of tokens, and columns, of a matmul. There is no attention: heads
// of a size for which no library is asked for kernels.
static bool bench_open(Bench *b, size_t bytes, int64_t rows, int64_t widest, DType dtype, Error *err) {
    const OpsShape shape = {.B = rows,
                            .T = 1,
                            .C = round_up(ceil_div(widest, 4), 64) + 4,
                            .NH = 1,
                            .Vp = 128,
                            .num_tensors = 1,
                            .dtype = dtype};
    const int64_t workspace = ops_workspace_bytes(shape);
    *b = (Bench){.memory = device_alloc(bytes, err)};
    b->workspace = b->memory ? device_alloc((size_t)workspace, err) : NULL;
    if (b->workspace) return ops_set_workspace(b->workspace, workspace), true;
    device_free(b->memory);
    return false;
}

static Tensor cut(Bench *b, DType dtype, const char *name, int64_t rows, int64_t cols) {
    const Tensor t = tensor_make(b->memory ? b->memory + b->used : NULL, dtype, name, rows, cols, 0, 0);
    b->used += (tensor_bytes(t) + 255) / 256 * 256;
    return t;
}

static size_t bytes_of(DType dtype, int64_t rows, int64_t cols) {
    return ((size_t)(rows * cols) * dtype_size(dtype) + 255) / 256 * 256;
}

// -------------------------------------------------------------------------------------------------------------- timing

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, int n) {
    qsort(x, (size_t)n, sizeof *x, by_value);
    return n % 2 ? x[n / 2] : 0.5 * (x[n / 2 - 1] + x[n / 2]);
}

typedef struct {
    DeviceEvent *start, *stop;
} Clock;

static double seconds_of(const Clock *c, void (*work)(void *), void *context) {
    device_event_record(c->start, STREAM_COMPUTE);
    work(context);
    device_event_record(c->stop, STREAM_COMPUTE);
    device_event_wait(c->stop);
    return device_event_seconds(c->start, c->stop);
}

static bool clock_open(Clock *c, Error *err) {
    c->start = device_event_create(err);
    c->stop = c->start ? device_event_create(err) : NULL;
    if (!c->stop && c->start) device_event_destroy(c->start);
    return c->stop != NULL;
}

static void clock_close(Clock *c) { device_event_destroy(c->start), device_event_destroy(c->stop); }

// The least of at least three rounds, after one that makes plans, and as many as `budget` seconds allow: the search
// asks what can be reached, and whatever else the machine does must not choose the shape.
static double least_seconds(const Clock *c, void (*work)(void *), void *context, double budget) {
    double least = INFINITY, spent = 0;
    seconds_of(c, work, context);
    for (int round = 0; round < MAX_ROUNDS && (round < 3 || spent < budget); round++) {
        const double seconds = seconds_of(c, work, context);
        least = fmin(least, seconds), spent += seconds;
    }
    return least;
}

// ------------------------------------------------------------------------------------------------------------ one
// dtype

typedef struct {
    Tensor out, in, weight;
} Product;

static void run_product(void *context) {
    const Product *p = context;
    matmul_forward(p->out, p->in, p->weight, tensor_none());
}

enum { SMALLEST_SIDE = 128, LARGEST_SIDE = 16384, SIDES = 3 };
// A product longer than this only takes time; the search spends SHAPE_SECONDS on each shape, and the winner is timed
// anew.
static const double LONGEST_PRODUCT = 0.05, SHAPE_SECONDS = 0.05, WINNER_SECONDS = 1.0;

typedef struct {
    DType dtype;
    Clock clock;
    double most_bytes, rate; // of the best so far
    int64_t best[SIDES];     // M, N, K
    int shapes;
} Search;

static double flops_of(const int64_t s[SIDES]) { return 2.0 * (double)s[0] * (double)s[1] * (double)s[2]; }

static size_t product_bytes(DType dtype, const int64_t s[SIDES]) {
    return bytes_of(dtype, s[0], s[1]) + bytes_of(dtype, s[0], s[2]) + bytes_of(dtype, s[1], s[2]);
}

static bool open_product(Bench *b, Product *p, DType dtype, const int64_t s[SIDES], Error *err) {
    if (!bench_open(b, product_bytes(dtype, s), s[0], s[1] > s[2] ? s[1] : s[2], dtype, err)) return false;
    *p = (Product){cut(b, dtype, "out", s[0], s[1]), cut(b, dtype, "in", s[0], s[2]),
                   cut(b, dtype, "weight", s[1], s[2])};
    if (fill_random(p->in, err) && fill_random(p->weight, err)) return true;
    bench_close(b);
    return false;
}

// Whether this shape is faster than the best so far, which it then is.
static bool try_shape(Search *s, const int64_t shape[SIDES], bool *better, Error *err) {
    Bench b;
    Product p;
    *better = false;
    for (int i = 0; i < SIDES; i++)
        if (shape[i] < SMALLEST_SIDE || shape[i] > LARGEST_SIDE) return true;
    if ((double)product_bytes(s->dtype, shape) > s->most_bytes) return true;
    if (s->rate > 0 && flops_of(shape) > LONGEST_PRODUCT * s->rate) return true;
    if (!open_product(&b, &p, s->dtype, shape, err)) return false;
    const double rate = flops_of(shape) / least_seconds(&s->clock, run_product, &p, SHAPE_SECONDS);
    bench_close(&b);
    s->shapes++;
    *better = rate > s->rate;
    if (*better) s->rate = rate, memcpy(s->best, shape, sizeof s->best);
    return true;
}

static bool search(Search *s, Error *err) {
    static const double STEPS[] = {2, 0.5, 1.5, 0.75};
    enum { NUM_STEPS = sizeof STEPS / sizeof *STEPS, MOST_SHAPES = 60 };
    bool better;
    for (int64_t side = SMALLEST_SIDE; side <= LARGEST_SIDE; side *= 2)
        if (!try_shape(s, (int64_t[SIDES]){side, side, side}, &better, err)) return false;
    if (!try_shape(s, (int64_t[SIDES]){1024, 3072, 768}, &better, err)) return false; // that of a plain measurement
    for (int i = 0, failed = 0; failed < SIDES * NUM_STEPS && s->shapes < MOST_SHAPES;
         i = (i + 1) % (SIDES * NUM_STEPS)) {
        int64_t shape[SIDES];
        memcpy(shape, s->best, sizeof shape);
        shape[i % SIDES] = (int64_t)((double)shape[i % SIDES] * STEPS[i / SIDES]) / 64 * 64;
        if (!try_shape(s, shape, &better, err)) return false;
        failed = better ? 0 : failed + 1;
    }
    return true;
}

// The best shape once more, on random numbers and on zeros in turn.
static bool time_winner(Search *s, Ceiling *c, Error *err) {
    Bench b;
    Product p;
    double seconds[2][MAX_ROUNDS], spent = 0;
    int rounds = 0;
    const int64_t zero_side[SIDES] = {s->best[0], s->best[1], 2 * s->best[2]}; // room for the operands twice
    if (!bench_open(&b, product_bytes(s->dtype, zero_side), s->best[0], max_i64(s->best[1], s->best[2]), s->dtype, err))
        return false;
    Product both[2];
    p.out = cut(&b, s->dtype, "out", s->best[0], s->best[1]);
    for (int i = 0; i < 2; i++)
        both[i] = (Product){p.out, cut(&b, s->dtype, "in", s->best[0], s->best[2]),
                            cut(&b, s->dtype, "weight", s->best[1], s->best[2])};
    const bool ok = fill_random(both[0].in, err) && fill_random(both[0].weight, err);
    for (int i = 0; ok && i < 2; i++)
        seconds_of(&s->clock, run_product, &both[i]); // memory of the others is 0 as it came
    while (ok && rounds < MAX_ROUNDS && (rounds < 5 || spent < WINNER_SECONDS)) {
        for (int i = 0; i < 2; i++) spent += seconds[i][rounds] = seconds_of(&s->clock, run_product, &both[i]);
        rounds++;
    }
    bench_close(&b);
    if (!ok) return false;
    c->matmul_flops = flops_of(s->best) / median(seconds[0], rounds);
    c->zero_gain = median(seconds[0], rounds) / median(seconds[1], rounds) - 1;
    c->M = s->best[0], c->N = s->best[1], c->K = s->best[2];
    return true;
}

// The library's plain product counts, too: nothing that a run measures at its start may be above its ceiling.
static bool measure_dtype(DType dtype, Ceiling *c, int *shapes, Error *err) {
    Search s = {.dtype = dtype, .most_bytes = (double)device_facts()->memory_free / 8};
    DeviceSpeed plain;
    memset(c, 0, sizeof *c);
    if (!clock_open(&s.clock, err)) return false;
    const bool ok =
        search(&s, err) && time_winner(&s, c, err) && device_measure_speed(dtype, (size_t)1 << 30, &plain, err);
    clock_close(&s.clock);
    if (!ok) return false;
    *shapes = s.shapes;
    c->copy_bandwidth = plain.copy_bandwidth;
    if (plain.matmul_flops > c->matmul_flops) c->matmul_flops = plain.matmul_flops, c->M = 0;
    return true;
}

// ------------------------------------------------------------------------------------------------------------- the
// file

static void key_of(char key[TUNING_KEY_MAX], DType dtype, bool tf32) {
    const DeviceFacts *f = device_facts();
    snprintf(key, TUNING_KEY_MAX, "ceiling, %s, %s, %s%s", f->name, f->libraries, dtype_name(dtype),
             dtype == DTYPE_FP32 && !tf32 ? " without TF32" : "");
}

bool ceiling_find(DType dtype, bool tf32, Ceiling *c) {
    static const double MOST = 1e18; // no device is so fast: the file is damaged
    char key[TUNING_KEY_MAX];
    key_of(key, dtype, tf32);
    return tuning_cache_look(key, c, sizeof *c) && c->matmul_flops > 0 && c->matmul_flops < MOST &&
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
        fprintf(out, "ceilings    %s matmul %.4g TFLOP/s ", dtype_name(dtype), c.matmul_flops / 1e12);
        if (c.M > 0)
            fprintf(out, "at M=%lld N=%lld K=%lld, the best of %d shapes, on random numbers", (long long)c.M,
                    (long long)c.N, (long long)c.K, shapes);
        else
            fprintf(out, "by the library alone, as at the start of a run; none of %d shapes was faster", shapes);
        if (f->peak_flops[dtype] > 0)
            fprintf(out, "; %.1f%% of the datasheet's %.4g", 100 * c.matmul_flops / f->peak_flops[dtype],
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

// ---------------------------------------------------------------------------------------------------------- layers

typedef struct {
    Tensor x, dx, up, dup, down, ddown, w_up, w_down, dw_up, dw_down;
} LayerTensors;

// The six matmuls. Values are whatever comes: random operands are made once, and results are not read.
static void run_layer(void *context) {
    const LayerTensors *t = context;
    const Tensor none = tensor_none();
    matmul_forward(t->up, t->x, t->w_up, none);
    matmul_forward(t->dx, t->down, t->w_down, none);
    matmul_backward_input(t->ddown, t->x, t->w_down);
    matmul_backward_weight(t->dw_down, none, t->x, t->down, false);
    matmul_backward_input(t->dx, t->dup, t->w_up);
    matmul_backward_weight(t->dw_up, none, t->dup, t->x, false);
}

// All layers use the same memory. Outputs have a part of their own, so that what one layer writes is not read by
// another. NULL memory: only counts.
static LayerTensors cut_layer(Bench *b, const FeedForward *f, DType dtype, size_t outputs) {
    const int64_t N = f->tokens, C = f->C, F = f->d_ff, up = F * (f->gated ? 2 : 1);
    LayerTensors t;
    b->used = 0;
    t.x = cut(b, dtype, "x", N, C), t.dup = cut(b, dtype, "dup", N, up), t.down = cut(b, dtype, "down", N, F);
    t.w_up = cut(b, dtype, "w_up", up, C), t.w_down = cut(b, dtype, "w_down", C, F);
    b->operands = b->used;
    if (outputs > 0) b->used = outputs;
    t.up = cut(b, dtype, "up", N, up), t.ddown = cut(b, dtype, "ddown", N, F), t.dx = cut(b, dtype, "dx", N, C);
    t.dw_up = cut(b, DTYPE_FP32, "dw_up", up, C), t.dw_down = cut(b, DTYPE_FP32, "dw_down", C, F);
    return t;
}

// The most that any layer needs for its operands, and for everything.
static size_t layer_bytes(const FeedForward *layers, int count, DType dtype, size_t *operands) {
    size_t results = 0;
    *operands = 0;
    for (int i = 0; i < count; i++) {
        Bench counter = {0};
        cut_layer(&counter, &layers[i], dtype, 0);
        if (counter.operands > *operands) *operands = counter.operands;
        if (counter.used - counter.operands > results) results = counter.used - counter.operands;
    }
    return *operands + results;
}

bool measure_feed_forward(const FeedForward *layers, int count, DType dtype, double *rates, double *const halves[2],
                          Error *err) {
    static const double BUDGET = 20; // seconds
    enum { ROUNDS = 24 };
    double(*seconds)[ROUNDS] = calloc((size_t)count, sizeof *seconds), spent = 0;
    size_t operands;
    const size_t bytes = layer_bytes(layers, count, dtype, &operands);
    int64_t widest = 0;
    int rounds = 0;
    Bench b;
    Clock clock;
    REQUIRE_MEMORY(seconds, "times");
    for (int i = 0; i < count; i++)
        widest = max_i64(widest, max_i64(layers[i].C, layers[i].d_ff * (layers[i].gated ? 2 : 1)));
    bool ok = clock_open(&clock, err);
    if (ok && !(ok = bench_open(&b, bytes, layers[0].tokens, widest, dtype, err))) clock_close(&clock);
    if (ok) {
        const Tensor all = tensor_make(b.memory, dtype, "operands", (int64_t)(operands / dtype_size(dtype)), 0, 0, 0);
        ok = fill_random(all, err);
        for (int round = -1; ok && round < ROUNDS && (round < 4 || spent < BUDGET); round++) // the first makes plans
            for (int i = 0; i < count; i++) {
                LayerTensors t = cut_layer(&b, &layers[i], dtype, operands);
                const double s = seconds_of(&clock, run_layer, &t);
                if (round >= 0) seconds[i][round] = s, spent += s, rounds = round + 1;
            }
        bench_close(&b);
        clock_close(&clock);
    }
    for (int i = 0; ok && i < count; i++) {
        double half[2][ROUNDS];
        const double flops = feed_forward_flops(&layers[i]);
        for (int r = 0; r < rounds; r++) half[r % 2][r / 2] = seconds[i][r];
        halves[0][i] = flops / median(half[0], (rounds + 1) / 2);
        halves[1][i] = flops / median(half[1], rounds / 2);
        rates[i] = flops / median(seconds[i], rounds);
    }
    free(seconds);
    return ok;
}
