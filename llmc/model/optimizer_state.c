// The optimizer table and the facts derived from it: rules and rates, the tensors of the state, the
// memory of the update. Nothing here computes an update (ops.h does) or owns memory (model.c does).
#include "llmc/model/optimizer_state.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/format.h"
#include "llmc/model/memory_plan.h"
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The format in which a moment is kept.
typedef enum { KEPT_NOT, KEPT_FP32, KEPT_BF16, KEPT_8BIT, KEPT_FACTORED } Kept;

typedef struct {
    UpdateRule rule;
    Kept m, v;
} GroupState;

// One row: name, whether -w applies, Kahan's compensation, -l auto, the max steps of the default
// warm-up, and for each group of parameters, in the order of ParameterGroup (embedding, head,
// matrices, vectors), rule and moments, and what it is updated with.
typedef struct {
    const char *name;
    bool master, compensation;
    double learning_rate;
    int max_warmup;
    GroupState groups[NUM_GROUPS];
    GroupRates rates[NUM_GROUPS];
} OptimizerSpec;

// clang-format off
#define OF_ALL(rule, m, v) {{rule, m, v}, {rule, m, v}, {rule, m, v}, {rule, m, v}}
#define ADAMW(kept)        {RULE_ADAMW, kept, kept}
// Vectors do not decay.
#define DECAYS(beta1, beta2, eps) {1, beta1, beta2, eps, 1}
#define RATES(beta1, beta2, eps)                                              \
    {DECAYS(beta1, beta2, eps), DECAYS(beta1, beta2, eps), DECAYS(beta1, beta2, eps), \
     {1, beta1, beta2, eps, 0}}
#define FACTORED {RULE_ADAFACTOR, KEPT_NOT, KEPT_FACTORED}
// Warm-up: 700 steps as in llm.c's runs with AdamW; Muon's updates have one size from the first
// step on, nanochat warms up over 40.
static const OptimizerSpec TABLE[OPTIMIZER_COUNT] = {
    [OPTIMIZER_ADAMW]       = {"adamw",       true,  false, 6e-4, 700,
                               OF_ALL(RULE_ADAMW, KEPT_FP32, KEPT_FP32), RATES(0.9, 0.95, 1e-8)},
    [OPTIMIZER_ADAMW_8BIT]  = {"adamw8bit",   true,  false, 6e-4, 700,
                               {ADAMW(KEPT_8BIT), ADAMW(KEPT_8BIT), ADAMW(KEPT_8BIT),
                                ADAMW(KEPT_FP32)}, RATES(0.9, 0.95, 1e-8)},
    [OPTIMIZER_ADAMW_BF16]  = {"adamw-bf16",  false, false, 6e-4, 700,
                               OF_ALL(RULE_ADAMW, KEPT_BF16, KEPT_BF16), RATES(0.9, 0.95, 1e-8)},
    [OPTIMIZER_ADAMW_KAHAN] = {"adamw-kahan", false, true,  6e-4, 700,
                               OF_ALL(RULE_ADAMW, KEPT_BF16, KEPT_BF16), RATES(0.9, 0.95, 1e-8)},
    [OPTIMIZER_LION]        = {"lion",        true,  false, 1.2e-4, 700,
                               OF_ALL(RULE_LION, KEPT_FP32, KEPT_NOT), RATES(0.9, 0.95, 1e-8)},
    [OPTIMIZER_ADAFACTOR]   = {"adafactor",   true,  false, 1.5e-4, 700,
                               {FACTORED, FACTORED, FACTORED,
                                {RULE_ADAFACTOR, KEPT_NOT, KEPT_FP32}}, RATES(0.9, 0.95, 1e-8)},
    [OPTIMIZER_SGD]         = {"sgd",         true,  false, 4e-3, 700,
                               OF_ALL(RULE_SGD, KEPT_FP32, KEPT_NOT), RATES(0.9, 0.95, 1e-8)},
    [OPTIMIZER_MUON]        = {"muon",        true,  false, 1.2e-3, 40,
                               {ADAMW(KEPT_FP32), ADAMW(KEPT_FP32),
                                {RULE_DIRECTION, KEPT_FP32, KEPT_NOT}, ADAMW(KEPT_FP32)},
                               RATES(0.9, 0.95, 1e-8)},
};
#undef OF_ALL
#undef ADAMW
#undef RATES
#undef DECAYS
#undef FACTORED

