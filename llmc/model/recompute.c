// Sets of ops that are recomputed, their text form and cost, and the FLOPs of a step.
// model_memory.c knows how much memory they save.
#include "llmc/model/recompute.h"

#include "llmc/base/arithmetic.h"
#include "llmc/model/parameters.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    int set;
} OPS[] = {
    {"gelu", RECOMPUTE_GELU},
    {"layernorm", RECOMPUTE_LAYERNORM},
    {"fc", RECOMPUTE_FC | RECOMPUTE_GELU},
    {"qkv", RECOMPUTE_QKV},
    {"attention", RECOMPUTE_ATTENTION},
    {"attproj", RECOMPUTE_ATTPROJ},
    {"block", RECOMPUTE_BLOCK},
};
enum { NUM_OPS = sizeof OPS / sizeof OPS[0] };

static const char FORMS[] =
    "expected 0 .. 3, ops joined by + (gelu, layernorm, fc, qkv, attention, attproj, block), "
    "3/2 for every second block, or 3x4,0 for 4 blocks and all others";

enum { NUM_LEVELS = 4 };

int recompute_level_set(int level) {
    const int sets[NUM_LEVELS] = {0, RECOMPUTE_GELU, RECOMPUTE_GELU | RECOMPUTE_LAYERNORM,
                                  RECOMPUTE_BLOCK};
    return sets[level];
}

static int with_implied(int set) {
    if (set & RECOMPUTE_FC) set |= RECOMPUTE_GELU;
    return set;
}
static int set_of(const Recompute *r, int64_t block) { return with_implied(r->blocks[block]); }

Recompute recompute_all(int set) {
    Recompute r;
    memset(r.blocks, with_implied(set), sizeof r.blocks);
    return r;
}

bool recompute_gelu_alone(const Recompute *r, int64_t L) {
    for (int64_t l = 0; l < L; l++)
        if ((set_of(r, l) & (RECOMPUTE_GELU | RECOMPUTE_FC)) == RECOMPUTE_GELU) return true;
    return false;
}

// ----------------------------------------------------------------------------------------- reading

static bool not_understood(const char *text, const char *at, Error *err) {
    return error_set(err, "-r %.80s: '%.20s' is not understood; %s", text, at, FORMS);
}

// A level, or ops joined by +, at *at in text.
static bool read_recompute_set(const char *text, const char **at, int *set, Error *err) {
    *set = 0;
    if (**at >= '0' && **at < '0' + NUM_LEVELS) {
        *set = recompute_level_set(*(*at)++ - '0');
        return true;
    }

    unsigned named = 0;
    for (;; ++*at) {
        int op = 0;
        while (op < NUM_OPS && strncmp(*at, OPS[op].name, strlen(OPS[op].name)) != 0) op++;
        if (op == NUM_OPS) return not_understood(text, *at, err);
        *at += strlen(OPS[op].name);
        if (named >> op & 1)
            return error_set(err, "-r %.80s: %s is given twice; leave one out", text, OPS[op].name);
        named |= 1U << op;
        *set |= OPS[op].set;
        if (**at != '+') return true;
    }
}

// A number from 1 to `most`.
static bool read_number(const char **at, int64_t most, int64_t *number) {
    int64_t n = 0;
    if (!isdigit((unsigned char)**at)) return false;
    for (; isdigit((unsigned char)**at) && n <= most; ++*at) n = 10 * n + (**at - '0');
    *number = n;
    return n >= 1 && n <= most;
}

bool recompute_parse(Recompute *r, const char *text, int64_t L, Error *err) {
    const char *at = text;
    int set, others = 0;
    int64_t number;

    if (L < 1 || L > MAX_BLOCKS) return error_set(err, "-r: a model of %lld blocks", (long long)L);
    if (!read_recompute_set(text, &at, &set, err)) return false;
    *r = recompute_all(set);
    if (*at == '\0') return true;

    const char sign = *at++;
    if (sign != '/' && sign != 'x') return not_understood(text, at - 1, err);
    if (L == 1)
        return error_set(err, "-r %.80s: the model has 1 block, and %c needs more; leave it out",
                         text, sign);

    if (sign == '/') {
        if (!read_number(&at, L, &number) || *at != '\0')
            return error_set(err, "-r %.80s: expected a number of blocks from 1 to %lld after /",
                             text, (long long)L);
        for (int64_t l = 0; l < L; l++)
            if (l % number != 0) r->blocks[l] = 0;
        return true;
    }

    if (!read_number(&at, L - 1, &number))
        return error_set(
            err, "-r %.80s: expected a number of blocks from 1 to %lld after x: the model has %lld",
            text, (long long)L - 1, (long long)L);
    if (*at++ != ',') return not_understood(text, at - 1, err);
    if (!read_recompute_set(text, &at, &others, err)) return false;
    if (*at != '\0') return not_understood(text, at, err);
    memset(r->blocks + number, others, (size_t)(L - number));
    return true;
}

// ----------------------------------------------------------------------------------------- writing

// Appends text to buf. If it does not fit it is truncated, and buf then ends in "...".
static void append_text(char *buf, size_t size, const char *text) {
    const size_t used = strlen(buf), length = strlen(text), room = size - 1 - used;
    memcpy(buf + used, text, min_size(length, room));
    buf[used + min_size(length, room)] = '\0';
    if (length > room && size > 3) memcpy(buf + size - 4, "...", 4);
}

