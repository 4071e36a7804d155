// THE CONTRACT: every operation of a training step, at the level at which it is fused.
//
// Three implementations answer to it: llmc/cuda (kernels), llmc/cpu (oneDNN + OpenMP) and test/reference (fp64, the
// specification both are tested against). Rules for all of them:
//   - Weights, biases, activations and their gradients have the compute dtype (fp32, bf16, fp16), one for all of them
//     in a call; "stat" tensors (mean, rstd, lse, losses) are fp32; weight gradients are fp32 or the compute dtype;
//     tokens are i32. Accumulation and statistics are fp32 or better.
//   - Outputs come first. An output never overlaps an input unless the comment says "may be".
//   - Everything runs in order on the compute stream and returns without waiting. No allocation, no host decision.
//   - The same inputs give the same bits, from run to run.
//   - A wrong shape or dtype is a bug of the caller: the op names the tensor and stops the program (tensor_check).
// Names: B batch, T context, C channels, NH heads, HS = C / NH, V vocabulary, Vp padded vocabulary, N = B * T rows.
// Where a tensor is (B,T,C), (N,C) with N = B * T is the same thing.
#pragma once
#include "llmc/step_control.h"
#include "llmc/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

// --------------------------------------------------------------------------------------------------------- workspace

// The largest shapes that any op will be called with. The backend answers with the scratch memory it needs for them;
// the caller plans it into its arena and hands it over once. Calls with smaller shapes are fine.
typedef struct {
    int64_t B, T, C, NH, Vp;
    int64_t num_tensors; // weight tensors handed to gradient_sumsq and adamw_update
    int64_t sequences;   // B of attention_decode, with maxT = T; 0: it is not called
    bool gelu_again;     // gelu_forward will be asked for the bits that matmul_gelu_forward gave
    DType dtype;         // compute dtype
} OpsShape;
int64_t ops_workspace_bytes(OpsShape shape);
void ops_set_workspace(void *device_memory, int64_t bytes);

// -------------------------------------------------------------------------------------------------------------- batch

// windows (B, T+1) u16 or i32: token sequences as the loader reads them.
// inputs (B,T) i32 = windows[:, :T];  targets (B,T) i32 = windows[:, 1:].
void batch_unpack(Tensor inputs, Tensor targets, Tensor windows);

// ---------------------------------------------------------------------------------------------------------- embedding

// out (B,T,C) = wte[tokens] + wpe[t].   tokens (B,T) i32, wte (Vp,C), wpe (maxT,C) with maxT >= T.
void embedding_forward(Tensor out, Tensor tokens, Tensor wte, Tensor wpe);

// dwte (Vp,C) += sum of dout (B,T,C) over the places where each token stands. Always adds: the tied head wrote it
// first. dwpe (maxT,C)  = or += (accumulate) sum of dout over B; rows T.. become 0 or stay. No float atomics.
void embedding_backward(Tensor dwte, Tensor dwpe, Tensor dout, Tensor tokens, bool accumulate);

// ---------------------------------------------------------------------------------------------------------- layernorm

// out = (in - mean) * rstd * weight + bias over the last dimension; rstd = 1 / sqrt(var + 1e-5), var the biased
// variance. in, out (N,C); mean, rstd (N) fp32; weight, bias (C).  Ba, Kiros, Hinton, "Layer Normalization", 2016.
void layernorm_forward(Tensor out, Tensor mean, Tensor rstd, Tensor in, Tensor weight, Tensor bias);

// residual = in + branch (rounded to the compute dtype), then layernorm_forward of that residual. residual may be in.
// residual, out, in, branch (N,C). Serves inside a block and across the block boundary.
void residual_layernorm_forward(Tensor residual, Tensor out, Tensor mean, Tensor rstd, Tensor in, Tensor branch,
                                Tensor weight, Tensor bias);

