// THE CONTRACT: every operation of a training step, at the level at which it is fused.
//
// It has two implementations: llmc/cuda (kernels) and llmc/cpu (oneDNN + OpenMP). test/reference
// specifies the ops in fp64, and both are tested against it. Rules for both:
//   - Weights, biases, activations and their gradients have the compute dtype (fp32, bf16, fp16),
//     the same for all tensors of a call; "stat" tensors (mean, rstd, lse, losses) are fp32;
//     weight gradients are fp32 or the compute dtype; tokens are i32. Accumulation and statistics
//     are fp32 or better.
//   - Outputs come first. An output never overlaps an input unless the comment says "may be".
//   - Everything runs in order on the compute stream and returns without waiting. No allocation
//     and no host decision, except at the first use of a shape on a GPU, where an op may time its
//     candidates.
//   - The same inputs give the same bits in every run on one machine with the same choices
//     (device_tuning).
//   - A wrong shape or dtype is a bug in the caller. The op names the tensor and stops the
//     program (tensor_check).
// Names: B batch, T context, C channels, NH heads, NKV heads of keys and values, HS head size, V
// vocabulary, Vp padded vocabulary, N = B * T rows. GPT-2 has NKV = NH and HS = C / NH.
// IC and OC are the input and output channels of a linear layer, maxT the rows of wpe, R the rows
// of a chunk of logits.
// Where a tensor is (B,T,C), (N,C) with N = B * T is the same thing.
#pragma once
#include "llmc/number.h"
#include "llmc/step_control.h"
#include "llmc/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

// --------------------------------------------------------------------------------------- workspace

// The largest shapes that any op will be called with. The backend returns the scratch memory it
// needs for them; the caller plans it into its arena and hands it over once. Calls with smaller
// shapes are fine.
typedef struct {
    int64_t B, T, C, NH, Vp;
    int64_t NKV, HS;     // 0: NH; C / NH
    int64_t widest;      // input or output of a linear layer but the head: max(3 C, d_ff); 0: 4 C
    int64_t num_tensors; // entries of the longest list handed to gradient_sumsq, or updated by one
                         // optimizer_update
    int64_t sequences;   // B of attention_decode, with maxT = T; 0: it is not called
    int64_t factored; // elements of all tensors handed to adafactor_statistics; 0: it is not called
    bool fp8;         // fp8_* will be called, with N up to B * T, K up to widest
    bool forward_only; // no backward op and no optimizer op will be called
    bool gelu_again;   // gelu_forward will be called where it must repeat the bits of
                       // matmul_gelu_forward
    DType dtype;       // compute dtype
} OpsShape;
static inline int64_t ops_widest(OpsShape shape) { return positive_or(shape.widest, 4 * shape.C); }
static inline int64_t ops_kv_heads(OpsShape shape) { return positive_or(shape.NKV, shape.NH); }
static inline int64_t ops_head_size(OpsShape shape) {
    if (shape.HS > 0) return shape.HS;
    return shape.C / shape.NH;
}
// also prepares the backend for this shape: the last one asked for holds
int64_t ops_workspace_bytes(OpsShape shape);
void ops_set_workspace(void *device_memory, int64_t bytes); // NULL, 0: it is taken back
bool ops_workspace_is_set(void);

// ------------------------------------------------------------------------------------------- batch

// windows (B, T+1) u16 or i32: token sequences as the loader reads them.
// inputs (B,T) i32 = windows[:, :T];  targets (B,T) i32 = windows[:, 1:].
void batch_unpack(Tensor inputs, Tensor targets, Tensor windows);

// --------------------------------------------------------------------------------------- gradients

// Where an op leaves a gradient, and whether it overwrites (=) or adds to (+=) what is there. The
// first micro-step of a step overwrites, so it needs no zeroed memory. An absent tensor takes no
// gradient.
typedef struct {
    Tensor to;
    bool add;
} Gradient;
static inline Gradient gradient_to(Tensor to, bool add) {
    const Gradient g = {to, add};
    return g;
}
static inline Gradient gradient_none(void) { return gradient_to(tensor_none(), false); }
static inline Gradient gradient_or_none(const Gradient *g) {
    if (g) return *g;
    return gradient_none();
}

// --------------------------------------------------------------------------------------- embedding

