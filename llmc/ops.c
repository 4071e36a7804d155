// The functions of ops.h. Each checks its arguments, reports the call and its cost to the observer,
// and calls the backend (backend_ops). A wrong argument stops the program with a message that names
// the op and the tensor.
//
// Costs: FLOPs of matmuls and attention, as recompute.h counts them for the machine; all other ops
// have 0. Bytes: every tensor once, but an output that is added to twice. Scratch of an op
// (workspace, logits) is not counted because it might stay in a cache.
#include "llmc/ops.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/error.h"
#include "llmc/base/format.h"
#include <math.h>
#include <string.h>

static const OpObserver *observer;

void ops_observe(const OpObserver *o) { observer = o; }
bool ops_are_observed(void) { return observer != NULL; }

// The end of an op: runs the backend's part between the observer's begin, which gets the cost, and
// end. The cost of RUN: the tensor and shape that distinguish the calls of the enclosing op, FLOPs,
// bytes.
#define RUN(op, arguments, shape, flops, bytes)                                                    \
    RUN_COST(op, arguments, ((OpCost){__func__, shape, flops, bytes}))
#define RUN_COST(op, arguments, cost)                                                              \
    do {                                                                                           \
        if (observer && !observer->begin(cost)) break;                                             \
        backend_ops()->op arguments;                                                               \
        if (observer) observer->end();                                                             \
    } while (0)

// ------------------------------------------------------------------------------------------- costs

static CallShape tensor_shape(Tensor t) {
    CallShape s = {.tensor = t.name, .rank = t.rank};
    memcpy(s.shape, t.shape, sizeof s.shape);
    return s;
}

static CallShape rows_shape(Tensor weight, Tensor in) {
    return (CallShape){
        .tensor = weight.name, .rank = 2, .shape = {tensor_rows(in), tensor_cols(in)}};
}

// weight (OC,IC); in (N,IC).
static CallShape matmul_shape(Tensor weight, Tensor in) {
    const int64_t IC = tensor_cols(weight);
    return (CallShape){.tensor = weight.name,
                       .rank = 3,
                       .shape = {tensor_numel(in) / IC, IC, tensor_rows(weight)}};
}

static CallShape update_shape(const UpdateTensor *tensors, int n) {
    CallShape s = {.tensor = "weights", .rank = 1};
    for (int i = 0; i < n; i++) s.shape[0] += tensor_numel(tensors[i].weight);
    return s;
}

static double matmul_flops(Tensor weight, Tensor in) {
    return 2.0 * (double)tensor_numel(in) * (double)tensor_rows(weight);
}

// FLOPs of `matmuls` products of (T,HS) and (HS,T) or similar per head, the causal half of each: a
// row of out (B,T,C) meets (T + 1) / 2 others on average. Forward 2, backward 5: QK^T again, dV,
// dP, dQ, dK.
static double attention_flops(Tensor out, int matmuls) {
    return matmuls * (double)tensor_numel(out) * (double)(out.shape[1] + 1);
}

static double sum_bytes(const Tensor *tensors, int n) {
    double bytes = 0;
    for (int i = 0; i < n; i++) bytes += (double)tensor_bytes(tensors[i]);
    return bytes;
}
#define BYTES(...)                                                                                 \
    sum_bytes((Tensor[]){__VA_ARGS__}, (int)(sizeof(Tensor[]){__VA_ARGS__} / sizeof(Tensor)))

static double gradient_bytes(Gradient g) { return (1 + g.add) * BYTES(g.to); }

// 0 of an absent table.
static double row_bytes(Tensor table) {
    if (table.data) return (double)(tensor_cols(table) * (int64_t)dtype_size(table.dtype));
    return 0;
}

// Max rows of an embedding table that tokens can name, each counted once.
static double touched_bytes(Tensor table, Tensor tokens) {
    const int64_t n = tensor_numel(tokens), rows = tensor_rows(table);
    return (double)min_i64(n, rows) * row_bytes(table);
}

// Rows of the position table that sequences (B,T) use.
static double position_bytes(Tensor table, Tensor tokens) {
    return (double)tensor_cols(tokens) * row_bytes(table);
}

// ------------------------------------------------------------------------------------------ checks

static void check_floating(const char *op, Tensor t) {
    REQUIRE(t.data && (t.dtype == DTYPE_FP32 || t.dtype == DTYPE_FP16 || t.dtype == DTYPE_BF16),
            "%s: %s is absent or not of a floating dtype", op, t.name ? t.name : "?");
}

// t has the compute dtype of a call, which must be one that this backend computes in.
static void check_compute(const char *op, Tensor t) {
    check_floating(op, t);
    REQUIRE(backend_computes(t.dtype), "%s: %s is %s, which is no compute dtype here", op, t.name,
            dtype_name(t.dtype));
}

// g can hold the gradient of a weight of dtype compute: numel elements, fp32 or compute.
static void check_gradient(const char *op, Gradient g, DType compute, int64_t numel) {
    if (g.to.dtype == DTYPE_FP32) compute = DTYPE_FP32;
    tensor_check(op, g.to, compute, numel);
}

// The same for a gradient that may be absent.
static void check_optional_gradient(const char *op, Gradient g, DType compute, int64_t numel) {
    if (g.to.data) check_gradient(op, g, compute, numel);
}

static void check_control(const char *op, Tensor control) {
    tensor_check(op, control, DTYPE_U8, (int64_t)sizeof(StepControl));
}

// ----------------------------------------------------------------------------- batch and embedding

void batch_unpack(Tensor inputs, Tensor targets, Tensor windows) {
    const int64_t B = tensor_rows(windows), T = tensor_cols(windows) - 1;
    tensor_check(__func__, windows, windows.dtype == DTYPE_U16 ? DTYPE_U16 : DTYPE_I32,
                 B * (T + 1));
    tensor_check(__func__, inputs, DTYPE_I32, B * T);
    tensor_check(__func__, targets, DTYPE_I32, B * T);
    RUN(batch_unpack, (inputs, targets, windows), tensor_shape(windows), 0,
        BYTES(inputs, targets, windows));
}

