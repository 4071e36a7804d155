// See recipe.h.
#include "llmc/train/recipe.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/format.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

// GPT-3's table 2.1: blocks, channels, tokens a step, learning rate. "0.5M" is 2^19, as llm.c has
// it. The channels of 13B are 40 heads of 128; the paper prints 5140.
static const struct {
    double L, C, batch, rate;
} GPT3[] = {
    {12, 768, 0x1p19, 6e-4},  {24, 1024, 0x1p19, 3e-4},        {24, 1536, 0x1p19, 2.5e-4},
    {24, 2048, 0x1p20, 2e-4}, {32, 2560, 0x1p20, 1.6e-4},      {32, 4096, 0x1p21, 1.2e-4},
    {40, 5120, 0x1p21, 1e-4}, {96, 12288, 3.2 * 0x1p20, 6e-5},
};
enum { ROWS = sizeof GPT3 / sizeof *GPT3 };

static const double REFERENCE_BATCH = 0x1p19, REFERENCE_C = 768, BATCH_EXPONENT = 0.383,
                    SMALL_RATE_EXPONENT = -1.0 / 6;
static const double MUON_RATE = 0.025, MUON_SCALE = 0.2, HEAD_RATE = 0.008, VECTOR_RATE = 0.015;
static const double DECAY_OF_RUN = 3.5, MOST_DECAY = 1, ADAMW_DECAY = 0.1;
static const double MUON_RATIO = 12, CHINCHILLA_RATIO = 20;

static double matrices(double L, double C) { return 12 * L * C * C; }

double recipe_block_parameters(const ModelConfig *config) {
    Parameter *table = parameter_table(config);
    double sum = 0;
    for (int i = 0; i < parameter_count(config); i++)
        if (table[i].spec->group == GROUP_MATRIX) sum += (double)parameter_numel(&table[i]);
    free(table);
    return sum;
}

double recipe_ratio(OptimizerKind kind) {
    if (kind == OPTIMIZER_MUON) return MUON_RATIO;
    return CHINCHILLA_RATIO;
}

double recipe_parameters(const ModelConfig *config) {
    return recipe_block_parameters(config) + (double)(config->V * config->C);
}

// The row at or below N parameters, and how far it is to the next, in logarithms: 0 to 1.
static int row_of(double N, double *share) {
    int row = 0;
    *share = 0;
    while (row < ROWS - 1 && N >= matrices(GPT3[row + 1].L, GPT3[row + 1].C)) row++;
    const double here = matrices(GPT3[row].L, GPT3[row].C);
    if (row < ROWS - 1 && N > here)
        *share = log(N / here) / log(matrices(GPT3[row + 1].L, GPT3[row + 1].C) / here);
    return row;
}

static double log_between(double low, double high, double share) {
    return low * pow(high / low, share);
}

// N over that of the first row, at most 1.
static double smallness(double N) { return fmin(1, N / matrices(GPT3[0].L, GPT3[0].C)); }

double recipe_batch(const ModelConfig *config, OptimizerKind kind, double tokens, double ratio) {
    const double N = recipe_block_parameters(config);
    double share;
    if (kind == OPTIMIZER_MUON) {
        const double of_reference = matrices(12, REFERENCE_C) + (double)config->V * REFERENCE_C;
        return REFERENCE_BATCH * pow(tokens / (ratio * of_reference), BATCH_EXPONENT);
    }
    const int row = row_of(N, &share), next = (int)min_i64(row + 1, ROWS - 1);
    return log_between(GPT3[row].batch, GPT3[next].batch, share) *
           pow(smallness(N), BATCH_EXPONENT);
}

int64_t recipe_step_windows(double batch, int64_t T, int64_t groups, int64_t B) {
    const double tokens = exp2(round(log2(batch))), share = tokens / (double)(T * groups);
    if (B > 0) return max_i64(1, llround(share / (double)B)) * B * groups;
    return (int64_t)exp2(fmax(0, round(log2(share)))) * groups;
}

// Rounds to the digits that are printed, so that the printed rate is the one used.
static double three_digits(double x) {
    char text[32];
    snprintf(text, sizeof text, "%.3g", x);
    return strtod(text, NULL);
}

