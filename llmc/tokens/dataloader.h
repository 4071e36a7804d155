// A reader thread that keeps a ring of host buffers full of windows, in the order of (seed, position).
// Owns the ring (pinned where the device needs it) and the thread. Never decides what a batch is for.
#pragma once
#include "llmc/base/error.h"
#include "llmc/tokens/shards.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    const ShardSet *shards; // must outlive the loader
    int64_t vocab;          // tokens must be below
    int64_t batch_windows;  // windows in a full micro-batch (B)
    int64_t step_windows;   // windows in a step (total batch / T); the last micro-batch of a step may be smaller
    int64_t position;       // windows consumed before the first batch
    uint64_t seed;
    bool shuffle;           // false: in file order, starting over at the end
    bool repeat_first_step; // -a: every step reads the first step's windows again
    int ring;               // buffers in flight; 0 = 4
} DataLoaderOptions;

typedef struct DataLoader DataLoader;
DataLoader *dataloader_create(const DataLoaderOptions *options, Error *err);
void dataloader_destroy(DataLoader *loader); // stops the thread

// The next micro-batch: *windows tokens (count, T+1) in host memory from host_alloc, of shards->token_bytes each. Valid
// until the call of dataloader_next `ring - 1` calls later... so at least one call back is always still valid for
// copies in flight. Blocks while the ring is empty. False: reading failed (the message names file and offset).
bool dataloader_next(DataLoader *loader, const void **windows, int64_t *count, Error *err);

// Windows handed out so far plus options.position: what a checkpoint stores after whole steps.
int64_t dataloader_position(const DataLoader *loader);
// Seconds dataloader_next has spent waiting.
double dataloader_wait_seconds(const DataLoader *loader);

#ifdef __cplusplus
}
#endif