// A table (maxT,C) of positions that has a row for each of T.
static void check_positions(const char *op, Tensor table, DType dtype, int64_t T, int64_t C) {
    const int64_t maxT = tensor_rows(table);
    tensor_check(op, table, dtype, maxT * C);
    REQUIRE(T <= maxT, "%s: T = %lld, %s has %lld rows", op, (long long)T, table.name,
            (long long)maxT);
}

void embedding_forward(Tensor out, Tensor tokens, Tensor wte, Tensor wpe) {
    const int64_t N = tensor_numel(tokens), C = tensor_cols(wte);
    check_compute(__func__, wte);
    if (wpe.data) check_positions(__func__, wpe, wte.dtype, tensor_cols(tokens), C);
    tensor_check(__func__, tokens, DTYPE_I32, N);
    tensor_check(__func__, out, wte.dtype, N * C);
    RUN(embedding_forward, (out, tokens, wte, wpe), tensor_shape(out), 0,
        BYTES(out, tokens) + touched_bytes(wte, tokens) + position_bytes(wpe, tokens));
}

void embedding_backward(Gradient dwte, Gradient dwpe, Tensor dout, Tensor tokens) {
    const int64_t N = tensor_numel(tokens), C = tensor_cols(dout);
    check_compute(__func__, dout);
    tensor_check(__func__, dout, dout.dtype, N * C);
    tensor_check(__func__, tokens, DTYPE_I32, N);
    check_gradient(__func__, dwte, dout.dtype, tensor_rows(dwte.to) * C);
    if (dwpe.to.data) {
        check_gradient(__func__, dwpe, dout.dtype, tensor_rows(dwpe.to) * C);
        check_positions(__func__, dwpe.to, dwpe.to.dtype, tensor_cols(tokens), C);
    }

    double wte_bytes = BYTES(dwte.to), wpe_bytes = BYTES(dwpe.to);
    if (dwte.add) wte_bytes = 2 * touched_bytes(dwte.to, tokens);
    if (dwpe.add) wpe_bytes = 2 * position_bytes(dwpe.to, tokens);
    RUN(embedding_backward, (dwte, dwpe, dout, tokens), tensor_shape(dout), 0,
        BYTES(dout, tokens) + wte_bytes + wpe_bytes);
}

// rows (B,T,C) of tokens (B,T), of a table (Vp,C).
static void check_embedding_norm(const char *op, Tensor rows, Tensor tokens, Tensor wte) {
    check_compute(op, wte);
    tensor_check(op, tokens, DTYPE_I32, tensor_numel(tokens));
    tensor_check(op, rows, wte.dtype, tensor_numel(tokens) * tensor_cols(wte));
}

void embedding_norm_forward(Tensor out, Tensor tokens, Tensor wte, float eps) {
    check_embedding_norm(__func__, out, tokens, wte);
    RUN(embedding_norm_forward, (out, tokens, wte, eps), tensor_shape(out), 0,
        BYTES(out, tokens) + touched_bytes(wte, tokens));
}

void embedding_norm_backward(Tensor dout, Tensor tokens, Tensor wte, float eps) {
    check_embedding_norm(__func__, dout, tokens, wte);
    RUN(embedding_norm_backward, (dout, tokens, wte, eps), tensor_shape(dout), 0,
        BYTES(dout, dout, tokens) + touched_bytes(wte, tokens));
}

// --------------------------------------------------------------------------- layernorm and rmsnorm

// Returns N.
static int64_t check_norm(const char *op, Tensor in, Tensor same, Tensor rstd, Tensor weight) {
    const int64_t C = tensor_numel(weight);
    check_compute(op, in);
    tensor_check(op, weight, in.dtype, C);
    const int64_t N = tensor_numel(in) / C;
    tensor_check(op, in, in.dtype, N * C);
    tensor_check(op, same, in.dtype, N * C);
    tensor_check(op, rstd, DTYPE_FP32, N);
    return N;
}

void layernorm_forward(Tensor out, Tensor mean, Tensor rstd, Tensor in, Tensor weight, Tensor bias,
                       float eps) {
    tensor_check(__func__, mean, DTYPE_FP32, check_norm(__func__, in, out, rstd, weight));
    tensor_check(__func__, bias, in.dtype, tensor_numel(weight));
    RUN(layernorm_forward, (out, mean, rstd, in, weight, bias, eps), rows_shape(weight, in), 0,
        BYTES(out, mean, rstd, in, weight, bias));
}

void rmsnorm_forward(Tensor out, Tensor rstd, Tensor in, Tensor weight, float eps) {
    check_norm(__func__, in, out, rstd, weight);
    RUN(rmsnorm_forward, (out, rstd, in, weight, eps), rows_shape(weight, in), 0,
        BYTES(out, rstd, in, weight));
}

void layernorm_backward(Gradient din, Gradient dweight, Gradient dbias, Gradient din_sum,
                        Tensor dout, Tensor in, Tensor mean, Tensor rstd, Tensor weight) {
    const int64_t C = tensor_numel(weight);
    tensor_check(__func__, mean, DTYPE_FP32, check_norm(__func__, in, dout, rstd, weight));
    tensor_check(__func__, din.to, in.dtype, tensor_numel(in));
    check_gradient(__func__, dweight, in.dtype, C);
    check_gradient(__func__, dbias, in.dtype, C);
    check_optional_gradient(__func__, din_sum, in.dtype, C);

    const double written = gradient_bytes(din) + gradient_bytes(dweight) + gradient_bytes(dbias) +
                           gradient_bytes(din_sum);
    RUN(layernorm_backward, (din, dweight, dbias, din_sum, dout, in, mean, rstd, weight),
        rows_shape(weight, in), 0, written + BYTES(dout, in, mean, rstd, weight));
}

