// --plan: the memory of a run before any is allocated, by class and kind, what fits, and for each GPU of a table the
// min time of a step; also the choices of -b auto and -r auto. Needs no GPU and no data. It runs the allocator itself,
// so its memory figures are the bytes that model_create takes. Times are limits computed from datasheets, not
// measurements, and every line says so. Computation (planner.c, planner_fit.c, planner_predict.c) and printing
// (planner_print.c) are separate. doc/memory.md describes the output.
#pragma once
#include "llmc/base/error.h"
#include "llmc/model/model.h"
#include "llmc/run/options.h"
#include "llmc/tensor.h"

#include <stdio.h>

// ----------------------------------------------------------------------------- GPUs and their datasheets (planner.c)

typedef struct {
    const char *name;                     // "A100 80GB"
    const char *also;                     // another name for it on the command line: "a100"; NULL: none
    double memory;                        // bytes; a GB of a datasheet counted as 10^9: never more than there is
    double peak_bf16, peak_fp16, peak_32; // FLOP/s, dense, fp32 accumulation; 0: none. 32: on TF32 tensor cores
    double peak_fp8;                      // e4m3; 0: none
    double bandwidth;                     // bytes/s
    double link;                          // bytes/s from or to the host, one way: PCIe x16
    double nvlink;                        // bytes/s to the other GPUs of the machine, one way; 0: not by NVLink
    int num_sms;                          // multiprocessors
    int compute_capability;               // 75, 80, 86, ...
} GpuSpec;

const GpuSpec *gpu_table(int *count);

// The GPU that a user means: by its name, whatever the case, spaces, dashes and "GB" (h200, rtx-4090, a100-80), or by
// its memory alone (24G, 16GB, 80GiB), which leaves everything else 0 and lends name as it was typed. text is `length`
// bytes. False and a message that names the nearest one and all there are.
typedef struct {
    GpuSpec spec;
    char name[32]; // spec.name of one that is only a size
} GpuChoice;
bool gpu_find(GpuChoice *gpu, const char *text, size_t length, Error *err);

// Bytes/s from a GPU to the others of its machine, one way: NVLink where it has it, else PCIe; 0: only its memory is
// known.
double gpu_exchange_rate(const GpuSpec *gpu);

// FLOP/s of the datasheet; 0: the GPU cannot compute in dtype, or only its memory is known.
double gpu_spec_peak(const GpuSpec *gpu, DType dtype);

// dtype, or fp16 where the GPU has no bf16.
DType gpu_spec_dtype(const GpuSpec *gpu, DType dtype);

// ---------------------------------------------------------------------------------------------------------- arithmetic

// What the matmuls and attention of a step of `tokens` tokens must compute: the exact count of recompute.h (causal
// attention), what -r computes again, and Muon's products: five times 4 m^2 n + 2 m^3 for a matrix of m x n, m <= n.
double planner_step_flops(const ModelOptions *model, int64_t tokens);
// The fp8 part of it: the linear layers of the blocks, with --fp8.
double planner_step_fp8_flops(const ModelOptions *model, int64_t tokens);

// Bytes that everything else in a step moves to and from memory, when each kernel reads and writes its tensors once:
//   a token      ((12 L + 8) C + 2 Vp) elements of the compute dtype: embedding 2 C forward and C backward, layernorm
//                2 C forward and 4 C backward, twice a block, the final one 2 C and 3 C; the logits once read and once
//                written; GELU and residual additions are part of their matmuls. What -r runs again besides matmuls is
//                counted by recompute_elements_per_token, what --fp8 quantises by op_table.def
//   a micro-step gradients that are added to the compute dtype, by op_table.def
//   a step       the norm of the gradient and the update, for the tensors of optimizer_state(), by op_table.def
double planner_step_bytes(const ModelOptions *model, int64_t tokens);

typedef struct {
    double flops, fp8_flops, bytes;
    double link_bytes; // under offload: to the device and back, one way
    double seconds; // FLOP / peak + bytes / bandwidth + bytes / link: what is not a matmul waits for one, and the other
                    // way round, and the update waits for the norm of all gradients. 0: no peak is known
} StepLimit;
StepLimit planner_step(const GpuSpec *gpu, const ModelOptions *model, int64_t tokens);

// Bytes that each of model->processes GPUs sends in a step, and receives at the same time, see train/data_parallel.h:
// of n bytes of gradients its own range stays, and the others go to their owners, n (processes - 1) / processes; its
// sum then goes to all others, which is as much again, or with -z 1 its new weights do. Where whole tensors are
// divided: those of the GPU with the most. The losses, a few KB, are not counted.
typedef struct {
    double gradients, weights;
    double last_gradients, first_weights; // the part of them outside blocks
} PlannedExchange;
PlannedExchange planner_exchange(const ModelOptions *model);

// ------------------------------------------------------------------------------------- prediction (planner_predict.c)

typedef struct {
    double likely, worst, best;
} Estimate;

// What a part of an op is limited by. The first five are shares of the peak, the others of the bandwidth.
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

