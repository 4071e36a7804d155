// The options of a model, and what they imply.
#pragma once
#include "llmc/device.h"
#include "llmc/model/optimizer_state.h"
#include "llmc/model/partition.h"
#include "llmc/model/recompute.h"
#include "llmc/ops.h"

// A GPU that need not be present: a model is planned with the sizes that the ops of the CUDA
// backend require there (gpu_sizes.h), in place of ops_workspace_bytes and ops_head_chunk_rows.
// Exact except for attention by cuDNN, whose workspace is an upper bound.
typedef struct {
    int num_sms, compute_capability; // 0: unknown, the largest workspace of any GPU
    int64_t memory;                  // bytes; 0: no workspace, and one row of logits
    AttentionChoice attention;
} PlannedSizes;

typedef struct {
    ModelConfig config;
    DType dtype;  // compute dtype: weights and activations
    bool master;  // keep fp32 master weights with a bf16/fp16 compute dtype (always off for fp32,
                  // and if the optimizer has none)
    bool train;   // gradients, optimizer state and the memory of the backward pass; false: forward
                  // only
    int64_t B, T; // the largest micro-batch
    Recompute recompute; // the activations that the backward pass recomputes
    int64_t sequences;   // max sequences decoded in parallel; 0: model_decode_* are not used
    OptimizerKind optimizer;
    bool gradients_in_dtype; // gradients have the compute dtype; a micro-step's are added to them,
                             // rounded stochastically
    uint64_t seed;           // of that rounding
    bool offload;            // optimizer state and master weights live in host memory
    bool fp8; // the four matmuls of a block in fp8; needs bf16 and dimensions in multiples of 16
    bool numerics; // model_numerics.h: plans memory for its counts and for a copy of an update
    int groups, group_count;   // of a step, and those that this process computes
                               // (train/data_parallel.h); 0: 1
    int processes, rank;       // that share a step; 0: 1
    bool divided;              // the optimizer's state is divided among them (-z 1)
    int64_t group_windows;     // sequences of a group; 0: at most B
    const PlannedSizes *sizes; // for model_plan only; NULL: the sizes of the linked backend
} ModelOptions;

typedef struct Model Model;

// Reads bytes of a state that belongs to another process (model_set_reader).
typedef bool StateReader(void *context, int index, StateSlot slot, int64_t first, int64_t n,
                         void *out);
// Reads rows of a weight as fp32 (model_set_weight_reader).
typedef bool WeightReader(void *context, int index, int64_t first_row, int64_t rows, float *out,
                          Error *err);

// Whether such a model is possible: fp8 (dtype, device, C and T in multiples of 16), offload with
// this optimizer, Muon with fp16 gradients. Otherwise false and a message.
bool model_check_options(const ModelOptions *options, Error *err);

// The options that a model is made with: what dtype and optimizer exclude is off.
ModelOptions model_options_effective(const ModelOptions *options);

OpsShape model_ops_shape(const ModelOptions *o);
int64_t model_workspace_bytes(const ModelOptions *o); // of the ops, here or on the GPU of o->sizes
int64_t model_head_chunk_rows(const ModelOptions *o); // likewise
DType model_gradient_dtype(const ModelOptions *o);    // in which gradients are accumulated
bool model_is_divided(const ModelOptions *o);         // the state, among processes
// Whether the gradients of a block are freed as soon as they are exchanged, before those of other
// blocks are computed: where the state is divided and a process has one micro-step.
bool model_frees_gradients(const ModelOptions *o);
enum {
    NUM_BUCKETS = 2
}; // where gradients are freed: of blocks, one computes while another one is sent
// The elements of a parameter of which a process has the optimizer's state: all of them without
// -z 1.
Range model_own_range(const ModelOptions *o, const Partition *p, const Parameter *parameter,
                      int index, int process);
