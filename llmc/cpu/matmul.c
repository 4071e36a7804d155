// The linear layers: shapes are checked here and handed to gemm.h; their bias gradients; and GELU, in its tanh form,
// forward and backward, element by element.
#include "llmc/cpu/cpu.h"
#include "llmc/cpu/gemm.h"
#include "llmc/cpu/simd.h"

// ------------------------------------------------------------------------------------------------------- bias gradient

// Bias gradients: sums over the rows of a batch, for matmul.c and for fp8, whose products know nothing of biases.
// Memory-bound: every element is read once, in the order in which it lies in memory.
// Owns nothing; writes dbias alone.

// Columns of one task: two cache lines of bf16 in each row.
enum { STRIP = 4 * LANES };
// Rows are summed in blocks of this size and the blocks in order: rounding errors stay small for long columns, and
// the bits do not depend on the number of threads.
enum { ROW_BLOCK = 256 };

// dbias[0..cols) = or += the column sums of dout (rows, stride), cols <= STRIP.
static ALWAYS_INLINE void strip_sums(void *dbias, const void *dout, int64_t first_col, int64_t cols, int64_t rows,
                                     int64_t stride, bool accumulate, DType E, DType G) {
    int used[STRIP / LANES];
    V total[STRIP / LANES] = {0};
    for (int s = 0; s < STRIP / LANES; s++) used[s] = lanes(cols - s * LANES);
    for (int64_t block = 0; block < rows; block += ROW_BLOCK) {
        int64_t end = rows - block < ROW_BLOCK ? rows : block + ROW_BLOCK;
        V sum[STRIP / LANES] = {0};
        for (int64_t r = block; r < end; r++)
            for (int s = 0; s < STRIP / LANES; s++)
                sum[s] += vload_first(used[s], dout, r * stride + first_col + s * LANES, E);
        for (int s = 0; s < STRIP / LANES; s++) total[s] += sum[s];
    }
    for (int s = 0; s < STRIP / LANES; s++) {
        int64_t j = first_col + s * LANES;
        if (accumulate) total[s] += vload_first(used[s], dbias, j, G);
        vstore_first(used[s], dbias, j, total[s], G);
    }
}

void bias_backward(Tensor dbias, Tensor dout, bool accumulate) {
    cpu_check_float("bias_backward", dout);
    check_weight_gradient("bias_backward", dbias, dout.dtype, tensor_cols(dout));
    int64_t OC = tensor_cols(dout), rows = tensor_rows(dout);
#pragma omp parallel for schedule(static)
    for (int64_t j = 0; j < OC; j += STRIP) {
        int64_t cols = OC - j < STRIP ? OC - j : STRIP;
        WITH_DTYPE(E, dout.dtype,
                   WITH_DTYPE(G, dbias.dtype, strip_sums(dbias.data, dout.data, j, cols, rows, OC, accumulate, E, G)));
    }
}

// ---------------------------------------------------------------------------------------------------------------- GELU

// GELU in its tanh form, forward and backward, element by element.
//
// 0.5 (1 + tanh(u)) is the logistic function of 2u, so one exp replaces tanh and nothing cancels for negative x:
//   gelu(x)  = x s,                          s  = 1 / (1 + exp(-2u)),   2u  = 2 sqrt(2/pi) (x + 0.044715 x^3)
//   gelu'(x) = s + x s (1 - s) (2u)',                                  (2u)' = 2 sqrt(2/pi) (1 + 3 * 0.044715 x^2)
// Both passes move memory: 2 and 3 elements each; the arithmetic hides behind it.

#define TWO_SQRT_2_OVER_PI 1.5957691216f
#define CUBIC              0.044715f

static ALWAYS_INLINE V gelu_gate(V x, V xx) {
    V minus_2u = x * vfma(xx, vsplat(-TWO_SQRT_2_OVER_PI * CUBIC), vsplat(-TWO_SQRT_2_OVER_PI));
    return 1.0f / (1.0f + vexp(minus_2u)); // exp = inf gives 0
}

static ALWAYS_INLINE void gelu_span(void *out, const void *pre, int64_t begin, int64_t end, DType E) {
    EACH_LANES(i, k, end - begin, {
        V x = vload_first(k, pre, begin + i, E);
        vstore_first(k, out, begin + i, x * gelu_gate(x, x * x), E);
    });
}

