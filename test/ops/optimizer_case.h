// A parameter with all that its update reads and writes, on the device and in fp64, for the tests
// of the updates.
//
// A test makes parameters, calls the ops with their .update and checks them with
// parameter_expect_update, which runs the specification from the values that stood on the device
// before and then takes over what stands there now, so that the next step is checked from its true
// beginning. What is rounded at random is compared with its neighbours; 8-bit moments are compared
// as numbers, with the nearest number that has a code.
#pragma once
#include "llmc/base/arithmetic.h"
#include "llmc/number.h"
#include "test/ops/op_test.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

// Keep says which tensors stand beside the weight.
typedef enum { WEIGHT_ALONE, WEIGHT_AND_MASTER, WEIGHT_AND_COMPENSATION, NUM_KEEPS } Keep;

typedef struct {
    UpdateRule rule;
    DType dtype, grad; // of the weight and its gradient
    DType state;       // of the moments
    Keep keep;
    int64_t rows, cols; // cols 0: a vector of `rows` elements
    float weight_decay, rate;
    int group, stream;
} UpdateSpec;

// The values that count stand in the .v of the tensors: weight.v (master.v) holds w as ops.h names
// it; m_values and v_values the moments, decoded where they are codes.
typedef struct {
    UpdateSpec spec;
    int64_t n;
    OpTensor weight, master, compensation, grad, m, v, m_scale, v_scale, row, col, rms;
    double *w, *m_values, *v_values;
    UpdateTensor update;
    int64_t updates; // that the next one is checked as
} UpdateCase;

static const UpdateParams update_params = {.learning_rate = 0.1f,
                                           .moments = {{0.9f, 0.95f, 1e-3f},
                                                       {0.8f, 0.99f, 1e-2f},
                                                       {0.95f, 0.9f, 2e-3f},
                                                       {0.7f, 0.999f, 3e-3f}},
                                           .momentum = 0.9f,
                                           .seed = 42};
enum { UPDATES = 3 }; // with the next one, unless a test says otherwise

static inline const char *rule_name(UpdateRule rule) {
    const char *names[RULE_COUNT] = {"adamw", "lion", "sgd", "adafactor", "direction"};
    return names[rule];
}
static inline const char *keep_name(Keep keep) {
    return keep == WEIGHT_ALONE        ? "weight alone"
           : keep == WEIGHT_AND_MASTER ? "master"
                                       : "compensation";
}
static inline bool rule_has_m(UpdateRule rule) { return rule != RULE_ADAFACTOR; }
static inline bool spec_has_v(const UpdateSpec *s) {
    return s->rule == RULE_ADAMW || (s->rule == RULE_ADAFACTOR && s->cols == 0);
}

static inline OpsShape optimizer_shape(DType dtype, int num_tensors, int64_t factored) {
    return (OpsShape){.B = 8,
                      .T = 16,
                      .C = 64,
                      .NH = 1,
                      .Vp = 128,
                      .num_tensors = num_tensors,
                      .factored = factored,
                      .dtype = dtype};
}

// A decision to do update number `updates`.
static inline StepControl decision_of(int32_t updates, UpdateParams params, float grad_factor) {
    StepControl c = step_control_initial(1.0f);
    c.grad_factor = grad_factor, c.updates = updates - 1;
    StepLimits limits = {0};
    memcpy(limits.moments, params.moments, sizeof limits.moments);
    step_control_count_update(&c, limits);
    return c;
}

static inline Tensor control_with(float grad_factor, int32_t skip) {
    StepControl c = decision_of(UPDATES, update_params, grad_factor);
    c.skip = skip;
    return op_control(c);
}
static inline void control_set(Tensor control, int32_t updates, UpdateParams params,
                               float grad_factor) {
    const StepControl c = decision_of(updates, params, grad_factor);
    op_write(control, &c);
}

// The distance from x to the next number of the dtype away from 0.
static inline double ulp_of(double x, DType dtype) {
    const int bits = dtype == DTYPE_BF16 ? 8 : dtype == DTYPE_FP16 ? 11 : 24;
    // frexp's exponent of the smallest normal number
    const int smallest = dtype == DTYPE_FP16 ? -13 : -125;
    int exponent;
    frexp(x, &exponent);
    if (x == 0.0 || exponent < smallest) exponent = smallest;
    return ldexp(1.0, exponent - bits);
}

// ----------------------------------------------------------------------------------- 8-bit moments

static inline double decode8(uint8_t code, bool is_signed) {
    return (double)(is_signed ? dynamic8_decode_signed(code) : dynamic8_decode_unsigned(code));
}

