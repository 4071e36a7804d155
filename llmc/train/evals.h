// Validation: the mean loss over a fixed set of windows. Which windows, and how their losses add up, does not depend on
// the micro-batch: window by window, sequence sums added in fp64 in window order.
#pragma once
#include "llmc/model/gpt2.h"
#include "llmc/tokens/shards.h"

#ifdef __cplusplus
extern "C" {
#endif

// Mean loss (nats per token) over `windows` windows of val (0 = all), spread evenly over it. *tokens: how many were
// scored.
bool evaluate_loss(Gpt2 *model, const ShardSet *val, int64_t windows, double *loss, int64_t *tokens, Error *err);

#ifdef __cplusplus
}
#endif