void rmsnorm_backward(Gradient din, Gradient dweight, Gradient din_sum, Tensor dout, Tensor in,
                      Tensor rstd, Tensor weight) {
    const int64_t C = tensor_numel(weight);
    check_norm(__func__, in, dout, rstd, weight);
    tensor_check(__func__, din.to, in.dtype, tensor_numel(in));
    check_gradient(__func__, dweight, in.dtype, C);
    check_optional_gradient(__func__, din_sum, in.dtype, C);

    const double written = gradient_bytes(din) + gradient_bytes(dweight) + gradient_bytes(din_sum);
    RUN(rmsnorm_backward, (din, dweight, din_sum, dout, in, rstd, weight), rows_shape(weight, in),
        0, written + BYTES(dout, in, rstd, weight));
}

// ------------------------------------------------------------------------------------------ matmul

// out (N,OC), in (N,IC), weight (OC,IC) have matching shapes and one dtype.
static void check_linear(const char *op, Tensor out, Tensor in, Tensor weight) {
    const int64_t N = tensor_rows(in);
    check_compute(op, weight);
    tensor_check(op, in, weight.dtype, N * tensor_cols(weight));
    tensor_check(op, out, weight.dtype, N * tensor_rows(weight));
}

void matmul_forward(Tensor out, Tensor in, Tensor weight, Tensor bias) {
    check_linear(__func__, out, in, weight);
    if (bias.data) tensor_check(__func__, bias, weight.dtype, tensor_rows(weight));
    RUN(matmul_forward, (out, in, weight, bias), matmul_shape(weight, in), matmul_flops(weight, in),
        BYTES(out, in, weight, bias));
}

void matmul_residual_forward(Tensor out, Tensor residual, Tensor in, Tensor weight, Tensor bias) {
    check_linear(__func__, out, in, weight);
    tensor_check(__func__, residual, out.dtype, tensor_numel(out));
    if (bias.data) tensor_check(__func__, bias, weight.dtype, tensor_rows(weight));
    RUN(matmul_residual_forward, (out, residual, in, weight, bias), matmul_shape(weight, in),
        matmul_flops(weight, in), BYTES(out, residual, in, weight, bias));
}

void matmul_gelu_forward(Tensor out, Tensor pre, Tensor in, Tensor weight, Tensor bias) {
    check_linear(__func__, out, in, weight);
    tensor_check(__func__, pre, out.dtype, tensor_numel(out));
    tensor_check(__func__, bias, weight.dtype, tensor_rows(weight));
    RUN(matmul_gelu_forward, (out, pre, in, weight, bias), matmul_shape(weight, in),
        matmul_flops(weight, in), BYTES(out, pre, in, weight, bias));
}

void gelu_forward(Tensor out, Tensor pre) {
    check_compute(__func__, pre);
    tensor_check(__func__, out, pre.dtype, tensor_numel(pre));
    RUN(gelu_forward, (out, pre), tensor_shape(out), 0, BYTES(out, pre));
}

// The backward pass of an activation that has one input for each output.
static void check_activation_backward(const char *op, Tensor dpre, Gradient dbias, Tensor dout,
                                      Tensor pre) {
    check_compute(op, pre);
    tensor_check(op, dpre, pre.dtype, tensor_numel(pre));
    tensor_check(op, dout, pre.dtype, tensor_numel(pre));
    check_optional_gradient(op, dbias, pre.dtype, tensor_cols(dpre));
}

void gelu_backward(Tensor dpre, Gradient dbias, Tensor dout, Tensor pre) {
    check_activation_backward(__func__, dpre, dbias, dout, pre);
    RUN(gelu_backward, (dpre, dbias, dout, pre), tensor_shape(dpre), 0,
        BYTES(dpre, dout, pre) + gradient_bytes(dbias));
}

void matmul_backward_input(Tensor din, Tensor dout, Tensor weight) {
    check_linear(__func__, dout, din, weight);
    RUN(matmul_backward_input, (din, dout, weight), matmul_shape(weight, din),
        matmul_flops(weight, din), BYTES(din, dout, weight));
}

void matmul_gelu_backward_input(Tensor dpre, Tensor dout, Tensor weight, Tensor pre,
                                Gradient *dbias) {
    check_linear(__func__, dout, dpre, weight);
    tensor_check(__func__, pre, dpre.dtype, tensor_numel(dpre));
    // dbias is made on the way or not at all: its bytes do not count.
    check_optional_gradient(__func__, gradient_or_none(dbias), dpre.dtype, tensor_cols(weight));
    RUN(matmul_gelu_backward_input, (dpre, dout, weight, pre, dbias), matmul_shape(weight, dpre),
        matmul_flops(weight, dpre), BYTES(dpre, dout, weight, pre));
}

void matmul_backward_weight(Gradient dweight, Gradient dbias, Tensor dout, Tensor in) {
    const int64_t N = tensor_rows(in), IC = tensor_cols(in), OC = tensor_cols(dout);
    check_compute(__func__, in);
    tensor_check(__func__, dout, in.dtype, N * OC);
    check_gradient(__func__, dweight, in.dtype, OC * IC);
    check_optional_gradient(__func__, dbias, in.dtype, OC);
    RUN(matmul_backward_weight, (dweight, dbias, dout, in), matmul_shape(dweight.to, in),
        matmul_flops(dweight.to, in),
        BYTES(dout, in) + gradient_bytes(dweight) + gradient_bytes(dbias));
}

void matmul_stack(Tensor out, StackForm form, float alpha, Tensor a, Tensor b, float beta,
                  Tensor added) {
    const int64_t n = out.shape[0], rows = out.shape[1], cols = out.shape[2];
    const int64_t inner = form == STACK_ATB ? a.shape[1] : a.shape[2];
    check_compute(__func__, out);
    REQUIRE(out.rank == 3 && a.rank == 3 && b.rank == 3, "%s: %s of rank %d", __func__, out.name,
            out.rank);
    tensor_check(__func__, a, out.dtype, n * rows * inner);
    tensor_check(__func__, b, out.dtype, n * inner * cols);
    if (added.data) tensor_check(__func__, added, out.dtype, n * rows * cols);
    const CallShape shape = {out.name, 3, {n * rows, inner, cols}}; // as a product of all rows
    RUN(matmul_stack, (out, form, alpha, a, b, beta, added), shape,
        2.0 * (double)tensor_numel(out) * (double)inner, BYTES(out, a, b, added));
}

