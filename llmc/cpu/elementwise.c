// The small, memory-bound ops: fill and cast, the sums of losses by sequence, GELU, sums and
// scalings of whole tensors, gradient accumulation, and tensor statistics.
#include "llmc/base/arithmetic.h"
#include "llmc/base/error.h"
#include "llmc/base/random.h"
#include "llmc/cpu/cpu.h"
#include "llmc/cpu/stochastic_rounding.h"
#include <math.h>

void backend_tensor_fill(Tensor t, float value) {
    const int64_t n = tensor_numel(t);
    if (t.dtype == DTYPE_FP32) {
        float *x = t.data;
#pragma omp parallel for schedule(static)
        for (int64_t i = 0; i < n; i++) x[i] = value;
    } else {
        uint16_t *x = t.data, bits = float_to_fp16(value);
        if (t.dtype == DTYPE_BF16) bits = float_to_bf16(value);
#pragma omp parallel for schedule(static)
        for (int64_t i = 0; i < n; i++) x[i] = bits;
    }
}

void backend_tensor_cast(Tensor dst, Tensor src) {
    const int64_t n = tensor_numel(src);
    const char *from = src.data;
    char *to = dst.data;
    // fp16 is not a compute dtype here, but weights and gradients may be read and written as fp16.
    const bool vector =
        dst.dtype != src.dtype && dst.dtype != DTYPE_FP16 && src.dtype != DTYPE_FP16;
#pragma omp parallel for schedule(static)
    for (int64_t begin = 0; begin < n; begin += TASK_ELEMENTS) {
        const int64_t count = task_end(begin, n) - begin;
        if (vector)
            WITH_DTYPES(E, dst.dtype, S, src.dtype, {
                EACH_LANES(i, k, count, {
                    V x = vload_first(k, from, begin + i, S);
                    vstore_first(k, to, begin + i, x, E);
                });
            });
        else
            convert_elements(to + (size_t)begin * dtype_size(dst.dtype), dst.dtype,
                             from + (size_t)begin * dtype_size(src.dtype), src.dtype, count);
    }
}

void backend_sequence_losses(Tensor sums, Tensor losses, bool add) {
    const int64_t B = tensor_numel(sums), n = tensor_numel(losses), T = n / B;
    float *sum = sums.data;
    const float *loss = losses.data;
    for (int64_t b = 0; b < B; b++) {
        double total = add ? sum[b] : 0.0;
        for (int64_t t = 0; t < T; t++) total += loss[b * T + t];
        sum[b] = (float)total;
    }
}

// -------------------------------------------------------------------------------------------- GELU

// GELU in its tanh form. 0.5 (1 + tanh(u)) is the logistic function of 2u, so one exp replaces
// tanh and nothing cancels for negative x:
//   gelu(x)  = x s,      s = 1 / (1 + exp(-2u)),       2u  = 2 sqrt(2/pi) (x + 0.044715 x^3)
//   gelu'(x) = s + x s (1 - s) (2u)',                (2u)' = 2 sqrt(2/pi) (1 + 3 * 0.044715 x^2)
// Both passes are memory-bound where vectors have 16 lanes: they move 2 and 3 elements each,
// which hides the arithmetic. Narrower vectors compute for longer, so there the exponential takes
// fewer multiplications.

#define TWO_SQRT_2_OVER_PI 1.5957691216f
#define CUBIC              0.044715f
#define LOG2_E             1.44269504f

// Beyond these bounds gelu is x, or as near to 0 as gelu(-10.04) = -5e-38; within them exp(-2u) is
// finite and no denormal. NaN passes.
static ALWAYS_INLINE V gelu_bounded_below(V x) { return LANES < 16 ? vmax(vsplat(-10.04f), x) : x; }
static ALWAYS_INLINE V gelu_bounded(V x) {
    return LANES < 16 ? vmin(vsplat(9.98f), gelu_bounded_below(x)) : x;
}

// 1 + exp(-2u), of which 1 / is s, for a bounded x.
static ALWAYS_INLINE V gelu_one_plus_exp(V x) {
    if (LANES == 16) // exp = inf gives s = 0
        return 1.0f + vexp(x * vfma(x * x, vsplat(-TWO_SQRT_2_OVER_PI * CUBIC),
                                    vsplat(-TWO_SQRT_2_OVER_PI)));
    const V y_over_x = vfma(x * x, vsplat(-TWO_SQRT_2_OVER_PI * CUBIC * LOG2_E),
                            vsplat(-TWO_SQRT_2_OVER_PI * LOG2_E));
    return vone_plus_exp2(x, y_over_x);
}

