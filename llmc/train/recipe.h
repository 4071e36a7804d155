// One dial: tokens a step, tokens of the run, learning rates and weight decay from the size of the
// model. Pure arithmetic; each number has the rule that made it as a line of text. doc/recipes.md
// has the sources at length.
//   N          matrices of the blocks and V C of the head, whether it is tied or not: nanochat's
//              count, of what a token is multiplied with. The same for all optimizers
//
// Muon: nanochat's rules (scripts/base_train.py at 92d63d4, dev/LOG.md), in the scale of this
// trainer's Muon.
//   D          12 N tokens
//   batch      2^19 (D / D_ref)^0.383 tokens, D_ref: D of 12 blocks of 768 channels with this
//              vocabulary. The exponent: "Power Lines", arXiv 2505.13738
//   rate       0.025 / (0.2 sqrt(C)) max(1, sqrt(batch / 2^19)). 0.025: plain Muon in
//              modded-nanogpt's track 3 (nanochat has 0.02, with second moments), where an update
//              is sqrt(max(1, rows / cols)) X and here 0.2 sqrt(max(rows, cols)) X: the same for
//              rows >= cols = C. Below 2^19 tokens nanochat lowers the rate too; the ladder of
//              doc/recipes.md, at 2^14, learns more at the higher one.
//   embedding  0.008 sqrt(768 / C) max(1, sqrt(batch / 2^19)), nanochat's of the head, which a tied
//              embedding is. Its embedding begins at 0.8 with a rate of 0.3: at 0.02, as here,
//              0.0075 is as much
//   vectors    0.015 max(1, sqrt(batch / 2^19)), track 3's
//   decay      3.5 / (rate steps), at most 1, so that the weights average over the same part of
//              every run (arXiv 2405.13698): 3.5 = 0.02 * 0.28 / 4 * 2520 steps of nanochat's d12;
//              1 / 4 because its decay falls to 0 along a cosine and leaves out the elements, about
//              half, where update and weight differ in sign; 0.01 for embeddings and head,
//              nanochat's of the head
// AdamW, and the other optimizers: GPT-3's table 2.1 (Brown et al., 2020), below with N of the
// blocks alone.
//   D          20 N tokens: Hoffmann et al., "Training Compute-Optimal Large Language Models"
//   batch      of the table, log-log between its rows. Below 125M: 2^19 (N / N_125M)^0.383, as
//              above
//   rate       of the table, log-log between its rows, times optimizer_default_learning_rate over
//              AdamW's. Below 125M: 6e-4 (N / N_125M)^(-1/6), which is nanochat's width^-0.5 where
//              the width grows as N^(1/3)
//   decay      0.1 (the paper, appendix B)
#pragma once
#include "llmc/model/optimizer_state.h"

typedef enum {
    RECIPE_TOKENS,          // --tokens
    RECIPE_BATCH,           // -d
    RECIPE_RATE,            // -l
    RECIPE_EMBEDDING,       // --lr-embedding
    RECIPE_VECTORS,         // --lr-vectors
    RECIPE_DECAY,           // -c
    RECIPE_EMBEDDING_DECAY, // --by-group, of embedding and head
    RECIPE_COUNT
} RecipeNumber;

// The weights of a model's blocks but for vectors, a row of GPT-3's table among them: 12 L C^2.
double recipe_block_parameters(const ModelConfig *config);

double recipe_ratio(OptimizerKind kind); // tokens a parameter where --ratio is not given
// The parameters that it counts, of any optimizer. The vocabulary must be known, here and below.
double recipe_parameters(const ModelConfig *config);

// Tokens a step, before recipe_step_windows. ratio: tokens, over those of the model in the table of
// the same ratio otherwise. Only Muon's follows from the tokens of the run.
double recipe_batch(const ModelConfig *config, OptimizerKind kind, double tokens, double ratio);
// The same in windows of T tokens, of `groups` groups with micro-batches of B windows: the nearest
// power of two of tokens, as a multiple of T * groups * B, at least one. B 0, for -b auto: groups
// of a power of two of windows, which every smaller power of two divides.
int64_t recipe_step_windows(double batch, int64_t T, int64_t groups, int64_t B);

// To three digits, which the header of a run shows. steps: of the run.
double recipe_learning_rate(const ModelConfig *config, OptimizerKind kind, double step_tokens);
double recipe_embedding_rate(const ModelConfig *config, double step_tokens); // with Muon
double recipe_vector_rate(double step_tokens);                               // with Muon
#define RECIPE_DECAY_OF_EMBEDDINGS 0.01                                      // with Muon
double recipe_weight_decay(OptimizerKind kind, double learning_rate, double steps);

// "-d 524288: 2^19 (D / D_ref)^0.383, ..." into buf, for the header of a run and for --plan.
// Returns buf.
enum { RECIPE_TEXT = 192 };
const char *recipe_line(RecipeNumber number, double value, const ModelConfig *config,
                        OptimizerKind kind, char buf[RECIPE_TEXT]);
