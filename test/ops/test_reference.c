// The specification itself: every backward function of test/reference against central differences of its forward.
//
// For a forward y(x) and a fixed random dy, the objective is f(x) = sum y(x) dy and its gradient is backward(dy).
// Tolerance: with step h = 1e-5 and values of order 1, the central difference is wrong by h^2 f''' / 6 ~ 1e-10 and by
// rounding ~ n * 2^-53 * |f| / h ~ 1e-10; 1e-7 leaves room for large third derivatives, and a wrong term is ~ 1.
#include "llmc/base/arithmetic.h"
#include "llmc/model/parameters.h"
#include "test/ops/op_test.h"
#include <math.h>

static const double step = 1e-5, tolerance = 1e-7;
static uint64_t seed, stream;

static int choose_seed(void **state) {
    (void)state;
    seed = op_seed_of_environment();
    return 0;
}
TestFixture test_all = {choose_seed, NULL};

static void fill(double *x, int64_t n, double scale) {
    stream++;
    for (int64_t i = 0; i < n; i++) {
        Philox bits = philox(seed, stream, (uint64_t)i);
        float normal[2];
        philox_normal2(bits.v[0], bits.v[1], normal);
        x[i] = scale * (double)normal[0];
    }
}

static double dot(const double *a, const double *b, int64_t n) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

// dx (n) must be the gradient of f at x (n).
static void check_gradient(const char *name, double (*f)(void), double *x, const double *dx, int64_t n) {
    double error = 0.0, norm = 0.0;
    for (int64_t i = 0; i < n; i++) {
        double kept = x[i];
        x[i] = kept + step;
        double above = f();
        x[i] = kept - step;
        double below = f();
        x[i] = kept;
        double slope = (above - below) / (2.0 * step);
        error += (slope - dx[i]) * (slope - dx[i]), norm += slope * slope;
    }
    if (!(sqrt(error) <= tolerance * sqrt(norm)))
        fail_msg("%s: relative error %.3g, at most %.3g", name, sqrt(error / norm), tolerance);
}

enum { B = 2, T = 5, C = 6, NH = 2, HS = C / NH, V = 7, Vp = 9, MAX_T = 6, N = B * T, IC = C, OC = 4 };

// --------------------------------------------------------------------------------------------------------- embedding

static int32_t tokens[N];
static double wte[Vp * C], wpe[MAX_T * C], rows[N * C], drows[N * C], in[N * C];

static void fill_tokens(void) {
    for (int i = 0; i < N; i++) tokens[i] = (int32_t)(philox(seed, 99, (uint64_t)i).v[0] % V);
}

static double embedding_objective(void) {
    ref_embedding_forward(rows, tokens, wte, wpe, B, T, C);
    return dot(rows, drows, N * C);
}

TEST(embedding_backward_is_the_derivative) {
    double dwte[Vp * C] = {0}, dwpe[MAX_T * C];
    fill_tokens(), fill(wte, Vp * C, 1.0), fill(wpe, MAX_T * C, 1.0), fill(drows, N * C, 1.0);
    ref_embedding_backward(dwte, dwpe, drows, tokens, B, T, C, MAX_T, false);
    check_gradient("dwte", embedding_objective, wte, dwte, Vp * C);
    check_gradient("dwpe", embedding_objective, wpe, dwpe, MAX_T * C);
}

// --------------------------------------------------------------------------------------------------------- layernorm

static double weight[C], bias[C], mean[N], rstd[N];

static double layernorm_objective(void) {
    ref_layernorm_forward(rows, mean, rstd, in, weight, bias, N, C);
    return dot(rows, drows, N * C);
}

TEST(layernorm_backward_is_the_derivative) {
    double din[N * C], dweight[C], dbias[C], din_sum[C];
    fill(in, N * C, 1.0), fill(weight, C, 1.0), fill(bias, C, 1.0), fill(drows, N * C, 1.0);
    layernorm_objective();
    ref_layernorm_backward(din, dweight, dbias, din_sum, drows, in, mean, rstd, weight, N, C, false, false, false);
    for (int c = 0; c < C; c++) {
        for (int n = 0; n < N; n++) din_sum[c] -= din[n * C + c];
        assert_true(fabs(din_sum[c]) <= 1e-12);
    }
    check_gradient("din", layernorm_objective, in, din, N * C);
    check_gradient("dweight", layernorm_objective, weight, dweight, C);
    check_gradient("dbias", layernorm_objective, bias, dbias, C);
}

