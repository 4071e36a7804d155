// The data loader: a reader thread that keeps a ring of host buffers full of windows, in the order
// of (seed, position). It owns the ring (pinned if the device needs that) and the thread, and never
// decides what a batch is for.
//
// Data order has no state: the window that a run reads at position p is a pure function of (seed,
// p), so a resume needs only the position, and the order does not depend on how a batch is cut into
// micro-batches.
//
// The loader walks an endless stream: mixture_draw names the source of position p, which is the
// only one there is or one of several, and how many windows were drawn from it before, k. The
// window is shuffle_window(k, num_windows, seed) of that source, or k mod num_windows without
// shuffle. The stream does not depend on batch_windows. A loader created with the
// dataloader_position of another at the end of a step continues that loader's stream.
#pragma once
#include "llmc/base/error.h"
#include "llmc/data/sources.h"

#include <stdint.h>

// A pseudo-random permutation of [0, n) for this key: an 8-round Feistel network over the next
// power of four, iterated until it lands inside (Black, Rogaway, "Ciphers with Arbitrary Finite
// Domains", 2002). 1 <= n < 2^62.
int64_t shuffle_permute(int64_t i, int64_t n, uint64_t key);

// The window at position p of an endless stream over n windows: every epoch is a new permutation.
int64_t shuffle_window(int64_t p, int64_t n, uint64_t seed);

// -------------------------------------------------------------------------------------- the loader

// The windows of a step may be cut into groups of nearly equal size: group g has windows [begin(g),
// begin(g + 1)).
static inline int64_t dataloader_group_begin(int64_t step_windows, int64_t groups, int64_t g) {
    return step_windows * g / groups;
}

// The position that -a reads instead of p: of the first step since the weights of the mixture hold.
static inline int64_t dataloader_repeated(const Mixture *m, int64_t p, int64_t step_windows) {
    return m->start + (p - m->start) % step_windows;
}

typedef struct {
    const Sources *sources; // must outlive the loader
    int64_t vocab;          // tokens must be below this
    int64_t batch_windows;  // windows in a full micro-batch (B)
    int64_t step_windows;   // windows in a step (total batch / T), of all groups
    int64_t groups;         // of a step; 0: one. The last micro-batch of a group may be smaller
    // those that this loader reads; the windows of the others are skipped. 0: all
    int64_t first_group, group_count;
    int64_t position; // windows consumed before the first batch, which begins a step
    uint64_t seed;
    bool shuffle;           // false: in file order, starting over at the end
    bool repeat_first_step; // -a: every step reads the first step's windows again:
                            // dataloader_repeated(p)
    int ring;               // buffers in flight, at least 2; 0: DATALOADER_RING
} DataLoaderOptions;

enum { DATALOADER_RING = 4 };

typedef struct DataLoader DataLoader;
DataLoader *dataloader_create(const DataLoaderOptions *options, Error *err);
void dataloader_destroy(DataLoader *loader); // stops the thread, whatever it is doing; NULL is fine

// The next micro-batch: *windows is (count, T+1) tokens of sources->token_bytes each, in host
// memory from host_alloc. It stays valid until the second-next call: during call k the buffer of
// call k-1 may still be copied, that of call k-2 may not. Blocks while the ring is empty. False:
// reading failed (the message names file and offset). The error is returned when the failing batch
// is due, after all batches before it, and by every later call.
bool dataloader_next(DataLoader *loader, const void **windows, int64_t *count, Error *err);

// The position in the stream after the windows handed out so far; at the end of a step that of the
// next step, whatever groups were read. A checkpoint stores this after whole steps.
int64_t dataloader_position(const DataLoader *loader);
// Seconds that dataloader_next has spent waiting.
double dataloader_wait_seconds(const DataLoader *loader);
