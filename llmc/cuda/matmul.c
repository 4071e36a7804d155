// The linear layers on cuBLASLt, in the compute types and in fp8: shapes are passed to gemm.c as column-major
// products. Where the library has no epilogue, or a slower one, a kernel runs after a plain product.
//
// Bias is added in the epilogue where the library supports it. GELU, its derivative and bias gradients use the epilogue
// where a measurement of the shape finds it faster: on some GPUs the library runs such an epilogue as a slow separate
// pass.
#include "llmc/cuda/backend.h"
#include "llmc/cuda/tuning.h"
#include <stddef.h>

// ----------------------------------------------------------------------------------------------------------- workspace

// The workspace during a product: the library's part, and bias gradients that are still to be added.
static CudaMatmulLayout layout;
static bool gelu_again; // OpsShape

void cuda_matmul_note_shape(OpsShape shape) {
    layout = cuda_size_matmul(shape, cuda_backend.compute_capability);
    gelu_again = shape.gelu_again;
}

void cuda_matmul_shutdown(void) { gemm_shutdown(); }

// -------------------------------------------------------------------------------------------------- the three products

// Row-major out (N,OC) = in (N,IC) weight (OC,IC)^T, column-major: out (OC,N) = weight (IC,OC)^T in (IC,N).
static Gemm forward_product(const char *op, Tensor out, Tensor in, Tensor weight) {
    return (Gemm){
        .op = op,
        .transpose_a = true,
        .m = tensor_rows(weight),
        .n = tensor_rows(in),
        .k = tensor_cols(weight),
        .in_a = weight.dtype,
        .in_b = in.dtype,
        .out = out.dtype,
        .a = weight.data,
        .b = in.data,
        .d = out.data,
    };
}

// din (N,IC) = dout (N,OC) weight (OC,IC), column-major: din (IC,N) = weight (IC,OC) dout (OC,N).
static Gemm input_product(const char *op, Tensor din, Tensor dout, Tensor weight) {
    return (Gemm){
        .op = op,
        .m = tensor_cols(weight),
        .n = tensor_rows(din),
        .k = tensor_rows(weight),
        .in_a = weight.dtype,
        .in_b = dout.dtype,
        .out = din.dtype,
        .a = weight.data,
        .b = dout.data,
        .d = din.data,
    };
}

// dweight (OC,IC) = dout (N,OC)^T in (N,IC), column-major: dweight (IC,OC) = in (IC,N) dout (OC,N)^T.
static Gemm weight_product(const char *op, Tensor dweight, Tensor dout, Tensor in, bool accumulate) {
    return (Gemm){
        .op = op,
        .transpose_b = true,
        .m = tensor_cols(in),
        .n = tensor_cols(dout),
        .k = tensor_rows(in),
        .in_a = in.dtype,
        .in_b = dout.dtype,
        .out = dweight.dtype,
        .a = in.data,
        .b = dout.data,
        .c = accumulate ? dweight.data : NULL,
        .d = dweight.data,
    };
}

// The plan of a product with this epilogue, NULL when the library has none. Completes *g.
static GemmPlan *plan_of(Gemm *g, GemmEpilogue epilogue, const void *bias, void *aux) {
    char *workspace = (char *)cuda_scratch(g->op, layout.end);
    g->epilogue = epilogue;
    g->bias = (void *)bias;
    g->aux = aux;
    g->workspace = workspace + layout.library;
    g->workspace_bytes = (size_t)layout.library_bytes;
    return gemm_plan(g);
}

// Runs the product without an epilogue, which the library must support.
static void run_plain(Gemm g) {
    const GemmPlan *plan = plan_of(&g, GEMM_PLAIN, NULL, NULL);
    REQUIRE(plan != NULL, "%s: cuBLASLt has no algorithm for m %lld n %lld k %lld, %s x %s to %s, here at %p %p %p",
            g.op, (long long)g.m, (long long)g.n, (long long)g.k, dtype_name(g.in_a), dtype_name(g.in_b),
            dtype_name(g.out), g.a, g.b, g.d);
    gemm_run(plan, &g);
}

typedef struct {
    Gemm product;
    Tensor out, bias;
} BiasForward;

static bool run_bias(void *context, int fused) {
    const BiasForward *b = context;
    Gemm g = b->product;
    if (fused) {
        const GemmPlan *plan = plan_of(&g, GEMM_BIAS, b->bias.data, NULL);
        gemm_run(plan, &g);
    } else {
        run_plain(g);
        if (b->bias.data) cuda_add_bias(b->out, b->bias);
    }
    return true;
}