void backend_gelu_forward(Tensor out, Tensor pre) {
    int64_t n = tensor_numel(pre);
    const void *x = pre.data;
    void *y = out.data;
    EACH_ELEMENT(E, pre.dtype, i, k, n, {
        const V a = vload_first(k, x, i, E);
        vstore_first(k, y, i, gelu_bounded_below(a) / gelu_one_plus_exp(gelu_bounded(a)), E);
    });
}

void backend_gelu_backward(Tensor dpre, Gradient dbias, Tensor dout, Tensor pre) {
    int64_t n = tensor_numel(pre);
    const void *in = pre.data, *grad = dout.data;
    void *din = dpre.data;
    EACH_ELEMENT(E, pre.dtype, i, k, n, {
        const V x = gelu_bounded(vload_first(k, in, i, E)), s = 1.0f / gelu_one_plus_exp(x);
        const V slope =
            vfma(x * x, vsplat(3.0f * TWO_SQRT_2_OVER_PI * CUBIC), vsplat(TWO_SQRT_2_OVER_PI));
        const V ds = x * slope; // (1 - s) ds is that of s, relative to s
        vstore_first(k, din, i, vload_first(k, grad, i, E) * vfma(s, vfma(-s, ds, ds), s), E);
    });
    if (dbias.to.data) backend_bias_backward(dbias, dpre);
}

// --------------------------------------------------------------------- sums and scalings, for Muon

void backend_tensor_axpby(Tensor out, float a, Tensor x, float b, Tensor y) {
    const int64_t n = tensor_numel(out);
    const void *first = x.data, *second = y.data;
    void *to = out.data;
    EACH_ELEMENT(E, out.dtype, i, k, n, {
        const V by = b * vload_first(k, second, i, E);
        vstore_first(k, to, i, vfma(vsplat(a), vload_first(k, first, i, E), by), E);
    });
}

static void scale_elements(Tensor out, Tensor in, float factor) {
    const int64_t n = tensor_numel(out);
    const void *from = in.data;
    void *to = out.data;
#pragma omp parallel for schedule(static)
    for (int64_t begin = 0; begin < n; begin += TASK_ELEMENTS)
        WITH_DTYPES(E, out.dtype, S, in.dtype, {
            EACH_LANES(i, k, task_end(begin, n) - begin, {
                V x = vload_first(k, from, begin + i, S) * factor;
                vstore_first(k, to, begin + i, x, E);
            });
        });
}

void backend_stack_gather(Tensor stack, const Tensor *in, Tensor sumsq) {
    const float *squares = sumsq.data;
    const int64_t entries = stack.shape[0], n = tensor_numel(stack) / entries;
    const double norm_min = sqrt((double)n) * (double)STACK_RMS_MIN;
    for (int64_t i = 0; i < entries; i++) {
        const double norm = fmax(sqrt((double)squares[i]), norm_min);
        scale_elements(tensor_slice_elements(stack, i * n, n), in[i], (float)(1.0 / norm));
    }
}

void backend_stack_scatter(const Tensor *out, Tensor stack, const float *factors) {
    const int64_t entries = stack.shape[0], n = tensor_numel(stack) / entries;
    for (int64_t i = 0; i < entries; i++)
        scale_elements(out[i], tensor_slice_elements(stack, i * n, n), factors[i]);
}

// ------------------------------------------------------------------------------------ gradient_add

// Adds the fp32 gradients of a micro-step to gradients that are accumulated in the compute dtype.
// The sum is rounded stochastically, because with rounding to nearest a small gradient would never
// change a large sum. Memory-bound: 6 bytes per element for the first micro-step, 8 for the others.

// Elements [begin, end) of dst, which has dtype D; begin is a multiple of RANDOM_BLOCK. index: the
// counter of element 0.
static ALWAYS_INLINE void add_span(void *dst, const float *src, int64_t begin, int64_t end,
                                   bool add, uint64_t seed, uint64_t stream, uint64_t index,
                                   DType D) {
    uint32_t words[LANES][4];
    for (int64_t e = begin; e < end; e += RANDOM_BLOCK) {
        const int64_t n = end - e < RANDOM_BLOCK ? end - e : RANDOM_BLOCK;
        if (D != DTYPE_FP32) vrounding_bits(words, seed, stream, index + (uint64_t)e / 8);
        EACH_LANES(i, k, n, {
            V x = vload_first(k, src, e + i, DTYPE_FP32);
            if (add) x += vload_first(k, dst, e + i, D);
            if (D != DTYPE_FP32) x = round_stochastically(x, vrounding_bits_at(words, i));
            vstore_first(k, dst, e + i, x, D);
        });
    }
}