TEST(layernorm_backward_adds_to_the_residual_gradient_and_accumulates) {
    double once[N * C + 3 * C], twice[N * C + 3 * C], first_sum[C];
    fill(in, N * C, 1.0), fill(weight, C, 1.0), fill(bias, C, 1.0), fill(drows, N * C, 1.0);
    layernorm_objective();
    double *dw = once + N * C, *dw2 = twice + N * C;
    ref_layernorm_backward(once, dw, dw + C, dw + 2 * C, drows, in, mean, rstd, weight, N, C, false, false, false);
    memcpy(twice, once, sizeof once);
    memcpy(first_sum, dw + 2 * C, sizeof first_sum);
    ref_layernorm_backward(twice, dw2, dw2 + C, dw2 + 2 * C, drows, in, mean, rstd, weight, N, C, true, true, true);
    for (int i = 0; i < N * C + 2 * C; i++) assert_true(fabs(twice[i] - 2.0 * once[i]) <= 1e-12);
    for (int c = 0; c < C; c++)
        assert_true(fabs(dw2[2 * C + c] - 3.0 * first_sum[c]) <= 1e-12); // of din twice as large
}

// ------------------------------------------------------------------------------------------------------------ matmul

static double matrix[OC * IC], matrix_bias[OC], out[N * OC], dout[N * OC], pre[N * IC];

static double matmul_objective(void) {
    ref_matmul_forward(out, in, matrix, matrix_bias, N, IC, OC);
    return dot(out, dout, N * OC);
}

static double gelu_matmul_objective(void) {
    ref_gelu_forward(in, pre, N * IC);
    return matmul_objective();
}

TEST(matmul_backward_is_the_derivative) {
    double din[N * IC], dmatrix[OC * IC], dbias[OC];
    fill(in, N * IC, 1.0), fill(matrix, OC * IC, 1.0), fill(matrix_bias, OC, 1.0), fill(dout, N * OC, 1.0);
    ref_matmul_backward_input(din, dout, matrix, N, IC, OC);
    ref_matmul_backward_weight(dmatrix, dbias, dout, in, N, IC, OC, false);
    check_gradient("din", matmul_objective, in, din, N * IC);
    check_gradient("dweight", matmul_objective, matrix, dmatrix, OC * IC);
    check_gradient("dbias", matmul_objective, matrix_bias, dbias, OC);
}

TEST(gelu_backward_is_the_derivative) {
    double dpre[N * IC];
    fill(pre, N * IC, 2.0), fill(matrix, OC * IC, 1.0), fill(matrix_bias, OC, 1.0), fill(dout, N * OC, 1.0);
    ref_matmul_gelu_backward_input(dpre, dout, matrix, pre, N, IC, OC);
    check_gradient("dpre", gelu_matmul_objective, pre, dpre, N * IC);
}

TEST(gelu_is_near_the_exact_gaussian_form) {
    // The tanh form stays within 5e-4 of x Phi(x) (Hendrycks and Gimpel); a wrong constant does not.
    for (int i = -600; i <= 600; i++) {
        double x = 0.01 * i;
        assert_true(fabs(ref_gelu(x) - 0.5 * x * erfc(-x / sqrt(2.0))) <= 5e-4);
    }
}

// --------------------------------------------------------------------------------------------------------- attention

static double qkv[N * 3 * C], lse[B * NH * T];

static double attention_objective(void) {
    ref_attention_forward(rows, lse, qkv, B, T, C, NH);
    return dot(rows, drows, N * C);
}

TEST(attention_backward_is_the_derivative) {
    double dqkv[N * 3 * C];
    fill(qkv, N * 3 * C, 1.0), fill(drows, N * C, 1.0);
    attention_objective();
    ref_attention_backward(dqkv, drows, rows, lse, qkv, B, T, C, NH);
    check_gradient("dqkv", attention_objective, qkv, dqkv, N * 3 * C);
}

