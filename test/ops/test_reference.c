// The specification itself: every backward function of test/reference against central differences
// of its forward.
//
// For a forward y(x) and a fixed random dy, the objective is f(x) = sum y(x) dy and its gradient is
// backward(dy). Tolerance: with step h = 1e-5 and values of order 1, the central difference is
// wrong by h^2 f''' / 6 ~ 1e-10 and by rounding ~ n * 2^-53 * |f| / h ~ 1e-10 an element, which
// counts where the gradient is small; 1e-7 of the gradient leaves room for large third derivatives,
// and a wrong term is ~ 1.
#include "llmc/base/random.h"
#include "llmc/model/parameters.h"
#include "test/ops/every_block.h"
#include "test/ops/op_test.h"
#include "test/reference/blocks.h"
#include <math.h>

static const double step = 1e-5, tolerance = 1e-7, rounding = 1e-10;
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
static void check_gradient(const char *name, double (*f)(void), double *x, const double *dx,
                           int64_t n) {
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
    if (!(sqrt(error) <= tolerance * sqrt(norm) + rounding * sqrt((double)n)))
        fail_msg("%s: relative error %.3g, at most %.3g", name, sqrt(error / norm), tolerance);
}

enum {
    B = 2,
    T = 5,
    C = 6,
    NH = 2,
    HS = C / NH,
    V = 7,
    Vp = 9,
    MAX_T = 6,
    N = B * T,
    IC = C,
    OC = 4
};

// --------------------------------------------------------------------------------------- embedding

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
    ref_embedding_backward(dwte, dwpe, drows, tokens, B, T, C, Vp, MAX_T, true, false);
    check_gradient("dwte", embedding_objective, wte, dwte, Vp * C);
    check_gradient("dwpe", embedding_objective, wpe, dwpe, MAX_T * C);
}

// --------------------------------------------------------------------------------------- layernorm

static double weight[C], bias[C], mean[N], rstd[N];

static double layernorm_objective(void) {
    ref_layernorm_forward(rows, mean, rstd, in, weight, bias, N, C, 1e-5);
    return dot(rows, drows, N * C);
}

TEST(layernorm_backward_is_the_derivative) {
    double din[N * C], dweight[C], dbias[C], din_sum[C];
    fill(in, N * C, 1.0), fill(weight, C, 1.0), fill(bias, C, 1.0), fill(drows, N * C, 1.0);

    layernorm_objective();
    ref_layernorm_backward(din, dweight, dbias, din_sum, drows, in, mean, rstd, weight, N, C, false,
                           false, false);

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
    ref_layernorm_backward(once, dw, dw + C, dw + 2 * C, drows, in, mean, rstd, weight, N, C, false,
                           false, false);

    memcpy(twice, once, sizeof once);
    memcpy(first_sum, dw + 2 * C, sizeof first_sum);
    ref_layernorm_backward(twice, dw2, dw2 + C, dw2 + 2 * C, drows, in, mean, rstd, weight, N, C,
                           true, true, true);

    for (int i = 0; i < N * C + 2 * C; i++) assert_true(fabs(twice[i] - 2.0 * once[i]) <= 1e-12);
    // of din twice as large
    for (int c = 0; c < C; c++) assert_true(fabs(dw2[2 * C + c] - 3.0 * first_sum[c]) <= 1e-12);
}

// ------------------------------------------------------------------------------------------ matmul

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
    fill(in, N * IC, 1.0), fill(matrix, OC * IC, 1.0), fill(matrix_bias, OC, 1.0),
        fill(dout, N * OC, 1.0);
    ref_matmul_backward_input(din, dout, matrix, N, IC, OC);
    ref_matmul_backward_weight(dmatrix, dbias, dout, in, N, IC, OC, false);
    check_gradient("din", matmul_objective, in, din, N * IC);
    check_gradient("dweight", matmul_objective, matrix, dmatrix, OC * IC);
    check_gradient("dbias", matmul_objective, matrix_bias, dbias, OC);
}

