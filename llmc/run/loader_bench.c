// See loader_bench.h. Reading is timed with a consumer that takes each batch at once, so that the time between two
// batches is the time that the reader needs for one. What the model waits follows from these times and the measured
// time of its micro-step, by the protocol of the ring (data/dataloader.h), without running both for minutes.
#include "llmc/run/loader_bench.h"

#include "llmc/base/arithmetic.h"
#include "llmc/base/format.h"
#include "llmc/device.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ROUNDS = 3, MOST_BATCHES = 1 << 14, COPIES = 51 };
static const double ROUND_SECONDS = 0.2;
static const int64_t WORKING_SET = 64 << 20; // bytes of tokens that a round reads at most: more than the caches hold

// ------------------------------------------------------------------------------------------------------------- waiting

// Batch k takes the buffer of batch k - ring, which is free when batch k - ring + 2 is asked for.
double loader_wait_share(const double *fill, int count, int ring, double step) {
    double *asked = calloc((size_t)count + 1, sizeof *asked);
    REQUIRE_MEMORY(asked, "the times of batches");
    double ready = 0, waited = 0, begin = 0, taken = 0;
    for (int k = 0; k < count; k++) {
        asked[k] = k == 0 ? 0 : taken + step;
        const double free = k < ring ? 0 : asked[k - ring + 2];
        ready = (ready > free ? ready : free) + fill[k];
        taken = asked[k] > ready ? asked[k] : ready;
        if (k == ring - 1) begin = taken;
        if (k >= ring) waited += taken - asked[k];
    }
    free(asked);
    const double all = taken - begin;
    return count > ring && all > 0 ? waited / all : 0;
}

// ------------------------------------------------------------------------------------------------------ the file cache

// Whether the pages of these files are in memory, as a share.
static double cached_share(const ShardSet *set) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t pages = 0, in_memory = 0;
    for (int i = 0; i < set->count; i++) {
        struct stat st;
        if (fstat(set->shards[i].fd, &st) != 0 || st.st_size == 0) continue;
        const size_t n = ((size_t)st.st_size + page - 1) / page;
        void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, set->shards[i].fd, 0);
        unsigned char *there = malloc(n);
        if (map != MAP_FAILED && there && mincore(map, (size_t)st.st_size, there) == 0)
            for (size_t k = 0; k < n; k++) pages++, in_memory += there[k] & 1;
        free(there);
        if (map != MAP_FAILED) munmap(map, (size_t)st.st_size);
    }
    return pages > 0 ? (double)in_memory / (double)pages : 1;
}

// False: they stay, as in tmpfs, or because another process has them mapped.
static bool drop_cache(const ShardSet *set) {
    for (int i = 0; i < set->count; i++) {
        fdatasync(set->shards[i].fd); // what is not on the disk yet cannot be dropped
        posix_fadvise(set->shards[i].fd, 0, 0, POSIX_FADV_DONTNEED);
    }
    return cached_share(set) < 0.05;
}

// ------------------------------------------------------------------------------------------------------------- reading

typedef struct {
    bool cold, shuffle;
    int ring;
    double rates[ROUNDS], waits[ROUNDS], slowest; // tokens/s; share; seconds
} Cell;

// One round of a cell: until the time is up, or, from the disk, until all of the working set was read once. measured
// false: reads all of it, to have it in the cache.
static bool run_round(const RunSetup *s, Cell *c, int round, bool measured, double step, Error *err) {
    static double fill[MOST_BATCHES];
    DataLoaderOptions o = run_setup_loader(s);
    const int64_t set = WORKING_SET / ((s->T + 1) * s->train.token_bytes);
    o.position = 0, o.groups = o.first_group = o.group_count = 0;
    o.shuffle = c->shuffle, o.ring = c->ring, o.repeat_first_step = true;
    o.step_windows = min_i64(s->train.num_windows, max_i64(set, o.batch_windows));
    const double began = now_seconds();
    DataLoader *loader = dataloader_create(&o, err);
    if (!loader) return false;
    double before = began, passed = 0;
    int64_t windows = 0;
    int n = 0;
    bool ok = true;
    for (bool more = true; ok && more;) {
        const void *batch;
        int64_t count;
        ok = dataloader_next(loader, &batch, &count, err);
        const double now = now_seconds();
        if (!ok) break;
        windows += count;
        fill[n++] = now - before, before = now, passed = now - began;
        const bool all = windows >= o.step_windows;
        more = measured ? passed < ROUND_SECONDS && n < MOST_BATCHES && !(c->cold && all) : !all;
        n = measured ? n : 0;
    }
    dataloader_destroy(loader);
    if (!ok || !measured) return ok;
    c->rates[round] = (double)(windows * s->T) / passed;
    c->waits[round] = loader_wait_share(fill, n, c->ring, step);
    for (int i = 1; i < n; i++) // the first one starts the thread
        if (fill[i] > c->slowest) c->slowest = fill[i];
    return true;
}

// ---------------------------------------------------------------------------------------------------- step and copies

// The median time of a micro-step of B windows, after those that make plans and record a graph.
static bool time_step(const RunSetup *s, Gpt2 *model, double *seconds, Error *err) {
    enum { WARMUP = 3, MOST = 25 };
    const size_t bytes = (size_t)(s->options.B * (s->T + 1) * s->train.token_bytes);
    double times[MOST], spent = 0;
    int n = 0;
    void *windows = host_alloc(bytes, err);
    if (!windows) return false;
    memset(windows, 0, bytes);
    for (int i = 0; i < WARMUP + MOST && (n < 3 || spent < 1); i++) {
        const double began = now_seconds();
        gpt2_load_batch(model, windows, s->options.B, s->train.token_bytes);
        gpt2_forward_backward(model, s->step_windows * s->T, true);
        device_sync();
        if (i >= WARMUP) spent += times[n++] = now_seconds() - began;
    }
    host_free(windows);
    *seconds = median_of(times, n);
    return true;
}

