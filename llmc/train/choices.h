// Multiple choice: which of several completions of a context the model finds likeliest. Files have
// the format of llm.c's HellaSwag: 256 int32 (20240522, 1, number of examples, bytes of the longest
// example), then uint16 records:
//
//   65535, bytes of the record, index, label, number of completions K, n, context (n tokens),
//   then K x (n, tokens)
//
// Records may have 2 to 16 completions. Zellers et al., "HellaSwag", 2019. The scores are the usual
// ones:
//
//   accuracy             the completion with the smallest sum of losses is the label
//   normalised accuracy  the one with the smallest mean loss a token (what llm.c and its table
//                        report)
//
// Among equal ones the first is chosen. Files are treated as hostile: every record is checked when
// the file is opened, tokens against the vocabulary of the model.
#pragma once
#include "llmc/model/model.h"

enum {
    CHOICES_MAGIC = 20240522,
    CHOICES_VERSION = 1,
    CHOICES_HEADER_INTS = 256,
    CHOICES_BEGIN = 65535, // the first word of a record
    CHOICES_MIN = 2,       // completions of an example
    CHOICES_MAX = 16,
};

typedef struct ChoiceSet ChoiceSet;
typedef struct {
    ChoiceSet **sets; // one for each file, in the order of their names
    int count;
} ChoiceSets;
// pattern: a glob(7) pattern or the name of one file. V: vocabulary of the model. Messages name
// file, example and field.
bool choices_open(ChoiceSets *sets, const char *pattern, int64_t V, Error *err);
void choices_close(ChoiceSets *sets); // also after a failed open, and for all zeros
// the file's name without directory and ".bin"; of a second file with this name with its place in
// the list: "arc.2"
const char *choices_name(const ChoiceSet *set);
int64_t choices_count(const ChoiceSet *set);
// Whether a context of T tokens is long enough for every completion and a token before it. Names a
// completion that is too long.
bool choices_fit(const ChoiceSets *sets, int64_t T, Error *err);

typedef struct {
    int64_t examples; // scored; 0: a signal came (signals_pending) and there is no score
    int64_t correct, correct_normalised; // of them
    // whose context was cut on the left to fit into T tokens, for at least one completion
    int64_t cut;
} ChoiceScore;

// Scores the first `examples` examples (0 = all), which fit (choices_fit). The result does not
// depend on the model's B. losses, tokens: also returns the sums, of completion k of example i at
// [i * CHOICES_MAX + k]. Both have capacity for all scored examples, or are NULL.
bool evaluate_choices(Model *model, const ChoiceSet *set, int64_t examples, ChoiceScore *score,
                      double *losses, int64_t *tokens, Error *err);

// A view of one example; the tokens belong to the set.
typedef struct {
    int label, completions; // label < completions, 2 .. CHOICES_MAX of them
    int64_t context_tokens; // >= 1
    const uint16_t *context;
    int64_t completion_tokens[CHOICES_MAX]; // each >= 1
    const uint16_t *completion[CHOICES_MAX];
} ChoiceExample;

ChoiceExample choices_example(const ChoiceSet *set, int64_t i);
