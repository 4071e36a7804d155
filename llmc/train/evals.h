// What a model is measured by: validation, and multiple choice.
//
// Validation: the mean loss over a fixed set of windows. Which windows, and how their losses add up, does not depend on
// the micro-batch: window by window, sequence sums added in fp64 in window order.
//
// Multiple choice: which of several completions of a context does the model find likeliest? Files have the form of
// llm.c's HellaSwag: 256 int32 (20240522, 1, number of examples, bytes of the longest example), then uint16 records:
//   65535, bytes of the record, index, label, number of completions K, n, context (n tokens), then K x (n, tokens)
// Records may have 2 to 16 completions. Zellers et al., "HellaSwag", 2019; the scores are those of the field:
//   accuracy             the completion with the smallest sum of losses is the label
//   normalised accuracy  the one with the smallest mean loss a token (what llm.c and its table report)
// Of equal ones the first counts as chosen. Files are hostile: every record is checked when the file is opened, tokens
// against the vocabulary of the model.
#pragma once
#include "llmc/data/shards.h"
#include "llmc/model/gpt2.h"
#include "llmc/text/tokenizer.h"

// Losses of models with different tokenizers cannot be compared, bits per byte can: what it takes to write the text
// down. The bytes are those of the text, that is of the targets' spellings; a special token (end-of-text) is no text
// and counts 0 bytes, but what predicting it cost is part of the loss.
typedef struct {
    double loss;          // nats per token; perplexity is its exponential
    int64_t tokens;       // scored; 0: a signal came (signals_pending), there is no score and loss is NaN
    int64_t bytes;        // of the scored tokens; 0: the tokenizer is not known
    double bits_per_byte; // loss * tokens / (ln 2 * bytes); 0: the tokenizer is not known
} ValidationScore;

// Mean loss over `windows` windows of val (0 = all), spread evenly over it. tokenizer: for the bytes, may be NULL.
bool evaluate_loss(Gpt2 *model, const ShardSet *val, int64_t windows, const Tokenizer *tokenizer,
                   ValidationScore *score, Error *err);

// ----------------------------------------------------------------------------------------------------- multiple choice

enum { CHOICES_MOST = 16 };

typedef struct ChoiceSet ChoiceSet;
typedef struct {
    ChoiceSet **sets; // one a file, in the order of their names
    int count;
} ChoiceSets;
// pattern: a glob(7) pattern or the name of one file. V: vocabulary of the model. Messages name file, example and
// field.
bool choices_open(ChoiceSets *sets, const char *pattern, int64_t V, Error *err);
void choices_close(ChoiceSets *sets);           // also after a failed open, and of all zero
const char *choices_name(const ChoiceSet *set); // the file's name without directory and ".bin"
int64_t choices_count(const ChoiceSet *set);
// Is the context of T tokens long enough for every completion and a token before it? Names the one that is too long.
bool choices_fit(const ChoiceSets *sets, int64_t T, Error *err);

typedef struct {
    int64_t examples;                    // scored; 0: a signal came (signals_pending) and there is no score
    int64_t correct, correct_normalised; // of them
    int64_t cut; // whose context was cut on the left to fit into T tokens, for one completion at least
} ChoiceScore;

// Scores the first `examples` examples (0 = all). The result does not depend on the model's B.
bool evaluate_choices(Gpt2 *model, const ChoiceSet *set, int64_t examples, ChoiceScore *score, Error *err);

// The same, and what was summed up: losses and tokens of completion k of example i at [i * CHOICES_MOST + k]. Both have
// room for all examples that are scored, or are NULL.
bool evaluate_choices_losses(Gpt2 *model, const ChoiceSet *set, int64_t examples, ChoiceScore *score, double *losses,
                             int64_t *tokens, Error *err);

// A view of one example; the tokens belong to the set.
typedef struct {
    int label, completions; // label < completions, 2 .. CHOICES_MOST of them
    int64_t context_tokens; // >= 1
    const uint16_t *context;
    int64_t completion_tokens[CHOICES_MOST]; // each >= 1
    const uint16_t *completion[CHOICES_MOST];
} ChoiceExample;

ChoiceExample choices_example(const ChoiceSet *set, int64_t i);