// A matmul (M,N) = (M,K) @ (K,N). sums_tokens: K counts tokens (a weight gradient), otherwise M does.
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
enum { MOST_PARTS = 4, MOST_PREDICTED_OPS = 40 };
typedef struct {
    const char *op, *tensor;
    double calls, flops, bytes;
    double launches; // kernels
    bool beside;     // they may run while a weight gradient does, with --overlap
    int num_parts;
    PredictedPart parts[MOST_PARTS];
} PredictedOp;

typedef struct {
    int count;
    PredictedOp ops[MOST_PREDICTED_OPS]; // none with --fp8 or --offload
    bool is_known;                       // of this GPU and dtype; otherwise nothing below, and no seconds above
    bool is_limit;                       // its times are those of the datasheet's peak and bandwidth
    Estimate step, between, launch;      // seconds: of a step, its part between kernels, and between two of them
    Estimate overlap;                    // seconds of a step that --overlap can hide at most; step has them
} Prediction;

// A step of `tokens` tokens on one GPU; of the options --attention and -ge count. or_limit: where no rates are assumed,
// takes those of the datasheet.
void planner_predict(Prediction *prediction, const GpuSpec *gpu, const ModelOptions *model, int64_t tokens,
                     const Options *options, bool or_limit);

// ------------------------------------------------------------------------------- sizes that suit a GPU
// (planner_advise.c) NVIDIA, "Matrix Multiplication Background User's Guide": a matmul is computed in tiles, one on
// each multiprocessor at a time. A tile that reaches beyond the result costs as much as a full one, and so does a last
// wave that is nearly empty. Anthony et al., "The Case for Co-Designing Model Architectures with Hardware", 2024, has
// the consequences for the sizes of transformers.

typedef struct {
    int rows, cols;    // of a tile
    int64_t tiles;     // of the result; those at its edges may reach beyond it
    int splits;        // parts of K, whose sums are added afterwards: each part has all tiles
    int64_t waves;     // tiles x splits on so many multiprocessors, rounded up
    double last_wave;  // the part of the multiprocessors that the last wave keeps busy
    double tile_share; // of the elements of the tiles, those of the result
    double wave_share; // of the places in the waves, those that have a tile
    double load_share; // assumed: by how many elements rows are aligned
    double share; // of the rate of the largest tiles in full waves: the product, with what smaller tiles are assumed to
                  // lose
} Tiling;
// The tile and splits, of those that cuBLAS has, with which this matmul takes the least time on this GPU.
Tiling planner_tiling(const GpuSpec *gpu, DType dtype, const MatmulShape *shape);
// Elements by which n is aligned, at most 64: the largest power of two that divides it.
int planner_alignment(int64_t n);

// Spearman's rank correlation of a and b (n): 1 the same order, -1 the opposite one. Equal values share their ranks.
double rank_correlation(const double *a, const double *b, int n);

// A feed-forward layer of a block, up and down, or gate and up (one matmul of twice d_ff columns) and down; forward and
// backward for `tokens` tokens.
typedef struct {
    int64_t tokens, C, d_ff;
    bool gated;
} FeedForward;
double feed_forward_flops(const FeedForward *layer);
enum { FEED_FORWARD_MATMULS = 6 };
void feed_forward_matmuls(const FeedForward *layer, MatmulShape shapes[FEED_FORWARD_MATMULS]);

// -------------------------------------------------------------------------------------------------------------- memory

// Bytes of a GPU with so much memory that the plan leaves free: 1 GB, at most 6%, for the CUDA context, kernels and the
// libraries' own buffers.
double planner_reserve(double memory);
// Bytes of this machine's device memory for a plan: of a GPU what is free now less planner_reserve; of a CPU's memory
// what is available now, with -b auto or -r auto less 5%, at least 256 MiB, for the program, oneDNN's buffers and the
// loader.
double planner_room(bool automatic);

// The workspace that the ops of the CUDA backend need on this GPU, for ModelOptions.sizes. Exact except for attention
// by cuDNN, whose workspace is an upper bound, and 0 without cuDNN (attention own). gpu must outlive the plans made
// with it. For a GPU of which only the memory is known, the largest of any GPU.
PlannedSizes planner_sizes(const GpuSpec *gpu, AttentionChoice attention);

// The kinds of activations alive at the peak are the rows of a table in planner.c, of which these are the last.
enum { KIND_OTHER = 12, KIND_GAPS, KIND_COUNT }; // gaps: lost by the layout, total - memory_plan_live_peak
const char *activation_kind_name(int kind);      // "residual", ...
int activation_kind(const char *name);           // kind of a tensor of the plan

typedef struct {
    double classes[MEM_CLASS_COUNT]; // they sum to total
    double kinds[KIND_COUNT];        // they sum to classes[MEM_ACTIVATIONS]
    double total;                    // of the arena
    double host;                     // of pinned host memory, under offload
} PlannedMemory;
PlannedMemory planner_memory(const ModelOptions *model);