// din (N,C) = LN'(dout), or din += LN'(dout) when add_residual: din then holds the gradient of the residual stream.
//   dnorm = dout * weight;  xhat = (in - mean) * rstd
//   LN'   = rstd * (dnorm - mean_C(dnorm) - xhat * mean_C(dnorm * xhat))
// dweight (C) = or += sum_N dout * xhat;  dbias (C) = or += sum_N dout. Summed in a fixed order.
void layernorm_backward(Tensor din, Tensor dweight, Tensor dbias, Tensor dout, Tensor in, Tensor mean, Tensor rstd,
                        Tensor weight, bool add_residual, bool accumulate);

// ------------------------------------------------------------------------------------------------------------- matmul

// out (N,OC) = in (N,IC) @ weight (OC,IC)^T + bias (OC). bias may be absent (tensor_none()).
void matmul_forward(Tensor out, Tensor in, Tensor weight, Tensor bias);

// pre (N,OC) = in @ weight^T + bias;  out (N,OC) = gelu(pre): of the rounded pre, or, where a GPU library has GELU in
// the epilogue of its matmul and OpsShape.gelu_again is not set, of pre before it was rounded.
void matmul_gelu_forward(Tensor out, Tensor pre, Tensor in, Tensor weight, Tensor bias);

// out = gelu(pre) = 0.5 pre (1 + tanh(sqrt(2/pi) (pre + 0.044715 pre^3))), element by element: the same bits as
// matmul_gelu_forward gave, under OpsShape.gelu_again. For recomputation.
// Hendrycks, Gimpel, "Gaussian Error Linear Units", 2016.
void gelu_forward(Tensor out, Tensor pre);

// din (N,IC) = dout (N,OC) @ weight (OC,IC).
void matmul_backward_input(Tensor din, Tensor dout, Tensor weight);

// dpre (N,IC) = (dout (N,OC) @ weight (OC,IC)) * gelu'(pre (N,IC)): the gradient that goes into the layer before GELU.
void matmul_gelu_backward_input(Tensor dpre, Tensor dout, Tensor weight, Tensor pre);

// dweight (OC,IC) = or += dout (N,OC)^T @ in (N,IC);  dbias (OC) = or += sum_N dout. dbias may be absent.
// accumulate false overwrites: the first micro-step needs no zeroed gradients.
void matmul_backward_weight(Tensor dweight, Tensor dbias, Tensor dout, Tensor in, bool accumulate);

// ---------------------------------------------------------------------------------------------------------- attention

// Causal multi-head attention. qkv (B,T,3C) packed as (B,T,3,NH,HS); out (B,T,C).
//   scores[i,j] = q_i . k_j / sqrt(HS) for j <= i;  lse (B,NH,T) fp32 = log sum_j exp(scores[i,j]);
//   out_i = sum_j exp(scores[i,j] - lse_i) v_j.  Never a T x T matrix in memory.
// Dao et al., "FlashAttention", 2022.
void attention_forward(Tensor out, Tensor lse, Tensor qkv, int num_heads);

// dqkv (B,T,3C) from dout (B,T,C); probabilities are recomputed from qkv and lse.
//   P = exp(scores - lse);  dV = P^T dout;  dP = dout V^T;  dS = P * (dP - rowsum(dout * out));
//   dQ = dS K / sqrt(HS);  dK = dS^T Q / sqrt(HS).
void attention_backward(Tensor dqkv, Tensor dout, Tensor out, Tensor lse, Tensor qkv, int num_heads);

// ----------------------------------------------------------------------------------------------------------- decoding

// Generation token by token. The cache of one block holds keys and values of what was read so far, for each head one
// after the other: (B,2NH,maxT,HS), the keys of all heads before their values. Positions that are not filled yet are
// never read, whatever stands there.

// Keys and values of a prompt, qkv (B,n,3C) packed as (B,n,3,NH,HS), into positions first .. first + n - 1 of the
// cache.
void kv_cache_store(Tensor cache, Tensor qkv, int64_t first);