// The settings that the formulas of ops.h read.
static const bool READS[RULE_COUNT][SETTING_COUNT] = {
    [RULE_ADAMW]     = {[SETTING_BETA1] = true, [SETTING_BETA2] = true, [SETTING_EPS] = true,
                        [SETTING_DECAY] = true},
    [RULE_LION]      = {[SETTING_BETA1] = true, [SETTING_BETA2] = true, [SETTING_DECAY] = true},
    [RULE_SGD]       = {[SETTING_MOMENTUM] = true, [SETTING_DECAY] = true},
    [RULE_ADAFACTOR] = {[SETTING_DECAY] = true},
    [RULE_DIRECTION] = {[SETTING_MOMENTUM] = true, [SETTING_DECAY] = true},
};

static const struct {
    const char *name, *prefix;
    size_t field;
} SLOTS[NUM_STATE_SLOTS] = {
    // The master weights are stored in model.safetensors.
    [SLOT_MASTER]        = {"master",       NULL,                offsetof(UpdateTensor, master)},
    [SLOT_COMPENSATION]  = {"compensation", "weight_error.",     offsetof(UpdateTensor, compensation)},
    [SLOT_M]             = {"m",            "exp_avg.",          offsetof(UpdateTensor, m)},
    [SLOT_V]             = {"v",            "exp_avg_sq.",       offsetof(UpdateTensor, v)},
    [SLOT_M_SCALE]       = {"m_scale",      "exp_avg_scale.",    offsetof(UpdateTensor, m_scale)},
    [SLOT_V_SCALE]       = {"v_scale",      "exp_avg_sq_scale.", offsetof(UpdateTensor, v_scale)},
    [SLOT_ROW]           = {"row",          "exp_avg_sq_row.",   offsetof(UpdateTensor, row)},
    [SLOT_COL]           = {"col",          "exp_avg_sq_col.",   offsetof(UpdateTensor, col)},
    [SLOT_RMS]           = {"rms",          NULL,                offsetof(UpdateTensor, rms)},
};
// clang-format on

const char *optimizer_name(OptimizerKind kind) { return TABLE[kind].name; }
bool optimizer_has_master(OptimizerKind kind) { return TABLE[kind].master; }
bool optimizer_keeps_master(OptimizerKind kind, bool master, DType compute) {
    return master && TABLE[kind].master && compute != DTYPE_FP32;
}
double optimizer_default_learning_rate(OptimizerKind kind) { return TABLE[kind].learning_rate; }
int64_t optimizer_default_warmup(OptimizerKind kind, int64_t steps) {
    return min_i64(steps / 50, TABLE[kind].max_warmup);
}

// -------------------------------------------------------------------------------- rates of a group

_Static_assert((int)NUM_GROUPS == (int)UPDATE_GROUPS,
               "the ops know as many groups as the parameter table");

void optimizer_default_rates(OptimizerKind kind, double weight_decay,
                             GroupRates rates[NUM_GROUPS]) {
    for (int group = 0; group < NUM_GROUPS; group++) {
        rates[group] = TABLE[kind].rates[group];
        rates[group].weight_decay *= weight_decay;
    }
}

bool optimizer_reads(OptimizerKind kind, ParameterGroup group, Setting setting) {
    return READS[TABLE[kind].groups[group].rule][setting];
}

const char *parameter_group_name(ParameterGroup group) {
    static const char *const names[NUM_GROUPS] = {"embedding", "head", "matrices", "vectors"};
    return names[group];
}

static const struct {
    const char *name;
    size_t field;
    double min, max;
} RATES_BY_NAME[] = {
    // in the order of Setting
    {"beta1", offsetof(GroupRates, beta1), 0, 0.999999},
    {"beta2", offsetof(GroupRates, beta2), 0, 0.999999},
    {"eps", offsetof(GroupRates, eps), 1e-16, 1},
    {"decay", offsetof(GroupRates, weight_decay), 0, 10},
};
enum { COUNT = sizeof RATES_BY_NAME / sizeof *RATES_BY_NAME };

bool optimizer_next_rate(const char **at, RatePart *part) {
    const char *text = *at, *name = text + strcspn(text, ".") + 1;
    int group = 0, setting = 0;
    if (!*text) return false;
    while (!text_is(text, (size_t)(name - 1 - text), parameter_group_name((ParameterGroup)group)))
        group++;
    while (!text_is(name, strcspn(name, "="), RATES_BY_NAME[setting].name)) setting++;
    *part = (RatePart){(ParameterGroup)group, (Setting)setting, text, (int)strcspn(text, ",")};
    *at = text + part->length + (text[part->length] == ',');
    return true;
}