// out (B,T,C) = wte[tokens] + wpe[t].   tokens (B,T) i32, wte (Vp,C), wpe (maxT,C) with maxT >= T;
// wpe may be absent.
void embedding_forward(Tensor out, Tensor tokens, Tensor wte, Tensor wpe);

// dwte (Vp,C) = or += sum of dout (B,T,C) over the positions of each token; = clears the other
// rows. A tied head has written dwte before: then it is added to.
// dwpe (maxT,C) = or += sum of dout over B; rows T.. become 0 or stay; may be absent.
// No float atomics.
void embedding_backward(Gradient dwte, Gradient dwpe, Tensor dout, Tensor tokens);

// The embedding through RMSNorm without a weight: out (B,T,C) = e * rstd, e = wte[tokens], rstd = 1
// / sqrt(mean_C(e^2)
// + eps). Shapes as embedding_forward's.
void embedding_norm_forward(Tensor out, Tensor tokens, Tensor wte, float eps);

// Turns the gradient of its output into that of e, in place, for embedding_backward to sum:
//   dout (B,T,C) = rstd * (dout - xhat * mean_C(dout * xhat));  xhat = e * rstd
// Both are computed from wte again, so nothing is kept from the forward pass.
void embedding_norm_backward(Tensor dout, Tensor tokens, Tensor wte, float eps);

// --------------------------------------------------------------------------- layernorm and rmsnorm

// out = (in - mean) * rstd * weight + bias over the last dimension; rstd = 1 / sqrt(var + eps), var
// the biased variance. in, out (N,C); mean, rstd (N) fp32; weight, bias (C).
// Ba, Kiros, Hinton, "Layer Normalization", 2016.
void layernorm_forward(Tensor out, Tensor mean, Tensor rstd, Tensor in, Tensor weight, Tensor bias,
                       float eps);

// din (N,C) = or += LN'(dout); += where din holds the gradient of the residual stream.
//   dnorm = dout * weight;  xhat = (in - mean) * rstd
//   LN'   = rstd * (dnorm - mean_C(dnorm) - xhat * mean_C(dnorm * xhat))
// dweight (C) = or += sum_N dout * xhat;  dbias (C) = or += sum_N dout. Summed in a fixed order.
// din_sum (C) = or += sum_N din, of din before it is rounded; may be absent. It is the bias
// gradient of the linear layer whose output was added to the residual stream: the op has that
// layer's dout in registers. dweight and dbias are both overwritten or both added to.
void layernorm_backward(Gradient din, Gradient dweight, Gradient dbias, Gradient din_sum,
                        Tensor dout, Tensor in, Tensor mean, Tensor rstd, Tensor weight);

// out = in * rstd * weight over the last dimension; rstd = 1 / sqrt(mean_C(in^2) + eps). Shapes as
// layernorm_forward's. Zhang, Sennrich, "Root Mean Square Layer Normalization", 2019.
void rmsnorm_forward(Tensor out, Tensor rstd, Tensor in, Tensor weight, float eps);

// layernorm_backward without the mean:
//   dnorm = dout * weight;  xhat = in * rstd;  RMS' = rstd * (dnorm - xhat * mean_C(dnorm * xhat))
void rmsnorm_backward(Gradient din, Gradient dweight, Gradient din_sum, Tensor dout, Tensor in,
                      Tensor rstd, Tensor weight);

// ------------------------------------------------------------------------------------------ matmul

// out (N,OC) = in (N,IC) @ weight (OC,IC)^T + bias (OC). bias may be absent (tensor_none()).
void matmul_forward(Tensor out, Tensor in, Tensor weight, Tensor bias);

// out (N,OC) = residual (N,OC) + in @ weight^T + bias: the branch of a block onto its residual
// stream. bias may be absent.
void matmul_residual_forward(Tensor out, Tensor residual, Tensor in, Tensor weight, Tensor bias);

// pre (N,OC) = in @ weight^T + bias;  out (N,OC) = gelu(pre), computed from the rounded pre, or
// from pre before rounding where a GPU library computes GELU in the epilogue of its matmul
// (GeluFusion).
void matmul_gelu_forward(Tensor out, Tensor pre, Tensor in, Tensor weight, Tensor bias);

