// oneDNN behind onednn.h: its versions 2 and 3, and a cache of primitives by shape.
#include "llmc/cpu/onednn.h"

#include <dlfcn.h>
#include <malloc.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

// The case that a primitive is made for. All fields are 64 bits wide, so that keys compare as
// bytes.
typedef struct {
    int64_t M, N, K;
    int64_t dst_row, a_row, a_col, b_row, b_col; // strides; columns of dst are contiguous
    int64_t source, result;                      // DType of a and b, of dst
    int64_t bias, accumulate;                    // 0 or 1
} Key;

typedef struct {
    Key key;
    uint64_t last_use;
    dnnl_primitive_t primitive; // NULL: the library has no implementation for this key
    dnnl_memory_t a, b, dst, bias, scratch;
    int64_t scratch_bytes;
} Entry;

// A model needs about 20 shapes, and as many again for each number of rows that it is called with.
// Sampling calls with every number of rows up to T: the least recently used primitive is evicted (a
// new one costs 0.2 to 0.5 ms).
enum { CACHE_ENTRIES = 128 };

struct Onednn {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    uint64_t clock; // counts uses
    void *scratch, *own_scratch;
    int64_t scratch_bytes, own_scratch_bytes;
    int count;
    Entry entries[CACHE_ENTRIES];
};