void bias_backward(Gradient dbias, Tensor dout) {
    check_compute(__func__, dout);
    check_gradient(__func__, dbias, dout.dtype, tensor_cols(dout));
    RUN(bias_backward, (dbias, dout), tensor_shape(dout), 0, BYTES(dout) + gradient_bytes(dbias));
}

// ------------------------------------------------------------------------------- SwiGLU and ReLU^2

void swiglu_forward(Tensor out, Tensor gate_up) {
    check_compute(__func__, gate_up);
    tensor_check(__func__, gate_up, gate_up.dtype, 2 * tensor_numel(out));
    tensor_check(__func__, out, gate_up.dtype, tensor_rows(gate_up) * (tensor_cols(gate_up) / 2));
    RUN(swiglu_forward, (out, gate_up), tensor_shape(out), 0, BYTES(out, gate_up));
}

void swiglu_backward(Tensor dgate_up, Gradient dbias, Tensor dout, Tensor gate_up) {
    check_compute(__func__, gate_up);
    tensor_check(__func__, gate_up, gate_up.dtype, 2 * tensor_numel(dout));
    tensor_check(__func__, dout, gate_up.dtype, tensor_rows(gate_up) * (tensor_cols(gate_up) / 2));
    tensor_check(__func__, dgate_up, gate_up.dtype, tensor_numel(gate_up));
    check_optional_gradient(__func__, dbias, gate_up.dtype, tensor_cols(gate_up));
    RUN(swiglu_backward, (dgate_up, dbias, dout, gate_up), tensor_shape(dgate_up), 0,
        BYTES(dgate_up, dout, gate_up) + gradient_bytes(dbias));
}

void relu2_forward(Tensor out, Tensor pre) {
    check_compute(__func__, pre);
    tensor_check(__func__, out, pre.dtype, tensor_numel(pre));
    RUN(relu2_forward, (out, pre), tensor_shape(out), 0, BYTES(out, pre));
}

void relu2_backward(Tensor dpre, Gradient dbias, Tensor dout, Tensor pre) {
    check_activation_backward(__func__, dpre, dbias, dout, pre);
    RUN(relu2_backward, (dpre, dbias, dout, pre), tensor_shape(dpre), 0,
        BYTES(dpre, dout, pre) + gradient_bytes(dbias));
}

// ------------------------------------------------------------------------------- packed q, k and v

// Checks that rows of `packed` are the q, k and v of these heads; returns the head size.
static int64_t check_packed_heads(const char *op, Tensor packed, Heads heads) {
    const int64_t columns = tensor_cols(packed), in_row = heads.NH + 2 * heads.NKV;
    check_compute(op, packed);
    REQUIRE(heads.NKV > 0 && heads.NH >= heads.NKV && heads.NH % heads.NKV == 0,
            "%s: %d heads share k and v of %d heads", op, heads.NH, heads.NKV);
    REQUIRE(columns % in_row == 0, "%s: %s has %lld columns, not (%d + 2 * %d) * HS", op,
            packed.name, (long long)columns, heads.NH, heads.NKV);
    return columns / in_row;
}

// -------------------------------------------------------------------------------- QK-norm and RoPE

// table is (maxT,2,HS/2).
static void check_rope_table(const char *op, Tensor table) {
    REQUIRE(table.rank == 3 && table.shape[1] == 2, "%s: %s is not (maxT,2,HS/2)", op,
            table.name ? table.name : "?");
    tensor_check(op, table, DTYPE_FP32, tensor_numel(table));
}

// fp32 where Hugging Face has fp32; the power and the angle's cosine and sine are rounded from
// fp64.
void ops_rope_angles(float *table, int64_t maxT, int64_t half, float base) {
    for (int64_t j = 0; j < half; j++) {
        const float exponent = (float)(2 * j) / (float)(2 * half);
        const float frequency = 1.0f / (float)pow((double)base, (double)exponent);
        for (int64_t t = 0; t < maxT; t++) {
            const float angle = (float)t * frequency;
            table[(t * 2 + 0) * half + j] = (float)cos((double)angle);
            table[(t * 2 + 1) * half + j] = (float)sin((double)angle);
        }
    }
}

void rope_table(Tensor table, float base) {
    check_rope_table(__func__, table);
    REQUIRE(base > 0, "%s: base %g", __func__, (double)base);
    RUN(rope_table, (table, base), tensor_shape(table), 0, BYTES(table));
}

// Tensors of both passes. Returns T.
static int64_t check_qk_norm_rope(const char *op, Tensor packed, Tensor rstd, Tensor q_weight,
                                  Tensor k_weight, Tensor table, Heads heads) {
    const int64_t HS = check_packed_heads(op, packed, heads);
    check_rope_table(op, table);
    REQUIRE(table.shape[2] * 2 == HS, "%s: heads of %lld, table for heads of %lld", op,
            (long long)HS, (long long)(table.shape[2] * 2));
    REQUIRE((q_weight.data != NULL) == (k_weight.data != NULL), "%s: one weight of two", op);
    if (q_weight.data) {
        tensor_check(op, q_weight, packed.dtype, HS);
        tensor_check(op, k_weight, packed.dtype, HS);
        tensor_check(op, rstd, DTYPE_FP32, tensor_rows(packed) * (heads.NH + heads.NKV));
    }
    const int64_t T = packed.rank == 2 ? 1 : tensor_rows(packed) / packed.shape[0];
    REQUIRE(T <= table.shape[0], "%s: T = %lld, %s has %lld rows", op, (long long)T, table.name,
            (long long)table.shape[0]);
    return T;
}