// The distance from x to the nearest number of the map; of second moments above 0 without the 0.
static inline double distance8(double x, bool is_signed) {
    int low = !is_signed && x > 0.0 ? 1 : 0, high = 255;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (decode8((uint8_t)middle, is_signed) <= x)
            low = middle;
        else
            high = middle;
    }
    return fmin(fabs(x - decode8((uint8_t)low, is_signed)),
                fabs(decode8((uint8_t)high, is_signed) - x));
}

static inline void download8(double *values, OpTensor codes, OpTensor scales, bool is_signed) {
    const int64_t n = tensor_numel(codes.t);
    uint8_t *bytes = malloc((size_t)n);
    double *scale = op_values(scales.t);
    op_read(bytes, codes.t);
    for (int64_t i = 0; i < n; i++)
        values[i] = decode8(bytes[i], is_signed) * scale[i / STATE_BLOCK];
    free(bytes), free(scale);
}

// Codes and scales of `values`, which become what these say.
static inline void upload8(double *values, OpTensor codes, OpTensor *scales, bool is_signed) {
    const int64_t n = tensor_numel(codes.t);
    uint8_t *bytes = malloc((size_t)n);

    for (int64_t begin = 0; begin < n; begin += STATE_BLOCK) {
        const int64_t end = n - begin < STATE_BLOCK ? n : begin + STATE_BLOCK;
        float scale = 0.0f;
        for (int64_t i = begin; i < end; i++) scale = fmaxf(scale, fabsf((float)values[i]));
        scales->v[begin / STATE_BLOCK] = (double)scale;
        for (int64_t i = begin; i < end; i++) {
            const float x = scale > 0.0f ? (float)values[i] / scale : 0.0f;
            bytes[i] = is_signed ? dynamic8_encode_signed(x) : dynamic8_encode_unsigned(x);
        }
    }

    op_upload(scales);
    op_write(codes.t, bytes);
    free(bytes);
    download8(values, codes, *scales, is_signed);
}

// ------------------------------------------------------------------------------------------ making

static inline OpDims dims_of(const UpdateSpec *s) {
    return s->cols ? DIMS(s->rows, s->cols) : DIMS(s->rows);
}

// A moment: random, a few exactly 0; of second moments the square.
static inline void make_moment(UpdateCase *p, bool is_first) {
    const DType dtype = p->spec.rule == RULE_ADAFACTOR ? DTYPE_FP32 : p->spec.state;
    const char *name = is_first ? "m" : "v";
    OpTensor *x = is_first ? &p->m : &p->v, *scale = is_first ? &p->m_scale : &p->v_scale;
    OpTensor values =
        op_inout(dtype == DTYPE_U8 ? DTYPE_FP32 : dtype, name, dims_of(&p->spec), 0.3);

    for (int64_t i = 0; i < p->n; i++)
        if (is_first)
            values.v[i] *= i % 17 != 3;
        else
            values.v[i] *= values.v[i];

    if (dtype == DTYPE_U8) {
        *x = op_output(DTYPE_U8, name, dims_of(&p->spec));
        *scale = op_inout(DTYPE_FP32, "scale", DIMS(ceil_div(p->n, STATE_BLOCK)), 0.0);
        upload8(values.v, *x, scale, is_first);
    } else {
        *x = values;
        op_upload(x);
    }

    *(is_first ? &p->m_values : &p->v_values) = values.v;
}

// The compensation is what rounding took from the weights: up to half an ulp of them. w becomes
// weight + compensation.
static inline void make_compensation(UpdateCase *p) {
    p->compensation = op_inout(p->spec.dtype, "compensation", dims_of(&p->spec), 0.25);
    for (int64_t i = 0; i < p->n; i++)
        p->compensation.v[i] =
            fmax(-0.5, fmin(0.5, p->compensation.v[i])) * ulp_of(p->weight.v[i], p->spec.dtype);
    op_upload(&p->compensation);
    for (int64_t i = 0; i < p->n; i++) p->w[i] = p->weight.v[i] + p->compensation.v[i];
}

// Other gradients than in the step before; in step 0 those that are there.
static inline void new_gradients(UpdateCase *p, int step) {
    for (int64_t e = 0; e < p->n && step > 0; e++)
        p->grad.v[e] *= (e + step) % 3 == 0 ? -0.5 : 1.25;
    op_upload(&p->grad);
}

