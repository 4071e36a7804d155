// Which windows did step N of a run read? Answered from what the run left behind: the "run" events of its main.log, one
// for every time it was started or resumed, or, without a log, its newest checkpoint. The order itself is that of
// llmc/data/dataloader.h, which the loader walks: position p of the stream holds window shuffle_window(p, windows,
// seed). Reads only; opens no shard.
#pragma once
#include "llmc/base/error.h"
#include <stdint.h>

// The steps from one start of the trainer to the next.
typedef struct {
    char *train_data;     // -i of then, relative to where the trainer was started
    char *tokenizer;      // --tokenizer of then, "" if none
    int64_t start_step;   // steps done before; the first step of the segment is start_step + 1
    int64_t position;     // windows read before that step
    int64_t T, B;         // context, windows in a full micro-batch
    int64_t step_windows; // windows in a step
    int64_t num_windows;  // in the corpus of then, -1 if the run does not say; and
    int64_t num_tokens;   // tokens in it
    uint64_t seed;
    bool repeat_first_step; // -a
} RunSegment;

typedef struct {
    RunSegment *segments;
    int count, room;
    int64_t last_step; // the last one that was logged or saved
} RunOrder;

// directory: what -o named. False: there is neither a log nor a checkpoint, or what they say makes no sense.
bool run_order_read(RunOrder *order, const char *directory, Error *err);
void run_order_free(RunOrder *order); // also after a failed read

// The segment of this step, and the position of its first window. NULL: a step the run cannot have done.
const RunSegment *run_order_find(const RunOrder *order, int64_t step, int64_t *position, Error *err);

// The window at a position, as the loader reads it (dataloader.h) from a corpus of so many windows.
int64_t run_order_window(const RunSegment *segment, int64_t position, int64_t num_windows);