// Bytes of the heads of q and k.
static double qk_bytes(Tensor packed, Heads heads) {
    return BYTES(packed) * (heads.NH + heads.NKV) / (heads.NH + 2 * heads.NKV);
}

// Bytes of the table's first T rows.
static double table_bytes(Tensor table, int64_t T) { return (double)T * 2 * row_bytes(table); }

void qk_norm_rope_forward(Tensor out, Tensor rstd, Tensor qkv, Tensor q_weight, Tensor k_weight,
                          Tensor table, Heads heads, float eps, Tensor position) {
    const int64_t T = check_qk_norm_rope(__func__, qkv, rstd, q_weight, k_weight, table, heads);
    tensor_check(__func__, out, qkv.dtype, tensor_numel(qkv));
    if (position.data) tensor_check(__func__, position, DTYPE_I32, 1);

    double bytes = 2 * BYTES(qkv) + table_bytes(table, T) + BYTES(q_weight, k_weight, position);
    if (out.data == qkv.data) bytes -= 2 * (BYTES(qkv) - qk_bytes(qkv, heads)); // v stays
    if (q_weight.data) bytes += BYTES(rstd);
    RUN(qk_norm_rope_forward, (out, rstd, qkv, q_weight, k_weight, table, heads, eps, position),
        tensor_shape(qkv), 0, bytes);
}

void qk_norm_rope_backward(Tensor dqkv, Gradient dq_weight, Gradient dk_weight, Tensor qkv,
                           Tensor rstd, Tensor q_weight, Tensor k_weight, Tensor table,
                           Heads heads) {
    const int64_t T = check_qk_norm_rope(__func__, dqkv, rstd, q_weight, k_weight, table, heads);
    const double moved = qk_bytes(dqkv, heads);
    double bytes = 2 * moved + table_bytes(table, T);
    if (q_weight.data) {
        check_gradient(__func__, dq_weight, dqkv.dtype, tensor_numel(q_weight));
        check_gradient(__func__, dk_weight, dqkv.dtype, tensor_numel(k_weight));
        tensor_check(__func__, qkv, dqkv.dtype, tensor_numel(dqkv));
        bytes += moved + BYTES(rstd, q_weight, k_weight) + gradient_bytes(dq_weight) +
                 gradient_bytes(dk_weight);
    }
    RUN(qk_norm_rope_backward,
        (dqkv, dq_weight, dk_weight, qkv, rstd, q_weight, k_weight, table, heads),
        tensor_shape(dqkv), 0, bytes);
}

// --------------------------------------------------------------------------------------- attention

static void check_attention(const char *op, Tensor out, Tensor lse, Tensor qkv, Heads heads) {
    const int64_t HS = check_packed_heads(op, qkv, heads);
    REQUIRE(qkv.rank == 3, "%s: %s has rank %d, expected (B,T,columns)", op, qkv.name, qkv.rank);
    const int64_t B = qkv.shape[0], T = qkv.shape[1];
    tensor_check(op, out, qkv.dtype, B * T * heads.NH * HS);
    tensor_check(op, lse, DTYPE_FP32, B * heads.NH * T);
}

void attention_forward(Tensor out, Tensor lse, Tensor qkv, Heads heads) {
    check_attention(__func__, out, lse, qkv, heads);
    RUN(attention_forward, (out, lse, qkv, heads), tensor_shape(qkv), attention_flops(out, 2),
        BYTES(out, lse, qkv));
}

void attention_backward(Tensor dqkv, Tensor dout, Tensor out, Tensor lse, Tensor qkv, Heads heads,
                        Gradient *dbias) {
    check_attention(__func__, out, lse, qkv, heads);
    tensor_check(__func__, dqkv, qkv.dtype, tensor_numel(qkv));
    tensor_check(__func__, dout, qkv.dtype, tensor_numel(out));
    // dbias is made on the way or not at all: its bytes do not count.
    check_optional_gradient(__func__, gradient_or_none(dbias), qkv.dtype, qkv.shape[2]);
    RUN(attention_backward, (dqkv, dout, out, lse, qkv, heads, dbias), tensor_shape(qkv),
        attention_flops(out, 5), BYTES(dqkv, dout, out, lse, qkv));
}

// ---------------------------------------------------------------------------------------- decoding

// cache is (B,2NKV,maxT,HS), and rows of qkv have a whole number of heads of q before its k and v.
// Returns NH.
static int64_t check_cache(const char *op, Tensor cache, Tensor qkv) {
    check_compute(op, cache);
    REQUIRE(cache.rank == 4 && cache.shape[1] % 2 == 0, "%s: %s is not (B,2NKV,maxT,HS)", op,
            cache.name);
    const int64_t HS = cache.shape[3], NKV = cache.shape[1] / 2,
                  heads = tensor_cols(qkv) / HS - 2 * NKV;
    REQUIRE(heads >= NKV && heads % NKV == 0 && tensor_cols(qkv) % HS == 0,
            "%s: %s has %lld columns, expected (NH + %lld) * %lld", op, qkv.name,
            (long long)tensor_cols(qkv), (long long)(2 * NKV), (long long)HS);
    return heads;
}

void kv_cache_store(Tensor cache, Tensor qkv, int64_t first) {
    const int64_t heads = check_cache(__func__, cache, qkv), stored = cache.shape[1];
    const int64_t B = cache.shape[0], maxT = cache.shape[2], n = tensor_rows(qkv) / B;
    const double bytes = BYTES(qkv) * (double)stored / (double)(heads + stored);
    tensor_check(__func__, qkv, cache.dtype, B * n * tensor_cols(qkv));
    REQUIRE(first >= 0 && first + n <= maxT, "%s: positions %lld to %lld in a cache of %lld",
            __func__, (long long)first, (long long)(first + n), (long long)maxT);
    RUN(kv_cache_store, (cache, qkv, first), tensor_shape(qkv), 0, 2 * bytes);
}

