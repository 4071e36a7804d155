// The linear layers on cuBLASLt, in the compute types and in fp8: shapes are passed to gemm.c as
// column-major products. A bias is added in the epilogue where the library supports it, else by a
// kernel after a plain product. Bias gradients are made by kernels: the library's epilogue for them
// stores, but does not add, and in an undocumented order.
#include "llmc/cuda/gemm.h"
#include <stddef.h>

// --------------------------------------------------------------------------------------- workspace

static int64_t library_bytes; // the workspace during a product
static bool gelu_again;       // OpsShape
// of a training step: C or 0; B T, a chunk of the head's rows, its last chunk
static int64_t channels, step_rows[3];

void cuda_matmul_note_shape(OpsShape shape) {
    const int64_t N = shape.B * shape.T, chunk = ops_head_chunk_rows(shape);
    library_bytes = cuda_size_matmul(shape, cuda_backend.compute_capability);
    gelu_again = shape.gelu_again;
    channels = 0;
    if (!shape.forward_only) channels = shape.C;
    step_rows[0] = N;
    step_rows[1] = chunk;
    step_rows[2] = N % chunk;
}

// Each product of a training step has its rows and C among its sizes.
static bool is_of_training_step(const Gemm *g) {
    const int64_t sizes[] = {g->m, g->n, g->k};
    bool rows = false, has_channels = false;
    for (int i = 0; i < 3; i++) {
        for (int r = 0; r < 3; r++) rows = rows || sizes[i] == step_rows[r];
        has_channels = has_channels || sizes[i] == channels;
    }
    return rows && has_channels;
}

// ------------------------------------------------------------------------------ the three products

// d = op(a) op(b) of column-major matrices (m,n) = (m,k) (k,n), which a row-major tensor (rows,
// cols) is as (cols, rows).
static Gemm product(const char *op, Tensor d, Tensor a, bool transpose_a, Tensor b,
                    bool transpose_b) {
    Gemm g = {
        .op = op,
        .transpose_a = transpose_a,
        .transpose_b = transpose_b,
        .m = tensor_cols(a),
        .n = tensor_rows(b),
        .k = tensor_rows(a),
        .in_a = a.dtype,
        .in_b = b.dtype,
        .out = d.dtype,
        .a = a.data,
        .b = b.data,
        .d = d.data,
        .alpha = 1.0f,
        .beta = 1.0f,
    };

    if (transpose_a) {
        g.m = tensor_rows(a);
        g.k = tensor_cols(a);
    }
    if (transpose_b) g.n = tensor_cols(b);
    return g;
}

// Row-major out (N,OC) = in (N,IC) weight (OC,IC)^T, column-major: out (OC,N) = weight (IC,OC)^T in
// (IC,N).
static Gemm forward_product(const char *op, Tensor out, Tensor in, Tensor weight) {
    return product(op, out, weight, true, in, false);
}

// Runs the product with this epilogue. False: the library has none.
static bool run_with(Gemm g, GemmEpilogue epilogue, const void *bias, void *aux) {
    g.epilogue = epilogue;
    g.bias = bias;
    g.aux = aux;
    g.workspace = cuda_scratch(g.op, library_bytes);
    g.workspace_bytes = (size_t)library_bytes;
    g.timed = is_of_training_step(&g);
    return gemm_run(&g);
}

// Runs the product without an epilogue, which the library must support.
static void run_plain(Gemm g) {
    const bool ran = run_with(g, GEMM_PLAIN, NULL, NULL);
    REQUIRE(
        ran,
        "%s: cuBLASLt has no algorithm for m %lld n %lld k %lld, %s x %s to %s, here at %p %p %p",
        g.op, (long long)g.m, (long long)g.n, (long long)g.k, dtype_name(g.in_a),
        dtype_name(g.in_b), dtype_name(g.out), g.a, g.b, g.d);
}

// Runs the product into out and adds bias, which may be absent: in the epilogue if `fuse` is set
// and the library supports it, else by a kernel afterwards.
static void matmul_bias(Gemm g, Tensor out, Tensor bias, bool fuse) {
    if (fuse && bias.data && run_with(g, GEMM_BIAS, bias.data, NULL)) return;
    run_plain(g);
    if (bias.data) cuda_add_bias(out, bias);
}

// ----------------------------------------------------------------------------------------- forward

void backend_matmul_forward(Tensor out, Tensor in, Tensor weight, Tensor bias) {
    matmul_bias(forward_product("matmul_forward", out, in, weight), out, bias, true);
}

void backend_matmul_residual_forward(Tensor out, Tensor residual, Tensor in, Tensor weight,
                                     Tensor bias) {
    Gemm g = forward_product("matmul_residual_forward", out, in, weight);
    g.c = residual.data;
    matmul_bias(g, out, bias, true);
}

// GELU and its derivative in epilogues (-ge 1 and 2, as in llm.c). By default on Hopper and the
// Blackwell of data centres: their kernels of the library run an epilogue beside the next tile,
// those of other GPUs as a slow pass of its own. An epilogue applies GELU to the unrounded input,
// which gelu_forward cannot repeat. The choice must not depend on the number of rows, or the bits
// of a sequence would depend on the others of its batch. The epilogue with the derivative is
// charged for the bias gradient, which our kernel makes on the way: per activation the kernel moves
// 6 bytes, the epilogue reads 2, and the sum of the bias gradient reads 2.
static bool fuses_gelu(bool backward) {
    const GeluFusion choice = cuda_backend.options.gelu_fusion;
    const int capability = cuda_backend.compute_capability;
    if (choice == GELU_FUSION_AUTO)
        return capability >= 90 && capability < 120 && (backward || !gelu_again);
    return choice == GELU_FUSION_BOTH || (choice == GELU_FUSION_FORWARD && !backward);
}