bool optimizer_parse_rates(GroupRates rates[NUM_GROUPS], const char *text, Error *err) {
    for (const char *part = text, *end; *part; part = end + (*end == ',')) {
        end = part + strcspn(part, ",");
        int group = 0, i = 0;
        const size_t of_group = strcspn(part, ".=,"), of_name = strcspn(part + of_group, "=,");
        const char *name = part + of_group + 1, *number = part + of_group + of_name + 1;

        while (group < NUM_GROUPS &&
               !text_is(part, of_group, parameter_group_name((ParameterGroup)group)))
            group++;
        while (i < COUNT && (of_name == 0 || !text_is(name, of_name - 1, RATES_BY_NAME[i].name)))
            i++;
        if (group == NUM_GROUPS || i == COUNT || number > end)
            return error_set(err,
                             "%.*s: expected GROUP.NAME=NUMBER with a group out of embedding, "
                             "head, matrices, vectors "
                             "and a name out of beta1, beta2, eps, decay",
                             (int)(end - part), part);

        char *read;
        const double x = strtod(number, &read);
        if (read == number || read != end ||
            !(x >= RATES_BY_NAME[i].min && x <= RATES_BY_NAME[i].max))
            return error_set(err, "%.*s: %s is a number from %g to %g", (int)(end - part), part,
                             RATES_BY_NAME[i].name, RATES_BY_NAME[i].min, RATES_BY_NAME[i].max);
        *(double *)(void *)((char *)&rates[group] + RATES_BY_NAME[i].field) = x;
    }
    return true;
}

// ------------------------------------------------------------------------------------------- names

bool optimizer_parse(OptimizerKind *kind, const char *name, Error *err) {
    char names[256] = "";
    for (int i = 0; i < OPTIMIZER_COUNT; i++) {
        if (strcmp(TABLE[i].name, name) == 0) {
            *kind = (OptimizerKind)i;
            return true;
        }
        const size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", i > 0 ? ", " : "", TABLE[i].name);
    }
    return error_set(err, "%s: unknown optimizer; expected one of %s", name, names);
}

static const GroupState *group_state(OptimizerKind kind, const Parameter *p) {
    return &TABLE[kind].groups[p->spec->group];
}

UpdateRule optimizer_rule(OptimizerKind kind, const Parameter *p) {
    return group_state(kind, p)->rule;
}

float optimizer_rate(OptimizerKind kind, const Parameter *p) {
    if (optimizer_rule(kind, p) != RULE_DIRECTION) return 1.0f;
    return 0.2f * sqrtf((float)max_i64(p->parts[0], p->cols));
}

const char *state_slot_name(StateSlot slot) { return SLOTS[slot].name; }
const char *state_slot_prefix(StateSlot slot) { return SLOTS[slot].prefix; }
Tensor *state_slot_tensor(UpdateTensor *t, StateSlot slot) {
    return (Tensor *)(void *)((char *)t + SLOTS[slot].field);
}

static Tensor vector(const Parameter *p, int64_t n) {
    return tensor_make(NULL, DTYPE_FP32, p->name, n, 0, 0, 0);
}

static Tensor moment(const Parameter *p, Kept kept) {
    if (kept == KEPT_FP32) return parameter_tensor(p, NULL, DTYPE_FP32);
    if (kept == KEPT_BF16) return parameter_tensor(p, NULL, DTYPE_BF16);
    if (kept == KEPT_8BIT) return parameter_tensor(p, NULL, DTYPE_U8);
    return tensor_none();
}

Tensor optimizer_state(OptimizerKind kind, bool master, DType compute, const Parameter *p,
                       StateSlot slot) {
    const GroupState *g = group_state(kind, p);
    const bool factored = g->v == KEPT_FACTORED,
               compensated = TABLE[kind].compensation && compute != DTYPE_FP32;
    const int64_t scales = ceil_div(parameter_numel(p), STATE_BLOCK);
    if (slot == SLOT_MASTER && optimizer_keeps_master(kind, master, compute))
        return parameter_tensor(p, NULL, DTYPE_FP32);
    if (slot == SLOT_COMPENSATION && compensated) return parameter_tensor(p, NULL, compute);
    if (slot == SLOT_M) return moment(p, g->m);
    if (slot == SLOT_V) return moment(p, g->v);
    if (slot == SLOT_M_SCALE && g->m == KEPT_8BIT) return vector(p, scales);
    if (slot == SLOT_V_SCALE && g->v == KEPT_8BIT) return vector(p, scales);
    if (slot == SLOT_ROW && factored) return vector(p, p->rows);
    if (slot == SLOT_COL && factored) return vector(p, p->cols);
    if (slot == SLOT_RMS && g->rule == RULE_ADAFACTOR) return vector(p, 1);
    return tensor_none();
}