static bool fuses_bias(BiasForward *b) {
    Gemm g = b->product;
    GemmPlan *plan = b->bias.data ? plan_of(&g, GEMM_BIAS, b->bias.data, NULL) : NULL;
    const GemmContest contest = {.work = run_bias, .context = b, .outputs = {b->out}, .num_outputs = 1};
    return plan && gemm_fuses(plan, &contest);
}

// Runs the product into out and adds bias, which may be absent: in the epilogue if `fuse` is set and the library
// supports it, else by a kernel afterwards.
static void matmul_bias(Gemm g, Tensor out, Tensor bias, bool fuse) {
    BiasForward b = {g, out, bias};
    run_bias(&b, fuse && fuses_bias(&b));
}

// ------------------------------------------------------------------------------------------------------------- forward

void backend_matmul_forward(Tensor out, Tensor in, Tensor weight, Tensor bias) {
    matmul_bias(forward_product("matmul_forward", out, in, weight), out, bias, true);
}

void backend_matmul_residual_forward(Tensor out, Tensor residual, Tensor in, Tensor weight, Tensor bias) {
    Gemm g = forward_product("matmul_residual_forward", out, in, weight);
    g.c = residual.data;
    matmul_bias(g, out, bias, true);
}

typedef struct {
    Tensor out, pre, in, weight, bias;
} GeluForward;

static bool run_gelu_forward(void *context, int fused) {
    const GeluForward *f = context;
    if (fused) {
        Gemm g = forward_product("matmul_gelu_forward", f->out, f->in, f->weight);
        const GemmPlan *plan = plan_of(&g, GEMM_GELU_AUX_BIAS, f->bias.data, f->pre.data);
        gemm_run(plan, &g);
    } else {
        backend_matmul_forward(f->pre, f->in, f->weight, f->bias);
        backend_gelu_forward(f->out, f->pre);
    }
    return true;
}

// An epilogue applies GELU to the unrounded input, which gelu_forward cannot repeat. Here and below, where a timed
// epilogue is taken, the other way is planned, too, as in the run that timed both: so all runs list the same choices in
// their checkpoints.
static bool fuses_gelu_forward(GeluForward *f) {
    const GeluFusion choice = cuda_backend.options.gelu_fusion;
    if (choice == GELU_FUSION_NONE || (choice == GELU_FUSION_AUTO && gelu_again)) return false;
    Gemm g = forward_product("matmul_gelu_forward", f->out, f->in, f->weight);
    GemmPlan *plan = plan_of(&g, GEMM_GELU_AUX_BIAS, f->bias.data, f->pre.data);
    const GemmContest contest = {.work = run_gelu_forward,
                                 .context = f,
                                 .timed = choice == GELU_FUSION_AUTO,
                                 .outputs = {f->pre, f->out},
                                 .num_outputs = 2};
    if (!plan || !gemm_fuses(plan, &contest)) return false;
    BiasForward unfused = {forward_product("matmul_gelu_forward", f->pre, f->in, f->weight), f->pre, f->bias};
    if (contest.timed) fuses_bias(&unfused);
    return true;
}

void backend_matmul_gelu_forward(Tensor out, Tensor pre, Tensor in, Tensor weight, Tensor bias) {
    GeluForward f = {out, pre, in, weight, bias};
    run_gelu_forward(&f, fuses_gelu_forward(&f));
}

// ------------------------------------------------------------------------------------------------------ input gradient

void backend_matmul_backward_input(Tensor din, Tensor dout, Tensor weight) {
    run_plain(input_product("matmul_backward_input", din, dout, weight));
}

typedef struct {
    Tensor dpre, dout, weight, pre, dbias;
    bool accumulate;
} GeluBackward;

static bool run_gelu_backward(void *context, int fused) {
    const GeluBackward *b = context;
    Gemm g = input_product("matmul_gelu_backward_input", b->dpre, b->dout, b->weight);
    if (fused) {
        const GemmPlan *plan = plan_of(&g, GEMM_DGELU, NULL, b->pre.data);
        gemm_run(plan, &g);
    } else {
        run_plain(g);
        backend_gelu_backward(b->dpre, b->dbias, b->dpre, b->pre, b->accumulate);
    }
    return true;
}