// out = gelu(pre) = 0.5 pre (1 + tanh(sqrt(2/pi) (pre + 0.044715 pre^3))), element by element. The
// bits are those of matmul_gelu_forward if OpsShape.gelu_again asks for that. For recomputation.
// Hendrycks, Gimpel, "Gaussian Error Linear Units", 2016.
void gelu_forward(Tensor out, Tensor pre);

// dpre = dout * gelu'(pre), element by element; dpre may be dout. Compute dtype. dbias (OC) = or +=
// sum_N dpre (N,OC), in a fixed order: the bias gradient of the layer before the GELU; may be
// absent.
void gelu_backward(Tensor dpre, Gradient dbias, Tensor dout, Tensor pre);

// din (N,IC) = dout (N,OC) @ weight (OC,IC).
void matmul_backward_input(Tensor din, Tensor dout, Tensor weight);

// dpre (N,IC) = (dout (N,OC) @ weight (OC,IC)) * gelu'(pre (N,IC)): the gradient at the input of
// GELU. Where gelu_backward runs as a kernel of its own, it also makes *dbias (IC) = or += sum_N
// dpre and sets *dbias to gradient_none(): otherwise that is left to matmul_backward_weight of the
// layer before, which may have it in its epilogue. dbias may be NULL.
void matmul_gelu_backward_input(Tensor dpre, Tensor dout, Tensor weight, Tensor pre,
                                Gradient *dbias);

// dweight (OC,IC) = or += dout (N,OC)^T @ in (N,IC);  dbias (OC) = or += sum_N dout. dbias may be
// absent.
void matmul_backward_weight(Gradient dweight, Gradient dbias, Tensor dout, Tensor in);

// A stack of products, out_i = alpha p_i + beta added_i with p_i = a_i b_i^T, a_i b_i or a_i^T b_i
// for i < n; tensors (n,rows,cols) of one compute dtype, fp32 sums. added: absent, or like out; it
// may be a or b, out none of them. For many small matrices, each of which would leave most of a GPU
// idle. Bits need not be those of the ops above, and a backend may round p_i before it adds.
typedef enum { STACK_ABT, STACK_AB, STACK_ATB } StackForm;
void matmul_stack(Tensor out, StackForm form, float alpha, Tensor a, Tensor b, float beta,
                  Tensor added);

// dbias (OC) = or += sum_N dout (N,OC), in a fixed order.
void bias_backward(Gradient dbias, Tensor dout);

// ------------------------------------------------------------------------------- SwiGLU and ReLU^2

// out (N,F) = silu(gate) * up, silu(z) = z / (1 + exp(-z)); gate_up (N,2F): the gates of a row,
// then its F of up. Shazeer, "GLU Variants Improve Transformer", 2020.
void swiglu_forward(Tensor out, Tensor gate_up);

// Both gradients in one pass, from dout (N,F), s = sigmoid(gate):
//   dgate = dout * up * s * (1 + gate * (1 - s));  dup = dout * silu(gate).
// dgate_up (N,2F) may be gate_up. dbias (2F) = or += sum_N dgate_up, as rounded, in a fixed order;
// may be absent.
void swiglu_backward(Tensor dgate_up, Gradient dbias, Tensor dout, Tensor gate_up);

// out = max(0, pre)^2, element by element. So et al., "Primer", 2021.
void relu2_forward(Tensor out, Tensor pre);

// dpre = dout * 2 max(0, pre); dpre may be dout. dbias (OC) = or += sum_N dpre (N,OC), in a fixed
// order; may be absent.
void relu2_backward(Tensor dpre, Gradient dbias, Tensor dout, Tensor pre);

// -------------------------------------------------------------------------------- QK-norm and RoPE

// NH heads of q share the keys and values of NKV heads; NKV divides NH.
typedef struct {
    int NH, NKV;
} Heads;
static inline Heads heads_of(int NH, int NKV) {
    const Heads heads = {NH, NKV};
    return heads;
}

// table (maxT,2,HS/2) fp32: cos(t f_j) for all j, then sin(t f_j); f_j = base^(-2j/HS). f_j and its
// product with t are rounded to fp32, as Hugging Face's models do: at t = 4096 the angle by an
// exact f_j differs by up to 2e-4.
void rope_table(Tensor table, float base);

