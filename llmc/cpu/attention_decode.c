// The cache of keys and values, and attention of one new token to it: q k^T and p V for one head of one sequence at a
// time. Memory-bound: the keys and values of a head lie one after the other and are read once. Scores of a head stay
// in the workspace, so that its softmax sees them all. One task is one head, its order of work fixed: the bits depend
// neither on the number of threads nor on what else is in the batch.
#include "llmc/cpu/attention.h"

#include <omp.h>

typedef struct {
    int64_t B, NH, maxT, HS;
    DType dtype;
} CacheShape;

static CacheShape cache_shape(const char *op, Tensor cache, Tensor qkv) {
    cpu_check_float(op, cache);
    REQUIRE(cache.rank == 4 && cache.shape[1] % 2 == 0, "%s: %s is not (B,2NH,maxT,HS)", op, cache.name);
    CacheShape s = {cache.shape[0], cache.shape[1] / 2, cache.shape[2], cache.shape[3], cache.dtype};
    tensor_check(op, qkv, s.dtype, tensor_numel(qkv) / (3 * s.B * s.NH * s.HS) * 3 * s.B * s.NH * s.HS);
    return s;
}

static char *element(Tensor t, int64_t i) { return (char *)t.data + (size_t)i * dtype_size(t.dtype); }

// Position t of head h of sequence b: of the keys (part 0) or of the values (part 1).
static char *cache_row(CacheShape s, Tensor cache, int64_t b, int part, int64_t h, int64_t t) {
    return element(cache, (((b * 2 + part) * s.NH + h) * s.maxT + t) * s.HS);
}

void kv_cache_store(Tensor cache, Tensor qkv, int64_t first) {
    const char *op = "kv_cache_store";
    const CacheShape s = cache_shape(op, cache, qkv);
    const int64_t C = s.NH * s.HS, n = tensor_numel(qkv) / (3 * s.B * C);
    REQUIRE(first >= 0 && first + n <= s.maxT, "%s: positions %lld to %lld in a cache of %lld", op, (long long)first,
            (long long)(first + n), (long long)s.maxT);
    const size_t row_bytes = (size_t)s.HS * dtype_size(s.dtype);
#pragma omp parallel for schedule(static)
    for (int64_t task = 0; task < s.B * 2 * s.NH; task++) {
        const int64_t b = task / (2 * s.NH), h = task % s.NH;
        const int part = (int)(task / s.NH % 2);
        for (int64_t t = 0; t < n; t++)
            memcpy(cache_row(s, cache, b, part, h, first + t),
                   element(qkv, ((b * n + t) * 3 + 1 + part) * C + h * s.HS), row_bytes);
    }
}

// ------------------------------------------------------------------------------------------------------------ decoding

// One head: q (HS), keys and values (length, HS), out (HS).
typedef struct {
    const void *q, *keys, *values;
    void *out;
    int64_t length, HS;
    float scale;
} DecodeHead;

static ALWAYS_INLINE float score(const DecodeHead *a, int64_t j, DType E) {
    V sum = vzero();
    EACH_LANES(i, k, a->HS, sum = vfma(vload_first(k, a->q, i, E), vload_first(k, a->keys, j * a->HS + i, E), sum));
    return vsum(sum);
}

// scores (length) become exponentials; returns their sum. Lanes beyond the last key hold -inf, then 0.
static ALWAYS_INLINE float softmax(float *scores, int64_t length, float scale) {
    V largest = vsplat(-INFINITY), sum = vzero();
    EACH_LANES(j, k, length, largest = vmax(largest, vfirst(k, vload_first_f32(k, scores + j), largest)));
    const float max = vmax_lane(largest) * scale;
    EACH_LANES(j, k, length, {
        V p = vexp_nonpositive(vfma(vload_first_f32(k, scores + j), vsplat(scale), vsplat(-max)));
        sum += vfirst(k, p, vzero());
        vstore_first_f32(k, scores + j, p);
    });
    return vsum(sum);
}

// Columns of out that one walk over the values adds up.
enum { WALK = 4 * LANES };

static ALWAYS_INLINE void weighted_values(const DecodeHead *a, const float *p, float factor, int64_t first, DType E) {
    int used[WALK / LANES];
    V sum[WALK / LANES] = {0};
    for (int g = 0; g < WALK / LANES; g++) used[g] = lanes(a->HS - first - g * LANES);
    for (int64_t j = 0; j < a->length; j++)
        for (int g = 0; g < WALK / LANES; g++)
            sum[g] = vfma(vsplat(p[j]), vload_first(used[g], a->values, j * a->HS + first + g * LANES, E), sum[g]);
    for (int g = 0; g < WALK / LANES; g++) vstore_first(used[g], a->out, first + g * LANES, sum[g] * vsplat(factor), E);
}

static ALWAYS_INLINE void decode_head(const DecodeHead *a, float *scores, DType E) {
    for (int64_t j = 0; j < a->length; j++) scores[j] = score(a, j, E);
    const float sum = softmax(scores, a->length, a->scale);
    for (int64_t i = 0; i < a->HS; i += WALK) weighted_values(a, scores, 1.0f / sum, i, E);
}

int64_t attention_decode_scratch(int64_t T) { return round_up(T, LANES) * (int64_t)sizeof(float); }

void attention_decode(Tensor out, Tensor cache, Tensor qkv, Tensor position) {
    const char *op = "attention_decode";
    const CacheShape s = cache_shape(op, cache, qkv);
    const int64_t C = s.NH * s.HS, scratch_bytes = attention_decode_scratch(s.maxT);
    tensor_check(op, qkv, s.dtype, s.B * 3 * C);
    tensor_check(op, out, s.dtype, s.B * C);
    tensor_check(op, position, DTYPE_I32, 1);
    const int64_t at = *(const int32_t *)position.data;
    REQUIRE(at >= 0 && at < s.maxT, "%s: position %lld in a cache of %lld", op, (long long)at, (long long)s.maxT);
    const size_t row_bytes = (size_t)s.HS * dtype_size(s.dtype);
    char *scratch = cpu_scratch(op, cpu_threads() * scratch_bytes);

#pragma omp parallel for schedule(dynamic, 1) num_threads(cpu_threads())
    for (int64_t task = 0; task < s.B * s.NH; task++) {
        const int64_t b = task / s.NH, h = task % s.NH;
        for (int part = 0; part < 2; part++)
            memcpy(cache_row(s, cache, b, part, h, at), element(qkv, (b * 3 + 1 + part) * C + h * s.HS), row_bytes);
        const DecodeHead head = {
            .q = element(qkv, b * 3 * C + h * s.HS),
            .keys = cache_row(s, cache, b, 0, h, 0),
            .values = cache_row(s, cache, b, 1, h, 0),
            .out = element(out, b * C + h * s.HS),
            .length = at + 1,
            .HS = s.HS,
            .scale = 1.0f / sqrtf((float)s.HS),
        };
        float *scores = (float *)(void *)(scratch + omp_get_thread_num() * scratch_bytes);
        WITH_DTYPE(E, s.dtype, decode_head(&head, scores, E));
    }
}