// By dpre alone: trials must not change the bias gradient, which costs the kernel next to nothing.
static bool fuses_gelu_backward(const GeluBackward *asked) {
    GeluBackward trial = *asked, *b = &trial;
    b->dbias = tensor_none();
    const GeluFusion choice = cuda_backend.options.gelu_fusion;
    if (choice == GELU_FUSION_NONE || choice == GELU_FUSION_FORWARD) return false;
    Gemm g = input_product("matmul_gelu_backward_input", b->dpre, b->dout, b->weight);
    GemmPlan *plan = plan_of(&g, GEMM_DGELU, NULL, b->pre.data);
    const GemmContest contest = {.work = run_gelu_backward,
                                 .context = b,
                                 .timed = choice == GELU_FUSION_AUTO,
                                 .outputs = {b->dpre},
                                 .num_outputs = 1};
    if (!plan || !gemm_fuses(plan, &contest)) return false;
    if (contest.timed) plan_of(&g, GEMM_PLAIN, NULL, NULL);
    return true;
}

void backend_matmul_gelu_backward_input(Tensor dpre, Tensor dout, Tensor weight, Tensor pre, Tensor *dbias,
                                        bool accumulate) {
    GeluBackward b = {dpre, dout, weight, pre, dbias ? *dbias : tensor_none(), accumulate};
    const bool fused = fuses_gelu_backward(&b);
    run_gelu_backward(&b, fused);
    if (dbias && !fused) *dbias = tensor_none();
}

// ----------------------------------------------------------------------------------------------------- weight gradient

typedef struct {
    Tensor dweight, dbias, dout, in;
    bool accumulate;
} WeightGradient;

// The epilogue stores the bias gradient; one that is to be added goes through the workspace.
static Gemm product_with_dbias(const WeightGradient *w, GemmPlan **plan) {
    const char *op = "matmul_backward_weight";
    Gemm g = weight_product(op, w->dweight, w->dout, w->in, w->accumulate);
    char *workspace = (char *)cuda_scratch(op, layout.end);
    *plan = plan_of(&g, GEMM_BGRADB, w->accumulate ? workspace + layout.new_dbias : w->dbias.data, NULL);
    return g;
}

static bool run_weight_gradient(void *context, int fused) {
    const WeightGradient *w = context;
    if (fused) {
        GemmPlan *plan;
        const Gemm g = product_with_dbias(w, &plan);
        gemm_run(plan, &g);
        if (w->accumulate) {
            const Tensor added = tensor_make(g.bias, DTYPE_FP32, "new dbias", tensor_numel(w->dbias), 0, 0, 0);
            backend_tensor_axpby(w->dbias, 1.0f, w->dbias, 1.0f, added);
        }
    } else {
        run_plain(weight_product("matmul_backward_weight", w->dweight, w->dout, w->in, w->accumulate));
        if (w->dbias.data) backend_bias_backward(w->dbias, w->dout, w->accumulate);
    }
    return true;
}

// Whether the epilogue gives the same bias gradient twice; its order of additions is undocumented.
static bool dbias_repeats(void *context) {
    const WeightGradient *w = context;
    GemmPlan *plan;
    const Gemm g = product_with_dbias(w, &plan);
    const size_t bytes = tensor_bytes(w->dbias);
    void *block, *copy = cuda_memory_like(g.bias, bytes, &block);
    if (!copy) return false;
    gemm_run(plan, &g);
    CUDA_CHECK(cudaMemcpyAsync(copy, g.bias, bytes, cudaMemcpyDeviceToDevice, cuda_compute_stream()));
    gemm_run(plan, &g);
    const bool same = cuda_same_bits(copy, g.bias, bytes);
    CUDA_CHECK(cudaFree(block));
    return same;
}

// gemm_fuses, on copies if the gradients accumulate, since trials must not change them.
static bool fused_dbias_is_faster(GemmPlan *plan, const WeightGradient *w) {
    WeightGradient trial = *w;
    void *blocks[2] = {NULL, NULL};
    if (w->accumulate && !gemm_is_known(plan, true)) {
        trial.dweight.data = cuda_memory_like(w->dweight.data, tensor_bytes(w->dweight), &blocks[0]);
        trial.dbias.data = cuda_memory_like(w->dbias.data, tensor_bytes(w->dbias), &blocks[1]);
    }
    const GemmContest contest = {.work = run_weight_gradient,
                                 .context = &trial,
                                 .repeats = dbias_repeats,
                                 .timed = true,
                                 .adds = w->accumulate,
                                 .outputs = {trial.dweight, trial.dbias},
                                 .num_outputs = 2};
    const bool faster = gemm_fuses(plan, &contest);
    Gemm plain = weight_product("matmul_backward_weight", w->dweight, w->dout, w->in, w->accumulate);
    if (faster) plan_of(&plain, GEMM_PLAIN, NULL, NULL);
    for (int i = 0; i < 2; i++)
        if (blocks[i]) CUDA_CHECK(cudaFree(blocks[i]));
    return faster;
}