// Treats q and k of each row of qkv, packed as attention's, head by head: with weights first
// RMSNorm over the HS values of the head, x = x * rstd * weight (HS), then the rotation of its
// halves by the angle of the row's position in table:
//   out_j = x_j cos_j - x_(j+HS/2) sin_j;  out_(j+HS/2) = x_(j+HS/2) cos_j + x_j sin_j,  j < HS/2.
// v is copied. out may be qkv. With weights the backward pass needs qkv as it was: from rotated,
// rounded values the normalised ones cannot be recovered where the weights of a pair differ much.
// Without them (both absent, rstd too) it needs neither, since the rotation is orthogonal.
// qkv, out (B,T,(NH + 2 NKV) HS), or (B,(NH + 2 NKV) HS) for T = 1; rstd (B,T,NH + NKV) fp32: of
// the heads of q, then of k. Row t has position t, plus the i32 in position, which may be absent:
// see attention_decode. All < maxT.
// Su et al., "RoFormer", 2021; Henry et al., "Query-Key Normalization for Transformers", 2020.
void qk_norm_rope_forward(Tensor out, Tensor rstd, Tensor qkv, Tensor q_weight, Tensor k_weight,
                          Tensor table, Heads heads, float eps, Tensor position);

// In place on dqkv, the gradient of out at positions 0 .. T-1: rotates back by -sin, then
// rmsnorm_backward's formula for each head. dq_weight, dk_weight (HS) = or += the sum over all rows
// and heads of q, of k, in a fixed order; fp32 or the compute dtype. They and qkv, rstd and the
// weights are absent where the forward pass had no weights.
void qk_norm_rope_backward(Tensor dqkv, Gradient dq_weight, Gradient dk_weight, Tensor qkv,
                           Tensor rstd, Tensor q_weight, Tensor k_weight, Tensor table,
                           Heads heads);

// --------------------------------------------------------------------------------------- attention

// Causal attention. qkv (B,T,(NH + 2 NKV) HS), of a row the q of its NH heads, then k, then v of
// NKV heads; NKV divides NH, and head h of q reads k and v of head h / (NH / NKV). out (B,T,NH HS).
//   scores[i,j] = q_i . k_j / sqrt(HS) for j <= i;  lse (B,NH,T) fp32 = log sum_j exp(scores[i,j]);
//   out_i = sum_j exp(scores[i,j] - lse_i) v_j.  Never a T x T matrix in memory.
// Dao et al., "FlashAttention", 2022; Ainslie et al., "GQA: Training Generalized Multi-Query
// Transformer Models", 2023.
void attention_forward(Tensor out, Tensor lse, Tensor qkv, Heads heads);

// dqkv, like qkv, from dout (B,T,NH HS); probabilities are recomputed from qkv and lse.
//   P = exp(scores - lse);  dV = P^T dout;  dP = dout V^T;  dS = P * (dP - rowsum(dout * out));
//   dQ = dS K / sqrt(HS);  dK = dS^T Q / sqrt(HS); dK and dV summed in fp32 over the heads that
//   read k and v, in order.
// dbias ((NH + 2 NKV) HS) = or += sum over B and T of dqkv, as rounded: the bias gradient of the
// layer before. Where the op's kernels have dqkv in registers they make it, and *dbias becomes
// gradient_none(): otherwise it is left to matmul_backward_weight. dbias may be NULL, as it must be
// where qk_norm_rope_backward follows.
void attention_backward(Tensor dqkv, Tensor dout, Tensor out, Tensor lse, Tensor qkv, Heads heads,
                        Gradient *dbias);

// ---------------------------------------------------------------------------------------- decoding

// Generation token by token. The cache of one block holds the keys and values of the tokens read so
// far, head by head: (B,2NKV,maxT,HS), the keys of all heads before their values. Positions that
// are not filled yet are never read, whatever they contain.

// Keys and values of a prompt, qkv (B,n,(NH + 2 NKV) HS) packed as attention's, into positions
// first .. first + n - 1 of the cache.
void kv_cache_store(Tensor cache, Tensor qkv, int64_t first);

// Attention of one new token per sequence. position: one i32, the number of tokens read before, the
// same for all sequences. It is on the device so that one recording of the step serves every token.
//   qkv (B,(NH + 2 NKV) HS): k and v are stored at `position` of the cache, then with
//   length = position + 1
//   scores[j] = q . k_j / sqrt(HS), j < length;  out (B,NH HS) = softmax(scores) V.
// The bits of a sequence depend neither on the other sequences nor on maxT.
void attention_decode(Tensor out, Tensor cache, Tensor qkv, Tensor position);