// Attention of one new token a sequence. position: one i32 on the device, how many tokens were read before, the same
// for all sequences; on the device, so that one recording of the step serves every token.
//   qkv (B,3C): k and v are stored at `position` of the cache, then with length = position + 1
//   scores[j] = q . k_j / sqrt(HS), j < length;  out (B,C) = softmax(scores) V.
// A sequence has the same bits alone and beside others, and whatever maxT is.
void attention_decode(Tensor out, Tensor cache, Tensor qkv, Tensor position);

// --------------------------------------------------------------------------------------------- LM head + cross-entropy

// In chunks of R rows: logits of one chunk exist at a time, in logits (R,Vp), scratch of the caller. R may be any
// number; this is what the backend would like for shape (at most B * T).
int64_t ops_head_chunk_rows(OpsShape shape);

// in (N,C), wte (Vp,C) (the tied head), targets (N) i32, losses (N) fp32 in nats:
//   losses[n] = log sum_{v<V} exp(logits[n,v]) - logits[n,targets[n]].   Columns V..Vp-1 take no part.
void head_loss_forward(Tensor losses, Tensor logits, Tensor in, Tensor wte, Tensor targets, int64_t V);

// The same losses, and in the same pass over each chunk the gradients of  scale * loss_scale * sum_n losses[n]:
//   dlogits = scale * loss_scale * (softmax(logits) - onehot(target)) overwrites the logits; 0 in columns V..Vp-1.
//   din (N,C) = dlogits @ wte;  dwte (Vp,C) = or += dlogits^T @ in.
// control: the device's StepControl, whose loss_scale is read; absent means 1. scale is 1 / tokens of the whole step.
void head_loss_backward(Tensor losses, Tensor din, Tensor dwte, Tensor logits, Tensor in, Tensor wte, Tensor targets,
                        int64_t V, float scale, Tensor control, bool accumulate);

// sums (B) fp32 = or += sum_t losses (B,T). One number a sequence, so that totals do not depend on how sequences
// were grouped into micro-batches.
void sequence_losses(Tensor sums, Tensor losses, bool accumulate);

// ------------------------------------------------------------------------------------------------ the end of the step

// sumsq (n) fp32: the sum of squares of each gradient tensor, all in one launch, in a fixed order. inf or nan in a
// tensor shows in its entry. grads must stay the same array, with the same contents, from call to call.
void gradient_sumsq(Tensor sumsq, const Tensor *grads, int n);

// step_control_decide (llmc/step_control.h) on the device. control: one StepControl as u8 bytes; sequence_losses (B)
// fp32, summed in index order in fp64; num_tokens: tokens of the whole step.
void step_control_update(Tensor control, Tensor sumsq, Tensor sequence_losses, int64_t num_tokens, StepLimits limits);

typedef struct {
    Tensor weight; // compute dtype
    Tensor master; // fp32; absent: the weight itself is updated, with stochastic rounding unless it is fp32
    Tensor grad;   // fp32 or compute dtype
    Tensor m, v;   // fp32
    float weight_decay;
} AdamWTensor;

typedef struct {
    float learning_rate, beta1, beta2, eps;
    int64_t step; // 1 for the first update: bias correction
    // Stochastic rounding: element e of a tensor adds half-word e % 8, lower halves first, of
    // philox(seed, STREAM_ROUNDING + tensor index, step * 2^40 + e / 8) to the bits that rounding cuts off.
    uint64_t seed;
} AdamWParams;

// AdamW over all tensors in one launch; nothing is written when control.skip is set.
//   g = grad * control.grad_factor;  m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2
//   w -= lr * (m / (1-b1^step) / (sqrt(v / (1-b2^step)) + eps) + weight_decay * w)
// The master is updated and rounded to the weight. tensors must stay the same array from call to call.
// Loshchilov, Hutter, "Decoupled Weight Decay Regularization", 2017.
void adamw_update(const AdamWTensor *tensors, int n, AdamWParams params, Tensor control);

// -------------------------------------------------------------------------------------------------------------- small

void tensor_fill(Tensor t, float value);  // every element = value; floating dtypes
void tensor_cast(Tensor dst, Tensor src); // element by element, round to nearest even; floating dtypes, same numel

#ifdef __cplusplus
}
#endif