Tensor optimizer_state_slice(Tensor whole, StateSlot slot, const Parameter *p, int64_t first,
                             int64_t n) {
    if (whole.rank == 0 || (first == 0 && n == parameter_numel(p))) return whole;
    if (slot == SLOT_M_SCALE || slot == SLOT_V_SCALE) n = ceil_div(n, STATE_BLOCK);
    return tensor_make(NULL, whole.dtype, whole.name, n, 0, 0, 0);
}

bool optimizer_is_elementwise(OptimizerKind kind) {
    for (int group = 0; group < NUM_GROUPS; group++) {
        const UpdateRule rule = TABLE[kind].groups[group].rule;
        if (rule == RULE_ADAFACTOR || rule == RULE_DIRECTION) return false;
    }
    return true;
}

// ---------------------------------------------------------------------------- memory of the update

int64_t optimizer_offload_buffer(int64_t host_bytes) {
    enum { LEAST = 16 << 10, MOST = 16 << 20 };
    return OFFLOAD_PARTS * round_up(min_i64(max_i64(host_bytes / 8, LEAST), MOST), PLAN_ALIGNMENT);
}

// X X^T, its square, and their product with X.
double optimizer_matmul_flops(OptimizerKind kind, const Parameter *p) {
    if (optimizer_rule(kind, p) != RULE_DIRECTION) return 0;
    double flops = 0;
    for (int k = 0; k < p->num_parts; k++) {
        const double m = (double)min_i64(p->parts[k], p->cols),
                     n = (double)max_i64(p->parts[k], p->cols);
        flops += MUON_STEPS * (4 * m * m * n + 2 * m * m * m);
    }
    return flops;
}

// Allocates bytes one after the other; returns their offset.
static int64_t take_scratch(int64_t *end, int64_t bytes) {
    const int64_t offset = *end;
    *end += round_up(bytes, PLAN_ALIGNMENT);
    return offset;
}

int optimizer_muon_stack(int64_t rows, int64_t cols, DType compute) {
    enum { MOST_BYTES = 64 << 20 };
    return (int)min_i64(STACK_MAX,
                        max_i64(1, MOST_BYTES / (rows * cols * (int64_t)dtype_size(compute))));
}

// Matrices of this shape in the model.
static int64_t count_matrices(const Parameter *parameters, int count, int64_t rows, int64_t cols) {
    int64_t found = 0;
    for (int i = 0; i < count; i++) {
        const Parameter *p = &parameters[i];
        if (p->cols != cols || optimizer_rule(OPTIMIZER_MUON, p) != RULE_DIRECTION) continue;
        for (int k = 0; k < p->num_parts; k++) found += p->parts[k] == rows;
    }
    return found;
}

MuonScratch optimizer_muon_scratch(const Parameter *parameters, int count, DType compute) {
    const int64_t element = (int64_t)dtype_size(compute);
    int64_t stack = 0, sides = 0;
    MuonScratch s = {0};
    for (int i = 0; i < count; i++) {
        const Parameter *p = &parameters[i];
        if (optimizer_rule(OPTIMIZER_MUON, p) != RULE_DIRECTION) continue;
        for (int k = 0; k < p->num_parts; k++) {
            const int64_t rows = p->parts[k], side = min_i64(rows, p->cols);
            const int64_t n = min_i64(count_matrices(parameters, count, rows, p->cols),
                                      optimizer_muon_stack(rows, p->cols, compute));
            stack = max_i64(stack, n * rows * p->cols);
            sides = max_i64(sides, n * side * side);
        }
        s.matrices += p->num_parts;
    }

    s.x = take_scratch(&s.bytes, stack * element);
    s.next = take_scratch(&s.bytes, stack * element);
    s.gram = take_scratch(&s.bytes, sides * element);
    s.square = take_scratch(&s.bytes, sides * element);
    s.sumsq = take_scratch(&s.bytes, s.matrices * (int64_t)sizeof(float));
    return s;
}

int64_t optimizer_scratch_bytes(OptimizerKind kind, const ModelConfig *config, DType compute,
                                bool numerics) {
    Parameter *table = parameter_table(config);
    const int count = parameter_count(config);
    int64_t bytes = 0;
    if (kind == OPTIMIZER_MUON) bytes = optimizer_muon_scratch(table, count, compute).bytes;
    for (int i = 0; numerics && i < count; i++)
        bytes = max_i64(bytes, parameter_numel(&table[i]) * (int64_t)sizeof(float));
    free(table);
    return bytes;
}
