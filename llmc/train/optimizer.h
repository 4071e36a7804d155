// The end of a step: the learning rate, then gradient norm, the decision (clip, skip), and the update, by the optimizer
// that the model was planned for. The learning rate is a linear warm-up, then one of four shapes, each reaching its end
// exactly. It is a pure function of the step, so a resume needs no state for it. This module owns the list of tensors
// that it passes to the ops; the model owns the state itself (moments, master). llmc/model/optimizer_state.c lists the
// rules that an optimizer uses.
//
// Muon: the update of a matrix is its momentum, orthogonalised, so that every direction in which the matrix acts gets
// the same size. M = U S V^T is replaced by about U V^T, found by five steps of a polynomial in X = M / |M|:
//
//   X = a X + (b A + c A A) X,  A = X X^T      (a, b, c) = (3.4445, -4.7750, 2.0315)
//
// which brings singular values between 0.01 and 1 to about 0.7 .. 1.2; exactly 1 is not needed. Momentum is Nesterov's.
// Jordan et al., "Muon: An optimizer for hidden layers in neural networks", https://kellerjordan.github.io/posts/muon/,
// 2024. Scale and weight decay: Liu et al., "Muon is Scalable for LLM Training", 2025.
//
// Optimizer state in host memory (--offload optimizer) passes through the device in chunks: each parameter is cut into
// slices, and the slices that fit into one part of the device's buffer are a chunk. While one chunk is updated, the
// next ones are copied in and the previous one is copied back. The host never waits. After Ren et al., "ZeRO-Offload:
// Democratizing Billion-Scale Model Training", 2021, but the update itself stays on the device.
#pragma once
#include "llmc/base/error.h"
#include "llmc/model/model.h"
#include "llmc/model/optimizer_state.h"

#include <stdint.h>

typedef enum { SCHEDULE_COSINE, SCHEDULE_LINEAR, SCHEDULE_CONSTANT, SCHEDULE_WSD } ScheduleKind;

typedef struct {
    ScheduleKind kind;
    double max_lr;
    double final_fraction; // final lr / max lr: reached at the last step
    int64_t warmup;        // steps: step s < warmup has max_lr * (s + 1) / warmup
    int64_t total;         // steps of the run
} Schedule;

const char *schedule_name(ScheduleKind kind); // as -k takes it: "cosine", ...

// lr of step 0 .. total-1. With p = (s - warmup) / (total - 1 - warmup) in [0, 1] after the warm-up:
//   cosine   max * (f + (1 - f) (1 + cos(pi p)) / 2)       Loshchilov, Hutter, "SGDR", 2016
//   linear   max * (f + (1 - f) (1 - p))
//   constant max
//   wsd      max, then over the last 20% of all steps down with 1 - sqrt to f   (Haegele et al., 2024)
// The last step has max * f to the last bit (constant: max), unless the warm-up still covers it. s >= total gives the
// lr of the last step, s < 0 the lr of the first.
double schedule_lr(const Schedule *schedule, int64_t step);

// ---------------------------------------------------------------------------------------------------------- the update

typedef struct {
    float beta1, beta2, eps;
    float momentum;     // SGD, Muon
    float weight_decay; // on matrices and embeddings; vectors (biases, layernorm) do not decay
    uint64_t seed;      // of stochastic rounding, if there are no master weights
    StepLimits limits;  // clip, outliers; optimizer_create adds the betas
} OptimizerOptions;

// The loss scale. fp16 has no numbers below 2^-24, where many gradients are. So the loss is multiplied by a scale
// before the backward pass and the gradients are divided by it afterwards, see step_control.h. It begins high, is
// halved by each step that overflows (a few at the start are normal; they are skipped) and doubles after 2000 steps
// without one. Micikevicius et al., "Mixed Precision Training", 2017. bf16 and fp32 have enough range without it: their
// scale is fixed at 1.
float optimizer_first_loss_scale(DType dtype);
int32_t optimizer_scale_growth_interval(DType dtype); // for StepLimits

typedef struct Optimizer Optimizer;
Optimizer *optimizer_create(Model *model, const OptimizerOptions *options, Error *err);
void optimizer_destroy(Optimizer *optimizer);

// The sum of squares of the gradients, into model_norm: of this process's part where the state is divided. Call after
// the last micro-step; before optimizer_step the processes add their sums (data_parallel.h). Queued.
void optimizer_norm(Optimizer *optimizer);
// Does the next update with this learning rate, from the gradients of a step of tokens_in_step tokens. The decision,
// and with it the number of the update, is in model_control. Queued on the compute stream; does not wait. watched: for
// --numerics-every, parameters are updated one after the other, with the same bits.
void optimizer_step(Optimizer *optimizer, double learning_rate, int64_t tokens_in_step, bool watched);

// ---------------------------------------------------------------------------------------------------------------- Muon

typedef struct Muon Muon;
// For the tensors of the list whose rule is RULE_DIRECTION; parameters: of the whole model. The list is the caller's.
// scratch: u8, the size given by optimizer_muon_scratch.
Muon *muon_create(UpdateList *list, const Parameter *parameters, int num_parameters, Tensor scratch);
void muon_destroy(Muon *muon);

// Call between the decision of the step and its update. Turns gradients and momentum into directions, which replace the
// gradients. If the step is skipped, momentum and weights do not change, and the content of the gradients is not used.
void muon_directions(Muon *muon, UpdateParams params, Tensor control);

// -------------------------------------------------------------------------------------- optimizer state in host memory

typedef struct Offload Offload;
// tensors (count): those that this process updates, with state in host memory; the array is not kept.
Offload *offload_create(const Model *model, const UpdateTensor *tensors, int count, Error *err);
void offload_destroy(Offload *offload);

// All slices of all parameters, in order, with their state in the buffer.
UpdateList *offload_slices(Offload *offload);
int offload_chunks(const Offload *offload);

// Queues the copies of the first chunks, which do not wait for computation: if called before the gradient norm, they
// run during the backward pass.
void offload_begin(Offload *offload);
// Chunks in order: the compute stream waits for chunk c, slices [first, first + count) ...
void offload_take(Offload *offload, int c, int *first, int *count);
// ... and has updated it: it is copied back, and the next chunk of its part of the buffer is copied in.
void offload_return(Offload *offload, int c);
