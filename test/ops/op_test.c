// Tensors for op tests: allocation between guards, random values, transfer, comparison. See
// op_test.h. Owns everything between op_begin and op_end in one registry, so that a failed test
// leaks nothing.
#include "test/ops/op_test.h"

#include "llmc/base/random.h"
#include "llmc/device.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

enum { GUARD_BYTES = 256, MAX_ENTRIES = 64, MAX_SCRATCH = 64, FEW_VALUES = 256 };

typedef struct {
    OpTensor x;
    char *block;     // device: guard, data, guard
    void *bytes;     // host: the data as it was last uploaded
    bool may_change; // outputs
} Entry;

static struct {
    uint64_t seed, stream;
    Entry entries[MAX_ENTRIES];
    double *scratch[MAX_SCRATCH];
    int num_entries, num_scratch;
    int64_t offset; // op_begin_tensors_at
    char label[256];
} test;

const DType op_dtypes[3] = {DTYPE_FP32, DTYPE_FP16, DTYPE_BF16};

// ---------------------------------------------------------------------------------- life of a test

// ThreadSanitizer and MemorySanitizer, which are slow, take one dtype unless TEST_FILTER says
// otherwise.
#if defined(__SANITIZE_THREAD__)
#define DEFAULT_FILTER "*_bf16"
#elif defined(__has_feature)
#if __has_feature(memory_sanitizer) || __has_feature(thread_sanitizer)
#define DEFAULT_FILTER "*_bf16"
#endif
#endif
#ifdef DEFAULT_FILTER
__attribute__((constructor)) static void choose_tests(void) {
    cmocka_set_test_filter(DEFAULT_FILTER);
}
#endif

// TEST_ATTENTION=cudnn|own: attention of a GPU by this, not by the faster one.
DeviceOptions op_device_options(void) {
    const char *attention = getenv("TEST_ATTENTION");
    DeviceOptions options = {0};
    if (attention && strcmp(attention, "cudnn") == 0) options.attention = ATTENTION_CUDNN;
    if (attention && strcmp(attention, "own") == 0) options.attention = ATTENTION_OWN;
    return options;
}