// Only the device knows how far the cache is filled, so reads of the cache are not counted.
void attention_decode(Tensor out, Tensor cache, Tensor qkv, Tensor position) {
    const int64_t heads = check_cache(__func__, cache, qkv), B = cache.shape[0];
    const double stored = BYTES(qkv) * (double)cache.shape[1] / (double)(heads + cache.shape[1]);
    tensor_check(__func__, qkv, cache.dtype, B * tensor_cols(qkv));
    tensor_check(__func__, out, cache.dtype, B * heads * cache.shape[3]);
    tensor_check(__func__, position, DTYPE_I32, 1);
    RUN(attention_decode, (out, cache, qkv, position), tensor_shape(cache), 0,
        BYTES(out, qkv, position) + stored);
}

// ------------------------------------------------------------------------- LM head + cross-entropy

static void check_head_tensors(const char *op, Tensor losses, Tensor logits, Tensor in, Tensor wte,
                               Tensor targets, int64_t V) {
    const int64_t N = tensor_rows(in), C = tensor_cols(in), Vp = tensor_rows(wte);
    check_compute(op, in);
    tensor_check(op, wte, in.dtype, Vp * C);
    tensor_check(op, logits, in.dtype, tensor_rows(logits) * Vp);
    REQUIRE(tensor_rows(logits) >= 1 && tensor_cols(logits) == Vp, "%s: logits are not (R, %lld)",
            op, (long long)Vp);
    tensor_check(op, targets, DTYPE_I32, N);
    tensor_check(op, losses, DTYPE_FP32, N);
    REQUIRE(V >= 1 && V <= Vp, "%s: vocabulary %lld of %lld padded columns", op, (long long)V,
            (long long)Vp);
}

void head_loss_forward(Tensor losses, Tensor logits, Tensor in, Tensor wte, Tensor targets,
                       int64_t V) {
    check_head_tensors(__func__, losses, logits, in, wte, targets, V);
    RUN(head_loss_forward, (losses, logits, in, wte, targets, V), matmul_shape(wte, in),
        matmul_flops(wte, in), BYTES(losses, in, wte, targets));
}

void head_loss_backward(Tensor losses, Tensor din, Gradient dwte, Tensor logits, Tensor in,
                        Tensor wte, Tensor targets, int64_t V, LossScale scale) {
    check_head_tensors(__func__, losses, logits, in, wte, targets, V);
    tensor_check(__func__, din, in.dtype, tensor_numel(in));
    check_gradient(__func__, dwte, in.dtype, tensor_numel(wte));
    if (scale.control.data) check_control(__func__, scale.control);
    RUN(head_loss_backward, (losses, din, dwte, logits, in, wte, targets, V, scale),
        matmul_shape(wte, in), 3 * matmul_flops(wte, in),
        BYTES(losses, din, in, wte, targets) + gradient_bytes(dwte));
}

void sequence_losses(Tensor sums, Tensor losses, bool add) {
    const int64_t B = tensor_numel(sums), T = tensor_numel(losses) / B;
    tensor_check(__func__, sums, DTYPE_FP32, B);
    tensor_check(__func__, losses, DTYPE_FP32, B * T);
    RUN(sequence_losses, (sums, losses, add), tensor_shape(losses), 0,
        BYTES(losses) + (1 + add) * BYTES(sums));
}

// ----------------------------------------------------------------------------- the end of the step

void gradient_sumsq(Tensor sumsq, UpdateList *list) {
    double read = 0;
    tensor_check(__func__, sumsq, DTYPE_FP32, list->n);
    for (int i = 0; i < list->n; i++) {
        check_compute(__func__, list->tensors[i].grad);
        read += BYTES(list->tensors[i].grad);
    }
    RUN(gradient_sumsq, (sumsq, list), tensor_shape(sumsq), 0, read + BYTES(sumsq));
}

void step_control_update(Tensor control, Tensor sumsq, Tensor losses, int64_t num_tokens,
                         StepLimits limits) {
    check_control(__func__, control);
    tensor_check(__func__, sumsq, DTYPE_FP32, tensor_numel(sumsq));
    tensor_check(__func__, losses, DTYPE_FP32, tensor_numel(losses));
    RUN(step_control_update, (control, sumsq, losses, num_tokens, limits), tensor_shape(sumsq), 0,
        BYTES(control, control, sumsq, losses));
}

// Checks what every rule has of tensor i: weight, gradient, master or compensation, and where a
// slice begins. All weights of the array have one dtype.
static void check_update_tensor(const char *op, const UpdateTensor *tensors, int i) {
    const UpdateTensor *t = &tensors[i];
    const DType compute = tensors[0].weight.dtype;
    const int64_t numel = tensor_numel(t->weight);
    check_compute(op, t->weight);
    tensor_check(op, t->weight, compute, numel);
    REQUIRE((int)t->rule >= 0 && t->rule < RULE_COUNT, "%s: %s has rule %d", op, t->weight.name,
            (int)t->rule);
    check_gradient(op, gradient_to(t->grad, false), compute, numel);
    if (t->master.data) tensor_check(op, t->master, DTYPE_FP32, numel);
    if (t->compensation.data) tensor_check(op, t->compensation, compute, numel);
    REQUIRE(!(t->master.data && t->compensation.data), "%s: %s has a master and a compensation", op,
            t->weight.name);
    REQUIRE(compute != DTYPE_FP32 || !(t->master.data || t->compensation.data),
            "%s: %s is fp32 and has a master or a compensation", op, t->weight.name);
    REQUIRE(t->offset >= 0 && t->offset % STATE_BLOCK == 0,
            "%s: %s begins at element %lld, no multiple of %d", op, t->weight.name,
            (long long)t->offset, STATE_BLOCK);
}

// m, or m and v, in the same format: fp32, bf16, or u8 with their scales.
static void check_moments(const char *op, const UpdateTensor *t, bool has_v) {
    const int64_t numel = tensor_numel(t->weight), blocks = ceil_div(numel, STATE_BLOCK);
    DType format = DTYPE_FP32;
    if (t->m.dtype == DTYPE_BF16 || t->m.dtype == DTYPE_U8) format = t->m.dtype;
    tensor_check(op, t->m, format, numel);
    if (has_v) tensor_check(op, t->v, t->m.dtype, numel);
    if (t->m.dtype != DTYPE_U8) return;
    tensor_check(op, t->m_scale, DTYPE_FP32, blocks);
    if (has_v) tensor_check(op, t->v_scale, DTYPE_FP32, blocks);
}

