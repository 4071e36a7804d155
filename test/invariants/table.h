// THE TABLE: what a run may be made of, by dimension, and what must not change its bits. A value is
// words of the command line; `again` are other words for the same. A row of the test is one value
// of each dimension and one invariant.
#pragma once
#include "test/test.h"

enum {
    FAMILY,
    OPTIMIZER,
    PRECISION,
    DATA,
    STEP,
    SCHEDULE,
    UPDATE,
    KEPT,
    CONTEXT,
    INVARIANT,
    DIMENSIONS
};

// The bits say what does not go together: a value that has a bit, and one of another dimension with
// that bit in `not_with`.
enum {
    HAS_ODD_SIZES = 1, // that are no multiples of 16, which fp8 needs
    HAS_WHOLE = 2,     // an optimizer of whole matrices, which --offload does not cut
    HAS_MUON = 8,      // its directions are too small for gradients in fp16
    HAS_1_GROUP = 16,  // of the sequences of a step: what several processes may divide
    HAS_2_GROUPS = 32,
    HAS_3_GROUPS = 64,
    HAS_4_GROUPS = 128,
    HAS_FP16 = 256, // on a GPU only
};

typedef struct {
    const char *words, *again; // again NULL: none
    int has, not_with;         // bits of the list above
    int windows;               // of a step: -d is so many times the context
} Value;

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmissing-field-initializers" // what a value does not have
static const Value family_values[] = {
    {"-e L=2,C=48,NH=3,T=96", "-e d6,L=2,C=48,NH=3,T=96 --d-ff 192"},
    // A head of 64, where a GPU has kernels of its own; the embedding is larger than a block.
    {"-e L=2,C=64,NH=1,V=2000,T=96", "-e L=2,C=64,V=2000,T=96"},
    {"-e starcoder2:L=2,C=64,NH=2,NKV=1,HS=64,T=96"},
    {"-e llama:L=3,C=48,NH=3,NKV=1,T=96", "-e llama:L=3,C=48,NH=3,NKV=1,HS=16,T=96 --d-ff 128"},
    {"-e qwen2:L=3,C=64,NH=2,NKV=1,HS=64,T=96"},
    {"-e qwen3:L=2,C=48,NH=3,HS=32,T=96",
     "-e qwen3:L=2,C=48,NH=3,NKV=3,HS=32,T=96,qk_norm=1,tied=1"},
    {"-e arcee:L=2,C=64,NH=4,NKV=2,T=96", "-e arcee:L=2,C=64,NH=4,NKV=2,T=96 --d-ff 256"},
    {"-e starcoder2:L=3,C=64,NH=4,NKV=2,T=96,embed_norm=1"},
    {"-e qwen3:L=2,C=48,NH=3,NKV=1,T=96,bias=1,tied=1"}, // no class of transformers has these
                                                         // blocks
    {"-e L=5,C=40,NH=5,T=96 --d-ff 72", NULL, HAS_ODD_SIZES},
};

static const Value optimizer_values[] = {
    {"--optimizer adamw", "--optimizer adamw --beta1 0.9 --beta2 0.95 --eps 1e-8"},
    {"--optimizer adamw8bit"},
    {"--optimizer adamw-bf16"},
    {"--optimizer adamw-kahan"},
    {"--optimizer lion"},
    {"--optimizer adafactor", NULL, HAS_WHOLE},
    {"--optimizer sgd", "--optimizer sgd --momentum 0.95"},
    {"--optimizer muon", NULL, HAS_WHOLE | HAS_MUON},
};

static const Value precision_values[] = {
    {"--dtype fp32", "--dtype fp32 --grad-dtype compute"},
    {"--dtype bf16"},
    {"--dtype bf16 -w 0"},
    {"--dtype bf16 --grad-dtype compute"},
    {"--dtype bf16 --fp8 1", NULL, 0, HAS_ODD_SIZES},
    {"--dtype bf16 --fp8 1 --grad-dtype compute -w 0", NULL, 0, HAS_ODD_SIZES},
    {"--dtype fp16", NULL, HAS_FP16},
    {"--dtype fp16 --grad-dtype compute -w 0", NULL, HAS_FP16, HAS_MUON},
};

