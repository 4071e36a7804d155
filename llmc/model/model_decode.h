// Decoding: sequences grow token by token, and the keys and values of their tokens stay in a cache.
// The cache shares memory with training and evaluation: any other pass of the model invalidates it,
// and it invalidates a loaded batch.
#pragma once
#include "llmc/model/model_options.h"

// Begins with prompts (sequences, n), 1 <= n <= T, with at most the sequences of the options.
// logits (sequences, V), in host memory: after the last token of each. Synchronises.
void model_decode_start(Model *model, const int32_t *prompts, int64_t n, int64_t sequences,
                        float *logits);
// Adds a token to each sequence, at most T in all; logits (sequences, V) after it. Synchronises.
void model_decode_step(Model *model, const int32_t *tokens, float *logits);
int64_t model_decode_length(const Model *model); // tokens read so far

// For the plan and the object: the number of i32 on the device, and the bytes of host memory that
// they, or the logits, pass through.
int64_t model_decoder_tokens(const ModelOptions *o);
int64_t model_decoder_host_bytes(const ModelOptions *o);
