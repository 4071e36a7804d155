// The specification: every op of llmc/ops.h in fp64, as plain loops over double arrays. Backends
// are tested against these functions; the functions themselves are tested by finite differences
// (test/ops/test_reference.c) and against PyTorch (test/golden). Names, argument order and formulas
// are those of ops.h; shapes follow the arrays.
//
// Values are never rounded on the way, with one exception that ops.h makes part of the contract
// because a later pass reads the stored value: the pre-activation of matmul_gelu_forward is rounded
// to `dtype`, the compute dtype, before it is used. Where ops.h says "= or +=", `accumulate`
// decides. This module owns nothing and is written to be read: no blocking, no threads, no vector
// code.
#pragma once
#include "llmc/model/parameters.h"
#include "llmc/ops.h"

// x rounded to nearest even in a floating dtype.
double ref_round(double x, DType dtype);

// --- batch and embedding. windows (B, T+1); tokens (B,T); wte, dwte (Vp,C); wpe, dwpe (maxT,C) or
// NULL
void ref_batch_unpack(int32_t *inputs, int32_t *targets, const int32_t *windows, int64_t B,
                      int64_t T);
void ref_embedding_forward(double *out, const int32_t *tokens, const double *wte, const double *wpe,
                           int64_t B, int64_t T, int64_t C);
void ref_embedding_backward(double *dwte, double *dwpe, const double *dout, const int32_t *tokens,
                            int64_t B, int64_t T, int64_t C, int64_t Vp, int64_t maxT,
                            bool accumulate_wte, bool accumulate);

// In place: dout of the embedding's norm becomes that of the rows of wte.
void ref_embedding_norm_forward(double *out, const int32_t *tokens, const double *wte, int64_t N,
                                int64_t C, double eps);
void ref_embedding_norm_backward(double *dout, const int32_t *tokens, const double *wte, int64_t N,
                                 int64_t C, double eps);

// --- layernorm. (N,C) rows; mean, rstd (N); weight, bias (C).
void ref_layernorm_forward(double *out, double *mean, double *rstd, const double *in,
                           const double *weight, const double *bias, int64_t N, int64_t C,
                           double eps);
void ref_layernorm_backward(double *din, double *dweight, double *dbias, double *din_sum,
                            const double *dout, const double *in, const double *mean,
                            const double *rstd, const double *weight, int64_t N, int64_t C,
                            bool add_residual, bool accumulate, bool accumulate_sum);

// --- matmul and GELU. in (N,IC), weight (OC,IC), out (N,OC); bias and dbias (OC) may be NULL
double ref_gelu(double x);
double ref_gelu_derivative(double x);
void ref_gelu_forward(double *out, const double *pre, int64_t n);
void ref_matmul_forward(double *out, const double *in, const double *weight, const double *bias,
                        int64_t N, int64_t IC, int64_t OC);
void ref_matmul_residual_forward(double *out, const double *residual, const double *in,
                                 const double *weight, const double *bias, int64_t N, int64_t IC,
                                 int64_t OC);
void ref_matmul_gelu_forward(double *out, double *pre, const double *in, const double *weight,
                             const double *bias, int64_t N, int64_t IC, int64_t OC, DType dtype);
void ref_matmul_backward_input(double *din, const double *dout, const double *weight, int64_t N,
                               int64_t IC, int64_t OC);
void ref_matmul_gelu_backward_input(double *dpre, const double *dout, const double *weight,
                                    const double *pre, int64_t N, int64_t IC, int64_t OC);
void ref_matmul_backward_weight(double *dweight, double *dbias, const double *dout,
                                const double *in, int64_t N, int64_t IC, int64_t OC,
                                bool accumulate);

// --- attention. qkv, dqkv (B,T,NH + 2 NKV,HS); out, dout (B,T,NH,HS); lse (B,NH,T)
void ref_attention_forward(double *out, double *lse, const double *qkv, int64_t B, int64_t T,
                           int64_t NH, int64_t NKV, int64_t HS);
void ref_attention_backward(double *dqkv, const double *dout, const double *out, const double *lse,
                            const double *qkv, int64_t B, int64_t T, int64_t NH, int64_t NKV,
                            int64_t HS);

// --- decoding. cache (B,2,NKV,maxT,HS); qkv (B,n,NH + 2 NKV,HS), n = 1 in attention_decode; out
// (B,NH,HS)
void ref_kv_cache_store(double *cache, const double *qkv, int64_t B, int64_t n, int64_t NH,
                        int64_t NKV, int64_t HS, int64_t maxT, int64_t first);
void ref_attention_decode(double *out, double *cache, const double *qkv, int64_t B, int64_t NH,
                          int64_t NKV, int64_t HS, int64_t maxT, int64_t position);

// --- LM head + cross-entropy. in, din (N,C); wte, dwte (Vp,C); targets, losses (N). factor = scale
// * loss_scale
void ref_head_loss_forward(double *losses, const double *in, const double *wte,
                           const int32_t *targets, int64_t N, int64_t C, int64_t V);
void ref_head_loss_backward(double *losses, double *din, double *dwte, const double *in,
                            const double *wte, const int32_t *targets, int64_t N, int64_t C,
                            int64_t V, int64_t Vp, double factor, bool accumulate);
void ref_sequence_losses(double *sums, const double *losses, int64_t B, int64_t T, bool accumulate);

// --- the end of the step, for one tensor of n elements
double ref_sumsq(const double *grad, int64_t n);
void ref_adamw_update(double *weight, double *m, double *v, const double *grad, int64_t n,
                      double rate, double weight_decay, UpdateParams params, int group,
                      int64_t updates, double grad_factor);

// What the other updates of a tensor read and write: of a matrix under Adafactor rows = n / cols,
// of a vector cols = 0. Arrays that the rule does not use may be NULL. w: the master, or weight +
// compensation, or the weight, before it is rounded.
typedef struct {
    UpdateRule rule;
    double weight_decay, rate;
    int64_t n, cols, padding; // padding: of the last elements, which do not count in rms
    int group;                // whose moment rates in params it has
    int64_t updates;          // with this one
    double *w, *grad, *m, *v; // (n)
    double *row, *col, *rms;  // (rows), (cols), (1)
} RefUpdate;
// of any rule
void ref_optimizer_update(const RefUpdate *t, UpdateParams params, double grad_factor);
void ref_adafactor_statistics(const RefUpdate *t, double grad_factor);
// changes m and grad
void ref_momentum_update(const RefUpdate *t, UpdateParams params, double grad_factor);

// --- small, n elements
void ref_tensor_axpby(double *out, double a, const double *x, double b, const double *y, int64_t n);
void ref_normalize(double *out, const double *in, double sumsq, int64_t n);

// --- the whole model, built from the functions above as llmc/model/gpt2.c is built from ops.h.
// params, grads: one array per tensor, in the order of parameter_table(config). windows (B, T+1).
// Returns the mean loss over the B*T tokens. losses (B,T), logits (B,T,V) and grads may be NULL;
// grads are overwritten with the gradient of the mean loss.
double ref_gpt2(const ModelConfig *config, double *const *params, const int32_t *windows, int64_t B,
                int64_t T, double *losses, double *logits, double *const *grads);
// The same with every tensor that one op leaves for the next rounded to dtype, as a backend stores
// it: what the roundings alone make of this model. Parameters are taken as they are, within an op
// nothing is rounded. grads are those of scale times the loss, which fp16 needs.
double ref_gpt2_stored(const ModelConfig *config, DType dtype, double scale, double *const *params,
                       const int32_t *windows, int64_t B, int64_t T, double *logits,
                       double *const *grads);