// ------------------------------------------------------------------------- LM head + cross-entropy

// The head works in chunks of R rows: only the logits of one chunk exist at a time, in logits
// (R,Vp), scratch of the caller. R may be any number; this is the backend's preference for shape
// (at most B * T).
int64_t ops_head_chunk_rows(OpsShape shape);

// in (N,C), wte (Vp,C) (the tied head), targets (N) i32, losses (N) fp32 in nats:
//   losses[n] = log sum_{v<V} exp(logits[n,v]) - logits[n,targets[n]]. Columns V..Vp-1 are ignored.
void head_loss_forward(Tensor losses, Tensor logits, Tensor in, Tensor wte, Tensor targets,
                       int64_t V);

// The factor of a step's gradients: factor, 1 / tokens of the whole step, times the loss_scale of
// control, the device's StepControl; where control is absent, 1.
typedef struct {
    float factor;
    Tensor control;
} LossScale;
static inline LossScale loss_scale_make(float factor, Tensor control) {
    const LossScale scale = {factor, control};
    return scale;
}

// The same losses, and in the same pass over each chunk the gradients of  scale * sum_n losses[n]:
//   dlogits = scale * (softmax(logits) - onehot(target)) overwrites the logits;
//             0 in columns V..Vp-1.
//   din (N,C) = dlogits @ wte;  dwte (Vp,C) = or += dlogits^T @ in.
void head_loss_backward(Tensor losses, Tensor din, Gradient dwte, Tensor logits, Tensor in,
                        Tensor wte, Tensor targets, int64_t V, LossScale scale);

// sums (B) fp32 = or += (add) sum_t losses (B,T). With = it is one number per sequence, so that the
// fp64 total of an evaluation does not depend on B. With += entry b sums row b of all
// micro-batches.
void sequence_losses(Tensor sums, Tensor losses, bool add);

// ----------------------------------------------------------------------------- the end of the step

// The update rule of one parameter tensor, chosen by the table of llmc/model/optimizer_state.c.
typedef enum {
    RULE_ADAMW,     // Loshchilov, Hutter, "Decoupled Weight Decay Regularization", 2017
    RULE_LION,      // Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023
    RULE_SGD,       // momentum as in Sutskever et al., 2013; decay decoupled as in AdamW
    RULE_ADAFACTOR, // Shazeer, Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory
                    // Cost", 2018
    RULE_DIRECTION, // the gradient tensor already holds the direction of the update (Muon:
                    // llmc/train/muon.c)
    RULE_COUNT
} UpdateRule;

enum { STATE_BLOCK = 256 }; // elements that share one scale in 8-bit states

// One parameter tensor, or a slice of one, with everything its rule reads and writes. Absent
// tensors are tensor_none().
typedef struct {
    Tensor weight; // compute dtype
    Tensor master; // fp32; absent: the weight itself is updated, with stochastic rounding unless it
                   // is fp32
    Tensor compensation; // compute dtype, Kahan: the part of the weight lost to rounding; absent:
                         // rounding as above
    Tensor grad;         // fp32 or compute dtype
    Tensor m, v;         // fp32; bf16, rounded stochastically; or u8, codes of llmc/number.h
    // (ceil(numel / STATE_BLOCK)) fp32, with u8: the largest magnitude of each block
    Tensor m_scale, v_scale;
    Tensor row, col; // Adafactor, for a matrix (OC,IC): (OC) and (IC) fp32 instead of v
    Tensor rms;      // (1) fp32, Adafactor: root mean square of the update before it is clipped
    UpdateRule rule;
    float weight_decay; // the coefficient; 0 in model_tensors
    float rate;         // multiplies the direction of the update, not its decay; above 0
    int group;          // of UpdateParams.moments
    int stream;         // number of the parameter in its table: selects its random bits
    int64_t offset; // where a slice begins in its parameter, in elements; a multiple of STATE_BLOCK
    int64_t padding; // last elements of the parameter that pad the vocabulary: weight and gradient
                     // are 0
} UpdateTensor;