// The states of Adafactor. A slice of a matrix comes with the whole row and col, which give the
// shape of the matrix.
static void check_adafactor(const char *op, const UpdateTensor *t) {
    const int64_t numel = tensor_numel(t->weight);
    tensor_check(op, t->rms, DTYPE_FP32, 1);
    if (!t->row.data) {
        tensor_check(op, t->v, DTYPE_FP32, numel);
        return;
    }
    const int64_t rows = tensor_numel(t->row), cols = tensor_numel(t->col);
    tensor_check(op, t->row, DTYPE_FP32, rows);
    tensor_check(op, t->col, DTYPE_FP32, cols);
    REQUIRE(t->offset + numel <= rows * cols,
            "%s: elements %lld .. %lld of %s, a matrix of %lld x %lld", op, (long long)t->offset,
            (long long)(t->offset + numel), t->weight.name, (long long)rows, (long long)cols);
}

// The update reads and writes the master, or the weight itself and the part lost to rounding, and
// the moments of the rule. (RULE_DIRECTION's are momentum_update's, Adafactor's are
// adafactor_statistics'.)
OpCost op_cost_optimizer_update(const UpdateTensor *tensors, int n) {
    OpCost cost = {"optimizer_update", update_shape(tensors, n), 0, 0};
    for (int i = 0; i < n; i++) {
        const UpdateTensor *t = &tensors[i];
        cost.bytes += BYTES(t->grad, t->weight) + 2 * BYTES(t->master, t->compensation);
        if (!t->master.data) cost.bytes += BYTES(t->weight); // read, too
        if (t->rule == RULE_ADAFACTOR)
            cost.bytes += BYTES(t->v, t->row, t->col, t->rms);
        else if (t->rule != RULE_DIRECTION)
            cost.bytes += 2 * BYTES(t->m, t->v, t->m_scale, t->v_scale);
    }
    return cost;
}

void optimizer_update(UpdateList *list, int first, int count, UpdateParams params, Tensor control) {
    const UpdateTensor *tensors = list->tensors;
    check_control(__func__, control);
    REQUIRE(first >= 0 && count >= 0 && first + count <= list->n, "%s: tensors %d .. %d of %d",
            __func__, first, first + count, list->n);
    for (int i = first; i < first + count; i++) {
        const UpdateTensor *t = &tensors[i];
        check_update_tensor(__func__, tensors, i);
        if (t->rule == RULE_ADAFACTOR)
            check_adafactor(__func__, t);
        else if (t->rule != RULE_DIRECTION)
            check_moments(__func__, t, t->rule == RULE_ADAMW);
    }
    RUN_COST(optimizer_update, (list, first, count, params, control),
             op_cost_optimizer_update(tensors + first, count));
}

// The gradient is read once for the means of its squares and then, with the means known, once for
// the size of the update; the means are read and written.
OpCost op_cost_adafactor_statistics(const UpdateTensor *tensors, int n) {
    OpCost cost = {"adafactor_statistics", update_shape(tensors, n), 0, 0};
    for (int i = 0; i < n; i++) {
        const UpdateTensor *t = &tensors[i];
        if (t->rule == RULE_ADAFACTOR)
            cost.bytes += 2 * BYTES(t->grad) + 2 * BYTES(t->v, t->row, t->col) + BYTES(t->rms);
    }
    return cost;
}

void adafactor_statistics(UpdateList *list, Tensor control) {
    const UpdateTensor *tensors = list->tensors;
    check_control(__func__, control);
    for (int i = 0; i < list->n; i++) {
        const UpdateTensor *t = &tensors[i];
        if (t->rule != RULE_ADAFACTOR) continue;
        check_update_tensor(__func__, tensors, i);
        check_adafactor(__func__, t);
        const int64_t numel = tensor_numel(t->weight);
        const bool covers = !t->row.data || numel == tensor_numel(t->row) * tensor_numel(t->col);
        REQUIRE(t->offset == 0 && covers, "%s: %s is a slice", __func__, t->weight.name);
        REQUIRE(t->padding >= 0 && t->padding < numel, "%s: %lld elements of %s are padding",
                __func__, (long long)t->padding, t->weight.name);
    }
    RUN_COST(adafactor_statistics, (list, control), op_cost_adafactor_statistics(tensors, list->n));
}

OpCost op_cost_momentum_update(const UpdateTensor *tensors, int n) {
    OpCost cost = {"momentum_update", update_shape(tensors, n), 0, 0};
    for (int i = 0; i < n; i++)
        if (tensors[i].rule == RULE_DIRECTION)
            cost.bytes += 2 * BYTES(tensors[i].grad, tensors[i].m);
    return cost;
}

void momentum_update(UpdateList *list, UpdateParams params, Tensor control) {
    const UpdateTensor *tensors = list->tensors;
    check_control(__func__, control);
    for (int i = 0; i < list->n; i++) {
        if (tensors[i].rule != RULE_DIRECTION) continue;
        check_update_tensor(__func__, tensors, i);
        check_moments(__func__, &tensors[i], false);
    }
    RUN_COST(momentum_update, (list, params, control), op_cost_momentum_update(tensors, list->n));
}

// --------------------------------------------------------------------------- gradient accumulation

OpCost op_cost_gradient_add(Gradient dst, Tensor src) {
    return (OpCost){"gradient_add", tensor_shape(src), 0, BYTES(src) + gradient_bytes(dst)};
}

void gradient_add(Gradient dst, Tensor src, uint64_t seed, int stream, Tensor control) {
    check_compute(__func__, dst.to);
    tensor_check(__func__, src, DTYPE_FP32, tensor_numel(dst.to));
    check_control(__func__, control);
    RUN_COST(gradient_add, (dst, src, seed, stream, control), op_cost_gradient_add(dst, src));
}

