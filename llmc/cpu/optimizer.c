// The end of the step: gradient norm, the decision, AdamW.
//
// Norm and update run over all tensors in one parallel region: each tensor is cut into at most 128 parts, which the
// threads take as they come free, so that the hundred small tensors of a model cost nothing apart and the last thread
// does not wait long for the largest. The cut depends on sizes alone, and parts are summed in order: the bits do not
// depend on the number of threads. Both passes are bound by memory: 4 and 30 bytes a parameter in bf16 with fp32
// gradient, master, m and v.
#include "llmc/base/checked.h"
#include "llmc/base/error.h"
#include "llmc/base/rng.h"
#include "llmc/cpu/cpu.h"
#include "llmc/cpu/cpu_ops.h"
#include "llmc/cpu/simd.h"

// --------------------------------------------------------------------------------------------------------------- parts

enum { MAX_PARTS = 128, MIN_PART_ELEMENTS = 16384, PART_ALIGNMENT = 8 * LANES };

static int64_t part_elements(int64_t numel) {
    int64_t n = round_up(ceil_div(numel, MAX_PARTS), PART_ALIGNMENT);
    return n < MIN_PART_ELEMENTS ? MIN_PART_ELEMENTS : n;
}

// All parts of all tensors, numbered through: tensor i has the parts first[i] .. first[i + 1] - 1.
typedef struct {
    int n;
    int64_t *first; // (n + 1)
    int64_t *numel; // (n)
    double *sums;   // (n * MAX_PARTS) sum of squares of each part
} Parts;

typedef struct {
    int tensor;
    int64_t begin, end; // elements
} Part;

// Where the parts of n tensors lie in the workspace; returns the bytes they take. first[] lies at the start.
static int64_t parts_layout(int n, int64_t *numel, int64_t *sums) {
    int64_t end = 0;
    cpu_part(&end, (n + 1) * (int64_t)sizeof(int64_t));
    *numel = cpu_part(&end, n * (int64_t)sizeof(int64_t));
    *sums = cpu_part(&end, n * (int64_t)MAX_PARTS * (int64_t)sizeof(double));
    return end;
}

int64_t cpu_optimizer_workspace(OpsShape shape) {
    int64_t numel, sums;
    return parts_layout((int)shape.num_tensors, &numel, &sums);
}

static Parts parts_begin(const char *op, int n) {
    int64_t numel, sums;
    char *workspace = cpu_scratch(op, parts_layout(n, &numel, &sums));
    Parts p = {n, (int64_t *)workspace, (int64_t *)(workspace + numel), (double *)(workspace + sums)};
    p.first[0] = 0;
    return p;
}

static void parts_add(Parts p, int tensor, int64_t numel) {
    p.numel[tensor] = numel;
    p.first[tensor + 1] = p.first[tensor] + ceil_div(numel, part_elements(numel));
}

static Part parts_get(Parts p, int64_t number) {
    int low = 0, high = p.n; // first[low] <= number < first[high]
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (p.first[middle] <= number)
            low = middle;
        else
            high = middle;
    }
    int64_t size = part_elements(p.numel[low]), begin = (number - p.first[low]) * size;
    return (Part){low, begin, p.numel[low] - begin < size ? p.numel[low] : begin + size};
}

// ---------------------------------------------------------------------------------------------------------------- norm

// fp32 sums are kept as short as this, then added in fp64.
enum { RUN = 4096 };

static ALWAYS_INLINE double run_sumsq(const void *grad, int64_t begin, int64_t end, DType G) {
    V even = vzero(), odd = vzero(); // two chains: one would wait for the latency of its fma
    int64_t whole = begin;
    for (; whole + 2 * LANES <= end; whole += 2 * LANES) {
        V x = vload(grad, whole, G), y = vload(grad, whole + LANES, G);
        even = vfma(x, x, even);
        odd = vfma(y, y, odd);
    }
    EACH_LANES(i, k, end - whole, {
        V x = vload_first(k, grad, whole + i, G);
        even = vfma(x, x, even);
    });
    return vsum(even + odd);
}

static ALWAYS_INLINE double part_sumsq(const void *grad, Part part, DType G) {
    double sum = 0.0;
    for (int64_t i = part.begin; i < part.end; i += RUN)
        sum += run_sumsq(grad, i, part.end - i < RUN ? part.end : i + RUN, G);
    return sum;
}