static void append_set(char *buf, size_t size, int set) {
    for (int level = 0; level < NUM_LEVELS; level++)
        if (recompute_level_set(level) == set) {
            append_text(buf, size, (const char *[]){"0", "1", "2", "3"}[level]);
            return;
        }

    const char *plus = "";
    for (int i = 0; i < NUM_OPS; i++) {
        if ((set & OPS[i].set) != OPS[i].set || OPS[i].set == RECOMPUTE_BLOCK) continue;
        if (OPS[i].set == RECOMPUTE_GELU && set & RECOMPUTE_FC) continue; // implied by fc
        append_text(buf, size, plus);
        append_text(buf, size, OPS[i].name);
        plus = "+";
    }
}

const char *recompute_text(const Recompute *r, int64_t L, char *buf, size_t size) {
    char number[32];
    int64_t n = 1;     // of "3/n": only every n-th block has a set, that of the first; 0: no such n
    int64_t first = 1; // blocks with the set of the first

    while (n < L && set_of(r, n) == 0) n++;
    for (int64_t l = 0; n > 0 && l < L; l++)
        if (set_of(r, l) != (l % n == 0 ? set_of(r, 0) : 0)) n = 0;
    while (first < L && set_of(r, first) == set_of(r, 0)) first++;

    buf[0] = '\0';
    for (int64_t l = first; n == 0 && l < L; l++)
        if (set_of(r, l) != set_of(r, first)) {
            append_text(buf, size, "mixed");
            return buf;
        }

    append_set(buf, size, set_of(r, 0));
    if (first == L) return buf;

    if (n > 0) // no list is shorter
        snprintf(number, sizeof number, "/%lld", (long long)n);
    else
        snprintf(number, sizeof number, "x%lld,", (long long)first);
    append_text(buf, size, number);
    if (n == 0) append_set(buf, size, set_of(r, first));
    return buf;
}

// ------------------------------------------------------------------------------------------- costs

double recompute_flops_per_token(const Recompute *r, const ModelConfig *config, int64_t T) {
    const double C = (double)config->C, FC = (double)model_size(config, DIM_FC);
    const double ATT = (double)model_size(config, DIM_ATT),
                 QKV = (double)model_size(config, DIM_QKV);
    double flops = 0.0;
    for (int64_t l = 0; l < config->L; l++) {
        const int set = set_of(r, l);
        if (set & RECOMPUTE_FC) flops += 2.0 * C * FC;
        if (set & RECOMPUTE_QKV) flops += 2.0 * C * QKV;
        if (set & RECOMPUTE_ATTPROJ) flops += 2.0 * C * ATT;
        if (set & RECOMPUTE_ATTENTION) flops += 2.0 * ATT * (double)(T + 1);
    }
    return flops;
}

double recompute_elements_per_token(const Recompute *r, const ModelConfig *config) {
    const double C = (double)config->C, FF = (double)model_size(config, DIM_FF);
    const double FC = (double)model_size(config, DIM_FC), QKV = (double)model_size(config, DIM_QKV);
    const double QK = QKV - (double)(model_kv_heads(config) * model_head_size(config));
    double elements = 0.0;
    for (int64_t l = 0; l < config->L; l++) {
        const int set = set_of(r, l);
        // GELU is an epilogue of a recomputed fc, the other activations are not.
        const int with_fc = config->activation == ACTIVATION_GELU ? 0 : RECOMPUTE_FC;
        if (set & with_fc || (set & (RECOMPUTE_GELU | RECOMPUTE_FC)) == RECOMPUTE_GELU)
            elements += FC + FF;
        if (set & RECOMPUTE_QKV && config->rope_base > 0 && !config->qk_norm) elements += 2.0 * QK;
        if (set & RECOMPUTE_LAYERNORM) elements += 4.0 * C;
        if (set & RECOMPUTE_LAYERNORM && config->qk_norm) elements += 2.0 * QKV;
    }
    return elements;
}

// --------------------------------------------------------------------------------- FLOPs of a step

double flops_per_token_llmc(const ModelConfig *config, int64_t T) {
    const double N = (double)parameter_total(config), ATT = (double)model_size(config, DIM_ATT);
    return 6.0 * N + 6.0 * (double)config->L * ATT * (double)T;
}

double flops_per_token_linear(const ModelConfig *config) {
    const double FC = (double)model_size(config, DIM_FC), FF = (double)model_size(config, DIM_FF);
    const double ATT = (double)model_size(config, DIM_ATT),
                 QKV = (double)model_size(config, DIM_QKV);
    return 6.0 * (double)config->L * (double)config->C * (QKV + ATT + FC + FF);
}

double flops_per_token_exact(const ModelConfig *config, int64_t T) {
    const double L = (double)config->L, C = (double)config->C, Vp = (double)config->Vp;
    const double ATT = (double)model_size(config, DIM_ATT);
    return flops_per_token_linear(config) + 6.0 * Vp * C + 6.0 * L * ATT * (double)(T + 1);
}

double flops_per_token_hardware(const ModelConfig *config, int64_t T, const Recompute *recompute) {
    const double attention =
        6.0 * (double)config->L * (double)model_size(config, DIM_ATT) * (double)(T + 1);
    return flops_per_token_exact(config, T) + attention / 6.0 +
           recompute_flops_per_token(recompute, config, T);
}
