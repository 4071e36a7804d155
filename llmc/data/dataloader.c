// The order of the data, and the reader thread with its ring of batches.
//
// The order is a pure function: a keyed permutation of [0, n) and the endless stream of epochs
// built on it. Its numbers are part of the format of a run: a checkpoint stores only a position, so
// a change here makes resumed runs read other data (test_shuffle pins some values).
//
// Two counters are the whole protocol of the ring: `filled` batches have been read, and the buffers
// of the first `released` may be overwritten; batch k is in buffer k mod ring. The loader never
// computes, never copies to the device, and never touches a buffer that the caller may still be
// reading.
#include "llmc/data/dataloader.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/clock.h"
#include "llmc/base/error.h"
#include "llmc/base/limits.h"
#include "llmc/base/memory.h"
#include "llmc/base/random.h"
#include "llmc/device.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// ------------------------------------------------------------------------------------------- order

// Four rounds are enough for large n (Luby, Rackoff, 1988). For small n, whose halves have one or
// two bits, four or six rounds leave some orders visibly more likely (chi-square in test_shuffle);
// eight do not.
enum { ROUNDS = 8 };

// The finaliser of SplitMix64: every bit of z moves about half of the bits of the result. The
// project's generator is Philox, but its ten rounds inside every Feistel round would cost as much
// as reading the window.
static uint64_t mix64(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

int64_t shuffle_permute(int64_t i, int64_t n, uint64_t key) {
    REQUIRE(n >= 1 && n < (int64_t)1 << 62 && i >= 0 && i < n, "shuffle_permute: %lld of %lld",
            (long long)i, (long long)n);
    int half = 1; // bits of one half: the network permutes [0, 4^half), at most four times n
    while (n > (int64_t)1 << (2 * half)) half++;
    const uint64_t mask = ((uint64_t)1 << half) - 1;
    uint64_t round_key[ROUNDS];
    for (uint64_t r = 0; r < ROUNDS; r++) round_key[r] = mix64(key + (r + 1) * 0x9E3779B97F4A7C15u);

    uint64_t x = (uint64_t)i;
    do { // follows the cycle of i until it is inside [0, n): at most four turns on average
        uint64_t left = x >> half, right = x & mask;
        for (int r = 0; r < ROUNDS; r++) {
            uint64_t next = left ^ (mix64(right + round_key[r]) & mask);
            left = right;
            right = next;
        }
        x = left << half | right;
    } while (x >= (uint64_t)n);
    return (int64_t)x;
}

int64_t shuffle_window(int64_t p, int64_t n, uint64_t seed) {
    Philox key = philox(seed, STREAM_SHUFFLE, (uint64_t)(p / n));
    return shuffle_permute(p % n, n, (uint64_t)key.v[1] << 32 | key.v[0]);
}

// -------------------------------------------------------------------------------------- the loader

typedef struct {
    void *windows; // (batch_windows, T+1) tokens
    int64_t count;
    int64_t end; // the position in the stream after it
} Batch;

// Where the reader is: group `group` of the step that begins at position `step`, windows [at, end)
// of that step left.
typedef struct {
    int64_t step, group, at, end;
} Cursor;

struct DataLoader {
    DataLoaderOptions options;
    Batch *ring;
    pthread_t reader;
    pthread_mutex_t mutex; // guards filled, released and failed
    pthread_cond_t changed;
    int64_t filled, released;
    bool failed; // reading batch `filled` failed, and the reader has ended
    Error error; // why
    // also checked between windows, so that destroy does not wait for a large batch
    atomic_bool stop;

    // Used only by the thread that calls next; no lock needed.
    int64_t handed_out; // batches
    int64_t position;   // windows
    double wait_seconds;
};

// ------------------------------------------------------------------------------------------ reader

static void begin_group(const DataLoaderOptions *o, Cursor *c, int64_t group) {
    c->group = group;
    c->at = dataloader_group_begin(o->step_windows, o->groups, group);
    c->end = dataloader_group_begin(o->step_windows, o->groups, group + 1);
}

static void *reader_main(void *context) {
    DataLoader *loader = context;
    const DataLoaderOptions *o = &loader->options;
    const Mixture *mixture = &o->sources->mixture;
    const int64_t window_bytes = (o->sources->T + 1) * o->sources->token_bytes;
    Cursor c = {.step = o->position};
    MixtureCursor mixed = {0};
    begin_group(o, &c, o->first_group);
    pthread_mutex_lock(&loader->mutex);
    for (int64_t k = 0; !loader->failed; k++) {
        // A buffer to read into: waits while the ring is full.
        while (!atomic_load(&loader->stop) && loader->filled - loader->released >= o->ring)
            pthread_cond_wait(&loader->changed, &loader->mutex);
        if (atomic_load(&loader->stop)) break;
        pthread_mutex_unlock(&loader->mutex);

        Batch *batch = &loader->ring[k % o->ring];
        batch->count = min_i64(c.end - c.at, o->batch_windows);
        Error error;
        bool ok = true;
        // If stop cuts the batch short, the loader is being destroyed, and nobody takes it.
        for (int64_t i = 0; ok && i < batch->count && !atomic_load(&loader->stop); i++) {
            int64_t p = c.step + c.at + i;
            if (o->repeat_first_step) p = dataloader_repeated(mixture, p, o->step_windows);
            const MixtureDraw draw = mixture_draw(mixture, &mixed, p);
            const ShardSet *set = &o->sources->sets[draw.source];
            int64_t window = draw.index % set->num_windows;
            if (o->shuffle) window = shuffle_window(draw.index, set->num_windows, o->seed);
            ok = shards_read_window(set, window, o->vocab,
                                    (char *)batch->windows + i * window_bytes, &error);
        }
        c.at += batch->count;
        batch->end = c.step + c.at;
        if (c.at == c.end && c.group + 1 < o->first_group + o->group_count) {
            begin_group(o, &c, c.group + 1);
        } else if (c.at == c.end) {
            batch->end = c.step += o->step_windows;
            begin_group(o, &c, o->first_group);
        }

        pthread_mutex_lock(&loader->mutex);
        if (ok) {
            loader->filled++;
        } else {
            loader->failed = true;
            loader->error = error;
        }
        pthread_cond_broadcast(&loader->changed);
    }
    pthread_mutex_unlock(&loader->mutex);
    return NULL;
}

// ------------------------------------------------------------------------------------ life and use

static void free_loader(DataLoader *loader) {
    for (int i = 0; i < loader->options.ring; i++)
        if (loader->ring[i].windows) host_free(loader->ring[i].windows);
    free(loader->ring);
    free(loader);
}

DataLoader *dataloader_create(const DataLoaderOptions *options, Error *err) {
    REQUIRE(options->sources->num_shards > 0 && options->batch_windows > 0 &&
                options->step_windows > 0 && options->position >= options->sources->mixture.start &&
                (options->ring == 0 || options->ring >= 2) &&
                options->groups <= options->step_windows && options->first_group >= 0 &&
                options->first_group + options->group_count <= max_i64(options->groups, 1),
            "dataloader_create: a size is out of range");

    DataLoader *loader = memory_zeroed(1, sizeof *loader);
    loader->options = *options;
    if (loader->options.ring == 0) loader->options.ring = DATALOADER_RING;
    if (loader->options.groups == 0) loader->options.groups = 1;
    if (loader->options.group_count == 0) loader->options.group_count = loader->options.groups;
    loader->position = options->position;

    const DataLoaderOptions *o = &loader->options;
    const int64_t batch = min_i64(o->batch_windows, o->step_windows);
    int64_t bytes; // of a buffer
    bool ok = checked_mul(batch, (o->sources->T + 1) * o->sources->token_bytes, &bytes) ||
              error_set(err, "a micro-batch of %lld windows of %lld tokens does not fit in memory",
                        (long long)batch, (long long)o->sources->T);

    loader->ring = memory_zeroed(o->ring, sizeof *loader->ring);
    for (int i = 0; ok && i < o->ring; i++) {
        loader->ring[i].windows = host_alloc((size_t)bytes, err);
        ok = loader->ring[i].windows ||
             error_prefix(err, "data loader, buffer %d of %d", i + 1, o->ring);
    }

    if (!ok) {
        free_loader(loader);
        return NULL;
    }

    pthread_mutex_init(&loader->mutex, NULL);
    pthread_cond_init(&loader->changed, NULL);

    // The main thread handles signals (it finishes the step and saves), so the reader blocks them
    // all.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int status = pthread_create(&loader->reader, NULL, reader_main, loader);
    pthread_sigmask(SIG_SETMASK, &before, NULL);

    if (status != 0) {
        limits_thread_failed("the reader thread of the data loader", status, err);
        free_loader(loader);
        return NULL;
    }

    return loader;
}

void dataloader_destroy(DataLoader *loader) {
    if (!loader) return;
    // so that the reader is either before its check of stop or already waiting
    pthread_mutex_lock(&loader->mutex);
    atomic_store(&loader->stop, true);
    pthread_cond_broadcast(&loader->changed);
    pthread_mutex_unlock(&loader->mutex);
    pthread_join(loader->reader, NULL);
    pthread_cond_destroy(&loader->changed);
    pthread_mutex_destroy(&loader->mutex);
    free_loader(loader);
}

bool dataloader_next(DataLoader *loader, const void **windows, int64_t *count, Error *err) {
    const int64_t k = loader->handed_out;

    pthread_mutex_lock(&loader->mutex);
    if (k >= 2) { // the caller has finished with batch k-2 and may still copy from batch k-1
        loader->released = k - 1;
        pthread_cond_broadcast(&loader->changed);
    }

    if (loader->filled <= k && !loader->failed) {
        double start = now_seconds();
        while (loader->filled <= k && !loader->failed)
            pthread_cond_wait(&loader->changed, &loader->mutex);
        loader->wait_seconds += now_seconds() - start;
    }

    bool ready = loader->filled > k;
    pthread_mutex_unlock(&loader->mutex);
    if (!ready)
        // the reader has ended, so its message does not change
        return error_set(err, "%s", loader->error.text);

    const Batch *batch = &loader->ring[k % loader->options.ring];
    *windows = batch->windows;
    *count = batch->count;
    loader->handed_out++;
    loader->position = batch->end;
    return true;
}

int64_t dataloader_position(const DataLoader *loader) { return loader->position; }

double dataloader_wait_seconds(const DataLoader *loader) { return loader->wait_seconds; }