TEST(gelu_backward_is_the_derivative) {
    double dpre[N * IC];
    fill(pre, N * IC, 2.0), fill(matrix, OC * IC, 1.0), fill(matrix_bias, OC, 1.0),
        fill(dout, N * OC, 1.0);
    ref_matmul_gelu_backward_input(dpre, dout, matrix, pre, N, IC, OC);
    check_gradient("dpre", gelu_matmul_objective, pre, dpre, N * IC);
}

TEST(gelu_is_near_the_exact_gaussian_form) {
    // The tanh form stays within 5e-4 of x Phi(x) (Hendrycks and Gimpel); a wrong constant does
    // not.
    for (int i = -600; i <= 600; i++) {
        double x = 0.01 * i;
        assert_true(fabs(ref_gelu(x) - 0.5 * x * erfc(-x / sqrt(2.0))) <= 5e-4);
    }
}

// --------------------------------------------------------------------------------------- attention

static double qkv[N * 3 * C], lse[B * NH * T];
static int kv_heads;

static double attention_objective(void) {
    ref_attention_forward(rows, lse, qkv, B, T, NH, kv_heads, HS);
    return dot(rows, drows, N * C);
}

TEST(attention_backward_is_the_derivative) {
    double dqkv[N * 3 * C];
    for (kv_heads = 1; kv_heads <= NH; kv_heads++) {
        const int columns = (NH + 2 * kv_heads) * HS;
        fill(qkv, N * columns, 1.0), fill(drows, N * C, 1.0);
        attention_objective();
        ref_attention_backward(dqkv, drows, rows, lse, qkv, B, T, NH, kv_heads, HS);
        check_gradient("dqkv", attention_objective, qkv, dqkv, N * columns);
    }
}

TEST(attention_sees_no_later_position) {
    double first[N * C];
    fill(qkv, N * 3 * C, 1.0);
    ref_attention_forward(first, lse, qkv, B, T, NH, NH, HS);
    // the last position of sequence 0
    for (int i = 0; i < 3 * C; i++) qkv[(T - 1) * 3 * C + i] += 1.0;
    ref_attention_forward(rows, lse, qkv, B, T, NH, NH, HS);
    assert_memory_equal(rows, first, (T - 1) * C * sizeof(double));
    assert_memory_equal(rows + T * C, first + T * C, T * C * sizeof(double));
    assert_memory_not_equal(rows + (T - 1) * C, first + (T - 1) * C, C * sizeof(double));
}

TEST(heads_that_share_keys_and_values_are_heads_with_copies_of_them) {
    double shared[N * 2 * C], grouped[N * C], grouped_lse[B * NH * T];

    fill(shared, N * 2 * C, 1.0); // q of two heads, k and v of one
    for (int n = 0; n < N; n++)
        for (int i = 0; i < 3 * C; i++) {
            const int head = i / HS; // q q k k v v
            const int from = head < NH ? head : NH + (head - NH) / NH;
            qkv[n * 3 * C + i] = shared[n * 2 * C + from * HS + i % HS];
        }

    ref_attention_forward(grouped, grouped_lse, shared, B, T, NH, 1, HS);
    ref_attention_forward(rows, lse, qkv, B, T, NH, NH, HS);
    assert_memory_equal(rows, grouped, sizeof grouped);
    assert_memory_equal(lse, grouped_lse, sizeof grouped_lse);
}

// ------------------------------------------------------------------------------ blocks after GPT-2

static double rms_objective(void) {
    ref_rmsnorm_forward(rows, rstd, in, weight, N, C, 1e-6);
    return dot(rows, drows, N * C);
}

TEST(rmsnorm_backward_is_the_derivative) {
    double din[N * C], again[N * C], dweight[C], twice[C], din_sum[C], sum_again[C];
    fill(in, N * C, 1.0), fill(weight, C, 1.0), fill(drows, N * C, 1.0);
    rms_objective();

    ref_rmsnorm_backward(din, dweight, din_sum, drows, in, rstd, weight, N, C, false, false, false);
    check_gradient("din", rms_objective, in, din, N * C);
    check_gradient("dweight", rms_objective, weight, dweight, C);

    memcpy(again, din, sizeof din), memcpy(twice, dweight, sizeof twice),
        memcpy(sum_again, din_sum, sizeof din_sum);
    ref_rmsnorm_backward(again, twice, sum_again, drows, in, rstd, weight, N, C, true, true, true);

    for (int i = 0; i < N * C; i++) assert_true(fabs(again[i] - 2.0 * din[i]) <= 1e-12);
    for (int c = 0; c < C; c++) {
        assert_true(fabs(twice[c] - 2.0 * dweight[c]) <= 1e-12);
        // of din, and of din twice as large
        assert_true(fabs(sum_again[c] - 3.0 * din_sum[c]) <= 1e-12);
        for (int n = 0; n < N; n++) din_sum[c] -= din[n * C + c];
        assert_true(fabs(din_sum[c]) <= 1e-12);
    }
}

