// The predicted time of a step on a GPU: each op of the step at the rate that its kind is assumed
// to reach there.
#pragma once
#include "llmc/model/model.h"
#include "llmc/plan/gpu_table.h"

typedef struct {
    double likely, worst, best;
} Estimate;

// The limit of a part of an op. The first five are shares of the peak, the others of the bandwidth.
typedef enum {
    RATE_MATMUL,
    RATE_ATTENTION_FORWARD,
    RATE_ATTENTION_BACKWARD,
    RATE_OUR_ATTENTION_FORWARD, // with --attention own
    RATE_OUR_ATTENTION_BACKWARD,
    RATE_COPY,
    RATE_LAYERNORM_BACKWARD,
    RATE_CROSS_ENTROPY,
    RATE_GELU,
    RATE_GELU_GRADIENT,
    RATE_BIAS_GRADIENT,
    RATE_FC_BIAS_GRADIENT,
    RATE_QKV_BIAS_GRADIENT,
    RATE_LAUNCH, // seconds between two kernels
    RATE_COUNT
} RateKind;
const char *rate_name(RateKind rate);

// A matmul (M,N) = (M,K) @ (K,N). sums_tokens: K counts tokens (a weight gradient), otherwise M
// does.
typedef struct {
    int64_t M, N, K;
    bool sums_tokens;
} MatmulShape;

typedef struct {
    RateKind rate;
    double amount, factor; // FLOP or bytes; of the rate
    MatmulShape shape;     // of each call; M 0: of several shapes, or no matmul
    Estimate seconds;
} PredictedPart;

// The calls of an op on one weight in a step, as --profile shows them.
enum { MOST_PARTS = 4, MOST_PREDICTED_OPS = 128 };
typedef struct {
    const char *op;
    char tensor[32];
    int64_t shape[TENSOR_MAX_RANK]; // of a call
    double calls, flops, bytes;
    double launches; // kernels
    int num_parts;
    PredictedPart parts[MOST_PARTS];
} PredictedOp;

typedef struct {
    int count;
    PredictedOp ops[MOST_PREDICTED_OPS]; // none with --fp8 or --offload
    bool is_known; // of this GPU and dtype; otherwise nothing below, and no seconds above
    bool is_limit; // its times are those of the datasheet's peak and bandwidth
    // seconds: of a step, its part between kernels, and between two of them
    Estimate step, between, launch;
} Prediction;

typedef struct {
    AttentionChoice attention;
    int gelu_fusion; // -ge
} PredictOptions;

// A step of `tokens` tokens on one GPU. or_limit: where no rates are assumed,
// takes those of the datasheet.
void plan_predict(Prediction *prediction, const GpuSpec *gpu, const ModelOptions *model,
                  int64_t tokens, const PredictOptions *options, bool or_limit);
