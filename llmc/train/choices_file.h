// The examples of one multiple-choice file, in memory, checked. The form of the file is in choices.h.
#pragma once
#include "llmc/train/choices.h"

// A view of one example; the tokens belong to the set.
typedef struct {
    int label, completions; // label < completions, 2 .. CHOICES_MOST of them
    int64_t context_tokens; // >= 1
    const uint16_t *context;
    int64_t completion_tokens[CHOICES_MOST]; // each >= 1
    const uint16_t *completion[CHOICES_MOST];
} ChoiceExample;

ChoiceExample choices_example(const ChoiceSet *set, int64_t i);
