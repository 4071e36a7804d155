// data/whereis: which text did step N of a run read? (`data/whereis --help`) The run's log says seed, batch and corpus
// of every start and resume; llmc/data/dataloader.h which window the stream has at a position. Changes nothing.
#include "llmc/base/arithmetic.h"
#include "llmc/base/atomic_file.h"
#include "llmc/base/json.h"
#include "llmc/data/dataloader.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char HELP[] =
    "usage: data/whereis RUN STEP [GLOB]\n"
    "\n"
    "Lists every window of tokens that step STEP (1, 2, ...) of the run in directory RUN reads, one a line: its\n"
    "micro-batch, position in the run's stream, epoch, window of the corpus, first token and byte in the file, the\n"
    "file. A window is T tokens and the target of the last one. GLOB: where the shards are now (default: where the "
    "run\n"
    "found them). data/shard show FILE --at TOKEN --count T shows the text.\n";

// From one start of the trainer to the next.
typedef struct {
    cJSON *event; // owns train_data
    const char *train_data;
    int64_t start_step, position; // steps done before, windows read before
    int64_t T, B, step_windows, num_windows, num_tokens, seed, overfit;
} Segment;

typedef struct {
    Segment *segments;
    int count;
} Order;

static void order_free(Order *o) {
    for (int i = 0; i < o->count; i++) cJSON_Delete(o->segments[i].event);
    free(o->segments);
}

static bool advance(const Segment *s, int64_t steps, int64_t *position) {
    int64_t windows;
    return checked_mul(steps, s->step_windows, &windows) && checked_add(s->position, windows, position);
}

// A "run" event. What is at or after its first step is history that did not happen.
static bool add_segment(Order *o, cJSON *event, Error *err) {
    const cJSON *options, *model, *train;
    int64_t tokens;
    Segment s = {.event = event};
    if (!json_get_object(event, "options", &options, err) || !json_get_object(event, "model", &model, err) ||
        !json_get_object(event, "train", &train, err) || !json_get_int(model, "T", 1, INT32_MAX, &s.T, err) ||
        !json_get_int(event, "start_step", 0, JSON_MAX_INT, &s.start_step, err) ||
        !json_get_int(event, "tokens_per_step", s.T, JSON_MAX_INT, &tokens, err) ||
        !json_get_int(model, "B", 1, INT32_MAX, &s.B, err) ||
        !json_get_int(train, "windows", 1, JSON_MAX_INT, &s.num_windows, err) ||
        !json_get_int(train, "tokens", 1, JSON_MAX_INT, &s.num_tokens, err) ||
        !json_get_string(options, "train-data", &s.train_data, err) ||
        !json_get_int(options, "overfit", 0, 1, &s.overfit, err) ||
        !json_get_int(options, "seed", 0, JSON_MAX_INT, &s.seed, err))
        return false;
    s.step_windows = tokens / s.T;
    while (o->count > 0 && o->segments[o->count - 1].start_step >= s.start_step)
        cJSON_Delete(o->segments[--o->count].event);
    const Segment *before = o->count > 0 ? &o->segments[o->count - 1] : NULL;
    if (before ? !advance(before, s.start_step - before->start_step, &s.position) : s.start_step > 0)
        return error_set(err, "the log begins after step %" PRId64 ": what was read until then is not known",
                         s.start_step);
    o->segments = realloc(o->segments, (size_t)(o->count + 1) * sizeof s);
    REQUIRE_MEMORY(o->segments, "the segments of a run");
    o->segments[o->count++] = s;
    return true;
}