// The largest micro-batch, max `most` (0: no limit except that of -b), that fits into this many bytes; 0: none does.
// Larger ones may take less (the chunks of the logits become smaller): it is the largest of all that fit.
int64_t planner_largest_batch(const ModelOptions *model, double bytes, int64_t most);

// -b and -r, for `room` bytes of device memory: parses recompute (what recompute_parse takes, or "auto") into
// model->recompute, and with any_batch sets model->B to the largest micro-batch that fits, at most `most` (the windows
// of a step; 0: no limit). auto takes the sets of ops with the least extra FLOPs that fit, then the least extra bytes,
// of all there are on its ladder (planner_ladder): one set for the first blocks, another for the others.
// Both auto: the largest B that computes nothing again; where that has fewer than 65536 tokens, the largest up to them
// that needs no matmul again; where not one sequence fits so, B = 1 and the least extra FLOPs.
// False and a message when it does not fit: what it needs, what there is, and which of fewer --samples, a smaller -b,
// -r, --optimizer, --grad-dtype and --offload would fit.
bool planner_fit(ModelOptions *model, bool any_batch, const char *recompute, double room, int64_t most, Error *err);
// -b auto -r auto, as planner_fit has it, without a message.
bool planner_choose(ModelOptions *model, double room, int64_t most);

// The choices of -r auto for a model of L blocks, cheapest first; returns their number, the caller frees *ladder.
typedef struct {
    int first_set, set; // RECOMPUTE_...: of the first `count` blocks, of the others
    int64_t count;
    double flops, elements; // extra ones per token, in matmuls and attention; moved by others
} RecomputeChoice;
int planner_ladder(RecomputeChoice **ladder, const ModelConfig *config, int64_t T);
Recompute planner_recompute(const RecomputeChoice *choice, int64_t L);

// ------------------------------------------------------------------------------------------------------ the whole plan

// The shape of a model as fields of an object: JSON_ADD(object, JSON_SHAPE(config)).
#define JSON_SHAPE(c)                                                                                                  \
    JSON_NUMBER("L", (c)->L), JSON_NUMBER("C", (c)->C), JSON_NUMBER("NH", (c)->NH), JSON_NUMBER("V", (c)->V),          \
        JSON_NUMBER("Vp", (c)->Vp), JSON_NUMBER("max_T", (c)->max_T), JSON_NUMBER("d_ff", model_size(c, DIM_FF))

// The input of --plan: a model, whose B and recompute follow from -b and -r, and a run of it on model.processes GPUs.
typedef struct {
    ModelOptions model;
    int64_t step_windows;   // of T tokens, of all GPUs; 0: B for each group
    const Options *options; // -b auto, -r, --tokens, -x, --gpu, --plan, --attention
} PlanRequest;

// The plan for one device, or for several of them: memory, -b and -r are those of each.
typedef struct {
    GpuChoice gpu; // no name: this machine
    PlannedSizes sizes;
    ModelOptions model; // with the dtype, B and recompute used on it
    int gpus;
    int64_t windows;      // of a step, of all GPUs
    int64_t share_tokens; // of a step, of the GPU with the most
    bool fits;
    Error why_not; // what it needs, and what would fit
    double room;   // bytes that the plan may take
    PlannedMemory memory;
    int64_t batch;                            // the largest B at the -r of model; 0: not one sequence fits
    StepLimit step;                           // of one GPU's share; nearly the same for smaller micro-batches
    double exchange_bytes, exchange_rate;     // of several GPUs: sent by each in a step; bytes/s, 0: unknown
    double exchange_seconds, exposed_seconds; // the second: at least, beside computation
    double efficiency;                        // step.seconds / step_seconds: the part of a step that computes
    double tokens, steps, step_tokens;        // of the run, 0: unknown; of a step
    double step_seconds, run_seconds;         // lower bounds; 0: unknown, or not one sequence fits
    Prediction prediction;                    // of one GPU's share
    Estimate predicted;                       // of a step, with the exposed exchange; 0: unknown
    // Filled by planner_alternatives:
    int64_t most[4];    // the largest B at -r 0 .. 3
    int64_t auto_batch; // of -b auto -r auto
    Recompute auto_recompute;
} DevicePlan;
// Fills *plan, which must not be moved afterwards. gpu NULL: this machine; its spec stays zero. -r must be valid.
void planner_device(DevicePlan *plan, const PlanRequest *request, const GpuChoice *gpu);
// Finds what else would fit there, with five more searches, for output that shows it.
void planner_alternatives(DevicePlan *plan, const PlanRequest *request);

// --advise: what the matmuls of a step are to a GPU, and which other sizes would suit it better; or sizes of d_ff.
// False and a message when it cannot be.
bool planner_advise(FILE *out, const PlanRequest *request, Error *err);

// The GPUs of --gpu, separated by commas; "this": the one of this process, which must not be a CPU.
enum { MOST_GPUS = 32 };
bool gpu_find_all(GpuChoice gpus[MOST_GPUS], int *count, const char *names, Error *err);

// Prints the plan, as text or one JSON object. False and a message when --gpu or -r cannot be read.
bool planner_print(FILE *out, const PlanRequest *request, Error *err);
