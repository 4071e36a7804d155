// Muon on the running backend against the same iteration in fp64, and against what the iteration is
// for: singular values near 1. One set of tensors has every shape there is: wide, tall, square,
// three stacked ones, and a vector that is not Muon's.
#include "llmc/train/muon.h"
#include "test/ops/op_test.h"
#include <math.h>

TestFixture test_all = {op_group_setup, op_group_teardown};

enum { NUM_TENSORS = 5, SIDE = 40, STEPS = 5, MAX_ELEMENTS = 4 * SIDE * SIDE };

static const ParameterSpec matrix_spec = {.name = "matrix", .group = GROUP_MATRIX};
static const ParameterSpec vector_spec = {.name = "vector", .group = GROUP_VECTOR};
#define MATRIX(rows_, cols_, n, ...)                                                               \
    {                                                                                              \
        .spec = &matrix_spec, .rank = 2, .rows = rows_, .cols = cols_, .num_parts = n, .parts = {  \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
static const Parameter parameters[NUM_TENSORS] = {
    MATRIX(SIDE, 4 * SIDE, 1, SIDE),
    {.spec = &vector_spec,
     .rank = 1,
     .rows = 3 * SIDE,
     .cols = 1,
     .num_parts = 1,
     .parts = {3 * SIDE}},
    MATRIX(4 * SIDE, SIDE, 1, 4 * SIDE),
    MATRIX(SIDE, SIDE, 1, SIDE),
    MATRIX(3 * SIDE, SIDE, 3, SIDE, SIDE, SIDE),
};

typedef struct {
    UpdateTensor tensors[NUM_TENSORS];
    OpTensor grad[NUM_TENSORS], m[NUM_TENSORS];
    OpTensor scratch;
} Case;

static const UpdateParams params = {.learning_rate = 0.01f, .momentum = 0.95f};

// Gradients of size 1e-3 and momentum of about the size that it then has.
static void make_case(Case *c, DType dtype, DType grad_dtype, const char *name) {
    op_begin(
        (OpsShape){
            .B = 2, .T = 16, .C = SIDE, .NH = 1, .Vp = 128, .num_tensors = 16, .dtype = dtype},
        "%s", name);
    memset(c->tensors, 0, sizeof c->tensors);

    for (int i = 0; i < NUM_TENSORS; i++) {
        const Parameter *p = &parameters[i];
        const OpDims dims = p->rank == 2 ? DIMS(p->rows, p->cols) : DIMS(p->rows);
        UpdateTensor *t = &c->tensors[i];
        t->weight = op_input(dtype, "weight", dims, 0.02).t; // Muon itself never writes it
        t->grad = (c->grad[i] = op_inout(grad_dtype, "grad", dims, 1e-3)).t;
        t->m = (c->m[i] = op_inout(DTYPE_FP32, "m", dims, 1e-2)).t;
        t->rule = optimizer_rule(OPTIMIZER_MUON, p);
        t->rate = 1.0f;
        t->stream = i;
        if (t->rule != RULE_DIRECTION) t->v = op_input(DTYPE_FP32, "v", dims, 0.0).t;
    }

    const int64_t bytes = optimizer_muon_scratch(parameters, NUM_TENSORS, dtype).bytes;
    c->scratch = op_output(DTYPE_U8, "scratch", DIMS(bytes));
}

static void run_case(Case *c, StepControl control) {
    UpdateList list = update_list(c->tensors, NUM_TENSORS);
    Muon *muon = muon_create(&list, parameters, NUM_TENSORS, c->scratch.t);
    muon_directions(muon, params, op_control(control));
    device_sync();
    muon_destroy(muon);
    update_list_free(&list);
}

// ----------------------------------------------------------------------------------- the reference

// out (n,m) = a (n,k) b (k,m) with either operand transposed, rounded to dtype; DTYPE_COUNT: not at
// all.
static double rounded(double x, DType dtype) {
    return dtype == DTYPE_COUNT ? x : ref_round(x, dtype);
}

static void product(double *out, const double *a, bool a_transposed, const double *b,
                    bool b_transposed, int64_t n, int64_t m, int64_t k, DType dtype) {
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < m; j++) {
            double sum = 0.0;
            for (int64_t l = 0; l < k; l++)
                sum += (a_transposed ? a[l * n + i] : a[i * k + l]) *
                       (b_transposed ? b[j * k + l] : b[l * m + j]);
            out[i * m + j] = rounded(sum, dtype);
        }
}

static void combine(double *out, double a, const double *x, double b, const double *y, int64_t n,
                    DType dtype) {
    for (int64_t i = 0; i < n; i++) out[i] = rounded(a * x[i] + b * y[i], dtype);
}

// x (rows, cols) becomes its direction; what the backend stores in dtype is rounded to it.
static void reference_direction(double *x, int64_t rows, int64_t cols, DType dtype) {
    static double gram[SIDE * SIDE], square[SIDE * SIDE], change[MAX_ELEMENTS];
    const bool tall = rows > cols;
    const int64_t side = tall ? cols : rows, n = rows * cols;
    const double norm = fmax(sqrt(ref_sumsq(x, n)), sqrt((double)n) * (double)STACK_RMS_MIN);
    for (int64_t i = 0; i < n; i++) x[i] = rounded(x[i] / norm, dtype);

    for (int step = 0; step < STEPS; step++) {
        product(gram, x, tall, x, !tall, side, side, tall ? rows : cols, dtype);
        product(square, gram, false, gram, true, side, side, side, dtype);
        combine(square, -4.7750, gram, 2.0315, square, side * side, dtype);
        if (tall)
            product(change, x, false, square, true, rows, cols, side, dtype);
        else
            product(change, square, false, x, false, rows, cols, side, dtype);
        combine(x, 3.4445, x, 1.0, change, n, dtype);
    }
}

// The whole of muon_directions for tensor i of a case, from its values before: momentum into m,
// directions into grad.
static void reference(Case *c, int i, double grad_factor, DType dtype) {
    const Parameter *p = &parameters[i];
    const int64_t n = parameter_numel(p), matrix = n / p->num_parts;
    double *grad = c->grad[i].v, *m = c->m[i].v;
    for (int64_t e = 0; e < n; e++) {
        const double g = grad[e] * grad_factor;
        m[e] = (double)params.momentum * m[e] + g;
        grad[e] = rounded(g + (double)params.momentum * m[e],
                          dtype == DTYPE_COUNT ? dtype : c->grad[i].t.dtype);
    }

    for (int k = 0; k < p->num_parts; k++)
        reference_direction(grad + k * matrix, p->parts[k], p->cols, dtype);
    for (int64_t e = 0; e < n; e++)
        grad[e] = rounded(grad[e], dtype == DTYPE_COUNT ? dtype : c->grad[i].t.dtype);
}

// --------------------------------------------------------------------------------------- the tests

// An error in X grows by the slope of the polynomial, at most 3.4445, in each step that follows: by
// at most 1 + 3.4 + 3.4^2 + 3.4^3 + 3.4^4 = 198 in all. A step makes five stored results. The
// reference rounds where the backend does, so that a result is another number only where sums that
// differ by about 1e-6 fall on two sides of a rounding boundary: in a share 2e-6 / 2^-p of the
// elements, by 2^-p each, or sqrt(2e-6 2^-p) of the norm: 9e-5 in bf16 (p = 8), 3e-5 in fp16 (p =
// 11). In fp32 the error of a sum itself, 1e-6, is what counts.
static double direction_tolerance(DType dtype) {
    const double one_result =
        dtype == DTYPE_FP32 ? 1e-6 : sqrt(2e-6 * ldexp(1.0, dtype == DTYPE_BF16 ? -8 : -11));
    return 198 * sqrt(5.0) * one_result;
}

static void directions_match(DType dtype, DType grad_dtype) {
    Case c;
    make_case(&c, dtype, grad_dtype, "muon_directions");
    StepControl control = step_control_initial(1.0f);
    control.grad_factor = 0.25f;
    run_case(&c, control);

    for (int i = 0; i < NUM_TENSORS; i++) {
        const int64_t n = parameter_numel(&parameters[i]);
        if (c.tensors[i].rule == RULE_DIRECTION) reference(&c, i, 0.25, dtype);
        const bool same = c.tensors[i].rule != RULE_DIRECTION; // the vector is as it was
        op_expect("direction", op_relative_error(op_download(c.grad[i]), c.grad[i].v, n),
                  same ? 0.0 : direction_tolerance(dtype));
        op_expect("momentum", op_relative_error(op_download(c.m[i]), c.m[i].v, n),
                  same ? 0.0 : 1e-6);
    }
    op_end();
}

OP_TEST(directions_are_those_of_the_iteration_in_fp64) {
    directions_match(dtype, DTYPE_FP32);
    if (dtype != DTYPE_FP32) directions_match(dtype, dtype);
}

// Eigenvalues of a symmetric matrix (side, side), which is overwritten: Jacobi's rotations.
static void eigenvalues(double *a, int64_t side, double *values) {
    for (int sweep = 0; sweep < 20; sweep++)
        for (int64_t p = 0; p < side; p++)
            for (int64_t q = p + 1; q < side; q++) {
                if (fabs(a[p * side + q]) < 1e-14) continue;
                const double theta =
                    0.5 * atan2(2 * a[p * side + q], a[q * side + q] - a[p * side + p]);
                const double c = cos(theta), s = sin(theta);
                for (int64_t k = 0; k < side; k++) { // columns
                    const double x = a[k * side + p], y = a[k * side + q];
                    a[k * side + p] = c * x - s * y, a[k * side + q] = s * x + c * y;
                }
                for (int64_t k = 0; k < side; k++) { // rows
                    const double x = a[p * side + k], y = a[q * side + k];
                    a[p * side + k] = c * x - s * y, a[q * side + k] = s * x + c * y;
                }
            }

    for (int64_t k = 0; k < side; k++) values[k] = a[k * side + k];
}

// The polynomial applied five times, to one singular value.
static double iterated(double s) {
    for (int step = 0; step < STEPS; step++)
        s = 3.4445 * s - 4.7750 * pow(s, 3) + 2.0315 * pow(s, 5);
    return s;
}

// A random matrix that is four times as wide as high has singular values within (1 +- 1/2) of their
// mean, as Marchenko and Pastur found, so after division by the norm all are between 0.06 and 0.3
// for 40 of them: where the polynomial, five times applied, gives 0.68 .. 1.14 (asserted here).
// Rounding to 16 bits moves singular values by a few 2^-8.
OP_TEST(singular_values_come_close_to_one) {
    static double gram[SIDE * SIDE], values[SIDE];
    for (double s = 0.06; s < 0.3; s += 1e-4) assert_true(iterated(s) > 0.68 && iterated(s) < 1.14);

    Case c;
    make_case(&c, dtype, DTYPE_FP32, "singular values");
    run_case(&c, step_control_initial(1.0f));
    const double slack = dtype == DTYPE_FP32 ? 0.0 : 0.04;

    for (int i = 0; i <= 2; i += 2) { // the wide one and the tall one
        const bool tall = parameters[i].rows > parameters[i].cols;
        const double *x = op_download(c.grad[i]);
        product(gram, x, tall, x, !tall, SIDE, SIDE, 4 * SIDE, DTYPE_COUNT);
        eigenvalues(gram, SIDE, values);
        for (int k = 0; k < SIDE; k++) {
            const double s = sqrt(values[k]);
            if (s < 0.68 - slack || s > 1.14 + slack) op_fail("tensor %d: singular value %g", i, s);
        }
    }
    op_end();
}

// Three matrices that stand in one tensor are orthogonalised each by itself: a large one takes
// nothing from the others.
OP_TEST(stacked_matrices_are_apart) {
    Case c;
    make_case(&c, dtype, DTYPE_FP32, "stacked matrices");

    for (int64_t e = 0; e < SIDE * SIDE; e++) c.grad[4].v[e] *= 1000, c.m[4].v[e] *= 1000;
    op_upload(&c.grad[4]), op_upload(&c.m[4]);
    run_case(&c, step_control_initial(1.0f));

    const double *x = op_download(c.grad[4]);
    double norms[3];
    for (int k = 0; k < 3; k++) norms[k] = sqrt(ref_sumsq(x + k * SIDE * SIDE, SIDE * SIDE));

    // 40 singular values of about 0.9 each make a norm near 5.7; of a square random matrix a few
    // stay small.
    for (int k = 0; k < 3; k++)
        if (norms[k] < 4.5 || norms[k] > 6.5) op_fail("matrix %d has norm %g", k, norms[k]);
    op_end();
}

OP_TEST(a_skipped_step_leaves_momentum_and_weights) {
    Case c;
    make_case(&c, dtype, DTYPE_FP32, "a skipped step");

    c.grad[0].v[7] = (double)NAN, c.grad[3].v[0] = (double)INFINITY;
    op_upload(&c.grad[0]), op_upload(&c.grad[3]);
    StepControl control = step_control_initial(1.0f);
    control.skip = SKIP_NONFINITE;

    const Tensor decided = op_control(control);
    UpdateList list = update_list(c.tensors, NUM_TENSORS);
    Muon *muon = muon_create(&list, parameters, NUM_TENSORS, c.scratch.t);
    muon_directions(muon, params, decided);
    optimizer_update(&list, 0, NUM_TENSORS, params, decided);
    device_sync();
    muon_destroy(muon);
    update_list_free(&list);

    for (int i = 0; i < NUM_TENSORS; i++)
        op_expect("m",
                  op_relative_error(op_download(c.m[i]), c.m[i].v, parameter_numel(&parameters[i])),
                  0.0);
    op_end(); // that the weights are as they were is part of it
}

// Newton-Schulz iterates a matrix of norm 1, whatever the norm of the gradient is. The scales are
// powers of two, 1e-6, 1e-12 and 1e6 of before, so that the scaled inputs are exact.
static void scale_does_not_count(DType dtype, DType grad_dtype) {
    static const int scales[] = {-20, -40, 20};
    for (int s = 0; s < 3; s++) {
        Case c;
        make_case(&c, dtype, grad_dtype, "scaled gradients");
        for (int i = 0; i < NUM_TENSORS; i++) {
            OpTensor *const inputs[] = {&c.grad[i], &c.m[i]};
            const int64_t n = parameter_numel(&parameters[i]);
            for (int k = 0; k < 2; k++) {
                for (int64_t e = 0; e < n; e++) inputs[k]->v[e] = ldexp(inputs[k]->v[e], scales[s]);
                op_upload(inputs[k]);
                for (int64_t e = 0; e < n; e++)
                    inputs[k]->v[e] = ldexp(inputs[k]->v[e], -scales[s]);
            }
            if (c.tensors[i].rule == RULE_DIRECTION) reference(&c, i, 1.0, dtype);
        }
        run_case(&c, step_control_initial(1.0f));

        for (int i = 0; i < NUM_TENSORS; i++)
            if (c.tensors[i].rule == RULE_DIRECTION)
                op_expect("direction",
                          op_relative_error(op_download(c.grad[i]), c.grad[i].v,
                                            parameter_numel(&parameters[i])),
                          direction_tolerance(dtype));
        op_end();
    }
}

OP_TEST(directions_do_not_depend_on_the_scale_of_the_gradient) {
    scale_does_not_count(dtype, DTYPE_FP32);
    // fp16 cannot represent such gradients
    if (dtype == DTYPE_BF16) scale_does_not_count(dtype, dtype);
}

// A gradient of zeros has no direction: the result is 0, not NaN.
OP_TEST(a_gradient_of_zeros_stays_zero) {
    Case c;
    make_case(&c, dtype, DTYPE_FP32, "zeros");
    memset(c.grad[3].v, 0, SIDE * SIDE * sizeof(double));
    memset(c.m[3].v, 0, SIDE * SIDE * sizeof(double));
    op_upload(&c.grad[3]), op_upload(&c.m[3]);
    run_case(&c, step_control_initial(1.0f));
    const double *x = op_download(c.grad[3]);
    for (int e = 0; e < SIDE * SIDE; e++) assert_true(x[e] == 0.0);
    op_end();
}