// The array that the ops of the end of a step run over. Its owner makes the list once, leaves the
// array as it is while the list exists, and frees the list first.
typedef struct {
    const UpdateTensor *tensors;
    int n;
    struct UpdateTables *tables; // the backend's, made by the ops at the first use
} UpdateList;
static inline UpdateList update_list(const UpdateTensor *tensors, int n) {
    const UpdateList list = {tensors, n, NULL};
    return list;
}
void update_list_free(UpdateList *list); // after the work that is queued on it

// sumsq (n) fp32: the sum of squares of each gradient, in a few launches for all, in a fixed order.
// inf or nan in a tensor propagates to its entry. Nothing but grad is read of the tensors.
void gradient_sumsq(Tensor sumsq, UpdateList *list);

// step_control_decide (llmc/step_control.h) on the device. control: one StepControl as u8 bytes;
// sequence_losses (B) fp32, summed in index order in fp64; num_tokens: tokens of the whole step.
void step_control_update(Tensor control, Tensor sumsq, Tensor sequence_losses, int64_t num_tokens,
                         StepLimits limits);

typedef struct {
    float learning_rate;
    // AdamW, Lion: b1, b2 and eps below are those of the tensor's group
    MomentRates moments[UPDATE_GROUPS];
    float momentum; // SGD, Muon
    // Stochastic rounding: element e of a parameter adds half-word e % 8, lower halves first, of
    // philox(seed, STREAM_ROUNDING + stream + k * 2^20, control.updates * 2^40 + e / 8) to the bits
    // that rounding cuts off; k = 0 for the weight, 1 for m, 2 for v.
    uint64_t seed;
} UpdateParams;

// Updates tensors first .. first + count - 1 in a few launches, each over many tensors; nothing is
// written when control.skip is set. With g = grad * control.grad_factor, lr the learning rate, t =
// control.updates, and w the master, or weight + compensation, or the weight:
//   AdamW      m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2
//              w -= lr * (rate * m / (1-b1^t) / (sqrt(v / (1-b2^t)) + eps) + weight_decay w)
//   Lion       w -= lr * (rate * sign(b1 m + (1-b1) g) + weight_decay w), sign(0) = 0;
//              m = b2 m + (1-b2) g
//   SGD        m = momentum m + g;  w -= lr * (rate * m + weight_decay w)
//   Adafactor  u = g / sqrt(row_i col_j / mean(row)), for a vector g / sqrt(v);
//              after adafactor_statistics
//              w -= lr * (rate * u / max(1, rms) + weight_decay w)
//   Direction  w -= lr * (rate * grad + weight_decay w), with grad as it is, without grad_factor
// Then the master is rounded to the weight. With `compensation`, weight = w rounded to nearest and
// compensation = w - weight rounded. With neither, the weight is w, rounded stochastically. m and v
// in bf16 are rounded stochastically; in u8 a block's scale is the largest magnitude of its new
// values and each code is the nearest of llmc/number.h. The update itself uses the new m and v
// before they are rounded. m and v of a tensor have the same dtype; a slice comes with the whole
// row, col and rms.
void optimizer_update(UpdateList *list, int first, int count, UpdateParams params, Tensor control);

// Called before optimizer_update. Updates the tensors of RULE_ADAFACTOR, which must be whole, and
// no others. With g2 = g^2 + 1e-30 and b = 1 - control.updates^-0.8:
//   row_i = b row_i + (1-b) mean_j g2;  col_j = b col_j + (1-b) mean_i g2;
//   for a vector v = b v + (1-b) g2
//   rms = sqrt(mean(u^2)) with the u of optimizer_update, over the elements that are not padding.
// Padding rows count in both mean_i and mean(row), so u is the same as without them, and 0 in them.
// Nothing is written when control.skip is set.
void adafactor_statistics(UpdateList *list, Tensor control);

// Called before Muon's orthogonalisation. Updates the tensors of RULE_DIRECTION and no others:
//   m = momentum m + g;  grad = g + momentum m  (Nesterov), rounded to the dtype of grad.
// Nothing is written when control.skip is set.
void momentum_update(UpdateList *list, UpdateParams params, Tensor control);

// --------------------------------------------------------------------------- gradient accumulation