// Relative to the directory of a run.
#define WEB  "../data/web/train_*.bin"
#define CODE "../data/code/train_*.bin"
#define MORE "../data/more/train_*.bin"
static const Value data_values[] = {
    {"-i " WEB, "-i " WEB ":0.5"},
    {"-i " WEB ":0.5," CODE ":0.3," MORE ":0.2", "-i " WEB ":5," CODE ":3," MORE ":2"},
    {"-i " CODE ":1," WEB ":2 -a 1", "-i " CODE ":2," WEB ":4 --overfit 1"},
};

static const Value step_values[] = {
    {"-b 4", NULL, HAS_1_GROUP, 0, 4},
    {"-b 2", NULL, HAS_1_GROUP, 0, 5}, // the last micro-step is smaller
    {"-b 4 --reduce-groups 2", NULL, HAS_2_GROUPS, 0,
     7}, // a group that is smaller than a micro-batch, and one that is not
    {"-b 1 --reduce-groups 3", NULL, HAS_3_GROUPS, 0, 6},
    {"-b 2 --reduce-groups 4", NULL, HAS_4_GROUPS, 0, 11},
    {"-b 4 --reduce-groups 4", NULL, HAS_4_GROUPS, 0, 16}, // one micro-step a group
};

static const Value schedule_values[] = {
    {"-x 5 -l 3e-3 -k constant -u 0", "-x 5 -l 0.003 -k constant -u 0"},
    {"-x 5 -l 3e-3 -u 2 -q 0.2", "-x 5 -l 3e-3 -u 2 -q 0.2 -k cosine"},
    {"-x 5 -l 3e-3 -u 1 -k wsd"},
    {"-x 8 -l 3e-3 -u 1 -k trapezoid"},
    {"-x 5 -l 3e-3 -u 1 -k linear"},
    {"-x 5 -l auto -c auto"}, // from the size of the model
};

static const Value update_values[] = {
    {""},
    {"--grad-clip 0.05 --seed 5", "-seed 5 --grad-clip 5e-2"},
    {"--by-group embedding.beta2=0.99,vectors.decay=0.2,matrices.beta1=0.8 --lr-embedding 5e-3 "
     "--lr-vectors 1e-3",
     "--lr-vectors 0.001 --lr-embedding 0.005 --by-group "
     "matrices.beta1=0.8,vectors.decay=0.2,embedding.beta2=0.99"},
    {"--offload optimizer", NULL, 0, HAS_WHOLE},
    {"--numerics-every 2 -v 2 -m 3"},
};

static const Value kept_values[] = {
    {"-r 0"},
    {"-r 3", "-r block"},
    {"-r fc+layernorm"},
    {"-r 1/2", "-r gelu/2"},
    {"-r attention+qkvx1,attproj"},
};

static const Value context_values[] = {
    {"-t 48 --threads 1"},
    {"-t 80 --threads 1"},
    {"-t 37 --threads 1", NULL, HAS_ODD_SIZES},
    {"-t 48 --threads 2"},
};

// An invariant is what must not matter. `more` comes after the words of the run, `environment` is
// that of the other run alone.
typedef enum {
    OTHER,   // the same run, with more
    SPELLED, // the same run in other words
    RESUMED, // cut back to a checkpoint, and resumed with more
} Change;

// A run takes a hundred times as long on the simulated GPU: what the backend knows nothing about is
// asked of the CPU.
typedef enum { ON_BOTH, ON_CPU, ON_GPU } Where;

typedef struct {
    Value value;                    // words: more
    const char *name, *environment; // name: a run ... has the same bits
    Change change;
    int first, processes; // how many processes; first: before a resume
    bool same_files;      // all bytes of the checkpoint, and not just weights, state and losses
    Where where;
} Invariant;