void gradient_sumsq(Tensor sumsq, const Tensor *grads, int n) {
    const char *op = "gradient_sumsq";
    tensor_check(op, sumsq, DTYPE_FP32, n);
    Parts parts = parts_begin(op, n);
    for (int i = 0; i < n; i++) {
        cpu_check_float(op, grads[i]);
        parts_add(parts, i, tensor_numel(grads[i]));
    }
#pragma omp parallel for schedule(dynamic)
    for (int64_t number = 0; number < parts.first[n]; number++) {
        Part part = parts_get(parts, number);
        Tensor grad = grads[part.tensor];
        WITH_DTYPE(G, grad.dtype, parts.sums[number] = part_sumsq(grad.data, part, G));
    }
    float *out = sumsq.data;
    for (int i = 0; i < n; i++) {
        double sum = 0.0;
        for (int64_t number = parts.first[i]; number < parts.first[i + 1]; number++) sum += parts.sums[number];
        out[i] = (float)sum;
    }
}

// ------------------------------------------------------------------------------------------------------------ decision

void step_control_update(Tensor control, Tensor sumsq, Tensor losses, int64_t num_tokens, StepLimits limits) {
    const char *op = "step_control_update";
    const int num_tensors = (int)tensor_numel(sumsq);
    tensor_check(op, control, DTYPE_U8, (int64_t)sizeof(StepControl));
    tensor_check(op, sumsq, DTYPE_FP32, num_tensors);
    tensor_check(op, losses, DTYPE_FP32, tensor_numel(losses));
    const float *loss = losses.data;
    double loss_sum = 0.0;
    for (int64_t b = 0; b < tensor_numel(losses); b++) loss_sum += loss[b];
    step_control_decide(control.data, sumsq.data, num_tensors, loss_sum, num_tokens, limits);
}

// --------------------------------------------------------------------------------------------------------------- AdamW

// The constants of one step, as the inner loop takes them.
typedef struct {
    float grad_factor, learning_rate, eps;
    float beta1, beta2, one_minus_beta1, one_minus_beta2;
    float m_correction, v_correction; // 1 / (1 - beta^step)
    uint64_t seed, step;
} AdamWStep;

static AdamWStep adamw_step(AdamWParams p, float grad_factor) {
    const double beta1 = p.beta1, beta2 = p.beta2, step = (double)p.step;
    return (AdamWStep){.grad_factor = grad_factor,
                       .learning_rate = p.learning_rate,
                       .eps = p.eps,
                       .beta1 = p.beta1,
                       .beta2 = p.beta2,
                       .one_minus_beta1 = (float)(1.0 - beta1),
                       .one_minus_beta2 = (float)(1.0 - beta2),
                       .m_correction = (float)(1.0 / (1.0 - pow(beta1, step))),
                       .v_correction = (float)(1.0 / (1.0 - pow(beta2, step))),
                       .seed = p.seed,
                       .step = (uint64_t)p.step};
}

// Elements whose random bits are made at a time: 16 counters side by side.
enum { RANDOM_BLOCK = PART_ALIGNMENT };