enum { PAIRS = 4 }; // head size
static const RefHeads heads = {.B = B, .T = T, .NH = 4, .NKV = 2, .HS = PAIRS, .maxT = MAX_T};
enum { PACKED = (4 + 2 * 2) * PAIRS, OF_HEADS = 4 + 2 };
static double packed[N * PACKED], rotated[N * PACKED], drotated[N * PACKED], angles[MAX_T * PAIRS];
static double q_weight[PAIRS], k_weight[PAIRS], rstd_of_heads[N * OF_HEADS];

static double qk_objective(void) {
    ref_qk_norm_rope_forward(rotated, rstd_of_heads, packed, q_weight, k_weight, angles, heads,
                             1e-6, 0);
    return dot(rotated, drotated, N * PACKED);
}

static double rope_objective(void) {
    ref_qk_norm_rope_forward(rotated, NULL, packed, NULL, NULL, angles, heads, 0.0, 0);
    return dot(rotated, drotated, N * PACKED);
}

TEST(qk_norm_rope_backward_is_the_derivative) {
    double d[N * PACKED], dq[PAIRS], dk[PAIRS], dq_twice[PAIRS], dk_twice[PAIRS];
    ref_rope_table(angles, MAX_T, PAIRS, 100.0);
    fill(packed, N * PACKED, 1.0), fill(q_weight, PAIRS, 1.0), fill(k_weight, PAIRS, 1.0);
    fill(drotated, N * PACKED, 1.0);
    qk_objective();

    memcpy(d, drotated, sizeof d);
    ref_qk_norm_rope_backward(d, dq, dk, packed, rstd_of_heads, q_weight, k_weight, angles, heads,
                              false);
    check_gradient("dqkv", qk_objective, packed, d, N * PACKED);
    check_gradient("dq_weight", qk_objective, q_weight, dq, PAIRS);
    check_gradient("dk_weight", qk_objective, k_weight, dk, PAIRS);

    memcpy(dq_twice, dq, sizeof dq), memcpy(dk_twice, dk, sizeof dk), memcpy(d, drotated, sizeof d);
    ref_qk_norm_rope_backward(d, dq_twice, dk_twice, packed, rstd_of_heads, q_weight, k_weight,
                              angles, heads, true);
    for (int i = 0; i < PAIRS; i++)
        assert_true(fabs(dq_twice[i] - 2.0 * dq[i]) <= 1e-12 &&
                    fabs(dk_twice[i] - 2.0 * dk[i]) <= 1e-12);

    memcpy(d, drotated, sizeof d);
    ref_qk_norm_rope_backward(d, NULL, NULL, NULL, NULL, NULL, NULL, angles, heads, false);
    check_gradient("dqkv of RoPE alone", rope_objective, packed, d, N * PACKED);
}

// RoPE is there for this: the product of a q and a k depends on how far apart they are, not on
// where.
TEST(rotated_products_depend_on_the_distance) {
    const RefHeads one = {.B = 1, .T = 4, .NH = 1, .NKV = 1, .HS = PAIRS, .maxT = MAX_T};
    double near[4 * 3 * PAIRS], far[4 * 3 * PAIRS];

    ref_rope_table(angles, MAX_T, PAIRS, 100.0);
    fill(packed, 4 * 3 * PAIRS, 1.0);
    ref_qk_norm_rope_forward(near, NULL, packed, NULL, NULL, angles, one, 0.0, 0);
    ref_qk_norm_rope_forward(far, NULL, packed, NULL, NULL, angles, one, 0.0, 2);

    for (int i = 0; i < 4; i++)
        for (int j = 0; j <= i; j++) {
            const double *q = near + i * 3 * PAIRS, *k = near + j * 3 * PAIRS + PAIRS;
            const double score = dot(q, k, PAIRS),
                         moved = dot(far + (q - near), far + (k - near), PAIRS);
            assert_true(fabs(score - moved) <= 1e-6); // the angles are rounded to fp32
        }
}

