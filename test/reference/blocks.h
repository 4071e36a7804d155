// Specification of the ops of blocks after GPT-2: RMSNorm, QK-norm and RoPE, SwiGLU, ReLU^2. See
// reference.h for the rules.
#pragma once
#include <stdbool.h>
#include <stdint.h>

// --- rmsnorm. (N,C) rows; rstd (N); weight (C)
void ref_rmsnorm_forward(double *out, double *rstd, const double *in, const double *weight,
                         int64_t N, int64_t C, double eps);
void ref_rmsnorm_backward(double *din, double *dweight, double *din_sum, const double *dout,
                          const double *in, const double *rstd, const double *weight, int64_t N,
                          int64_t C, bool add_residual, bool accumulate, bool accumulate_sum);

// --- QK-norm and RoPE. table (maxT,2,HS/2); qkv, out, dqkv (B,T,NH + 2 NKV,HS); rstd (B,T,NH +
// NKV); weights (HS) or NULL. Row t has position first + t.
typedef struct {
    int64_t B, T, NH, NKV, HS, maxT;
} RefHeads;
// rounded where ops.h says so
void ref_rope_table(double *table, int64_t maxT, int64_t HS, double base);
void ref_qk_norm_rope_forward(double *out, double *rstd, const double *qkv, const double *q_weight,
                              const double *k_weight, const double *table, RefHeads s, double eps,
                              int64_t first);
void ref_qk_norm_rope_backward(double *dqkv, double *dq_weight, double *dk_weight,
                               const double *qkv, const double *rstd, const double *q_weight,
                               const double *k_weight, const double *table, RefHeads s,
                               bool accumulate);

// --- SwiGLU: gate_up, dgate_up (N,2F), out, dout (N,F). ReLU^2: n elements
void ref_swiglu_forward(double *out, const double *gate_up, int64_t N, int64_t F);
void ref_swiglu_backward(double *dgate_up, const double *dout, const double *gate_up, int64_t N,
                         int64_t F);
void ref_relu2_forward(double *out, const double *pre, int64_t n);
void ref_relu2_backward(double *dpre, const double *dout, const double *pre, int64_t n);