void backend_matmul_gelu_forward(Tensor out, Tensor pre, Tensor in, Tensor weight, Tensor bias) {
    const Gemm g = forward_product("matmul_gelu_forward", out, in, weight);
    if (bias.data && fuses_gelu(false) && run_with(g, GEMM_GELU_AUX_BIAS, bias.data, pre.data))
        return;
    backend_matmul_forward(pre, in, weight, bias);
    backend_gelu_forward(out, pre);
}

// ---------------------------------------------------------------------------------- input gradient

// Row-major din (N,IC) = dout (N,OC) weight (OC,IC), column-major: din (IC,N) = weight (IC,OC) dout
// (OC,N).
void backend_matmul_backward_input(Tensor din, Tensor dout, Tensor weight) {
    run_plain(product("matmul_backward_input", din, weight, false, dout, false));
}

// The epilogue leaves the bias gradient to the weight gradient of the layer before.
void backend_matmul_gelu_backward_input(Tensor dpre, Tensor dout, Tensor weight, Tensor pre,
                                        Gradient *dbias) {
    const Gemm g = product("matmul_gelu_backward_input", dpre, weight, false, dout, false);
    if (fuses_gelu(true) && run_with(g, GEMM_DGELU, NULL, pre.data)) return;
    run_plain(g);
    backend_gelu_backward(dpre, gradient_or_none(dbias), dpre, pre);
    if (dbias) *dbias = gradient_none();
}

// --------------------------------------------------------------------------------- weight gradient

// Row-major dweight (OC,IC) = dout (N,OC)^T in (N,IC), column-major: dweight (IC,OC) = in (IC,N)
// dout (OC,N)^T.
void backend_matmul_backward_weight(Gradient dweight, Gradient dbias, Tensor dout, Tensor in) {
    Gemm g = product("matmul_backward_weight", dweight.to, in, false, dout, true);
    if (dweight.add) g.c = dweight.to.data;
    run_plain(g);
    if (dbias.to.data) backend_bias_backward(dbias, dout);
}

// ----------------------------------------------------------------------------------------- a stack

void backend_matmul_stack(Tensor out, StackForm form, float alpha, Tensor a, Tensor b, float beta,
                          Tensor added) {
    Gemm g = product("matmul_stack", tensor_matrix(out, 0), tensor_matrix(b, 0), form == STACK_ABT,
                     tensor_matrix(a, 0), form == STACK_ATB);
    g.stack = out.shape[0];
    g.alpha = alpha;
    g.beta = beta;
    g.c = added.data;
    run_plain(g);
}

// --------------------------------------------------------------------------------------------- fp8
// cuBLASLt supports fp8 matmuls in one layout only: both operands with k as their contiguous
// dimension, as ops.h specifies for all three products of a layer. llmc/model/model_fp8.c decides
// what is quantised, and when; the quantisation itself is in fp8_quantize.cu.
//
// Scales: a slot holds the scale that values were multiplied by, and its inverse. The library reads
// the inverses on the device when the product runs, so no launch depends on them.
//
// Sums: the tensor cores of sm_89 and sm_90 keep about 14 bits of a sum of fp8 products
// (DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, section 3.3.2: errors up to 2% at K = 4096).
// Without CUBLASLT_MATMUL_DESC_FAST_ACCUM the library moves partial sums to fp32 registers every
// few instructions. Gradients are summed that way: a weight gradient has K = B T rows, 65536 of
// them, and the truncation error of its sum is the same in every step, a bias rather than noise; an
// input gradient adds e5m2 numbers of very different size. The forward pass, with K = C or d_ff, is
// fast: there the rounding of the operands to 4 bits is the larger error. Of the three products
// only the forward one has two e4m3 operands.

enum { ALIGNMENT = 16 }; // of cuBLASLt

static const float *inverse_of(Tensor slot) {
    return (const float *)((const char *)slot.data + offsetof(Fp8Slot, inverse));
}

void backend_fp8_matmul(Tensor out, Tensor added, Tensor a, Tensor a_slot, Tensor b, Tensor b_slot,
                        Tensor bias) {
    const char *op = "fp8_matmul";
    REQUIRE(cuda_backend.facts.supports[DTYPE_E4M3], "%s: %s has no fp8", op,
            cuda_backend.facts.name);
    const Tensor operands[] = {a, b, out, added}; // the last may be absent
    for (int i = 0; i < 4; i++)
        REQUIRE((uintptr_t)operands[i].data % ALIGNMENT == 0, "%s: %s is not %d-byte aligned", op,
                operands[i].name, ALIGNMENT);
    // Row-major out (M,N) = a (M,K) b (N,K)^T, column-major: out (N,M) = b (K,N)^T a (K,M).
    Gemm g = product(op, out, b, true, a, false);
    g.c = added.data;
    g.scale_a = inverse_of(b_slot);
    g.scale_b = inverse_of(a_slot);
    g.fast_sums = a.dtype == b.dtype;
    // The library's fp8 epilogues take 16-bit biases only.
    matmul_bias(g, out, bias, out.dtype != DTYPE_FP32);
}