// Lion takes a sign: no sum of fp32 near enough to 0 to have another one than in fp64, but some are
// 0.
static inline void keep_signs_clear(UpdateCase *p, float grad_factor) {
    const double b1 = (double)update_params.moments[p->spec.group].beta1;
    for (int64_t i = 0; i < p->n; i++) {
        const double sum = b1 * p->m_values[i] + (1 - b1) * p->grad.v[i] * (double)grad_factor;
        if (fabs(sum) < 1e-4)
            p->grad.v[i] = 1.0 / (double)grad_factor * (p->m_values[i] < 0.0 ? -1.0 : 1.0);
        if (p->m_values[i] == 0.0 && i % 2) p->grad.v[i] = 0.0;
    }
    op_upload(&p->grad);
}

// Weights are small against the learning rate, so that an error of the update is not hidden by the
// weight itself.
static inline UpdateCase parameter_make(UpdateSpec spec) {
    UpdateCase p = {.spec = spec, .n = spec.rows * (spec.cols ? spec.cols : 1), .updates = UPDATES};
    p.weight = op_inout(spec.dtype, "weight", dims_of(&spec), 0.02);
    p.w = p.weight.v;

    if (spec.rule == RULE_DIRECTION) // momentum_update writes it
        p.grad = op_inout(spec.grad, "grad", dims_of(&spec), 0.5);
    else
        p.grad = op_input(spec.grad, "grad", dims_of(&spec), 0.5);

    if (spec.keep == WEIGHT_AND_MASTER) {
        p.master = op_inout(DTYPE_FP32, "master", dims_of(&spec), 0.02);
        p.w = p.master.v;
    }
    if (spec.keep == WEIGHT_AND_COMPENSATION) make_compensation(&p);

    if (rule_has_m(spec.rule)) make_moment(&p, true);
    if (spec_has_v(&spec)) make_moment(&p, false);
    if (spec.rule == RULE_ADAFACTOR) p.rms = op_output(DTYPE_FP32, "rms", DIMS(1));
    if (spec.rule == RULE_ADAFACTOR && spec.cols) {
        p.row = op_inout(DTYPE_FP32, "row", DIMS(spec.rows), 0.3),
        p.col = op_inout(DTYPE_FP32, "col", DIMS(spec.cols), 0.3);
        for (int64_t i = 0; i < spec.rows; i++) p.row.v[i] *= p.row.v[i];
        for (int64_t i = 0; i < spec.cols; i++) p.col.v[i] *= p.col.v[i];
        op_upload(&p.row), op_upload(&p.col);
    }

    p.update = (UpdateTensor){.weight = p.weight.t,
                              .master = p.master.t,
                              .compensation = p.compensation.t,
                              .grad = p.grad.t,
                              .m = p.m.t,
                              .v = p.v.t,
                              .m_scale = p.m_scale.t,
                              .v_scale = p.v_scale.t,
                              .row = p.row.t,
                              .col = p.col.t,
                              .rms = p.rms.t,
                              .rule = spec.rule,
                              .weight_decay = spec.weight_decay,
                              .rate = spec.rate,
                              .group = spec.group,
                              .stream = spec.stream};
    return p;
}

// optimizer_update of all tensors of a list that is made for this call.
static inline void update_once(const UpdateTensor *tensors, int n, UpdateParams params,
                               Tensor control) {
    UpdateList list = update_list(tensors, n);
    optimizer_update(&list, 0, n, params, control);
    update_list_free(&list);
}

// A slice of a parameter. Adafactor's row, col and rms stay whole.
static inline UpdateTensor update_slice(UpdateTensor t, int64_t begin, int64_t count) {
    Tensor *same[] = {&t.weight, &t.master, &t.compensation, &t.grad, &t.m, &t.v};
    for (int i = 0; i < 6; i++) *same[i] = tensor_slice_elements(*same[i], begin, count);
    t.m_scale = tensor_slice_elements(t.m_scale, begin / STATE_BLOCK, ceil_div(count, STATE_BLOCK));
    t.v_scale = tensor_slice_elements(t.v_scale, begin / STATE_BLOCK, ceil_div(count, STATE_BLOCK));
    t.offset = begin;
    return t;
}

static inline uint64_t parameter_digest(const UpdateCase *p, uint64_t digest) {
    const OpTensor all[] = {p->weight,  p->master,  p->compensation, p->grad, p->m,  p->v,
                            p->m_scale, p->v_scale, p->row,          p->col,  p->rms};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].t.data) digest = op_digest(digest, all[i]);
    return digest;
}

// ---------------------------------------------------------------------------------------- checking

// Elements of `size` were added and multiplied in fp32: three roundings of at most 2^-24 each, and
// one to spare.
static inline double slack_of(double size) { return 0x1p-22 * size; }