void backend_gradient_add(Gradient dst, Tensor src, uint64_t seed, int stream, Tensor control) {
    const int64_t n = tensor_numel(dst.to);
    const uint64_t index = (uint64_t)((const StepControl *)control.data)->micro_steps << 32;
    const uint64_t name = (uint64_t)STREAM_GRADIENT + (uint64_t)stream;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i += TASK_ELEMENTS)
        WITH_DTYPE(
            D, dst.to.dtype,
            add_span(dst.to.data, src.data, i, task_end(i, n), dst.add, seed, name, index, D));
}

void backend_micro_step_count(Tensor control, int64_t count) {
    ((StepControl *)control.data)->micro_steps += (uint32_t)count;
}

// ------------------------------------------------------------------------------- tensor_statistics

// tensor_statistics, in one pass over the bits of a tensor. Magnitudes are compared as integers,
// because the ops run with denormals flushed to 0 and a comparison of floats would not see them.
// Owns nothing; the counts do not depend on the number of threads.

// A tensor is cut into this many parts, each counted separately and added in order, so the sum of
// squares has the same bits for any number of threads.
enum { PARTS = 64 };

typedef double VD __attribute__((vector_size(8 * LANES)));

// A lane of each count. A part of less than 2^32 elements fits: 2^30 to one of 4 lanes.
typedef struct {
    VD sumsq;
    VU zero, small, large, amax;
} Lanes;

static ALWAYS_INLINE void count_span(TensorStats *stats, const void *x, int64_t begin, int64_t end,
                                     FormatLimits limits, DType E) {
    Lanes c = {0};
    // lanes of the last vector, which read as 0
    const int64_t missing = (LANES - (end - begin) % LANES) % LANES;
    EACH_LANES(i, k, end - begin, {
        const VU bits = (VU)vload_first(k, x, begin + i, E),
                 size = bits & (uint32_t)FLOAT_MAGNITUDE;
        const VU finite = vless_bits(size, vsplat_bits(FLOAT_INFINITY));
        const VU larger = vless_bits(c.amax, size & finite);
        const VD value = __builtin_convertvector((V)(bits & finite), VD);
        c.sumsq += value * value;
        c.zero -= vless_bits(size, vsplat_bits(1)); // -1 in each lane that is meant
        c.small -= vless_bits(size, vsplat_bits(limits.smallest));
        c.large -= vless_bits(vsplat_bits(limits.largest), size);
        c.amax = (larger & size) | (~larger & c.amax);
    });
    uint32_t amax = 0;
    int64_t zero = -missing, small = -missing;
    for (int i = 0; i < LANES; i++) {
        stats->sumsq += c.sumsq[i];
        zero += c.zero[i];
        small += c.small[i];
        stats->overflow += c.large[i];
        if (c.amax[i] > amax) amax = c.amax[i];
    }
    stats->count = (double)(end - begin);
    stats->zero = (double)zero;
    stats->underflow = (double)(small - zero);
    memcpy(&stats->amax, &amax, sizeof amax);
}

void backend_tensor_statistics(Tensor stats, Tensor t, DType format) {
    const int64_t n = tensor_numel(t), length = round_up(ceil_div(n, PARTS), LANES);
    const FormatLimits limits = format_limits(format);
    TensorStats parts[PARTS] = {0};
#pragma omp parallel for schedule(static)
    for (int p = 0; p < PARTS; p++) {
        const int64_t begin = min_i64(p * length, n), end = min_i64(begin + length, n);
        if (begin < end)
            WITH_DTYPE(E, t.dtype, count_span(&parts[p], t.data, begin, end, limits, E));
    }

    TensorStats *sum = stats.data;
    for (int p = 0; p < PARTS; p++) {
        sum->count += parts[p].count;
        sum->sumsq += parts[p].sumsq;
        sum->zero += parts[p].zero;
        sum->underflow += parts[p].underflow;
        sum->overflow += parts[p].overflow;
        uint32_t a, b; // as bits: see above
        memcpy(&a, &sum->amax, sizeof a);
        memcpy(&b, &parts[p].amax, sizeof b);
        if (b > a) sum->amax = parts[p].amax;
    }
}
