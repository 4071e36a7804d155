// -b auto and -r auto: the micro-batch and the recomputation with which a run fits into a device's
// memory, and the changes that help where nothing fits.
#pragma once
#include "llmc/model/model.h"

// The largest micro-batch, max `most` (0: no limit except that of -b), that fits into this many
// bytes; 0: none does. Larger ones may take less (the chunks of the logits become smaller): it is
// the largest of all that fit.
int64_t plan_largest_batch(const ModelOptions *model, double bytes, int64_t most);

// -b and -r, for `room` bytes of device memory: parses recompute (what recompute_parse takes, or
// "auto") into model->recompute, and with any_batch sets model->B to the largest micro-batch that
// fits, at most `most` (the windows of a step; 0: no limit). auto takes the sets of ops with the
// least extra FLOPs that fit, then the least extra bytes, of all there are on its ladder
// (plan_ladder): one set for the first blocks, another for the others. Both auto: the largest B
// that computes nothing again; where that has fewer than 65536 tokens, the largest up to them that
// needs no matmul again; where not one sequence fits so, B = 1 and the least extra FLOPs. False and
// a message when it does not fit: the bytes needed and available, and which of fewer --samples, a
// smaller -b, -r, --optimizer, --grad-dtype and
// --offload would fit.
bool plan_fit(ModelOptions *model, bool any_batch, const char *recompute, double room, int64_t most,
              Error *err);
// After plan_fit with any_batch, where the groups of a step are a power of two of windows
// (recipe.h): takes the largest power of two up to model->B instead, with which all micro-batches
// of a step are full.
bool plan_fit_divisor(ModelOptions *model, const char *recompute, double room, Error *err);
// -b auto -r auto, as plan_fit has it, without a message.
bool plan_choose(ModelOptions *model, double room, int64_t most);

// The choices of -r auto for a model of L blocks, cheapest first; returns their number, the caller
// frees *ladder.
typedef struct {
    int first_set, set; // RECOMPUTE_...: of the first `count` blocks, of the others
    int64_t count;
    double flops, elements; // extra ones per token, in matmuls and attention; moved by others
} RecomputeChoice;
int plan_ladder(RecomputeChoice **ladder, const ModelConfig *config, int64_t T);
Recompute plan_recompute(const RecomputeChoice *choice, int64_t L);