// The tensor holds the exact values but for `ulps`: 0.5 where they were rounded to nearest, 1 where
// stochastically, to a neighbour. The terms measure what fp32 loses before that, not their sum:
// terms that cancel leave a sum of few correct digits, and of a single element no limit relative to
// the sum holds for all seeds.
static inline void expect_within(OpTensor x, const double *exact, const double *size, double ulps) {
    double *got = op_values(x.t);
    for (int64_t i = 0; i < tensor_numel(x.t); i++) {
        // beyond a power of 2
        const double slack = slack_of(size[i]), ulp = ulp_of(fabs(exact[i]) + slack, x.t.dtype);
        if (!(fabs(got[i] - exact[i]) <= ulps * ulp + slack))
            op_fail("%s[%lld] is %.9g, not within %g ulp of %.9g", x.t.name, (long long)i, got[i],
                    ulps, exact[i]);
    }
    free(got);
}

static inline void expect_nearest8(OpTensor codes, OpTensor scales, const double *exact,
                                   const double *size, bool is_signed) {
    const int64_t n = tensor_numel(codes.t);
    double *got = calloc((size_t)n, sizeof *got), *scale = op_values(scales.t);
    download8(got, codes, scales, is_signed);
    for (int64_t begin = 0; begin < n; begin += STATE_BLOCK) {
        const int64_t end = n - begin < STATE_BLOCK ? n : begin + STATE_BLOCK;
        double largest = 0.0, largest_size = 0.0;
        for (int64_t i = begin; i < end; i++)
            largest = fmax(largest, fabs(exact[i])), largest_size = fmax(largest_size, size[i]);
        // The scale is off by the rounding of one value, and so is every number of the block.
        const double slack = slack_of(largest_size), got_scale = scale[begin / STATE_BLOCK];
        if (!(fabs(got_scale - largest) <= slack))
            op_fail("%s: scale %.9g, not %.9g", codes.t.name, got_scale, largest);
        for (int64_t i = begin; i < end && largest > 0.0; i++)
            if (!(fabs(got[i] - exact[i]) <=
                  distance8(exact[i] / largest, is_signed) * largest + 3.0 * slack))
                op_fail("%s[%lld] is %.9g, the nearest to %.9g is %.3g away", codes.t.name,
                        (long long)i, got[i], exact[i],
                        distance8(exact[i] / largest, is_signed) * largest);
    }
    free(got), free(scale);
}

static inline void expect_moment(OpTensor x, OpTensor scales, double *exact, const double *size,
                                 bool is_signed) {
    if (!exact || !size) op_fail("%s: nothing to compare it with", x.t.name);
    if (x.t.dtype == DTYPE_U8)
        expect_nearest8(x, scales, exact, size, is_signed);
    else
        expect_within(x, exact, size, x.t.dtype == DTYPE_BF16 ? 1.0 : 0.5);
}

static inline void take_over(double *values, Tensor t) {
    double *now = op_values(t);
    memcpy(values, now, (size_t)tensor_numel(t) * sizeof *now);
    free(now);
}

// The values in fp64 become what stands on the device.
static inline void parameter_read(UpdateCase *p) {
    const OpTensor plain[] = {p->grad, p->row, p->col, p->rms};
    for (int i = 0; i < 4; i++)
        if (plain[i].t.data) take_over(plain[i].v, plain[i].t);
    take_over(p->w, p->spec.keep == WEIGHT_AND_MASTER ? p->master.t : p->weight.t);

    if (p->compensation.t.data) {
        take_over(p->compensation.v, p->compensation.t);
        for (int64_t i = 0; i < p->n; i++) p->w[i] += p->compensation.v[i];
    }

    if (p->m.t.data && p->m.t.dtype == DTYPE_U8)
        download8(p->m_values, p->m, p->m_scale, true);
    else if (p->m.t.data)
        take_over(p->m_values, p->m.t);
    if (p->v.t.data && p->v.t.dtype == DTYPE_U8)
        download8(p->v_values, p->v, p->v_scale, false);
    else if (p->v.t.data)
        take_over(p->v_values, p->v.t);
}

static inline RefUpdate parameter_reference(const UpdateCase *p) {
    return (RefUpdate){.rule = p->spec.rule,
                       .weight_decay = (double)p->spec.weight_decay,
                       .rate = (double)p->spec.rate,
                       .n = p->n,
                       .cols = p->spec.cols,
                       .padding = p->update.padding,
                       .group = p->spec.group,
                       .updates = p->updates,
                       .w = p->w,
                       .grad = p->grad.v,
                       .m = p->m_values,
                       .v = p->v_values,
                       .row = p->row.v,
                       .col = p->col.v,
                       .rms = p->rms.v};
}