// Of a micro-batch to the GPU, from host memory that the loader allocates (pinned) or from any other.
static bool time_copies(const RunSetup *s, double *pinned, double *pageable, Error *err) {
    const size_t bytes = (size_t)(s->options.B * (s->T + 1) * s->train.token_bytes);
    double times[2][COPIES];
    void *from[2] = {host_alloc(bytes, err), calloc(1, bytes)}, *to = from[0] ? device_alloc(bytes, err) : NULL;
    const bool ok = to && from[1];
    if (to && !from[1]) error_set(err, "out of memory for %zu bytes", bytes);
    if (ok) memset(from[0], 0, bytes);
    for (int i = 0; ok && i < COPIES; i++) // in turns
        for (int k = 0; k < 2; k++) {
            const double began = now_seconds();
            copy_h2d(to, from[k], bytes, STREAM_COPY);
            device_sync();
            times[k][i] = now_seconds() - began;
        }
    if (to) device_free(to);
    if (from[0]) host_free(from[0]);
    free(from[1]);
    if (ok) *pinned = median_of(times[0], COPIES), *pageable = median_of(times[1], COPIES);
    return ok;
}

// ---------------------------------------------------------------------------------------------------------- the report

enum { TEXT = 32 };

static const char *rate(double tokens_per_second, char text[TEXT]) {
    char count[TEXT - 8];
    snprintf(text, TEXT, "%s tok/s", format_count(tokens_per_second, count, sizeof count));
    return text;
}

static void print_cell(const Cell *c) {
    char text[TEXT];
    double rates[ROUNDS], waits[ROUNDS];
    memcpy(rates, c->rates, sizeof rates), memcpy(waits, c->waits, sizeof waits);
    printf("loader      %-11s %-10s %4d  %15s %8.2f%% %9.2f ms\n", c->cold ? "cold" : "warm",
           c->shuffle ? "shuffled" : "file order", c->ring, rate(median_of(rates, ROUNDS), text),
           100 * median_of(waits, ROUNDS), 1e3 * c->slowest);
}

// A run shuffles, with DATALOADER_RING buffers.
static void print_verdict(const Cell *cells, int count, bool has_cold) {
    double waits[2] = {0, 0};
    for (int i = 0; i < count; i++)
        if (cells[i].shuffle && cells[i].ring == DATALOADER_RING) {
            double copy[ROUNDS];
            memcpy(copy, cells[i].waits, sizeof copy);
            waits[cells[i].cold] = median_of(copy, ROUNDS);
        }
    const double most = waits[0] > waits[1] ? waits[0] : waits[1];
    printf("loader      a run (shuffled, ring of %d) %s: %.2f%% of its time with warm files", DATALOADER_RING,
           most < 0.001 ? "does not wait for data" : "waits for data", 100 * waits[0]);
    if (has_cold) printf(", %.2f%% with cold ones", 100 * waits[1]);
    printf("\n");
}

static bool print_copies(const RunSetup *s, Error *err) {
    char text[2][TEXT];
    double pinned, pageable;
    const double tokens = (double)(s->options.B * s->T);
    if (strcmp(device_facts()->backend, "cpu") == 0) return true;
    if (!time_copies(s, &pinned, &pageable, err)) return false;
    printf("loader      copy to the GPU: pinned %.1f us, %s; pageable %.1f us, %s\n", 1e6 * pinned,
           rate(tokens / pinned, text[0]), 1e6 * pageable, rate(tokens / pageable, text[1]));
    return true;
}

bool loader_bench(const RunSetup *s, Gpt2 *model, Error *err) {
    static const int rings[] = {2, DATALOADER_RING, 2 * DATALOADER_RING};
    enum { RINGS = sizeof rings / sizeof *rings, MOST_CELLS = 4 * RINGS };
    Cell cells[MOST_CELLS];
    char text[TEXT];
    double step;
    if (!time_step(s, model, &step, err)) return false;
    const bool has_cold = drop_cache(&s->train);
    const int count = has_cold ? MOST_CELLS : MOST_CELLS / 2;
    for (int i = 0; i < count; i++)
        cells[i] = (Cell){.cold = i >= 2 * RINGS, .shuffle = i / RINGS % 2 == 0, .ring = rings[i % RINGS]};
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < count; i++) {
            if (cells[i].cold) drop_cache(&s->train);
            if (!cells[i].cold && !run_round(s, &cells[i], round, false, step, err)) return false;
            if (!run_round(s, &cells[i], round, true, step, err)) return false;
        }
    printf("loader      %s: %s tokens in %d shard%s, micro-batches of %lld windows of %lld; medians of %d rounds\n",
           s->options.train_data, format_count((double)s->train.num_tokens, text, TEXT), s->train.count,
           s->train.count == 1 ? "" : "s", (long long)s->options.B, (long long)s->T, ROUNDS);
    printf("loader      a micro-step takes %.4g ms here: the model takes %s\n", 1e3 * step,
           rate((double)(s->options.B * s->T) / step, text));
    printf("loader      file cache  order      ring     reader reads   model waits   slowest\n");
    for (int i = 0; i < count; i++) print_cell(&cells[i]);
    if (!has_cold) printf("loader      cold: not measured; the system keeps these files in memory (tmpfs?)\n");
    if (!print_copies(s, err)) return false;
    print_verdict(cells, count, has_cold);
    return true;
}