// An accumulating 16-bit gradient is not fused: it would be rounded twice.
static bool fuses_dbias(const WeightGradient *w) {
    if (!w->dbias.data || w->dbias.dtype != w->dweight.dtype) return false;
    if (w->accumulate && w->dbias.dtype != DTYPE_FP32) return false;
    GemmPlan *plan;
    product_with_dbias(w, &plan);
    return plan && fused_dbias_is_faster(plan, w);
}

// Only the product and what belongs to it may run beside other ops: a kernel that sums dbias has the compute stream's
// scratch memory, and is itself something to run beside.
void backend_matmul_backward_weight(Tensor dweight, Tensor dbias, Tensor dout, Tensor in, bool accumulate) {
    WeightGradient w = {dweight, dbias, dout, in, accumulate};
    const bool fused = fuses_dbias(&w);
    if (!fused) w.dbias = tensor_none();
    cuda_beside_begin();
    run_weight_gradient(&w, fused);
    cuda_beside_end();
    if (!fused && dbias.data) backend_bias_backward(dbias, dout, accumulate);
}

// ----------------------------------------------------------------------------------------------------------------- fp8
// cuBLASLt supports fp8 matmuls in one layout only: both operands with k as their contiguous dimension, as ops.h
// specifies for all three products of a layer. llmc/model/model_fp8.c decides what is quantised, and when; the
// quantisation itself is in fp8_quantize.cu.
//
// Scales: a slot holds the scale that values were multiplied by, and its inverse. The library reads the inverses on the
// device when the product runs, so no launch depends on them.
//
// Sums: the tensor cores of sm_89 and sm_90 keep about 14 bits of a sum of fp8 products (DeepSeek-AI, "DeepSeek-V3
// Technical Report", 2024, section 3.3.2: errors up to 2% at K = 4096). Without CUBLASLT_MATMUL_DESC_FAST_ACCUM the
// library moves partial sums to fp32 registers every few instructions. Gradients are summed that way: a weight gradient
// has K = B T rows, 65536 of them, and the truncation error of its sum is the same in every step, a bias rather than
// noise; an input gradient adds e5m2 numbers of very different size. The forward pass, with K = C or d_ff, is fast:
// there the rounding of the operands to 4 bits is the larger error. Of the three products only the forward one has two
// e4m3 operands.

enum { ALIGNMENT = 16 }; // of cuBLASLt

static void check_aligned(const char *op, Tensor t) {
    REQUIRE((uintptr_t)t.data % ALIGNMENT == 0, "%s: %s is not %d-byte aligned", op, t.name, ALIGNMENT);
}

static const float *inverse_of(Tensor slot) {
    return (const float *)((const char *)slot.data + offsetof(Fp8Slot, inverse));
}

void backend_fp8_matmul(Tensor out, Tensor added, Tensor a, Tensor a_slot, Tensor b, Tensor b_slot, Tensor bias) {
    const char *op = "fp8_matmul";
    REQUIRE(cuda_backend.facts.supports[DTYPE_E4M3], "%s: %s has no fp8", op, cuda_backend.facts.name);
    const int64_t M = tensor_rows(a), N = tensor_rows(b), K = tensor_cols(a);
    check_aligned(op, a), check_aligned(op, b), check_aligned(op, out);
    if (added.data) check_aligned(op, added);
    // Row-major out (M,N) = a (M,K) b (N,K)^T, column-major: out (N,M) = b (K,N)^T a (K,M).
    const Gemm g = {
        .op = op,
        .transpose_a = true,
        .m = N,
        .n = M,
        .k = K,
        .in_a = b.dtype,
        .in_b = a.dtype,
        .out = out.dtype,
        .a = b.data,
        .b = a.data,
        .c = added.data,
        .d = out.data,
        .scale_a = inverse_of(b_slot),
        .scale_b = inverse_of(a_slot),
        .fast_sums = a.dtype == b.dtype,
    };
    // The gradient of a weight; with fp32 activations also that of an input, for which the next op waits.
    const bool of_weight = a.dtype != b.dtype && out.dtype == DTYPE_FP32;
    if (of_weight) cuda_beside_begin();
    // The library's fp8 epilogues take 16-bit biases only.
    matmul_bias(g, out, bias, out.dtype != DTYPE_FP32);
    cuda_beside_end();
}
