// The linear layers: shapes are checked here and handed to gemm.h; bias gradients are summed by bias_gradient.c.
#include "llmc/cpu/cpu.h"
#include "llmc/cpu/cpu_ops.h"
#include "llmc/cpu/few_rows.h"
#include "llmc/cpu/gemm.h"

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