// These values are what so many processes cannot divide.
enum {
    NOT_BY_2 = HAS_1_GROUP | HAS_3_GROUPS,
    NOT_BY_3 = HAS_1_GROUP | HAS_2_GROUPS | HAS_4_GROUPS,
    NOT_BY_4 = HAS_1_GROUP | HAS_2_GROUPS | HAS_3_GROUPS,
};

static const Invariant invariants[] = {
    {{""}, "made_again", "", OTHER, 1, 1, true, ON_CPU},
    {{""}, "in_other_words", "", SPELLED, 1, 1, false, ON_CPU},
    {{""}, "resumed", "", RESUMED, 1, 1, true},
    {{"-r qkv+gelu/1 --numerics-every 1"},
     "resumed_that_keeps_other_activations",
     "",
     RESUMED,
     1,
     1,
     false,
     ON_CPU},
    {{"--offload optimizer", .not_with = HAS_WHOLE},
     "resumed_with_an_offloaded_state",
     "",
     RESUMED,
     1,
     1,
     false,
     ON_CPU},
    {{"", .not_with = NOT_BY_2}, "resumed_on_two_processes", "", RESUMED, 1, 2, true, ON_CPU},
    {{"-z 0", .not_with = NOT_BY_4},
     "of_four_processes_resumed_on_one",
     "",
     RESUMED,
     4,
     1,
     true,
     ON_CPU},
    {{"-r 0"}, "that_keeps_everything", "", OTHER, 1, 1, false, ON_CPU},
    {{"-r 2"}, "that_repeats_gelu_and_layernorm", "", OTHER, 1, 1, false, ON_CPU},
    {{"-r 3"}, "that_repeats_whole_blocks", "", OTHER, 1, 1},
    {{"-r qkvx1,attention+gelu+attproj"}, "that_repeats_other_ops_in_each_block", "", OTHER, 1, 1},
    {{"--offload optimizer", .not_with = HAS_WHOLE},
     "with_an_offloaded_state",
     "",
     OTHER,
     1,
     1,
     false,
     ON_CPU},
    {{"--numerics-every 2"}, "whose_numbers_are_watched", "", OTHER, 1, 1},
    {{"-v 2 -m 5 -s 2 -g 6"}, "that_is_evaluated_in_between", "", OTHER, 1, 1},
    {{"", .not_with = NOT_BY_2}, "on_two_processes", "SIM_NCCL=delay:1", OTHER, 1, 2, true},
    {{"-z 0", .not_with = NOT_BY_2},
     "on_two_processes_with_all_of_the_state",
     "",
     OTHER,
     1,
     2,
     true,
     ON_CPU},
    {{"", .not_with = NOT_BY_3},
     "on_three_processes_that_wait",
     "PRETRAIN_COMM_OVERLAP=0",
     OTHER,
     1,
     3,
     true,
     ON_CPU},
    {{"", .not_with = NOT_BY_4}, "on_four_processes", "SIM_NCCL=inprogress", OTHER, 1, 4, true},
    {{""}, "with_late_streams", "SIM_STREAMS=lazy", OTHER, 1, 1, true, ON_GPU},
    {{"--offload optimizer", .not_with = HAS_WHOLE},
     "with_late_copies_of_its_state",
     "SIM_STREAMS=lazy",
     OTHER,
     1,
     1,
     false,
     ON_GPU},
    {{""}, "with_its_threads_in_reverse", "SIM_SCHED=rev", OTHER, 1, 1, true, ON_GPU},
    {{""}, "with_its_threads_in_any_order", "SIM_SCHED=rand:7", OTHER, 1, 1, true, ON_GPU},
    {{""}, "without_graphs", "PRETRAIN_GRAPHS=0", OTHER, 1, 1, true, ON_GPU},
    {{""}, "without_early_launches", "PRETRAIN_EARLY_LAUNCH=0", OTHER, 1, 1, true, ON_GPU},
};
#pragma GCC diagnostic pop
