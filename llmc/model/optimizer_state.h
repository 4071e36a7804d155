// THE optimizer table: the state that each optimizer keeps for a parameter, its dtypes, and the
// rule by which the parameter is updated. Memory plan, checkpoints, the update itself, the
// planner's bytes a parameter and --help read it.
#pragma once
#include "llmc/model/parameters.h"
#include "llmc/ops.h"

typedef enum {
    OPTIMIZER_ADAMW,       // fp32 moments
    OPTIMIZER_ADAMW_8BIT,  // moments of matrices and embeddings in 8 bits, block-wise (Dettmers et
                           // al., 2021)
    OPTIMIZER_ADAMW_BF16,  // bf16 moments, no master weights: the weight is rounded stochastically
    OPTIMIZER_ADAMW_KAHAN, // bf16 moments, no master weights: the rounding error is kept (Kahan,
                           // 1965)
    OPTIMIZER_LION,
    OPTIMIZER_ADAFACTOR,
    OPTIMIZER_SGD,
    OPTIMIZER_MUON, // matrices of the blocks; AdamW for embeddings and vectors (Jordan et al.,
                    // 2024)
    OPTIMIZER_COUNT
} OptimizerKind;

// as --optimizer takes it: "adamw", "adamw8bit", ...
const char *optimizer_name(OptimizerKind kind);
// False and a message that lists the names if there is no such name.
bool optimizer_parse(OptimizerKind *kind, const char *name, Error *err);
bool optimizer_has_master(OptimizerKind kind); // whether -w 1 has an effect
// Whether there are master weights: with -w 1 (master) and a 16-bit compute dtype.
bool optimizer_keeps_master(OptimizerKind kind, bool master, DType compute);
// At 124M: measured, see doc/optimizers.md; train/recipe.h has other sizes. Muon's is that of runs
// of earlier versions.
double optimizer_default_learning_rate(OptimizerKind kind);
// of a run of this number of steps
int64_t optimizer_default_warmup(OptimizerKind kind, int64_t steps);

// The settings of an update. Which of them a rule reads, and so which an optimizer reads for a
// group, is a table of optimizer_state.c; the learning rate is read by all.
typedef enum {
    SETTING_BETA1,
    SETTING_BETA2,
    SETTING_EPS,
    SETTING_DECAY,
    SETTING_MOMENTUM,
    SETTING_COUNT
} Setting;
bool optimizer_reads(OptimizerKind kind, ParameterGroup group, Setting setting);

// The settings of a group of parameters; a rule reads some of them.
typedef struct {
    double rate; // learning rate over that of the step, also of the decay; above 0
    double beta1, beta2, eps;
    double weight_decay;
} GroupRates;

// Gives the rates of the table for a run with this weight decay, which vectors do not have.
void optimizer_default_rates(OptimizerKind kind, double weight_decay, GroupRates rates[NUM_GROUPS]);
// "embedding", "head", "matrices", "vectors"
const char *parameter_group_name(ParameterGroup group);
// Changes rates as text says, such as "embedding.beta2=0.995,vectors.decay=0.1": beta1, beta2, eps
// and decay by group. Otherwise false and a message that quotes the part that is wrong.
bool optimizer_parse_rates(GroupRates rates[NUM_GROUPS], const char *text, Error *err);
// The next part of such a text at *at, which was parsed without an error: its group and setting,
// and its words and how many bytes they are. False at the end.
typedef struct {
    ParameterGroup group;
    Setting setting;
    const char *text;
    int length;
} RatePart;
bool optimizer_next_rate(const char **at, RatePart *part);

// The rule of one parameter, and the factor of its direction (Muon: 0.2 sqrt(max(rows, cols)),
// which makes its directions as large as AdamW's, and does not multiply the weight decay: Liu et
// al., "Muon is Scalable for LLM Training", 2025).
UpdateRule optimizer_rule(OptimizerKind kind, const Parameter *p);
float optimizer_rate(OptimizerKind kind, const Parameter *p);

// The tensors an optimizer keeps for a parameter, one slot each.
typedef enum {
    SLOT_MASTER,
    SLOT_COMPENSATION,
    SLOT_M,
    SLOT_V,
    SLOT_M_SCALE,
    SLOT_V_SCALE,
    SLOT_ROW,
    SLOT_COL,
    SLOT_RMS, // scratch of a step, not saved
    NUM_STATE_SLOTS
} StateSlot;
const char *state_slot_name(StateSlot slot); // "master", "m", ...: for plans and messages
// in optimizer.safetensors: "exp_avg.", ...; NULL: not saved there
const char *state_slot_prefix(StateSlot slot);
Tensor *state_slot_tensor(UpdateTensor *t, StateSlot slot); // the field of that slot

// Dtype and shape of a slot (data NULL); rank 0 if this optimizer does not keep it for this
// parameter.
Tensor optimizer_state(OptimizerKind kind, bool master, DType compute, const Parameter *p,
                       StateSlot slot);

// The shape of that slot for elements [first, first + n) of the parameter, which begin at a block
// of 8-bit states.
Tensor optimizer_state_slice(Tensor whole, StateSlot slot, const Parameter *p, int64_t first,
                             int64_t n);

// Whether the rule of every parameter works element by element, so that its state can pass through
// in slices.
bool optimizer_is_elementwise(OptimizerKind kind);

// Under offload: size of the device buffer that host_bytes of state pass through, a multiple of
// PLAN_ALIGNMENT. It has OFFLOAD_PARTS parts: at any time one is copied in, one is updated and one
// is copied back. A part is an eighth of the state, but at least 16 KiB and at most 16 MiB, which
// takes 0.6 ms at 25 GB/s, long compared with the cost of starting a copy.
enum { OFFLOAD_PARTS = 3 };
int64_t optimizer_offload_buffer(int64_t host_bytes);

enum { MUON_STEPS = 5 }; // Newton-Schulz steps for each matrix
// The FLOPs of these steps for a parameter; 0 for other rules.
double optimizer_matmul_flops(OptimizerKind kind, const Parameter *p);

// The maximum of matrices of this shape that Muon processes at a time: enough to keep a GPU busy.
int optimizer_muon_stack(int64_t rows, int64_t cols, DType compute);

// The places of Muon's intermediate results in its scratch memory: for the largest stack of
// matrices X, in the compute dtype, X and the next X, and two of X X^T (X^T X if X is tall); one
// fp32 for each matrix. See llmc/train/muon.c.
typedef struct {
    int64_t x, next, gram, square; // offsets, in bytes
    int64_t sumsq;
    int64_t bytes; // total; 0: there is no matrix
    int matrices;  // matrices stacked in one tensor are counted separately
} MuonScratch;
MuonScratch optimizer_muon_scratch(const Parameter *parameters, int count, DType compute);

// Device memory that the update needs besides the state, at the end of a step: Muon's products;
// with numerics a copy of the largest parameter, in fp32. They use the same bytes, one after the
// other.
int64_t optimizer_scratch_bytes(OptimizerKind kind, const ModelConfig *config, DType compute,
                                bool numerics);