TEST(attention_sees_no_later_position) {
    double first[N * C];
    fill(qkv, N * 3 * C, 1.0);
    ref_attention_forward(first, lse, qkv, B, T, C, NH);
    for (int i = 0; i < 3 * C; i++) qkv[(T - 1) * 3 * C + i] += 1.0; // the last position of sequence 0
    ref_attention_forward(rows, lse, qkv, B, T, C, NH);
    assert_memory_equal(rows, first, (T - 1) * C * sizeof(double));
    assert_memory_equal(rows + T * C, first + T * C, T * C * sizeof(double));
    assert_memory_not_equal(rows + (T - 1) * C, first + (T - 1) * C, C * sizeof(double));
}

// -------------------------------------------------------------------------------------------------------- head, model

static double losses[N];
static const double factor = 0.37;

static double head_objective(void) {
    ref_head_loss_forward(losses, in, wte, tokens, N, C, V);
    double sum = 0.0;
    for (int n = 0; n < N; n++) sum += factor * losses[n];
    return sum;
}

TEST(head_loss_backward_is_the_derivative) {
    double din[N * C], dwte[Vp * C];
    fill_tokens(), fill(in, N * C, 1.0), fill(wte, Vp * C, 1.0);
    ref_head_loss_backward(losses, din, dwte, in, wte, tokens, N, C, V, Vp, factor, false);
    check_gradient("din", head_objective, in, din, N * C);
    check_gradient("dwte", head_objective, wte, dwte, Vp * C);
}

enum { MAX_TENSORS = 64 };
static ModelConfig config = {.max_T = MAX_T, .V = V, .Vp = Vp, .L = 2, .NH = NH, .C = C};
static double *params[MAX_TENSORS], *grads[MAX_TENSORS];
static int32_t windows[B * (T + 1)];

static double model_objective(void) { return ref_gpt2(&config, params, windows, B, T, NULL, NULL, NULL); }

static void check_whole_model(void) {
    Parameter *table = parameter_table(&config);
    int count = parameter_count(&config);
    assert_true(count <= MAX_TENSORS);
    for (int i = 0; i < count; i++) {
        int64_t n = parameter_numel(&table[i]);
        params[i] = malloc((size_t)n * sizeof(double)), grads[i] = malloc((size_t)n * sizeof(double));
        fill(params[i], n, 0.5);
    }
    for (int i = 0; i < B * (T + 1); i++) windows[i] = (int32_t)(philox(seed, 98, (uint64_t)i).v[0] % V);
    ref_gpt2(&config, params, windows, B, T, NULL, NULL, grads);
    // The gradient of the key bias is zero (softmax ignores a shift), so all vectors are compared with their tensor.
    for (int i = 0; i < count; i++)
        check_gradient(table[i].name, model_objective, params[i], grads[i], parameter_numel(&table[i]));
    for (int i = 0; i < count; i++) free(params[i]), free(grads[i]);
    free(table);
}

TEST(the_gradient_of_the_whole_model_is_the_derivative) {
    check_whole_model();
    config.d_ff = 8; // narrower than qkv
    check_whole_model();
    config.d_ff = 0;
}

// --------------------------------------------------------------------------------------------------------- optimizer

TEST(the_first_adamw_step_is_the_learning_rate_against_the_sign) {
    // m / (1-b1) = g and v / (1-b2) = g^2 at step 1, so the direction is g / (|g| + eps), here 2 / (2 + 2) = 1/2; the
    // decay adds 0.1 * w = 0.3.
    double w[1] = {3.0}, m[1] = {0.0}, v[1] = {0.0}, g[1] = {4.0};
    UpdateParams params_1 = {.learning_rate = 0.5f, .beta1 = 0.75f, .beta2 = 0.875f, .eps = 2.0f};
    ref_adamw_update(w, m, v, g, 1, 1.0, 0.1, params_1, 1, 0.5);
    assert_true(fabs(w[0] - (3.0 - 0.5 * (0.5 + 0.3))) < 1e-15);
    assert_true(fabs(m[0] - 0.5) < 1e-15 && fabs(v[0] - 0.5) < 1e-15);
}