#define DNNL_REQUIRE(call)                                                                         \
    do {                                                                                           \
        dnnl_status_t status_ = (call);                                                            \
        REQUIRE_MEMORY(status_ != dnnl_out_of_memory, "oneDNN: %s", #call);                        \
        REQUIRE(status_ == dnnl_success, "oneDNN: status %d from %s", (int)status_, #call);        \
    } while (0)

// oneDNN is C++: where new fails, it would throw through its C functions, so the program ends
// first.
static void onednn_new_failed(void) { out_of_memory("oneDNN"); }

// oneDNN 2.6 crashes where posix_memalign or mmap fail (c_compatible, Xbyak's allocator), so what
// is made by it is made with memory to spare. A matmul takes some 100 KiB.
static void onednn_require_memory(void) {
    enum { SPARE_BYTES = 16 << 20 };
    void *spare =
        mmap(NULL, SPARE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE_MEMORY(spare != MAP_FAILED, "oneDNN");
    munmap(spare, SPARE_BYTES);
}

Onednn *onednn_create(CpuCodeChoice limit, Error *err) {
    typedef void (*Handler)(void);
    Handler (*set_new_handler)(Handler);
    // std::set_new_handler
    *(void **)&set_new_handler = dlsym(RTLD_DEFAULT, "_ZSt15set_new_handlerPFvvE");
    if (set_new_handler) set_new_handler(onednn_new_failed);
    onednn_require_memory();

#if defined(__x86_64__)
    const dnnl_cpu_isa_t sets[CPU_CODES] = {[CPU_AVX512BF16] = dnnl_cpu_isa_avx512_core_bf16,
                                            [CPU_AVX512] = dnnl_cpu_isa_avx512_core,
                                            [CPU_AVX2] = dnnl_cpu_isa_avx2,
                                            [CPU_BASELINE] = dnnl_cpu_isa_sse41};
    // oneDNN refuses a second call; fine if the first one set the same or a lower limit.
    if (sets[limit] && dnnl_set_max_cpu_isa(sets[limit]) != dnnl_success &&
        (onednn_instructions() & ~(unsigned)sets[limit]) != 0) {
        error_set(err, "oneDNN has begun with more instructions than PRETRAIN_CPU allows");
        return NULL;
    }
#else
    (void)limit;
#endif

    Onednn *dnn = calloc(1, sizeof *dnn);
    if (!dnn) {
        error_set(err, "out of memory for oneDNN's primitive cache");
        return NULL;
    }

    dnnl_status_t status = dnnl_engine_create(&dnn->engine, dnnl_cpu, 0);
    if (status == dnnl_success)
        status = dnnl_stream_create(&dnn->stream, dnn->engine, dnnl_stream_default_flags);
    if (status != dnnl_success) {
        error_set(err, "oneDNN %s does not start: status %d", onednn_version(), (int)status);
        onednn_destroy(dnn);
        return NULL;
    }

    return dnn;
}

static void entry_clear(Entry *e) {
    if (e->primitive) {
        dnnl_primitive_destroy(e->primitive);
        dnnl_memory_destroy(e->a);
        dnnl_memory_destroy(e->b);
        dnnl_memory_destroy(e->dst);
        dnnl_memory_destroy(e->scratch);
        if (e->bias) dnnl_memory_destroy(e->bias);
    }
    memset(e, 0, sizeof *e);
}

void onednn_destroy(Onednn *dnn) {
    if (!dnn) return;
    for (int i = 0; i < dnn->count; i++) entry_clear(&dnn->entries[i]);
    if (dnn->stream) dnnl_stream_destroy(dnn->stream);
    if (dnn->engine) dnnl_engine_destroy(dnn->engine);
    free(dnn->own_scratch);
    free(dnn);
}

const char *onednn_version(void) {
    static char text[32];
    const dnnl_version_t *v = dnnl_version();
    snprintf(text, sizeof text, "%d.%d.%d", v->major, v->minor, v->patch);
    return text;
}

unsigned onednn_instructions(void) { return (unsigned)dnnl_get_effective_cpu_isa(); }

bool onednn_has_bf16(void) {
    const unsigned needed = dnnl_cpu_isa_avx512_core_bf16; // the sets are bits and grow
    return (onednn_instructions() & needed) == needed;
}

// ----------------------------------------------------------------- differences of versions 2 and 3

#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t Descriptor; // a handle
typedef const_dnnl_memory_desc_t ConstDescriptor;
#define DESCRIPTOR_ARG(d) (d)
#else
typedef dnnl_memory_desc_t Descriptor; // a struct, passed by address
typedef const dnnl_memory_desc_t *ConstDescriptor;
#define DESCRIPTOR_ARG(d) (&(d))
#endif

static Descriptor descriptor_create(int64_t rows, int64_t cols, DType dtype, int64_t row_stride,
                                    int64_t col_stride) {
    Descriptor d;
    dnnl_dims_t dims = {rows, cols}, strides = {row_stride, col_stride};
    const dnnl_data_type_t type = dtype == DTYPE_BF16 ? dnnl_bf16 : dnnl_f32;
#if DNNL_VERSION_MAJOR >= 3
    DNNL_REQUIRE(dnnl_memory_desc_create_with_strides(&d, 2, dims, type, strides));
#else
    DNNL_REQUIRE(dnnl_memory_desc_init_by_strides(&d, 2, dims, type, strides));
#endif
    return d;
}

static void descriptor_destroy(Descriptor *d) {
#if DNNL_VERSION_MAJOR >= 3
    DNNL_REQUIRE(dnnl_memory_desc_destroy(*d));
#else
    (void)d;
#endif
}

static dnnl_status_t matmul_descriptor(dnnl_primitive_desc_t *pd, dnnl_engine_t engine,
                                       Descriptor *a, Descriptor *b, Descriptor *bias,
                                       Descriptor *dst, dnnl_primitive_attr_t attr) {
#if DNNL_VERSION_MAJOR >= 3
    const Descriptor of_bias = bias ? *bias : NULL;
    return dnnl_matmul_primitive_desc_create(pd, engine, *a, *b, of_bias, *dst, attr);
#else
    dnnl_matmul_desc_t d;
    DNNL_REQUIRE(dnnl_matmul_desc_init(&d, a, b, bias, dst));
    return dnnl_primitive_desc_create(pd, &d, attr, engine, NULL);
#endif
}

// ---------------------------------------------------------------------------------- the primitives

static void entry_create(Entry *e, const Key *k, dnnl_engine_t engine) {
    DType source = (DType)k->source;
    Descriptor a = descriptor_create(k->M, k->K, source, k->a_row, k->a_col);
    Descriptor b = descriptor_create(k->K, k->N, source, k->b_row, k->b_col);
    Descriptor dst = descriptor_create(k->M, k->N, (DType)k->result, k->dst_row, 1);
    Descriptor bias = descriptor_create(1, k->N, source, k->N, 1), *given_bias = NULL;
    if (k->bias) given_bias = &bias;
    dnnl_primitive_attr_t attr;
    dnnl_post_ops_t ops;
    DNNL_REQUIRE(dnnl_primitive_attr_create(&attr));
    DNNL_REQUIRE(dnnl_post_ops_create(&ops));
#if DNNL_VERSION_MAJOR >= 3
    if (k->accumulate) DNNL_REQUIRE(dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_data_type_undef));
#else
    if (k->accumulate) DNNL_REQUIRE(dnnl_post_ops_append_sum(ops, 1.0f));
#endif
    DNNL_REQUIRE(dnnl_primitive_attr_set_post_ops(attr, ops));
    DNNL_REQUIRE(dnnl_post_ops_destroy(ops));
    DNNL_REQUIRE(dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user));
    dnnl_primitive_desc_t pd = NULL;

    onednn_require_memory();
    e->key = *k;
    dnnl_status_t status = matmul_descriptor(&pd, engine, &a, &b, given_bias, &dst, attr);
    REQUIRE_MEMORY(status != dnnl_out_of_memory, "a matmul of oneDNN");
    REQUIRE(status == dnnl_success || status == dnnl_unimplemented,
            "oneDNN: matmul %lldx%lldx%lld: status %d", (long long)k->M, (long long)k->N,
            (long long)k->K, (int)status);
    if (status == dnnl_success) {
        DNNL_REQUIRE(dnnl_primitive_create(&e->primitive, pd));
        // Addresses are set at each call.
        DNNL_REQUIRE(dnnl_memory_create(&e->a, DESCRIPTOR_ARG(a), engine, DNNL_MEMORY_NONE));
        DNNL_REQUIRE(dnnl_memory_create(&e->b, DESCRIPTOR_ARG(b), engine, DNNL_MEMORY_NONE));
        DNNL_REQUIRE(dnnl_memory_create(&e->dst, DESCRIPTOR_ARG(dst), engine, DNNL_MEMORY_NONE));
        if (k->bias)
            DNNL_REQUIRE(
                dnnl_memory_create(&e->bias, DESCRIPTOR_ARG(bias), engine, DNNL_MEMORY_NONE));
        ConstDescriptor scratch = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
        DNNL_REQUIRE(dnnl_memory_create(&e->scratch, scratch, engine, DNNL_MEMORY_NONE));
        e->scratch_bytes = (int64_t)dnnl_memory_desc_get_size(scratch);
        DNNL_REQUIRE(dnnl_primitive_desc_destroy(pd));
    }
    DNNL_REQUIRE(dnnl_primitive_attr_destroy(attr));
    descriptor_destroy(&a);
    descriptor_destroy(&b);
    descriptor_destroy(&dst);
    descriptor_destroy(&bias);
}

// The entry for k: cached, or created now in a free slot or in the slot of the least recently used
// one.
static Entry *find_or_create(Onednn *dnn, const Key *k) {
    Entry *place = NULL;
    for (int i = 0; i < dnn->count; i++) {
        Entry *e = &dnn->entries[i];
        if (memcmp(&e->key, k, sizeof *k) == 0) {
            e->last_use = ++dnn->clock;
            return e;
        }
        if (!place || e->last_use < place->last_use) place = e;
    }
    if (dnn->count < CACHE_ENTRIES)
        place = &dnn->entries[dnn->count++];
    else
        entry_clear(place);
    entry_create(place, k, dnn->engine);
    place->last_use = ++dnn->clock;
    return place;
}

void onednn_set_scratch(Onednn *dnn, void *p, int64_t bytes) {
    dnn->scratch = p;
    dnn->scratch_bytes = bytes;
}

bool onednn_matmul(Onednn *dnn, int64_t M, int64_t N, int64_t K, Matrix dst, Matrix a, Matrix b,
                   void *bias, bool accumulate) {
    REQUIRE(dst.col_stride == 1, "onednn_matmul: dst is transposed");
    if (a.dtype == DTYPE_BF16 && !onednn_has_bf16()) return false;
    Key key = {.M = M,
               .N = N,
               .K = K,
               .dst_row = dst.row_stride,
               .a_row = a.row_stride,
               .a_col = a.col_stride,
               .b_row = b.row_stride,
               .b_col = b.col_stride,
               .source = a.dtype,
               .result = dst.dtype,
               .bias = bias != NULL,
               .accumulate = accumulate};
    Entry *e = find_or_create(dnn, &key);
    if (!e->primitive) return false;
    const bool fits = e->scratch_bytes <= dnn->scratch_bytes;
    if (!fits && e->scratch_bytes > dnn->own_scratch_bytes) {
        free(dnn->own_scratch);
        dnn->own_scratch_bytes = e->scratch_bytes;
        dnn->own_scratch = memalign(64, (size_t)e->scratch_bytes);
        REQUIRE_MEMORY(dnn->own_scratch, "%lld bytes of scratch for a matmul",
                       (long long)e->scratch_bytes);
    }
    void *scratch = dnn->own_scratch;
    if (fits) scratch = dnn->scratch;
    DNNL_REQUIRE(dnnl_memory_set_data_handle(e->a, a.data));
    DNNL_REQUIRE(dnnl_memory_set_data_handle(e->b, b.data));
    DNNL_REQUIRE(dnnl_memory_set_data_handle(e->dst, dst.data));
    if (bias) DNNL_REQUIRE(dnnl_memory_set_data_handle(e->bias, bias));
    DNNL_REQUIRE(dnnl_memory_set_data_handle(e->scratch, scratch));
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, e->a},
                                    {DNNL_ARG_WEIGHTS, e->b},
                                    {DNNL_ARG_DST, e->dst},
                                    {DNNL_ARG_SCRATCHPAD, e->scratch},
                                    {DNNL_ARG_BIAS, e->bias}}; // the last: not always
    DNNL_REQUIRE(dnnl_primitive_execute(e->primitive, dnn->stream, 4 + (bias != NULL), args));
    DNNL_REQUIRE(dnnl_stream_wait(dnn->stream));
    return true;
}