static double batch_factor(double step_tokens) {
    return fmax(1, sqrt(step_tokens / REFERENCE_BATCH));
}

double recipe_learning_rate(const ModelConfig *config, OptimizerKind kind, double step_tokens) {
    const double N = recipe_block_parameters(config);
    const double of_adamw =
        optimizer_default_learning_rate(kind) / optimizer_default_learning_rate(OPTIMIZER_ADAMW);
    double share;
    if (kind == OPTIMIZER_MUON)
        return three_digits(MUON_RATE / (MUON_SCALE * sqrt((double)config->C)) *
                            batch_factor(step_tokens));
    const int row = row_of(N, &share), next = (int)min_i64(row + 1, ROWS - 1);
    const double rate = log_between(GPT3[row].rate, GPT3[next].rate, share) *
                        pow(smallness(N), SMALL_RATE_EXPONENT);
    return three_digits(rate * of_adamw);
}

double recipe_embedding_rate(const ModelConfig *config, double step_tokens) {
    return three_digits(HEAD_RATE * sqrt(REFERENCE_C / (double)config->C) *
                        batch_factor(step_tokens));
}

double recipe_vector_rate(double step_tokens) {
    return three_digits(VECTOR_RATE * batch_factor(step_tokens));
}

double recipe_weight_decay(OptimizerKind kind, double learning_rate, double steps) {
    if (kind != OPTIMIZER_MUON || learning_rate <= 0 || steps <= 0) return ADAMW_DECAY;
    return three_digits(fmin(MOST_DECAY, DECAY_OF_RUN / (learning_rate * steps)));
}

const char *recipe_line(RecipeNumber number, double value, const ModelConfig *config,
                        OptimizerKind kind, char buf[RECIPE_TEXT]) {
    static const struct {
        const char *option, *of_muon, *of_others;
    } rules[] = {
        [RECIPE_TOKENS] =
            {"--tokens", "matrices of blocks and head (nanochat; --ratio changes it)",
             "matrices of blocks and head (Hoffmann et al., 2022; --ratio changes it)"},
        [RECIPE_BATCH] =
            {"-d",
             "2^19 (D / D_ref)^0.383, to a power of two (nanochat; exponent: arXiv 2505.13738)",
             "GPT-3's table 2.1; 2^19 (N / 85M)^0.383 below 85M; to a power of two"},
        [RECIPE_RATE] =
            {"-l", "0.025 / (0.2 sqrt(C)) max(1, sqrt(batch / 2^19)) (modded-nanogpt; nanochat)",
             "GPT-3's table 2.1; 6e-4 (N / 85M)^(-1/6) below 85M"},
        [RECIPE_EMBEDDING] = {"--lr-embedding",
                              "0.008 sqrt(768 / C) max(1, sqrt(batch / 2^19)) (nanochat's head)",
                              ""},
        [RECIPE_VECTORS] = {"--lr-vectors", "0.015 max(1, sqrt(batch / 2^19)) (modded-nanogpt)",
                            ""},
        [RECIPE_DECAY] = {"-c", "3.5 / (-l times steps), at most 1 (nanochat; arXiv 2405.13698)",
                          "GPT-3, appendix B"},
        [RECIPE_EMBEDDING_DECAY] = {"--by-group embedding.decay", "nanochat's of its head", ""},
    };
    const bool is_muon = kind == OPTIMIZER_MUON;
    const char *rule = rules[number].of_others;
    double N = recipe_block_parameters(config);
    char exact[40], count[40], ratio[80] = "", tail[56] = "";
    if (is_muon) rule = rules[number].of_muon;
    if (number == RECIPE_TOKENS) N = recipe_parameters(config);
    format_count(N, count, sizeof count);
    if (number == RECIPE_TOKENS)
        snprintf(ratio, sizeof ratio, "%.4g for each of %s ", value / N, count);
    if (!is_muon && (number == RECIPE_BATCH || number == RECIPE_RATE))
        snprintf(tail, sizeof tail, "; N = %s in blocks", count);
    snprintf(buf, RECIPE_TEXT, "%s %s: %s%s%s", rules[number].option,
             format_exact(value, exact, sizeof exact), ratio, rule, tail);
    return buf;
}