// dst = or += src, rounded stochastically to the dtype of dst, for gradients accumulated in the
// compute dtype. src fp32, dst fp32 (nothing is rounded), bf16 or fp16, same numel; dst may not be
// src. Element e adds half-word e % 8 of philox(seed, STREAM_GRADIENT + stream, control.micro_steps
// * 2^32 + e / 8) to the bits that rounding cuts off.
void gradient_add(Gradient dst, Tensor src, uint64_t seed, int stream, Tensor control);

// control.micro_steps += count, so the next micro-step draws other random bits. count >= 0.
void micro_step_count(Tensor control, int64_t count);

// --------------------------------------------------------------------------------------------- fp8

enum { FP8_MULTIPLE = 16 }; // of every dimension: what cuBLASLt takes

// Tensors of dtype e4m3 or e5m2 hold x * scale, rounded to nearest even, saturated; the scale is in
// a slot (Fp8Slot of llmc/number.h, one as u8 bytes on the device). Micikevicius et al., "FP8
// Formats for Deep Learning", 2022.
typedef enum {
    FP8_CURRENT, // scale = fp8_scale(amax of in): the largest power of two that fits
    FP8_KEEP,    // scale unchanged, nothing is recorded: the same values again
} Fp8Scaling;

// in (N,K) compute dtype -> q (N,K) and transposed (K,N), both e4m3 or both e5m2; either may be
// absent. N and K are multiples of 16; inf and nan become NaN.
void fp8_quantize(Tensor q, Tensor transposed, Tensor in, Tensor slot, Fp8Scaling scaling);

// out (M,N) = added + a (M,K) @ b (N,K)^T / (a_slot.scale * b_slot.scale) + bias (N). a, b: e4m3 or
// e5m2, not both e5m2; out: compute dtype or fp32. added: absent, a tensor like out, or out itself,
// which then accumulates. bias: compute dtype, or absent, as it must be when out accumulates. M, N
// and K are multiples of 16.
void fp8_matmul(Tensor out, Tensor added, Tensor a, Tensor a_slot, Tensor b, Tensor b_slot,
                Tensor bias);

// ---------------------------------------------------------------------------------------- numerics

// Adds the elements of t to the TensorStats (llmc/number.h) in stats, one as u8 bytes: count,
// largest magnitude, sum of squares, and the number of elements that `format` cannot hold. Floating
// dtypes. In a fixed order.
void tensor_statistics(Tensor stats, Tensor t, DType format);

// ------------------------------------------------------------------------------------------- small

void tensor_fill(Tensor t, float value); // every element = value; floating dtypes
void tensor_cast(
    Tensor dst,
    Tensor src); // element by element, round to nearest even; floating dtypes, same numel
// out = a x + b y, element by element; one floating dtype; out may be x or y.
void tensor_axpby(Tensor out, float a, Tensor x, float b, Tensor y);
// n <= STACK_MAX tensors as a stack (n,...) of a compute dtype, and back, in one launch. Each in[i]
// and out[i] has the elements of one entry of the stack; they all are fp32 or of its dtype.
//   stack_i = in[i] / max(sqrt(sumsq[i]), sqrt(elements) STACK_RMS_MIN): matrices divided by their
//             Frobenius norms, so that their scale does not count. sumsq (n) fp32
//   out[i] = factors[i] stack_i
enum { STACK_MAX = 16 };
// 2^-60: the square of 2^-63 is the smallest normal fp32 number, and smaller ones may count as 0 in
// sumsq. A norm that lacks them is too small, and Newton-Schulz diverges where the norm is
// above 1.3.
#define STACK_RMS_MIN 0x1p-60f
void stack_gather(Tensor stack, const Tensor *in, Tensor sumsq);
void stack_scatter(const Tensor *out, Tensor stack, const float *factors);

// ---------------------------------------------------------------------------------- watching calls

// Identifies a call of an op: calls with the same op, tensor name (ignoring the block) and shape
// cost the same.
typedef struct {
    const char *tensor; // the weight of a matmul or layernorm, else an input or output
    int rank;
    int64_t shape[TENSOR_MAX_RANK]; // N, IC, OC of a matmul; N, C of a layernorm; else the shape of
                                    // that tensor
} CallShape;

// The minimum that a call must compute and move.
typedef struct {
    const char *op; // "matmul_forward"
    CallShape shape;
    double flops; // matmuls and attention
    double bytes; // read + written: every tensor once, an output that is added to twice
} OpCost;