// 16 random bits for each of the elements e .. e + 127 (e a multiple of 128): element e has half-word e % 8, lower
// halves first, of philox(seed, stream, step * 2^40 + e / 8), as in llmc/base/rng.h. The rounds of all counters run in
// step, in loops that the compiler turns into vector code: one counter at a time took three times as long as AdamW.
static ALWAYS_INLINE void rounding_bits(uint32_t words[LANES][4], const AdamWStep *s, uint64_t stream, int64_t e) {
    const uint64_t index =
        (s->step << 40) + (uint64_t)e / 8; // its last 4 bits are 0: adding a lane's number carries not
    VU c0 = vsplat_bits((uint32_t)index) + vlane_numbers(), c1 = vsplat_bits((uint32_t)(index >> 32));
    VU c2 = vsplat_bits((uint32_t)stream), c3 = vsplat_bits((uint32_t)(stream >> 32));
    uint32_t k0 = (uint32_t)s->seed, k1 = (uint32_t)(s->seed >> 32);
    for (int round = 0; round < 10; round++) {
        VU high0, low0 = vmul_wide(c0, 0xD2511F53u, &high0);
        VU high2, low2 = vmul_wide(c2, 0xCD9E8D57u, &high2);
        c0 = high2 ^ c1 ^ k0, c1 = low2;
        c2 = high0 ^ c3 ^ k1, c3 = low0;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    for (int j = 0; j < LANES; j++) words[j][0] = c0[j], words[j][1] = c1[j], words[j][2] = c2[j], words[j][3] = c3[j];
}

// x rounded to bf16, up with the probability of what is cut off: the mean of many roundings is x. Infinity stays as it
// is, NaN stays NaN.
static ALWAYS_INLINE V round_stochastically(V x, VU random) {
    VU u = (VU)x;
    VU nan = (VU)((VI)((u & 0x7FFFFFFFu) + 0x7FFFFFu) >> 31);
    return (V)((nan & u) | (~nan & (u + random) & 0xFFFF0000u));
}

// m, v and the parameter (fp32 master, or the weight itself) of the elements [begin, end); the weight is written in its
// dtype E. random: the bits of these elements where the weight is rounded stochastically, NULL elsewhere.
static ALWAYS_INLINE void adamw_span(const AdamWTensor *t, const AdamWStep *s, int64_t begin, int64_t end,
                                     const void *random, bool has_master, DType E, DType G) {
    void *param = has_master ? t->master.data : t->weight.data;
    const DType P = has_master ? DTYPE_FP32 : E;
    EACH_LANES(i, k, end - begin, {
        const int64_t e = begin + i;
        V g = vload_first(k, t->grad.data, e, G) * s->grad_factor;
        V m = vload_first(k, t->m.data, e, DTYPE_FP32);
        V v = vload_first(k, t->v.data, e, DTYPE_FP32);
        V w = vload_first(k, param, e, P);
        m = vfma(vsplat(s->beta1), m, s->one_minus_beta1 * g);
        v = vfma(vsplat(s->beta2), v, s->one_minus_beta2 * (g * g));
        V update = m * s->m_correction / (vsqrt(v * s->v_correction) + s->eps);
        w -= s->learning_rate * vfma(vsplat(t->weight_decay), w, update);
        vstore_first(k, t->m.data, e, m, DTYPE_FP32);
        vstore_first(k, t->v.data, e, v, DTYPE_FP32);
        if (has_master) vstore_first(k, param, e, w, DTYPE_FP32);
        if (random) w = round_stochastically(w, (VU)vload_bf16((const uint16_t *)random + i) >> 16);
        vstore_first(k, t->weight.data, e, w, E);
    });
}

static ALWAYS_INLINE void adamw_part(const AdamWTensor *t, const AdamWStep *s, Part part, uint64_t stream,
                                     bool has_master, DType E, DType G) {
    if (has_master || E == DTYPE_FP32) {
        adamw_span(t, s, part.begin, part.end, NULL, has_master, E, G);
        return;
    }
    for (int64_t e = part.begin; e < part.end; e += RANDOM_BLOCK) {
        uint32_t words[LANES][4];
        rounding_bits(words, s, stream, e);
        adamw_span(t, s, e, part.end - e < RANDOM_BLOCK ? part.end : e + RANDOM_BLOCK, words, false, E, G);
    }
}

static void adamw_check(const char *op, const AdamWTensor *t) {
    int64_t numel = tensor_numel(t->weight);
    cpu_check_float(op, t->weight);
    cpu_check_weight_gradient(op, t->grad, t->weight.dtype, numel);
    tensor_check(op, t->m, DTYPE_FP32, numel);
    tensor_check(op, t->v, DTYPE_FP32, numel);
    if (t->master.data) tensor_check(op, t->master, DTYPE_FP32, numel);
}

void adamw_update(const AdamWTensor *tensors, int n, AdamWParams params, Tensor control) {
    const char *op = "adamw_update";
    tensor_check(op, control, DTYPE_U8, (int64_t)sizeof(StepControl));
    REQUIRE(params.step >= 1, "adamw_update: step %lld, the first is 1", (long long)params.step);
    Parts parts = parts_begin(op, n);
    for (int i = 0; i < n; i++) {
        adamw_check(op, &tensors[i]);
        parts_add(parts, i, tensor_numel(tensors[i].weight));
    }
    const StepControl *decided = control.data;
    if (decided->skip != SKIP_NONE) return;
    const AdamWStep step = adamw_step(params, decided->grad_factor);
#pragma omp parallel for schedule(dynamic)
    for (int64_t number = 0; number < parts.first[n]; number++) {
        Part part = parts_get(parts, number);
        const AdamWTensor *t = &tensors[part.tensor];
        uint64_t stream = STREAM_ROUNDING + (uint64_t)part.tensor;
        if (t->master.data)
            WITH_DTYPE(E, t->weight.dtype,
                       WITH_DTYPE(G, t->grad.dtype, adamw_part(t, &step, part, stream, true, E, G)));
        else
            WITH_DTYPE(E, t->weight.dtype,
                       WITH_DTYPE(G, t->grad.dtype, adamw_part(t, &step, part, stream, false, E, G)));
    }
}