// How large the terms are that each weight is summed from: the specification with every term of one
// sign. A weight is off by the roundings of these, however few correct digits terms that cancel
// leave of it.
static inline double *weight_sizes(const UpdateCase *p, UpdateParams params, double grad_factor) {
    const double *from[] = {p->w, p->grad.v, p->m_values, p->v_values};
    double *copy[4] = {0};
    for (int i = 0; i < 4; i++) {
        if (!from[i]) continue;
        copy[i] = malloc((size_t)p->n * sizeof **copy);
        for (int64_t e = 0; e < p->n; e++)
            copy[i][e] = fabs(from[i][e]) * (i == 1 || i == 2 ? -1.0 : 1.0);
    }

    RefUpdate t = parameter_reference(p);
    t.w = copy[0], t.grad = copy[1], t.m = copy[2], t.v = copy[3], t.weight_decay = -t.weight_decay;
    ref_optimizer_update(&t, params, grad_factor);
    free(copy[1]), free(copy[2]), free(copy[3]);
    return copy[0];
}

// w, and the weight made of it. AdamW is the longest way to a w: g, two products and a sum for m,
// as many for v and its g^2, two corrections, a root, eps, a quotient, the decay, the rate and the
// difference, 16 roundings of at most 2^-24 of `size` each, four times slack_of.
static inline void expect_weight(const UpdateCase *p, double *size) {
    const DType dtype = p->spec.dtype;
    for (int64_t i = 0; i < p->n; i++) size[i] *= 4.0;

    if (p->spec.keep == WEIGHT_ALONE) {
        expect_within(p->weight, p->w, size, dtype == DTYPE_FP32 ? 0.5 : 1.0);
        return;
    }

    if (p->spec.keep == WEIGHT_AND_MASTER) expect_within(p->master, p->w, size, 0.5);
    double *weight = op_values(p->weight.t),
           *rest = op_values((p->compensation.t.data ? p->compensation : p->master).t);
    for (int64_t i = 0; i < p->n; i++) {
        if (p->spec.keep == WEIGHT_AND_MASTER) {
            if (weight[i] != ref_round(rest[i], dtype))
                op_fail("%g is not %g rounded", weight[i], rest[i]);
            continue;
        }
        // compensation was rounded too: by half of one of its own ulps, under 2^-p of itself.
        const double bound = 0.5 * ulp_of(rest[i], dtype) + slack_of(size[i]),
                     got = weight[i] + rest[i];
        if (!(fabs(got - p->w[i]) <= bound))
            op_fail("weight + compensation [%lld] is %.9g, not within %.3g of %.9g", (long long)i,
                    got, bound, p->w[i]);
        if (ref_round(weight[i] + rest[i] * (1.0 - 0x1p-7), dtype) != weight[i])
            op_fail("%g + %g is not the weight %g", weight[i], rest[i], weight[i]);
    }

    free(weight), free(rest);
}

typedef void (*Specification)(const RefUpdate *t, UpdateParams params, double grad_factor);

// The specification from the values before, and its moments against what stands on the device.
static inline void expect_moments(UpdateCase *p, Specification specification, UpdateParams params,
                                  float grad_factor) {
    double *m_size = calloc((size_t)p->n, sizeof *m_size),
           *v_size = calloc((size_t)p->n, sizeof *v_size);
    for (int64_t i = 0; i < p->n; i++) {
        const double g = fabs(p->grad.v[i] * (double)grad_factor);
        if (p->m_values) m_size[i] = fabs(p->m_values[i]) + g;
        if (p->v_values) v_size[i] = fabs(p->v_values[i]) + g * g;
    }
    const RefUpdate reference = parameter_reference(p);
    specification(&reference, params, (double)grad_factor);
    if (p->m.t.data) expect_moment(p->m, p->m_scale, p->m_values, m_size, true);
    if (p->v.t.data) expect_moment(p->v, p->v_scale, p->v_values, v_size, false);
    free(m_size), free(v_size);
}

// After optimizer_update.
static inline void parameter_expect_update(UpdateCase *p, UpdateParams params, float grad_factor) {
    double *size = weight_sizes(p, params, (double)grad_factor);
    expect_moments(p, ref_optimizer_update, params, grad_factor);
    expect_weight(p, size);
    free(size);
    parameter_read(p);
}