uint64_t op_seed_of_environment(void) {
    const char *text = getenv("TEST_SEED");
    const bool random = text && strcmp(text, "random") == 0;
    const uint64_t seed = random ? (uint64_t)time(NULL) : text ? strtoull(text, NULL, 0) : 1;
    printf("TEST_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

int op_group_setup(void **state) {
    (void)state;
    Error err;
    test.seed = op_seed_of_environment();
    const DeviceOptions options = op_device_options();
    if (!device_init(&options, &err)) {
        print_error("%s\n", err.text);
        return -1;
    }
    return 0;
}

int op_group_teardown(void **state) {
    (void)state;
    device_shutdown();
    return 0;
}

void op_restart_device(DeviceOptions options) {
    Error err;
    device_shutdown();
    if (!device_init(&options, &err)) op_fail("%s", err.text);
}

static void release(void) {
    ops_set_workspace(NULL, 0);
    for (int i = 0; i < test.num_entries; i++) {
        Entry *e = &test.entries[i];
        device_free(e->block), host_free(e->bytes), free(e->x.v), free(e->x.tokens);
    }
    for (int i = 0; i < test.num_scratch; i++) free(test.scratch[i]);
    test.num_entries = test.num_scratch = 0;
    test.offset = 0;
    test.label[0] = 0;
}

int op_teardown(void **state) {
    (void)state;
    device_sync();
    release();
    return 0;
}

DType op_dtype(void **state) {
    DType dtype = *(const DType *)*state;
    if (!device_facts()->supports[dtype]) {
        print_message("the device has no %s\n", dtype_name(dtype));
        skip();
    }
    return dtype;
}

void op_without_fused_gelu(void) {
    DeviceOptions options = op_device_options();
    options.gelu_fusion = GELU_FUSION_NONE;
    op_restart_device(options);
}

void op_fail(const char *format, ...) {
    va_list args;
    va_start(args, format);
    print_error("ERROR: %s%s", test.label, test.label[0] ? ": " : "");
    vprint_error(format, args);
    print_error(" (TEST_SEED=%llu)\n", (unsigned long long)test.seed);
    va_end(args);
    fail();
    abort(); // fail() jumps; the compiler is not told
}

uint64_t op_seed(void) { return test.seed; }
void op_random_restart(void) { test.stream = 0; }

// ----------------------------------------------------------------------------------------- tensors

// Bytes in guards: 0xFFC1 twice is a NaN as fp32, fp16 and bf16, and differs from the NaN that
// poison writes.
static void fill_guard(uint16_t *guard) {
    for (size_t i = 0; i < GUARD_BYTES / 2; i++) guard[i] = 0xFFC1;
}

static Entry *find(Tensor t) {
    for (int i = 0; i < test.num_entries; i++)
        if (test.entries[i].x.t.data == t.data) return &test.entries[i];
    op_fail("%s is no tensor of this case", t.name);
}

void op_write(Tensor t, const void *host) {
    Entry *e = find(t);
    memcpy(e->bytes, host, tensor_bytes(t));
    copy_h2d(t.data, e->bytes, tensor_bytes(t), STREAM_COMPUTE);
    device_sync();
}

static void read_device(void *host, const void *device, size_t bytes) {
    Error err;
    void *staging = host_alloc(bytes, &err);
    if (!staging) op_fail("%s", err.text);
    copy_d2h(staging, device, bytes, STREAM_COMPUTE);
    device_sync();
    memcpy(host, staging, bytes);
    host_free(staging);
}

void op_read(void *host, Tensor t) { read_device(host, t.data, tensor_bytes(t)); }

void op_poison(OpTensor x) {
    void *bytes = malloc(tensor_bytes(x.t));
    memset(bytes, 0xFF, tensor_bytes(x.t));
    op_write(x.t, bytes);
    free(bytes);
}

// A poisoned tensor between guards. bytes: of the data, may be 0.
static Entry *entry_make(DType dtype, const char *name, OpDims dims, bool may_change) {
    Error err;
    if (test.num_entries == MAX_ENTRIES) op_fail("too many tensors");

    Tensor t = tensor_make(NULL, dtype, name, dims.d[0], dims.d[1], dims.d[2], dims.d[3]);
    size_t bytes = tensor_bytes(t), total = bytes + 2 * GUARD_BYTES;
    Entry *e = &test.entries[test.num_entries++];
    *e = (Entry){.x.t = t, .may_change = may_change};

    e->block = device_alloc(total + (size_t)test.offset, &err);
    e->bytes = host_alloc(total, &err);
    if (!e->block || !e->bytes) op_fail("%s", err.text);

    uint16_t guard[GUARD_BYTES / 2];
    fill_guard(guard);
    memcpy(e->bytes, guard, GUARD_BYTES);
    memset((char *)e->bytes + GUARD_BYTES, 0xFF, bytes);
    memcpy((char *)e->bytes + GUARD_BYTES + bytes, guard, GUARD_BYTES);
    e->x.t.data = e->block + test.offset + GUARD_BYTES;

    copy_h2d(e->block + test.offset, e->bytes, total, STREAM_COMPUTE);
    device_sync();
    memset(e->bytes, 0xFF, bytes);

    // bytes have no values
    if (t.dtype != DTYPE_U8) e->x.v = calloc((size_t)tensor_numel(t) + 1, sizeof(double));
    return e;
}

void op_upload(OpTensor *x) {
    int64_t n = tensor_numel(x->t);
    if (x->tokens) {
        op_write(x->t, x->tokens);
        return;
    }

    void *bytes = malloc(tensor_bytes(x->t) + 1);
    for (int64_t i = 0; i < n; i++) {
        float value = (float)x->v[i];
        convert_elements((char *)bytes + (size_t)i * dtype_size(x->t.dtype), x->t.dtype, &value,
                         DTYPE_FP32, 1);
        x->v[i] = ref_round(x->v[i], x->t.dtype);
    }

    op_write(x->t, bytes);
    free(bytes);
}

static OpTensor random_tensor(DType dtype, const char *name, OpDims dims, double scale,
                              bool may_change) {
    OpTensor x = entry_make(dtype, name, dims, may_change)->x;
    uint64_t stream = ++test.stream;
    for (int64_t i = 0; i < tensor_numel(x.t); i++) {
        Philox bits = philox(test.seed, stream, (uint64_t)i);
        float normal[2];
        philox_normal2(bits.v[0], bits.v[1], normal);
        x.v[i] = scale * (double)normal[0];
    }
    op_upload(&x);
    return x;
}

OpTensor op_input(DType dtype, const char *name, OpDims dims, double scale) {
    return random_tensor(dtype, name, dims, scale, false);
}

OpTensor op_inout(DType dtype, const char *name, OpDims dims, double scale) {
    return random_tensor(dtype, name, dims, scale, true);
}

OpTensor op_output(DType dtype, const char *name, OpDims dims) {
    return entry_make(dtype, name, dims, true)->x;
}

OpTensor op_tokens(const char *name, OpDims dims, int64_t V) {
    Entry *e = entry_make(DTYPE_I32, name, dims, false);
    int64_t n = tensor_numel(e->x.t);
    uint64_t stream = ++test.stream;
    e->x.tokens = malloc((size_t)n * sizeof(int32_t));
    for (int64_t i = 0; i < n; i++)
        e->x.tokens[i] = (int32_t)(philox(test.seed, stream, (uint64_t)i).v[0] % (uint32_t)V);
    OpTensor x = e->x;
    op_upload(&x);
    return x;
}

Tensor op_control(StepControl init) {
    Tensor t = entry_make(DTYPE_U8, "control", DIMS(sizeof init), true)->x.t;
    op_write(t, &init);
    return t;
}

double *op_values(Tensor t) {
    int64_t n = tensor_numel(t);
    double *values = calloc((size_t)n + 1, sizeof *values);
    char *bytes = malloc(tensor_bytes(t) + 1);
    read_device(bytes, t.data, tensor_bytes(t));
    for (int64_t i = 0; i < n; i++) {
        float value;
        convert_elements(&value, DTYPE_FP32, bytes + (size_t)i * dtype_size(t.dtype), t.dtype, 1);
        values[i] = (double)value;
    }
    free(bytes);
    return values;
}

double *op_download(OpTensor x) {
    if (test.num_scratch == MAX_SCRATCH) op_fail("too many downloads");
    return test.scratch[test.num_scratch++] = op_values(x.t);
}

// ------------------------------------------------------------------------------------------- cases

void op_begin(OpsShape shape, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(test.label, sizeof test.label, format, args);
    va_end(args);
    int64_t bytes = ops_workspace_bytes(shape), offset = test.offset;
    test.offset = 0; // the workspace is aligned
    if (bytes > 0)
        ops_set_workspace(entry_make(DTYPE_U8, "workspace", DIMS(bytes), true)->x.t.data, bytes);
    test.offset = offset;
}

void op_begin_tensors_at(int64_t bytes) { test.offset = bytes; }

static void check_guards(const Entry *e) {
    uint16_t expected[GUARD_BYTES / 2], guard[GUARD_BYTES / 2];
    const char *data = e->x.t.data;
    fill_guard(expected);
    read_device(guard, data - GUARD_BYTES, GUARD_BYTES);
    if (memcmp(guard, expected, GUARD_BYTES) != 0)
        op_fail("bytes before %s were written", e->x.t.name);
    read_device(guard, data + tensor_bytes(e->x.t), GUARD_BYTES);
    if (memcmp(guard, expected, GUARD_BYTES) != 0)
        op_fail("bytes after %s were written", e->x.t.name);
}

void op_end(void) {
    device_sync();
    for (int i = 0; i < test.num_entries; i++) {
        Entry *e = &test.entries[i];
        check_guards(e);
        if (e->may_change) continue;

        void *now = malloc(tensor_bytes(e->x.t) + 1);
        op_read(now, e->x.t);
        bool same = memcmp(now, e->bytes, tensor_bytes(e->x.t)) == 0;
        free(now);
        if (!same) op_fail("the input %s was changed", e->x.t.name);
    }

    release();
}

// -------------------------------------------------------------------------------------- comparison

double op_tolerance(DType dtype) {
    return dtype == DTYPE_FP32 ? 1e-5 : dtype == DTYPE_FP16 ? 1e-3 : 4e-3;
}

double op_limit(DType dtype, int64_t n) {
    return (n < FEW_VALUES ? 2.0 : 1.0) * op_tolerance(dtype);
}

double op_limit_of_values(DType dtype, const double *values, int64_t n) {
    double squares = 0.0, fourths = 0.0;
    for (int64_t i = 0; i < n; i++) {
        const double square = values[i] * values[i];
        squares += square, fourths += square * square;
    }
    const double count = fourths > 0.0 ? 3.0 * squares * squares / fourths : (double)n;
    return op_limit(dtype, count < (double)n ? (int64_t)count : n);
}

double op_limit_of_gradient(DType dtype, double stored) {
    return dtype == DTYPE_FP32 ? 1e-5 : stored + 4.0 * op_tolerance(dtype);
}

double op_relative_error(const double *got, const double *want, int64_t n) {
    double error = 0.0, norm = 0.0;
    for (int64_t i = 0; i < n; i++) {
        error += (got[i] - want[i]) * (got[i] - want[i]);
        norm += want[i] * want[i];
    }
    return error == 0.0 ? 0.0 : sqrt(error / norm);
}

void op_expect(const char *name, double error, double tolerance) {
    if (!(error <= tolerance)) // also when error is NaN
        op_fail("%s: relative error %.3g, at most %.3g", name, error, tolerance);
}

void op_expect_share(int64_t up, int64_t n, double f) {
    const double share = (double)up / (double)n, limit = 6.0 * sqrt(f * (1.0 - f) / (double)n);
    if (fabs(share - f) > limit)
        op_fail("%g rounded up in a share of %g (limit %g)", f, share, limit);
}

void op_check_scaled(OpTensor x, DType precision, double factor) {
    int64_t n = tensor_numel(x.t);
    op_expect(x.t.name, op_relative_error(op_download(x), x.v, n),
              factor * op_limit_of_values(precision, x.v, n));
}

void op_check(OpTensor x, DType precision) { op_check_scaled(x, precision, 1.0); }

void op_check_scaled_terms(OpTensor x, DType precision, DType of_terms, double size,
                           double factor) {
    const int64_t n = tensor_numel(x.t);
    const double *got = op_download(x), norm = sqrt(ref_sumsq(x.v, n));
    const double of_size = op_limit(of_terms, n) * size * sqrt((double)n);
    const double limit = factor * fmax(op_limit_of_values(precision, x.v, n) * norm, of_size);
    double error = 0.0;
    for (int64_t i = 0; i < n; i++) error += (got[i] - x.v[i]) * (got[i] - x.v[i]);
    if (!(sqrt(error) <= limit)) // also when error is NaN
        op_fail("%s: error %.3g of %.3g, at most %.3g", x.t.name, sqrt(error), norm, limit);
}

void op_check_terms(OpTensor x, DType precision, DType of_terms, double size) {
    op_check_scaled_terms(x, precision, of_terms, size, 1.0);
}

void op_check_values(OpTensor x) {
    const double *got = op_download(x);
    for (int64_t i = 0; i < tensor_numel(x.t); i++)
        if (!(got[i] == x.v[i]) && !(isnan(got[i]) && isnan(x.v[i])))
            op_fail("%s: element %lld is %.9g, expected %.9g", x.t.name, (long long)i, got[i],
                    x.v[i]);
}

void op_check_logarithms(OpTensor x, DType precision, double factor) {
    int64_t n = tensor_numel(x.t);
    const double *got = op_download(x);
    double error = 0.0, size = 0.0;
    for (int64_t i = 0; i < n; i++) {
        error += (got[i] - x.v[i]) * (got[i] - x.v[i]);
        size += 1.0 + x.v[i] * x.v[i];
    }
    op_expect(x.t.name, sqrt(error / size), factor * op_limit(precision, n));
}

void op_check_same_bits(OpTensor a, OpTensor b) {
    size_t bytes = tensor_bytes(a.t);
    char *p = malloc(bytes), *q = malloc(bytes);
    op_read(p, a.t), op_read(q, b.t);
    bool same = bytes == tensor_bytes(b.t) && memcmp(p, q, bytes) == 0;
    free(p), free(q);
    if (!same) op_fail("%s and %s differ in their bits", a.t.name, b.t.name);
}

uint64_t op_digest(uint64_t digest, OpTensor x) {
    size_t bytes = tensor_bytes(x.t);
    char *p = malloc(bytes);
    op_read(p, x.t);
    digest = XXH3_64bits_withSeed(p, bytes, digest);
    free(p);
    return digest;
}
