// Measures the way of tokens from the page cache to the trainer: shards_read_window on one thread
// (with its check of the vocabulary), the bare pread of the same windows for comparison, and the
// whole data loader. Makes a temporary shard and removes it. One line of JSON to stdout
// ("tokens_per_second": the loader's), one for people to stderr. usage: bench_loader [T
// [MEGABYTES]]
#include "llmc/data/dataloader.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 7, VOCAB = 50257, BATCH = 64 };
static const double ROUND_SECONDS = 0.15;

static double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static bool make_shard(const char *path, int64_t tokens, Error *err) {
    enum { CHUNK = 1 << 16 };
    static uint16_t chunk[CHUNK];
    for (int i = 0; i < CHUNK; i++) chunk[i] = (uint16_t)(i * 7919 % VOCAB);

    ShardWriter *w = shard_writer_open(path, 2, VOCAB, -1, err);
    if (!w) return false;
    for (int64_t done = 0; done < tokens; done += CHUNK) {
        int64_t n = tokens - done < CHUNK ? tokens - done : CHUNK;
        if (!shard_writer_append(w, chunk, n, err)) {
            shard_writer_leave(w);
            return false;
        }
    }

    return shard_writer_commit(w, err);
}

// The functions that are measured: each reads the p-th window or batch and returns its tokens, -1
// on failure.
typedef struct {
    const ShardSet *shards;
    DataLoader *loader;
    bool shuffle;
    void *out;
    Error *err;
} Source;
typedef int64_t ReadTokens(const Source *source, int64_t p);

static int64_t window_at(const Source *s, int64_t p) {
    return s->shuffle ? shuffle_window(p, s->shards->num_windows, 1337)
                      : p % s->shards->num_windows;
}

static int64_t read_checked(const Source *s, int64_t p) {
    return shards_read_window(s->shards, window_at(s, p), VOCAB, s->out, s->err) ? s->shards->T
                                                                                 : -1;
}

static int64_t read_bare(const Source *s, int64_t p) {
    const Shard *shard = &s->shards->shards[0];
    size_t bytes = (size_t)(s->shards->T + 1) * 2;
    ssize_t got =
        pread(shard->fd, s->out, bytes, SHARD_HEADER_BYTES + window_at(s, p) * s->shards->T * 2);
    return got == (ssize_t)bytes ? s->shards->T : -1;
}

static int64_t read_batch(const Source *s, int64_t p) {
    (void)p;
    const void *windows;
    int64_t count;
    return dataloader_next(s->loader, &windows, &count, s->err) ? count * s->shards->T : -1;
}

// One round: tokens/s, 0 on failure.
static double measure(ReadTokens *read, const Source *source) {
    int64_t tokens = 0;
    double start = seconds_now(), passed = 0;
    for (int64_t p = 0; passed < ROUND_SECONDS; p++) {
        int64_t n = read(source, p);
        if (n < 0) return 0;
        tokens += n;
        if (p % 64 == 63) passed = seconds_now() - start;
    }
    return (double)tokens / passed;
}

enum { CASES = 4 };
static const struct {
    const char *name;
    ReadTokens *read;
    bool shuffle;
} cases[CASES] = {
    {"sequential", read_checked, false},
    {"shuffled", read_checked, true},
    {"shuffled_bare_pread", read_bare, true},
    {"loader", read_batch, true},
};

// Fills rates[c] with the median of all rounds. The cases take turns, so that a busy neighbour hits
// all alike.
static bool measure_all(Source source, double rates[CASES]) {
    double rounds[CASES][ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        for (int c = 0; c < CASES; c++) {
            source.shuffle = cases[c].shuffle;
            rounds[c][round] = measure(cases[c].read, &source);
            if (rounds[c][round] == 0) return false;
        }
    }

    for (int c = 0; c < CASES; c++) {
        qsort(rounds[c], ROUNDS, sizeof(double), by_value);
        rates[c] = rounds[c][ROUNDS / 2];
    }
    return true;
}

static void print_results(const ShardSet *shards, const double rates[CASES]) {
    printf(
        "{\"bench\": \"loader\", \"T\": %lld, \"shard_tokens\": %lld, \"tokens_per_second\": %.4g",
        (long long)shards->T, (long long)shards->num_tokens, rates[CASES - 1]);
    fprintf(stderr, "T = %lld, page cache, one reading thread, million tokens/s (median of %d):",
            (long long)shards->T, ROUNDS);
    for (int c = 0; c < CASES; c++) {
        printf(", \"%s\": %.4g", cases[c].name, rates[c]);
        fprintf(stderr, "%s %s %.0f", c ? "," : "", cases[c].name, rates[c] * 1e-6);
    }
    printf("}\n");
    fprintf(stderr, "\n");
}

static bool run(const Sources *sources, Error *err) {
    const ShardSet *shards = &sources->sets[0];
    DataLoaderOptions options = {.sources = sources,
                                 .vocab = VOCAB,
                                 .batch_windows = BATCH,
                                 .step_windows = BATCH,
                                 .seed = 1337,
                                 .shuffle = true};
    DataLoader *loader = dataloader_create(&options, err);
    if (!loader) return false;

    void *out = malloc((size_t)(shards->T + 1) * 2);
    double rates[CASES];
    error_set(err, "a window could not be read");
    bool ok =
        out &&
        measure_all((Source){.shards = shards, .loader = loader, .out = out, .err = err}, rates);
    if (ok) print_results(shards, rates);

    free(out);
    dataloader_destroy(loader);
    return ok;
}

int main(int argc, char **argv) {
    int64_t T = argc > 1 ? atoll(argv[1]) : 1024, megabytes = argc > 2 ? atoll(argv[2]) : 200;
    if (T < 1 || megabytes < 1 || T > megabytes * 500000 - 1) {
        fprintf(stderr,
                "usage: bench_loader [T [MEGABYTES]], both at least 1, T below half the size\n");
        return EXIT_BAD_INPUT;
    }

    const char *base = getenv("TMPDIR");
    char path[4096];
    snprintf(path, sizeof path, "%s/bench-loader-%d.bin", base && *base ? base : P_tmpdir,
             (int)getpid());

    Error err;
    Sources sources = {0};
    bool ok = make_shard(path, megabytes * 500000, &err) && sources_open(&sources, path, T, &err);
    unlink(path); // the descriptor keeps the data, and nothing is left behind
    ok = ok && run(&sources, &err);

    if (!ok) fprintf(stderr, "bench_loader: %s\n", err.text);
    sources_close(&sources);
    return ok ? EXIT_OK : EXIT_RUN_FAILED;
}
