// Validation: the mean loss over a fixed set of windows. The windows and the order in which their
// losses are added do not depend on the micro-batch: sequence sums are added in fp64, in window
// order.
#pragma once
#include "llmc/data/sources.h"
#include "llmc/model/model.h"
#include "llmc/text/tokenizer.h"

// Losses of models with different tokenizers cannot be compared; bits per byte, the cost of
// encoding the text, can. The bytes are those of the targets' spellings. A special token
// (end-of-text) is not text and counts 0 bytes, but its loss is included.
typedef struct {
    double loss;    // nats per token; perplexity is its exponential
    int64_t tokens; // scored; 0: a signal came (signals_pending), there is no score and loss is NaN
    int64_t bytes;  // of the scored tokens; 0: the tokenizer is not known
    double bits_per_byte; // loss * tokens / (ln 2 * bytes); 0: the tokenizer is not known
} ValidationScore;

// Mean loss over `windows` windows of val (0 = all), spread evenly over it. tokenizer: for the
// bytes, may be NULL.
bool evaluate_loss(Model *model, const ShardSet *val, int64_t windows, const Tokenizer *tokenizer,
                   ValidationScore *score, Error *err);

// The same for each source of val, `windows` of each, into each[0 .. count). *total: of a text in
// which the sources have the shares of the mixture: the mean of the losses by share, the sum of the
// tokens and bytes, and as bits per byte the mean loss over the mean bytes of a token. Of one
// source it is that source's score. A signal: total->tokens is 0.
bool evaluate_sources(Model *model, const Sources *val, int64_t windows, const Tokenizer *tokenizer,
                      ValidationScore each[MIXTURE_MAX], ValidationScore *total, Error *err);