static bool order_read(Order *o, const char *directory, Error *err) {
    static const char run[] = "{\"event\":\"run\",";
    char *path = path_join(directory, "main.log"), *line = NULL;
    FILE *file = fopen(path, "re");
    bool ok = file != NULL || error_set(err, "%s: cannot be read: %s", path, strerror(errno));
    size_t size = 0;
    for (ssize_t n; ok && (n = getline(&line, &size, file)) > 0 && line[n - 1] == '\n';) { // else: being written
        if (strncmp(line, run, sizeof run - 1) != 0) continue;
        cJSON *event = json_parse(line, (size_t)n, err);
        const bool trains = !event || cJSON_GetObjectItemCaseSensitive(event, "train"); // -x 0 reads nothing
        ok = event && (!trains || add_segment(o, event, err));
        if (!ok || !trains) cJSON_Delete(event);
    }
    if (ok && ferror(file)) ok = error_set(err, "cannot be read: %s", strerror(errno));
    if (ok && o->count == 0) ok = error_set(err, "no training run is recorded in it");
    if (!ok && file) error_prefix(err, "%s", path);
    if (file) fclose(file);
    free(line), free(path);
    return ok;
}

static const Segment *order_find(const Order *o, int64_t step, int64_t *position, Error *err) {
    const Segment *s = &o->segments[o->count - 1];
    while (s > o->segments && s->start_step >= step) s--;
    if (step >= 1 && advance(s, step - s->start_step, position)) return *position -= s->step_windows, s;
    return error_set(err, "STEP %" PRId64 ": expected 1 or more, and less than that", step), NULL;
}

static int64_t window_at(const Segment *s, int64_t position) {
    return shuffle_window(s->overfit ? position % s->step_windows : position, s->num_windows, (uint64_t)s->seed);
}

static bool print_step(const Segment *s, const char *step, int64_t position, const char *pattern, Error *err) {
    ShardSet set;
    if (!shards_open(&set, pattern, s->T, err)) return error_set(err, "%s; name them behind the step", err->text);
    // Other shards under the same names would give wrong answers in silence.
    const bool same = s->num_windows == set.num_windows && s->num_tokens == set.num_tokens;
    if (!same)
        error_set(err,
                  "%s: %" PRId64 " tokens in %" PRId64 " windows of %" PRId64 ", the run found %" PRId64 " in %" PRId64
                  ": it is another corpus now",
                  pattern, set.num_tokens, set.num_windows, s->T, s->num_tokens, s->num_windows);
    else
        printf("step %s: %" PRId64 " windows of %" PRId64 " tokens, %" PRId64 " at a time, from %" PRId64
               " windows of %s, seed %" PRId64 "\n%11s %10s %6s %10s %12s %12s  %s\n",
               step, s->step_windows, s->T, s->B, set.num_windows, pattern, s->seed, "micro-batch", "position", "epoch",
               "window", "token", "byte", "file");
    for (int64_t i = 0; same && i < s->step_windows; i++) {
        const char *path;
        int64_t token, window = window_at(s, position + i), p = position + i;
        shards_locate(&set, window, &path, &token);
        if (s->overfit) p %= s->step_windows;
        printf("%11" PRId64 " %10" PRId64 " %6" PRId64 " %10" PRId64 " %12" PRId64 " %12" PRId64 "  %s\n", i / s->B + 1,
               p, p / set.num_windows + 1, window, token, SHARD_HEADER_BYTES + token * set.token_bytes, path);
    }
    shards_close(&set);
    return same;
}

int main(int argc, char **argv) {
    Order order = {0};
    Error err;
    standard_files_open();
    if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0))
        return fputs(HELP, stdout), EXIT_OK;
    char *end = NULL;
    int64_t position;
    const int64_t step = argc >= 3 ? strtoll(argv[2], &end, 10) : 0;
    bool ok = argc == 3 || argc == 4 || error_set(&err, "expected RUN and STEP; data/whereis --help shows the usage");
    if (ok && (*end || step < 1)) ok = error_set(&err, "STEP %s: expected a number from 1 on", argv[2]);
    const Segment *s = ok && order_read(&order, argv[1], &err) ? order_find(&order, step, &position, &err) : NULL;
    ok = s && print_step(s, argv[2], position, argc == 4 ? argv[3] : s->train_data, &err);
    order_free(&order);
    if (!ok) fflush(stdout), fprintf(stderr, "whereis: %s\n", err.text);
    return ok ? EXIT_OK : EXIT_BAD_INPUT;
}