static double gates[N * 2 * C], narrow[N * C], dnarrow[N * C];

static double swiglu_objective(void) {
    ref_swiglu_forward(narrow, gates, N, C);
    return dot(narrow, dnarrow, N * C);
}
static double relu2_objective(void) {
    ref_relu2_forward(narrow, in, N * C);
    return dot(narrow, dnarrow, N * C);
}

TEST(swiglu_and_relu2_backward_are_the_derivatives) {
    double dgates[N * 2 * C], dpre[N * C];
    fill(gates, N * 2 * C, 2.0), fill(in, N * C, 2.0), fill(dnarrow, N * C, 1.0);
    ref_swiglu_backward(dgates, dnarrow, gates, N, C);
    check_gradient("dgate_up", swiglu_objective, gates, dgates, N * 2 * C);
    ref_relu2_backward(dpre, dnarrow, in, N * C);
    check_gradient("dpre", relu2_objective, in, dpre, N * C);
}

// ------------------------------------------------------------------------------------- head, model

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
static ModelConfig config;
static double *params[MAX_TENSORS], *grads[MAX_TENSORS];
static int32_t windows[B * (T + 1)];

static double model_objective(void) {
    return ref_gpt2(&config, params, windows, B, T, NULL, NULL, NULL);
}

static void check_whole_model(const char *descriptor) {
    char text[128];
    Parameter *table = parameter_table(&config);
    int count = parameter_count(&config);
    assert_true(count <= MAX_TENSORS);

    for (int i = 0; i < count; i++) {
        int64_t n = parameter_numel(&table[i]);
        params[i] = malloc((size_t)n * sizeof(double)),
        grads[i] = malloc((size_t)n * sizeof(double));
        fill(params[i], n, 0.5);
    }
    for (int i = 0; i < B * (T + 1); i++)
        windows[i] = (int32_t)(philox(seed, 98, (uint64_t)i).v[0] % V);

    ref_gpt2(&config, params, windows, B, T, NULL, NULL, grads);
    // The gradient of the key bias is zero (softmax ignores a shift), so all vectors are compared
    // with their tensor.
    for (int i = 0; i < count; i++) {
        snprintf(text, sizeof text, "%s: %s", descriptor, table[i].name);
        check_gradient(text, model_objective, params[i], grads[i], parameter_numel(&table[i]));
    }

    for (int i = 0; i < count; i++) free(params[i]), free(grads[i]);
    free(table);
}

TEST(the_gradient_of_the_whole_model_is_the_derivative) {
    // narrower than qkv, and wider
    for (int i = 0; i < NUM_BLOCKS; i++)
        for (int64_t d_ff = 8; d_ff <= 24; d_ff += 16) {
            config = block_of_shape(i, 2, C, NH, V, MAX_T, d_ff);
            config.Vp = Vp;
            check_whole_model(every_block[i].descriptor);
        }
}

// --------------------------------------------------------------------------------------- optimizer

TEST(the_first_adamw_step_is_the_learning_rate_against_the_sign) {
    // m / (1-b1) = g and v / (1-b2) = g^2 at step 1, so the direction is g / (|g| + eps), here 2 /
    // (2 + 2) = 1/2; the decay adds 0.1 * w = 0.3.
    double w[1] = {3.0}, m[1] = {0.0}, v[1] = {0.0}, g[1] = {4.0};
    UpdateParams params_1 = {.learning_rate = 0.5f, .moments = {{0}, {0.75f, 0.875f, 2.0f}}};
    ref_adamw_update(w, m, v, g, 1, 1.0, 0.1, params_1, 1, 1, 0.5);
    assert_true(fabs(w[0] - (3.0 - 0.5 * (0.5 + 0.3))) < 1e-15);
    assert_true(fabs(m[0] - 0.5) < 1e-15 && fabs(v[0] - 0.5) < 1e-15);
}