void micro_step_count(Tensor control, int64_t count) {
    check_control(__func__, control);
    REQUIRE(count >= 0, "micro_step_count of %lld", (long long)count);
    RUN(micro_step_count, (control, count), tensor_shape(control), 0, 8);
}

// --------------------------------------------------------------------------------------------- fp8

// Codes and the slot of their scale.
static void check_fp8(const char *op, Tensor t, Tensor slot) {
    REQUIRE(t.dtype == DTYPE_E4M3 || t.dtype == DTYPE_E5M2, "%s: %s is %s, not fp8", op, t.name,
            dtype_name(t.dtype));
    tensor_check(op, t, t.dtype, tensor_numel(t));
    tensor_check(op, slot, DTYPE_U8, sizeof(Fp8Slot));
    REQUIRE(tensor_rows(t) % FP8_MULTIPLE == 0 && tensor_cols(t) % FP8_MULTIPLE == 0,
            "%s: %s is %lld x %lld, not in multiples of %d", op, t.name, (long long)tensor_rows(t),
            (long long)tensor_cols(t), FP8_MULTIPLE);
}

OpCost op_cost_fp8_quantize(Tensor q, Tensor transposed, Tensor in, Fp8Scaling scaling) {
    return (OpCost){"fp8_quantize", tensor_shape(in), 0,
                    (1 + (scaling == FP8_CURRENT)) * BYTES(in) + BYTES(q, transposed)};
}

void fp8_quantize(Tensor q, Tensor transposed, Tensor in, Tensor slot, Fp8Scaling scaling) {
    const Tensor any = q.data ? q : transposed;
    REQUIRE(any.data, "%s: no output", __func__);
    check_compute(__func__, in);
    check_fp8(__func__, any, slot);
    if (q.data) tensor_check(__func__, q, any.dtype, tensor_numel(in));
    if (transposed.data) tensor_check(__func__, transposed, any.dtype, tensor_numel(in));
    RUN_COST(fp8_quantize, (q, transposed, in, slot, scaling),
             op_cost_fp8_quantize(q, transposed, in, scaling));
}

void fp8_matmul(Tensor out, Tensor added, Tensor a, Tensor a_slot, Tensor b, Tensor b_slot,
                Tensor bias) {
    const int64_t M = tensor_rows(a), N = tensor_rows(b), K = tensor_cols(a);
    check_compute(__func__, out);
    check_fp8(__func__, a, a_slot);
    check_fp8(__func__, b, b_slot);
    REQUIRE(a.dtype == DTYPE_E4M3 || b.dtype == DTYPE_E4M3, "%s: %s and %s are both e5m2", __func__,
            a.name, b.name);
    tensor_check(__func__, b, b.dtype, N * K);
    tensor_check(__func__, out, out.dtype, M * N);
    if (added.data) tensor_check(__func__, added, out.dtype, M * N);
    REQUIRE(!(bias.data && added.data == out.data), "%s: a bias is added once", __func__);
    if (bias.data)
        tensor_check(__func__, bias, out.dtype == DTYPE_FP32 ? bias.dtype : out.dtype, N);
    RUN(fp8_matmul, (out, added, a, a_slot, b, b_slot, bias), matmul_shape(b, a),
        matmul_flops(b, a), BYTES(out, added, a, b, bias));
}

void tensor_statistics(Tensor stats, Tensor t, DType format) {
    tensor_check(__func__, stats, DTYPE_U8, (int64_t)sizeof(TensorStats));
    check_compute(__func__, t);
    RUN(tensor_statistics, (stats, t, format), tensor_shape(t), 0, BYTES(stats, t, stats));
}

// ------------------------------------------------------------------------------------------- small

void tensor_fill(Tensor t, float value) {
    check_floating(__func__, t);
    RUN(tensor_fill, (t, value), tensor_shape(t), 0, BYTES(t));
}

void tensor_cast(Tensor dst, Tensor src) {
    check_floating(__func__, dst);
    check_floating(__func__, src);
    tensor_check(__func__, dst, dst.dtype, tensor_numel(src));
    RUN(tensor_cast, (dst, src), tensor_shape(dst), 0, BYTES(dst, src));
}

void tensor_axpby(Tensor out, float a, Tensor x, float b, Tensor y) {
    check_compute(__func__, out);
    tensor_check(__func__, x, out.dtype, tensor_numel(out));
    tensor_check(__func__, y, out.dtype, tensor_numel(out));
    RUN(tensor_axpby, (out, a, x, b, y), tensor_shape(out), 0, BYTES(out, x, y));
}

// Checks the tensors of a stack; returns their bytes and those of the stack.
static double check_stack(const char *op, Tensor stack, const Tensor *tensors) {
    const int64_t n = stack.shape[0];
    DType dtype = stack.dtype;
    check_compute(op, stack);
    REQUIRE(n > 0 && n <= STACK_MAX, "%s: %s of %lld entries, at most %d", op, stack.name,
            (long long)n, STACK_MAX);
    if (tensors[0].dtype == DTYPE_FP32) dtype = DTYPE_FP32;
    for (int64_t i = 0; i < n; i++) tensor_check(op, tensors[i], dtype, tensor_numel(stack) / n);
    return sum_bytes(tensors, (int)n) + BYTES(stack);
}

void stack_gather(Tensor stack, const Tensor *in, Tensor sumsq) {
    const double bytes = check_stack(__func__, stack, in);
    tensor_check(__func__, sumsq, DTYPE_FP32, stack.shape[0]);
    RUN(stack_gather, (stack, in, sumsq), tensor_shape(stack), 0, bytes + BYTES(sumsq));
}

void stack_scatter(const Tensor *out, Tensor stack, const float *factors) {
    const double bytes = check_stack(__func__, stack, out);
    RUN(stack_scatter, (out, stack, factors), tensor_shape(stack), 0, bytes);
}
