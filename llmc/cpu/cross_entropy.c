#include "llmc/cpu/cross_entropy.h"

#include "llmc/base/checked.h"
#include "llmc/base/error.h"
#include "llmc/cpu/simd.h"

#include <omp.h>

// One row in cache at a time, three passes: maximum, exponentials and their sum, gradient.

static ALWAYS_INLINE float row_max(const void *row, int64_t vocab, DType E) {
    V lowest = vsplat(-INFINITY), m0 = lowest, m1 = lowest; // two chains hide the latency of max
    int64_t i = 0;
    for (; i + 2 * LANES <= vocab; i += 2 * LANES) {
        m0 = vmax(vload(row, i, E), m0);
        m1 = vmax(vload(row, i + LANES, E), m1);
    }
    for (; i < vocab; i += LANES) {
        int k = lanes(vocab - i);
        m0 = vmax(vfirst(k, vload_first(k, row, i, E), lowest), m0);
    }
    return vmax_lane(vmax(m0, m1));
}

// Returns sum exp(row - max); the terms into exps, which may be NULL (a constant where this is inlined).
static ALWAYS_INLINE float row_exps(float *exps, const void *row, int64_t vocab, float max, DType E) {
    V shift = vsplat(max), s0 = vzero(), s1 = vzero();
    int64_t i = 0;
    for (; i + 2 * LANES <= vocab; i += 2 * LANES) {
        V e0 = vexp(vload(row, i, E) - shift), e1 = vexp(vload(row, i + LANES, E) - shift);
        s0 += e0;
        s1 += e1;
        if (exps) vstore_f32(exps + i, e0), vstore_f32(exps + i + LANES, e1);
    }
    for (; i < vocab; i += LANES) {
        int k = lanes(vocab - i);
        V e = vfirst(k, vexp(vload_first(k, row, i, E) - shift), vzero());
        s0 += e;
        if (exps) vstore_first_f32(k, exps + i, e);
    }
    return vsum(s0 + s1);
}

// log(sum) is small where the target is the maximum, so the two large terms are subtracted first.
static ALWAYS_INLINE float row_loss(const void *row, int32_t target, float max, float sum, DType E) {
    return logf(sum) + (max - load_element(row, target, E));
}

static ALWAYS_INLINE float row_forward(const void *row, int32_t target, int64_t vocab, DType E) {
    float max = row_max(row, vocab, E);
    return row_loss(row, target, max, row_exps(NULL, row, vocab, max, E), E);
}

static ALWAYS_INLINE float row_backward(void *row, float *exps, int32_t target, int64_t vocab, int64_t Vp, float scale,
                                        DType E) {
    float max = row_max(row, vocab, E);
    float sum = row_exps(exps, row, vocab, max, E);
    float loss = row_loss(row, target, max, sum, E);
    exps[target] -= sum; // softmax - onehot, times sum
    V factor = vsplat(scale / sum);
    int64_t i = 0;
    for (; i + LANES <= vocab; i += LANES) vstore(row, i, vload_f32(exps + i) * factor, E);
    for (; i < Vp; i += LANES) {
        V d = vload_first_f32(lanes(vocab - i), exps + (i < vocab ? i : 0)) * factor;
        vstore_first(lanes(Vp - i), row, i, d, E);
    }
    return loss;
}

static void check_target(const int32_t *targets, int64_t r, int64_t vocab) {
    REQUIRE(targets[r] >= 0 && targets[r] < vocab, "cross entropy: target %d in row %lld, vocabulary %lld", targets[r],
            (long long)r, (long long)vocab);
}

static char *row_of(Tensor logits, int64_t r) {
    return (char *)logits.data + (size_t)(r * tensor_cols(logits)) * dtype_size(logits.dtype);
}

void cross_entropy_forward(float *losses, Tensor logits, const int32_t *targets, int64_t vocab) {
    int64_t rows = tensor_rows(logits);
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        check_target(targets, r, vocab);
        WITH_DTYPE(E, logits.dtype, losses[r] = row_forward(row_of(logits, r), targets[r], vocab, E));
    }
}

static int64_t scratch_row(int64_t vocab) { return round_up(vocab, LANES); }

int64_t cross_entropy_scratch(int64_t vocab, int threads) {
    return scratch_row(vocab) * threads * (int64_t)sizeof(float);
}

void cross_entropy_backward(float *losses, Tensor logits, const int32_t *targets, int64_t vocab, float scale,
                            float *scratch) {
    int64_t rows = tensor_rows(logits), Vp = tensor_cols(logits);
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        float *exps = scratch + omp_get_thread_num() * scratch_row(vocab);
        check_target(targets, r, vocab);
        WITH_DTYPE(E, logits.dtype, losses[r] = row_backward(row_of(logits, r), exps, targets[r], vocab, Vp, scale, E));
    }
}