static ALWAYS_INLINE void gelu_backward_span(void *dpre, const void *dout, const void *pre, int64_t begin, int64_t end,
                                             DType E) {
    EACH_LANES(i, k, end - begin, {
        V x = vload_first(k, pre, begin + i, E);
        V s = gelu_gate(x, x * x);
        V slope = vfma(x * x, vsplat(3.0f * TWO_SQRT_2_OVER_PI * CUBIC), vsplat(TWO_SQRT_2_OVER_PI));
        V derivative = vfma(x * s * (1.0f - s), slope, s);
        vstore_first(k, dpre, begin + i, vload_first(k, dout, begin + i, E) * derivative, E);
    });
}

void gelu_forward(Tensor out, Tensor pre) {
    int64_t n = tensor_numel(pre);
    cpu_check_float("gelu_forward", pre);
    tensor_check("gelu_forward", out, pre.dtype, n);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i += TASK_ELEMENTS)
        WITH_DTYPE(E, pre.dtype, gelu_span(out.data, pre.data, i, task_end(i, n), E));
}

void gelu_backward(Tensor dpre, Tensor dout, Tensor pre) {
    int64_t n = tensor_numel(pre);
    cpu_check_float("gelu_backward", pre);
    tensor_check("gelu_backward", dpre, pre.dtype, n);
    tensor_check("gelu_backward", dout, pre.dtype, n);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i += TASK_ELEMENTS)
        WITH_DTYPE(E, pre.dtype, gelu_backward_span(dpre.data, dout.data, pre.data, i, task_end(i, n), E));
}

// -------------------------------------------------------------------------------------------------------------- matmul

// out (N,OC), in (N,IC), weight (OC,IC) belong together and have one dtype. The whole workspace is free for gemm.
static void begin_op(const char *op, Tensor out, Tensor in, Tensor weight) {
    cpu_check_float(op, weight);
    cpu_scratch(op, 0);
    int64_t rows = tensor_rows(in), IC = tensor_cols(weight), OC = tensor_rows(weight);
    tensor_check(op, in, weight.dtype, rows * IC);
    tensor_check(op, out, weight.dtype, rows * OC);
}

void matmul_forward(Tensor out, Tensor in, Tensor weight, Tensor bias) {
    begin_op("matmul_forward", out, in, weight);
    int64_t N = tensor_rows(in), OC = tensor_rows(weight), IC = tensor_cols(weight);
    if (bias.data) tensor_check("matmul_forward", bias, weight.dtype, OC);
    if (N <= FEW_ROWS) {
        few_rows_matmul(out, in, weight, bias);
        return;
    }
    gemm(N, OC, IC, matrix_of(out, OC), matrix_of(in, IC), matrix_transposed(matrix_of(weight, IC)), bias.data, false);
}

// GELU is a pass of its own: oneDNN's fused one costs more than the pass and drops the pre-activation.
void matmul_gelu_forward(Tensor out, Tensor pre, Tensor in, Tensor weight, Tensor bias) {
    matmul_forward(pre, in, weight, bias);
    gelu_forward(out, pre);
}

void matmul_backward_input(Tensor din, Tensor dout, Tensor weight) {
    begin_op("matmul_backward_input", dout, din, weight);
    int64_t N = tensor_rows(din), OC = tensor_rows(weight), IC = tensor_cols(weight);
    gemm(N, IC, OC, matrix_of(din, IC), matrix_of(dout, OC), matrix_of(weight, IC), NULL, false);
}

void matmul_gelu_backward_input(Tensor dpre, Tensor dout, Tensor weight, Tensor pre) {
    tensor_check("matmul_gelu_backward_input", pre, dpre.dtype, tensor_numel(dpre));
    matmul_backward_input(dpre, dout, weight);
    gelu_backward(dpre, dpre, pre);
}

void matmul_backward_weight(Tensor dweight, Tensor dbias, Tensor dout, Tensor in, bool accumulate) {
    const char *op = "matmul_backward_weight";
    int64_t N = tensor_rows(in), IC = tensor_cols(in), OC = tensor_cols(dout);
    cpu_check_float(op, in);
    cpu_scratch(op, 0);
    tensor_check(op, dout, in.dtype, N * OC);
    check_weight_gradient(op, dweight, in.dtype, OC * IC);
    gemm(OC, IC, N, matrix_of(dweight, IC), matrix_transposed(matrix_of(dout, OC)), matrix_of(in, IC), NULL,
         accumulate);
    if (dbias.data) bias_backward(dbias, dout, accumulate);
}