// Costs for the planner, without a call. They check whether a tensor is present but never read its
// data.
OpCost op_cost_optimizer_update(const UpdateTensor *tensors, int n);
OpCost op_cost_adafactor_statistics(const UpdateTensor *tensors, int n);
OpCost op_cost_momentum_update(const UpdateTensor *tensors, int n);
OpCost op_cost_gradient_add(Gradient dst, Tensor src);
OpCost op_cost_fp8_quantize(Tensor q, Tensor transposed, Tensor in, Fp8Scaling scaling);

// begin is called before each op, after its arguments are checked. When it returns false, the op is
// not run and end is not called: a dry run, which gives the costs of a step without the step.
typedef struct {
    bool (*begin)(OpCost cost);
    void (*end)(void);
} OpObserver;

// One observer for the program; NULL for none, which costs one comparison per call. Ops that are
// recorded in a graph and replayed are not observed: device_graph_* must not be used while ops are
// observed.
void ops_observe(const OpObserver *observer);
bool ops_are_observed(void);

// -------------------------------------------------------------------------------- for the backends

// Each backend implements the op NAME as backend_NAME, with the same arguments, which ops.c has
// checked. A backend with more requirements (alignment, the size of a grid) checks them itself.
// Inside a backend ops call each other by these names, so that an observer sees only the outer
// call.
#define BACKEND_OPS(OP)                                                                            \
    OP(batch_unpack)                                                                               \
    OP(embedding_forward)                                                                          \
    OP(embedding_backward)                                                                         \
    OP(embedding_norm_forward)                                                                     \
    OP(embedding_norm_backward)                                                                    \
    OP(layernorm_forward)                                                                          \
    OP(layernorm_backward)                                                                         \
    OP(rmsnorm_forward)                                                                            \
    OP(rmsnorm_backward)                                                                           \
    OP(matmul_forward)                                                                             \
    OP(matmul_residual_forward)                                                                    \
    OP(matmul_gelu_forward)                                                                        \
    OP(gelu_forward)                                                                               \
    OP(gelu_backward)                                                                              \
    OP(matmul_backward_input)                                                                      \
    OP(matmul_gelu_backward_input)                                                                 \
    OP(matmul_backward_weight)                                                                     \
    OP(matmul_stack)                                                                               \
    OP(bias_backward)                                                                              \
    OP(swiglu_forward)                                                                             \
    OP(swiglu_backward)                                                                            \
    OP(relu2_forward)                                                                              \
    OP(relu2_backward)                                                                             \
    OP(rope_table)                                                                                 \
    OP(qk_norm_rope_forward)                                                                       \
    OP(qk_norm_rope_backward)                                                                      \
    OP(attention_forward)                                                                          \
    OP(attention_backward)                                                                         \
    OP(kv_cache_store)                                                                             \
    OP(attention_decode)                                                                           \
    OP(head_loss_forward)                                                                          \
    OP(head_loss_backward)                                                                         \
    OP(sequence_losses)                                                                            \
    OP(gradient_sumsq)                                                                             \
    OP(step_control_update)                                                                        \
    OP(optimizer_update)                                                                           \
    OP(adafactor_statistics)                                                                       \
    OP(momentum_update)                                                                            \
    OP(gradient_add)                                                                               \
    OP(micro_step_count)                                                                           \
    OP(fp8_quantize)                                                                               \
    OP(fp8_matmul)                                                                                 \
    OP(tensor_statistics)                                                                          \
    OP(tensor_fill)                                                                                \
    OP(tensor_cast)                                                                                \
    OP(tensor_axpby)                                                                               \
    OP(stack_gather)                                                                               \
    OP(stack_scatter)

#define BACKEND_DECLARATION(op) __typeof__(op) backend_##op;
BACKEND_OPS(BACKEND_DECLARATION)

// The same as a table: the CPU backend has one for each instruction set that it is compiled for.
#define BACKEND_FIELD(op) __typeof__(backend_##op) *op;
#define BACKEND_ENTRY(op) .op = backend_##op,
typedef struct {
    BACKEND_OPS(BACKEND_FIELD)
} BackendOps;
const BackendOps *backend_ops(void);

// The values of rope_table, on the host.
void ops_rope_angles(float *table, int64_t maxT, int64_t half, float base);

bool backend_computes(DType dtype); // whether weights and activations may have this dtype

#ifdef __cplusplus
}
#endif
