// tensor_statistics: what a tensor holds, counted in one pass over its bits. Magnitudes are compared as integers: the
// ops run with small numbers flushed to 0, and a comparison of floats would not see them. Owns nothing; the counts do
// not depend on the number of threads.
#include "llmc/cpu/cpu.h"
#include "llmc/cpu/cpu_ops.h"
#include "llmc/cpu/simd.h"

// A tensor is cut into this many parts, each counted by itself and added in their order: the sum of squares has the
// same bits whatever the number of threads.
enum { PARTS = 64 };

typedef double VD __attribute__((vector_size(128)));

// Sixteen lanes of everything that is counted. A part of less than 2^34 elements fits: 2^30 to a lane.
typedef struct {
    VD sumsq;
    VU zero, small, large, amax;
} Lanes;

// The first k lanes of x: the others are 0 and taken out again where zeros are counted.
static ALWAYS_INLINE void count_lanes(Lanes *c, V x, FormatLimits limits) {
    const VU size = (VU)x & (uint32_t)FLOAT_MAGNITUDE;
    const VU finite = vless_bits(size, vsplat_bits(FLOAT_INFINITY));
    const VU larger = vless_bits(c->amax, size & finite);
    const VD value = __builtin_convertvector((V)((VU)x & finite), VD);
    c->sumsq += value * value;
    c->zero -= vless_bits(size, vsplat_bits(1)); // -1 in each lane that is meant
    c->small -= vless_bits(size, vsplat_bits(limits.smallest));
    c->large -= vless_bits(vsplat_bits(limits.largest), size);
    c->amax = (larger & size) | (~larger & c->amax);
}

static ALWAYS_INLINE void count_span(TensorStats *stats, const void *x, int64_t begin, int64_t end, FormatLimits limits,
                                     DType E) {
    Lanes c = {0};
    const int64_t missing = (LANES - (end - begin) % LANES) % LANES; // lanes of the last vector, which read as 0
    EACH_LANES(i, k, end - begin, count_lanes(&c, vload_first(k, x, begin + i, E), limits));
    uint32_t amax = 0;
    int64_t zero = -missing, small = -missing;
    for (int i = 0; i < LANES; i++) {
        stats->sumsq += c.sumsq[i];
        zero += c.zero[i], small += c.small[i];
        stats->overflow += c.large[i];
        amax = c.amax[i] > amax ? c.amax[i] : amax;
    }
    stats->count = (double)(end - begin);
    stats->zero = (double)zero;
    stats->underflow = (double)(small - zero);
    memcpy(&stats->amax, &amax, sizeof amax);
}

static void add(TensorStats *sum, const TensorStats *part) {
    sum->count += part->count;
    sum->sumsq += part->sumsq;
    sum->zero += part->zero;
    sum->underflow += part->underflow;
    sum->overflow += part->overflow;
    uint32_t a, b; // as bits: see above
    memcpy(&a, &sum->amax, sizeof a), memcpy(&b, &part->amax, sizeof b);
    if (b > a) sum->amax = part->amax;
}

void tensor_statistics(Tensor stats, Tensor t, DType format) {
    const int64_t n = tensor_numel(t), length = round_up(ceil_div(n, PARTS), LANES);
    const FormatLimits limits = format_limits(format);
    TensorStats parts[PARTS] = {0};
    tensor_check("tensor_statistics", stats, DTYPE_U8, (int64_t)sizeof(TensorStats));
    cpu_check_float("tensor_statistics", t);
#pragma omp parallel for schedule(static)
    for (int p = 0; p < PARTS; p++) {
        const int64_t begin = p * length < n ? p * length : n, end = n - begin < length ? n : begin + length;
        if (begin < end) WITH_DTYPE(E, t.dtype, count_span(&parts[p], t.data, begin, end, limits, E));
    }
    for (int p = 0; p < PARTS; p++) add(stats.data, &parts[p]);
}
