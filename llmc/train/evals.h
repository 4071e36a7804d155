// Validation: the mean loss over a fixed set of windows. Which windows, and how their losses add up, does not depend on
// the micro-batch: window by window, sequence sums added in fp64 in window order.
#pragma once
#include "llmc/data/shards.h"
#include "llmc/model/gpt2.h"
#include "llmc/text/tokenizer.h"

// Losses of models with different tokenizers cannot be compared, bits per byte can: what it takes to write the text
// down. The bytes are those of the text, that is of the targets' spellings; a special token (end-of-text) is no text
// and counts 0 bytes, but what predicting it cost is part of the loss.
typedef struct {
    double loss;          // nats per token; perplexity is its exponential
    int64_t tokens;       // scored; 0: a signal came (signals.h), there is no score and loss is NaN
    int64_t bytes;        // of the scored tokens; 0: the tokenizer is not known
    double bits_per_byte; // loss * tokens / (ln 2 * bytes); 0: the tokenizer is not known
} ValidationScore;

// Mean loss over `windows` windows of val (0 = all), spread evenly over it. tokenizer: for the bytes, may be NULL.
bool evaluate_loss(Gpt2 *model, const ShardSet *val, int64_t windows, const Tokenizer *tokenizer,
                   ValidationScore *score, Error *err);
